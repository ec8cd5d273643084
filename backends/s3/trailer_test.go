package s3

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fenceproxy/fenceproxy/internal/clock"
)

// TestTrailerOfAWS is the example of AWS's "Signature calculations for trailing headers": 66,560 letters a with their CRC32C behind them.
func TestTrailerOfAWS(t *testing.T) {
	content := bytes.Repeat([]byte("a"), 66560)
	who := aws.Credentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
	at := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	behind := trailer{names: []string{"X-Amz-Checksum-Crc32c"}, values: http.Header{"X-Amz-Checksum-Crc32c": {"sOO8/Q=="}}}
	src := newSource(bytes.NewReader(content), int64(len(content)), newDeadline(clock.System{}.Boot, time.Hour, func() {}))
	defer src.time.timer.Stop()
	src.frames = newFramer(newChain(who, "us-east-1", at, "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"), behind)
	framed, err := io.ReadAll(src)
	if err != nil {
		t.Fatal(err)
	}
	want := "10000;chunk-signature=b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2\r\n" + string(content[:65536]) + "\r\n" +
		"400;chunk-signature=1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7\r\n" + string(content[:1024]) + "\r\n" +
		"0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\n" +
		"x-amz-checksum-crc32c:sOO8/Q==\r\n" +
		"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
	if string(framed) != want {
		t.Errorf("the end is\n%s, want\n%s", framed[len(framed)-400:], want[len(want)-400:])
	}
	if n := framedLength(66560) + behind.length(); n != int64(len(want)) {
		t.Errorf("it is said to have %d bytes, and has %d", n, len(want))
	}
}

// TestTrailerKinds: trap 6, a checksum behind a body is one at the store, too. Every kind that the SDK knows goes on, and the length of each is known
// before its value is.
func TestTrailerKinds(t *testing.T) {
	var kinds []string
	for _, a := range types.ChecksumAlgorithm("").Values() {
		kinds = append(kinds, strings.ToUpper(string(a[:1]))+strings.ToLower(string(a[1:])))
	}
	f := newFake(t, answering(ok))
	s := open(t, f.url)
	for _, kind := range kinds {
		for _, size := range []int{1, chunkSize, chunkSize + 1} {
			name, value := checksumPrefix+kind, digest(kind, []byte("content"))
			r := mode{}.request(t.Context(), "/bucket/key", make([]byte, size), size, passes, "X-Amz-Sdk-Checksum-Algorithm", strings.ToUpper(kind))
			r.Trailer = http.Header{name: {value}}
			before := len(f.requests())
			w := httptest.NewRecorder()
			if s.ServeHTTP(w, r); w.Code != 200 {
				t.Fatalf("%s, %d bytes: %d %s", kind, size, w.Code, w.Body)
			}
			g := f.requests()[before]
			checkSignature(t, g)
			data, behind := unframe(t, g)
			if len(data) != size || behind.Get(name) != value || len(behind) != 1 {
				t.Errorf("%s: %d of %d bytes, behind them %q", kind, len(data), size, behind)
			}
			for header, want := range map[string]string{
				"X-Amz-Content-Sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "X-Amz-Trailer": strings.ToLower(name), "Content-Encoding": "", name: "",
				"X-Amz-Decoded-Content-Length": fmt.Sprint(size), "X-Amz-Sdk-Checksum-Algorithm": strings.ToUpper(kind),
			} {
				if v := g.Header.Get(header); v != want {
					t.Errorf("%s: %s is %q, want %q", kind, header, v, want)
				}
			}
		}
	}
}

// TestTrailerOfNoUse: what the store could not take changes nothing there, and is told as S3 tells it.
func TestTrailerOfNoUse(t *testing.T) {
	for what, test := range map[string]struct {
		name, value, message string
		connections          int
	}{
		"no checksum":    {"X-Amz-Meta-Late", "AAAAAA==", "The value specified in the x-amz-trailer header is not supported", 0},
		"an unknown one": {"X-Amz-Checksum-Crc128", "AAAAAA==", "The value specified in the x-amz-trailer header is not supported", 0},
		"not there":      {"X-Amz-Checksum-Crc32", "", "Value for x-amz-checksum-crc32 trailing header is invalid.", 1},
		"too short":      {"X-Amz-Checksum-Crc32", "AAA=", "Value for x-amz-checksum-crc32 trailing header is invalid.", 1},
		"padded":         {"X-Amz-Checksum-Crc32", "AAAAAA==\n", "Value for x-amz-checksum-crc32 trailing header is invalid.", 1},
		"no Base64":      {"X-Amz-Checksum-Crc32", "AAAA-_==", "Value for x-amz-checksum-crc32 trailing header is invalid.", 1},
	} {
		bubble(t, what, func(t *testing.T) {
			f := newMemory(t, answering(ok))
			r := mode{}.request(t.Context(), "/bucket/key", make([]byte, 100_000), 100_000, passes)
			r.Trailer = http.Header{test.name: {test.value}}
			w := httptest.NewRecorder()
			f.open().ServeHTTP(w, r)
			if w.Code != 400 || !strings.Contains(w.Body.String(), "<Code>InvalidRequest</Code>") || !strings.Contains(w.Body.String(), test.message) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if len(f.raw) != test.connections || len(f.requests()) > 0 {
				t.Errorf("%d connections, %d requests came whole", len(f.raw), len(f.requests()))
			}
		})
	}
}

// TestTrailerOfADocument: what is read here to its end has its checksum ahead, where every store looks for it.
func TestTrailerOfADocument(t *testing.T) {
	f := newFake(t, answering(ok))
	m := mode{kind: "Crc64nvme"}
	r := m.request(t.Context(), "/bucket/key?tagging", []byte("<Tagging/>"), 10, passes)
	w := httptest.NewRecorder()
	if open(t, f.url).ServeHTTP(w, r); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	g := f.requests()[0]
	checkSignature(t, g)
	if v := g.Header.Get("X-Amz-Checksum-Crc64nvme"); v != digest("Crc64nvme", []byte("<Tagging/>")) || g.Header.Get("X-Amz-Trailer") != "" {
		t.Errorf("%s", g.head)
	}
}

// TestTrailerOnVersitygw: a real store takes our trailer for the object's checksum, and refuses a wrong one.
func TestTrailerOnVersitygw(t *testing.T) {
	s := open(t, versitygw(t))
	if w := do(s, "PUT", "/behind", nil); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	content := bytes.Repeat([]byte("content "), 40_000)
	for _, kind := range askedKinds {
		m := mode{kind: kind}
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, m.request(t.Context(), "/behind/"+kind, content, len(content), passes)); w.Code != 200 {
			t.Errorf("%s: %d %s", kind, w.Code, w.Body)
		}
		w = do(s, "GET", "/behind/"+kind, nil, "X-Amz-Checksum-Mode", "ENABLED")
		if v := w.Header().Get(checksumPrefix + kind); v != digest(kind, content) || !bytes.Equal(w.Body.Bytes(), content) {
			t.Errorf("%s: %d bytes with the checksum %q", kind, w.Body.Len(), v)
		}
		r := m.request(t.Context(), "/behind/wrong", content, len(content), passes)
		r.Body = io.NopCloser(bytes.NewReader(content))
		r.Trailer.Set(checksumPrefix+kind, digest(kind, []byte("another")))
		w = httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != 400 || !strings.Contains(w.Body.String(), "BadDigest") {
			t.Errorf("a wrong %s: %d %s", kind, w.Code, w.Body)
		}
		if w = do(s, "HEAD", "/behind/wrong", nil); w.Code != 404 {
			t.Errorf("a wrong %s: HEAD %d", kind, w.Code)
		}
	}
}
