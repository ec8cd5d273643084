package s3

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
)

// BenchmarkPut compares with a reverse proxy that does nothing, before a store that does nothing.
func BenchmarkPut(b *testing.B) {
	store := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer store.Close()
	target, err := url.Parse(store.URL)
	if err != nil {
		b.Fatal(err)
	}
	s, err := Open(b.Context(), Options{Endpoint: store.URL, PathStyle: true, AccessKey: testKey, SecretKey: testSecret})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for name, h := range map[string]http.Handler{"s3": s, "bare": httputil.NewSingleHostReverseProxy(target)} {
		for _, size := range []int{4 << 10, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				content := make([]byte, size)
				b.SetBytes(int64(size))
				for b.Loop() {
					w := httptest.NewRecorder()
					r := httptest.NewRequest(http.MethodPut, "/bucket/key", bytes.NewReader(content))
					if h.ServeHTTP(w, r); w.Code != 200 {
						b.Fatal(w.Code, w.Body)
					}
				}
			})
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}
