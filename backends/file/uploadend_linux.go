package file

import (
	"context"
	"errors"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"
)

// end takes the record away, which is the end of an upload, and makes that durable.
func (s *Store) end(u *upload) error {
	if err := s.sys.unlinkat(u.dir, recordFile, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		var st unix.Stat_t
		if s.sys.fstatat(u.dir, recordFile, &st) == nil {
			return unchanged("removing the upload's record", err)
		}
		return unknown("removing the upload's record", err)
	}
	if err := s.sys.fsync(u.dir); err != nil {
		return unknown("syncing the upload's directory", err)
	}
	return nil
}

// sweep removes the files of an upload that has ended, and its directory. What it cannot remove, the next Open does.
func (s *Store) sweep(id string) error {
	dir, err := s.sys.openat(s.uploadsFD, id, openDir, 0)
	if missing(err) {
		return nil
	} else if err != nil {
		return err
	}
	defer unix.Close(dir)
	var names []string // removing while reading may skip entries
	if err := s.sys.entries(dir, always, func(e entry) error { names = append(names, e.name); return nil }); err != nil {
		return err
	}
	for _, file := range names {
		var st unix.Stat_t
		known := s.sides.Load() && s.sys.fstatat(dir, file, &st) == nil
		if err := s.sys.unlinkat(dir, file, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if known {
			s.dropSide(&st)
		}
	}
	return s.sys.unlinkat(s.uploadsFD, id, unix.AT_REMOVEDIR)
}

// removeEnded ends, at Open, the uploads whose bucket is gone or whose object is there, and removes what is left of ended ones.
func (s *Store) removeEnded() error {
	ctx := context.Background()
	err := s.eachUpload(ctx, func(u *upload) error {
		over, err := s.over(u)
		if err == nil && over {
			err = s.end(u)
		}
		return err
	})
	if err != nil {
		return err
	}
	ids, err := s.uploadDirs(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		u, err := s.readUpload(id)
		if err == nil && u == nil {
			err = s.sweep(id)
		} else if err == nil {
			err = unix.Close(u.dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) over(u *upload) (bool, error) {
	if !validBucket(u.bucket) {
		return true, nil
	}
	if err := s.needBucket(u.bucket); err != nil {
		e, ok := errors.AsType[*apiError](err)
		if ok && e.code == "NoSuchBucket" {
			return true, nil
		}
		return false, err
	}
	n, err := parseName(u.bucket, u.key)
	if err != nil {
		return true, nil
	}
	m, err := s.completedBefore(n, u.id)
	return m != nil, err
}

// endAll ends the uploads of a bucket that is not there any more. It returns their ids, for sweepAll. The caller holds tree
// alone: no upload can come to the bucket, nor be completed.
func (s *Store) endAll(ctx context.Context, bucket string) (ids []string, err error) {
	err = s.eachUpload(ctx, func(u *upload) error {
		if u.bucket != bucket {
			return nil
		}
		ids = append(ids, u.id)
		err := s.end(u)
		if err != nil { // it may come back with a loss of power
			s.unsynced = true
		}
		return err
	})
	return ids, err
}

// sweepAll sweeps uploads that have ended. The caller holds no lock.
func (s *Store) sweepAll(ids []string) {
	for _, id := range ids {
		unlock := s.uploads.lock(id)
		if u, err := s.readUpload(id); err == nil && u == nil {
			_ = s.sweep(id)
		} else if err == nil {
			_ = unix.Close(u.dir)
		}
		unlock()
	}
}

// uploadLocks are the locks of the uploads that somebody is working on. One is held while a part gets its name, and while an
// upload is completed, aborted or swept. A call holds at most one, and takes it before keys and tree.
type uploadLocks struct {
	mu    sync.Mutex
	locks map[string]*uploadLock // guarded by mu
}

type uploadLock struct {
	sync.Mutex
	users int // who hold it or wait for it; guarded by uploadLocks.mu
}

// lock waits for the lock of an upload and returns what gives it back.
func (l *uploadLocks) lock(id string) (unlock func()) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[string]*uploadLock{}
	}
	u := l.locks[id]
	if u == nil {
		u = &uploadLock{}
		l.locks[id] = u
	}
	u.users++
	l.mu.Unlock()
	u.Lock()
	return func() {
		u.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if u.users--; u.users == 0 {
			delete(l.locks, id)
		}
	}
}
