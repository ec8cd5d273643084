package file

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

type completeDocument struct {
	XMLName xml.Name        `xml:"CompleteMultipartUpload"`
	Parts   []completeEntry `xml:"Part"`
}

type completeEntry struct {
	PartNumber []int
	ETag       []string
}

type completeResult struct {
	XMLName  xml.Name `xml:"CompleteMultipartUploadResult"`
	XMLNS    string   `xml:"xmlns,attr"`
	Location string
	Bucket   string
	Key      string
	ETag     string
}

// A chosen is a part as a Complete names it.
type chosen struct {
	number int
	etag   string // without quotes
	size   int64  // once it was looked at
}

// completeUpload makes an object of the parts of an upload. As strace shows it, with fd the temporary file and up and dir the
// directories of the upload and of the object:
//
//	                                                   the gate: Body, a list of parts, returned io.EOF
//	openat(root, BUCKET, …)                            is the bucket there?
//	openat(uploads, ID, …) = up                        and openat, fstat, read of its record
//	openat(root, BUCKET, …) …                          and on to the object: is it this upload's already?
//	openat(up, NUMBER), fstat, fgetxattr               of each part
//	openat(tmp, "put-N", …) = fd
//	openat(up, NUMBER), copy_file_range(…, fd) …       of each part, or: pread, write(fd, …) …
//	fstat(fd), fsetxattr(fd, …), fsync(fd)             and on as putObject does, with
//	newfstatat(up, "upload")                           right before the rename: deleting the bucket ends its uploads
//	renameat(tmp, "put-N", dir, NAME)                  the effect
//	fsync(dir)                                         if we crash from here on, the next Open does the rest
//	unlinkat(up, "upload"), fsync(up)                  so that the parts cannot become an object a second time
//	unlinkat(up, NUMBER) …, unlinkat(uploads, ID)      then 200
//
// The object remembers the upload's id. A Complete that is repeated, because its answer was lost, gets the answer again.
func (s *Store) completeUpload(w http.ResponseWriter, r *http.Request, n name, q url.Values) error {
	c, err := conditionsOf(r.Header)
	if err != nil {
		return err
	}
	if err := refuseSums(r.Header); err != nil {
		return err
	}
	list, err := readPartList(r)
	if err != nil {
		return err
	}
	if err := s.needBucket(n.bucket); err != nil {
		return unchanged("looking for the bucket", err)
	}
	id := q.Get("uploadId")
	defer s.uploads.lock(id)()
	etag, err := s.complete(r, n, id, list, c)
	if err != nil {
		return err
	}
	writeXML(w, r, http.StatusOK, completeResult{
		XMLNS: xmlns, Location: location(r, n), Bucket: n.bucket, Key: n.key(), ETag: `"` + etag + `"`,
	})
	return nil
}

// refuseSums refuses a checksum of the whole object: the store would not compare it.
func refuseSums(h http.Header) error {
	for k := range h {
		if sum, ok := strings.CutPrefix(k, "X-Amz-Checksum-"); ok && sum != "Type" && sum != "Algorithm" {
			return notImplemented("The header %s of CompleteMultipartUpload is not implemented by the file store.", strings.ToLower(k))
		}
	}
	return nil
}

func location(r *http.Request, n name) string {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host + "/" + n.bucket + "/" + encodeKey(n.key())
}

func readPartList(r *http.Request) ([]chosen, error) {
	var ask completeDocument
	if err := readDocument(r, &ask); err != nil {
		return nil, err
	}
	if n := len(ask.Parts); n == 0 || n > maxParts {
		return nil, malformedXML("there are %d parts, and there must be 1 to %d", n, maxParts)
	}
	var list []chosen
	for i, p := range ask.Parts {
		if len(p.PartNumber) != 1 || len(p.ETag) != 1 {
			return nil, malformedXML("a Part must have one PartNumber and one ETag")
		}
		list = append(list, chosen{number: p.PartNumber[0], etag: strings.Trim(strings.TrimSpace(p.ETag[0]), `"`)})
		if i > 0 && list[i].number <= list[i-1].number {
			return nil, refuse(http.StatusBadRequest, "InvalidPartOrder",
				"The list of parts is not in ascending order: part %d comes after part %d.", list[i].number, list[i-1].number)
		}
	}
	return list, nil
}

func invalidPart(p chosen) error {
	return refuse(http.StatusBadRequest, "InvalidPart",
		"Part %d with the ETag %q was not found: it was not uploaded, or another one was under its number.", p.number, p.etag)
}

// etagOf is the MD5 of the parts' MD5s, with their number.
func etagOf(list []chosen) (string, error) {
	sum := md5.New()
	for _, p := range list {
		b, err := hex.DecodeString(p.etag)
		if err != nil || len(b) != md5.Size || p.number < 1 || p.number > maxParts {
			return "", invalidPart(p)
		}
		sum.Write(b)
	}
	return fmt.Sprintf("%x-%d", sum.Sum(nil), len(list)), nil
}

// complete does it, and returns the object's ETag. The caller holds the upload's lock.
func (s *Store) complete(r *http.Request, n name, id string, list []chosen, c conditions) (string, error) {
	u, err := s.openUpload(id, n)
	e, _ := errors.AsType[*apiError](err)
	switch {
	case err == nil:
		defer unix.Close(u.dir)
	case e == nil || e.status != http.StatusNotFound:
		return "", unchanged("looking for the upload", err)
	}
	etag, err := etagOf(list)
	if err != nil && u == nil {
		err = noSuchUpload()
	}
	if err != nil {
		return "", err
	}
	before, err := s.completedBefore(n, id)
	switch {
	case err != nil:
		return "", err
	case before == etag:
	case before != "" || u == nil:
		return "", noSuchUpload()
	default:
		if err := s.assemble(r, u, n, list, etag, c); err != nil {
			return "", err
		}
	}
	if u != nil && s.end(u) == nil { // or the next Open ends it: its object is there, which the client is told
		_ = s.sweep(u.id)
	}
	return etag, nil
}

// completedBefore returns the ETag of the object if this upload has made it, durable by now.
func (s *Store) completedBefore(n name, id string) (string, error) {
	if !validUploadID(id) {
		return "", nil
	}
	dir, err := s.walk(n.bucket, n.dirs)
	if err == errNoBucket || err == errNoDir {
		return "", nil
	} else if err != nil {
		return "", unchanged("opening the object's directory", err)
	}
	defer unix.Close(dir)
	fd, m, err := s.openWithMeta(dir, n.base)
	if err == errNotRegular || missing(err) {
		return "", nil
	} else if err != nil {
		return "", unchanged("reading the object's metadata", err)
	}
	_ = unix.Close(fd)
	if m.upload != id {
		return "", nil
	}
	if err := s.sys.fsync(dir); err != nil {
		return "", unknown("syncing the object's directory", err)
	}
	return m.etag, nil
}

// assemble copies the parts into one file and commits it as putObject does.
func (s *Store) assemble(r *http.Request, u *upload, n name, list []chosen, etag string, c conditions) error {
	size, err := s.checkParts(u, list)
	if err != nil {
		return err
	}
	if v := r.Header.Get("X-Amz-Mp-Object-Size"); v != "" && v != strconv.FormatInt(size, 10) {
		return refuse(http.StatusBadRequest, "InvalidRequest", "The parts have %d bytes; x-amz-mp-object-size says %s.", size, v)
	}
	t, err := s.newTemp()
	if err != nil {
		return unchanged("making a temporary file", err)
	}
	defer t.discard()
	t.meta.size, t.meta.etag, t.meta.upload = size, etag, u.id
	for _, p := range list {
		if err := t.appendPart(u, p); err != nil {
			return unchanged("copying the parts", err)
		}
	}
	if err := t.seal(u.headers); err != nil {
		return unchanged("writing the object", err)
	}
	t.mayCommit = func() error {
		var st unix.Stat_t
		if err := s.sys.fstatat(u.dir, recordFile, &st); errors.Is(err, fs.ErrNotExist) {
			return noSuchUpload()
		} else if err != nil {
			return unchanged("looking for the upload", err)
		}
		return nil
	}
	return s.commit(r, t, n, c)
}

// checkParts holds the list against the parts that are there. It notes their sizes and returns the sum.
func (s *Store) checkParts(u *upload, list []chosen) (size int64, err error) {
	for i := range list {
		p := &list[i]
		fd, m, err := s.openWithMeta(u.dir, partName(p.number))
		if missing(err) || err == errNotRegular {
			return 0, invalidPart(*p)
		} else if err != nil {
			return 0, unchanged("reading a part's metadata", err)
		}
		_ = unix.Close(fd)
		if m.etag != p.etag {
			return 0, invalidPart(*p)
		}
		if m.size < s.minPart && i < len(list)-1 {
			return 0, refuse(http.StatusBadRequest, "EntityTooSmall",
				"Part %d has %d bytes; every part but the last must have at least %d.", p.number, m.size, s.minPart)
		}
		p.size = m.size
		size += m.size
	}
	return size, nil
}

func (t *temp) appendPart(u *upload, p chosen) error {
	fd, err := t.s.sys.openat(u.dir, partName(p.number), openFile, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return t.copyFrom(fd, 0, p.size, nil)
}

// abortUpload ends an upload: unlinkat(up, "upload") is the effect, fsync(up) makes it durable, and then its parts go.
func (s *Store) abortUpload(w http.ResponseWriter, r *http.Request, n name, q url.Values) error {
	if err := refuseConditions(r.Header, "AbortMultipartUpload"); err != nil {
		return err
	}
	if err := drain(r); err != nil {
		return err
	}
	if err := s.needBucket(n.bucket); err != nil {
		return unchanged("looking for the bucket", err)
	}
	id := q.Get("uploadId")
	defer s.uploads.lock(id)()
	u, err := s.openUpload(id, n)
	if err != nil {
		return unchanged("looking for the upload", err)
	}
	defer unix.Close(u.dir)
	if err := s.end(u); err != nil {
		return err
	}
	_ = s.sweep(u.id)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
