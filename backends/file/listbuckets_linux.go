package file

import (
	"encoding/xml"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const maxBuckets = 10000 // of one answer: S3's limit

type bucketsResult struct {
	XMLName           xml.Name      `xml:"ListAllMyBucketsResult"`
	XMLNS             string        `xml:"xmlns,attr"`
	Owner             owner         `xml:"Owner"`
	Buckets           []bucketEntry `xml:"Buckets>Bucket"`
	ContinuationToken string        `xml:",omitempty"`
	Prefix            string        `xml:",omitempty"`
}

type bucketEntry struct {
	Name         string
	CreationDate string
	BucketRegion string
}

// listBuckets takes every directory in the root for a bucket that has a bucket's name, whoever made it.
func (s *Store) listBuckets(w http.ResponseWriter, r *http.Request, q url.Values) error {
	limit, err := limitOfBuckets(q)
	if err != nil {
		return err
	}
	after, prefix := q.Get("continuation-token"), q.Get("prefix")
	if _, ok := q["continuation-token"]; ok && !validBucket(after) {
		return invalidParameter("continuation-token", after, "The continuation token provided is incorrect")
	}
	var names []string
	c := callerOf(r)
	if region := q.Get("bucket-region"); region == "" || region == c.region {
		if names, err = s.bucketNames(r, func(b string) bool { return strings.HasPrefix(b, prefix) && b > after }); err != nil {
			return err
		}
	}
	result := bucketsResult{XMLNS: xmlns, Owner: c.owner(), Prefix: prefix}
	if len(names) > limit {
		names = names[:limit]
		result.ContinuationToken = names[limit-1]
	}
	for _, b := range names {
		result.Buckets = append(result.Buckets, bucketEntry{Name: b, CreationDate: s.born(b).UTC().Format(xmlTime), BucketRegion: c.region})
	}
	writeXML(w, r, http.StatusOK, result)
	return nil
}

func limitOfBuckets(q url.Values) (int, error) {
	v, ok := q["max-buckets"]
	if !ok {
		return maxBuckets, nil
	}
	n, err := strconv.Atoi(v[0])
	if err != nil || n < 1 || n > maxBuckets {
		return 0, invalidParameter("max-buckets", v[0], "Argument max-buckets must be an integer between 1 and %d.", maxBuckets)
	}
	return n, nil
}

// bucketNames returns the buckets that keep says yes to, in order.
func (s *Store) bucketNames(r *http.Request, keep func(string) bool) (names []string, err error) {
	fd, err := s.sys.openat(s.rootFD, ".", openDir, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	err = s.sys.entries(fd, r.Context().Err, func(e entry) error {
		if e.kind == unix.DT_DIR && validBucket(e.name) && keep(e.name) {
			names = append(names, e.name)
		}
		return nil
	})
	slices.Sort(names)
	return names, err
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
