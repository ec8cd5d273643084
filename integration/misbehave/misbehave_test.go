package misbehave

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var puts = Named("PutObject")

// took checks how much virtual time f takes.
func (w *world) took(want time.Duration, f func()) {
	w.Helper()
	start := time.Now()
	f()
	if d := time.Since(start); d != want {
		w.Fatalf("it took %v, want %v", d, want)
	}
}

func TestFaults(t *testing.T) {
	put := func(w *world) got { return w.do("PUT", "/b/k", "new") }
	for _, c := range []struct {
		name  string
		fault Fault
		run   func(*world)
	}{
		{"an answer is held for a while", Fault{Hold: time.Minute}, func(w *world) {
			w.took(time.Minute, func() { w.want(put(w), 200, "") })
		}},
		{"an answer that is held has its effect before", Fault{Hold: time.Minute}, func(w *world) {
			go put(w)
			time.Sleep(time.Second)
			w.has("k", "new")
		}},
		{"a request is on its way for a while", Fault{Stall: time.Minute}, func(w *world) {
			go put(w)
			time.Sleep(time.Second)
			w.has("k", "old")
			time.Sleep(time.Minute + time.Second)
			w.has("k", "new")
		}},
		{"a slow store tells the truth", Fault{Late: time.Minute}, func(w *world) {
			w.took(time.Minute, func() { w.want(w.do("PUT", "/b/k", "new", "If-Match", tag("x")), 412, "PreconditionFailed") })
			w.has("k", "old")
		}},
		{"a slow store judges conditions when it acts", Fault{Late: time.Minute}, func(w *world) {
			go func() { time.Sleep(time.Second); w.put("k", "other") }()
			w.want(w.do("PUT", "/b/k", "new", "If-Match", tag("other")), 200, "")
			w.wantJournal("PutObject k=old, PutObject k=other, PutObject k=new late")
		}},
		{"success is answered first", Fault{Late: time.Hour, Status: 200}, func(w *world) {
			w.took(0, func() {
				if g := w.want(put(w), 200, ""); g.etag != tag("new") {
					w.Error(g.etag)
				}
			})
			w.has("k", "old")
			time.Sleep(time.Hour + time.Second) // what is due at the same moment may come after us
			w.has("k", "new")
			w.wantJournal("PutObject k=old, PutObject k=new late")
		}},
		{"the answer never comes and the effect does", Fault{Late: time.Hour, Drop: true}, func(w *world) {
			w.took(0, func() {
				if g := put(w); g.err == nil {
					w.Errorf("%+v", g)
				}
			})
			w.has("k", "old")
			time.Sleep(time.Hour + time.Second)
			w.has("k", "new")
		}},
		{"a late condition is judged late", Fault{Late: time.Hour, Drop: true}, func(w *world) {
			w.do("PUT", "/b/k", "new", "If-Match", tag("old"))
			w.put("k", "other")
			time.Sleep(time.Hour + time.Second)
			w.has("k", "other")
		}},
		{"a late condition is judged by the content alone", Fault{Late: time.Hour, Drop: true}, func(w *world) {
			w.do("PUT", "/b/k", "new", "If-Match", tag("old"))
			w.put("k", "other")
			w.put("k", "old")
			time.Sleep(time.Hour + time.Second)
			w.has("k", "new")
		}},
		{"a write is lost", Fault{Lose: true}, func(w *world) {
			if g := w.want(put(w), 200, ""); g.etag != tag("new") {
				w.Error(g.etag)
			}
			w.has("k", "old")
		}},
		{"a write is done twice", Fault{Again: time.Minute}, func(w *world) {
			w.want(put(w), 200, "")
			w.put("k", "between")
			time.Sleep(time.Minute + time.Second)
			w.has("k", "new")
			w.wantJournal("PutObject k=old, PutObject k=new, PutObject k=between, PutObject k=new late second")
		}},
		{"a write with a condition cannot be done twice", Fault{Again: time.Minute}, func(w *world) {
			w.put("k", "new", "If-Match", tag("old"))
			w.put("k", "between")
			time.Sleep(time.Minute + time.Second)
			w.has("k", "between")
		}},
		{"the connection is cut before", Fault{Drop: true, Lose: true}, func(w *world) {
			if g := put(w); g.err == nil {
				w.Errorf("%+v", g)
			}
			w.has("k", "old")
		}},
		{"the connection is cut after", Fault{Drop: true}, func(w *world) {
			if g := put(w); g.err == nil {
				w.Errorf("%+v", g)
			}
			w.has("k", "new")
		}},
		{"the connection is cut before the body", Fault{Drop: true, Unread: true}, func(w *world) {
			if g := put(w); g.err == nil {
				w.Errorf("%+v", g)
			}
			w.has("k", "old")
		}},
		{"a refusal comes before the body", Fault{Unread: true, Status: 403, Code: "AccessDenied"}, func(w *world) {
			w.want(w.do("PUT", "/b/k", strings.Repeat("x", 100_000)), 403, "AccessDenied")
			w.has("k", "old")
		}},
		{"a body is cut and kept", Fault{Cut: 2}, func(w *world) {
			w.want(put(w), 200, "")
			w.has("k", "ne")
		}},
		{"a body that breaks off is kept", Fault{Torn: true}, func(w *world) {
			w.cutOff("ne", 3)
			w.has("k", "ne")
		}},
		{"conditions are ignored", Fault{IgnoreConditions: true}, func(w *world) {
			w.put("k", "new", "If-Match", tag("x"))
			w.has("k", "new")
		}},
		{"500 after the effect", Fault{Status: 500, Code: "InternalError"}, func(w *world) {
			w.want(put(w), 500, "InternalError")
			w.has("k", "new")
		}},
		{"503 SlowDown without one", Fault{Status: 503, Code: "SlowDown", Lose: true}, func(w *world) {
			w.want(put(w), 503, "SlowDown")
			w.has("k", "old")
		}},
		{"another 503 after the effect", Fault{Status: 503, Code: "ServiceUnavailable"}, func(w *world) {
			w.want(put(w), 503, "ServiceUnavailable")
			w.has("k", "new")
		}},
		{"success where there was none", Fault{Status: 200}, func(w *world) {
			w.want(w.do("PUT", "/b/k", "new", "If-Match", tag("x")), 200, "")
			w.has("k", "old")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Options{}, func(w *world) {
				w.put("k", "old")
				w.store.Next(puts, c.fault)
				c.run(w)
			})
		})
	}
}

func TestHeldUntilReleased(t *testing.T) {
	inWorld(t, Options{}, func(w *world) {
		release := make(chan struct{})
		w.store.Next(puts, Fault{Until: release})
		answered := make(chan got)
		go func() { answered <- w.do("PUT", "/b/k", "new") }()
		time.Sleep(time.Hour + time.Second)
		w.has("k", "new")
		select {
		case <-answered:
			w.Error("it was not held")
		default:
		}
		close(release)
		w.want(<-answered, 200, "")
	})
}

// TestErrorInside is S3's way to fail a Copy or a Complete that it has begun to answer.
func TestErrorInside(t *testing.T) {
	for _, lose := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %v", lose), func(t *testing.T) {
			inWorld(t, Options{}, func(w *world) {
				w.put("from", "content")
				id, list := w.begin("complete")
				inside := Fault{Status: 200, Code: "InternalError", Lose: lose}
				w.store.Next(Named("CopyObject", "CompleteMultipartUpload"), inside)
				w.store.Next(Named("CopyObject", "CompleteMultipartUpload"), inside)
				w.want(w.do("PUT", "/b/copy", "", "X-Amz-Copy-Source", "b/from"), 200, "InternalError")
				w.want(w.do("POST", "/b/complete?uploadId="+id, list), 200, "InternalError")
				if lose {
					w.has("copy", "")
					w.has("complete", "")
				} else {
					w.has("copy", "content")
					w.has("complete", "onetwo")
				}
			})
		})
	}
}

func TestMergedNames(t *testing.T) {
	for _, c := range []struct {
		options Options
		other   string
	}{
		{Options{Slashes: true}, "p//q"}, {Options{Dots: true}, "p/./q"}, {Options{Dots: true}, "p/z/../q"}, {Options{Case: true}, "P/q"},
	} {
		t.Run(c.other, func(t *testing.T) {
			inWorld(t, c.options, func(w *world) {
				w.put("p/q", "one")
				w.put(c.other, "two")
				w.has("p/q", "two")
				w.wantJournal("PutObject p/q=one, PutObject " + c.other + "=two")
			})
		})
	}
}

// TestExpiryIsJudgedOnArrival: what decides is when the headers come, not when the client sent them, nor when the body has come.
func TestExpiryIsJudgedOnArrival(t *testing.T) {
	for _, c := range []struct {
		name   string
		fault  Fault
		status int
	}{
		{"in time", Fault{Stall: 9 * time.Second}, 200},
		{"late on its way", Fault{Stall: 11 * time.Second}, 403},
		{"late in the store", Fault{Late: 11 * time.Second}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Options{}, func(w *world) {
				w.store.Next(puts, c.fault)
				r := w.request("PUT", "/b/k?X-Amz-Date="+time.Now().UTC().Format("20060102T150405Z")+"&X-Amz-Expires=10&X-Amz-SignedHeaders=host&X-Amz-Signature=x", strings.NewReader("x"))
				r.Header.Del("X-Amz-Date")
				r.Header.Del("Authorization")
				w.want(w.send(r), c.status, "AccessDenied")
			})
		})
	}
}

// TestAppliedAtTheMoment: a checker hears of an effect before any reader can see it.
func TestAppliedAtTheMoment(t *testing.T) {
	var heard []Application
	o := Options{
		Applied: func(a Application) { heard = append(heard, a) },
		Fault: func(op Operation) Fault {
			if op.Header.Get("X-Amz-Meta-Late") != "" {
				return Fault{Late: time.Minute, Drop: true}
			}
			return Fault{}
		},
	}
	inWorld(t, o, func(w *world) {
		w.put("k", "old")
		w.do("PUT", "/b/k", "new", "X-Amz-Meta-Late", "yes")
		sent := time.Now()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(heard) != 2 {
			w.Fatalf("heard of %d", len(heard))
		}
		a := heard[1]
		if a.At.Sub(sent) != time.Minute || a.ID != 2 || a.Came != sent || a.Before != tag("old") || a.ETag != tag("new") ||
			a.Metadata.Get("X-Amz-Meta-Late") != "yes" || a.Bucket != "b" || !a.Late || a.Deleted {
			w.Errorf("%+v", a)
		}
		w.store.Put("b", "k", []byte("back door"), nil)
		w.has("k", "back door")
		if content, ok := w.store.Content("b", "k"); !ok || string(content) != "back door" {
			w.Errorf("%s %v", content, ok)
		}
	})
}

// TestCloseEndsWhatIsLate: goroutines end, and nothing takes effect after it.
func TestCloseEndsWhatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, store: New(Options{}, "b"), net: NewNetwork()}
		w.store.Next(puts, Fault{Late: time.Hour, Status: 200})
		r := w.request("PUT", "/b/k", nil)
		rec := bare(w.store, "PUT", "/b/k", strings.NewReader("x"), "Content-Length", "1", "Authorization", r.Header.Get("Authorization"), "X-Amz-Date", r.Header.Get("X-Amz-Date"))
		if rec.Code != 200 {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		w.store.Close()
		time.Sleep(2 * time.Hour)
		if j := w.store.Journal(); len(j) > 0 {
			t.Errorf("%+v", j)
		}
	})
}
