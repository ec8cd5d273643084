package proxy

import (
	"net/http"
	"testing"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// inThisProcess makes the store one that is in this process: it is never late, needs no condition, and is not probed.
func inThisProcess(_ *Config, b *Backend) { b.Probe, b.Settle, b.SettleLong = nil, 0, 0 }

// TestLocalStampAboveTheMark: the registry of a directory was restored from an older copy. A token that is new to it is held against what the
// object says, once; who is below it is stale, and the registry knows the token again.
func TestLocalStampAboveTheMark(t *testing.T) {
	t.Parallel()
	for _, name := range append([]string{deleteObjects}, conditionable...) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before(t, inThisProcess, func(r *remote) {
				send := func(headers ...string) int { return r.deleteOne("a", headers...) }
				if name != deleteObjects {
					write := r.prepare(name, "a")
					send = func(headers ...string) int { return write.send(headers...).Code }
				}
				r.putStamped("a", "newer", stampBy(ourRegistry, ResourceHash("b/a"), 40))
				for _, stale := range []string{"X-Fence-Token: 35", "X-Fence-Token: 39"} { // 39 is below the mark by now
					if status := send(stale); status != http.StatusPreconditionFailed {
						t.Fatalf("%s: %d, want 412", stale, status)
					}
					r.has("a", "newer")
					if m := r.mark("b/a"); m != 40 {
						t.Errorf("the mark is at %d, want 40", m)
					}
				}
				if n := len(r.take(name)); n != 0 {
					t.Errorf("the store has heard %d times of a stale %s", n, name)
				}
				if status := send("X-Fence-Token: 40"); status >= 300 {
					t.Errorf("token 40: %d", status)
				}
				r.settled()
			})
		})
	}
}

// deleteOne deletes a key by a batch of one, and says what became of it, as a status.
func (r *remote) deleteOne(key string, headers ...string) int {
	r.Helper()
	switch deleted, codes := r.deleteMany(deleteBody(key), headers...); {
	case len(deleted) == 1 && len(codes) == 0:
		return http.StatusNoContent
	case codes[key] == preconditionFailed:
		return http.StatusPreconditionFailed
	}
	return http.StatusInternalServerError
}

// TestLocalStampIsLookedAt: before each write, for a registry that was restored may know the token and not the newer one on this very key.
func TestLocalStampIsLookedAt(t *testing.T) {
	t.Parallel()
	before(t, inThisProcess, func(r *remote) {
		for _, c := range []struct {
			key   string
			token string
			looks int
		}{
			{"jobs/1/a", "34", 1},
			{"jobs/1/a", "34", 1},
			{"jobs/1/b", "34", 1}, // another object of a resource that has the token
			{"jobs/1/b", "35", 1},
			{"jobs/1/a", "35", 1},
			{"jobs/2/a", "35", 1},
		} {
			r.want(200, "", "PUT", "/b/"+c.key, "content", "X-Fence-Token: "+c.token)
			if looks := len(r.take("HeadObject")); looks != c.looks {
				t.Errorf("token %s on %s: %d looks, want %d", c.token, c.key, looks, c.looks)
			}
		}
	}, jobRules)
}

// TestLocalStampsThatSayNothing: of another registry, for the directory is bound to ours as a whole and this is a leaving of one before; of
// another resource, which came with a copy; of a token that is not higher; from before a reset.
func TestLocalStampsThatSayNothing(t *testing.T) {
	t.Parallel()
	for what, s := range map[string]Stamp{
		"another registry": stampBy("ANOTHER", ResourceHash("b/a"), 99),
		"another resource": stampBy(ourRegistry, ResourceHash("b/source"), 99),
		"the same token":   stampBy(ourRegistry, ResourceHash("b/a"), 34),
		"before a reset":   stampBy(ourRegistry, ResourceHash("b/reset"), 99),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, inThisProcess, func(r *remote) {
				key := "a"
				if what == "before a reset" {
					key = "reset"
					if _, err := r.fence.Reset(r.Context(), "b/reset", 5); err != nil {
						t.Fatal(err)
					}
				}
				r.putStamped(key, "there", s)
				r.want(200, "", "PUT", "/b/"+key, "content", "X-Fence-Token: 34")
				r.takeOne("HeadObject")
				if m := r.mark("b/" + key); m != 34 {
					t.Errorf("the mark is at %d, want 34", m)
				}
				r.has(key, "content")
			})
		})
	}
}

// TestLocalStampOfAnAdoptedRegistry counts as our own.
func TestLocalStampOfAnAdoptedRegistry(t *testing.T) {
	t.Parallel()
	change := func(c *Config, b *Backend) {
		inThisProcess(c, b)
		c.Adopted = []string{"ADOPTED"}
	}
	before(t, change, func(r *remote) {
		r.putStamped("a", "newer", stampBy("ADOPTED", ResourceHash("b/a"), 40))
		r.want(412, "StaleToken", "PUT", "/b/a", "x", "X-Fence-Token: 34")
		r.has("a", "newer")
	})
}

// TestLocalStampIsNotLookedAt where nothing is stamped, or nothing fenced.
func TestLocalStampIsNotLookedAt(t *testing.T) {
	t.Parallel()
	off := func(c *Config, b *Backend) {
		inThisProcess(c, b)
		b.Stamp = false
	}
	for what, change := range map[string]func(*Config, *Backend){"stamp off": off, "token off": inThisProcess} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rule := rules.Rule{Match: "**"}
			if what == "token off" {
				rule.Token = rules.Off
			}
			before(t, change, func(r *remote) {
				r.putStamped("a", "newer", stampBy(ourRegistry, ResourceHash("b/a"), 40))
				r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
				if n := len(r.take("HeadObject")); n != 0 {
					t.Errorf("%d looks", n)
				}
				r.has("a", "content")
			}, rule)
		})
	}
}
