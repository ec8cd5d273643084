package proxy

import (
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// A logbook keeps what the proxy logs.
type logbook struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// logging has the proxy log into l.
func logging(l *logbook) func(*Config, *Backend) {
	return func(c *Config, _ *Backend) { c.Log = slog.New(slog.NewTextHandler(l, nil)) }
}

// TestATakeoverIsNoAlarm: an older write that looks at the key after the newer holder's write sees a higher token than its own. The registry has lost
// nothing, and nobody is told so.
func TestATakeoverIsNoAlarm(t *testing.T) {
	t.Parallel()
	for _, holder := range []string{"", "X-Fence-Holder: new"} {
		for _, name := range []string{"PutObject", "CopyObject", "DeleteObject"} {
			var l logbook
			before(t, logging(&l), func(r *remote) {
				r.put("a", "what is there")
				write := r.prepare(name, "a")
				headers := []string{"X-Fence-Token: 35"}
				if holder != "" {
					headers = append(headers, holder)
				}
				r.interfere("HeadObject", func(*call) { r.want(200, "", "PUT", "/b/a", "newer", headers...) })
				r.check(write.send("X-Fence-Token: 34"), 412, "StaleToken")
				r.has("a", "newer")
				if text := l.String(); strings.Contains(text, "the mark was raised") || !strings.Contains(text, "StaleToken") {
					t.Errorf("%s: %s", name, text)
				}
				if records := r.records("refusal"); len(records) != 1 || records[0].Token != 34 || records[0].Highest != 35 {
					t.Errorf("%s: %+v", name, records)
				}
				r.settled()
			})
		}
	}
}

// TestAStampStaysWithinMaxAdvance: a stamp can be forged, for a copy keeps its source's metadata. One that is beyond what the rule lets a client raise by
// shuts nobody out for ever: the write is refused, and says what is the matter; the mark stays, and other objects of the resource are written.
func TestAStampStaysWithinMaxAdvance(t *testing.T) {
	t.Parallel()
	rule := rules.Rule{Match: "jobs/{job}/**", Resource: "jobs/{job}", MaxAdvance: 10}
	for _, name := range []string{"PutObject", "CopyObject", "DeleteObject"} {
		var l logbook
		before(t, logging(&l), func(r *remote) {
			r.want(200, "", "PUT", "/b/jobs/1/other", "content", "X-Fence-Token: 34")
			forged := Stamp{Registry: ourRegistry, Resource: ResourceHash("b/jobs/1"), Generation: math.MaxInt64, Token: math.MaxInt64, WriteID: "x"}
			r.putStamped("jobs/1/a", "forged", forged)
			r.take("PutObject")
			w := r.prepare(name, "jobs/1/a").send("X-Fence-Token: 34")
			r.check(w, 403, "TokenTooFar")
			for _, word := range []string{"9223372036854775807", "max_advance", "fences raise", "remove the object"} {
				if !strings.Contains(w.Body.String(), word) {
					t.Errorf("%s does not say %q", w.Body, word)
				}
			}
			r.quiet()
			r.has("jobs/1/a", "forged")
			if m := r.mark("b/jobs/1"); m != 34 {
				t.Errorf("%s: the mark is at %d", name, m)
			}
			r.settled()
			r.want(200, "", "PUT", "/b/jobs/1/other", "content", "X-Fence-Token: 35")

			r.putStamped("jobs/1/a", "within", stampBy(ourRegistry, ResourceHash("b/jobs/1"), 45)) // which is what stamps are for
			r.want(412, "StaleToken", "PUT", "/b/jobs/1/a", "content", "X-Fence-Token: 35")
			if m := r.mark("b/jobs/1"); m != 45 || !strings.Contains(l.String(), "the mark was raised") {
				t.Errorf("%s: the mark is at %d, and the log has %s", name, m, l.String())
			}
		}, rule)
	}
}

// TestRegistriesAreNamedToOperators, and not to clients: who knows a registry's id can make a stamp of it.
func TestRegistriesAreNamedToOperators(t *testing.T) {
	t.Parallel()
	var l logbook
	before(t, logging(&l), func(r *remote) {
		r.putStamped("a", "theirs", stampBy("ANOTHER", ResourceHash("b/a"), 1))
		for _, accept := range []string{"application/xml", "application/json"} {
			w := r.do("PUT", "/b/a", "content", "X-Fence-Token: 34", "Accept: "+accept)
			for _, id := range []string{"ANOTHER", ourRegistry} {
				if w.Code != 503 || strings.Contains(w.Body.String(), id) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			}
		}
		for _, word := range []string{"ANOTHER", ourRegistry, "b/a", "serve --adopt ANOTHER"} {
			if !strings.Contains(l.String(), word) {
				t.Errorf("the log does not say %q: %s", word, l.String())
			}
		}
	})
}
