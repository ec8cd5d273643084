package file

import (
	"context"
	"encoding/xml"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	xmlns     = "http://s3.amazonaws.com/doc/2006-03-01/"
	xmlTime   = "2006-01-02T15:04:05.000Z"
	ownerName = "fenceproxy"
	region    = "us-east-1" // what S3 calls no region
)

type owner struct {
	ID          string
	DisplayName string
}

var theOwner = owner{ID: ownerName, DisplayName: ownerName}

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

type bucketsResult struct {
	XMLName xml.Name      `xml:"ListAllMyBucketsResult"`
	XMLNS   string        `xml:"xmlns,attr"`
	Owner   owner         `xml:"Owner"`
	Buckets []bucketEntry `xml:"Buckets>Bucket"`
}

type bucketEntry struct {
	Name         string
	CreationDate string
}

// listBuckets takes every directory in the root for a bucket that has a bucket's name, whoever made it.
func (s *Store) listBuckets(w http.ResponseWriter, r *http.Request) error {
	fd, err := s.sys.openat(s.rootFD, ".", openDir, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	result := bucketsResult{XMLNS: xmlns, Owner: theOwner}
	err = s.sys.entries(fd, r.Context().Err, func(e entry) error {
		if e.kind == unix.DT_DIR && validBucket(e.name) {
			result.Buckets = append(result.Buckets, bucketEntry{Name: e.name, CreationDate: s.born(e.name).UTC().Format(xmlTime)})
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(result.Buckets, func(a, b bucketEntry) int { return strings.Compare(a.Name, b.Name) })
	writeXML(w, r, http.StatusOK, result)
	return nil
}

// born tells when a bucket was made, as far as the file system knows.
func (s *Store) born(bucket string) time.Time {
	var st unix.Statx_t
	if err := unix.Statx(s.rootFD, bucket, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME|unix.STATX_MTIME, &st); err != nil {
		return time.Time{}
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
	}
	return time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec))
}

type locationResult struct {
	XMLName xml.Name `xml:"LocationConstraint"`
	XMLNS   string   `xml:"xmlns,attr"`
}

// getBucketLocation answers with the empty constraint, which means us-east-1.
func (s *Store) getBucketLocation(w http.ResponseWriter, r *http.Request, bucket string) error {
	if err := s.needBucket(bucket); err != nil {
		return err
	}
	writeXML(w, r, http.StatusOK, locationResult{XMLNS: xmlns})
	return nil
}

func (s *Store) headBucket(w http.ResponseWriter, bucket string) error {
	if err := s.needBucket(bucket); err != nil {
		return err
	}
	w.Header().Set("x-amz-bucket-region", region)
	w.WriteHeader(http.StatusOK)
	return nil
}

// createBucket makes the bucket's directory and syncs the root. The location that a body may ask for does not matter here.
func (s *Store) createBucket(w http.ResponseWriter, r *http.Request, bucket string) error {
	if err := refuseHeaders(r.Header); err != nil {
		return err
	}
	if err := drain(r); err != nil {
		return err
	}
	ended, err := s.makeBucketAlone(r.Context(), bucket)
	s.sweepAll(ended)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/"+bucket)
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
		return refuse(http.StatusConflict, "BucketAlreadyOwnedByYou", "The bucket %s exists already.", bucket)
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
	return refuse(http.StatusConflict, "BucketNotEmpty", "The bucket %s is not empty: there are objects, or other files, in it.", bucket)
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
