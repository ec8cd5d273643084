package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// lockNote is a file in the data directory that says who has it. It is for people: the lock is on the directory itself.
const lockNote = "lock"

// A LockedError says that another process has the data directory.
type LockedError struct {
	Dir    string
	Holder string // what the other process says of itself, "" if it says nothing
}

func (e *LockedError) Error() string {
	holder := e.Holder
	if holder == "" {
		holder = "another process"
	}
	return fmt.Sprintf("the data directory %s is in use by %s: stop it first, or give this one its own `data:`", e.Dir, holder)
}

// A DirLock is an exclusive lock on a data directory. It falls when its descriptor is closed, so at the latest with the process;
// children do not inherit it.
type DirLock struct {
	dir  *os.File
	path string
	got  time.Time // no process of an earlier run is alive from here on
}

// Lock locks a data directory, which must exist, for this process. It fails with a [*LockedError] where another one has it. holder describes
// this process to the next that comes, for example "listening on 127.0.0.1:9000".
func Lock(dir, holder string) (*DirLock, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	if err := flock(d); err != nil {
		d.Close()
		if !isLocked(err) {
			return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
		}
		note, _ := os.ReadFile(filepath.Join(dir, lockNote)) // best effort: the lock speaks for itself
		return nil, &LockedError{Dir: dir, Holder: strings.TrimSpace(string(note))}
	}
	got := time.Now()
	note := fmt.Sprintf("process %d (since %s%s)\n", os.Getpid(), time.Now().Format(time.DateTime), prefixed(", ", holder))
	if err := os.WriteFile(filepath.Join(dir, lockNote), []byte(note), 0o644); err != nil {
		d.Close()
		return nil, fmt.Errorf("the data directory %s cannot be written: %w", dir, err)
	}
	return &DirLock{d, dir, got}, nil
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// Release lets the directory go.
func (l *DirLock) Release() error { return l.dir.Close() }
