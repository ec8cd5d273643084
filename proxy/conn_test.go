package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A wire is a raw connection to the proxy: what net/http does to a connection is part of what is tested here.
type wire struct {
	*testing.T
	*net.TCPConn
	in *bufio.Reader
}

func (f *fixture) dial(t *testing.T) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // a test that hangs fails
	return &wire{t, conn.(*net.TCPConn), bufio.NewReader(conn)}
}

func (c *wire) send(format string, args ...any) {
	c.Helper()
	if _, err := fmt.Fprintf(c, strings.ReplaceAll(format, "\n", "\r\n"), args...); err != nil {
		c.Fatal(err)
	}
}

// answer reads one answer whole.
func (c *wire) answer() *http.Response {
	c.Helper()
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.Fatal(err)
	}
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp
}

// TestOutrunAtTheGate: a write whose body has come whole waits at the gate, and a newer token comes. It is refused as stale, on
// record, and its connection goes on.
func TestOutrunAtTheGate(t *testing.T) {
	t.Parallel()
	store := &slowStore{make(chan struct{}), make(chan int)}
	f := newFixture(t, Backend{Handler: store})
	var older sync.WaitGroup
	older.Go(func() { f.want(200, "", "PUT", "/b/a", "older", "X-Fence-Token: 4", "X-Amz-Meta-Slow: 1") })
	<-store.reached

	c := f.dial(t)
	c.send("PUT /b/a HTTP/1.1\nHost: localhost\nContent-Length: 7\nX-Fence-Token: 5\n\ncontent")
	for f.seen("b/a") < 5 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // let net/http begin to read behind the body: what used to be hit
	older.Go(func() { f.do("PUT", "/b/a", "newest", "X-Fence-Token: 6") })
	if resp := c.answer(); resp.StatusCode != 412 || resp.Header.Get("X-Fence-Error") != "StaleToken" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	c.send("GET /b/x HTTP/1.1\nHost: localhost\nX-Fence-Token: 1\n\n")
	if resp := c.answer(); resp.StatusCode != 200 {
		t.Errorf("the next request on the connection: %d %v", resp.StatusCode, resp.Header)
	}
	c.send("PUT /b/x HTTP/1.1\nHost: localhost\nContent-Length: 1\nX-Fence-Token: 2\n\nx")
	if resp := c.answer(); resp.StatusCode != 200 {
		t.Errorf("the one after it: %d %v", resp.StatusCode, resp.Header)
	}
	store.finish <- 200
	older.Wait()
}

// seen is the highest token that the fence knows of.
func (f *fixture) seen(resource string) int64 {
	e, err := f.fence.Highest(f.Context(), resource)
	if err != nil {
		f.Fatal(err)
	}
	return int64(e.Token)
}

// TestHalfClosedClient: a client may shut its side when it has sent its request; it still waits for the answer.
func TestHalfClosedClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: answering(200)})
	for i, request := range []string{
		"PUT /b/a HTTP/1.1\nHost: localhost\nContent-Length: 7\nX-Fence-Token: %d\n\ncontent",
		"GET /b/a HTTP/1.1\nHost: localhost\nX-Fence-Token: %d\n\n",
		"PUT /b/a?fence HTTP/1.1\nHost: localhost\nX-Fence-Token: %d\nContent-Length: 0\n\n",
	} {
		c := f.dial(t)
		c.send(request, 34+i)
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if resp := c.answer(); resp.StatusCode != 200 {
			t.Errorf("%q: %d %v", request, resp.StatusCode, resp.Header)
		}
	}
}

// TestCutOffUploadLetsGo: the client of an upload that is cut off gets its answer and the end of its connection, also if it is paused
// and sends nothing more.
func TestCutOffUploadLetsGo(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: answering(200)})
	c := f.dial(t)
	c.send("PUT /b/a HTTP/1.1\nHost: localhost\nContent-Length: 1000\nX-Fence-Token: 33\n\nhalf of it")
	for f.fence.Stats().Resources == 0 {
		time.Sleep(time.Millisecond)
	}
	f.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 34")
	if resp := c.answer(); resp.StatusCode != 412 || resp.Header.Get("X-Fence-Error") != "StaleToken" || !resp.Close {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if _, err := c.in.ReadByte(); err != io.EOF {
		t.Errorf("after the answer: %v; want the end", err)
	}
}

// TestReadThatPromisesABody: nobody waits for ever for a body that has no use.
func TestReadThatPromisesABody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: answering(200)})
	for _, request := range []string{"GET /b/a", "GET /b/a?fence", "HEAD /b"} {
		t.Run(request, func(t *testing.T) {
			t.Parallel()
			c := f.dial(t)
			c.send("%s HTTP/1.1\nHost: localhost\nContent-Length: 5\n\n", request)
			resp, err := http.ReadResponse(c.in, &http.Request{Method: strings.Fields(request)[0]})
			if err != nil || resp.StatusCode != 200 || !resp.Close {
				t.Fatalf("%+v, %v", resp, err)
			}
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Error(err)
			}
			if _, err := c.in.ReadByte(); err != io.EOF {
				t.Errorf("after the answer: %v; want the end", err)
			}
		})
	}
}

// TestExpectIsNotAskedFor: who waits for 100 Continue is refused without being asked for its body, by us and by a backend that does not
// want it.
func TestExpectIsNotAskedFor(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/missing/") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		answering(200).ServeHTTP(w, r)
	})})
	f.want(200, "", "PUT", "/b/a", "x", "X-Fence-Token: 34")
	for path, want := range map[string]int{"/b/a": 412, "/missing/a": 404} {
		c := f.dial(t)
		c.send("PUT %s HTTP/1.1\nHost: localhost\nContent-Length: 1000000\nExpect: 100-continue\nX-Fence-Token: 33\n\n", path)
		if resp := c.answer(); resp.StatusCode != want {
			t.Errorf("%s: %d %v; want %d", path, resp.StatusCode, resp.Header, want)
		}
	}
	c := f.dial(t)
	c.send("PUT /b/a HTTP/1.1\nHost: localhost\nContent-Length: 1\nExpect: 100-continue\nX-Fence-Token: 34\n\n")
	if line, err := c.in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = c.in.ReadString('\n')
	c.send("x")
	if resp := c.answer(); resp.StatusCode != 200 {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}
