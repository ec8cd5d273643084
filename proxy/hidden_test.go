package proxy

import (
	"testing"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
)

// hide has the store show none of its objects to us, as long as the test looks: credentials that may write only (s3:PutObject, a backup's) get 403
// of every HEAD, whether there is an object or not.
func (r *remote) hide() {
	for range 10 {
		r.fault("HeadObject", misbehave.Fault{Status: 403})
	}
}

// TestStreamOntoAHiddenKey: it can be sent once only, and so it goes without the condition that there is nothing.
func TestStreamOntoAHiddenKey(t *testing.T) {
	t.Parallel()
	before(t, func(c *Config, _ *Backend) { c.Memory = 0 }, func(r *remote) {
		r.put("a", "what is there")
		r.hide()
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		put := r.takeOne("PutObject")
		r.wantCondition(put, "")
		if put.whole {
			t.Error("it did not stream")
		}
		r.has("a", "content")
		r.settled()
	})
}

// TestCopyOntoAHiddenKey: our condition is not met, which is no answer to a client that has sent none. The next try has none either.
func TestCopyOntoAHiddenKey(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"CopyObject", "CompleteMultipartUpload"} {
		before(t, nil, func(r *remote) {
			r.put("a", "what is there")
			write := r.prepare(name, "a")
			r.hide()
			r.check(write.send("X-Fence-Token: 34"), 200, "")
			sent := r.take(name)
			if len(sent) != 2 {
				t.Fatalf("%s: sent %d times, want 2", name, len(sent))
			}
			r.wantCondition(sent[0], "If-None-Match: *")
			r.wantCondition(sent[1], "")
			r.has("a", "content-of-"+name)
			r.settled()
		})
	}
}

// TestCopyOfAnUnmetSource: it may have been the client's condition on the source that was not met. Without ours, the store's answer is the client's.
func TestCopyOfAnUnmetSource(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "what is there")
		write := r.prepare("CopyObject", "a")
		r.hide()
		for range 3 {
			r.fault("CopyObject", misbehave.Fault{Status: 412, Code: "PreconditionFailed", Lose: true})
		}
		r.check(write.send("X-Fence-Token: 34", `X-Amz-Copy-Source-If-Match: "x"`), 412, "PreconditionFailed")
		if n := len(r.take("CopyObject")); n != 2 {
			t.Errorf("sent %d times, want 2", n)
		}
		r.settled()
	})
}

// TestAnyObjectOnAHiddenKey: If-Match: * stays the client's, for nobody knows which object is there.
func TestAnyObjectOnAHiddenKey(t *testing.T) {
	t.Parallel()
	for _, name := range conditionable {
		before(t, nil, func(r *remote) {
			write := r.prepare(name, "absent")
			r.hide()
			r.check(write.send("X-Fence-Token: 34", "If-Match: *"), 404, "NoSuchKey")
			r.wantCondition(r.takeOne(name), "If-Match: *")
			r.put("a", "what is there")
			write = r.prepare(name, "a")
			if w := write.send("X-Fence-Token: 34", "If-Match: *"); w.Code >= 300 {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
			r.wantCondition(r.takeOne(name), "If-Match: *")
			r.settled()
		})
	}
}
