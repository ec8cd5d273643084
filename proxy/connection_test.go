package proxy

import (
	"testing"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// TestConnectionTakesNothingOff: a backend drops the headers that Connection names (RFC 9110, 7.6.1). It needs no signature, and our condition, our stamp and
// what makes a copy of a PUT are not a client's to take off.
func TestConnectionTakesNothingOff(t *testing.T) {
	t.Parallel()
	for _, names := range []string{
		"If-None-Match", "if-match", "X-Amz-Meta-Fenceproxy", "close, if-none-match", "keep-alive , x-amz-copy-source", "x-amz-content-sha256", "Content-Length",
	} {
		before(t, nil, func(r *remote) {
			r.put("a", "what is there")
			for _, name := range conditionable {
				write := r.prepare(name, "a")
				r.take("CreateMultipartUpload")
				r.take("UploadPart")
				at := r.mark("b/a")
				r.check(write.send("X-Fence-Token: 35", "Connection: close", "Connection: "+names), 400, "InvalidRequest")
				if m := r.mark("b/a"); m != at {
					t.Errorf("%s: the mark has moved to %d", names, m)
				}
			}
			r.quiet()
			r.has("a", "what is there")
			r.settled()
		}, rules.Rule{Match: "**", WriteOnce: true})
	}
	before(t, nil, func(r *remote) {
		for i, names := range []string{"close", "keep-alive", "Keep-Alive, TE"} {
			r.want(200, "", "PUT", "/b/a"+string(rune('0'+i)), "content", "X-Fence-Token: 34", "Connection: "+names)
			r.wantCondition(r.takeOne("PutObject"), "If-None-Match: *")
		}
	})
}
