package file

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// overrides are the parameters with which a GET asks for other headers than the object's.
var overrides = []string{
	"response-content-type", "response-cache-control", "response-content-disposition",
	"response-content-encoding", "response-content-language", "response-expires",
}

// getObject answers GET and HEAD. Content and metadata come from one open file: what replaces it meanwhile changes neither.
func (s *Store) getObject(w http.ResponseWriter, r *http.Request, n name, q url.Values) error {
	number, err := askedPartOf(r, q)
	if err != nil {
		return err
	}
	f, m, err := s.openObject(n)
	if err != nil {
		return err
	}
	defer f.Close()
	p, err := m.part(number)
	if err != nil {
		return err
	}
	m.describe(w.Header())
	override(w.Header(), q)
	if p.count > 0 {
		w.Header().Set(partsCount, strconv.Itoa(p.count))
	}
	asked, satisfiable := readConditions(r, m.size)
	g := &getWriter{ResponseWriter: w, r: r, meta: m, size: m.size}
	content := io.ReadSeeker(f)
	switch {
	case number == 0:
		g.unsatisfiable = !satisfiable
	case p.size == 0: // no range is empty
		content, g.size = strings.NewReader(""), 0
	default:
		asked.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.first, p.first+p.size-1))
	}
	if strings.EqualFold(r.Header.Get("X-Amz-Checksum-Mode"), "ENABLED") {
		g.sum, g.partial = p.sum, number > 0
	}
	http.ServeContent(g, asked, "", m.modified(), content)
	return nil
}

func override(h http.Header, q url.Values) {
	for _, o := range overrides {
		if v := q.Get(o); v != "" {
			h.Set(strings.TrimPrefix(o, "response-"), v)
		}
	}
}

// describe puts what is recorded of an object into the headers of an answer, but for its checksum.
func (m *meta) describe(h http.Header) {
	h.Set("ETag", m.quotedETag())
	h.Set("Content-Type", defaultType)
	if m.dir {
		h.Set("Content-Type", directoryType)
	}
	for k, v := range m.headers {
		h.Set(k, v)
	}
	h.Set(storageClass, standard)
	if len(m.tags) > 0 {
		h.Set(taggingCount, strconv.Itoa(len(m.tags)))
	}
}

const (
	partsCount   = "X-Amz-Mp-Parts-Count"
	taggingCount = "X-Amz-Tagging-Count"
)

// askedPartOf reads the part that a read is for, 0 for the whole object.
func askedPartOf(r *http.Request, q url.Values) (int, error) {
	if !q.Has("partNumber") {
		return 0, nil
	}
	number, err := askedPart(q)
	if err == nil && r.Header.Get("Range") != "" {
		err = invalidRequest("Cannot specify both Range header and partNumber query parameter")
	}
	return number, err
}

// An objectPart is what a read of one part gives, or of the whole.
type objectPart struct {
	first, size int64
	sum         sum
	count       int // of the object's parts; 0 if it was not uploaded in parts, or was not asked for a part
}

// part finds a part of the object. One that was not uploaded in parts is its own first.
func (m *meta) part(number int) (p objectPart, err error) {
	sizes := m.sizesOf()
	switch {
	case number == 0, number == 1 && len(sizes) == 0:
		return objectPart{size: m.size, sum: m.sum()}, nil
	case number > max(1, len(sizes)):
		return p, refuse(http.StatusRequestedRangeNotSatisfiable, "InvalidPartNumber", "The requested partnumber is not satisfiable.").
			because("It is %d, and the object has %d.", number, max(1, len(sizes)))
	}
	for _, size := range sizes[:number-1] {
		p.first += size
	}
	p.size, p.sum, p.count = sizes[number-1], m.partSum(number-1), len(sizes)
	return p, nil
}

// openObject opens an object and reads what is recorded of it.
func (s *Store) openObject(n name) (*os.File, *meta, error) {
	fd, m, err := s.openFD(n)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), n.base), m, nil
}

func (s *Store) openFD(n name) (int, *meta, error) {
	dir, err := s.walk(n.bucket, n.dirs)
	switch {
	case err == errNoBucket:
		return -1, nil, noSuchBucket(n.bucket)
	case err == errNoDir:
		return -1, nil, noSuchKey()
	case err != nil:
		return -1, nil, err
	}
	defer unix.Close(dir)
	if n.isDir() {
		return s.openMark(dir)
	}
	fd, m, err := s.openWithMeta(dir, n.base)
	if errors.Is(err, errNotRegular) || missing(err) {
		return -1, nil, noSuchKey()
	}
	return fd, m, err
}

// openWithMeta opens a regular file and reads what is recorded of it.
func (s *Store) openWithMeta(dir int, base string) (int, *meta, error) {
	for {
		fd, st, err := s.openRegular(dir, base)
		if err != nil {
			return -1, nil, err
		}
		m, err := s.metaOf(fd, st)
		if err == nil {
			m.size = st.Size
			return fd, m, nil
		}
		_ = unix.Close(fd)
		if err != errReplaced { // each turn has seen another version go: this ends when the writers do
			return -1, nil, err
		}
	}
}

var errNotRegular = errors.New("not a regular file")

// openRegular opens a file if it is a regular one.
func (s *Store) openRegular(dir int, base string) (int, *unix.Stat_t, error) {
	fd, err := s.sys.openat(dir, base, openFile, 0)
	if err != nil {
		return -1, nil, err
	}
	st := &unix.Stat_t{}
	if err = s.sys.fstat(fd, st); err == nil && !regular(st) {
		err = errNotRegular
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, err
	}
	return fd, st, nil
}

// readConditions returns r as [http.ServeContent] is to see it. S3 takes ETags without quotes, and takes a Range that
// it cannot read, or that names several ranges, for none at all. It also says whether the one range can be had.
func readConditions(r *http.Request, size int64) (asked *http.Request, satisfiable bool) {
	asked = &http.Request{Method: r.Method, Header: r.Header.Clone()}
	for _, k := range []string{"If-Match", "If-None-Match"} {
		if v := r.Header.Get(k); v != "" {
			asked.Header.Set(k, quoted(v))
		}
	}
	well, satisfiable := oneRange(r.Header.Get("Range"), size)
	if !well || satisfiable && size == 0 {
		asked.Header.Del("Range")
		return asked, true
	}
	return asked, satisfiable || r.Header.Get("If-Range") != ""
}

func quoted(list string) string {
	var tags []string
	for t := range strings.SplitSeq(list, ",") {
		if t = strings.TrimSpace(t); t != "" && t != "*" && !strings.HasSuffix(t, `"`) {
			t = `"` + t + `"`
		}
		tags = append(tags, t)
	}
	return strings.Join(tags, ", ")
}

// oneRange says whether a Range header is one well-formed range of bytes, and whether any of it lies in an object of this size.
func oneRange(header string, size int64) (well, satisfiable bool) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(spec, "-")
	if !ok || !dash || strings.Trim(first+last, "0123456789") != "" || first+last == "" {
		return false, false
	}
	from, fromErr := strconv.ParseInt(first, 10, 64)
	to, toErr := strconv.ParseInt(last, 10, 64)
	switch {
	case first == "":
		return toErr == nil, to > 0 // also of an empty object: RFC 9110, section 14.1.2
	case fromErr != nil || last != "" && (toErr != nil || to < from):
		return false, false
	}
	return true, from < size
}

// A getWriter gives [http.ServeContent]'s bare refusals S3's form. It passes ReadFrom on, which is what lets the kernel send the file
// by itself.
type getWriter struct {
	http.ResponseWriter
	r             *http.Request
	meta          *meta
	size          int64 // of what a plain 200 sends
	sum           sum   // that the client wants to see
	partial       bool  // it is of what a 206 sends
	unsatisfiable bool  // ServeContent has another opinion of empty objects and of bytes=-0
	refused       bool  // the answer is written: what ServeContent adds is not for the client
}

func (w *getWriter) WriteHeader(status int) {
	switch {
	case status == http.StatusRequestedRangeNotSatisfiable, w.unsatisfiable && (status == http.StatusOK || status == http.StatusPartialContent):
		w.refuse(refuse(http.StatusRequestedRangeNotSatisfiable, "InvalidRange", "The requested range is not satisfiable").
			because("The object has %d bytes.", w.meta.size))
		return
	case status == http.StatusPreconditionFailed:
		w.refuse(preconditionFailed("If-Match or If-Unmodified-Since"))
		return
	case status == http.StatusOK && w.Header().Get("Content-Length") == "": // ServeContent leaves it out where there is a Content-Encoding
		w.Header().Set("Content-Length", strconv.FormatInt(w.size, 10))
	}
	if status == http.StatusOK || status == http.StatusPartialContent && w.partial {
		w.sum.tell(w.Header())
	}
	w.ResponseWriter.WriteHeader(status)
}

// refuse takes the object's headers off the answer.
func (w *getWriter) refuse(e *apiError) {
	w.refused = true
	h := w.Header()
	for _, k := range kept {
		h.Del(k)
	}
	for k := range h {
		if strings.HasPrefix(k, metaPrefix) {
			h.Del(k)
		}
	}
	for _, k := range []string{"ETag", "Last-Modified", "Content-Range", "X-Content-Type-Options", storageClass, taggingCount, partsCount} {
		h.Del(k)
	}
	if e.status == http.StatusRequestedRangeNotSatisfiable {
		h.Set("Content-Range", "bytes */"+strconv.FormatInt(w.meta.size, 10))
	}
	writeError(w.ResponseWriter, w.r, e)
}

func (w *getWriter) Write(p []byte) (int, error) {
	if w.refused {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

func (w *getWriter) ReadFrom(src io.Reader) (int64, error) {
	if w.refused {
		return io.Copy(io.Discard, src)
	}
	return io.Copy(w.ResponseWriter, src)
}
