package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Checker looks through a root that no process serves. It changes nothing; what it finds can be mended one by one. It never removes
// an object, and never gives one other content.
type Checker struct {
	store  *Store
	mount  uint64 // of the root
	report func(Finding)
	object func(Object)

	sides   map[string]bool // side files that no file was found for so far
	live    map[string]bool // uploads that are not over, by bucket, key and id
	partial bool            // something could not be read, so that nobody knows whether a side file is in use
}

// OpenCheck takes a root that exists, as [Open] does, but makes nothing and removes nothing. It fails with [ErrLocked] where a process serves
// the root.
func OpenCheck(root string, o Options) (*Checker, error) {
	s := &Store{root: root, sys: &kernel, minPart: minPart, rootFD: -1, ownFD: -1, tempFD: -1, sideFD: -1, uploadsFD: -1}
	s.sides.Store(true)
	c := &Checker{store: s, sides: map[string]bool{}, live: map[string]bool{}}
	if err := c.open(o); err != nil {
		_ = s.Close() // the first error tells more
		return nil, fmt.Errorf("file store %s: %w", root, err)
	}
	return c, nil
}

func (c *Checker) open(o Options) (err error) {
	s := c.store
	if s.rootFD, err = unix.Open(s.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if err := s.take(o); err != nil {
		return err
	}
	if c.mount, err = mountOf(s.rootFD); err != nil {
		return err
	}
	for _, d := range s.own() {
		if *d.parent < 0 {
			continue
		}
		if *d.fd, err = unix.Openat(*d.parent, d.name, openDir, 0); errors.Is(err, fs.ErrNotExist) {
			*d.fd = -1 // the next Open makes it
		} else if err != nil {
			*d.fd = -1
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return nil
}

// Close lets the root go.
func (c *Checker) Close() error { return c.store.Close() }

// RegistryID returns the id of the token registry that the root is bound to, "" if none, as [Store.RegistryID] does.
func (c *Checker) RegistryID() (string, error) {
	if c.store.ownFD < 0 {
		return "", nil
	}
	return c.store.RegistryID()
}

// HasUpload says, after Run, whether there is, or may be where not everything could be read, an upload in parts that has not ended.
func (c *Checker) HasUpload(bucket, key, id string) bool {
	return c.partial || c.live[liveName(bucket, key, id)]
}

func liveName(bucket, key, id string) string { return bucket + "/" + key + "/" + id } // neither a bucket nor an id has a slash

// Run looks through everything below the root and hands what it finds to report, and each object of which something is recorded to object.
// It fails only if ctx ends.
func (c *Checker) Run(ctx context.Context, report func(Finding), object func(Object)) error {
	c.report, c.object = report, object
	c.each(ctx, c.store.ownFD, ownDir, c.ownEntry)
	c.each(ctx, c.store.sideFD, ownDir+"/"+sideDir, c.sideEntry)
	c.each(ctx, c.store.tempFD, ownDir+"/"+tempDir, c.tempEntry)
	c.each(ctx, c.store.uploadsFD, ownDir+"/"+uploadsDir, func(e entry) { c.uploadEntry(ctx, e) })
	c.buckets(ctx)
	c.orphans()
	return ctx.Err()
}

// find reports something below the root.
func (c *Checker) find(l Level, where, what, repair string) {
	c.report(Finding{Level: l, What: what, Where: c.path(where), Repair: repair})
}

// mend reports something that do takes away.
func (c *Checker) mend(where, what, repair string, do func() error) {
	c.report(Finding{Level: Mend, What: what, Where: c.path(where), Repair: repair, mend: do})
}

func (c *Checker) path(where string) string { return filepath.Join(c.store.root, where) }

// unreadable reports what could not be looked at, unless it is gone by now: other programs may write below the buckets.
func (c *Checker) unreadable(where string, err error) {
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	c.partial = true
	c.find(Error, where, "it cannot be read: "+reason(err), "mend the disk, or let fenceproxy's user read it, and check again")
}

// each hands the names in a directory to look, which may take them away. There may be no such directory.
func (c *Checker) each(ctx context.Context, fd int, where string, look func(entry)) {
	if fd < 0 {
		return
	}
	dir, err := c.store.sys.openat(fd, ".", openDir, 0) // a descriptor of our own: reading moves its offset
	if err == nil {
		err = c.store.sys.entries(dir, ctx.Err, func(e entry) error { look(e); return nil })
		_ = unix.Close(dir)
	}
	if err != nil && ctx.Err() == nil {
		c.unreadable(where, err)
	}
}

func (c *Checker) ownEntry(e entry) {
	switch e.name {
	case tempDir, sideDir, uploadsDir, registryFile:
	default:
		c.find(Note, ownDir+"/"+e.name, "fenceproxy made no such file", "")
	}
}

func (c *Checker) sideEntry(e entry) {
	if inode, mtime, ok := strings.Cut(e.name, "-"); ok && e.kind == unix.DT_REG && isNumber(inode) && isNumber(strings.TrimPrefix(mtime, "-")) {
		c.sides[e.name] = true
		return
	}
	c.find(Note, ownDir+"/"+sideDir+"/"+e.name, "fenceproxy made no such file", "")
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

func (c *Checker) tempEntry(e entry) {
	s, where := c.store, ownDir+"/"+tempDir+"/"+e.name
	if e.kind == unix.DT_DIR {
		c.find(Error, where, "a directory among the temporary files: serve cannot start", "move it away")
		return
	}
	var st unix.Stat_t
	if err := s.sys.fstatat(s.tempFD, e.name, &st); err != nil {
		c.unreadable(where, err)
		return
	}
	alone := st.Nlink == 1 // see removeTemps
	if alone {
		delete(c.sides, sideName(&st))
	}
	c.mend(where, fmt.Sprintf("a write that did not end has left %d bytes", st.Size), "remove it", func() error {
		if alone {
			s.dropSide(&st)
		}
		return s.sys.unlinkat(s.tempFD, e.name, 0)
	})
}

// orphans reports the side files that nothing was found for.
func (c *Checker) orphans() {
	if c.partial {
		return // the file that one of them belongs to may be among those that could not be read
	}
	for _, side := range slices.Sorted(maps.Keys(c.sides)) {
		c.mend(ownDir+"/"+sideDir+"/"+side, "metadata of a file that is gone, was changed by another program, or has an attribute", "remove it", func() error {
			return c.store.sys.unlinkat(c.store.sideFD, side, 0)
		})
	}
}

// recorded judges what is recorded of a file. meta is nil if nothing is, or nothing that counts. wrong says what is wrong with it; changed, that
// the file is not the one it was recorded of.
func (c *Checker) recorded(fd int, st *unix.Stat_t) (m *meta, wrong string, changed bool, err error) {
	text, err := c.store.readAttribute(fd)
	if err != nil {
		return nil, "", false, err
	}
	if side := sideName(st); text == nil && c.sides[side] {
		delete(c.sides, side)
		if text, err = c.store.readSide(st); err != nil {
			return nil, "", false, err
		}
	}
	if text == nil {
		return nil, "", false, nil
	}
	m, ok := decodeMeta(text)
	if !ok {
		return nil, notMeta(text), false, nil
	}
	if m.size != st.Size || m.mtime != mtimeOf(st) {
		return nil, "", true, nil
	}
	return m, "", false, nil
}

func notMeta(text []byte) string {
	if q, err := url.ParseQuery(string(text)); err == nil && q.Get("v") != "" && q.Get("v") != metaVersion {
		return fmt.Sprintf("its metadata is of version %q, which this program does not know", q.Get("v"))
	}
	return "its metadata cannot be read"
}

// mountOf tells which mount a directory is in. Two of them may show the same files.
func mountOf(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := again(func() error { return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st) }); err != nil {
		return 0, fmt.Errorf("statx: %w", err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 { // Linux before 5.8 tells the file system only
		return uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), nil
	}
	return st.Mnt_id, nil
}
