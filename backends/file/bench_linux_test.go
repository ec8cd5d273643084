package file

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// sink is a ResponseWriter that keeps nothing.
type sink struct {
	header http.Header
	status int
}

func (w *sink) Header() http.Header         { return w.header }
func (w *sink) WriteHeader(status int)      { w.status = status }
func (w *sink) Write(p []byte) (int, error) { return len(p), nil }

func benchStore(b *testing.B) *Store {
	s, err := Open(b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	ask(b, s, "PUT", "/bucket", "", 200)
	return s
}

func ask(b *testing.B, s *Store, method, target, body string, status int) {
	r := httptest.NewRequest(method, target, io.NopCloser(strings.NewReader(body)))
	w := &sink{header: http.Header{}}
	if s.ServeHTTP(w, r); w.status != status {
		b.Errorf("%s %s: %d", method, target, w.status)
	}
}

func BenchmarkPut4KiB(b *testing.B) {
	for _, writers := range []int{1, 8} { // times GOMAXPROCS
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			s, body := benchStore(b), strings.Repeat("x", 4<<10)
			var n atomic.Int64
			b.SetParallelism(writers)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					ask(b, s, "PUT", fmt.Sprintf("/bucket/dir/key-%d", n.Add(1)%1000), body, 200)
				}
			})
		})
	}
}

func BenchmarkGet4KiB(b *testing.B) {
	s := benchStore(b)
	ask(b, s, "PUT", "/bucket/dir/key", strings.Repeat("x", 4<<10), 200)
	for b.Loop() {
		ask(b, s, "GET", "/bucket/dir/key", "", 200)
	}
}

func BenchmarkList1000Of5000(b *testing.B) {
	s := benchStore(b)
	for i := range 5000 {
		ask(b, s, "PUT", fmt.Sprintf("/bucket/dir/key-%04d", i), "", 200)
	}
	for b.Loop() {
		ask(b, s, "GET", "/bucket?list-type=2&start-after=dir/key-2000", "", 200)
	}
}

// BenchmarkComplete64MiB completes uploads of eight parts; the parts are uploaded outside of the time.
func BenchmarkComplete64MiB(b *testing.B) {
	s, part := benchStore(b), strings.Repeat("x", 8<<20)
	b.SetBytes(64 << 20)
	for b.Loop() {
		b.StopTimer()
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("POST", "/bucket/key?uploads", nil))
		_, id, _ := strings.Cut(w.Body.String(), "<UploadId>")
		id, _, _ = strings.Cut(id, "<")
		var list strings.Builder
		for n := range 8 {
			ask(b, s, "PUT", fmt.Sprintf("/bucket/key?partNumber=%d&uploadId=%s", n+1, id), part, 200)
			fmt.Fprintf(&list, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", n+1, md5Of(part))
		}
		b.StartTimer()
		ask(b, s, "POST", "/bucket/key?uploadId="+id, "<CompleteMultipartUpload>"+list.String()+"</CompleteMultipartUpload>", 200)
	}
}
