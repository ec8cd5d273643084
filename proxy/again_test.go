package proxy

import (
	"fmt"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// TestWriteThatIsCarriedOutTwice: a store, or what stands before it, repeats a write that it has answered, at once or long after its settle time,
// and after a newer holder's write. The condition that held the first time does not hold any more. Without one it overwrites.
func TestWriteThatIsCarriedOutTwice(t *testing.T) {
	t.Parallel()
	for _, name := range conditionable {
		for _, conditional := range []bool{true, false} {
			for _, there := range []bool{true, false} {
				if name == "DeleteObject" && !there {
					continue // it is not sent at all; see TestDeleteOfAnAbsentKey
				}
				t.Run(fmt.Sprintf("%s, conditional %v, key there %v", name, conditional, there), func(t *testing.T) {
					t.Parallel()
					for _, after := range []time.Duration{time.Second, time.Hour} {
						before(t, nil, func(r *remote) { r.carriedOutTwice(name, conditional, there, after) }, rules.Rule{Match: "**", Unconditional: !conditional})
					}
				})
			}
		}
	}
}

func (r *remote) carriedOutTwice(name string, conditional, there bool, after time.Duration) {
	r.Helper()
	if there {
		r.put("a", "what is there")
	}
	write := r.prepare(name, "a")
	r.fault(name, misbehave.Fault{Again: after})
	if w := write.send("X-Fence-Token: 34"); w.Code >= 300 {
		r.Fatalf("answered %d\n%s", w.Code, w.Body)
	}
	r.settled() // it was answered: nobody waits for it
	r.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
	r.has("a", "newer")
	r.sleep(2 * after)
	switch {
	case conditional, name == "CompleteMultipartUpload": // whose upload ended with the first time
		r.has("a", "newer")
	case name == "DeleteObject":
		r.has("a", "")
	default:
		r.has("a", "content-of-"+name)
	}
}

// TestBatchThatIsCarriedOutTwice deletes what it has seen, and not what a newer holder has put there since.
func TestBatchThatIsCarriedOutTwice(t *testing.T) {
	t.Parallel()
	for _, conditional := range []bool{true, false} {
		before(t, nil, func(r *remote) {
			r.put("a", "one")
			r.fault("DeleteObjects", misbehave.Fault{Again: time.Hour})
			if deleted, codes := r.deleteMany(deleteBody("a"), "X-Fence-Token: 34"); len(deleted) != 1 {
				t.Fatalf("deleted %q, not %v", deleted, codes)
			}
			r.settled()
			r.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
			r.sleep(2 * time.Hour)
			if conditional {
				r.has("a", "newer")
			} else {
				r.has("a", "")
			}
		}, rules.Rule{Match: "**", Unconditional: !conditional})
	}
}
