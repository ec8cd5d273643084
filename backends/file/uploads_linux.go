package file

import (
	"context"
	"crypto/rand"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	recordFile = "upload"
	minPart    = 5 << 20 // bytes of every part but the last: S3's limit
	maxParts   = 10000
)

// An upload is one that was created, and neither completed nor aborted since: its record is there.
type upload struct {
	id          string
	bucket, key string
	initiated   time.Time
	given
	algorithm string // of its checksums, as the client has named it; "" if it has not
	kind      string // fullObject or composite, "" without an algorithm
	dir       int    // open on uploads/ID
}

func (u *upload) encode() []byte {
	q := url.Values{
		"v":         {metaVersion},
		"bucket":    {u.bucket},
		"key":       {u.key},
		"initiated": {strconv.FormatInt(u.initiated.UnixNano(), 10)},
	}
	if u.algorithm != "" {
		q.Set("checksum-algorithm", u.algorithm)
		q.Set("checksum-type", u.kind)
	}
	u.given.encode(q)
	return []byte(q.Encode())
}

func decodeUpload(id string, text []byte) (*upload, error) {
	q, err := url.ParseQuery(string(text))
	if err == nil && q.Get("v") != metaVersion {
		err = errors.New("it is of another version")
	}
	var initiated int64
	if err == nil {
		initiated, err = strconv.ParseInt(q.Get("initiated"), 10, 64)
	}
	if err != nil {
		return nil, fmt.Errorf("the record of upload %s cannot be read: %w", id, err)
	}
	return &upload{
		id: id, bucket: q.Get("bucket"), key: q.Get("key"), initiated: time.Unix(0, initiated), given: decodeGiven(q),
		algorithm: q.Get("checksum-algorithm"), kind: q.Get("checksum-type"), dir: -1,
	}, nil
}

func noSuchUpload() *apiError {
	return refuse(http.StatusNotFound, "NoSuchUpload",
		"The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed.")
}

// newUploadID makes an id that cannot be guessed, for it has 130 random bits, and that sorts by time among those of one key.
func newUploadID(now time.Time) string { return fmt.Sprintf("%016X%s", now.UnixNano(), rand.Text()) }

func validUploadID(id string) bool {
	return len(id) == 16+26 && strings.Trim(id, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

type createResult struct {
	XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
	XMLNS    string   `xml:"xmlns,attr"`
	Bucket   string
	Key      string
	UploadID string `xml:"UploadId"`
}

// createUpload begins an upload in parts. As strace shows it, with fd the temporary file and dir the upload's directory:
//
//	                                                   the gate: Body, which is empty, returned io.EOF
//	openat(tmp, "put-N", O_WRONLY|O_CREAT|O_EXCL|O_NOFOLLOW) = fd
//	write(fd, …), fsync(fd), fstat(fd)                 its record: bucket, key and metadata
//	mkdirat(uploads, ID), openat(uploads, ID, O_DIRECTORY|O_NOFOLLOW) = dir, fsync(uploads)
//	openat(root, BUCKET, O_DIRECTORY|O_NOFOLLOW)       is the bucket there?
//	renameat(tmp, "put-N", dir, "upload")              the effect
//	fsync(dir)                                         then 200
func (s *Store) createUpload(w http.ResponseWriter, r *http.Request, n name, _ url.Values) error {
	if err := refuseHeaders(r.Header); err != nil {
		return err
	}
	if err := refuseConditions(r.Header, "CreateMultipartUpload"); err != nil {
		return err
	}
	g, err := givenOf(r.Header)
	if err != nil {
		return err
	}
	algorithm, kind, err := checksumsOfUpload(r.Header)
	if err != nil {
		return err
	}
	if err := drain(r); err != nil {
		return err
	}
	now := time.Now()
	u := &upload{id: newUploadID(now), bucket: n.bucket, key: n.key(), initiated: now, given: g, algorithm: algorithm, kind: kind, dir: -1}
	if err := s.makeUpload(u); err != nil {
		return err
	}
	if u.algorithm != "" {
		w.Header().Set(checksumAlgorithm, u.algorithm)
		w.Header().Set(checksumType, u.kind)
	}
	writeXML(w, r, http.StatusOK, createResult{XMLNS: xmlns, Bucket: u.bucket, Key: u.key, UploadID: u.id})
	return nil
}

// refuseConditions refuses what no S3 judges here: to ignore a condition is to write where the client said not to.
func refuseConditions(h http.Header, operation string) error {
	if c, err := conditionsOf(h); err != nil {
		return err
	} else if !c.none() {
		return unjudgedHeader("A condition on %s is not implemented.", operation)
	}
	return nil
}

func (s *Store) makeUpload(u *upload) error {
	text := u.encode()
	if len(text) > maxSide {
		return metadataTooLarge(len(text))
	}
	t, err := s.newTemp()
	if err != nil {
		return unchanged("making a temporary file", err)
	}
	defer t.discard()
	if err := t.writeRecord(text); err != nil {
		return unchanged("writing the upload's record", err)
	}
	if err := s.makeUploadDir(u); err != nil {
		return unchanged("making the upload's directory", err)
	}
	defer unix.Close(u.dir)
	if err = s.enlist(u, t); err == nil {
		if err = s.sys.fsync(u.dir); err != nil {
			err = unknown("syncing the upload's directory", err)
		}
	}
	if err != nil {
		_ = s.sweep(u.id) // nobody knows its id, but a list would tell it
	}
	return err
}

func (t *temp) writeRecord(text []byte) error {
	if err := t.s.sys.writeAll(t.fd, text); err != nil {
		return err
	}
	if err := t.s.sys.fsync(t.fd); err != nil {
		return err
	}
	return t.s.sys.fstat(t.fd, &t.st)
}

// makeUploadDir makes a directory that is no upload yet. If we crash here, the next Open removes it.
func (s *Store) makeUploadDir(u *upload) error {
	err := s.sys.mkdirat(s.uploadsFD, u.id, 0o700)
	if err == nil {
		u.dir, err = s.sys.openat(s.uploadsFD, u.id, openDir, 0)
	}
	if err == nil {
		if err = s.sys.fsync(s.uploadsFD); err == nil {
			return nil
		}
		_ = unix.Close(u.dir)
	}
	_ = s.sys.unlinkat(s.uploadsFD, u.id, unix.AT_REMOVEDIR)
	return err
}

// enlist gives the record its name while no bucket can be deleted.
func (s *Store) enlist(u *upload, record *temp) error {
	s.tree.RLock()
	defer s.tree.RUnlock()
	if err := s.needBucket(u.bucket); err != nil {
		return unchanged("looking for the bucket", err)
	}
	return record.moveTo(u.dir, recordFile)
}

// openUpload opens the directory of an upload of this object. The caller closes it.
func (s *Store) openUpload(id string, n name) (*upload, error) {
	u, err := s.readUpload(id)
	if err != nil {
		return nil, err
	}
	if u == nil {
		return nil, noSuchUpload()
	}
	if u.bucket != n.bucket || u.key != n.key() {
		_ = unix.Close(u.dir)
		return nil, noSuchUpload()
	}
	return u, nil
}

// readUpload returns nil where there is no such upload.
func (s *Store) readUpload(id string) (*upload, error) {
	if !validUploadID(id) {
		return nil, nil
	}
	dir, err := s.sys.openat(s.uploadsFD, id, openDir, 0)
	if missing(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	u, err := s.readRecord(id, dir)
	if u == nil || err != nil {
		_ = unix.Close(dir)
		return nil, err
	}
	u.dir = dir
	return u, nil
}

func (s *Store) readRecord(id string, dir int) (*upload, error) {
	fd, st, err := s.openRegular(dir, recordFile)
	if missing(err) || err == errNotRegular {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text, err := s.sys.readAll(fd, int(min(st.Size, maxSide)))
	if err != nil {
		return nil, err
	}
	return decodeUpload(id, text)
}

// eachUpload hands every upload to each, which must not keep its directory.
func (s *Store) eachUpload(ctx context.Context, each func(*upload) error) error {
	ids, err := s.uploadDirs(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return err
		}
		u, err := s.readUpload(id)
		if err != nil {
			return err
		}
		if u == nil { // gone since
			continue
		}
		err = each(u)
		_ = unix.Close(u.dir)
		if err != nil {
			return err
		}
	}
	return nil
}

// uploadDirs are the names of all directories of uploads, also of those that are half made or half removed.
func (s *Store) uploadDirs(ctx context.Context) (ids []string, err error) {
	dir, err := s.sys.openat(s.uploadsFD, ".", openDir, 0) // a descriptor of our own: reading moves its offset
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	err = s.sys.entries(dir, ctx.Err, func(e entry) error {
		if e.kind == unix.DT_DIR && validUploadID(e.name) {
			ids = append(ids, e.name)
		}
		return nil
	})
	return ids, err
}
