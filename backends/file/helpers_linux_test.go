package file

import (
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// syncfs waits for everything that any program writes to the disk, at each Open. No test can see what it has made durable.
func init() { kernel.syncfs = kernel.fsync }

// A bench is a store under test with a bucket in it.
type bench struct {
	*testing.T
	*Store
	dir string
	up  *up // of tests that need one
}

func newBench(t *testing.T, o Options) *bench {
	b := &bench{T: t, dir: quickDir(t)}
	b.reopen(o)
	b.want(b.do("PUT", "/bucket", ""), 200)
	return b
}

// quickDir is in memory where that takes attributes: hundreds of stores are made and broken here, whose disk fails by the book, and what waits
// for a real one is tested with TestBackend and with the built binary.
func quickDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "fenceproxy-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if unix.Setxattr(dir, "user.fenceproxy-test", []byte("x"), 0) != nil {
		return t.TempDir()
	}
	return dir
}

func (b *bench) reopen(o Options) {
	b.Helper()
	if b.Store != nil {
		_ = b.Close()
	}
	s, err := Open(b.dir, o)
	if err != nil {
		b.Fatal(err)
	}
	s.minPart = 4 // bytes
	b.Store = s
	b.Cleanup(func() { _ = s.Close() })
}

func (b *bench) path(parts ...string) string {
	return filepath.Join(append([]string{b.dir}, parts...)...)
}

func (b *bench) do(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	b.Helper()
	return b.send(method, target, strings.NewReader(body), headers...)
}

func (b *bench) send(method, target string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	b.Helper()
	r := httptest.NewRequest(method, target, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w
}

func (b *bench) want(w *httptest.ResponseRecorder, status int) {
	b.Helper()
	if w.Code != status {
		b.Fatalf("answered %d %s, want %d", w.Code, w.Body, status)
	}
}

func (b *bench) wantCode(w *httptest.ResponseRecorder, status int, code string) {
	b.Helper()
	var e struct{ Code string }
	if _ = xml.Unmarshal(w.Body.Bytes(), &e); w.Code != status || e.Code != code {
		b.Fatalf("answered %d %s, want %d %s", w.Code, w.Body, status, code)
	}
}

// put stores content with metadata that names it.
func (b *bench) put(key, content string) {
	b.Helper()
	b.want(b.do("PUT", "/bucket/"+key, content, "X-Amz-Meta-Of", content), 200)
}

// state is an object's content, or "absent". Metadata that is not the content's own fails the test.
func (b *bench) state(key string) string {
	b.Helper()
	w := b.do("GET", "/bucket/"+key, "")
	if w.Code == http.StatusNotFound {
		return "absent"
	}
	b.want(w, 200)
	if of := w.Header().Get("X-Amz-Meta-Of"); of != w.Body.String() {
		b.Fatalf("%s has the content %q and the metadata of %q", key, w.Body, of)
	}
	return w.Body.String()
}

func (b *bench) holds(key, content string) {
	b.Helper()
	if got := b.state(key); got != content {
		b.Fatalf("%s is %q, want %q", key, got, content)
	}
}

// files lists a directory of the store's own.
func (b *bench) files(own string) []string {
	b.Helper()
	entries, err := os.ReadDir(b.path(ownDir, own))
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
