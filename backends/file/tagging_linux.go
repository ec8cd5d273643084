package file

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"

	"golang.org/x/sys/unix"
)

func (s *Store) getTagging(w http.ResponseWriter, r *http.Request, n name, _ url.Values) error {
	f, m, err := s.openObject(n)
	if err != nil {
		return err
	}
	_ = f.Close() // of a file that was only looked at
	writeXML(w, r, http.StatusOK, taggingDocument{XMLNS: xmlns, Tags: m.tags})
	return nil
}

// putTagging replaces the tags of an object. As strace shows it, with fd the object:
//
//	                                                   the gate: Body, the tags, returned io.EOF
//	openat(root, BUCKET, …) …                          = fd, and fstat, fgetxattr of it, under the key's lock
//	fsetxattr(fd, "user.fenceproxy", …)                the effect: all that is recorded, with other tags
//	fsync(fd)                                          then 200
//
// The kernel replaces an attribute as one step. If we crash before the fsync, either tags may be there after the restart, and the client
// has no answer. The file's time of modification stays what it is, and with it what is recorded stays true. rewriteSide says what
// happens where the record does not fit into an attribute.
func (s *Store) putTagging(w http.ResponseWriter, r *http.Request, n name, _ url.Values) error {
	if err := refuseConditions(r.Header, "PutObjectTagging"); err != nil {
		return err
	}
	tags, err := readTagging(r)
	if err != nil {
		return err
	}
	if err := s.setTags(n, tags); err != nil {
		return err
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
	return nil
}

// deleteTagging takes the tags of an object away, as putTagging sets them.
func (s *Store) deleteTagging(w http.ResponseWriter, r *http.Request, n name, _ url.Values) error {
	if err := refuseConditions(r.Header, "DeleteObjectTagging"); err != nil {
		return err
	}
	if err := drain(r); err != nil {
		return err
	}
	if err := s.setTags(n, nil); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// setTags changes what is recorded of an object while no other write can give its key to another one.
func (s *Store) setTags(n name, tags []tag) error {
	lock := s.key(n)
	lock.Lock()
	defer lock.Unlock()
	s.tree.RLock()
	defer s.tree.RUnlock()
	dir, err := s.walk(n.bucket, n.dirs)
	switch {
	case err == errNoBucket:
		return noSuchBucket(n.bucket)
	case err == errNoDir:
		return noSuchKey()
	case err != nil:
		return unchanged("opening the object's directory", err)
	}
	defer unix.Close(dir)
	if n.isDir() {
		return s.setTagsOfMark(dir, tags)
	}
	fd, st, err := s.openRegular(dir, n.base)
	if errors.Is(err, errNotRegular) || missing(err) {
		return noSuchKey()
	} else if err != nil {
		return unchanged("opening the object", err)
	}
	defer unix.Close(fd)
	old, inAttribute, err := s.record(fd, st)
	if err != nil {
		return unchanged("reading the object's metadata", err)
	}
	m := believe(old, st)
	m.tags = tags
	return s.rewrite(fd, st, old, inAttribute, m.encode())
}

func (s *Store) setTagsOfMark(dir int, tags []tag) error {
	m, err := s.markOf(dir)
	if err != nil {
		return unchanged("reading the object's metadata", err)
	} else if m == nil {
		return noSuchKey()
	}
	m.tags = tags
	text := m.encode()
	if err := s.setAttribute(dir, text); err != nil {
		return s.notMarked(dir, text, err)
	}
	if err := s.sys.fsync(dir); err != nil {
		return unknown("syncing the object", err)
	}
	return nil
}

// rewrite replaces what is recorded of an object, durably. The caller holds the key's lock. Where a side file has the record it stays there:
// an attribute would count before it, and two steps are more than one.
func (s *Store) rewrite(fd int, st *unix.Stat_t, old []byte, inAttribute bool, text []byte) error {
	if old != nil && !inAttribute {
		return s.rewriteSide(fd, st, false, text)
	}
	err := s.setAttribute(fd, text)
	if tooSmall(err) {
		return s.rewriteSide(fd, st, inAttribute, text)
	}
	if err != nil {
		now, readErr := s.readAttribute(fd)
		if readErr == nil && bytes.Equal(now, old) {
			return unchanged("setting the attribute", err)
		}
		return unknown("setting the attribute", err)
	}
	if err := s.sys.fsync(fd); err != nil {
		return unknown("syncing the object", err)
	}
	return nil
}

// rewriteSide gives an object the record that text is in a side file. As strace shows it:
//
//	openat(tmp, "put-N", O_WRONLY|O_CREAT|O_EXCL|O_NOFOLLOW), write, fsync
//	renameat(tmp, "put-N", meta, INODE-MTIME)          the effect, unless there is an attribute
//	fsync(meta)
//	fremovexattr(fd, "user.fenceproxy")                the effect, if there is one: until now it counted, and not the side file
//	fsync(fd)
//
// If we crash between the two with an attribute, the side file is one that nobody looks at.
func (s *Store) rewriteSide(fd int, st *unix.Stat_t, inAttribute bool, text []byte) error {
	if len(text) > maxSide {
		return metadataTooLarge(len(text))
	}
	t, err := s.newTemp()
	if err != nil {
		return unchanged("making a temporary file", err)
	}
	defer t.discard()
	if err := t.writeRecord(text); err != nil {
		return unchanged("writing the metadata", err)
	}
	s.sides.Store(true)
	if err := t.moveTo(s.sideFD, sideName(st)); err != nil {
		return err
	}
	if err := s.sys.fsync(s.sideFD); err != nil {
		if inAttribute {
			s.dropSide(st)
			return unchanged("syncing the metadata", err)
		}
		return unknown("syncing the metadata", err)
	}
	if !inAttribute {
		return nil
	}
	if err := s.sys.fremovexattr(fd, attribute); err != nil {
		if there, readErr := s.marked(fd); there && readErr == nil {
			s.dropSide(st)
			return unchanged("removing the attribute", err)
		}
		return unknown("removing the attribute", err)
	}
	if err := s.sys.fsync(fd); err != nil {
		return unknown("syncing the object", err)
	}
	return nil
}
