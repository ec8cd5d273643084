package file

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	attribute       = "user.fenceproxy"
	metaVersion     = "1"
	metaPrefix      = "X-Amz-Meta-"
	maxUserMetadata = 2 << 10 // bytes of names and values: S3's limit
	maxAttribute    = 64 << 10
	usualAttribute  = 1 << 10 // asked for first: the kernel clears as much memory as it is offered
	maxSide         = 1 << 20 // bytes, also of an upload's record
	defaultType     = "binary/octet-stream"
)

// kept are the headers of a PUT, besides the user metadata, that a GET gives back.
var kept = []string{"Content-Type", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Expires"}

// meta is what is recorded of an object besides its content.
type meta struct {
	etag    string // without quotes
	size    int64
	mtime   int64 // of the file, in nanoseconds since 1970
	headers map[string]string
	upload  string // the id of the upload that the object was assembled from, if it was
}

func (m *meta) quotedETag() string { return `"` + m.etag + `"` }

func (m *meta) modified() time.Time { return time.Unix(0, m.mtime) }

// headersOf takes from a PUT what a GET gives back.
func headersOf(h http.Header) (map[string]string, error) {
	keep := map[string]string{}
	for _, k := range kept {
		if v := strings.Join(h.Values(k), ", "); v != "" {
			keep[k] = v
		}
	}
	// aws-chunked is how the body travelled, not how the object is encoded.
	if enc := withoutToken(keep["Content-Encoding"], "aws-chunked"); enc == "" {
		delete(keep, "Content-Encoding")
	} else {
		keep["Content-Encoding"] = enc
	}
	size := 0
	for k, v := range h {
		if user, ok := strings.CutPrefix(k, metaPrefix); ok {
			keep[k] = strings.Join(v, ",")
			size += len(user) + len(keep[k])
		}
	}
	if size > maxUserMetadata {
		return nil, refuse(http.StatusBadRequest, "MetadataTooLarge", "The user metadata has %d bytes; at most %d are allowed.", size, maxUserMetadata)
	}
	return keep, nil
}

func metadataTooLarge(size int) error {
	return refuse(http.StatusBadRequest, "MetadataTooLarge", "All metadata has %d bytes as the file store writes it; at most %d are allowed.", size, maxSide)
}

func withoutToken(list, token string) string {
	var rest []string
	for t := range strings.SplitSeq(list, ",") {
		if t = strings.TrimSpace(t); t != "" && !strings.EqualFold(t, token) {
			rest = append(rest, t)
		}
	}
	return strings.Join(rest, ", ")
}

// encode writes m as a URL's query: unlike JSON it carries header values that are not UTF-8 unharmed, and unlike a binary form getfattr
// shows it to people.
func (m *meta) encode() []byte {
	q := url.Values{
		"v":     {metaVersion},
		"etag":  {m.etag},
		"size":  {strconv.FormatInt(m.size, 10)},
		"mtime": {strconv.FormatInt(m.mtime, 10)},
	}
	if m.upload != "" {
		q.Set("upload", m.upload)
	}
	encodeHeaders(q, m.headers)
	return []byte(q.Encode())
}

func encodeHeaders(q url.Values, headers map[string]string) {
	for k, v := range headers {
		q.Set(strings.ToLower(k), v)
	}
}

func decodeHeaders(q url.Values) map[string]string {
	headers := map[string]string{}
	for k := range q {
		if h := http.CanonicalHeaderKey(k); strings.HasPrefix(h, metaPrefix) {
			headers[h] = q.Get(k)
		}
	}
	for _, h := range kept {
		if v := q.Get(strings.ToLower(h)); v != "" {
			headers[h] = v
		}
	}
	return headers
}

// decodeMeta reads what encode wrote. Another version, or what some other program wrote there, is no metadata.
func decodeMeta(text []byte) (*meta, bool) {
	q, err := url.ParseQuery(string(text))
	if err != nil || q.Get("v") != metaVersion || q.Get("etag") == "" {
		return nil, false
	}
	m := &meta{etag: q.Get("etag"), headers: decodeHeaders(q), upload: q.Get("upload")}
	var sizeErr, mtimeErr error
	m.size, sizeErr = strconv.ParseInt(q.Get("size"), 10, 64)
	m.mtime, mtimeErr = strconv.ParseInt(q.Get("mtime"), 10, 64)
	if sizeErr != nil || mtimeErr != nil {
		return nil, false
	}
	return m, true
}

// errReplaced says that the open file lost its name while its side file was looked for: the side file may have gone with it.
var errReplaced = errors.New("the object was replaced meanwhile")

// metaOf returns what is recorded of an open file, or what can be said of one that another program wrote.
func (s *Store) metaOf(fd int, st *unix.Stat_t) (*meta, error) {
	text, err := s.readAttribute(fd)
	if err != nil {
		return nil, err
	}
	if text == nil && s.sides.Load() {
		if text, err = s.readSide(st); err != nil {
			return nil, err
		}
		if text == nil {
			// The side file of a replaced object is removed. Its content must not be served as if it never had metadata.
			var now unix.Stat_t
			if err := s.sys.fstat(fd, &now); err != nil {
				return nil, err
			}
			if now.Nlink == 0 {
				return nil, errReplaced
			}
		}
	}
	if m, ok := decodeMeta(text); ok && m.size == st.Size && m.mtime == mtimeOf(st) {
		return m, nil
	}
	return foreignMeta(st), nil
}

// foreignMeta describes a file that another program wrote. Its ETag changes with the file as far as the file system tells, and has
// the form of an upload in parts: nobody will compare it with an MD5.
func foreignMeta(st *unix.Stat_t) *meta {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %d", st.Ino, mtimeOf(st), st.Size))
	return &meta{etag: hex.EncodeToString(sum[:16]) + "-1", size: st.Size, mtime: mtimeOf(st)}
}

func mtimeOf(st *unix.Stat_t) int64 { return st.Mtim.Nano() }

var attributes = sync.Pool{New: func() any { return new([maxAttribute]byte) }}

// readAttribute returns nil where there is no attribute.
func (s *Store) readAttribute(fd int) ([]byte, error) {
	buf := attributes.Get().(*[maxAttribute]byte)
	defer attributes.Put(buf)
	n, err := s.sys.fgetxattr(fd, attribute, buf[:usualAttribute])
	if errors.Is(err, unix.ERANGE) {
		n, err = s.sys.fgetxattr(fd, attribute, buf[:])
	}
	switch {
	case errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return append([]byte{}, buf[:n]...), nil
}

func (s *Store) setAttribute(fd int, text []byte) error {
	if s.forceSide {
		return unix.ENOTSUP
	}
	return s.sys.fsetxattr(fd, attribute, text)
}

// tooSmall says that an attribute cannot be set here, or not one of this size. ENOSPC may also mean that the disk is full: then
// the side file will not get on it either.
func tooSmall(err error) bool {
	for _, e := range []error{unix.ENOTSUP, unix.EPERM, unix.ENOSPC, unix.E2BIG, unix.ERANGE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func sideName(st *unix.Stat_t) string { return fmt.Sprintf("%d-%d", st.Ino, mtimeOf(st)) }

// readSide returns nil where there is no side file.
func (s *Store) readSide(st *unix.Stat_t) ([]byte, error) {
	fd, err := s.sys.openat(s.sideFD, sideName(st), openFile, 0)
	if missing(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return s.sys.readAll(fd, maxSide)
}

// writeSide makes the side file of a temporary file, durably. No object refers to it yet: if we crash here, the next Open removes
// it together with the temporary file.
func (s *Store) writeSide(st *unix.Stat_t, text []byte) error {
	if len(text) > maxSide {
		return metadataTooLarge(len(text))
	}
	s.sides.Store(true)
	fd, err := s.sys.openat(s.sideFD, sideName(st), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := s.sys.writeAll(fd, text); err != nil {
		return err
	}
	if err := s.sys.fsync(fd); err != nil {
		return err
	}
	return s.sys.fsync(s.sideFD)
}

// dropSide removes the side file of a file that has lost its name. One that stays, because we crash here, costs its space: it is
// looked for only by that inode and time, and believed only for that size.
func (s *Store) dropSide(st *unix.Stat_t) {
	if s.sides.Load() {
		_ = s.sys.unlinkat(s.sideFD, sideName(st), 0)
	}
}
