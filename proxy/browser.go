package proxy

import (
	"net/http"

	"github.com/fenceproxy/fenceproxy/internal/localname"
)

// Without access keys the proxy serves the programs of its own machine. A browser is one of them, and does what any page on the net tells it: an
// image tag is enough to raise a fence to the highest token there is. S3 clients send nothing of what gives a browser away.

// refuseBrowser refuses what a page has sent (Fetch Metadata, W3C; Origin, RFC 6454), and what came here by a name that anybody may have led
// to this address (DNS rebinding).
//
// A person may look at an object, with the address bar or a link in a letter (Sec-Fetch-Site: none), but not with a token.
func (h *Handler) refuseBrowser(r *http.Request, token bool) error {
	site := r.Header.Get("Sec-Fetch-Site")
	if r.Header.Get("Origin") != "" || site != "" && (site != "none" || token) {
		return &s3Error{http.StatusForbidden, accessDenied, "a page in a browser has sent this. Without access_keys only programs on this machine are served"}
	}
	if r.Host != "" && !h.Anonymous && !localname.Is(r.Host) && !h.inDomain(r.Host) { // HTTP/1.0 may have none, and browsers do not speak it
		return &s3Error{
			http.StatusForbidden, accessDenied,
			"without access_keys this proxy goes by its address or by localhost, and by no other name: use one of them as the endpoint, or configure access_keys",
		}
	}
	return nil
}
