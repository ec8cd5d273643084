package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// probing has the backend's store found to be so.
func probing(c Conditional, f Findings) func(*Config, *Backend) {
	return func(_ *Config, b *Backend) {
		b.Conditional = c
		b.Probe = func(context.Context, string) (Findings, error) { return f, nil }
	}
}

// TestStoreIsAskedOnce, however many first writes come at a time, and before any of them is sent. Reads do not ask.
func TestStoreIsAskedOnce(t *testing.T) {
	t.Parallel()
	var r0 *remote
	asked := 0
	change := func(_ *Config, b *Backend) {
		b.Probe = func(_ context.Context, bucket string) (Findings, error) {
			asked++
			time.Sleep(time.Second) // virtual: all of them are there by then
			r0.quiet()
			if bucket != "b" {
				t.Errorf("asked in bucket %q", bucket)
			}
			return all, nil
		}
	}
	before(t, change, func(r *remote) {
		r0 = r
		r.want(404, "NoSuchKey", "GET", "/b/a", "", "X-Fence-Token: 34")
		if asked != 0 {
			t.Error("a read has asked")
		}
		var writes sync.WaitGroup
		for range 20 {
			writes.Go(func() {
				if w := r.do("PUT", "/b/a", "content", "X-Fence-Token: 34"); w.Code != 200 && w.Code != 503 { // 503: three lost races
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		writes.Go(func() { r.want(200, "", "POST", "/b?delete", deleteBody("x"), "X-Fence-Token: 34") })
		writes.Wait()
		r.want(200, "", "PUT", "/other/a", "content", "X-Fence-Token: 34")
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
		r.settled()
	})
}

// TestStoreThatCannotBeAsked: nothing is written, and the next write asks again.
func TestStoreThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	answers := []error{errors.New("no network"), context.DeadlineExceeded, nil}
	change := func(_ *Config, b *Backend) {
		b.Probe = func(context.Context, string) (Findings, error) {
			err := answers[0]
			answers = answers[1:]
			return all, err
		}
	}
	before(t, change, func(r *remote) {
		r.want(503, "ServiceUnavailable", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		r.want(503, "ServiceUnavailable", "POST", "/b?delete", deleteBody("a"), "X-Fence-Token: 34")
		r.quiet()
		if m := r.mark("b/a"); m != 0 {
			t.Errorf("the mark has moved to %d", m)
		}
		if n := len(r.records("guarantee")); n != 0 {
			t.Errorf("%d guarantees on record", n)
		}
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		if len(answers) != 0 {
			t.Errorf("%d answers are left", len(answers))
		}
		r.settled()
	})
}

// TestStoreThatTakesNoWrites: what it says to the question is its answer to the write, and it is asked again.
func TestStoreThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	asked := 0
	change := func(_ *Config, b *Backend) {
		b.Probe = func(context.Context, string) (Findings, error) {
			if asked++; asked == 1 {
				return Findings{}, fmt.Errorf("probe: %w", &StoreRefusal{Status: 404, Code: "NoSuchBucket", Message: "The specified bucket <b> does not exist"})
			}
			return all, nil
		}
	}
	before(t, change, func(r *remote) {
		w := r.want(404, "NoSuchBucket", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		if !strings.Contains(w.Body.String(), "<Message>The specified bucket &lt;b&gt; does not exist</Message>") {
			t.Errorf("it is told in other words: %s", w.Body)
		}
		r.quiet()
		r.settled()
		if m := r.mark("b/a"); m != 0 {
			t.Errorf("the mark has moved to %d", m)
		}
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
	})
}

// TestStoreThatWasNotAsked: then the operator has to say what holds. auto says to; on and off go by what was said.
func TestStoreThatWasNotAsked(t *testing.T) {
	t.Parallel()
	skipped := Findings{Skipped: "object lock would keep it"}
	for c, want := range map[Conditional]struct {
		status    int
		error     string
		condition bool
	}{
		ConditionalAuto: {403, "ConditionsUnknown", false},
		ConditionalOn:   {200, "", true},
		ConditionalOff:  {200, "", false},
	} {
		t.Run(string(c), func(t *testing.T) {
			t.Parallel()
			before(t, probing(c, skipped), func(r *remote) {
				w := r.want(want.status, want.error, "PUT", "/b/a", "content", "X-Fence-Token: 34")
				if want.error != "" {
					for _, word := range []string{"object lock would keep it", "conditional", "test"} {
						if !strings.Contains(w.Body.String(), word) {
							t.Errorf("%s does not say %q", w.Body, word)
						}
					}
					r.quiet()
					r.settled()
					if m := r.mark("b/a"); m != 0 {
						t.Errorf("the mark has moved to %d", m)
					}
					_, codes := r.deleteMany(deleteBody("a", "free/a"), "X-Fence-Token: 34")
					if codes["a"] != "AccessDenied" || codes["free/a"] != "" {
						t.Errorf("%v", codes)
					}
					return
				}
				if got := r.takeOne("PutObject").header.Get("If-None-Match") != ""; got != want.condition {
					t.Errorf("a condition %v, want %v", got, want.condition)
				}
			}, rules.Rule{Match: "free/**", Token: rules.Off})
		})
	}
}

// TestOnRefusesAStoreThatIgnores: story ministack #1475, a store takes conditions and does not heed them. The operation that it would carry
// out without regard to its condition, on record, and nothing else.
func TestOnRefusesAStoreThatIgnores(t *testing.T) {
	t.Parallel()
	for _, name := range conditionable {
		t.Run(name, func(t *testing.T) {
			found := Findings{Conditions: slices.DeleteFunc(slices.Clone(all.Conditions), func(n string) bool { return n == name })}
			before(t, probing(ConditionalOn, found), func(r *remote) {
				r.put("a", "there")
				r.put("free", "there")
				write := r.prepare(name, "a")
				r.take("CreateMultipartUpload")
				r.take("UploadPart")
				at := r.mark("b/a")
				w := write.send("X-Fence-Token: 35")
				r.check(w, 403, "ConditionsIgnored")
				for _, word := range []string{name, "conditional: on", "test"} {
					if !strings.Contains(w.Body.String(), word) {
						t.Errorf("%s does not say %q", w.Body, word)
					}
				}
				r.quiet()
				r.has("a", "there")
				r.settled()
				if m := r.mark("b/a"); m != at {
					t.Errorf("the mark has moved to %d", m)
				}
				records := r.records("refusal")
				if len(records) != 1 || records[0].Code != "ConditionsIgnored" || records[0].Operation != name || records[0].Token != 35 {
					t.Errorf("%+v", records)
				}
				if w := r.prepare(name, "free").send("X-Fence-Token: 35"); w.Code >= 300 { // its rule wants no condition
					t.Errorf("%d %s", w.Code, w.Body)
				}
			}, rules.Rule{Match: "free", Unconditional: true})
		})
	}
	t.Run("DeleteObjects", func(t *testing.T) {
		t.Parallel()
		before(t, probing(ConditionalOn, Findings{Conditions: conditionable}), func(r *remote) {
			r.put("a", "there")
			if _, codes := r.deleteMany(deleteBody("a"), "X-Fence-Token: 34"); codes["a"] != "AccessDenied" {
				t.Errorf("%v", codes)
			}
			if records := r.records("refusal"); len(records) != 1 || records[0].Code != "ConditionsIgnored" || records[0].Key != "a" {
				t.Errorf("%+v", records)
			}
			r.quiet()
			r.has("a", "there")
			r.want(204, "", "DELETE", "/b/a", "", "X-Fence-Token: 34")
		})
	})
}

// TestOnLeavesOthersAlone: what S3 has no conditions for, and what is not fenced.
func TestOnLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	before(t, probing(ConditionalOn, Findings{}), func(r *remote) {
		r.interfere("PutObjectTagging", func(c *call) { c.answer(200, "") })
		r.want(200, "", "PUT", "/b/a?tagging", "<x/>", "X-Fence-Token: 34")
		r.upload("a", "part", "X-Fence-Token: 34")
		r.want(200, "", "PUT", "/b/free/a", "content")
	}, rules.Rule{Match: "free/**", Token: rules.Off})
}

// TestGuaranteeIsTold: in the audit log and in the metrics, for each operation.
func TestGuaranteeIsTold(t *testing.T) {
	t.Parallel()
	found := Findings{Conditions: []string{"PutObject", "DeleteObject"}, Detail: []string{"a stale If-Match of a Put was refused.", "a stale one of a Copy was not."}}
	before(t, probing(ConditionalAuto, found), func(r *remote) {
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		records := r.records("guarantee")
		if len(records) != 1 || records[0].Bucket != "b" {
			t.Fatalf("%+v", records)
		}
		for _, word := range append(found.Detail, "conditional: auto", "PutObject, DeleteObject", "CopyObject, CompleteMultipartUpload, DeleteObjects") {
			if !strings.Contains(records[0].Detail, word) {
				t.Errorf("%q does not say %q", records[0].Detail, word)
			}
		}
		for _, name := range all.Conditions {
			want := 0.0
			if slices.Contains(found.Conditions, name) {
				want = 1
			}
			if got := r.metric("fenceproxy_backend_conditions", "backend=test", "operation="+name); got != want {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	})
}

// TestMergedSpellings: a key that a store takes for another key, which has a fence of its own, is not written to; it can be read.
func TestMergedSpellings(t *testing.T) {
	t.Parallel()
	bad := map[string][]string{
		"slashes": {"p//q", "/p", "p//", "//"},
		"dots":    {"p/./q", "p/z/../q", "./p", "../p", "p/..", "p/.", "."},
		"case":    {"P/q", "p/Q", "É"},
	}
	good := map[string][]string{
		"slashes": {"p/q", "p/"}, "dots": {"p/.q", "p/q.", "p/...", "..."}, "case": {"p/q", "1"},
	}
	for kind, keys := range bad {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			before(t, probing(ConditionalAuto, Findings{Conditions: all.Conditions, Merges: []string{kind}}), func(r *remote) {
				for _, key := range keys {
					path := "/b/" + key
					r.wantPath(400, "PUT", path, "X-Fence-Token: 34")
					r.wantPath(400, "DELETE", path, "X-Fence-Token: 34")
					r.wantPath(400, "POST", path+"?uploads", "X-Fence-Token: 34")
					r.wantPath(400, "PUT", path, "X-Fence-Token: 34", "X-Amz-Copy-Source: other/source")
					r.wantPath(400, "PUT", path+"?tagging", "X-Fence-Token: 34")
					if _, codes := r.deleteMany(deleteBody(key, "plain"), "X-Fence-Token: 34"); codes[key] == "" || codes["plain"] != "" {
						t.Errorf("%s: %v", key, codes)
					}
					r.take("DeleteObjects")
					r.wantPath(404, "GET", path)
				}
				r.quiet()
				for _, key := range good[kind] {
					r.wantPath(200, "PUT", "/b/"+key, "X-Fence-Token: 34")
				}
				r.settled()
			})
		})
	}
	before(t, nil, func(r *remote) { // a store that keeps them apart
		for _, keys := range bad {
			for _, key := range keys {
				r.wantPath(200, "PUT", "/b/"+key, "X-Fence-Token: 34")
			}
		}
	})
}

// wantPath sends a request for a path as it stands, which must not be cleaned on its way.
func (r *remote) wantPath(status int, method, path string, headers ...string) {
	r.Helper()
	target, query, _ := strings.Cut(path, "?")
	in := r.request(method, "/", nil, 0, headers...)
	in.URL.Path, in.URL.RawQuery = target, query
	if w := r.serve(in); w.Code != status {
		r.Errorf("%s %s: %d, want %d\n%s", method, path, w.Code, status, w.Body)
	}
}
