package s3

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/fenceproxy/fenceproxy/internal/clock"
)

func sha256Sum(p []byte) [32]byte { return sha256.Sum256(p) }

func parseHex(s string) (int, error) {
	n, err := strconv.ParseUint(s, 16, 31)
	return int(n), err
}

// TestChunksOfAWS is the example of AWS's "Transferring payload in multiple chunks": 66,560 letters a in chunks of 64 KiB.
func TestChunksOfAWS(t *testing.T) {
	content := bytes.Repeat([]byte("a"), 66560)
	who := aws.Credentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
	at := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	src := newSource(bytes.NewReader(content), int64(len(content)), newDeadline(clock.System{}.Boot, time.Hour, func() {}))
	defer src.time.timer.Stop()
	src.frames = newFramer(newChain(who, "us-east-1", at, "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"), trailer{})
	framed, err := io.ReadAll(src)
	if err != nil {
		t.Fatal(err)
	}
	if len(framed) != 66824 || framedLength(66560) != 66824 {
		t.Errorf("%d bytes, said to be %d, want 66824", len(framed), framedLength(66560))
	}
	want := "10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n" + string(content[:65536]) + "\r\n" +
		"400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n" + string(content[:1024]) + "\r\n" +
		"0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n"
	if string(framed) != want {
		t.Error("the chunks are not AWS's")
	}
}

// TestSignature: traps 4 and 5, what is signed is what the store sees, slashes, escapes and a path prefix included. It holds our signature against the SDK's, made from what stood on the wire.
func TestSignature(t *testing.T) {
	f := newFake(t, answering(ok))
	s := open(t, f.url)
	session := open(t, f.url, func(o *Options) { o.SessionToken = "session+/=" })
	prefixed := open(t, f.url+"/storage/v1/s3/")
	for _, test := range []struct{ method, target, wire string }{
		{"GET", "/", "/"},
		{"GET", "/bucket", "/bucket"},
		{"GET", "/bucket/", "/bucket/"},
		{"PUT", "/bucket//double//slash/", "/bucket//double//slash/"},
		{"PUT", "/bucket/a+b%2Bc%20d", "/bucket/a%2Bb%2Bc%20d"},
		{"PUT", "/bucket/a%2Fb/%25", "/bucket/a/b/%25"},
		{"PUT", "/bucket/%C3%BC/\u65e5", "/bucket/%C3%BC/%E6%97%A5"},
		{"DELETE", "/bucket/semi;colon=$&@:,'()*!~", "/bucket/semi%3Bcolon%3D%24%26%40%3A%2C%27%28%29%2A%21~"},
		{"PUT", "/bucket/./../x", "/bucket/./../x"},
		{"GET", "/bucket?list-type=2&prefix=a;b+c%2Bd&delimiter=100%&x&x=2&x=1", "/bucket?list-type=2&prefix=a%3Bb%20c%2Bd&delimiter=100%25&x=&x=2&x=1"},
		{"GET", "/bucket/key?tagging", "/bucket/key?tagging="},
		{"POST", "/bucket?delete&&", "/bucket?delete="},
		{"PUT", "/bucket/k?x-id=PutObject&X-Amz-Signature=0&X-Amz-Expires=60&x-amz-credential=c", "/bucket/k?x-id=PutObject"},
		{"HEAD", "/bucket/key?partNumber=1", "/bucket/key?partNumber=1"},
	} {
		for _, s := range []*Store{s, session, prefixed} {
			before := len(f.requests())
			var body io.Reader
			if test.method == "PUT" || test.method == "POST" {
				body = strings.NewReader("content")
			}
			w := do(s, test.method, test.target, body, "X-Amz-Meta-A", "  a   b ", "X-Amz-Meta-A", "c", "Content-Type", "text/plain", "Range", "bytes=0-1",
				"X-Amz-Copy-Source", "bucket/a%2Fb%2Bc", "If-Match", `"e"`)
			if w.Code != 200 {
				t.Fatalf("%s %s: %d %s", test.method, test.target, w.Code, w.Body)
			}
			g := f.requests()[before]
			checkSignature(t, g)
			if first, _, _ := strings.Cut(g.head, crlf); first != test.method+" "+s.base+test.wire+" HTTP/1.1" {
				t.Errorf("%s %s went as %s", test.method, test.target, first)
			}
			if g.Header.Get("X-Amz-Copy-Source") != "bucket/a%2Fb%2Bc" {
				t.Errorf("the copy source went as %q", g.Header.Get("X-Amz-Copy-Source"))
			}
		}
	}
}

// TestHeaders: what is the client's own, and what of one connection, does not reach the store.
func TestHeaders(t *testing.T) {
	f := newFake(t, answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Amz-Request-Id: theirs\r\nKeep-Alive: 5\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\n\r\nok"))
	w := do(open(t, f.url), "PUT", "/bucket/key?tagging", strings.NewReader("content"),
		"Authorization", "AWS4-HMAC-SHA256 theirs", "X-Amz-Date", "20200101T000000Z", "Date", "x", "X-Amz-Security-Token", "fence=34",
		"X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD", "X-Amz-Decoded-Content-Length", "7", "X-Amz-Trailer", "x-amz-checksum-crc32",
		"X-Amz-Sdk-Checksum-Algorithm", "CRC32", "Content-Encoding", "aws-chunked, gzip", "Expect", "100-continue",
		"X-Forwarded-For", "1.2.3.4", "X-Forwarded-Host", "h", "Forwarded", "for=x", "Connection", "close, X-Private", "X-Private", "1", "Te", "trailers",
		"Idempotency-Key", "i", "X-Idempotency-Key", "i", "Upgrade", "h2c", "Keep-Alive", "1", "Proxy-Authorization", "p",
		"X-Amz-Meta-K", "v", "Accept-Encoding", "zstd", "Content-Md5", "mgNkuembtIDdJeHwKEyFVQ==")
	if w.Code != 200 || w.Header().Get("X-Amz-Request-Id") != "theirs" || w.Header().Get("X-Hop")+w.Header().Get("Keep-Alive")+w.Header().Get("Connection") != "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	g := f.requests()[0]
	checkSignature(t, g)
	var names []string
	for name := range g.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{
		"Accept-Encoding", "Authorization", "Content-Encoding", "Content-Length", "Content-Md5", "Content-Type",
		"X-Amz-Content-Sha256", "X-Amz-Date", "X-Amz-Meta-K", "X-Amz-Sdk-Checksum-Algorithm",
	}
	want = slices.DeleteFunc(want, func(n string) bool { return n == "Content-Type" }) // none was given
	if !slices.Equal(names, want) {
		t.Errorf("the store got %q, want %q", names, want)
	}
	if v := g.Header.Get("Content-Encoding"); v != "gzip" {
		t.Errorf("Content-Encoding is %q", v)
	}
}

// TestPayloads: trap 6, chunks are decoded, and what goes out in chunks has a chain of its own. The store gets every body with a hash or in signed chunks, with its exact length.
func TestPayloads(t *testing.T) {
	f := newFake(t, answering(ok))
	s := open(t, f.url)
	for _, size := range []int{0, 1, 2, chunkSize - 1, chunkSize, chunkSize + 1, 3 * chunkSize, 200_000, 1 << 20, 1<<20 + 1} {
		content := bytes.Repeat([]byte("x1"), size/2+1)[:size]
		for _, m := range modes {
			for _, given := range []string{"", "UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"} {
				before := len(f.requests())
				headers := []string{"X-Amz-Content-Sha256", given}
				if m.whole || m.hash {
					headers = nil
				}
				if w := m.put(t.Context(), s, content, passes, headers...); w.Code != 200 {
					t.Fatalf("%d bytes, %s, %q: %d %s", size, m.name, given, w.Code, w.Body)
				}
				g := f.requests()[before]
				checkSignature(t, g)
				body := g.body
				if inChunks(g.Header) {
					if g.Header.Get("X-Amz-Decoded-Content-Length") != strconv.Itoa(size) || m.whole || m.hash {
						t.Errorf("%d bytes, %s, %q: %s", size, m.name, given, g.head)
					}
					body, _ = unframe(t, g)
				} else if size > 0 && !m.whole && !m.hash {
					t.Errorf("%d bytes, %q: not in chunks", size, given)
				}
				if !bytes.Equal(body, content) || g.ContentLength < int64(size) {
					t.Errorf("%d bytes, %s, %q: %d bytes came", size, m.name, given, len(body))
				}
			}
		}
	}
	document := httptest.NewRequest(http.MethodPost, "/bucket?delete", strings.NewReader("<Delete/>"))
	document.Header.Set("X-Amz-Content-Sha256", emptyHash)
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, document); w.Code != http.StatusBadRequest {
		t.Errorf("a wrong hash: %d %s", w.Code, w.Body)
	}
}
