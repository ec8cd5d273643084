package proxy

import (
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// tries is how many writes have stood at the gate.
func (r *remote) tries() int { return int(r.metric("fenceproxy_gate_wait_seconds")) }

// race has another write come in between the look of the next write of an operation and the write itself.
func (r *remote) race(name, key, content string) {
	r.interfere(name, func(*call) { r.put(key, content) })
}

// TestLostRaceIsTriedAgain: with an equal token, from a new look on, and through the gate each time.
func TestLostRaceIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, name := range conditionable {
		for _, there := range []bool{true, false} {
			if name == "DeleteObject" && !there {
				continue // it has no condition
			}
			t.Run(fmt.Sprintf("%s, key there %v", name, there), func(t *testing.T) {
				t.Parallel()
				before(t, nil, func(r *remote) {
					if there {
						r.put("a", "what is there")
					}
					write := r.prepare(name, "a")
					at := r.tries()
					r.race(name, "a", "quicker")
					if w := write.send("X-Fence-Token: 34"); w.Code >= 300 {
						t.Fatalf("%d %s", w.Code, w.Body)
					}
					want := "content-of-" + name
					sent, admitted := 2, 2
					switch name {
					case "DeleteObject":
						want = ""
					case "CompleteMultipartUpload": // S3 says so twice: the key has changed since the upload began
						sent, admitted = 3, 3
					}
					r.has("a", want)
					if n, m := len(r.take(name)), r.tries()-at; n != sent || m != admitted {
						t.Errorf("sent %d times through %d gates; want %d and %d", n, m, sent, admitted)
					}
					r.settled()
				})
			})
		}
	}
}

// TestDeletedMeanwhile: a key that is gone when the write comes (404 to an If-Match) is a lost race as well.
func TestDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"PutObject", "CopyObject"} {
		before(t, nil, func(r *remote) {
			r.put("a", "what is there")
			write := r.prepare(name, "a")
			r.interfere(name, func(*call) {
				in := r.request("DELETE", "/b/a", nil, 0)
				sign(in)
				r.store.ServeHTTP(httptest.NewRecorder(), in)
			})
			r.check(write.send("X-Fence-Token: 34"), 200, "")
			r.has("a", "content-of-"+name)
			r.settled()
		})
	}
}

// TestEveryWordForALostRace: trap 9. S3 has several, and says some of them inside a 200.
func TestEveryWordForALostRace(t *testing.T) {
	t.Parallel()
	words := []struct {
		operation string
		status    int
		code      string
	}{
		{"PutObject", 412, "PreconditionFailed"},
		{"PutObject", 409, "ConditionalRequestConflict"},
		{"PutObject", 409, "OperationAborted"},
		{"PutObject", 404, "NoSuchKey"},
		{"DeleteObject", 412, "PreconditionFailed"},
		{"DeleteObject", 409, "ConditionalRequestConflict"},
		{"CopyObject", 409, "ConditionalRequestConflict"},
		{"CopyObject", 200, "ConditionalRequestConflict"},
		{"CompleteMultipartUpload", 412, "PreconditionFailed"},
		{"CompleteMultipartUpload", 409, "ConditionalRequestConflict"},
		{"CompleteMultipartUpload", 200, "PreconditionFailed"},
		{"CompleteMultipartUpload", 200, "ConditionalRequestConflict"},
	}
	before(t, nil, func(r *remote) {
		for i, c := range words {
			key := fmt.Sprint(i)
			r.put(key, "what is there")
			write := r.prepare(c.operation, key)
			r.fault(c.operation, misbehave.Fault{Lose: true, Status: c.status, Code: c.code})
			if w := write.send("X-Fence-Token: 34"); w.Code >= 300 || codeOf(w.Body.Bytes()) != "" {
				t.Errorf("%v: %d %s", c, w.Code, w.Body)
			}
			if n := len(r.take(c.operation)); n != 2 {
				t.Errorf("%v: sent %d times, want 2", c, n)
			}
			r.settled()
		}
	})
}

// TestCopyLosesARaceInsideA200: the key has changed, so it was our condition and none of the source.
func TestCopyLosesARaceInsideA200(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 412} {
		before(t, nil, func(r *remote) {
			r.put("a", "what is there")
			write := r.prepare("CopyObject", "a")
			r.fault("CopyObject", misbehave.Fault{Status: status, Code: "PreconditionFailed", Lose: true})
			r.race("CopyObject", "a", "quicker")
			r.check(write.send("X-Fence-Token: 34"), 200, "")
			r.has("a", "content-of-CopyObject")
			r.settled()
		})
	}
}

// TestLostRacesEnd: then it is the client's turn to come again, and nothing is left open.
func TestLostRacesEnd(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"PutObject", "CopyObject", "DeleteObject"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				r.put("a", "what is there")
				write := r.prepare(name, "a")
				for i := range maxTries {
					r.race(name, "a", fmt.Sprint("quicker ", i))
				}
				r.check(write.send("X-Fence-Token: 34"), 503, "SlowDown")
				if n := len(r.take(name)); n != maxTries || r.tries() != maxTries {
					t.Errorf("sent %d times through %d gates, want %d", n, r.tries(), maxTries)
				}
				if looks := len(r.take("HeadObject")); name != "CopyObject" && looks != maxTries {
					t.Errorf("%d looks, want one for each try", looks)
				}
				r.has("a", fmt.Sprint("quicker ", maxTries-1))
				r.settled()
				if n := len(r.records("refusal")); n != 0 {
					t.Errorf("%d refusals on record: nobody refused it", n)
				}
				if w := write.send("X-Fence-Token: 34"); w.Code >= 300 {
					t.Errorf("and again: %d %s", w.Code, w.Body)
				}
			})
		})
	}
}

// TestLostToANewerHolder: the next try meets the fence first, and is stale. Nothing was written.
func TestLostToANewerHolder(t *testing.T) {
	t.Parallel()
	for _, name := range conditionable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				r.put("a", "what is there")
				write := r.prepare(name, "a")
				r.interfere(name, func(*call) {
					r.put("a", "quicker")
					r.want(503, "WaitingForOlderWrite", "PUT", "/b/a?fence", "", "X-Fence-Token: 35")
				})
				r.check(write.send("X-Fence-Token: 34"), 412, "StaleToken")
				r.has("a", "quicker")
				if n := len(r.take(name)); n != 1 {
					t.Errorf("sent %d times, want once", n)
				}
				r.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
				r.settled()
			})
		})
	}
}

// TestAStreamIsSentOnce: nobody has it any more when the race is lost.
func TestAStreamIsSentOnce(t *testing.T) {
	t.Parallel()
	before(t, func(c *Config, _ *Backend) { c.Memory = 0 }, func(r *remote) {
		r.race("PutObject", "a", "quicker")
		r.want(503, "SlowDown", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		if put := r.takeOne("PutObject"); put.whole {
			t.Error("it did not stream")
		}
		r.has("a", "quicker")
		r.settled()
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
	})
}

// TestAStreamThatLostToANewerHolder: it cannot be sent again, and it need not be: its token is stale, and its client is told so at once.
func TestAStreamThatLostToANewerHolder(t *testing.T) {
	t.Parallel()
	before(t, func(c *Config, _ *Backend) { c.Memory = 0 }, func(r *remote) {
		r.put("a", "what is there")
		r.interfere("PutObject", func(c *call) {
			_, _ = io.Copy(io.Discard, c.Body) // past the gate
			r.put("a", "quicker")
			r.want(503, "WaitingForOlderWrite", "PUT", "/b/a?fence", "", "X-Fence-Token: 35")
			c.answer(412, "<Error><Code>PreconditionFailed</Code></Error>")
		})
		w := r.want(412, "StaleToken", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		if highest := w.Header().Get("X-Fence-Highest"); highest != "35" {
			t.Errorf("it is told that the highest is %s", highest)
		}
		if records := r.records("refusal"); len(records) != 1 || records[0].Token != 34 || records[0].Highest != 35 {
			t.Errorf("%+v", records)
		}
		r.takeOne("PutObject")
		r.has("a", "quicker")
		r.settled()
	})
}

// TestCompleteAfterAnotherWrite: S3 says 409 to each conditional Complete whose key has changed since its upload began, for ever. The
// second one is sent without a condition.
func TestCompleteAfterAnotherWrite(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		write := r.prepare("CompleteMultipartUpload", "a")
		r.want(200, "", "PUT", "/b/a", "in between", "X-Fence-Token: 34")
		r.check(write.send("X-Fence-Token: 34"), 200, "")
		r.has("a", "content-of-CompleteMultipartUpload")
		sent := r.take("CompleteMultipartUpload")
		if len(sent) != 3 {
			t.Fatalf("sent %d times, want 3", len(sent))
		}
		for i, h := range sent {
			if (h.header.Get("If-Match") != "") != (i < 2) || h.header.Get("If-None-Match") != "" {
				t.Errorf("try %d: %v", i+1, h.header)
			}
		}
		r.settled()
	})
}

// TestRaceOnAHiddenKey: what cannot be seen is there after all, so there is no condition to be had.
func TestRaceOnAHiddenKey(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "what is there")
		r.fault("HeadObject", misbehave.Fault{Status: 403})
		r.fault("HeadObject", misbehave.Fault{Status: 403})
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		sent := r.take("PutObject")
		if len(sent) != 2 {
			t.Fatalf("sent %d times, want 2", len(sent))
		}
		r.wantCondition(sent[0], "If-None-Match: *")
		r.wantCondition(sent[1], "")
		r.has("a", "content")
		r.settled()
	})
}

// TestRefusalOfTheStoreIsTheClients: where our condition has no part in it, the store's own answer comes through, once.
func TestRefusalOfTheStoreIsTheClients(t *testing.T) {
	t.Parallel()
	const token = "X-Fence-Token: 34"
	refusals := []struct {
		name, operation string
		fault           misbehave.Fault
		headers         []string
		status          int
		code            string
	}{
		{"412 to its own If-Match", "PutObject", misbehave.Fault{}, []string{`If-Match: "x"`}, 412, "PreconditionFailed"},
		{"409 to its own If-Match", "PutObject", misbehave.Fault{Status: 409, Code: "ConditionalRequestConflict", Lose: true}, []string{`If-Match: "x"`}, 409, "ConditionalRequestConflict"},
		{"409 to its own If-None-Match", "CompleteMultipartUpload", misbehave.Fault{Status: 409, Code: "ConditionalRequestConflict", Lose: true}, []string{"If-None-Match: *"}, 409, "ConditionalRequestConflict"},
		{"condition of the source", "CopyObject", misbehave.Fault{Status: 412, Code: "PreconditionFailed", Lose: true}, []string{`X-Amz-Copy-Source-If-Match: "x"`}, 412, "PreconditionFailed"},
		{"source that is missing", "CopyObject", misbehave.Fault{Status: 404, Code: "NoSuchKey", Lose: true}, nil, 404, "NoSuchKey"},
		{"upload that is missing", "CompleteMultipartUpload", misbehave.Fault{Status: 404, Code: "NoSuchUpload", Lose: true}, nil, 404, "NoSuchUpload"},
		{"no permission", "PutObject", misbehave.Fault{Status: 403, Code: "AccessDenied", Lose: true}, nil, 403, "AccessDenied"},
		{"no room", "DeleteObject", misbehave.Fault{Status: 503, Code: "SlowDown", Lose: true}, nil, 503, "SlowDown"},
		{"another conflict", "PutObject", misbehave.Fault{Status: 409, Code: "InvalidObjectState", Lose: true}, nil, 409, "InvalidObjectState"},
		{"an error inside a 200", "CopyObject", misbehave.Fault{Status: 200, Code: "AccessDenied", Lose: true}, nil, 200, "AccessDenied"},
	}
	before(t, nil, func(r *remote) {
		for _, c := range refusals {
			t.Log(c.name)
			r.put("a", "what is there")
			write := r.prepare(c.operation, "a")
			r.fault(c.operation, c.fault)
			r.check(write.send(append(c.headers, token)...), c.status, c.code)
			r.takeOne(c.operation)
			r.has("a", "what is there")
			r.settled()
		}
		if n := r.metric("fenceproxy_lost_races_total"); n != 0 {
			t.Errorf("%v lost races counted", n)
		}
	})
}

// TestCopyOfNothing: the store's own word, whether the key is there or not.
func TestCopyOfNothing(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("there", "what is there")
		for _, key := range []string{"there", "absent"} {
			r.want(404, "NoSuchKey", "PUT", "/b/"+key, "", "X-Fence-Token: 34", "X-Amz-Copy-Source: other/missing")
			r.takeOne("CopyObject")
		}
		r.settled()
	})
}

// TestWriteOnceMeetsAnotherWrite: 409 says to look again; then the store says that the object exists.
func TestWriteOnceMeetsAnotherWrite(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		conflict := misbehave.Fault{Status: 409, Code: "ConditionalRequestConflict", Lose: true}
		r.fault("PutObject", conflict)
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		r.fault("PutObject", conflict)
		r.want(403, "ObjectExists", "PUT", "/b/a", "other", "X-Fence-Token: 34")
		for range maxTries {
			r.fault("PutObject", conflict)
		}
		r.want(503, "SlowDown", "PUT", "/b/new", "content", "X-Fence-Token: 34")
		r.settled()
	}, rules.Rule{Match: "**", WriteOnce: true})
}

// TestEachTryIsWhole: the second try of a body has all of it.
func TestEachTryIsWhole(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		content := strings.Repeat("0123456789", 10_000)
		r.race("PutObject", "a", "quicker")
		r.interfere("PutObject", func(c *call) { // and this one loses the race half way
			r.put("a", "quicker still")
			_, _ = io.CopyN(io.Discard, c.Body, 5000)
			c.answered = true
			c.w.WriteHeader(409)
			_, _ = io.WriteString(c.w, "<Error><Code>ConditionalRequestConflict</Code></Error>")
		})
		r.want(200, "", "PUT", "/b/a", content, "X-Fence-Token: 34")
		r.has("a", content)
		r.settled()
	})
}
