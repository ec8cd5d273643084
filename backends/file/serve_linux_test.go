package file

import (
	"io"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
)

// fromFile is a ResponseWriter that sees whether it is offered the file itself.
type fromFile struct {
	*httptest.ResponseRecorder
	file bool
}

func (w *fromFile) ReadFrom(src io.Reader) (int64, error) {
	if l, ok := src.(*io.LimitedReader); ok {
		_, w.file = l.R.(*os.File)
	}
	return io.Copy(w.ResponseRecorder, src)
}

func TestSendfileIsPossible(t *testing.T) {
	b := newBench(t, Options{})
	b.put("key", "content")
	w := &fromFile{ResponseRecorder: httptest.NewRecorder()}
	b.ServeHTTP(w, httptest.NewRequest("GET", "/bucket/key", nil))
	if !w.file || w.Body.String() != "content" || w.Header().Get("Content-Length") != "7" {
		t.Errorf("the file was offered: %v; %q %v", w.file, w.Body, w.Header())
	}
}

func TestClose(t *testing.T) {
	b := newBench(t, Options{})
	pr, pw := io.Pipe()
	done := make(chan *httptest.ResponseRecorder)
	go func() { done <- b.send("PUT", "/bucket/key", pr) }()
	if _, err := pw.Write([]byte("content")); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- b.Close() }()
	for b.enter() { // until Close has begun
		b.running.Done()
		runtime.Gosched()
	}
	b.wantCode(b.do("GET", "/bucket/key", ""), 503, "ServiceUnavailable")
	select {
	case <-closed:
		t.Fatal("Close did not wait for a request")
	default:
	}
	_ = pw.Close()
	b.want(<-done, 200)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	b.wantCode(b.do("PUT", "/bucket/key", "late"), 503, "ServiceUnavailable")
	if err := b.BindRegistry("id"); err == nil {
		t.Error("BindRegistry on a closed store")
	}
	if _, err := b.RegistryID(); err == nil {
		t.Error("RegistryID of a closed store")
	}
}

func TestRequestID(t *testing.T) {
	b := newBench(t, Options{})
	w := httptest.NewRecorder()
	w.Header().Set("x-amz-request-id", "4442587FB7D0A2F9")
	b.ServeHTTP(w, httptest.NewRequest("GET", "/bucket/a%20key", nil))
	for _, part := range []string{"<RequestId>4442587FB7D0A2F9</RequestId>", "<Resource>/bucket/a key</Resource>", `<?xml version="1.0"`} {
		if !strings.Contains(w.Body.String(), part) {
			t.Errorf("no %s in %s", part, w.Body)
		}
	}
}
