package s3

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout makes the kernel close a connection whose peer has not acknowledged what was sent for this long (tcp(7)). By
// default it goes on sending for a quarter of an hour, for a process that is dead, too.
func userTimeout(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(max(d.Milliseconds(), 1)))
		})
		if err != nil {
			return err
		}
		return failed
	}
}
