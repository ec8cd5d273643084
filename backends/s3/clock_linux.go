package s3

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is a clock that nobody sets, and that goes on while the machine sleeps. Go's own monotonic clock stands still then.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("CLOCK_BOOTTIME cannot be read: " + err.Error()) // Linux has had it since 2.6.39, and there is no fencing without a clock
	}
	return time.Duration(t.Nano())
}

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
