package file

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A listing walks the directories of a bucket in the order of S3's keys and collects what one answer holds.
type listing struct {
	s   *Store
	ctx context.Context
	ask listRequest

	items []item
	more  bool // there is an item that the answer has no room for
}

// An item is an object, or a common prefix if meta is nil.
type item struct {
	name string
	meta *meta
}

var (
	errFull  = errors.New("the answer is full")
	errFound = errors.New("there is an object")
)

func (s *Store) list(ctx context.Context, ask listRequest) (*listing, error) {
	l := &listing{s: s, ctx: ctx, ask: ask}
	if ask.max == 0 {
		return l, s.needBucket(ask.bucket)
	}
	fd, start, err := l.start()
	if err == errNoBucket {
		return nil, noSuchBucket(ask.bucket)
	} else if err == errNoDir {
		return l, nil
	} else if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := l.walk(fd, start); err != nil && err != errFull {
		return nil, err
	}
	return l, nil
}

// start opens the innermost directory that holds all keys with the prefix.
func (l *listing) start() (int, string, error) {
	start := l.ask.prefix[:strings.LastIndexByte(l.ask.prefix, '/')+1]
	if start == "" {
		fd, err := l.s.walk(l.ask.bucket, nil)
		return fd, start, err
	}
	dirs := strings.Split(strings.TrimSuffix(start, "/"), "/")
	for _, d := range dirs {
		if checkComponent(d) != nil { // no key of ours has it
			if err := l.s.needBucket(l.ask.bucket); err != nil {
				return -1, "", err
			}
			return -1, "", errNoDir
		}
	}
	fd, err := l.s.walk(l.ask.bucket, dirs)
	return fd, start, err
}

// walk lists one open directory; path is what the keys in it begin with.
func (l *listing) walk(dir int, path string) error {
	if err := l.directory(dir, path); err != nil {
		return err
	}
	entries, err := l.read(dir, path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		if strings.HasSuffix(e, "/") {
			err = l.enter(dir, path, e)
		} else {
			err = l.object(dir, path, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// directory lists the object that an open directory is, if it is one. Its key is before all that begin with it.
func (l *listing) directory(dir int, path string) error {
	if path == "" || path <= l.ask.after || !strings.HasPrefix(path, l.ask.prefix) || !listable(path) {
		return nil
	}
	m, err := l.s.markOf(dir)
	if m == nil {
		return err
	}
	if cp, rolled := l.common(path); rolled {
		return l.addCommon(cp)
	}
	return l.add(item{name: path, meta: m})
}

// read returns the names of a directory in S3's order. A directory sorts as its keys do: with a slash at its end, so that a-b comes before a/b
// and a0 after it.
func (l *listing) read(dir int, path string) ([]string, error) {
	var names []string
	err := l.s.sys.entries(dir, l.ctx.Err, func(e entry) error {
		name := e.name
		switch e.kind {
		case unix.DT_DIR:
			name += "/"
			if p := path + name; !mayHold(p, l.ask.prefix) || p < l.ask.after && !strings.HasPrefix(l.ask.after, p) {
				return nil
			}
		case unix.DT_REG:
			if k := path + name; k <= l.ask.after || !strings.HasPrefix(k, l.ask.prefix) || !listable(k) {
				return nil
			}
		default:
			return nil
		}
		names = append(names, name)
		return nil
	})
	slices.Sort(names)
	return names, err
}

// mayHold says whether keys that begin with path can begin with prefix.
func mayHold(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) || strings.HasPrefix(prefix, path)
}

// listable leaves out what another program gave a name that GET would refuse.
func listable(key string) bool {
	_, err := parseName("", key)
	return err == nil
}

// common returns the common prefix that a key, or all keys that begin with name, are rolled up into.
func (l *listing) common(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, l.ask.prefix)
	if !ok || l.ask.delimiter == "" {
		return "", false
	}
	head, _, found := strings.Cut(rest, l.ask.delimiter)
	return l.ask.prefix + head + l.ask.delimiter, found
}

// enter lists the keys below a directory. Where all of them are one common prefix it only asks whether there is any.
func (l *listing) enter(dir int, path, name string) error {
	cp, rolled := l.common(path + name)
	if rolled && l.has(cp) {
		return nil
	}
	fd, err := l.s.sys.openat(dir, strings.TrimSuffix(name, "/"), openDir, 0)
	if missing(err) { // gone since
		return nil
	} else if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !rolled {
		return l.walk(fd, path+name)
	}
	if err := l.anyObject(fd, path+name); err == errFound {
		return l.add(item{name: cp})
	} else if err != nil {
		return err
	}
	return nil
}

// anyObject fails with errFound as soon as it has seen an object.
func (l *listing) anyObject(dir int, path string) error {
	if m, err := l.s.markOf(dir); err != nil {
		return err
	} else if m != nil && listable(path) {
		return errFound
	}
	var inner []string
	err := l.s.sys.entries(dir, l.ctx.Err, func(e entry) error {
		switch {
		case e.kind == unix.DT_REG && listable(path+e.name):
			return errFound
		case e.kind == unix.DT_DIR:
			inner = append(inner, e.name)
		}
		return nil
	})
	for _, d := range inner {
		if err != nil {
			break
		}
		var fd int
		if fd, err = l.s.sys.openat(dir, d, openDir, 0); missing(err) {
			err = nil
		} else if err == nil {
			err = l.anyObject(fd, path+d+"/")
			_ = unix.Close(fd)
		}
	}
	return err
}

func (l *listing) object(dir int, path, name string) error {
	if cp, rolled := l.common(path + name); rolled {
		return l.addCommon(cp)
	}
	m, err := l.metaOf(dir, name)
	if m == nil {
		return err
	}
	return l.add(item{name: path + name, meta: m})
}

// metaOf returns nil for an object that is gone since its name was read.
func (l *listing) metaOf(dir int, name string) (*meta, error) {
	fd, m, err := l.s.openWithMeta(dir, name)
	if missing(err) || err == errNotRegular {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	_ = unix.Close(fd)
	return m, nil
}

// has says whether a common prefix has been listed: in this answer, or in one before. After a key within it, S3 counts it as listed.
func (l *listing) has(cp string) bool {
	return cp <= l.ask.after || len(l.items) > 0 && l.items[len(l.items)-1].name == cp
}

// addCommon adds a common prefix that is not listed yet.
func (l *listing) addCommon(cp string) error {
	if l.has(cp) {
		return nil
	}
	return l.add(item{name: cp})
}

// add puts an item on the answer, or ends the walk because there is no room.
func (l *listing) add(it item) error {
	if len(l.items) == l.ask.max {
		l.more = true
		return errFull
	}
	l.items = append(l.items, it)
	return nil
}

// last is the last item of a full answer.
func (l *listing) last() string { return l.items[len(l.items)-1].name }
