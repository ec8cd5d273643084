package file

import (
	"errors"
	"io/fs"
	"net/http"
	"net/url"

	"golang.org/x/sys/unix"
)

// deleteObject removes an object. As strace shows it, with dir the object's directory:
//
//	openat(…, COMPONENT, O_DIRECTORY|O_NOFOLLOW) …  = dir
//	newfstatat(dir, NAME, AT_SYMLINK_NOFOLLOW)      and openat, fstat, fgetxattr if there is a condition to judge
//	unlinkat(dir, NAME)                             the effect
//	fsync(dir)                                      then 204, also if nothing was there: another DELETE may not have got so far
//	unlinkat(meta, INODE-MTIME)                     if there are side files
//	openat, fgetxattr(COMPONENT)                    is it a directory object?
//	unlinkat(…, COMPONENT, AT_REMOVEDIR) …          until one is, or is not empty
func (s *Store) deleteObject(w http.ResponseWriter, r *http.Request, n name, _ url.Values) error {
	c, err := conditionsOfDelete(r.Header)
	if err != nil {
		return err
	}
	if c.mustBeFirst {
		return notImplemented("If-None-Match on DeleteObject is not implemented.")
	}
	if err := drain(r); err != nil {
		return err
	}
	dir, removed, err := s.remove(n, c)
	if err != nil {
		return err
	}
	if dir >= 0 {
		err := s.sys.fsync(dir)
		_ = unix.Close(dir)
		if err != nil && removed == nil {
			return unchanged("syncing the object's directory", err)
		} else if err != nil {
			return unknown("syncing the object's directory", err)
		}
	}
	if removed != nil {
		if removed.Nlink == 1 {
			s.dropSide(removed)
		}
		s.prune(n)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// remove judges the conditions and takes the name away. It returns the directory that has to be synced, -1 if there is none, and what was
// removed, nil if nothing.
func (s *Store) remove(n name, c conditions) (int, *unix.Stat_t, error) {
	lock := s.key(n)
	lock.Lock()
	defer lock.Unlock()
	s.tree.RLock()
	defer s.tree.RUnlock()
	dir, err := s.walk(n.bucket, n.dirs)
	switch {
	case err == errNoBucket:
		return -1, nil, noSuchBucket(n.bucket)
	case err == errNoDir:
		return -1, nil, c.judge(nil)
	case err != nil:
		return -1, nil, unchanged("opening the object's directory", err)
	}
	var old *unix.Stat_t
	if n.isDir() {
		old, err = s.unmark(dir, c)
	} else {
		old, err = s.unlink(dir, n.base, c)
	}
	if err != nil {
		_ = unix.Close(dir)
		return -1, nil, err
	}
	return dir, old, nil
}

// unlink removes a regular file. What is none is no object, and not there to S3.
func (s *Store) unlink(dir int, base string, c conditions) (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := s.sys.fstatat(dir, base, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !regular(&st):
		return nil, c.judge(nil)
	case err != nil:
		return nil, unchanged("looking for the object", err)
	}
	if !c.none() {
		m, err := s.metaAt(dir, base)
		if err != nil {
			return nil, unchanged("reading the object's ETag", err)
		}
		if err := c.judge(m); err != nil {
			return nil, err
		}
	}
	if err := s.sys.unlinkat(dir, base, 0); err != nil {
		if s.still(dir, base, &st) {
			return nil, unchanged("unlinking", err)
		}
		return nil, unknown("unlinking", err)
	}
	return &st, nil
}
