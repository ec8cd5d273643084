package file

import (
	"cmp"
	"encoding/xml"
	"errors"
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
	Sums         []sumElement

	ChecksumType string `xml:",omitempty"`
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
	d, err := directivesOf(r.Header)
	if err != nil {
		return err
	}
	algorithm, err := namedAlgorithm(r.Header, checksumAlgorithm)
	if err != nil {
		return err
	}
	if src.same(n) && !d.metadata && r.Header.Get(redirect) == "" {
		return invalidRequest("This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, " +
			"storage class, website redirect location or encryption attributes.")
	}
	g, err := d.givenOf(r.Header)
	if err != nil {
		return err
	}
	if err := drain(r); err != nil {
		return err
	}
	if err := s.needBucket(n.bucket); err != nil {
		return unchanged("looking for the bucket", err)
	}
	t, from, err := s.copyToTemp(src, copying{sum: func(m *meta) string { return cmp.Or(algorithm, m.sum().name, defaultSum) }})
	if err != nil {
		return err
	}
	defer t.discard()
	t.meta.given = d.merge(g, from.given)
	if err := t.seal(); err != nil {
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
		XMLName: xml.Name{Local: element}, XMLNS: xmlns, ETag: t.meta.quotedETag(), Sums: t.meta.sum().elements(), ChecksumType: t.meta.sum().kind(),
		LastModified: t.meta.modified().UTC().Truncate(time.Second).Format(xmlTime),
	}
}

// errSource says that another program changed the source in place.
var errSource = errors.New("the source was changed while it was copied")

// A copying is what a copy is to have of its source.
type copying struct {
	span func(*meta) (off, n int64, err error) // nil: all of it
	sum  func(*meta) string                    // the algorithm of its checksum
}

// copyToTemp copies a source, or a part of it, into a new temporary file. It reads one open file: a write that replaces the source meanwhile
// does not show.
func (s *Store) copyToTemp(src copySource, c copying) (_ *temp, _ *meta, err error) {
	fd, m, err := s.openFD(src.name)
	if err != nil {
		return nil, nil, unchanged("opening the source", err)
	}
	defer unix.Close(fd)
	if err := src.judge(m); err != nil {
		return nil, nil, err
	}
	off, n := int64(0), m.size
	if c.span != nil {
		if off, n, err = c.span(m); err != nil {
			return nil, nil, err
		}
	}
	if n > maxObject {
		return nil, nil, invalidRequest("The specified copy source is larger than the maximum allowable size for a copy source: %d", int64(maxObject))
	}
	t, err := s.newTemp()
	if err != nil {
		return nil, nil, unchanged("making a temporary file", err)
	}
	if err = t.copyPart(fd, m, off, n, c); err != nil {
		t.discard()
		return nil, nil, unchanged("copying", err)
	}
	return t, m, nil
}

// copyPart fills t, its ETag and its checksum. The MD5 of a whole object is known if nothing but a PUT has made it, and its checksum
// if it was taken of the content.
func (t *temp) copyPart(src int, m *meta, off, n int64, c copying) error {
	t.meta.size, t.meta.etag = n, m.etag
	algorithm := c.sum(m)
	known, ok := sumOf(m.sums, algorithm)
	if ok = ok && c.span == nil && known.kind() == fullObject; ok {
		algorithm = ""
	}
	taken := newTaker(c.span != nil || strings.Contains(m.etag, "-"), algorithm)
	if err := t.copyFrom(src, off, n, taken); err != nil {
		return err
	}
	if taken.md5 != nil {
		t.meta.etag = taken.etag()
	}
	if t.meta.sums = taken.sums(); ok {
		t.meta.sums = []sum{known}
	}
	var now unix.Stat_t
	if err := t.s.sys.fstat(src, &now); err != nil {
		return err
	}
	if !m.dir && (now.Size != m.size || mtimeOf(&now) != m.mtime) {
		return errSource
	}
	return nil
}

// copyFrom appends n bytes of an open file, from off on, to t. Where nothing is wanted of them the kernel does it by itself, and some
// file systems then share the blocks.
func (t *temp) copyFrom(src int, off, n int64, taken *taker) error {
	if taken.idle() {
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
		_, _ = taken.Write(buf[:got]) // never fails
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
