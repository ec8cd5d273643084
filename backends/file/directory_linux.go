package file

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"

	"golang.org/x/sys/unix"
)

// A key that ends with a slash is a directory object. Clients make them to show a folder that is empty: consoles, s3fs, rclone with
// --s3-directory-markers. It has no content, and what is recorded of it is the attribute user.fenceproxy of the directory itself, which
// the kernel sets, replaces and removes as one step. A directory without the attribute is no object: it is there because of what lies in it.

// isDir says whether a name is that of a directory object. The directory is the last of dirs then.
func (n name) isDir() bool { return n.base == "" }

func containsData() error {
	return refuse(http.StatusBadRequest, "DirectoryObjectContainsData",
		`The file store cannot hold content in an object whose key ends with "/": it is a directory.`)
}

// markOf reads what is recorded of an open directory, nil if it is no object. Its size and its time of modification change with what
// is put into it: unlike those of a file they say nothing of the attribute.
func (s *Store) markOf(dir int) (*meta, error) {
	text, err := s.readAttribute(dir)
	if err != nil || text == nil {
		return nil, err
	}
	m, ok := decodeMeta(text)
	if !ok || m.size != 0 {
		return nil, nil
	}
	m.dir = true
	return m, nil
}

// marked says whether the attribute is there at all, also one that this program cannot read: then a later one wrote it, and the directory is
// not ours to remove.
func (s *Store) marked(dir int) (bool, error) {
	text, err := s.readAttribute(dir)
	return text != nil, err
}

// openMark opens an empty file for a directory object, so that what reads objects reads this one, too.
func (s *Store) openMark(dir int) (int, *meta, error) {
	m, err := s.markOf(dir)
	if err != nil {
		return -1, nil, err
	} else if m == nil {
		return -1, nil, noSuchKey()
	}
	fd, err := unix.MemfdCreate("directory", unix.MFD_CLOEXEC)
	return fd, m, err
}

// mark makes an object of an open directory, or replaces the one that it is, with what t is sealed with. The caller holds the key's lock and
// tree, so the directory stays. As strace shows it:
//
//	fgetxattr(dir, "user.fenceproxy")        what is there, for the condition
//	fsetxattr(dir, "user.fenceproxy", …)     the effect; the caller's fsync(dir) makes it durable
//
// If we crash between the two, either version may be there after the restart, and the client has no answer.
func (s *Store) mark(dir int, t *temp, c conditions) error {
	if t.meta.size > 0 {
		return containsData()
	}
	old, err := s.markOf(dir)
	if err != nil {
		return unchanged("reading the object's ETag", err)
	} else if old == nil {
		if err := s.refuseLaterMark(dir); err != nil {
			return err
		}
	}
	if err := c.judge(old); err != nil {
		return err
	}
	text := t.meta.encode()
	if err := s.setAttribute(dir, text); err != nil {
		return s.notMarked(dir, text, err)
	}
	return nil
}

// refuseLaterMark fails where a later version of this program has made an object of the directory: its conditions cannot be judged, and
// what it has recorded would be lost. What is no record of any version is overwritten.
func (s *Store) refuseLaterMark(dir int) error {
	text, err := s.readAttribute(dir)
	if err != nil {
		return unchanged("reading the directory's attribute", err)
	}
	if q, err := url.ParseQuery(string(text)); err == nil && q.Get("v") != "" && q.Get("v") != metaVersion {
		return notImplemented("A later version of fenceproxy has recorded this object (version %q of its metadata): this one does not replace it.", q.Get("v"))
	}
	return nil
}

// notMarked answers a failure to set the attribute of a directory. There is no side file for a directory: nothing of it but the attribute is
// bound to this one directory and stays as it is.
func (s *Store) notMarked(dir int, text []byte, err error) error {
	now, readErr := s.readAttribute(dir)
	switch {
	case readErr != nil || bytes.Equal(now, text):
		return unknown("setting the directory's attribute", err)
	case errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM):
		return notImplemented(`The file system of this store keeps no extended attributes: a key that ends with "/" is not implemented here.`)
	case tooSmall(err) && len(text) > usualAttribute:
		return refuse(http.StatusBadRequest, "MetadataTooLarge", "The metadata has %d bytes as the file store writes it, "+
			"and the file system has no room for it with a directory.", len(text))
	}
	return unchanged("setting the directory's attribute", err)
}

// unmark makes a directory no object any more, and returns what it found, nil if there was none. The caller holds the key's lock and tree.
func (s *Store) unmark(dir int, c conditions) (*unix.Stat_t, error) {
	m, err := s.markOf(dir)
	if err != nil {
		return nil, unchanged("reading the object's ETag", err)
	}
	if err := c.judge(m); err != nil || m == nil {
		return nil, err
	}
	st := &unix.Stat_t{}
	if err := s.sys.fstat(dir, st); err != nil {
		return nil, unchanged("looking at the directory", err)
	}
	if err := s.sys.fremovexattr(dir, attribute); err != nil {
		if there, readErr := s.marked(dir); there && readErr == nil {
			return nil, unchanged("removing the directory's attribute", err)
		}
		return nil, unknown("removing the directory's attribute", err)
	}
	return st, nil
}
