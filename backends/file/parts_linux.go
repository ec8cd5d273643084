package file

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

func partName(number int) string { return fmt.Sprintf("%05d", number) }

// partNumber reads what partName wrote, and returns 0 for any other file.
func partNumber(file string) int {
	n, err := strconv.Atoi(file)
	if err != nil || n < 1 || n > maxParts || partName(n) != file {
		return 0
	}
	return n
}

func askedPart(q url.Values) (int, error) {
	n, err := strconv.Atoi(q.Get("partNumber"))
	if err != nil || n < 1 || n > maxParts {
		return 0, refuse(http.StatusBadRequest, "InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive.").
			because("It is %q.", q.Get("partNumber"))
	}
	return n, nil
}

// uploadPart stores one part. As strace shows it, with fd the temporary file and dir the upload's directory:
//
//	openat(root, BUCKET, …)                            is the bucket there?
//	openat(uploads, ID, …)                             and openat, fstat, read of its record: is the upload there?
//	openat(tmp, "put-N", …) = fd, write(fd, …) …       as the body comes
//	                                                   Body returned io.EOF
//	fstat(fd), fsetxattr(fd, "user.fenceproxy", …), fsync(fd)   or a side file, as putObject does
//	openat(uploads, ID, …) = dir                       and its record: is the upload there still?
//	newfstatat(dir, NUMBER), renameat(tmp, "put-N", dir, NUMBER)   the effect, which no reader of the bucket sees
//	fsync(dir)                                         then 200
//	unlinkat(meta, INODE-MTIME)                        of the replaced part, if there are side files
func (s *Store) uploadPart(w http.ResponseWriter, r *http.Request, n name, q url.Values) error {
	if err := refuseHeaders(r.Header); err != nil {
		return err
	}
	u, number, err := s.mayUpload(r.Header, n, q, "UploadPart")
	if err != nil {
		return err
	}
	claimed, err := claimOf(r)
	if err != nil {
		return err
	}
	sums, err := u.sumsOfPart(claimed.name)
	if err != nil {
		return err
	}
	if r.ContentLength > maxObject {
		return tooLarge()
	}
	t, err := s.receive(r, claimed, sums...)
	if err != nil {
		return err
	}
	defer t.discard()
	if err := s.storePart(t, n, u.id, number); err != nil {
		return err
	}
	w.Header().Set("ETag", t.meta.quotedETag())
	if claimed.name != "" || u.algorithm != "" {
		t.meta.sum().tell(w.Header())
		w.Header().Del(checksumType) // S3 says it of objects only
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
	return nil
}

// uploadPartCopy stores a range of an object as a part: the calls of copyObject, pread and write in place of copy_file_range, and then those
// of uploadPart.
func (s *Store) uploadPartCopy(w http.ResponseWriter, r *http.Request, n name, q url.Values) error {
	if err := s.needBucket(n.bucket); err != nil {
		return unchanged("looking for the bucket", err)
	}
	_, src, err := copyRequest(r.Header)
	if err != nil {
		return err
	}
	u, number, err := s.mayUpload(r.Header, n, q, "UploadPartCopy")
	if err != nil {
		return err
	}
	if err := drain(r); err != nil {
		return err
	}
	t, _, err := s.copyToTemp(src, copying{
		span: func(m *meta) (int64, int64, error) { return copyRangeOf(r.Header, m.size) },
		sum:  func(*meta) string { return cmp.Or(u.algorithm, defaultSum) },
	})
	if err != nil {
		return err
	}
	defer t.discard()
	if err := s.storePart(t, n, u.id, number); err != nil {
		return err
	}
	result := t.copyResult("CopyPartResult")
	result.ChecksumType = "" // S3 says it of objects only
	if u.algorithm == "" {
		result.Sums = nil
	}
	writeXML(w, r, http.StatusOK, result)
	return nil
}

// mayUpload judges what can be judged before the part is there. The upload that it returns is not open.
func (s *Store) mayUpload(h http.Header, n name, q url.Values, operation string) (u *upload, number int, err error) {
	if number, err = askedPart(q); err != nil {
		return nil, 0, err
	}
	if err := refuseConditions(h, operation); err != nil {
		return nil, 0, err
	}
	if err := s.needBucket(n.bucket); err != nil {
		return nil, 0, unchanged("looking for the bucket", err)
	}
	if u, err = s.openUpload(q.Get("uploadId"), n); err != nil {
		return nil, 0, unchanged("looking for the upload", err)
	}
	return u, number, unix.Close(u.dir)
}

// storePart makes a received part durable and gives it its number.
func (s *Store) storePart(t *temp, n name, id string, number int) error {
	if err := t.seal(); err != nil {
		return unchanged("writing the part", err)
	}
	dir, replaced, err := s.placePart(t, n, id, number)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := s.sys.fsync(dir); err != nil {
		return unknown("syncing the upload's directory", err)
	}
	if replaced != nil {
		s.dropSide(replaced)
	}
	return nil
}

// placePart renames a part into its upload while nobody completes, aborts or sweeps that.
func (s *Store) placePart(t *temp, n name, id string, number int) (int, *unix.Stat_t, error) {
	defer s.uploads.lock(id)()
	u, err := s.openUpload(id, n)
	if err != nil {
		return -1, nil, unchanged("looking for the upload", err)
	}
	replaced := &unix.Stat_t{}
	err = s.sys.fstatat(u.dir, partName(number), replaced)
	if errors.Is(err, fs.ErrNotExist) {
		replaced, err = nil, nil
	}
	if err == nil {
		err = t.moveTo(u.dir, partName(number))
	}
	if err != nil {
		_ = unix.Close(u.dir)
		return -1, nil, unchanged("looking for the part", err)
	}
	return u.dir, replaced, nil
}

// A part is one that an upload has.
type part struct {
	number int
	meta   *meta
}

// partNumbers are the numbers of the parts that are there, in order.
func (s *Store) partNumbers(ctx context.Context, u *upload) (numbers []int, err error) {
	dir, err := s.sys.openat(u.dir, ".", openDir, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	err = s.sys.entries(dir, ctx.Err, func(e entry) error {
		if n := partNumber(e.name); n > 0 && e.kind == unix.DT_REG {
			numbers = append(numbers, n)
		}
		return nil
	})
	slices.Sort(numbers)
	return numbers, err
}

type partsResult struct {
	XMLName              xml.Name `xml:"ListPartsResult"`
	XMLNS                string   `xml:"xmlns,attr"`
	Bucket               string
	Key                  string
	UploadID             string `xml:"UploadId"`
	Initiator            owner
	Owner                owner
	StorageClass         string
	PartNumberMarker     int
	NextPartNumberMarker int
	MaxParts             int
	IsTruncated          bool
	EncodingType         string `xml:",omitempty"`
	ChecksumAlgorithm    string // "null" where the client has named none, as S3 writes it
	ChecksumType         string
	Parts                []partEntry `xml:"Part"`
}

type partEntry struct {
	PartNumber   int
	LastModified string
	ETag         string
	Size         int64
	Sums         []sumElement
}

// listParts lists the parts of an upload, by their numbers.
func (s *Store) listParts(w http.ResponseWriter, r *http.Request, n name, q url.Values) error {
	most, err := count("max-parts", q.Get("max-parts"), maxList)
	if err != nil {
		return err
	}
	after, err := count("part-number-marker", q.Get("part-number-marker"), 0)
	if err != nil {
		return err
	}
	encode, err := keyEncoding(q.Get("encoding-type"))
	if err != nil {
		return err
	}
	if err := s.needBucket(n.bucket); err != nil {
		return err
	}
	u, err := s.openUpload(q.Get("uploadId"), n)
	if err != nil {
		return err
	}
	defer unix.Close(u.dir)
	parts, more, err := s.partsAfter(r.Context(), u, after, min(most, maxList))
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := s.sys.fstatat(u.dir, recordFile, &st); errors.Is(err, fs.ErrNotExist) { // it ended, and its parts went while they were listed
		return noSuchUpload()
	} else if err != nil {
		return err
	}
	result := partsResult{
		XMLNS: xmlns, Bucket: n.bucket, Key: encode(u.key), UploadID: u.id, Initiator: theOwner, Owner: theOwner, StorageClass: "STANDARD",
		PartNumberMarker: after, MaxParts: min(most, maxList), IsTruncated: more, EncodingType: q.Get("encoding-type"),
	}
	result.ChecksumAlgorithm, result.ChecksumType = u.shown()
	for _, p := range parts {
		result.NextPartNumberMarker = p.number
		shown, _ := sumOf(p.meta.sums, u.algorithm)
		result.Parts = append(result.Parts, partEntry{
			PartNumber: p.number, ETag: p.meta.quotedETag(), Size: p.meta.size, Sums: shown.elements(),
			LastModified: p.meta.modified().UTC().Truncate(time.Second).Format(xmlTime),
		})
	}
	writeXML(w, r, http.StatusOK, result)
	return nil
}

func (s *Store) partsAfter(ctx context.Context, u *upload, after, most int) (parts []part, more bool, err error) {
	numbers, err := s.partNumbers(ctx, u)
	if err != nil || most == 0 {
		return nil, false, err
	}
	for _, number := range numbers {
		if number <= after {
			continue
		}
		if len(parts) == most {
			return parts, true, nil
		}
		fd, m, err := s.openWithMeta(u.dir, partName(number))
		if missing(err) {
			continue
		} else if err != nil {
			return nil, false, err
		}
		_ = unix.Close(fd)
		parts = append(parts, part{number: number, meta: m})
	}
	return parts, false, nil
}

// count reads a parameter, or a header, that is a number.
func count(what, v string, otherwise int) (int, error) {
	if v == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return 0, invalidParameter(what, v, "Provided %s not an integer or within integer range", v)
	} else if n < 0 {
		return 0, invalidParameter(what, v, "Argument %s must be an integer between 0 and 2147483647", v)
	}
	return int(n), nil
}
