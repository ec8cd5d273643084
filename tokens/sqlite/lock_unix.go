//go:build unix

package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func flock(d *os.File) error { return unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

func isLocked(err error) bool { return errors.Is(err, unix.EWOULDBLOCK) }
