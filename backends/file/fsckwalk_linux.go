package file

import (
	"context"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// buckets looks at everything in the root that is not the store's own.
func (c *Checker) buckets(ctx context.Context) {
	c.each(ctx, c.store.rootFD, "", func(e entry) {
		switch {
		case e.name == ownDir:
		case e.kind == unix.DT_DIR && validBucket(e.name):
			c.directory(ctx, c.store.rootFD, e.name, e.name)
		case e.kind == unix.DT_DIR:
			c.find(Note, e.name, "a directory that is no bucket: S3 has no such name", "")
		default:
			c.find(Note, e.name, kindOf(e)+" beside the buckets: it is not served", "")
		}
	})
}

// directory looks at everything below a directory of a bucket. where is bucket/key of the directory.
func (c *Checker) directory(ctx context.Context, parent int, base, where string) {
	fd, err := c.store.sys.openat(parent, base, openDir, 0)
	if err != nil {
		c.unreadable(where, err)
		return
	}
	defer unix.Close(fd)
	mount, err := mountOf(fd)
	if err != nil {
		c.unreadable(where, err)
		return
	}
	if outer := c.mount; mount != outer {
		c.find(Error, where, "something is mounted here: an object may have two keys, and so two fences", "unmount it")
		c.mount = mount // to tell it once
		defer func() { c.mount = outer }()
	}
	if bucket, key, inside := strings.Cut(where, "/"); inside {
		c.mark(fd, bucket, key+"/")
	}
	c.each(ctx, fd, where, func(e entry) { c.bucketEntry(ctx, fd, e, where+"/"+e.name) })
}

// mark looks whether a directory is an object.
func (c *Checker) mark(dir int, bucket, key string) {
	where := bucket + "/" + key
	text, err := c.store.readAttribute(dir)
	if err != nil {
		c.unreadable(where, err)
		return
	} else if text == nil {
		return
	}
	m, ok := decodeMeta(text)
	switch {
	case !ok:
		c.find(Error, where, notMeta(text)+": the directory is served as if it were no object, and not removed", "write the object again")
	case m.size != 0:
		c.find(Error, where, "its metadata is that of a file: the directory is served as if it were no object, and not removed", "write the object again")
	default:
		c.object(Object{Bucket: bucket, Key: key, Where: c.path(where), Headers: m.headers})
	}
}

func (c *Checker) bucketEntry(ctx context.Context, dir int, e entry, where string) {
	_, key, _ := strings.Cut(where, "/")
	switch {
	case len(key) > maxKey || !utf8.ValidString(key):
		c.find(Note, where, "no key leads here: keys are UTF-8, of 1024 bytes at most", "")
	case e.kind == unix.DT_DIR:
		c.directory(ctx, dir, e.name, where)
	case e.kind == unix.DT_REG:
		c.lookAt(dir, e.name, where)
	case e.kind == unix.DT_UNKNOWN: // gone since
	default:
		c.find(Note, where, kindOf(e)+" is no object: it is not listed, read or replaced", "")
	}
}

func (c *Checker) lookAt(dir int, base, where string) {
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
	case wrong != "":
		c.find(Error, where, wrong+": the object is served as if another program had written it", "write the object again")
	case changed:
		c.find(Note, where, "another program has changed it: the ETag and the metadata that are recorded do not count any more", "")
	case m != nil:
		bucket, key, _ := strings.Cut(where, "/")
		c.object(Object{Bucket: bucket, Key: key, Where: c.path(where), Headers: m.headers})
	}
}

func kindOf(e entry) string {
	switch e.kind {
	case unix.DT_REG:
		return "a file"
	case unix.DT_LNK:
		return "a symbolic link"
	case unix.DT_FIFO:
		return "a FIFO"
	case unix.DT_SOCK:
		return "a socket"
	}
	return "a special file"
}
