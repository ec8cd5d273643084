package file

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"hash"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

type copyResult struct {
	XMLName      xml.Name // CopyObjectResult or CopyPartResult
	XMLNS        string   `xml:"xmlns,attr"`
	LastModified string
	ETag         string
}

// copyObject stores a copy of an object. As strace shows it, with src the source and fd the temporary file:
//
//	                                                   the gate: Body, which is empty, returned io.EOF
//	openat(root, BUCKET, O_DIRECTORY|O_NOFOLLOW)       is the bucket there?
//	openat(…, COMPONENT, O_DIRECTORY|O_NOFOLLOW) …     then openat, fstat and fgetxattr of the source: = src
//	openat(tmp, "put-N", O_WRONLY|O_CREAT|O_EXCL|O_NOFOLLOW) = fd
//	copy_file_range(src, …, fd) …                      or: pread(src, …), write(fd, …) …
//	fstat(src)                                         is it still what it was?
//	fstat(fd) …                                        and on as putObject does
func (s *Store) copyObject(w http.ResponseWriter, r *http.Request, n name, _ url.Values) error {
	c, src, err := copyRequest(r.Header)
	if err != nil {
		return err
	}
	replace, err := replacesMetadata(r.Header)
	if err != nil {
		return err
	}
	if src.same(n) && !replace {
		return refuse(http.StatusBadRequest, "InvalidRequest",
			"This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata.")
	}
	headers, err := headersOf(r.Header)
	if err != nil {
		return err
	}
	if err := drain(r); err != nil {
		return err
	}
	if err := s.needBucket(n.bucket); err != nil {
		return unchanged("looking for the bucket", err)
	}
	t, from, err := s.copyToTemp(src, nil)
	if err != nil {
		return err
	}
	defer t.discard()
	if !replace {
		headers = from.headers
	}
	if err := t.seal(headers); err != nil {
		return unchanged("writing the object", err)
	}
	if err := s.commit(r, t, n, c); err != nil {
		return err
	}
	writeXML(w, r, http.StatusOK, t.copyResult("CopyObjectResult"))
	return nil
}

func copyRequest(h http.Header) (conditions, copySource, error) {
	if err := refuseHeaders(h); err != nil {
		return conditions{}, copySource{}, err
	}
	c, err := conditionsOf(h)
	if err != nil {
		return conditions{}, copySource{}, err
	}
	src, err := copySourceOf(h)
	return c, src, err
}

func (t *temp) copyResult(element string) copyResult {
	return copyResult{
		XMLName: xml.Name{Local: element}, XMLNS: xmlns, ETag: t.meta.quotedETag(),
		LastModified: t.meta.modified().UTC().Truncate(time.Second).Format(xmlTime),
	}
}

// errSource says that another program changed the source in place.
var errSource = errors.New("the source was changed while it was copied")

// copyToTemp copies the part of the source that span chooses, or all of it without one, into a new temporary file. It reads one open
// file: a write that replaces the source meanwhile does not show.
func (s *Store) copyToTemp(src copySource, span func(*meta) (off, n int64, err error)) (_ *temp, _ *meta, err error) {
	fd, m, err := s.openFD(src.name)
	if err != nil {
		return nil, nil, unchanged("opening the source", err)
	}
	defer unix.Close(fd)
	if err := src.judge(m); err != nil {
		return nil, nil, err
	}
	off, n := int64(0), m.size
	if span != nil {
		if off, n, err = span(m); err != nil {
			return nil, nil, err
		}
	}
	if n > maxObject {
		return nil, nil, refuse(http.StatusBadRequest, "InvalidRequest", "The source has %d bytes; one copy may have at most %d.", n, int64(maxObject))
	}
	t, err := s.newTemp()
	if err != nil {
		return nil, nil, unchanged("making a temporary file", err)
	}
	if err = t.copyPart(fd, m, off, n, span == nil); err != nil {
		t.discard()
		return nil, nil, unchanged("copying", err)
	}
	return t, m, nil
}

// copyPart fills t and its ETag. The MD5 of a whole object is known if nothing but a PUT has made it.
func (t *temp) copyPart(src int, m *meta, off, n int64, whole bool) error {
	t.meta.size, t.meta.etag = n, m.etag
	var sum hash.Hash
	if !whole || strings.Contains(m.etag, "-") {
		sum = md5.New()
	}
	if err := t.copyFrom(src, off, n, sum); err != nil {
		return err
	}
	if sum != nil {
		t.meta.etag = hex.EncodeToString(sum.Sum(nil))
	}
	var now unix.Stat_t
	if err := t.s.sys.fstat(src, &now); err != nil {
		return err
	}
	if now.Size != m.size || mtimeOf(&now) != m.mtime {
		return errSource
	}
	return nil
}

// copyFrom appends n bytes of an open file, from off on, to t. Where they need no sum the kernel does it by itself, and some file
// systems then share the blocks.
func (t *temp) copyFrom(src int, off, n int64, sum hash.Hash) error {
	if sum == nil {
		done, err := t.clone(src, off, n)
		if err != nil {
			return err
		}
		off, n = off+done, n-done
	}
	buf := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buf)
	for n > 0 {
		got, err := t.s.sys.pread(src, buf[:min(n, int64(len(buf)))], off)
		if err != nil {
			return err
		}
		if got == 0 {
			return errSource
		}
		if sum != nil {
			sum.Write(buf[:got])
		}
		if err := t.s.sys.writeAll(t.fd, buf[:got]); err != nil {
			return err
		}
		off, n = off+int64(got), n-int64(got)
	}
	return nil
}

// clone copies as many of n bytes as copy_file_range does here: none on some file systems.
func (t *temp) clone(src int, off, n int64) (done int64, err error) {
	for done < n {
		got, err := t.s.sys.copyRange(src, off+done, t.fd, int(min(n-done, 1<<30)))
		if got == 0 || cannotClone(err) {
			return done, nil
		} else if err != nil {
			return done, err
		}
		done += int64(got)
	}
	return done, nil
}

func cannotClone(err error) bool {
	for _, e := range []error{unix.EXDEV, unix.ENOSYS, unix.EOPNOTSUPP, unix.EINVAL, unix.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
