package s3

import (
	"context"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const slowDown = "<Code>SlowDown</Code>"

// stuck reads the head of a request, and of the body what comes before the gate, and takes no more.
func stuck(f *fake, c *recording, _ int) {
	if g, err := readHead(c); err == nil {
		if g.Header.Get("Expect") != "" {
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
			if !inChunks(g.Header) { // all but the last byte
				_, _ = io.CopyN(io.Discard, g.Body, g.ContentLength-1)
			}
		}
		<-f.Context().Done()
	}
}

// TestSendTime holds the store to a third of its settle time, and 20 s: a write that it has not taken by then is cut off, and nothing of it
// is done.
func TestSendTime(t *testing.T) {
	for name, test := range map[string]struct {
		settle, long time.Duration
		ask          string
		limit        time.Duration
	}{
		"default":        {0, 0, "PUT /bucket/key", 20 * time.Second},
		"short":          {30 * time.Second, 0, "PUT /bucket/key", 10 * time.Second},
		"batch":          {3 * time.Second, 30 * time.Second, "POST /bucket?delete", 10 * time.Second},
		"complete":       {3 * time.Second, 30 * time.Second, "POST /bucket/key?uploadId=1", 10 * time.Second},
		"neither":        {3 * time.Second, 30 * time.Second, "POST /bucket/key?uploads", time.Second},
		"long by itself": {90 * time.Second, time.Second, "POST /bucket?delete", 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, m mode) {
				const size = 60_000 // less than a chunk
				f := newMemory(t, stuck)
				s := f.open(func(o *Options) { o.Settle, o.SettleLong = test.settle, test.long })
				var passed time.Time
				method, target, _ := strings.Cut(test.ask, " ")
				r := m.request(t.Context(), target, make([]byte, size), size, func() error {
					time.Sleep(time.Hour) // before the gate there is all the time that there is
					passed = time.Now()
					return nil
				})
				r.Method = method
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				if took := time.Since(passed); w.Code != 503 || !strings.Contains(w.Body.String(), slowDown) || took != test.limit {
					t.Errorf("%d %s after %s, want 503 after %s", w.Code, w.Body, took, test.limit)
				}
			})
		})
	}
}

// TestSendTimeEnds: once the store has the whole request, its answer has its own time; and a connection that is used again has no
// deadline left over.
func TestSendTimeEnds(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		f := newMemory(t, func(f *fake, c *recording, _ int) {
			for {
				g, err := f.request(c)
				if err != nil {
					return
				}
				if g.Method == "PUT" {
					time.Sleep(59 * time.Second)
				}
				_, _ = io.WriteString(c, ok)
			}
		})
		s := f.open()
		for range 2 {
			if w := m.put(t.Context(), s, make([]byte, 200_000), passes); w.Code != 200 {
				t.Errorf("an answer after 59 s: %d %s", w.Code, w.Body)
			}
			time.Sleep(15 * time.Second)
			if w := do(s, "GET", "/bucket/key", nil); w.Code != 200 {
				t.Errorf("a read after a write: %d %s", w.Code, w.Body)
			}
		}
		if len(f.raw) != 1 {
			t.Errorf("%d connections", len(f.raw))
		}
	})
}

// TestNoConnection: the wait for a connection is part of the time, too.
func TestNoConnection(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		if !m.whole {
			return // it connects before its gate
		}
		began := time.Now()
		s := open(t, "http://store.test", func(o *Options) {
			o.Boot = func() time.Duration { return time.Since(began) }
			o.DialTimeout = time.Hour
			o.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		w := m.put(t.Context(), s, []byte("content"), passes)
		if took := time.Since(began); w.Code != 503 || !strings.Contains(w.Body.String(), slowDown) || took != maxSend {
			t.Errorf("%d %s after %s", w.Code, w.Body, took)
		}
		time.Sleep(time.Hour) // the transport's dial ends by itself
	})
}

// A sleeper is a machine that sleeps right after it has next looked at its clock, if it is tired.
type sleeper struct {
	since time.Time
	slept atomic.Int64
	tired atomic.Bool
}

func (s *sleeper) boot() time.Duration {
	now := time.Since(s.since) + time.Duration(s.slept.Load())
	if s.tired.CompareAndSwap(true, false) {
		s.slept.Add(int64(time.Hour))
	}
	return now
}

// TestSleepingMachine: one that sleeps between the gate and the store, while its timers stand still, sends nothing when it wakes up.
func TestSleepingMachine(t *testing.T) {
	for _, ask := range []string{"PUT /bucket/key", "DELETE /bucket/key", "POST /bucket?delete"} {
		for _, m := range append(modes, mode{name: "document"}) {
			bubble(t, ask+" "+m.name, func(t *testing.T) {
				f := newMemory(t, answering(ok))
				machine := sleeper{since: time.Now()}
				s := f.open(func(o *Options) { o.Boot = machine.boot })
				for range 3 {
					if w := do(s, "GET", "/bucket/key", nil); w.Code != 200 { // there are connections to use again
						t.Fatal(w.Code)
					}
				}
				before, began := len(f.requests()), time.Now()
				method, target, _ := strings.Cut(ask, " ")
				r := m.request(t.Context(), target, []byte("content"), 7, func() error {
					machine.tired.Store(true)
					return nil
				})
				r.Method = method
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				synctest.Wait()
				if w.Code != 503 || !strings.Contains(w.Body.String(), slowDown) || len(f.requests()) > before || time.Since(began) > 0 {
					t.Errorf("%d %s, %d requests came whole, after %s", w.Code, w.Body, len(f.requests())-before, time.Since(began))
				}
			})
		}
	}
}

// TestWakesBeforeTheWire sleeps later than that: when the deadline was looked at, and the request goes to the connection.
func TestWakesBeforeTheWire(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		for looks := range 8 {
			f := newMemory(t, answering(ok))
			machine := sleeper{since: time.Now()}
			var left atomic.Int64
			left.Store(-1)
			s := f.open(func(o *Options) {
				o.Boot = func() time.Duration {
					if left.Add(-1) == 0 {
						machine.tired.Store(true)
					}
					return machine.boot()
				}
			})
			w := m.put(t.Context(), s, make([]byte, 200_000), func() error {
				left.Store(int64(looks) + 1)
				return nil
			})
			synctest.Wait()
			if whole := len(f.requests()) == 1; whole != (w.Code == 200) || !whole && w.Code != 503 {
				t.Errorf("asleep after look %d: %d %s, the store has a whole request: %v", looks, w.Code, w.Body, whole)
			}
		}
	})
}

// TestTorn: of a store that the probe has seen make objects of torn bodies, nothing is said that only others keep.
func TestTorn(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		f := newMemory(t, stuck)
		s := f.open()
		s.found.Store(&Findings{Torn: true, Unhashed: true, Trailers: true})
		if w := m.put(t.Context(), s, make([]byte, 60_000), passes); w.Code != 504 && w.Code != 502 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := do(s, "DELETE", "/bucket/key", nil); w.Code != 504 { // it has no body to tear
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestProgress finds the end of the head wherever it is cut.
func TestProgress(t *testing.T) {
	const request = "PUT / HTTP/1.1\r\nA: \r\r\nB: b\r\n\r\nbody\r\n\r\n"
	const body = 8
	for i := range len(request) {
		for j := i; j < len(request); j++ {
			var p progress
			for _, piece := range []string{request[:i], request[i:j], request[j:]} {
				if p.whole(body) {
					t.Fatalf("cut at %d and %d: whole before the end", i, j)
				}
				p.add([]byte(piece))
			}
			if !p.whole(body) || p.body != body {
				t.Fatalf("cut at %d and %d: %+v", i, j, p)
			}
		}
	}
}
