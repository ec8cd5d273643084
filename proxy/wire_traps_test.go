package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

// TestEmptyPutThatExpects: trap 3, an Expect on nothing (botocore #3755). net/http says no 100 Continue to a request without a body, and botocore, which
// waits for one, keeps the status of such an answer for a later one on its connection: it stalls, and sends that write once more. So 100 is said, or
// the connection ends.
func TestEmptyPutThatExpects(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: answering(200)})
	f.want(200, "", "PUT", "/b/a", "x", "X-Fence-Token: 34")
	for token, want := range map[string]int{"34": 200, "33": 412} {
		c := f.dial(t)
		c.send("PUT /b/a HTTP/1.1\nHost: localhost\nContent-Length: 0\nExpect: 100-continue\nX-Fence-Token: %s\n\n", token)
		resp := c.answer()
		asked := resp.StatusCode == http.StatusContinue
		if asked {
			resp = c.answer()
		}
		if resp.StatusCode != want || !asked && !resp.Close {
			t.Errorf("token %s: %d, want %d; 100 Continue %v, the connection ends %v", token, resp.StatusCode, want, asked, resp.Close)
		}
		if !resp.Close {
			c.send("GET /b/a HTTP/1.1\nHost: localhost\n\n")
			if resp := c.answer(); resp.StatusCode != 200 {
				t.Errorf("token %s, the next request on the connection: %d", token, resp.StatusCode)
			}
		}
	}
}

// said is what stands on the wire when one request was answered and the connection has ended.
func (f *fixture) said(t *testing.T, lines string) (head, body string) {
	t.Helper()
	c := f.dial(t)
	c.send("%s\nHost: localhost\nConnection: close\n\n", lines)
	answer, err := io.ReadAll(c.in)
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ = strings.Cut(string(answer), "\r\n\r\n")
	return head, body
}

// TestAnswersWithoutABody: trap 8, what answers HEAD, and 304 and 204, ends with its head (s3s #779): whatever stands behind it, a client takes for
// the answer to its next request. Their headers are the store's.
func TestAnswersWithoutABody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("ETag", `"e"`)
		switch {
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case r.Header.Get("If-None-Match") != "":
			w.WriteHeader(http.StatusNotModified)
		case strings.HasSuffix(r.URL.Path, "/none"):
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>") // a HEAD has no use for it
		default:
			w.Header().Set("Content-Length", "123456789")
			w.WriteHeader(http.StatusOK)
		}
	})})
	f.want(204, "", "DELETE", "/b/a", "", "X-Fence-Token: 34")
	for lines, want := range map[string]string{
		"HEAD /b/a HTTP/1.1":                                     "HTTP/1.1 200 OK|Content-Length: 123456789|Etag: \"e\"",
		"HEAD /b/none HTTP/1.1":                                  "HTTP/1.1 404 Not Found",
		"HEAD /b/a HTTP/1.1\nX-Fence-Token: x":                   "HTTP/1.1 400 Bad Request|X-Fence-Error: BadToken",
		"GET /b/a HTTP/1.1\nIf-None-Match: \"e\"":                "HTTP/1.1 304 Not Modified|Etag: \"e\"",
		"HEAD /b/a HTTP/1.1\nIf-None-Match: \"e\"":               "HTTP/1.1 304 Not Modified|Etag: \"e\"",
		"DELETE /b/a HTTP/1.1\nX-Fence-Token: 34":                "HTTP/1.1 204 No Content|Etag: \"e\"",
		"HEAD /b/a?fence HTTP/1.1":                               "HTTP/1.1 200 OK|X-Fence-Highest: 34",
		"GET /b/a HTTP/1.1\nIf-None-Match: *\nX-Fence-Token: 34": "HTTP/1.1 304 Not Modified",
	} {
		head, body := f.said(t, lines)
		got := strings.Split(head, "\r\n")
		for part := range strings.SplitSeq(want, "|") {
			if !slices.Contains(got, part) {
				t.Errorf("%q: %q, without %q", lines, head, part)
			}
		}
		if body != "" {
			t.Errorf("%q: %q stands behind the head", lines, body)
		}
	}
}

// TestAnswersAsTheStoreHasThem: trap 8, quotes of ETags (minio #9517, S3Mock #807) and the encoding of lists (backlot #178) differ from store to store:
// they are not made anew here.
func TestAnswersAsTheStoreHasThem(t *testing.T) {
	t.Parallel()
	var asked string
	answer, etag := "", ""
	f := newFixture(t, Backend{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.RawQuery
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Etag"] = []string{etag}
		_, _ = io.WriteString(w, answer)
	})})
	for _, answer = range []string{
		"<?xml version='1.0'?>\n<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%2Bb+c%20d</Key><ETag>e</ETag></Contents></ListBucketResult>",
		"<ListBucketResult>\r\n\t<Contents><Key>a+b c</Key><ETag>&quot;e&quot;</ETag></Contents></ListBucketResult >\n",
	} {
		const query = "list-type=2&encoding-type=url&prefix=a%2Bb+c&delimiter=%2f"
		if got := f.want(200, "", "GET", "/b?"+query, ""); got != answer || asked != query {
			t.Errorf("%q came, of ?%s", got, asked)
		}
	}
	for _, etag = range []string{`"quoted"`, "bare", `W/"weak"`, `"a-2"`, ""} {
		for _, method := range []string{"GET", "PUT"} {
			if resp, _ := f.do(method, "/b/a", "x"); resp.StatusCode != 200 || resp.Header.Get("ETag") != etag {
				t.Errorf("%s: %d, the ETag came as %q, want %q", method, resp.StatusCode, resp.Header.Get("ETag"), etag)
			}
		}
	}
}

// TestMetadataOfAnyBytes: trap 12, metadata that is not ASCII (lakeFS #9588) comes through byte by byte, there and back, signed or not.
func TestMetadataOfAnyBytes(t *testing.T) {
	t.Parallel()
	var kept string
	store := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodPut {
			kept = r.Header.Get("X-Amz-Meta-V")
		}
		w.Header().Set("X-Amz-Meta-V", kept)
		w.WriteHeader(http.StatusOK)
	})
	open, closed := newFixture(t, Backend{Handler: store}), newFixtureWith(t, restricted(nil), Backend{Handler: store})
	for _, v := range []string{"gr\u00fc\u00dfe \u65e5\u672c", "\xe4\xf6\xfc in Latin-1", "\xff\xfe", "=?UTF-8?B?w7w=?=", "a;b,c=d", `"quoted"`} {
		for who, put := range map[string]func() (*http.Response, string){
			"anybody": func() (*http.Response, string) { return open.do("PUT", "/b/a", "x", "X-Amz-Meta-V: "+v) },
			"an access key": func() (*http.Response, string) {
				return closed.signs("AKIDALL", "PUT", "/b/a", "x", "X-Amz-Meta-V: "+v)
			},
		} {
			kept = ""
			resp, text := put()
			if resp.StatusCode != 200 || kept != v || resp.Header.Get("X-Amz-Meta-V") != v {
				t.Errorf("%s, %q: %d %s; the store got %q, the client %q", who, v, resp.StatusCode, text, kept, resp.Header.Get("X-Amz-Meta-V"))
			}
		}
	}
}

// TestNamedChecksumAlgorithm: trap 7, x-amz-sdk-checksum-algorithm says how an SDK means to compute a checksum, and is none (s3transfer #327). What
// comes without one is for the store to judge.
func TestNamedChecksumAlgorithm(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	for _, ask := range []string{"PUT /b/a", "PUT /b/a?partNumber=1&uploadId=u", "POST /b/a?uploadId=u", "PUT /b/a?tagging"} {
		method, target, _ := strings.Cut(ask, " ")
		f.want(200, "", method, target, "<x/>", "X-Amz-Sdk-Checksum-Algorithm: CRC32", "X-Fence-Token: 34")
		if got, _ := b.last(); got.header.Get("X-Amz-Sdk-Checksum-Algorithm") != "CRC32" || got.body != "<x/>" {
			t.Errorf("%s: the store got %q, %v", ask, got.body, got.header)
		}
	}
}

// TestEmptyBodies: trap 7, an object of nothing (aws-sdk-go-v2 #1583), in every form in which clients send it, streaming and whole. Nothing that it
// announces of itself is too much.
func TestEmptyBodies(t *testing.T) {
	t.Parallel()
	crc, _ := checksum.ByName("CRC32")
	for how, change := range map[string]func(*Backend){
		"streaming": func(*Backend) {},
		"whole": func(b *Backend) {
			b.Settle, b.Probe = time.Second, func(context.Context, string) (Findings, error) { return Findings{}, nil }
		},
	} {
		b := &watcher{}
		backend := Backend{Handler: b}
		change(&backend)
		f := newFixtureWith(t, func(c *Config) { c.Buffer = 1 << 20 }, backend)
		for form, send := range map[string]struct {
			wire    string
			headers []string
		}{
			"plain":     {"", nil},
			"hash":      {"", []string{"X-Amz-Content-Sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}},
			"unsigned":  {"", []string{"X-Amz-Content-Sha256: UNSIGNED-PAYLOAD"}},
			"checksum":  {"", []string{"X-Amz-Checksum-Crc32: AAAAAA==", "X-Amz-Sdk-Checksum-Algorithm: CRC32"}},
			"MD5":       {"", []string{"Content-Md5: 1B2M2Y8AsgTpgAmY7PhCfg=="}},
			"in chunks": {unsignedChunks("", ""), chunked(0)},
			"a trailer": {unsignedChunks("", "x-amz-checksum-crc32:"+crc.Of(nil)), chunked(0, "X-Amz-Trailer: x-amz-checksum-crc32")},
		} {
			f.want(200, "", "PUT", "/b/a", send.wire, append(send.headers, "X-Fence-Token: 34")...)
			if got, _ := b.last(); got.body != "" || got.length != 0 || got.err != nil {
				t.Errorf("%s, %s: the store got %q, said to be %d bytes, %v", how, form, got.body, got.length, got.err)
			}
		}
	}
}

// TestChunksAreKnownByTheHash: trap 6, x-amz-content-sha256 says that a body is in chunks, and Content-Encoding does not (predastore #114): some clients
// leave it out, and some keep it on objects. No trailer need be announced (versitygw #1632).
func TestChunksAreKnownByTheHash(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	framed := unsignedChunks("content", "")
	f.want(200, "", "PUT", "/b/a", framed, chunked(7)...)
	if got, _ := b.last(); got.body != "content" || got.length != 7 {
		t.Errorf("chunks that only their hash announces: the store got %q", got.body)
	}
	for _, headers := range [][]string{
		{"Content-Encoding: aws-chunked"},
		{"Content-Encoding: aws-chunked", "X-Amz-Content-Sha256: UNSIGNED-PAYLOAD"},
		{"Content-Encoding: aws-chunked", "X-Amz-Content-Sha256: UNSIGNED-PAYLOAD", "X-Amz-Decoded-Content-Length: 7"},
	} {
		f.want(200, "", "PUT", "/b/a", framed, headers...)
		if got, _ := b.last(); got.body != framed || got.length != int64(len(framed)) {
			t.Errorf("%q: the store got %q, want what was sent", headers, got.body)
		}
	}
}

// TestPathsAreNotCleaned: trap 2, a ServeMux would answer 307 to what is not clean; trap 5, what looks like more than one key is as many (versitygw
// #2274 and #781, envoy #35023). The store gets the key that was named, and each spelling of it meets the same fence.
func TestPathsAreNotCleaned(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	for key, spellings := range map[string][]string{
		"/b//a":       {"/b//a", "/b/%2Fa", "/b%2F%2fa"},
		"/b/a//":      {"/b/a//", "/b/a%2F%2F", "/b/a%2f/"},
		"/b/a/":       {"/b/a/", "/b/%61/"},
		"/b/./a":      {"/b/./a", "/b/%2e/a"},
		"/b/c/../a":   {"/b/c/../a", "/b/c/.%2e/a", "/b/c%2F..%2Fa"},
		"/b/../../a":  {"/b/../../a", "/b/%2E%2E/../a"},
		"/b/a+b":      {"/b/a+b", "/b/a%2Bb", "/b/a%2bb"},
		"/b/a b":      {"/b/a%20b"},
		"/b/a=b@c":    {"/b/a=b@c", "/b/a%3Db%40c"},
		"/b/a/b":      {"/b/a/b", "/b/a%2Fb", "/b%2Fa/b", "/%62/a/b"},
		"/b/a%2Fb":    {"/b/a%252Fb"},
		"/b/~tilde*'": {"/b/~tilde*'", "/b/%7Etilde%2A%27"},
	} {
		for i, target := range spellings {
			head, _ := f.said(t, "PUT "+target+" HTTP/1.1\nContent-Length: 0\nX-Fence-Token: 34")
			if got, _ := b.last(); !strings.HasPrefix(head, "HTTP/1.1 200 ") || got.path != key {
				t.Errorf("%s: %.40q, and the store got %s, want %s", target, head, got.path, key)
			}
			for _, other := range spellings[:i+1] {
				if head, _ := f.said(t, "PUT "+other+" HTTP/1.1\nContent-Length: 0\nX-Fence-Token: 33"); !strings.HasPrefix(head, "HTTP/1.1 412 ") {
					t.Errorf("%s, when %s is fenced: %.40q", other, target, head)
				}
			}
		}
	}
}

// TestSourcesOfCopies: trap 5, clients encode what they copy from, or do not (versitygw #1834, aws-sdk-rust #1357). The rules are asked about the bucket that
// is meant, and the store gets the words that the client has chosen.
func TestSourcesOfCopies(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	for _, source := range []string{
		"/b/a", "b/a", "b%2Fa", "%2Fb%2Fa", "/b/a+b", "/b/a%2Bb", "/b/a b", "/b/a%20b", "/b//a", "/b/%C3%BC", "/b/\u00fc", "/b/a?versionId=3%2F", "/b/a%3FversionId=3",
	} {
		f.want(200, "", "PUT", "/b/copy", "", "X-Amz-Copy-Source: "+source, "X-Fence-Token: 34")
		if got, _ := b.last(); got.header.Get(headerCopySource) != source {
			t.Errorf("%q became %q", source, got.header.Get(headerCopySource))
		}
	}
}

// slowly64 is a body that takes an hour, and never longer for its next KiB than a client may.
type slowly64 struct{ left int }

func (s *slowly64) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(time.Hour / 72)
	s.left--
	return copy(p, bytes.Repeat([]byte("x"), 1024)), nil
}

// TestUploadIsJudgedAtItsHead: trap 11, the time of a long upload is that of its head (aws-sdk-net #211). One that takes an hour goes on, signed in the
// header or in the query, and the same signature is no good for another one then.
func TestUploadIsJudgedAtItsHead(t *testing.T) {
	for name, sign := range map[string]func(*remote, *http.Request){"in the header": (*remote).signHeader, "in the query": (*remote).signQuery} {
		t.Run(name, func(t *testing.T) {
			before(t, func(c *Config, _ *Backend) { restricted(nil)(c) }, func(r *remote) {
				in := r.request("PUT", "/b/a", &slowly64{72}, 72<<10, "X-Fence-Token: 34")
				sign(r, in)
				again := in.Clone(in.Context())
				again.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", 72<<10)))
				began := time.Now()
				if w := r.serve(in); w.Code != 200 || time.Since(began) < time.Hour {
					t.Fatalf("%d after %v: %s", w.Code, time.Since(began), w.Body)
				}
				if w := r.serve(again); w.Code != http.StatusForbidden {
					t.Errorf("an hour later: %d %s", w.Code, w.Body)
				}
			})
		})
	}
}
