package proxy

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// comesThrough sends a write with token 35 again and again, as a client of S3 does, until it is through, and returns how long that took.
func (r *remote) comesThrough(target string) time.Duration {
	r.Helper()
	start := time.Now()
	for time.Since(start) < time.Hour {
		w := r.do("PUT", target, "newer", "X-Fence-Token: 35")
		if w.Code == 200 {
			return time.Since(start)
		}
		r.check(w, 503, "WaitingForOlderWrite")
	}
	r.Fatal("the newer writer never came through")
	return 0
}

// unstampedStore leaves nothing by which a write could be proven.
func unstampedStore(_ *Config, b *Backend) { b.Stamp = false }

// TestLateWriteIsKeptOut: story delta-rs #268, a write that was given up is carried out later. The store says nothing, or lies, and carries
// a write out long after its settle time and after a newer holder's write. Its condition keeps it out. Without one it overwrites: that is
// what the condition is for.
func TestLateWriteIsKeptOut(t *testing.T) {
	t.Parallel()
	for _, name := range conditionable {
		for _, conditional := range []bool{true, false} {
			for _, there := range []bool{true, false} {
				if name == "DeleteObject" && !there {
					continue // it is not sent at all, or has no condition; see TestDeleteOfAnAbsentKey
				}
				t.Run(fmt.Sprintf("%s, conditional %v, key there %v", name, conditional, there), func(t *testing.T) {
					t.Parallel()
					before(t, unstampedStore, func(r *remote) {
						if there {
							r.put("a", "what is there")
						}
						write := r.prepare(name, "a")
						settle := r.h.Backends["test"].settle(name)
						r.fault(name, misbehave.Fault{Late: 2 * settle, Status: 500, Code: "InternalError"})
						r.check(write.send("X-Fence-Token: 34"), 504, "OutcomeUnknown")
						r.doubtful(1)
						if waited := r.comesThrough("/b/a"); waited != settle {
							t.Errorf("the newer holder waited for %v, want the settle time, %v", waited, settle)
						}
						r.settled()
						r.has("a", "newer")
						time.Sleep(2 * settle)
						synctest.Wait()
						switch want := "content-of-" + name; {
						case conditional:
							r.has("a", "newer")
						case name == "DeleteObject":
							r.has("a", "")
						default:
							r.has("a", want)
						}
					}, rules.Rule{Match: "**", Unconditional: !conditional})
				})
			}
		}
	}
}

// TestDoubtHoldsBackOnlyTheNewer: equal tokens go on, older ones are stale, and the record has it.
func TestDoubtHoldsBackOnlyTheNewer(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]misbehave.Fault{
		"no answer": {Drop: true, Lose: true}, "500": {Status: 500, Code: "InternalError", Lose: true},
		"InternalError inside a 200": {Status: 200, Code: "InternalError", Lose: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				r.store.Put("other", "source", []byte("content"), nil)
				r.fault("CopyObject", f)
				r.want(504, "OutcomeUnknown", "PUT", "/b/a", "", "X-Fence-Token: 34", "X-Amz-Copy-Source: other/source")
				r.doubtful(1)
				if records := r.records("in_doubt"); len(records) != 1 || records[0].Token != 34 || records[0].Key != "a" {
					t.Errorf("%+v", records)
				}
				if r.metric("fenceproxy_in_doubt_total") != 1 || r.metric("fenceproxy_writes_in_doubt") != 1 {
					t.Error("it is not counted")
				}
				r.want(200, "", "PUT", "/b/a", "equal", "X-Fence-Token: 34")
				r.want(412, "StaleToken", "PUT", "/b/a", "older", "X-Fence-Token: 33")
				r.want(503, "WaitingForOlderWrite", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
				r.want(503, "WaitingForOlderWrite", "GET", "/b/a", "", "X-Fence-Token: 35")
				r.want(412, "StaleToken", "PUT", "/b/a", "equal", "X-Fence-Token: 34")
				r.doubtful(1)
			})
		})
	}
}

// TestProvenByItsWriteID: what took effect, and was not answered, is found by its stamp, and the next holder comes through long before the
// settle time is over.
func TestProvenByItsWriteID(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]misbehave.Fault{
		"answer lost":                {Drop: true},
		"500 after it took effect":   {Status: 500, Code: "InternalError"},
		"it took effect after a 500": {Status: 500, Code: "InternalError", Late: 5 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				r.fault("PutObject", f)
				r.want(504, "OutcomeUnknown", "PUT", "/b/a", "older", "X-Fence-Token: 34")
				r.doubtful(1)
				if waited := r.comesThrough("/b/a"); waited > 20*time.Second {
					t.Errorf("the newer holder waited for %v", waited)
				}
				r.settled()
				if n := r.metric("fenceproxy_in_doubt_proven_total"); n != 1 {
					t.Errorf("%v proven, want 1", n)
				}
				r.has("a", "newer")
				time.Sleep(time.Hour)
				r.has("a", "newer")
			})
		})
	}
}

// TestCopyIsProvenWhereItIsStamped: with metadata of its own it has its own stamp.
func TestCopyIsProvenWhereItIsStamped(t *testing.T) {
	t.Parallel()
	for directive, proven := range map[string]bool{"REPLACE": true, "COPY": false, "": false} {
		before(t, nil, func(r *remote) {
			r.want(200, "", "PUT", "/b/source", "content", "X-Fence-Token: 34")
			r.fault("CopyObject", misbehave.Fault{Drop: true})
			headers := []string{"X-Fence-Token: 34", "X-Amz-Copy-Source: b/source"}
			if directive != "" {
				headers = append(headers, "X-Amz-Metadata-Directive: "+directive)
			}
			r.want(504, "OutcomeUnknown", "PUT", "/b/a", "", headers...)
			if waited := r.comesThrough("/b/a"); (waited < 20*time.Second) != proven || !proven && waited != 10*time.Minute {
				t.Errorf("%q: the newer holder waited for %v", directive, waited)
			}
			r.settled()
		})
	}
}

// TestNothingElseIsProof: an object that is what it was, one that is another's, one that is gone, a Complete, a tag.
func TestNothingElseIsProof(t *testing.T) {
	t.Parallel()
	lost, dropped := misbehave.Fault{Lose: true, Drop: true}, misbehave.Fault{Drop: true}
	const token = "X-Fence-Token: 34"
	for _, c := range []struct {
		what   string
		send   func(r *remote)
		settle time.Duration
	}{
		{"a Put that did not take effect", func(r *remote) {
			r.fault("PutObject", lost)
			r.want(504, "OutcomeUnknown", "PUT", "/b/a", "x", token)
		}, time.Minute},
		{"the same behind another's write", func(r *remote) {
			r.fault("PutObject", lost)
			r.want(504, "OutcomeUnknown", "PUT", "/b/a", "x", token)
			r.put("a", "another's")
		}, time.Minute},
		{"a Put that was overwritten by an equal token", func(r *remote) {
			r.fault("PutObject", lost)
			r.want(504, "OutcomeUnknown", "PUT", "/b/a", "x", token)
			r.want(200, "", "PUT", "/b/a", "y", token)
		}, time.Minute},
		{"a DELETE that took effect", func(r *remote) {
			r.put("a", "what is there")
			r.fault("DeleteObject", dropped)
			r.want(504, "OutcomeUnknown", "DELETE", "/b/a", "", token)
		}, time.Minute},
		{"a Complete that took effect", func(r *remote) {
			write := r.prepare("CompleteMultipartUpload", "a")
			r.fault("CompleteMultipartUpload", dropped)
			r.check(write.send(token), 504, "OutcomeUnknown")
		}, 10 * time.Minute},
		{"a batch that took effect", func(r *remote) {
			r.put("a", "what is there")
			r.fault("DeleteObjects", dropped)
			r.want(504, "OutcomeUnknown", "POST", "/b?delete", deleteBody("a"), token)
		}, 10 * time.Minute},
		{"a tag", func(r *remote) {
			r.interfere("PutObjectTagging", func(c *call) { c.answer(500, "") })
			r.want(504, "OutcomeUnknown", "PUT", "/b/a?tagging", "<Tagging/>", token)
		}, time.Minute},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				c.send(r)
				r.doubtful(1)
				if waited := r.comesThrough("/b/a"); waited != c.settle {
					t.Errorf("the newer holder waited for %v, want the settle time, %v", waited, c.settle)
				}
				r.settled()
				if n := r.metric("fenceproxy_in_doubt_proven_total"); n != 0 {
					t.Errorf("%v proven", n)
				}
			})
		})
	}
}

// TestCreateIsNeverInDoubt: it makes nothing that a reader could see.
func TestCreateIsNeverInDoubt(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.fault("CreateMultipartUpload", misbehave.Fault{Drop: true})
		r.want(504, "OutcomeUnknown", "POST", "/b/a?uploads", "", "X-Fence-Token: 34")
		r.settled()
		if waited := r.comesThrough("/b/a"); waited != 0 {
			t.Errorf("the newer holder waited for %v", waited)
		}
	})
}

// TestAnybodyWhoLooksProves: the next write's own look at the key finds the stamp as well.
func TestAnybodyWhoLooksProves(t *testing.T) {
	t.Parallel()
	for what, look := range map[string]func(r *remote){
		"a Put":   func(r *remote) { r.want(200, "", "PUT", "/b/a", "equal", "X-Fence-Token: 34") },
		"a batch": func(r *remote) { r.want(200, "", "POST", "/b?delete", deleteBody("a"), "X-Fence-Token: 34") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				r.fault("PutObject", misbehave.Fault{Drop: true})
				r.want(504, "OutcomeUnknown", "PUT", "/b/a", "x", "X-Fence-Token: 34")
				r.doubtful(1)
				look(r) // at once: our own search has not begun
				r.settled()
				if n := r.metric("fenceproxy_in_doubt_proven_total"); n != 1 {
					t.Errorf("%v proven, want 1", n)
				}
			})
		})
	}
}

// TestUnknownWriteIDsProveNothing: and one that is known proves once.
func TestUnknownWriteIDsProveNothing(t *testing.T) {
	t.Parallel()
	d := newDoubts()
	defer d.close()
	proven := 0
	d.add("one", time.Hour, func(context.Context) string { return "" }, func() { proven++ })
	for _, id := range []string{"", "two", "one", "one"} {
		d.seen(id)
	}
	if proven != 1 {
		t.Errorf("proven %d times, want once", proven)
	}
}

// TestSearchesAreBounded: those beyond wait for their settle time.
func TestSearchesAreBounded(t *testing.T) {
	t.Parallel()
	d := newDoubts()
	for i := range 2 * maxDoubts {
		d.add(fmt.Sprint(i), time.Hour, func(context.Context) string { return "" }, func() { t.Error("proven") })
	}
	if len(d.open) != maxDoubts {
		t.Errorf("%d searches, want %d", len(d.open), maxDoubts)
	}
	d.close()
	if len(d.open) != 0 {
		t.Errorf("%d searches go on", len(d.open))
	}
}

// TestCloseEndsTheSearch: at once, also a look that is under way, and none begins after it.
func TestCloseEndsTheSearch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoubts()
		looked := 0
		look := func(ctx context.Context) string {
			looked++
			<-ctx.Done() // a store that does not answer
			return ""
		}
		d.add("one", time.Hour, look, func() { t.Error("proven") })
		time.Sleep(2 * time.Second)
		synctest.Wait() // and what was counted is seen here
		if looked != 1 {
			t.Fatalf("looked %d times after two seconds, want once", looked)
		}
		start := time.Now()
		d.close()
		d.add("two", time.Hour, look, func() { t.Error("proven") })
		synctest.Wait() // no goroutine is left, or the bubble would not end
		if waited := time.Since(start); waited != 0 {
			t.Errorf("it took %v", waited)
		}
	})
}

// TestSearchEndsWithTheSettleTime: it looks less and less often, and then no more.
func TestSearchEndsWithTheSettleTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoubts()
		start := time.Now()
		var looks []int
		d.add("one", time.Minute, func(context.Context) string {
			looks = append(looks, int(time.Since(start).Seconds()))
			return ""
		}, func() { t.Error("proven") })
		d.tasks.Wait()
		if waited := time.Since(start); waited != time.Minute {
			t.Errorf("it ended after %v", waited)
		}
		if got := fmt.Sprint(looks); got != "[1 3 7 15 31]" {
			t.Errorf("looked after %s seconds", got)
		}
		if d.has("one") {
			t.Error("it is still searched for")
		}
		d.close()
	})
}
