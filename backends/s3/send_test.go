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
	"testing/synctest"
	"time"
)

// TestHeldEnd looks at the wire while a body waits at the gate: the store has less than it could commit, and nothing of a body
// that is whole.
func TestHeldEnd(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		for _, size := range []int{1, 2, chunkSize - 1, chunkSize, chunkSize + 1, 300_000, 1 << 20} {
			f := newMemory(t, answering(ok))
			s := f.open()
			content := bytes.Repeat([]byte("z"), size)
			w := m.put(t.Context(), s, content, func() error {
				synctest.Wait() // what can arrive has
				n, end := 0, len(f.requests()) > 0
				f.mu.Lock()
				for _, c := range f.raw {
					_, body, _ := strings.Cut(string(c.came()), "\r\n\r\n")
					n, end = n+strings.Count(body, "z"), end || strings.Contains(body, crlf+"0;")
				}
				f.mu.Unlock()
				if n >= size || end || size-n > chunkSize && !m.whole || m.whole && len(f.raw) > 0 {
					t.Errorf("%d bytes: %d of them, the end %v, are at the store before the gate", size, n, end)
				}
				return nil
			})
			if w.Code != 200 || len(f.requests()) != 1 {
				t.Errorf("%d bytes: %d %s", size, w.Code, w.Body)
			}
		}
	})
}

// TestBodyFails: a body that fails is never whole at the store, and is answered with what says that nothing was changed.
func TestBodyFails(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		const size = 150_000
		content := make([]byte, size)
		for tenth := range 11 {
			for _, failure := range []error{io.ErrUnexpectedEOF, errBody, io.EOF} {
				if failure == io.EOF && tenth == 10 || m.whole && tenth < 10 {
					continue // no failure; not whole
				}
				f := newMemory(t, answering(ok))
				r := m.request(t.Context(), "/bucket/key", content[:size*tenth/10], size, func() error { return failure })
				if m.hash {
					r.Header.Set("X-Amz-Content-Sha256", sha256Hex(content))
				}
				w := httptest.NewRecorder()
				f.open().ServeHTTP(w, r)
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

// TestWholeBody: Pass is called once, with nothing of the request on its way, whatever the operation; and a body that cannot be
// read any more past its gate is said to have changed nothing.
func TestWholeBody(t *testing.T) {
	bubble(t, "operations", func(t *testing.T) {
		f := newMemory(t, answering(ok))
		s := f.open()
		for _, ask := range []string{
			"PUT /bucket/key", "DELETE /bucket/key", "PUT /bucket/key?tagging", "POST /bucket?delete", "POST /bucket/key?uploads", "POST /bucket/key?uploadId=1",
			"DELETE /bucket/key?uploadId=1", "PUT /bucket", "GET /bucket/key",
		} {
			for _, content := range []string{"", "content", strings.Repeat("x", 2<<20)} {
				method, target, _ := strings.Cut(ask, " ")
				before := len(f.requests())
				r := mode{whole: true}.request(t.Context(), target, []byte(content), len(content), func() error {
					if len(f.requests()) > before {
						t.Errorf("%s was sent before Pass", ask)
					}
					return nil
				})
				r.Method = method
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				g := f.requests()[before]
				checkSignature(t, g)
				if n := r.Body.(wholeBody).passes; w.Code != 200 || n != 1 || string(g.body) != content {
					t.Errorf("%s: %d %s, Pass was called %d times, %d bytes came", ask, w.Code, w.Body, n, len(g.body))
				}
			}
		}
	})
	bubble(t, "broken", func(t *testing.T) {
		f := newMemory(t, answering(ok))
		m := mode{whole: true}
		if w := m.put(t.Context(), f.open(), []byte("content"), func() error { return errBody }); w.Code != 400 || len(f.raw) > 0 {
			t.Errorf("a gate that is shut: %d %s, %d connections", w.Code, w.Body, len(f.raw))
		}
		r := m.request(t.Context(), "/bucket/key", []byte("half"), 8, passes)
		w := httptest.NewRecorder()
		if f.open().ServeHTTP(w, r); w.Code != 503 || len(f.requests()) > 0 {
			t.Errorf("half a body: %d %s", w.Code, w.Body)
		}
	})
}

// TestNothingIsSentTwice: trap 10, a retry of a success looks like a lost race. It hangs up on the second request of each connection, after it came whole, as a store does whose keep-alive
// is over. Only a read may come again.
func TestNothingIsSentTwice(t *testing.T) {
	for _, test := range []struct {
		method, body string
		times        int
	}{
		{"GET", "", 2}, {"HEAD", "", 2}, {"DELETE", "", 1}, {"PUT", "", 1}, {"PUT", "content", 1}, {"POST", "", 1}, {"POST", "content", 1},
	} {
		bubble(t, test.method+" "+test.body, func(t *testing.T) {
			f := newMemory(t, func(f *fake, c *recording, n int) {
				if _, err := f.request(c); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					_, _ = f.request(c)
				}
			})
			s := f.open()
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
		})
	}
}

// TestStaleConnection lets the store close idle connections, as it does after a while. A write that meets one reaches the store
// once, or is said not to have reached it.
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
			eachMode(t, func(t *testing.T, m mode) {
				f := newMemory(t, test.store)
				content := make([]byte, 400_000)
				w := m.put(t.Context(), f.open(), content, passes)
				if w.Code != test.status || len(f.requests()) != test.sent {
					t.Errorf("%d %s, want %d; %d requests came whole", w.Code, w.Body, test.status, len(f.requests()))
				}
			})
		})
	}
	t.Run("is not there", func(t *testing.T) {
		s := open(t, "http://"+freeAddress(t))
		for _, m := range modes {
			if w := m.put(t.Context(), s, []byte("content"), passes); w.Code != 503 {
				t.Errorf("%s: %d %s", m.name, w.Code, w.Body)
			}
		}
		if w := do(s, "DELETE", "/bucket/key", nil); w.Code != 503 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := do(s, "HEAD", "/bucket/key", nil); w.Code != 503 || w.Body.Len() > 0 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestCancel: before the gate a client that leaves takes its request along; past it, nobody does.
func TestCancel(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		content := make([]byte, 200_000)
		ctx, cancel := context.WithCancel(t.Context())
		f := newMemory(t, func(f *fake, c *recording, _ int) {
			if _, err := f.request(c); err == nil {
				cancel() // past the gate, before the answer
				synctest.Wait()
				_, _ = io.WriteString(c, ok)
			}
		})
		s := f.open()
		if w := m.put(ctx, s, content, passes); w.Code != 200 {
			t.Errorf("cancelled past the gate: %d %s", w.Code, w.Body)
		}
		if m.whole {
			return // whether it still passes is Pass's to say
		}
		before, cancel := context.WithCancel(t.Context())
		w := m.put(before, s, content, func() error {
			cancel()
			synctest.Wait()
			return nil
		})
		if w.Code != 503 || len(f.requests()) != 1 {
			t.Errorf("cancelled before the gate: %d %s; %d requests came whole", w.Code, w.Body, len(f.requests()))
		}
	})
}

// TestEarlyAnswer: trap 3, an early refusal that is lost as a reset. A store that does not want the body says so before it has come. The body is not read after ServeHTTP has
// returned, and an early success is none. This one is on real sockets and threads, whose order nobody can foresee.
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
			s := open(t, f.url)
			s.transport.ExpectContinueTimeout = time.Minute
			body := &gated{Reader: readerFunc(func(p []byte) (int, error) { return len(p), nil })} // does not end, and has no gate
			r := httptest.NewRequest(http.MethodPut, "/bucket/key", nil)
			r.Body, r.ContentLength = body, 1<<40
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			reads := body.reads // the race detector sees a reader that goes on
			if w.Code != early.status {
				t.Errorf("%d %s, want %d", w.Code, w.Body, early.status)
			}
			if !early.proceed && reads > 0 {
				t.Errorf("the body was read %d times, and the store had not asked for it", reads)
			}
		})
	}
}

// TestHalfAnAnswer: a store that begins to answer in the place of 100 Continue, and hangs up or falls silent, keeps nothing
// waiting for ever.
func TestHalfAnAnswer(t *testing.T) {
	for name, after := range map[string]func(c *recording){
		"hangs up": func(*recording) {},
		"silent":   func(c *recording) { _, _ = io.Copy(io.Discard, c.in) },
		"garbage": func(c *recording) {
			_, _ = io.WriteString(c, "\r\nno header\r\n\r\n")
			_, _ = io.Copy(io.Discard, c.in)
		},
	} {
		bubble(t, name, func(t *testing.T) {
			f := newMemory(t, func(_ *fake, c *recording, _ int) {
				if _, err := readHead(c); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 404 No")
					after(c)
				}
			})
			began := time.Now()
			w := mode{}.put(t.Context(), f.open(), make([]byte, 3*chunkSize), passes)
			took := time.Since(began)
			if name == "silent" { // it has the whole request by then
				if w.Code != 504 || took > answerWait+2*time.Minute {
					t.Errorf("%d %s after %s", w.Code, w.Body, took)
				}
			} else if w.Code != 503 || took > time.Second {
				t.Errorf("%d %s after %s", w.Code, w.Body, took)
			}
		})
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestStreamedAnswer: trap 8, whitespace that keeps a client waiting comes through as it is sent, a HEAD has no body, and half an answer is
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
