//go:build !unix

package sqlite

import (
	"errors"
	"os"
)

func flock(*os.File) error { return errors.ErrUnsupported }

func isLocked(error) bool { return false }
