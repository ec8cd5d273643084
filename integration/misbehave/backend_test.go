package misbehave

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/backends/s3"
	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

// backend is the S3 backend of the product before the store.
func (w *world) backend() *s3.Store {
	w.Helper()
	began := time.Now()
	b, err := s3.Open(w.Context(), s3.Options{
		Endpoint: "http://store", PathStyle: true, Region: "us-east-1", AccessKey: "a", SecretKey: "s",
		DialContext: w.net.Dial, Boot: func() time.Duration { return time.Since(began) },
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = b.Close() })
	return b
}

// TestBackend: backend and store understand each other in every form of body, and the store checks what the backend signs. Neither has a line of code of
// the other.
func TestBackend(t *testing.T) {
	inWorld(t, Options{Secret: "s"}, func(w *world) {
		b := w.backend()
		defer b.Close()
		for _, kind := range []string{"", "CRC32", "CRC64NVME", "SHA1", "XXHASH128"} {
			content := strings.Repeat("content ", 20_000)
			a, trailed := checksum.ByName(kind)
			r := httptest.NewRequest(http.MethodPut, "/b/k", io.NopCloser(strings.NewReader(content)))
			r.ContentLength = int64(len(content))
			if trailed {
				r.Trailer = http.Header{a.Header(): {a.Of([]byte(content))}}
				r.Header.Set("X-Amz-Sdk-Checksum-Algorithm", kind)
			}
			rec := httptest.NewRecorder()
			if b.ServeHTTP(rec, r); rec.Code != 200 {
				t.Fatalf("%q: %d %s", kind, rec.Code, rec.Body)
			}
			done := w.store.Journal()
			last := done[len(done)-1]
			if string(last.Content) != content || trailed && last.Checksums.Get(a.Header()) != a.Of([]byte(content)) {
				t.Errorf("%q: %d bytes with %q", kind, len(last.Content), last.Checksums)
			}
		}
	})
}

// TestProbed: what the store can do is what the probe finds, with trailers and without.
func TestProbed(t *testing.T) {
	for _, without := range []bool{false, true} {
		inWorld(t, Options{Secret: "s", NoTrailers: without}, func(w *world) {
			b := w.backend()
			defer b.Close()
			f, err := b.Probe(w.Context(), "b")
			if err != nil {
				t.Fatal(err)
			}
			if f.Trailers == without || f.Torn || !f.Query || !f.Put || !f.Delete || len(f.Checksums) != 5 {
				t.Errorf("without trailers %v: %+v", without, f)
			}
		})
	}
}
