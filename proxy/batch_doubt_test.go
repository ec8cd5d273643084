package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
)

// undetermined are codes of an error inside a success that leave open what became of a write: S3's for a fault of its own, those of other
// stores, and what nobody knows.
var undetermined = []string{"InternalError", "ServiceUnavailable", "SlowDownWrite", "OperationTimedOut", "XMinioServerNotInitialized", "Busy", "RequestTimeout", "Other", ""}

// determined are codes that say that nothing was written.
var determined = []string{"AccessDenied", "InvalidRequest", "InvalidArgument", "MethodNotAllowed", "NoSuchVersion"}

// later has a DELETE that nobody waits for any more take effect.
func (r *remote) later(after time.Duration, target string) {
	go func() {
		time.Sleep(after)
		in := httptest.NewRequest("DELETE", target, nil)
		sign(in)
		r.store.ServeHTTP(httptest.NewRecorder(), in)
	}()
}

// TestBatchWithAKeyInDoubt: that the store has failed at one key is no promise that it will not delete it yet. The client does not hear that the
// batch has ended, and a newer holder of any of its resources waits until it has.
func TestBatchWithAKeyInDoubt(t *testing.T) {
	t.Parallel()
	for _, code := range undetermined {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			before(t, unstampedStore, func(r *remote) {
				r.put("a", "one")
				r.put("b", "two")
				settle := r.h.Backends["test"].settle(deleteObjects)
				r.interfere("DeleteObjects", func(c *call) {
					r.later(5*time.Second, "/b/a")
					c.answer(200, "<DeleteResult><Deleted><Key>b</Key></Deleted><Error><Key>a</Key><Code>"+code+"</Code></Error></DeleteResult>")
				})
				r.want(504, "OutcomeUnknown", "POST", "/b?delete", deleteBody("a", "b"), "X-Fence-Token: 34")
				r.doubtful(2)
				if records := r.records("in_doubt"); len(records) != 1 || records[0].Operation != "DeleteObjects" {
					t.Errorf("%+v", records)
				}
				if waited := r.comesThrough("/b/a"); waited != settle {
					t.Errorf("the newer holder waited for %v, want %v", waited, settle)
				}
				r.sleep(settle)
				r.has("a", "newer")
				r.settled()
			})
		})
	}
}

// TestBatchWithAKeyRefused: what the store refuses for good is the client's to hear, and holds nobody back.
func TestBatchWithAKeyRefused(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		for _, code := range append([]string{"SlowDown"}, determined...) { // SlowDown: it did not come to this key
			r.put("a", "one")
			r.interfere("DeleteObjects", func(c *call) {
				c.answer(200, "<DeleteResult><Error><Key>a</Key><Code>"+code+"</Code></Error></DeleteResult>")
			})
			if _, codes := r.deleteMany(deleteBody("a"), "X-Fence-Token: 34"); codes["a"] != code {
				t.Errorf("%v, want %s", codes, code)
			}
			r.settled()
		}
	})
}

// TestBatchOfAStoreInThisProcess: its 503 for a key is a promise, as its 503 for a write is.
func TestBatchOfAStoreInThisProcess(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, "<DeleteResult><Error><Key>a</Key><Code>ServiceUnavailable</Code></Error></DeleteResult>")
	})})
	body := f.want(200, "", "POST", "/b?delete", deleteBody("a"), "X-Fence-Token: 34")
	if result := parseResult(t, body); len(result.Error) != 1 || result.Error[0].Code != "ServiceUnavailable" {
		t.Error(body)
	}
	if s := f.fence.Stats(); s.InDoubt != 0 {
		t.Errorf("%d writes are in doubt", s.InDoubt)
	}
}

// TestErrorInsideASuccess: trap 9. S3 says 200 to Copy and Complete before it knows. Only the codes that it has for refusals say that nothing was done.
func TestErrorInsideASuccess(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"CopyObject", "CompleteMultipartUpload"} {
		before(t, unstampedStore, func(r *remote) {
			for i, code := range slices.Concat(undetermined[:len(undetermined)-1], []string{"SlowDown"}) {
				key := "a" + strings.Repeat("x", i)
				write := r.prepare(name, key)
				r.fault(name, misbehave.Fault{Status: 200, Code: code, Lose: true})
				if w := write.send("X-Fence-Token: 34"); w.Code != 504 || w.Header().Get("X-Fence-Error") != "OutcomeUnknown" {
					t.Errorf("%s, %s: %d %s", name, code, w.Code, w.Body)
				}
				r.doubtful(int64(i) + 1)
			}
		})
		before(t, nil, func(r *remote) {
			write := r.prepare(name, "a")
			for _, code := range determined {
				r.fault(name, misbehave.Fault{Status: 200, Code: code, Lose: true})
				r.check(write.send("X-Fence-Token: 34"), 200, code)
				r.settled()
			}
		})
	}
}

// TestBatchNamesAKeyTwice: the store hears of it once, for our condition holds for the first of two only. Two versions of a key are two things.
func TestBatchNamesAKeyTwice(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "one")
		r.put("b", "two")
		deleted, codes := r.deleteMany(deleteBody("a", "b", "a"), "X-Fence-Token: 34")
		if !slices.Equal(deleted, []string{"a", "b"}) || len(codes) != 0 {
			t.Errorf("deleted %q, not %v", deleted, codes)
		}
		if text := r.takeOne("DeleteObjects").body.String(); strings.Count(text, "<Key>a</Key>") != 1 {
			t.Errorf("the store was asked for %s", text)
		}
		const versions = "<Delete><Object><Key>a</Key><VersionId>1</VersionId></Object><Object><Key>a</Key><VersionId>2</VersionId></Object></Delete>"
		r.interfere("DeleteObjects", func(c *call) { c.answer(200, "<DeleteResult/>") })
		r.want(200, "", "POST", "/b?delete", versions, "X-Fence-Token: 34")
		if text := r.takeOne("DeleteObjects").body.String(); strings.Count(text, "<Key>a</Key>") != 2 {
			t.Errorf("the store was asked for %s", text)
		}
		r.settled()
	})
}
