package file

import (
	"context"
	"errors"
	"io/fs"
	"net/http"

	"golang.org/x/sys/unix"
)

const (
	xmlns   = "http://s3.amazonaws.com/doc/2006-03-01/"
	xmlTime = "2006-01-02T15:04:05.000Z"
)

// needBucket fails with NoSuchBucket where there is none.
func (s *Store) needBucket(bucket string) error {
	fd, err := s.walk(bucket, nil)
	if err == errNoBucket {
		return noSuchBucket(bucket)
	} else if err != nil {
		return err
	}
	return unix.Close(fd)
}

func (s *Store) headBucket(w http.ResponseWriter, r *http.Request, bucket string) error {
	if err := s.needBucket(bucket); err != nil {
		return err
	}
	w.Header().Set("x-amz-bucket-region", callerOf(r).region)
	w.Header().Set("x-amz-access-point-alias", "false")
	w.WriteHeader(http.StatusOK)
	return nil
}

// createBucket makes the bucket's directory and syncs the root.
func (s *Store) createBucket(w http.ResponseWriter, r *http.Request, bucket string) error {
	if err := refuseBucketHeaders(r.Header); err != nil {
		return err
	}
	if err := readBucketConfiguration(r); err != nil {
		return err
	}
	ended, err := s.makeBucketAlone(r.Context(), bucket)
	s.sweepAll(ended)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/"+bucket)
	w.Header().Set("x-amz-bucket-arn", "arn:aws:s3:::"+bucket)
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
	return nil
}

// makeBucketAlone makes the bucket while nothing else is in the tree. It also ends what uploads an earlier bucket with this name has left, and
// returns their ids.
func (s *Store) makeBucketAlone(ctx context.Context, bucket string) (ended []string, err error) {
	s.tree.Lock()
	defer s.tree.Unlock()
	if err := s.settle(); err != nil {
		return nil, unchanged("syncing the file system", err)
	}
	var st unix.Stat_t
	if err := s.sys.fstatat(s.rootFD, bucket, &st); errors.Is(err, fs.ErrNotExist) {
		if ended, err = s.endAll(ctx, bucket); err != nil {
			return ended, unchanged("ending the uploads of an earlier bucket with this name", err)
		}
	}
	return ended, s.makeBucket(bucket)
}

func (s *Store) makeBucket(bucket string) error {
	err := s.sys.mkdirat(s.rootFD, bucket, 0o755)
	if errors.Is(err, fs.ErrExist) {
		if err := s.needBucket(bucket); err != nil {
			return refuse(http.StatusConflict, "BucketAlreadyExists", "Something that is no directory has the name %s.", bucket)
		}
		return refuse(http.StatusConflict, "BucketAlreadyOwnedByYou", "Your previous request to create the named bucket succeeded and you already own it.")
	} else if err != nil {
		var st unix.Stat_t
		if gone := s.sys.fstatat(s.rootFD, bucket, &st); errors.Is(gone, fs.ErrNotExist) {
			return unchanged("making the bucket's directory", err)
		}
		s.unsynced = true
		return unknown("making the bucket's directory", err)
	}
	if err := s.sys.fsync(s.rootFD); err != nil {
		s.unsynced = true
		return unknown("syncing the root", err)
	}
	return nil
}

// deleteBucket removes a bucket that has no objects, with the uploads that are open in it and the empty directories that a crash or another program left in it.
func (s *Store) deleteBucket(w http.ResponseWriter, r *http.Request, bucket string) error {
	if err := drain(r); err != nil {
		return err
	}
	if err := s.needBucket(bucket); err != nil {
		return unchanged("looking for the bucket", err)
	}
	// A full bucket is told without holding all other writes up.
	if err := s.holdsNothing(s.rootFD, bucket, r.Context().Err); err == errHolds {
		return bucketNotEmpty(bucket)
	}
	ended, err := s.removeBucket(r, bucket)
	s.sweepAll(ended)
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func bucketNotEmpty(bucket string) error {
	return refuse(http.StatusConflict, "BucketNotEmpty", "The bucket you tried to delete is not empty.").
		because("There are objects, or other files, in %s.", bucket)
}

// removeBucket returns the ids of the bucket's uploads: they ended with it.
func (s *Store) removeBucket(r *http.Request, bucket string) (ended []string, err error) {
	s.tree.Lock()
	defer s.tree.Unlock()
	var st unix.Stat_t
	if err := s.sys.fstatat(s.rootFD, bucket, &st); errors.Is(err, fs.ErrNotExist) {
		return nil, noSuchBucket(bucket)
	} else if err != nil {
		return nil, unchanged("looking for the bucket", err)
	}
	err = s.removeEmpty(s.rootFD, bucket, r.Context().Err)
	switch {
	case errors.Is(err, errHolds) || errors.Is(err, unix.ENOTEMPTY):
		return nil, bucketNotEmpty(bucket)
	case err != nil && s.still(s.rootFD, bucket, &st):
		return nil, unchanged("removing the bucket's directory", err)
	case err != nil:
		return nil, unknown("removing the bucket's directory", err)
	}
	if err := s.sys.fsync(s.rootFD); err != nil {
		return nil, unknown("syncing the root", err)
	}
	// An upload that is left now belongs to no bucket. It ends before a bucket with this name is made again, or at the next Open.
	ended, _ = s.endAll(context.WithoutCancel(r.Context()), bucket)
	return ended, nil
}
