package proxy

import (
	"net/http"

	"github.com/fenceproxy/fenceproxy/internal/localname"
)

// Without access keys the proxy serves the programs of its own machine. A browser is one of them, and does what any page on the net tells it: an
// image tag is enough to raise a fence to the highest token there is. S3 clients send nothing of what gives a browser away.

// refuseBrowser refuses what a page has sent (Fetch Metadata, W3C; Origin, RFC 6454), and what came here by a name that anybody may have led
// to this address (DNS rebinding).
func refuseBrowser(r *http.Request) error {
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" && r.Header.Get("Sec-Fetch-Site") != "none" {
		return &s3Error{http.StatusForbidden, accessDenied, "a page in a browser has sent this. Without access_keys only programs on this machine are served"}
	}
	if !localname.Is(r.Host) {
		return &s3Error{
			http.StatusForbidden, accessDenied,
			"without access_keys this proxy goes by its address or by localhost, and by no other name: use one of them as the endpoint, or configure access_keys",
		}
	}
	return nil
}
