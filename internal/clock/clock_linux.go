package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Boot reads CLOCK_BOOTTIME: clock_gettime(2).
func (System) Boot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("clock: CLOCK_BOOTTIME: " + err.Error()) // since Linux 2.6.39
	}
	return time.Duration(t.Nano())
}
