//go:build !linux

package s3

import (
	"syscall"
	"time"
)

// userTimeout has no counterpart here.
func userTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
