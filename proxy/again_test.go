package proxy

import (
	"fmt"
	"testing"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// TestWriteThatIsCarriedOutTwice: a store, or what stands before it, repeats a write that it has answered, long after its settle time and after a
// newer holder's write. The condition that held the first time does not hold any more. Without one it overwrites.
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
					before(t, nil, func(r *remote) {
						if there {
							r.put("a", "what is there")
						}
						write := r.prepare(name, "a")
						settle := r.h.Backends["test"].settle(name)
						r.fault(name, misbehave.Fault{Again: 2 * settle})
						if w := write.send("X-Fence-Token: 34"); w.Code >= 300 {
							t.Fatalf("answered %d\n%s", w.Code, w.Body)
						}
						r.settled() // it was answered: nobody waits for it
						r.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
						r.sleep(4 * settle)
						// The upload of a Complete ended with the first time.
						switch overwritten := !conditional && name != "CompleteMultipartUpload"; {
						case !overwritten:
							r.has("a", "newer")
						case name == "DeleteObject":
							r.has("a", "")
						default:
							r.has("a", "content-of-"+name)
						}
					}, rules.Rule{Match: "**", Unconditional: !conditional})
				})
			}
		}
	}
}

// TestBatchThatIsCarriedOutTwice deletes what it has seen, and not what a newer holder has put there since.
func TestBatchThatIsCarriedOutTwice(t *testing.T) {
	t.Parallel()
	for _, conditional := range []bool{true, false} {
		before(t, nil, func(r *remote) {
			r.put("a", "one")
			settle := r.h.Backends["test"].settle(deleteObjects)
			r.fault("DeleteObjects", misbehave.Fault{Again: 2 * settle})
			if deleted, codes := r.deleteMany(deleteBody("a"), "X-Fence-Token: 34"); len(deleted) != 1 {
				t.Fatalf("deleted %q, not %v", deleted, codes)
			}
			r.settled()
			r.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
			r.sleep(4 * settle)
			if conditional {
				r.has("a", "newer")
			} else {
				r.has("a", "")
			}
		}, rules.Rule{Match: "**", Unconditional: !conditional})
	}
}
