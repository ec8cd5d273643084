package file

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

const maxObject = 5 << 30 // bytes: S3's limit for one PUT

// putObject stores an object. As strace shows it, with fd the temporary file and dir the object's directory:
//
//	openat(root, BUCKET, O_DIRECTORY|O_NOFOLLOW)       is the bucket there? Asked before the body is read
//	openat(tmp, "put-N", O_WRONLY|O_CREAT|O_EXCL|O_NOFOLLOW) = fd
//	write(fd, …) …                                     as the body comes
//	                                                   the gate: Body returned io.EOF
//	fstat(fd)                                          its inode, size and time of modification
//	fsetxattr(fd, "user.fenceproxy", …)                or: openat(meta, INODE-MTIME), write, fsync, fsync(meta)
//	fsync(fd)
//	openat(…, COMPONENT, O_DIRECTORY|O_NOFOLLOW) …     = dir; for a missing one mkdirat and fsync of the one above it
//	newfstatat(dir, NAME, AT_SYMLINK_NOFOLLOW)         and openat, fstat, fgetxattr if there is a condition to judge
//	renameat(tmp, "put-N", dir, NAME)                  the effect
//	fsync(dir)                                         then 200
//	unlinkat(meta, INODE-MTIME)                        of the replaced object, if there are side files
func (s *Store) putObject(w http.ResponseWriter, r *http.Request, n name, _ url.Values) error {
	if err := refuseHeaders(r.Header); err != nil {
		return err
	}
	c, err := conditionsOf(r.Header)
	if err != nil {
		return err
	}
	g, err := givenOf(r.Header)
	if err != nil {
		return err
	}
	claimed, err := claimOf(r)
	if err != nil {
		return err
	}
	if r.ContentLength > maxObject {
		return tooLarge()
	} else if r.ContentLength > 0 && n.isDir() {
		return containsData()
	}
	if err := s.needBucket(n.bucket); err != nil {
		return unchanged("looking for the bucket", err)
	}
	t, err := s.receive(r, claimed, cmp.Or(claimed.name, defaultSum))
	if err != nil {
		return err
	}
	defer t.discard()
	t.meta.given = g
	if err := t.seal(); err != nil {
		return unchanged("writing the object", err)
	}
	if err := s.commit(r, t, n, c); err != nil {
		return err
	}
	h := w.Header()
	h.Set("ETag", t.meta.quotedETag())
	h.Set("X-Amz-Object-Size", strconv.FormatInt(t.meta.size, 10))
	t.meta.sum().tell(h)
	h.Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
	return nil
}

func tooLarge() error {
	return refuse(http.StatusBadRequest, "EntityTooLarge", "Your proposed upload exceeds the maximum allowed object size.").
		because("One PUT may have at most %d bytes.", int64(maxObject))
}

// A temp is a file that has no object's name yet.
type temp struct {
	s    *Store
	name string
	fd   int
	st   unix.Stat_t // once it is sealed
	meta meta
	side bool // whether it has a side file
	gone bool // renamed, or nobody knows whether it was: not ours to remove any more

	// mayCommit, if there is one, is asked under the locks of the commit, before anything else is.
	mayCommit func() error
}

func (s *Store) newTemp() (*temp, error) {
	t := &temp{s: s, name: fmt.Sprintf("put-%d", s.temps.Add(1))}
	var err error
	t.fd, err = s.sys.openat(s.tempFD, t.name, openNew, 0o644)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// discard closes the file and removes what no object has come to own. What it cannot remove, the next Open does.
func (t *temp) discard() {
	_ = unix.Close(t.fd) // it was synced, or nobody needs it
	if t.gone {
		return
	}
	if t.side {
		t.s.dropSide(&t.st)
	}
	_ = t.s.sys.unlinkat(t.s.tempFD, t.name, 0)
}

// flushEvery is how many bytes of a large body gather before the disk begins to take them.
const flushEvery = 32 << 20

var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// receive copies the body into a new temporary file and returns when the Body has said io.EOF: the write is past the gate then.
// On any other end, and where the body does not have the checksum that is claimed, it removes the file. It takes the checksums that are named.
func (s *Store) receive(r *http.Request, claimed claim, sums ...string) (_ *temp, err error) {
	t, err := s.newTemp()
	if err != nil {
		return nil, unchanged("making a temporary file", err)
	}
	done := false
	defer func() { // also if Body panics
		if !done {
			t.discard()
		}
	}()
	taken := newTaker(true, sums...)
	size, err := t.copy(r.Body, taken)
	if err != nil {
		return nil, err
	}
	if r.ContentLength >= 0 && size != r.ContentLength {
		return nil, refuse(http.StatusBadRequest, "IncompleteBody", "The body has %d bytes; Content-Length says %d.", size, r.ContentLength)
	}
	t.meta.size, t.meta.etag, t.meta.sums = size, taken.etag(), taken.sums()
	if err := claimed.judge(t.meta.sums); err != nil {
		return nil, err
	}
	done = true
	return t, nil
}

// copy writes the body to the file. It always reads on until the Body says how it ends: a body that has all its bytes may still
// end with an error, and then it was refused.
func (t *temp) copy(body io.Reader, taken *taker) (size int64, err error) {
	if body == nil {
		return 0, nil
	}
	buf := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buf)
	flushed := int64(0)
	for {
		n, readErr := body.Read(buf[:])
		if size += int64(n); size > maxObject {
			return 0, tooLarge()
		}
		_, _ = taken.Write(buf[:n]) // never fails
		if err := t.s.sys.writeAll(t.fd, buf[:n]); err != nil {
			return 0, unchanged("writing the object", err)
		}
		if size-flushed >= flushEvery {
			// Begin to write it to the disk now: what is left for fsync is done behind the gate, where a newer holder waits for it.
			_ = unix.SyncFileRange(t.fd, flushed, size-flushed, unix.SYNC_FILE_RANGE_WRITE) // a hint: fsync tells what fails
			flushed = size
		}
		if readErr == io.EOF {
			return size, nil
		}
		if readErr != nil {
			return 0, badBody(readErr)
		}
	}
}

// badBody answers a body that did not end well.
func badBody(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge()
	}
	return refuse(http.StatusBadRequest, "IncompleteBody", "Nothing was changed: the body could not be read to its end: %s.", err)
}

// seal records the metadata with the content and makes both durable.
func (t *temp) seal() error {
	if err := t.s.sys.fstat(t.fd, &t.st); err != nil {
		return err
	}
	if t.st.Size != t.meta.size {
		return fmt.Errorf("the file has %d bytes where %d were written", t.st.Size, t.meta.size)
	}
	t.meta.mtime = mtimeOf(&t.st)
	text := t.meta.encode()
	err := t.s.setAttribute(t.fd, text)
	if tooSmall(err) {
		t.side = true
		err = t.s.writeSide(&t.st, text)
	}
	if err != nil {
		return err
	}
	return t.s.sys.fsync(t.fd)
}

// commit gives the sealed file the object's name. Until the rename a failure is answered 503, or what the conditions say; after it
// 500.
func (s *Store) commit(r *http.Request, t *temp, n name, c conditions) error {
	dir, replaced, err := s.swap(r, t, n, c)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := s.sys.fsync(dir); err != nil {
		return unknown("syncing the object's directory", err)
	}
	if replaced != nil {
		s.dropSide(replaced) // only now: a loss of power could have brought the old object back, and its metadata is there
	}
	return nil
}

// swap judges and renames. It returns the object's directory, and what was replaced if that has lost its last name.
func (s *Store) swap(r *http.Request, t *temp, n name, c conditions) (int, *unix.Stat_t, error) {
	lock := s.key(n)
	lock.Lock()
	defer lock.Unlock()
	dir, replaced, err := s.swapInPlace(t, n, c)
	if err == errTree {
		dir, replaced, err = s.swapAlone(r, t, n, c)
	}
	return dir, replaced, err
}

// errTree says that directories must be made or removed first.
var errTree = errors.New("the tree has to change first")

// swapInPlace is the swap where all directories are there. Many of them run at once.
func (s *Store) swapInPlace(t *temp, n name, c conditions) (int, *unix.Stat_t, error) {
	s.tree.RLock()
	defer s.tree.RUnlock()
	if s.unsynced {
		return -1, nil, errTree
	}
	dir, err := s.walk(n.bucket, n.dirs)
	switch {
	case err == errNoBucket:
		return -1, nil, noSuchBucket(n.bucket)
	case err == errNoDir:
		return -1, nil, errTree
	case err != nil:
		return -1, nil, unchanged("opening the object's directory", err)
	}
	return s.closeOnError(dir, t, n, c)
}

// swapAlone is the swap where directories have to be made, or an empty one has the object's name. No other write is in the tree
// meanwhile, so that nobody takes away what it has made, or relies on it too early.
func (s *Store) swapAlone(r *http.Request, t *temp, n name, c conditions) (int, *unix.Stat_t, error) {
	s.tree.Lock()
	defer s.tree.Unlock()
	if err := s.settle(); err != nil {
		return -1, nil, unchanged("syncing the file system", err)
	}
	if c.ifMatch != "" { // it does not hold where there is no directory: then none is made
		dir, err := s.walk(n.bucket, n.dirs)
		if err == errNoDir {
			return -1, nil, noSuchKey()
		} else if err == nil {
			_ = unix.Close(dir)
		}
	}
	dir, err := s.makeDirs(n.bucket, n.dirs)
	if err == errNoBucket {
		return -1, nil, noSuchBucket(n.bucket)
	} else if err != nil {
		return -1, nil, unchanged("making the object's directory", err)
	}
	if err = s.clearWay(r, dir, n.base); err != nil {
		_ = unix.Close(dir)
		return -1, nil, err
	}
	dir, replaced, err := s.closeOnError(dir, t, n, c)
	if err == errTree { // another program has made a directory this moment
		err = unchanged("clearing the object's name", unix.EISDIR)
	}
	return dir, replaced, err
}

// clearWay removes empty directories that have the object's name: a crash or another program left them, and S3 knows no directories.
func (s *Store) clearWay(r *http.Request, dir int, base string) error {
	if base == "" { // a directory object is its directory
		return nil
	}
	var st unix.Stat_t
	if err := s.sys.fstatat(dir, base, &st); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return unchanged("looking for the object", err)
	}
	if !directory(&st) {
		return nil
	}
	err := s.removeEmpty(dir, base, r.Context().Err)
	if errors.Is(err, errHolds) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrExist) {
		return isDirectory(base)
	} else if err != nil {
		return unchanged("removing an empty directory", err)
	}
	return nil
}

func (s *Store) closeOnError(dir int, t *temp, n name, c conditions) (int, *unix.Stat_t, error) {
	replaced, err := s.rename(dir, t, n, c)
	if err != nil {
		_ = unix.Close(dir)
		return -1, nil, err
	}
	return dir, replaced, nil
}

// rename judges the conditions and gives t the name. The caller holds the key's lock and tree.
func (s *Store) rename(dir int, t *temp, n name, c conditions) (replaced *unix.Stat_t, err error) {
	if t.mayCommit != nil {
		if err := t.mayCommit(); err != nil {
			return nil, err
		}
	}
	if n.isDir() {
		return nil, s.mark(dir, t, c)
	}
	old, err := s.look(dir, n.base, c)
	if err != nil {
		return nil, err
	}
	if err := t.moveTo(dir, n.base); err != nil {
		return nil, err
	}
	if old != nil && old.Nlink > 1 {
		return nil, nil // another name keeps it, and its side file
	}
	return old, nil
}

// moveTo gives the sealed file its name.
func (t *temp) moveTo(dir int, base string) error {
	err := t.s.sys.renameat(t.s.tempFD, t.name, dir, base)
	if err != nil && t.s.still(t.s.tempFD, t.name, &t.st) {
		return unchanged("renaming", err)
	}
	t.gone = true // or it may have its name now
	if err != nil {
		return unknown("renaming", err)
	}
	return nil
}

// look says what has the name now, nil if nothing, and judges the conditions against it.
func (s *Store) look(dir int, base string, c conditions) (*unix.Stat_t, error) {
	st := &unix.Stat_t{}
	err := s.sys.fstatat(dir, base, st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, c.judge(nil)
	case err != nil:
		return nil, unchanged("looking for the object", err)
	case directory(st):
		return nil, errTree
	case !regular(st):
		return nil, invalidArgument("The file store does not replace what is not a regular file: a symbolic link or a special file has this key.")
	case c.none():
		return st, nil
	}
	m, err := s.metaAt(dir, base)
	if err != nil {
		return nil, unchanged("reading the object's ETag", err)
	}
	return st, c.judge(m)
}

// metaAt reads what is recorded of a file while the caller holds its key's lock.
func (s *Store) metaAt(dir int, base string) (*meta, error) {
	fd, st, err := s.openRegular(dir, base)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return s.metaOf(fd, st)
}
