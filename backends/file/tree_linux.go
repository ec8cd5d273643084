package file

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

var (
	// errNoBucket says that a walk found no directory with the bucket's name.
	errNoBucket = errors.New("no such bucket")

	// errNoDir says that a walk ended before its last component: no directory is there.
	errNoDir = errors.New("no such directory")
)

// walk opens the directory of a bucket and its dirs below, one component at a time. A symbolic link is no directory to it.
func (s *Store) walk(bucket string, dirs []string) (int, error) {
	fd, err := s.sys.openat(s.rootFD, bucket, openDir, 0)
	if missing(err) {
		return -1, errNoBucket
	} else if err != nil {
		return -1, err
	}
	for _, d := range dirs {
		next, err := s.sys.openat(fd, d, openDir, 0)
		_ = unix.Close(fd)
		if missing(err) {
			return -1, errNoDir
		} else if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// makeDirs walks as walk does and makes what is missing, each durable before the next is put in it. The caller holds tree alone. It returns
// an apiError where something that is no directory has one of the names.
//
// If we crash between mkdir and fsync, Open's syncfs makes the directory durable before the next run relies on it.
func (s *Store) makeDirs(bucket string, dirs []string) (int, error) {
	fd, err := s.walk(bucket, nil)
	if err != nil {
		return -1, err
	}
	for _, d := range dirs {
		next, err := s.makeDir(fd, d)
		_ = unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

func (s *Store) makeDir(parent int, dir string) (int, error) {
	fd, err := s.sys.openat(parent, dir, openDir, 0)
	if err == nil {
		return fd, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		if missing(err) { // there, but no directory
			return -1, s.notDirectory(parent, dir)
		}
		return -1, err
	}
	if err := s.makeDurable(parent, dir); err != nil {
		return -1, err
	}
	return s.sys.openat(parent, dir, openDir, 0)
}

// notDirectory says what is in the way of a directory.
func (s *Store) notDirectory(parent int, dir string) error {
	var st unix.Stat_t
	if err := s.sys.fstatat(parent, dir, &st); err != nil {
		return err
	} else if regular(&st) {
		return parentIsFile(dir)
	}
	return invalidArgument("The file store cannot hold this key: %q, a part of it, is a symbolic link or a special file.", dir)
}

// makeDurable makes one directory and syncs the one above it. Whatever fails, a directory may be there that is not durable: it is
// taken away if that can be done, and remembered in any case.
func (s *Store) makeDurable(parent int, dir string) error {
	err := s.sys.mkdirat(parent, dir, 0o755)
	if err == nil {
		err = s.sys.fsync(parent)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		s.unsynced = true
		_ = s.sys.unlinkat(parent, dir, unix.AT_REMOVEDIR)
		return err
	}
	return nil
}

// settle makes durable what an earlier failure has left in the tree. The caller holds tree alone.
func (s *Store) settle() error {
	if !s.unsynced {
		return nil
	}
	if err := s.sys.syncfs(s.rootFD); err != nil {
		return err
	}
	s.unsynced = false
	return nil
}

// prune takes the directories of a deleted object away, innermost first, until one is not empty. The bucket stays. It is
// a courtesy: S3 has no directories, and one that is left hinders nobody.
//
// It need not be durable. A directory that comes back with a crash is an empty one.
func (s *Store) prune(n name) {
	if len(n.dirs) == 0 {
		return
	}
	s.tree.Lock()
	defer s.tree.Unlock()
	for i := len(n.dirs) - 1; i >= 0; i-- {
		parent, err := s.walk(n.bucket, n.dirs[:i])
		if err != nil {
			return
		}
		err = s.removeUnmarked(parent, n.dirs[i])
		_ = unix.Close(parent)
		if err != nil {
			return
		}
	}
}

// removeUnmarked removes a directory that is empty and no object. The caller holds tree alone, so nobody makes an object of it meanwhile.
func (s *Store) removeUnmarked(parent int, dir string) error {
	fd, err := s.sys.openat(parent, dir, openDir, 0)
	if err != nil {
		return err
	}
	there, err := s.marked(fd)
	_ = unix.Close(fd)
	switch {
	case err != nil:
		return err
	case there:
		return errHolds
	}
	return s.sys.unlinkat(parent, dir, unix.AT_REMOVEDIR)
}

// errHolds says that a directory holds something besides directories.
var errHolds = errors.New("the directory is not empty")

// removeEmpty removes a directory if there are only directories in it, and those, and none of them is an object. The caller holds tree
// alone. It looks through all of them before it removes the first.
func (s *Store) removeEmpty(parent int, dir string, goOn func() error) error {
	if err := s.holdsNothing(parent, dir, goOn); err != nil {
		return err
	}
	return s.removeDirs(parent, dir, goOn)
}

// holdsNothing fails with errHolds if dir is an object, or there is anything but directories below it, or one of those is.
func (s *Store) holdsNothing(parent int, dir string, goOn func() error) error {
	fd, err := s.sys.openat(parent, dir, openDir, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if parent != s.rootFD { // a bucket is none, whatever another program gave its directory
		if there, err := s.marked(fd); err != nil {
			return err
		} else if there {
			return errHolds
		}
	}
	return s.sys.entries(fd, goOn, func(e entry) error {
		if e.kind != unix.DT_DIR {
			return errHolds
		}
		return s.holdsNothing(fd, e.name, goOn)
	})
}

func (s *Store) removeDirs(parent int, dir string, goOn func() error) error {
	fd, err := s.sys.openat(parent, dir, openDir, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var inner []string // removing while reading may skip entries
	if err := s.sys.entries(fd, goOn, func(e entry) error { inner = append(inner, e.name); return nil }); err != nil {
		return err
	}
	for _, d := range inner {
		if err := s.removeDirs(fd, d, goOn); err != nil {
			return err
		}
	}
	return s.sys.unlinkat(parent, dir, unix.AT_REMOVEDIR)
}

// still says whether a name is still the file that it was, after a call that was to take it away has failed.
func (s *Store) still(dir int, base string, was *unix.Stat_t) bool {
	var now unix.Stat_t
	return s.sys.fstatat(dir, base, &now) == nil && now.Ino == was.Ino && now.Dev == was.Dev
}
