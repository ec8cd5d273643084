package backendtest

import (
	"bytes"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// A client talks to a backend without a network between: what happens at which byte of a body is then the test's to say.
type client struct {
	*testing.T
	backend http.Handler
	whole   bool   // bodies are, where that can be
	bucket  string // made for this test
}

func newClient(t *testing.T, backend http.Handler, whole bool) *client {
	c := &client{T: t, backend: backend, whole: whole}
	c.bucket = c.newBucket()
	return c
}

// newBucket makes a bucket with a name that nobody has, and empties and removes it at the end of the test.
func (c *client) newBucket() string {
	b := "suite-" + strings.ToLower(rand.Text())
	c.want(c.do(http.MethodPut, "/"+b, nil), http.StatusOK, "")
	c.Cleanup(func() { c.removeBucket(b) })
	return b
}

func (c *client) removeBucket(b string) {
	c.abortAll(b)
	for {
		page := c.list(b, url.Values{})
		for _, o := range page.Contents {
			c.want(c.do(http.MethodDelete, target(b, o.Key), nil), http.StatusNoContent, "")
		}
		if !page.IsTruncated {
			break
		}
	}
	c.want(c.do(http.MethodDelete, "/"+b, nil), http.StatusNoContent, "")
}

// An answer is what came back, read whole.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// code is the code of S3's error document, "" if the body is none.
func (a answer) code() string {
	var e struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}
	if xml.Unmarshal(a.body, &e) != nil || e.Message == "" {
		return ""
	}
	return e.Code
}

func (a answer) etag() string { return a.header.Get("ETag") }

// target is the request target of a key: escaped no more than it must be.
func target(bucket, key string) string {
	return (&url.URL{Path: "/" + bucket + "/" + key}).EscapedPath()
}

func (c *client) key(key string) string { return target(c.bucket, key) }

// do sends a request. headers are pairs.
func (c *client) do(method, target string, body io.Reader, headers ...string) answer {
	c.Helper()
	return c.send(request(method, target, body, headers...))
}

func request(method, target string, body io.Reader, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func (c *client) send(r *http.Request) answer {
	c.Helper()
	c.prepare(r)
	w := httptest.NewRecorder()
	c.backend.ServeHTTP(w, r)
	a := answer{status: w.Code, header: w.Result().Header, body: w.Body.Bytes()}
	c.checkForm(r, a)
	return a
}

// prepare does with a write what the proxy does.
func (c *client) prepare(r *http.Request) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return
	}
	b := wholeBody(r)
	if b == nil {
		return
	}
	if q := r.URL.Query(); (q.Has("delete") || q.Has("tagging")) && r.Header.Get("Content-Md5") == "" { // S3 demands it
		sum := md5.Sum(b.content)
		r.Header.Set("Content-Md5", base64.StdEncoding.EncodeToString(sum[:]))
	}
	if c.whole {
		sum := sha256.Sum256(b.content)
		r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
		r.Body, r.ContentLength = b, int64(len(b.content))
	}
}

// checkForm holds every answer to what all answers have in common.
func (c *client) checkForm(r *http.Request, a answer) {
	c.Helper()
	if r.Method == http.MethodHead && len(a.body) > 0 {
		c.Errorf("HEAD %s: %d with a body of %d bytes", r.URL, a.status, len(a.body))
	}
	if n := a.header.Get("Content-Length"); n != "" && r.Method != http.MethodHead && n != fmt.Sprint(len(a.body)) {
		c.Errorf("%s %s: %d says Content-Length %s and has %d bytes", r.Method, r.URL, a.status, n, len(a.body))
	}
	if a.status < 400 || r.Method == http.MethodHead {
		return
	}
	if a.code() == "" || a.header.Get("Content-Type") != "application/xml" || a.header.Get("Content-Length") == "" {
		c.Errorf("%s %s: %d is not S3's error document with its length: %v %s", r.Method, r.URL, a.status, a.header, a.body)
	}
}

// want checks a status, and the error's code if that is not "".
func (c *client) want(a answer, status int, code string) {
	c.Helper()
	if a.status != status || code != "" && len(a.body) > 0 && a.code() != code {
		c.Fatalf("answered %d %s, want %d %s", a.status, a.body, status, code)
	}
}

func (c *client) put(key, content string, headers ...string) answer {
	c.Helper()
	a := c.do(http.MethodPut, c.key(key), strings.NewReader(content), headers...)
	c.want(a, http.StatusOK, "")
	return a
}

func (c *client) get(key string, headers ...string) answer {
	c.Helper()
	return c.do(http.MethodGet, c.key(key), nil, headers...)
}

// holds checks that the key has this content, in GET, HEAD and list alike.
func (c *client) holds(key, content string) {
	c.Helper()
	a := c.get(key)
	c.want(a, http.StatusOK, "")
	if string(a.body) != content {
		c.Fatalf("%q holds %s, want %s", key, short(a.body), short([]byte(content)))
	}
	if a.etag() != etagOf(content) {
		c.Fatalf("%q has the ETag %s, want %s", key, a.etag(), etagOf(content))
	}
	h := c.do(http.MethodHead, c.key(key), nil)
	if h.status != http.StatusOK || h.etag() != a.etag() || h.header.Get("Content-Length") != fmt.Sprint(len(content)) {
		c.Fatalf("HEAD of %q: %d %v, want %d bytes with the ETag %s", key, h.status, h.header, len(content), a.etag())
	}
	page := c.list(c.bucket, url.Values{"prefix": {key}})
	for _, o := range page.Contents {
		if o.Key == key && o.ETag == a.etag() && o.Size == int64(len(content)) {
			return
		}
	}
	c.Fatalf("the list has no %q with the ETag %s and %d bytes: %+v", key, a.etag(), len(content), page.Contents)
}

// absent checks that there is nothing, in GET, HEAD and list alike.
func (c *client) absent(key string) {
	c.Helper()
	c.want(c.get(key), http.StatusNotFound, "NoSuchKey")
	c.want(c.do(http.MethodHead, c.key(key), nil), http.StatusNotFound, "")
	for _, o := range c.list(c.bucket, url.Values{"prefix": {key}}).Contents {
		if o.Key == key {
			c.Fatalf("the list has %q", key)
		}
	}
}

// is checks for content, or for absence if content is nil.
func (c *client) is(key string, content *string) {
	c.Helper()
	if content == nil {
		c.absent(key)
	} else {
		c.holds(key, *content)
	}
}

func etagOf(content string) string {
	sum := md5.Sum([]byte(content))
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func short(p []byte) string {
	if len(p) > 60 {
		return fmt.Sprintf("%q… (%d bytes)", p[:60], len(p))
	}
	return fmt.Sprintf("%q", p)
}

// random returns n bytes that nothing compresses or repeats.
func random(n int) string {
	p := make([]byte, n)
	_, _ = rand.Read(p) // never fails
	return string(p)
}

// A scripted body calls end when its content has been read, and returns what end returns.
type scripted struct {
	content  *bytes.Reader
	together bool // the last bytes and the error come from one Read
	end      func() error
}

func (b *scripted) Read(p []byte) (int, error) {
	n, err := b.content.Read(p)
	if err == io.EOF || b.together && b.content.Len() == 0 {
		return n, b.end()
	}
	return n, nil
}

func (b *scripted) Close() error { return nil }

// putScripted sends a PUT whose body has this content, says that it has length bytes, and ends as end says.
func (c *client) putScripted(key, content string, length int, together bool, end func() error, headers ...string) answer {
	c.Helper()
	r := request(http.MethodPut, c.key(key), nil, headers...)
	r.Body = &scripted{content: bytes.NewReader([]byte(content)), together: together, end: end}
	r.ContentLength = int64(length)
	return c.send(r)
}

// A page is an answer of a list.
type page struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	Name                  string
	Prefix                string
	Delimiter             string
	StartAfter            string
	Marker                *string
	NextMarker            string
	ContinuationToken     string
	NextContinuationToken string
	EncodingType          string
	KeyCount              int
	MaxKeys               int
	IsTruncated           bool
	Contents              []struct {
		Key          string
		LastModified string
		ETag         string
		Size         int64
		StorageClass string
		Owner        *struct{ ID string }
	}
	CommonPrefixes []struct{ Prefix string }
}

// list asks for one page of the second version, unless q says otherwise.
func (c *client) list(bucket string, q url.Values) page {
	c.Helper()
	if _, first := q["marker"]; !first {
		q.Set("list-type", "2")
	}
	a := c.do(http.MethodGet, "/"+bucket+"?"+q.Encode(), nil)
	c.want(a, http.StatusOK, "")
	var p page
	if err := xml.Unmarshal(a.body, &p); err != nil {
		c.Fatalf("list: %v in %s", err, a.body)
	}
	return p
}
