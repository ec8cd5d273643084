package file

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// errReplaced says that the open file lost its name while its side file was looked for: the side file may have gone with it.
var errReplaced = errors.New("the object was replaced meanwhile")

// record returns what is recorded of an open file, nil if nothing is, and whether that is in its attribute. An attribute counts before
// a side file.
func (s *Store) record(fd int, st *unix.Stat_t) (text []byte, inAttribute bool, err error) {
	if text, err = s.readAttribute(fd); text != nil || err != nil || !s.sides.Load() {
		return text, text != nil, err
	}
	if text, err = s.readSide(st); text != nil || err != nil {
		return text, false, err
	}
	// The side file of a replaced object is removed. Its content must not be served as if it never had metadata.
	var now unix.Stat_t
	if err := s.sys.fstat(fd, &now); err != nil {
		return nil, false, err
	}
	if now.Nlink == 0 {
		return nil, false, errReplaced
	}
	return nil, false, nil
}

var attributes = sync.Pool{New: func() any { return new([maxAttribute]byte) }}

// readAttribute returns nil where there is no attribute.
func (s *Store) readAttribute(fd int) ([]byte, error) { return s.readAttributeOf(fd, attribute) }

func (s *Store) readAttributeOf(fd int, name string) ([]byte, error) {
	buf := attributes.Get().(*[maxAttribute]byte)
	defer attributes.Put(buf)
	n, err := s.sys.fgetxattr(fd, name, buf[:usualAttribute])
	if errors.Is(err, unix.ERANGE) {
		n, err = s.sys.fgetxattr(fd, name, buf[:])
	}
	switch {
	case errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return append([]byte{}, buf[:n]...), nil
}

func (s *Store) setAttribute(fd int, text []byte) error { return s.setAttributeOf(fd, attribute, text) }

func (s *Store) setAttributeOf(fd int, name string, text []byte) error {
	if s.forceSide {
		return unix.ENOTSUP
	}
	return s.sys.fsetxattr(fd, name, text)
}

// tooSmall says that an attribute cannot be set here, or not one of this size. ENOSPC may also mean that the disk is full: then
// the side file will not get on it either.
func tooSmall(err error) bool {
	for _, e := range []error{unix.ENOTSUP, unix.EPERM, unix.ENOSPC, unix.E2BIG, unix.ERANGE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func sideName(st *unix.Stat_t) string { return fmt.Sprintf("%d-%d", st.Ino, mtimeOf(st)) }

// readSide returns nil where there is no side file.
func (s *Store) readSide(st *unix.Stat_t) ([]byte, error) {
	fd, err := s.sys.openat(s.sideFD, sideName(st), openFile, 0)
	if missing(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return s.sys.readAll(fd, maxSide)
}

// writeSide makes the side file of a temporary file, durably. No object refers to it yet: if we crash here, the next Open removes
// it together with the temporary file.
func (s *Store) writeSide(st *unix.Stat_t, text []byte) error {
	if len(text) > maxSide {
		return metadataTooLarge(len(text))
	}
	s.sides.Store(true)
	fd, err := s.sys.openat(s.sideFD, sideName(st), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := s.sys.writeAll(fd, text); err != nil {
		return err
	}
	if err := s.sys.fsync(fd); err != nil {
		return err
	}
	return s.sys.fsync(s.sideFD)
}

// dropSide removes the side file of a file that has lost its name. One that stays, because we crash here, costs its space: it is
// looked for only by that inode and time, and believed only for that size.
func (s *Store) dropSide(st *unix.Stat_t) {
	if s.sides.Load() {
		_ = s.sys.unlinkat(s.sideFD, sideName(st), 0)
	}
}
