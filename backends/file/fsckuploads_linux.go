package file

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// uploadEntry looks at one entry of the uploads.
func (c *Checker) uploadEntry(ctx context.Context, e entry) {
	s, where := c.store, ownDir+"/"+uploadsDir+"/"+e.name
	if e.kind != unix.DT_DIR || !validUploadID(e.name) {
		c.find(Note, where, "fenceproxy made no such file", "")
		return
	}
	u, err := s.readUpload(e.name)
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		c.unreadable(where, errno)
		return
	} else if err != nil {
		c.find(Error, where+"/"+recordFile, err.Error()+": serve cannot start", "move the upload's directory away")
		c.partial = true
		return
	}
	if u == nil {
		files := c.parts(ctx, where, e.name, false)
		c.mend(where, fmt.Sprintf("parts of no upload: it ended, or did not begin; %d files", files), "remove it", func() error { return s.sweep(e.name) })
		return
	}
	defer unix.Close(u.dir)
	over, err := c.over(u)
	if err != nil {
		c.unreadable(where, err)
		return
	}
	c.parts(ctx, where, e.name, over == "")
	if over != "" {
		c.mend(where, over, "end the upload, as the next start does, and remove its parts", func() error { return c.endUpload(u.id) })
		return
	}
	c.live[liveName(u.bucket, u.key, u.id)] = true
}

// over says why an upload should have ended, "" if it should not: what [Open] finds with Store.over, but nothing is synced.
func (c *Checker) over(u *upload) (why string, err error) {
	n, err := parseName(u.bucket, u.key)
	if err != nil || !validBucket(u.bucket) {
		return "an upload of an object that there cannot be", nil
	}
	dir, err := c.store.walk(n.bucket, n.dirs)
	switch {
	case err == errNoBucket:
		return "an upload of the bucket " + u.bucket + ", which is gone", nil
	case err == errNoDir:
		return "", nil
	case err != nil:
		return "", err
	}
	defer unix.Close(dir)
	fd, m, err := c.store.openWithMeta(dir, n.base)
	if err == errNotRegular || missing(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	if m.upload == u.id {
		why = fmt.Sprintf("an upload whose object is there: %s/%s", u.bucket, u.key)
	}
	return why, unix.Close(fd)
}

func (c *Checker) endUpload(id string) error {
	u, err := c.store.readUpload(id)
	if err != nil || u == nil {
		return err
	}
	defer unix.Close(u.dir)
	if err := c.store.end(u); err != nil {
		return err
	}
	return c.store.sweep(id)
}

// parts looks at the files of an upload and counts them. needed says that they may become an object.
func (c *Checker) parts(ctx context.Context, where, id string, needed bool) (files int) {
	dir, err := c.store.sys.openat(c.store.uploadsFD, id, openDir, 0)
	if err != nil {
		c.unreadable(where, err)
		return 0
	}
	defer unix.Close(dir)
	c.each(ctx, dir, where, func(e entry) {
		files++
		switch file := where + "/" + e.name; {
		case e.kind == unix.DT_DIR:
			c.find(Error, file, "a directory in an upload: it keeps serve from starting when the upload ends", "move it away")
		case e.name == recordFile:
		case e.kind != unix.DT_REG || partNumber(e.name) == 0:
			c.find(Note, file, "fenceproxy made no such file", "")
		default:
			c.part(dir, e.name, file, needed)
		}
	})
	return files
}

func (c *Checker) part(dir int, base, where string, needed bool) {
	fd, st, err := c.store.openRegular(dir, base)
	if err != nil {
		c.unreadable(where, err)
		return
	}
	defer unix.Close(fd)
	m, wrong, changed, err := c.recorded(fd, st)
	switch {
	case err != nil:
		c.unreadable(where, err)
		return
	case wrong != "":
	case changed:
		wrong = "it was changed since it was uploaded"
	case m == nil:
		wrong = "it has lost its ETag"
	}
	if wrong != "" && needed {
		c.find(Error, where, "a part that cannot be completed: "+wrong, "upload the part again, or abort the upload")
	}
}
