package file

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
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
	directoryType   = "application/x-directory" // of an object whose key ends with a slash

	storageClass = "X-Amz-Storage-Class"
	standard     = "STANDARD"
	redirect     = "X-Amz-Website-Redirect-Location"
)

// kept are the headers of a PUT, besides the user metadata, that a GET gives back.
var kept = []string{"Content-Type", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Expires", redirect}

// meta is what is recorded of an object besides its content.
type meta struct {
	etag  string // without quotes
	size  int64
	mtime int64 // of the file, in nanoseconds since 1970
	given
	sums   []sum  // of the content; of an object one at most
	upload string // the id of the upload that the object was assembled from, if it was
	parts  parts  // of such an object
	dir    bool   // it is recorded of a directory; not written
}

// A given is what a write gives an object besides its content.
type given struct {
	headers map[string]string
	tags    []tag
}

func (m *meta) quotedETag() string { return `"` + m.etag + `"` }

func (m *meta) modified() time.Time { return time.Unix(0, m.mtime) }

// sum is the object's checksum, if it has one.
func (m *meta) sum() sum {
	if len(m.sums) == 0 {
		return sum{}
	}
	return m.sums[0]
}

// givenOf takes from a write what a GET gives back.
func givenOf(h http.Header) (g given, err error) {
	if v := h.Get(storageClass); v != "" && v != standard {
		return g, refuse(http.StatusBadRequest, "InvalidStorageClass", "The storage class you specified is not valid").
			because("The file store has %s alone, not %q.", standard, v)
	}
	if v := h.Get(redirect); v != "" && !strings.HasPrefix(v, "/") && !strings.HasPrefix(v, "http://") && !strings.HasPrefix(v, "https://") {
		return g, refuse(http.StatusBadRequest, "InvalidRedirectLocation", "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.")
	}
	if g.headers, err = headersOf(h); err != nil {
		return g, err
	}
	g.tags, err = tagsOf(h)
	return g, err
}

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
		return nil, refuse(http.StatusBadRequest, "MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size").
			because("The user metadata has %d bytes; at most %d are allowed.", size, maxUserMetadata)
	}
	return keep, nil
}

func metadataTooLarge(size int) error {
	return refuse(http.StatusBadRequest, "MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size").
		because("All metadata has %d bytes as the file store writes it; at most %d are allowed.", size, maxSide)
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
	encodeSums(q, m.sums)
	m.parts.encode(q)
	m.given.encode(q)
	return []byte(q.Encode())
}

func (g given) encode(q url.Values) {
	for k, v := range g.headers {
		q.Set(strings.ToLower(k), v)
	}
	if len(g.tags) > 0 {
		q.Set("tagging", encodeTags(g.tags))
	}
}

func decodeGiven(q url.Values) given {
	tags, _ := decodeTags(q.Get("tagging"))
	return given{headers: decodeHeaders(q), tags: tags}
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
	m := &meta{etag: q.Get("etag"), given: decodeGiven(q), sums: decodeSums(q), upload: q.Get("upload"), parts: decodeParts(q)}
	var sizeErr, mtimeErr error
	m.size, sizeErr = strconv.ParseInt(q.Get("size"), 10, 64)
	m.mtime, mtimeErr = strconv.ParseInt(q.Get("mtime"), 10, 64)
	if sizeErr != nil || mtimeErr != nil {
		return nil, false
	}
	return m, true
}

// metaOf returns what is recorded of an open file, or what can be said of one that another program wrote.
func (s *Store) metaOf(fd int, st *unix.Stat_t) (*meta, error) {
	text, _, err := s.record(fd, st)
	if err != nil {
		return nil, err
	}
	return believe(text, st), nil
}

// believe reads a record of a file, which counts while the file is the one it was made of.
func believe(text []byte, st *unix.Stat_t) *meta {
	if m, ok := decodeMeta(text); ok && m.size == st.Size && m.mtime == mtimeOf(st) {
		return m
	}
	return foreignMeta(st)
}

// foreignMeta describes a file that another program wrote. Its ETag changes with the file as far as the file system tells, and has
// the form of an upload in parts: nobody will compare it with an MD5.
func foreignMeta(st *unix.Stat_t) *meta {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %d", st.Ino, mtimeOf(st), st.Size))
	return &meta{etag: hex.EncodeToString(sum[:16]) + "-1", size: st.Size, mtime: mtimeOf(st)}
}

func mtimeOf(st *unix.Stat_t) int64 { return st.Mtim.Nano() }
