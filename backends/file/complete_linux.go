package file

import (
	"cmp"
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
	"time"

	"golang.org/x/sys/unix"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

type completeDocument struct {
	XMLName xml.Name        `xml:"CompleteMultipartUpload"`
	Parts   []completeEntry `xml:"Part"`
}

type completeEntry struct {
	PartNumber []int
	ETag       []string
	Others     []sumElement `xml:",any"`
}

type completeResult struct {
	XMLName  xml.Name `xml:"CompleteMultipartUploadResult"`
	XMLNS    string   `xml:"xmlns,attr"`
	Location string
	Bucket   string
	Key      string
	ETag     string
	Sums     []sumElement

	ChecksumType string `xml:",omitempty"`
}

// A chosen is a part as a Complete names it.
type chosen struct {
	number int
	etag   string // without quotes
	sums   []sum
	meta   *meta // once it was looked at
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
	f, err := finalOf(r.Header)
	if err != nil {
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
	m, err := s.complete(r, n, id, list, f, c)
	if err != nil {
		return err
	}
	result := completeResult{
		XMLNS: xmlns, Location: location(r, n), Bucket: n.bucket, Key: n.key(), ETag: m.quotedETag(), Sums: m.sum().elements(),
	}
	if len(result.Sums) > 0 {
		result.ChecksumType = m.sum().kind()
	}
	writeXML(w, r, http.StatusOK, result)
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
		list = append(list, chosen{number: p.PartNumber[0], etag: strings.Trim(strings.TrimSpace(p.ETag[0]), `"`), sums: p.sums()})
		if list[i].number < 1 {
			return nil, refuse(http.StatusBadRequest, "InvalidArgument", "PartNumber must be >= 1").because("It is %d.", list[i].number)
		}
		if i > 0 && list[i].number <= list[i-1].number {
			return nil, refuse(http.StatusBadRequest, "InvalidPartOrder",
				"The list of parts was not in ascending order. Parts must be ordered by part number.").
				because("Part %d comes after part %d.", list[i].number, list[i-1].number)
		}
	}
	return list, nil
}

// sums are the checksums with which a part is named.
func (e completeEntry) sums() (sums []sum) {
	for _, o := range e.Others {
		name, ok := strings.CutPrefix(o.XMLName.Local, sumElementPrefix)
		if _, known := checksum.ByName(name); ok && known {
			sums = append(sums, sum{name: name, value: o.Value})
		}
	}
	return sums
}

func invalidPart(p chosen) *apiError {
	return refuse(http.StatusBadRequest, "InvalidPart", "One or more of the specified parts could not be found.  "+
		"The part may not have been uploaded, or the specified entity tag may not match the part's entity tag.").
		because("It is part %d, with the ETag %q.", p.number, p.etag)
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

// complete does it, and returns what is recorded of the object. The caller holds the upload's lock.
func (s *Store) complete(r *http.Request, n name, id string, list []chosen, f final, c conditions) (*meta, error) {
	u, err := s.openUpload(id, n)
	e, _ := errors.AsType[*apiError](err)
	switch {
	case err == nil:
		defer unix.Close(u.dir)
	case e == nil || e.status != http.StatusNotFound:
		return nil, unchanged("looking for the upload", err)
	}
	etag, err := etagOf(list)
	if err != nil && u == nil {
		err = noSuchUpload()
	}
	if err != nil {
		return nil, err
	}
	m, err := s.completedBefore(n, id)
	switch {
	case err != nil:
		return nil, err
	case m != nil && m.etag == etag:
	case m != nil || u == nil:
		return nil, noSuchUpload()
	default:
		if m, err = s.assemble(r, u, n, list, etag, f, c); err != nil {
			return nil, err
		}
	}
	if u != nil && s.end(u) == nil { // or the next Open ends it: its object is there, which the client is told
		_ = s.sweep(u.id)
	}
	return m, nil
}

// completedBefore returns what is recorded of the object if this upload has made it, durable by now, and nil if not.
func (s *Store) completedBefore(n name, id string) (*meta, error) {
	if !validUploadID(id) {
		return nil, nil
	}
	dir, err := s.walk(n.bucket, n.dirs)
	if err == errNoBucket || err == errNoDir {
		return nil, nil
	} else if err != nil {
		return nil, unchanged("opening the object's directory", err)
	}
	defer unix.Close(dir)
	fd, m, err := s.openWithMeta(dir, n.base)
	if err == errNotRegular || missing(err) {
		return nil, nil
	} else if err != nil {
		return nil, unchanged("reading the object's metadata", err)
	}
	_ = unix.Close(fd)
	if m.upload != id {
		return nil, nil
	}
	if err := s.sys.fsync(dir); err != nil {
		return nil, unknown("syncing the object's directory", err)
	}
	return m, nil
}

// assemble copies the parts into one file and commits it as putObject does.
func (s *Store) assemble(r *http.Request, u *upload, n name, list []chosen, etag string, f final, c conditions) (*meta, error) {
	if err := f.agrees(u); err != nil {
		return nil, err
	}
	size, err := s.checkParts(u, list)
	if err != nil {
		return nil, err
	}
	if err := checkSize(r.Header.Get("X-Amz-Mp-Object-Size"), size); err != nil {
		return nil, err
	}
	t, err := s.newTemp()
	if err != nil {
		return nil, unchanged("making a temporary file", err)
	}
	defer t.discard()
	t.meta = meta{size: size, etag: etag, upload: u.id, given: u.given, parts: u.partsRecord(list)}
	if err := t.appendParts(u, list, f); err != nil {
		return nil, unchanged("copying the parts", err)
	}
	if err := t.seal(); err != nil {
		return nil, unchanged("writing the object", err)
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
	return &t.meta, s.commit(r, t, n, c)
}

// checkSize holds the size that a Complete says its object will have against that of the parts.
func checkSize(said string, size int64) error {
	if said == "" {
		return nil
	}
	switch n, err := strconv.ParseInt(said, 10, 64); {
	case err != nil:
		return invalidRequest("Value for x-amz-mp-object-size header is invalid: '%s'", said)
	case n < 0:
		return invalidRequest("Value for x-amz-mp-object-size header is less than zero: '%d'", n)
	case n != size:
		return invalidRequest("The provided 'x-amz-mp-object-size' header value %d does not match what was computed: %d", n, size)
	}
	return nil
}

// checkParts holds the list against the parts that are there. It notes what is recorded of them and returns the sum of their sizes.
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
		p.meta = m
		if err := u.checkSums(*p); err != nil {
			return 0, err
		}
		if m.size < s.minPart && i < len(list)-1 {
			return 0, refuse(http.StatusBadRequest, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size").
				because("Part %d has %d bytes; every part but the last must have at least %d.", p.number, m.size, s.minPart)
		}
		size += m.size
	}
	return size, nil
}

// appendParts copies the parts to t, and finds out the object's checksum, which is to be what the Complete says it is.
func (t *temp) appendParts(u *upload, list []chosen, f final) error {
	whole, taken := u.whole(list), newTaker(false)
	if whole.name == "" {
		taken = newTaker(false, cmp.Or(u.algorithm, defaultSum))
	} else if err := f.judge(u, whole, len(list)); err != nil {
		return err
	}
	for _, p := range list {
		if err := t.appendPart(u, p, taken); err != nil {
			return err
		}
	}
	if whole.name == "" {
		whole = taken.sums()[0]
		if err := f.judge(u, whole, len(list)); err != nil {
			return err
		}
	}
	t.meta.sums = []sum{whole}
	return nil
}

func (t *temp) appendPart(u *upload, p chosen, taken *taker) error {
	fd, err := t.s.sys.openat(u.dir, partName(p.number), openFile, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return t.copyFrom(fd, 0, p.meta.size, taken)
}

// abortUpload ends an upload: unlinkat(up, "upload") is the effect, fsync(up) makes it durable, and then its parts go.
func (s *Store) abortUpload(w http.ResponseWriter, r *http.Request, n name, q url.Values) error {
	if err := refuseConditions(r.Header, "AbortMultipartUpload"); err != nil {
		return err
	}
	initiated, asked, err := initiatedOf(r.Header)
	if err != nil {
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
	if asked && initiated.Before(time.Now()) && !initiated.Equal(u.initiated.Truncate(time.Second)) { // S3 ignores a date to come
		return preconditionFailed("x-amz-if-match-initiated-time")
	}
	if err := s.end(u); err != nil {
		return err
	}
	_ = s.sweep(u.id)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// initiatedOf reads the condition of an Abort, a date as ListMultipartUploads has it.
func initiatedOf(h http.Header) (t time.Time, asked bool, err error) {
	v := h.Get("X-Amz-If-Match-Initiated-Time")
	if v == "" {
		return t, false, nil
	}
	if t, err = http.ParseTime(v); err != nil {
		return t, false, invalidArgument("x-amz-if-match-initiated-time is not a date of HTTP: %q.", v)
	}
	return t, true, nil
}
