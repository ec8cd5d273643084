package proxy

import "testing"

// TestAMergedNameIsNotAnnounced: what a reader gets under it is another key's object, which the fence of this name does not keep from older writers.
// Without a token it is a read like any other.
func TestAMergedNameIsNotAnnounced(t *testing.T) {
	t.Parallel()
	for kind, key := range map[string]string{"slashes": "p//q", "dots": "p/./q", "case": "P/q"} {
		before(t, probing(ConditionalAuto, Findings{Conditions: all.Conditions, Merges: []string{kind}}), func(r *remote) {
			r.want(200, "", "PUT", "/b/p/q", "content", "X-Fence-Token: 34") // which asks the store what it does
			path := "/b/" + key
			for _, method := range []string{"GET", "HEAD"} {
				r.wantPath(400, method, path, "X-Fence-Token: 35")
				r.wantPath(404, method, path) // this store does not merge, and has none
			}
			r.wantPath(400, "PUT", path+"?fence", "X-Fence-Token: 35")
			if m := r.mark("b/" + key); m != 0 {
				t.Errorf("%s: the mark has moved to %d", key, m)
			}
			r.want(200, "", "GET", "/b/p/q", "", "X-Fence-Token: 35")
			if m := r.mark("b/p/q"); m != 35 {
				t.Errorf("the mark is at %d, want 35", m)
			}
			r.settled()
		})
	}
}
