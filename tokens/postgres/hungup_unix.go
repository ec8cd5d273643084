//go:build unix

package postgres

import (
	"crypto/tls"
	"net"
	"syscall"
)

// hungUp says, without a round trip, whether the server has closed a connection that is not in use, or says something that nobody asked for,
// which is its farewell.
func hungUp(conn net.Conn) bool {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	var up bool
	// Not Read, which would wait for a reader in the background: pgx leaves one behind after a slow write.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		up = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
	})
	return err != nil || !up
}
