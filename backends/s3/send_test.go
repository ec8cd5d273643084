package s3

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

var modes = map[string]struct {
	stream bool
	hash   bool
}{"whole": {}, "chunks": {stream: true}, "hash": {stream: true, hash: true}}

func eachMode(t *testing.T, test func(t *testing.T, change func(*Options), headers func(content []byte) []string)) {
	for name, m := range modes {
		t.Run(name, func(t *testing.T) {
			test(t, func(o *Options) {
				if m.stream {
					o.Buffer = -1
				}
				o.AnswerTimeout, o.StallTimeout, o.DialTimeout = 300*time.Millisecond, 2*time.Second, time.Second
			}, func(content []byte) []string {
				if m.hash {
					return []string{"X-Amz-Content-Sha256", sha256Hex(content)}
				}
				return nil
			})
		})
	}
}

func streamed(change func(*Options)) bool {
	var o Options
	change(&o)
	return o.Buffer < 0
}

// TestHeldEnd looks at the socket while a body waits at the gate: the store has less than it could commit.
func TestHeldEnd(t *testing.T) {
	eachMode(t, func(t *testing.T, change func(*Options), headers func([]byte) []string) {
		for _, size := range []int{1, 2, chunkSize - 1, chunkSize, chunkSize + 1, 300_000, 1 << 20} {
			f := newFake(t, answering(ok))
			s := open(t, f.url, change)
			content := bytes.Repeat([]byte("z"), size)
			w := put(t.Context(), s, content, func() error {
				come := func() (n int, end bool) {
					f.mu.Lock()
					defer f.mu.Unlock()
					for _, c := range f.raw {
						_, body, _ := strings.Cut(string(c.came()), "\r\n\r\n")
						n, end = n+strings.Count(body, "z"), end || strings.Contains(body, crlf+"0;")
					}
					return n, end || len(f.all) > 0
				}
				// All but the last chunk arrives, or the store would have to take it in after the gate.
				for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
					if n, _ := come(); size-n <= chunkSize || !streamed(change) {
						break
					}
				}
				time.Sleep(20 * time.Millisecond)
				if n, end := come(); n >= size || end || size-n > chunkSize && streamed(change) {
					t.Errorf("%d bytes: %d of them, the end %v, are at the store before the gate", size, n, end)
				}
				return nil
			}, headers(content)...)
			if w.Code != 200 || len(f.requests()) != 1 {
				t.Errorf("%d bytes: %d %s", size, w.Code, w.Body)
			}
		}
	})
}

// TestBodyFails: a body that fails is never whole at the store, and is answered with what says that nothing was changed.
func TestBodyFails(t *testing.T) {
	eachMode(t, func(t *testing.T, change func(*Options), headers func([]byte) []string) {
		const size = 150_000
		content := make([]byte, size)
		for tenth := range 11 {
			for _, failure := range []error{io.ErrUnexpectedEOF, errBody, io.EOF} {
				if failure == io.EOF && tenth == 10 {
					continue
				}
				f := newFake(t, answering(ok))
				s := open(t, f.url, change)
				r := httptest.NewRequest(http.MethodPut, "/bucket/key", nil)
				r.Body = &gated{Reader: bytes.NewReader(content[:size*tenth/10]), atGate: func() error { return failure }}
				r.ContentLength = size
				for i, h := 0, headers(content); i < len(h); i += 2 {
					r.Header.Set(h[i], h[i+1])
				}
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "<Code>IncompleteBody</Code>") {
					t.Errorf("%d tenths, then %v: %d %s", tenth, failure, w.Code, w.Body)
				}
				if n := len(f.requests()); n > 0 {
					t.Errorf("%d tenths, then %v: the store has a whole request", tenth, failure)
				}
			}
		}
	})
}

// TestNothingIsSentTwice hangs up on the second request of each connection, after it came whole, as a store does whose keep-alive is
// over. Only a read may come again.
func TestNothingIsSentTwice(t *testing.T) {
	for _, test := range []struct {
		method, body string
		times        int
	}{
		{"GET", "", 2}, {"HEAD", "", 2}, {"DELETE", "", 1}, {"PUT", "", 1}, {"PUT", "content", 1}, {"POST", "", 1}, {"POST", "content", 1},
	} {
		for _, change := range []func(*Options){func(*Options) {}, streaming} {
			f := newFake(t, func(f *fake, c *recording, n int) {
				if _, err := f.request(c); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					_, _ = f.request(c)
				}
			})
			s := open(t, f.url, change)
			if w := do(s, "GET", "/bucket/warm", nil); w.Code != 200 {
				t.Fatal(w.Code)
			}
			w := do(s, test.method, "/bucket/key", strings.NewReader(test.body), "Idempotency-Key", "1", "X-Idempotency-Key", "1")
			if n := len(f.requests()) - 1; n != test.times {
				t.Errorf("%s %q reached the store %d times, want %d", test.method, test.body, n, test.times)
			}
			want := http.StatusBadGateway
			if test.times > 1 {
				want = 200
			}
			if w.Code != want {
				t.Errorf("%s %q: %d %s, want %d", test.method, test.body, w.Code, w.Body, want)
			}
		}
	}
}

// TestStaleConnection lets the store close idle connections, as it does after a while. A write that meets one reaches the store once, or
// is said not to have reached it.
func TestStaleConnection(t *testing.T) {
	f := newFake(t, func(f *fake, c *recording, _ int) {
		if _, err := f.request(c); err == nil {
			_, _ = io.WriteString(c, ok)
		}
	})
	s := open(t, f.url)
	for round := range 200 {
		before := len(f.requests())
		w := do(s, http.MethodDelete, "/bucket/key", nil)
		if n := len(f.requests()) - before; n > 1 || n == 1 && w.Code == 503 || n == 0 && w.Code == 200 {
			t.Fatalf("round %d: answered %d, and %d requests came", round, w.Code, n)
		}
	}
}

// TestOutcomes: what the store does, and what it is answered with.
func TestOutcomes(t *testing.T) {
	const (
		slow  = "HTTP/1.1 503 Slow Down\r\nContent-Length: 34\r\n\r\n<Error><Code>SlowDown</Code></Err>"
		mesh  = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nreset"
		fails = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno"
		is412 = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 2\r\n\r\nno"
	)
	silent := func(f *fake, c *recording, _ int) {
		if _, err := f.request(c); err == nil {
			_, _ = f.request(c) // until the other side hangs up
		}
	}
	for name, test := range map[string]struct {
		store  func(*fake, *recording, int)
		status int
		sent   int // requests that came whole
	}{
		"ok":                      {answering(ok), 200, 1},
		"refuses":                 {answering(is412), 412, 1},
		"fails":                   {answering(fails), 500, 1},
		"slows down":              {answering(slow), 503, 1},
		"something lost it":       {answering(mesh), 502, 1},
		"never answers":           {silent, 504, 1},
		"hangs up after it":       {func(f *fake, c *recording, _ int) { _, _ = f.request(c) }, 502, 1},
		"hangs up at once":        {func(*fake, *recording, int) {}, 503, 0},
		"hangs up after the head": {func(_ *fake, c *recording, _ int) { _, _ = readHead(c) }, 503, 0},
		"answers half": {func(f *fake, c *recording, _ int) {
			_, _ = f.request(c)
			_, _ = io.WriteString(c, "HTTP/1.1 412 Precon")
		}, 502, 1},
		"answers half an error": {func(f *fake, c *recording, _ int) {
			_, _ = f.request(c)
			_, _ = io.WriteString(c, "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 100\r\n\r\n<Err")
		}, 502, 1},
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, change func(*Options), headers func([]byte) []string) {
				f := newFake(t, test.store)
				s := open(t, f.url, change)
				content := make([]byte, 400_000) // more than sockets hold
				w := put(t.Context(), s, content, func() error { return nil }, headers(content)...)
				if test.sent == 0 && w.Code == 502 && !streamed(change) {
					return // the kernel took all of it at once, and where it went nobody knows
				}
				if w.Code != test.status || len(f.requests()) != test.sent {
					t.Errorf("%d %s, want %d; %d requests came whole", w.Code, w.Body, test.status, len(f.requests()))
				}
			})
		})
	}
	t.Run("is not there", func(t *testing.T) {
		eachMode(t, func(t *testing.T, change func(*Options), headers func([]byte) []string) {
			s := open(t, "http://"+freeAddress(t), change)
			if w := put(t.Context(), s, []byte("content"), func() error { return nil }, headers([]byte("content"))...); w.Code != 503 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if w := do(s, "DELETE", "/bucket/key", nil); w.Code != 503 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if w := do(s, "HEAD", "/bucket/key", nil); w.Code != 503 || w.Body.Len() > 0 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	})
}

// TestCancel: before the gate a client that leaves takes its request along; past it, nobody does.
func TestCancel(t *testing.T) {
	eachMode(t, func(t *testing.T, change func(*Options), headers func([]byte) []string) {
		content := make([]byte, 200_000)
		ctx, cancel := context.WithCancel(t.Context())
		f := newFake(t, func(f *fake, c *recording, _ int) {
			if _, err := f.request(c); err == nil {
				cancel() // past the gate, before the answer
				time.Sleep(50 * time.Millisecond)
				_, _ = io.WriteString(c, ok)
			}
		})
		s := open(t, f.url, change)
		if w := put(ctx, s, content, func() error { return nil }, headers(content)...); w.Code != 200 {
			t.Errorf("cancelled past the gate: %d %s", w.Code, w.Body)
		}
		if !streamed(change) {
			return // the body has ended before the store was called
		}
		before, cancel := context.WithCancel(t.Context())
		w := put(before, s, content, func() error {
			cancel()
			time.Sleep(50 * time.Millisecond)
			return nil
		}, headers(content)...)
		if w.Code != 503 || len(f.requests()) != 1 {
			t.Errorf("cancelled before the gate: %d %s; %d requests came whole", w.Code, w.Body, len(f.requests()))
		}
	})
}

// TestEarlyAnswer: a store that does not want the body says so before it has come. The body is not read after ServeHTTP has returned, and
// an early success is none.
func TestEarlyAnswer(t *testing.T) {
	for name, early := range map[string]struct {
		proceed bool
		answer  string
		status  int
	}{
		"404 at once":          {false, "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", 404},
		"404 after 100":        {true, "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", 404},
		"503 after 100":        {true, "HTTP/1.1 503 Nope\r\nContent-Length: 2\r\n\r\nno", 503},
		"success after 100":    {true, ok, 502},
		"success at once":      {false, ok, 502},
		"early hints, then ok": {true, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok, 502},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, func(_ *fake, c *recording, _ int) {
				if _, err := readHead(c); err != nil {
					return
				}
				if early.proceed {
					_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
					_, _ = io.ReadFull(c.in, make([]byte, 10))
				}
				_, _ = io.WriteString(c, early.answer)
				_, _ = io.Copy(io.Discard, c.in)
			})
			s := open(t, f.url, streaming)
			arrived := make(chan struct{})
			body := &gated{Reader: io.MultiReader(bytes.NewReader(make([]byte, 2*chunkSize)), slowly(50, 20*time.Millisecond)), atGate: func() error {
				close(arrived)
				return nil
			}}
			r := httptest.NewRequest(http.MethodPut, "/bucket/key", nil)
			r.Body, r.ContentLength = body, 2*chunkSize+50
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			reads := body.reads // the race detector sees a reader that goes on
			if w.Code != early.status {
				t.Errorf("%d %s, want %d", w.Code, w.Body, early.status)
			}
			if !early.proceed && reads > 0 && early.status == 404 { // after a success the transport sends on
				t.Errorf("the body was read %d times, and the store had not asked for it", reads)
			}
			select {
			case <-arrived:
				t.Error("the gate was reached by a write that the store had refused")
			default:
			}
		})
	}
}

// slowly gives n bytes, one at a time.
func slowly(n int, wait time.Duration) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if n == 0 {
			return 0, io.EOF
		}
		time.Sleep(wait)
		n--
		p[0] = 'x'
		return 1, nil
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestStreamedAnswer: whitespace that keeps a client waiting comes through as it is sent, a HEAD has no body, and half an answer is
// not made to look whole.
func TestStreamedAnswer(t *testing.T) {
	next := make(chan struct{})
	var cut sync.Once
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/bucket/wait":
			for _, piece := range []string{" ", " ", "<Done/>"} {
				_, _ = io.WriteString(w, piece)
				w.(http.Flusher).Flush()
				<-next
			}
		case "/bucket/cut":
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			cut.Do(func() { panic(http.ErrAbortHandler) })
		case "/bucket/same":
			w.Header().Set("Etag", `"e"`)
			w.WriteHeader(http.StatusNotModified)
		}
	}))
	defer store.Close()
	front := httptest.NewServer(open(t, store.URL))
	defer front.Close()
	c := front.Client()
	answer, err := c.Post(front.URL+"/bucket/wait?uploadId=1", "text/xml", strings.NewReader("<X/>"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := io.ReadFull(answer.Body, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		next <- struct{}{}
	}
	close(next)
	if rest, err := io.ReadAll(answer.Body); err != nil || string(rest) != "<Done/>" {
		t.Errorf("%q %v", rest, err)
	}
	_ = answer.Body.Close()
	if answer, err = c.Get(front.URL + "/bucket/cut"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(answer.Body); err == nil {
		t.Errorf("half an answer looks whole: %q", got)
	}
	_ = answer.Body.Close()
	if answer, err = c.Get(front.URL + "/bucket/same"); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(answer.Body); answer.StatusCode != 304 || len(got) > 0 || answer.Header.Get("Etag") != `"e"` {
		t.Errorf("%d %v %q", answer.StatusCode, answer.Header, got)
	}
	_ = answer.Body.Close()
}
