package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The store's own names, all in root/.fenceproxy.
const (
	ownDir       = ".fenceproxy"
	tempDir      = "tmp"
	sideDir      = "meta"
	registryFile = "registry"
	uploadsDir   = "uploads"
)

// A Store serves the files below a root as S3 objects. It is an [net/http.Handler]; its methods may be called from many goroutines at once.
type Store struct {
	root      string // as the operator wrote it, for messages only
	sys       *system
	forceSide bool

	// Open directories. They are set by Open and closed by Close, when no request runs any more.
	rootFD, ownFD, tempFD, sideFD, uploadsFD int

	// running counts the calls that use the descriptors, and Close waits for them: one that is closed under a request may be
	// another directory's a moment later. life guards closed, and that nobody is counted after it is set. No lock is held while a call
	// runs: a Body may ask the store something while Close waits.
	life    sync.Mutex
	closed  bool
	running sync.WaitGroup

	// keys makes one step of judging a condition and of the rename or unlink that it is for. A key belongs to one of them, and
	// a call holds at most one. It is taken before tree.
	keys [256]sync.Mutex

	// tree guards the directories of the buckets. It is held shared from walking to a directory until something is put in it or
	// taken from it, and alone for making and removing directories. So what is found under it shared is durable and stays. It also guards unsynced.
	tree sync.RWMutex

	// unsynced says that a directory may be in the tree that is not durable. The next write syncs the file system before it relies on any.
	unsynced bool

	// uploads are the locks of the uploads in parts. A call takes one before keys and tree.
	uploads uploadLocks

	// minPart is the least size of every part but the last, in bytes. Tests make it small.
	minPart int64

	// registry guards the file with the registry's id.
	registry sync.Mutex

	temps atomic.Uint64 // numbers the temporary files of this run
	sides atomic.Bool   // whether there may be side files at all
}

// Open makes the root if it is missing, and takes it for this process: a second Open of it fails with [ErrLocked] until Close
// or the end of the process, however it ends. It removes what an earlier run left of unfinished writes, and makes the
// directories durable that such a run may have made.
func Open(root string, o Options) (*Store, error) {
	s := &Store{root: root, sys: &kernel, forceSide: o.ForceSideFiles, minPart: minPart, rootFD: -1, ownFD: -1, tempFD: -1, sideFD: -1, uploadsFD: -1}
	if err := s.open(o); err != nil {
		_ = s.Close() // the first error tells more
		return nil, fmt.Errorf("file store %s: %w", root, err)
	}
	return s, nil
}

func (s *Store) open(o Options) error {
	if err := os.MkdirAll(s.root, 0o755); err != nil {
		return err
	}
	var err error
	if s.rootFD, err = unix.Open(s.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if err := s.take(o); err != nil {
		return err
	}
	if err := s.openOwn(); err != nil {
		return fmt.Errorf("the root is not writable: %w", err)
	}
	if err := s.removeTemps(); err != nil {
		return fmt.Errorf("removing what an earlier run left: %w", err)
	}
	if err := s.removeEnded(); err != nil {
		return fmt.Errorf("removing what an earlier run left of uploads: %w", err)
	}
	if err := s.lookForSides(); err != nil {
		return fmt.Errorf("looking for side files: %w", err)
	}
	if err := s.refuseMerging(); err != nil {
		return err
	}
	// A run that was killed between making a directory and syncing its parent has left one that is not durable.
	if err := s.sys.syncfs(s.rootFD); err != nil {
		return fmt.Errorf("syncfs: %w", err)
	}
	return nil
}

// take keeps other processes away from the open root.
func (s *Store) take(o Options) error {
	if err := refuseNetworkFS(s.rootFD, o.UnsafeNetworkFS); err != nil {
		return err
	}
	if err := unix.Flock(s.rootFD, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	} else if err != nil {
		return fmt.Errorf("flock: %w", err)
	}
	return nil
}

// An ownDirectory is one of the store's own, and where its descriptor goes.
type ownDirectory struct {
	fd, parent *int
	name       string
}

// own are the store's own directories, each after the one that it is in.
func (s *Store) own() []ownDirectory {
	return []ownDirectory{
		{&s.ownFD, &s.rootFD, ownDir}, {&s.tempFD, &s.ownFD, tempDir}, {&s.sideFD, &s.ownFD, sideDir}, {&s.uploadsFD, &s.ownFD, uploadsDir},
	}
}

// openOwn opens the store's own directories. They are the owner's alone: what lies in tmp is not to be seen yet.
func (s *Store) openOwn() error {
	if err := unix.Faccessat(s.rootFD, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return err
	}
	for _, d := range s.own() {
		if err := unix.Mkdirat(*d.parent, d.name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		fd, err := unix.Openat(*d.parent, d.name, openDir, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		*d.fd = fd
	}
	return nil
}

// removeTemps removes the temporary files of a run that was killed, and the side files that were meant for them. The flock says that
// nobody else is writing them.
func (s *Store) removeTemps() error {
	var dead []string
	collect := func(e entry) error { dead = append(dead, e.name); return nil }
	dir, err := unix.Openat(s.tempFD, ".", openDir, 0) // a descriptor of our own: reading moves its offset
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := s.sys.entries(dir, always, collect); err != nil {
		return err
	}
	s.sides.Store(true)
	for _, name := range dead {
		var st unix.Stat_t
		// After a loss of power a file may have its object's name already and this one still: the side file is the object's then.
		if err := s.sys.fstatat(s.tempFD, name, &st); err == nil && st.Nlink == 1 {
			s.dropSide(&st)
		}
		if err := s.sys.unlinkat(s.tempFD, name, 0); err != nil {
			return err
		}
	}
	return nil
}

// lookForSides spares a store that has no side files the look for one at every foreign file.
func (s *Store) lookForSides() error {
	dir, err := unix.Openat(s.sideFD, ".", openDir, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	found := errors.New("found")
	err = s.sys.entries(dir, always, func(entry) error { return found })
	s.sides.Store(err == found)
	if err == found {
		return nil
	}
	return err
}

func always() error { return nil }

// refuseMerging makes a file and looks for it under other spellings: another case, another Unicode normal form, a dot more. A name that the
// file system cannot have at all is no other spelling. If we crash with the file there, the next start removes it with the temporary ones.
func (s *Store) refuseMerging() (err error) {
	const made = "Spelling-\u00e9"
	fd, err := s.sys.openat(s.tempFD, made, openNew, 0o600)
	if err != nil {
		return fmt.Errorf("making a file to see which spellings of its name lead to it: %w", err)
	}
	_ = unix.Close(fd)
	defer func() { err = errors.Join(err, s.sys.unlinkat(s.tempFD, made, 0)) }()
	for _, other := range []string{"spelling-\u00e9", "Spelling-e\u0301", made + ".", made + " "} {
		var st unix.Stat_t
		switch err := s.sys.fstatat(s.tempFD, other, &st); {
		case err == nil:
			return fmt.Errorf("%w (%q and %q): one object would have two keys, and two fences; use a directory that keeps them apart", ErrMergesNames, made, other)
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EILSEQ):
			return fmt.Errorf("looking whether %q is another name of %q: %w", other, made, err)
		}
	}
	return nil
}

// networkFS names the file systems that another machine, or another program, may change behind this kernel's back. The numbers are
// f_type of statfs(2).
var networkFS = map[uint32]string{
	0x6969:     "NFS",
	0x517b:     "SMB",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB2",
	0x65735546: "FUSE",
	0x01021997: "9p",
	0x00c36400: "Ceph",
	0x5346414f: "AFS",
	0x6b414653: "AFS",
	0x0bd00bd0: "Lustre",
	0x01161970: "GFS2",
	0x7461636f: "OCFS2",
	0x47504653: "GPFS",
	0x19830326: "BeeGFS",
	0xaad7aaea: "PanFS",
	0x73757245: "Coda",
	0x564c:     "NCP",
	0x786f4256: "VirtualBox shared folders",
	0xbacbacbc: "VMware shared folders",
}

// RefuseNetworkFS fails with [ErrNetworkFS] where a directory lies on a file system that this machine does not have to itself. It
// is for what else of a proxy has to be on a disk: its registry.
func RefuseNetworkFS(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = refuseNetworkFS(fd, false)
		_ = unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	return nil
}

func refuseNetworkFS(fd int, unsafe bool) error {
	var st unix.Statfs_t
	if err := again(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	return judgeFS(uint32(st.Type), unsafe)
}

func judgeFS(kind uint32, unsafe bool) error {
	if fsName, ok := networkFS[kind]; ok && !unsafe {
		return fmt.Errorf("%w: this one is %s, where another machine may write behind the lock of the root; --unsafe-network-fs allows it", ErrNetworkFS, fsName)
	}
	return nil
}

// enter begins a call that ends with running.Done, unless the store is closed.
func (s *Store) enter() bool {
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// Close waits for the requests that are being served, and lets the root go. Requests that come meanwhile or later are answered 503.
func (s *Store) Close() error {
	s.life.Lock()
	first := !s.closed
	s.closed = true
	s.life.Unlock()
	s.running.Wait()
	if !first {
		return nil
	}
	for _, fd := range []int{s.uploadsFD, s.sideFD, s.tempFD, s.ownFD, s.rootFD} { // the root last: its lock says that we are done
		if fd >= 0 {
			_ = unix.Close(fd) // of directories opened for reading: nothing is lost
		}
	}
	return nil
}
