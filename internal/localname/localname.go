// Package localname says which Host a listener without passwords answers to. A page in a browser of the same machine can be led there by a
// name of its own that resolves to 127.0.0.1 (DNS rebinding), and is then of the same origin; but its name stands in Host.
package localname

import (
	"net"
	"net/netip"
	"strings"
)

// Is says whether the Host of a request is an address, behind which no DNS answer stands, or localhost or a name below it (RFC 6761, 6.3).
func Is(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	} else if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
