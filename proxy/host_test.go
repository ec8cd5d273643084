package proxy

import "testing"

// TestHostOfAProxyWithoutKeys: HTTP/1.0 may come without a Host, as health checks do; browsers always send one, and by another name than this
// machine's they may have been led here.
func TestHostOfAProxyWithoutKeys(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		for host, status := range map[string]int{"": 404, "localhost:9000": 404, "127.0.0.1": 404, "[::1]:9000": 404, "evil.example": 403, "evil.example:9000": 403} {
			in := r.request("GET", "/b/a", nil, 0)
			in.Host = host
			if w := r.serve(in); w.Code != status {
				t.Errorf("%q: %d %s, want %d", host, w.Code, w.Body, status)
			}
		}
	})
}

// TestALinkRaisesNothing: a browser sends Sec-Fetch-Site: none with the address bar, and with a link in a letter. A person may look at an object so; a token
// comes from somebody else.
func TestALinkRaisesNothing(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "what is there")
		r.want(200, "", "GET", "/b/a", "", "Sec-Fetch-Site: none")
		r.want(403, "AccessDenied", "GET", "/~fence/9223372036854775807/b/a", "", "Sec-Fetch-Site: none")
		r.want(403, "AccessDenied", "GET", "/b/a", "", "Sec-Fetch-Site: cross-site")
		if m := r.mark("b/a"); m != 0 {
			t.Errorf("the mark is at %d", m)
		}
	})
}
