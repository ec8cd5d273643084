//go:build !unix

package postgres

import "net"

// hungUp cannot tell here: the first call over such a connection fails.
func hungUp(net.Conn) bool { return false }
