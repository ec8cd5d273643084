//go:build !linux

package s3

import (
	"syscall"
	"time"
)

var started = time.Now()

// bootTime is Go's monotonic clock, which may stand still while the machine sleeps: serve runs on Linux only.
func bootTime() time.Duration { return time.Since(started) }

// userTimeout has no counterpart here.
func userTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
