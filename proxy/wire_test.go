package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

// A seen request is what a backend has got, its body read to the end.
type seen struct {
	method, path, query string
	header, trailer     http.Header
	body                string
	length              int64
	err                 error
}

// A watcher is a backend that keeps what it has got, and answers 200.
type watcher struct {
	mu  sync.Mutex
	got []seen // guarded by mu
}

func (b *watcher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	_, err := body.ReadFrom(r.Body)
	b.mu.Lock()
	b.got = append(b.got, seen{r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Clone(), r.Trailer.Clone(), body.String(), r.ContentLength, err})
	b.mu.Unlock()
	w.Header().Set("ETag", `"e"`)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// last is the request that came last, and how many there were.
func (b *watcher) last() (s seen, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n = len(b.got); n > 0 {
		s = b.got[n-1]
	}
	return s, n
}

// unsignedChunks is a body as SDKs send it over TLS.
func unsignedChunks(content, trailer string) string {
	body := ""
	for part := range slices.Chunk([]byte(content), 8<<10) {
		body += fmt.Sprintf("%x\r\n%s\r\n", len(part), part)
	}
	body += "0\r\n"
	if trailer != "" {
		body += trailer + "\r\n"
	}
	return body + "\r\n"
}

func chunked(length int, more ...string) []string {
	return append([]string{"X-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER", fmt.Sprintf("X-Amz-Decoded-Content-Length: %d", length)}, more...)
}

// TestUnchunked: a backend gets the content of a body in chunks, how long it is, and the checksum that stood behind it; nothing of the framing.
func TestUnchunked(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	content := strings.Repeat("the content, in chunks of 8 KiB;", 500)
	crc, _ := checksum.ByName("CRC32")
	headers := chunked(len(content), "X-Amz-Trailer: x-amz-checksum-crc32", "Content-Encoding: aws-chunked", "X-Fence-Token: 34")
	f.want(200, "", "PUT", "/b/k", unsignedChunks(content, "x-amz-checksum-crc32:"+crc.Of([]byte(content))), headers...)
	got, _ := b.last()
	if got.body != content || got.length != int64(len(content)) || got.err != nil {
		t.Errorf("the backend got %d bytes of %d, %v", len(got.body), got.length, got.err)
	}
	if v := got.trailer[crc.Header()]; !slices.Equal(v, []string{crc.Of([]byte(content))}) {
		t.Errorf("the checksum behind the body became %q", v)
	}
	for _, name := range []string{"X-Amz-Trailer", "X-Amz-Decoded-Content-Length"} {
		if v, ok := got.header[name]; ok {
			t.Errorf("the backend got %s: %q, which is of the framing", name, v)
		}
	}
	if v := got.header.Get("X-Amz-Content-Sha256"); v != "UNSIGNED-PAYLOAD" {
		t.Errorf("the backend got x-amz-content-sha256 %q", v)
	}
}

// TestChunksThatAreRefused: what is wrong with a body in chunks is told, and the backend never comes to its end.
func TestChunksThatAreRefused(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("the content, in chunks of 8 KiB;", 500)
	good := unsignedChunks(content, "")
	for name, c := range map[string]struct {
		body    string
		headers []string
		status  int
		code    string
	}{
		"no length":         {good, []string{"X-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER"}, 411, "MissingContentLength"},
		"bad length":        {good, []string{"X-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER", "X-Amz-Decoded-Content-Length: -1"}, 411, "MissingContentLength"},
		"shorter than said": {good, chunked(len(content) + 1), 400, "IncompleteBody"},
		"longer than said":  {good, chunked(len(content) - 1), 400, "IncompleteBody"},
		"cut":               {good[:len(good)-1000], chunked(len(content)), 400, "IncompleteBody"},
		"no chunks":         {strings.Repeat("x", 100), chunked(100), 400, ""},
		"wrong checksum":    {unsignedChunks(content, "x-amz-checksum-crc32:AAAAAA=="), chunked(len(content), "X-Amz-Trailer: x-amz-checksum-crc32"), 400, "BadDigest"},
		"no checksum":       {good, chunked(len(content), "X-Amz-Trailer: x-amz-checksum-crc32"), 400, ""},
		"other trailer":     {unsignedChunks(content, "x-amz-meta-a:b"), chunked(len(content), "X-Amz-Trailer: x-amz-meta-a"), 400, "InvalidRequest"},
		"unknown form":      {good, []string{"X-Amz-Content-Sha256: STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "X-Amz-Decoded-Content-Length: 1"}, 501, "NotImplemented"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &watcher{}
			f := newFixture(t, Backend{Handler: b})
			text := f.want(c.status, "", "PUT", "/b/k", c.body, append(c.headers, "X-Fence-Token: 34")...)
			if !strings.Contains(text, c.code) {
				t.Errorf("refused with %s, want %s", text, c.code)
			}
			if got, n := b.last(); n > 0 && got.err == nil {
				t.Errorf("the backend got the end of %q", got.body)
			}
			if e, _ := f.fence.Highest(t.Context(), "b/k"); e.Token != 0 {
				t.Errorf("a body that was refused has raised the fence to %d", e.Token)
			}
		})
	}
}

// TestUnchunkedWhole: a body that goes to a store elsewhere whole carries the checksum that stood behind it as a header.
func TestUnchunkedWhole(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("the content, in chunks of 8 KiB;", 500)
	crc, _ := checksum.ByName("CRC64NVME")
	b := &watcher{}
	f := newFixtureWith(t, func(c *Config) { c.Buffer, c.Memory = 1<<20, 1<<20 }, Backend{Handler: b, Probe: func(context.Context, string) (Findings, error) { return Findings{}, nil }, Settle: time.Second})
	headers := chunked(len(content), "X-Amz-Trailer: x-amz-checksum-crc64nvme", "X-Fence-Token: 34")
	f.want(200, "", "PUT", "/b/k", unsignedChunks(content, "x-amz-checksum-crc64nvme:"+crc.Of([]byte(content))), headers...)
	got, _ := b.last()
	if got.body != content || got.header.Get(crc.Header()) != crc.Of([]byte(content)) || len(got.trailer) != 0 {
		t.Errorf("the store got %d bytes, %v, trailer %v", len(got.body), got.header, got.trailer)
	}
}

// TestQueryChannel: a token in the query counts, and the backend sees neither it nor a signature; what stands there as a header, is one.
func TestQueryChannel(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	signature := "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2F20261130%2Fr%2Fs3%2Faws4_request&X-Amz-Date=20261130T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=0"
	f.want(200, "", "PUT", "/b/k?x-id=PutObject&X-Fence-Token=34&X-Fence-Holder=me&"+signature+"&x-amz-meta-colour=blue%20green", "content")
	got, _ := b.last()
	if got.query != "x-id=PutObject" || got.header.Get("X-Amz-Meta-Colour") != "blue green" {
		t.Errorf("the backend got ?%s and %v", got.query, got.header)
	}
	if e, _ := f.fence.Highest(t.Context(), "b/k"); e.Token != 34 || e.Holder != "me" {
		t.Errorf("the fence stands at %+v", e)
	}
	f.want(412, staleToken, "PUT", "/b/k?X-Fence-Token=33", "content")
	f.want(412, staleToken, "PUT", "/b/k?"+signature+"&X-Amz-Security-Token=fence%3D33", "content")
	f.want(400, malformedToken, "PUT", "/b/k?X-Fence-Token=35", "content", "X-Fence-Token: 36")
	f.want(400, malformedToken, "PUT", "/b/k?X-Fence-Token=35&x-fence-token=35", "content")
	f.want(400, malformedToken, "PUT", "/b/k?X-Fence-Token=", "content")
	f.want(400, "", "PUT", "/b/k?X-Fence-Token=35&"+signature+"&x-amz-meta-a=1&x-amz-meta-a=2", "content")
	f.want(400, "", "PUT", "/b/k?X-Fence-Token=35&"+signature+"&x-amz-meta-a=1", "content", "X-Amz-Meta-A: 2")
	f.want(400, "", "PUT", "/b/k?X-Fence-Token=35&"+signature+"&x-amz-meta-a=1%0d%0aX-B:2", "content")
	if e, _ := f.fence.Highest(t.Context(), "b/k"); e.Token != 34 {
		t.Errorf("a request that is refused has raised the fence to %d", e.Token)
	}
}

// TestCopyByQuery: a presigned URL whose query names the source of a copy is a copy, as S3 takes it, and not a PUT of nothing.
func TestCopyByQuery(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	f.want(400, "", "PUT", "/b/k?X-Amz-Signature=0&x-amz-copy-source=", "", "X-Amz-Copy-Source: b/x")
	f.want(200, "", "PUT", "/b/k?X-Amz-Signature=0&x-amz-copy-source=%2Fb%2Fsource", "")
	if got, _ := b.last(); got.header.Get("X-Amz-Copy-Source") != "/b/source" || got.query != "" {
		t.Errorf("the backend got ?%s and %v", got.query, got.header)
	}
}

// TestVirtualHost: a bucket in the host's name and one in the path are one, and so is their fence (trap 2, two spellings of one key).
func TestVirtualHost(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixtureWith(t, func(c *Config) { c.Domain = "s3.example.internal" }, Backend{Handler: b})
	for _, c := range []struct{ host, path, want string }{
		{"bucket.s3.example.internal", "/a/b", "/bucket/a/b"},
		{"Bucket.S3.example.internal:9000", "/a//b", "/bucket/a//b"},
		{"with.dots.s3.example.internal.", "/k", "/with.dots/k"},
		{"s3.example.internal:9000", "/bucket/k", "/bucket/k"},
		{"localhost", "/bucket/k", "/bucket/k"},
		{"bucket.s3.example.internal", "/~fence/34/key", "/bucket/key"},
		{"bucket.s3.example.internal", "/%7Efence/34/a%2Fb", "/bucket/a/b"},
		{"bucket.s3.example.internal", "//slash", "/bucket//slash"},
	} {
		r := f.request("PUT", c.path, "content")
		r.Host = c.host
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got, _ := b.last(); resp.StatusCode != 200 || got.path != c.want {
			t.Errorf("%s%s: %d, and the backend got %s, want %s", c.host, c.path, resp.StatusCode, got.path, c.want)
		}
	}
	for _, host := range []string{"evil.example.com", "s3.example.internal.evil.com", "xs3.example.internal"} {
		r := f.request("GET", "/bucket/k", "")
		r.Host = host
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d, want 403", host, resp.StatusCode)
		}
	}
	r := f.request("PUT", "/key", "content")
	r.Host = "bucket.s3.example.internal"
	r.Header.Set("X-Fence-Token", "33")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("the stale token of a virtual-host request: %d, want 412", resp.StatusCode)
	}
}

// TestParameters: whatever the query, every pair comes through as it stands, unless it is of the signature or the fence.
func TestParameters(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                            "",
		"a-b=c;d&e=%zz&f":             "a-b=c;d&e=%zz&f",
		"prefix=X-Fence-Token&x=%2B+": "prefix=X-Fence-Token&x=%2B+",
		"X-Amz-Date=1&uploads":        "X-Amz-Date=1&uploads", // not a presigned URL
		"X-Amz-Date=1&uploads&x%2damz-signature=2": "uploads",
		"a-b&x-fence%2Dtoken=3&c":                  "a-b&c",
	} {
		r := httptest.NewRequest("GET", "/b/k", nil)
		r.URL = &url.URL{Path: "/b/k", RawQuery: raw}
		out, err := withoutSignature(r)
		if err != nil || out.URL.RawQuery != want {
			t.Errorf("%q becomes %q, %v; want %q", raw, out.URL.RawQuery, err, want)
		}
		if r.URL.RawQuery != raw {
			t.Errorf("%q: the request itself was changed", raw)
		}
	}
}

// TestDrainsChunks: a stale token on a body in chunks is told after the whole body was read off the wire, so that the client sees it.
func TestDrainsChunks(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	f.want(200, "", "PUT", "/b/k", "x", "X-Fence-Token: 34")
	content := strings.Repeat("0123456789", 100)
	resp, _ := f.do("PUT", "/b/k", unsignedChunks(content, ""), chunked(len(content), "X-Fence-Token: 33")...)
	if resp.StatusCode != 412 || resp.Close {
		t.Errorf("%d, connection closed: %v; want 412 on a connection that stays", resp.StatusCode, resp.Close)
	}
	if _, n := b.last(); n != 1 {
		t.Errorf("the backend has seen %d requests, want 1", n)
	}
}

// TestNoVersion: SDKs that are told no version of an object to write say so with an empty one. Of a DELETE it stays refused, for it could mean
// another version than the newest.
func TestNoVersion(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	f.want(200, "", "PUT", "/b/k?legal-hold=&versionId=", "<LegalHold/>")
	if got, _ := b.last(); got.query != "legal-hold=" {
		t.Errorf("the backend got ?%s", got.query)
	}
	f.want(400, "", "DELETE", "/b/k?versionId=", "")
}

// TestWrongBeforeTheStore: what is wrong with a request in itself is told before any store is asked about it.
func TestWrongBeforeTheStore(t *testing.T) {
	t.Parallel()
	const empty = "X-Amz-Content-Sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b856"
	before(t, nil, func(r *remote) {
		for _, c := range []struct {
			target, code string
			headers      []string
		}{
			{"/b/k", "XAmzContentSHA256Mismatch", []string{empty}},
			{"/b/k?tagging", "XAmzContentSHA256Mismatch", []string{empty}},
			{"/b/k?tagging", "InvalidRequest", chunked(0)},
			{"/b/k", "RequestHeaderSectionTooLarge", []string{"X-Amz-Meta-A: " + strings.Repeat("x", maxHeaders)}},
			{"/b/k", "Multiple checksum Types are not allowed", []string{"X-Amz-Checksum-Crc32: ", "X-Amz-Checksum-Sha1: "}},
			{"/b/k", "InvalidDigest", []string{"Content-Md5: x"}},
			{"/b/k", "x-amz-sdk-checksum-algorithm", []string{"X-Amz-Sdk-Checksum-Algorithm: SHA1", "X-Amz-Checksum-Crc32: AAAAAA=="}},
		} {
			w := r.do("PUT", c.target, "", append(c.headers, "X-Fence-Token: 34")...)
			if w.Code != 400 || !strings.Contains(w.Body.String(), c.code) {
				t.Errorf("%s %.60q: %d %s, want %s", c.target, c.headers, w.Code, w.Body, c.code)
			}
			r.mu.Lock()
			if len(r.heard) > 0 {
				t.Errorf("%s %.60q: the store was asked for %s", c.target, c.headers, r.heard[0].name)
			}
			r.mu.Unlock()
		}
	})
}

// TestLocation: a Complete answers with the URL by which its client goes, and not with the store's.
func TestLocation(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "<CompleteMultipartUploadResult><Location>http://store.internal/b/a%20b</Location><ETag>e</ETag></CompleteMultipartUploadResult>")
	})})
	got := f.want(200, "", "POST", "/~fence/34/b/a%20b&c?uploadId=u", "<CompleteMultipartUpload/>")
	if want := "<Location>" + f.url + "/~fence/34/b/a%20b&amp;c</Location><ETag>e</ETag>"; !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestDrips: a body of which less than a KiB comes within the time is cut off, however often a byte of it comes.
func TestDrips(t *testing.T) {
	t.Parallel()
	deadlines := &deadlines{}
	body := &gatedBody{src: iotest.OneByteReader(strings.NewReader(strings.Repeat("x", 3000))), idle: time.Minute, control: http.NewResponseController(deadlines), gate: func() error { return nil }}
	if _, err := io.Copy(io.Discard, body); err != nil {
		t.Fatal(err)
	}
	if deadlines.set != 3 { // at the start, and for each KiB
		t.Errorf("the client was given time %d times for 3,000 bytes one by one, want 3", deadlines.set)
	}
}

// deadlines counts how often a connection was given time.
type deadlines struct {
	http.ResponseWriter
	set int
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		d.set++
	}
	return nil
}

// TestMistakes: what is no operation of S3 at all is told in S3's words, to anybody, and asks no store.
func TestMistakes(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixtureWith(t, restricted(nil), Backend{Handler: b})
	for _, c := range []struct {
		method, path, header string
		status               int
		text                 string
	}{
		{"POST", "/", "", 405, "<ResourceType>SERVICE</ResourceType>"},
		{"POST", "/b/k", "", 405, "MethodNotAllowed"},
		{"PUT", "/b/k?uploadId=u", "", 405, "<ResourceType>UPLOAD</ResourceType>"},
		{"PUT", "/b/k?partNumber=1", "", 400, "without uploadId"},
		{"GET", "/b/k?uploads", "", 400, "Key is not expected"},
		{"GET", "/b/k?versions", "", 400, "no such thing"},
		{"GET", "/b/k", "X-Amz-Copy-Source: b/x", 400, "You can only specify a copy source header for copy requests."},
		{"DELETE", "/b/k", "X-Amz-Copy-Source: b/x", 400, "You can only specify a copy source header for copy requests."},
		{"POST", "/b/k?uploadId=u", "X-Amz-Copy-Source: b/x", 400, "You can only specify a copy source header for copy requests."},
		{"GET", "/b/k", "", 403, "AccessDenied"}, // this is one
	} {
		if got := f.want(c.status, "", c.method, c.path, "", c.header); !strings.Contains(got, c.text) {
			t.Errorf("%s %s: %s, want %s", c.method, c.path, got, c.text)
		}
	}
	if _, n := b.last(); n != 0 {
		t.Errorf("the backend was asked %d times", n)
	}
}
