package s3

import (
	"io"
	"strings"
	"testing"
)

// taking reads the head of a request and so many bytes behind it, and takes no more.
func taking(n int64) func(*fake, *recording, int) {
	return func(f *fake, c *recording, _ int) {
		g, err := readHead(c)
		if err != nil {
			return
		}
		if g.Header.Get("Expect") != "" {
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		_, _ = io.CopyN(io.Discard, c, n-int64(c.in.Buffered()))
		<-f.Context().Done()
	}
}

// emptyTail is what a chunked body has behind its data, in bytes: the line end of the last chunk, and the empty one.
const emptyTail = int64(len("\r\n0;chunk-signature=") + 64 + len("\r\n\r\n"))

// TestLastChunk: a store that has all data of a chunked body may make it the object, without the empty chunk behind it (versitygw does) and what ends the
// data. It is "nothing was changed" only while a byte of the data is missing.
func TestLastChunk(t *testing.T) {
	for _, size := range []int{1, 60_000, chunkSize, 3 * chunkSize, 3*chunkSize + 1} {
		data := framedLength(int64(size)) - emptyTail
		for taken, definite := range map[int64]bool{data - 1: true, data: false, data + 1: false, data + 2: false, data + emptyTail - 1: false} {
			bubble(t, "", func(t *testing.T) {
				f := newMemory(t, taking(taken))
				w := mode{}.put(t.Context(), f.open(), make([]byte, size), passes)
				switch unchanged := strings.Contains(w.Body.String(), "Nothing was changed"); {
				case unchanged != definite, definite && w.Code != 503, !definite && w.Code != 504 && w.Code != 502:
					t.Errorf("%d bytes, of whose chunks the store has taken all but %d: %d %s", size, framedLength(int64(size))-taken, w.Code, w.Body)
				}
			})
		}
	}
}

// TestWholeLength: what has no chunks is not the object before its last byte.
func TestWholeLength(t *testing.T) {
	const size = 60_000
	for _, m := range modes {
		for taken, definite := range map[int64]bool{size - emptyTail: true, size - 1: true, size: false} {
			if !m.whole && !m.hash {
				continue
			}
			bubble(t, m.name, func(t *testing.T) {
				f := newMemory(t, taking(taken))
				w := m.put(t.Context(), f.open(), make([]byte, size), passes)
				if definite != (w.Code == 503) || !definite && w.Code != 504 && w.Code != 502 {
					t.Errorf("the store has taken %d of %d bytes: %d %s", taken, size, w.Code, w.Body)
				}
			})
		}
	}
}

// TestTornByHash: a store that makes objects of torn bodies, and checks a SHA-256 that it was told, makes none of one that has it; so is a store
// taken that could not be asked. Of one that does not look at the hash either, nothing is said.
func TestTornByHash(t *testing.T) {
	torn, unhashed := Findings{Torn: true, Trailers: true}, Findings{Torn: true, Unhashed: true, Trailers: true}
	for what, found := range map[string]*Findings{"not asked yet": nil, "good": {Trailers: true}, "torn": &torn, "unhashed": &unhashed, "skipped": ptr(cautious("no permission"))} {
		t.Run(what, func(t *testing.T) {
			eachMode(t, func(t *testing.T, m mode) {
				f := newMemory(t, stuck)
				s := f.open()
				s.found.Store(found)
				hashed := m.whole || m.hash
				definite := map[string]bool{"not asked yet": true, "good": true, "torn": hashed, "skipped": hashed}[what]
				w := m.put(t.Context(), s, make([]byte, 60_000), passes)
				if m.kind != "" && found != nil && !found.Trailers {
					if w.Code != 501 || len(f.raw) > 0 {
						t.Errorf("a checksum behind the body, which the store does not take: %d %s", w.Code, w.Body)
					}
					return
				}
				if definite != (w.Code == 503) || !definite && w.Code != 504 && w.Code != 502 {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		})
	}
}

func ptr[T any](v T) *T { return &v }
