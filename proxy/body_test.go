package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// limits has bodies of up to buffer bytes kept in memory, all together in so much memory.
func limits(buffer, memory int64) func(*Config, *Backend) {
	return func(c *Config, _ *Backend) { c.Buffer, c.Memory = buffer, memory }
}

// spooling has large bodies kept in a file.
func spooling(c *Config, b *Backend) {
	c.Buffer = 10
	b.Probe = func(context.Context, string) (Findings, error) {
		return Findings{Conditions: all.Conditions, Spool: true}, nil
	}
}

// unspent checks that the memory for bodies is all there again.
func (r *remote) unspent() {
	r.Helper()
	if left := r.h.memory.left.Load(); left != r.h.Memory {
		r.Errorf("%d of %d bytes of memory are left", left, r.h.Memory)
	}
}

// unspooled checks that the spool has no file, and that none without a name is open.
func (r *remote) unspooled(open int) {
	r.Helper()
	entries, err := os.ReadDir(r.h.Spool)
	if err != nil || len(entries) > 0 {
		r.Errorf("the spool has %v, %v", entries, err)
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(fds) == 0 {
		return // another system
	}
	var files []string
	for _, fd := range fds {
		if name, err := os.Readlink(fd); err == nil && strings.HasPrefix(name, r.h.Spool+"/") {
			files = append(files, name)
		}
	}
	if len(files) != open {
		r.Errorf("%d files of the spool are open, want %d: %v", len(files), open, files)
	}
}

// TestWhatGoesWhole: documents, writes without a body, and objects as large as the buffer have a gate of their own, and the digest of what
// was verified. What is larger streams.
func TestWhatGoesWhole(t *testing.T) {
	t.Parallel()
	before(t, limits(10, 100), func(r *remote) {
		const token = "X-Fence-Token: 34"
		for size, whole := range map[int]bool{0: true, 1: true, 10: true, 11: false, 100: false} {
			content := strings.Repeat("x", size)
			r.want(200, "", "PUT", "/b/a", content, token)
			h := r.takeOne("PutObject")
			digest := sha256.Sum256([]byte(content))
			want := ""
			if whole {
				want = hex.EncodeToString(digest[:])
			}
			if h.whole != whole || h.header.Get("X-Amz-Content-Sha256") != want || h.body.String() != content {
				t.Errorf("%d bytes: whole %v, %v", size, h.whole, h.header)
			}
		}
		target, list := r.upload("b", "part", token)
		if !r.takeOne("UploadPart").whole || !r.takeOne("CreateMultipartUpload").whole {
			t.Error("a small part or a Create streams")
		}
		r.want(200, "", "PUT", target+"&partNumber=1", strings.Repeat("x", 11), token)
		if r.takeOne("UploadPart").whole {
			t.Error("a large part does not stream")
		}
		r.want(200, "", "PUT", target+"&partNumber=1", "part", token)
		r.want(200, "", "POST", target, list, token)
		r.want(200, "", "PUT", "/b/c", "", token, "X-Amz-Copy-Source: b/a")
		r.want(204, "", "DELETE", "/b/a", "", token)
		r.want(200, "", "POST", "/b?delete", deleteBody("b"), token)
		r.want(501, "NotImplemented", "PUT", "/b/a?tagging", "<Tagging/>", token)
		for _, name := range []string{"CompleteMultipartUpload", "CopyObject", "DeleteObject", "DeleteObjects", "PutObjectTagging"} {
			h := r.takeOne(name)
			digest := sha256.Sum256(h.body.Bytes())
			if !h.whole || h.header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(digest[:]) && name != "PutObjectTagging" {
				t.Errorf("%s: whole %v, %v", name, h.whole, h.header)
			}
		}
		r.unspent()
		r.settled()
	})
}

// TestDigestsOfTheClientStay: those of the content that it has sent ahead, with the one that we take beside.
func TestDigestsOfTheClientStay(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.want(200, "", "PUT", "/b/a", "data", "X-Fence-Token: 34", "Content-MD5: jXd/OF09/siBXSD3SWAm3A==", "X-Amz-Content-Sha256: UNSIGNED-PAYLOAD",
			"X-Amz-Checksum-Sha256: Om6weQ85rIfJTzhWst0sXREOaBFgImGpqSPTuyOtyLc=")
		h := r.takeOne("PutObject").header
		if h.Get("Content-Md5") == "" || h.Get("X-Amz-Checksum-Sha256") == "" ||
			h.Get("X-Amz-Content-Sha256") != "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7" {
			t.Errorf("%v", h)
		}
	})
}

// TestMemoryIsSpent: nobody waits for it. What finds none left streams, and what was taken is given back.
func TestMemoryIsSpent(t *testing.T) {
	t.Parallel()
	before(t, limits(100, 150), func(r *remote) {
		const token = "X-Fence-Token: 34"
		answer := make(chan struct{})
		r.fault("PutObject", misbehave.Fault{Until: answer})
		var first sync.WaitGroup
		first.Go(func() { r.want(200, "", "PUT", "/b/a", strings.Repeat("a", 100), token) })
		synctest.Wait()
		if left := r.h.memory.left.Load(); left != 50 {
			t.Errorf("%d bytes are left, want 50", left)
		}
		r.take("PutObject")
		for size, whole := range map[int]bool{100: false, 51: false, 50: true} {
			r.want(200, "", "PUT", "/b/b", strings.Repeat("b", size), token)
			if h := r.takeOne("PutObject"); h.whole != whole {
				t.Errorf("%d bytes: whole %v, want %v", size, h.whole, whole)
			}
		}
		close(answer)
		first.Wait()
		r.unspent()
		r.want(200, "", "PUT", "/b/b", strings.Repeat("b", 100), token)
		if !r.takeOne("PutObject").whole {
			t.Error("it streams, with all memory unspent")
		}
		r.unspent()
	})
}

// again begins again with key a: what was in doubt has settled, and an operator has taken its token down.
func (r *remote) again() {
	r.Helper()
	r.sleep(time.Hour)
	if _, err := r.fence.Reset(r.Context(), "b/a", 0); err != nil {
		r.Fatal(err)
	}
	r.h.etags.forget("b/a")
}

// broken is a body that ends too early.
func broken(n int) io.Reader {
	return io.MultiReader(strings.NewReader(strings.Repeat("x", n)), iotest.ErrReader(io.ErrUnexpectedEOF))
}

// TestAbortOfOnesOwnGivesItsMemoryBack: a stale holder's abort is let through past the gate, on a way of its own.
func TestAbortOfOnesOwnGivesItsMemoryBack(t *testing.T) {
	t.Parallel()
	before(t, limits(100<<10, 1<<20), func(r *remote) {
		created := r.want(200, "", "POST", "/b/a?uploads", "", "X-Fence-Token: 33").Body.String()
		_, id, _ := strings.Cut(created, "<UploadId>")
		id, _, _ = strings.Cut(id, "<")
		r.want(200, "", "PUT", "/b/a", "x", "X-Fence-Token: 34")
		r.want(204, "", "DELETE", "/b/a?uploadId="+id, strings.Repeat("x", 90<<10), "X-Fence-Token: 33")
		r.unspent()
	})
}

// TestWhatABodyTookIsGivenBack, in memory and in the spool, whatever becomes of the write.
func TestWhatABodyTookIsGivenBack(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("x", 50)
	const token = "X-Fence-Token: 34"
	outcomes := map[string]func(r *remote){
		"success": func(r *remote) { r.want(200, "", "PUT", "/b/a", content, token) },
		"wrong checksum": func(r *remote) {
			r.want(400, "BadDigest", "PUT", "/b/a", content, token, "Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==")
		},
		"client gone": func(r *remote) {
			r.check(r.serve(r.request("PUT", "/b/a", broken(40), 50, token)), 400, "IncompleteBody")
		},
		"stale": func(r *remote) {
			r.want(200, "", "PUT", "/b/a", "x", "X-Fence-Token: 35")
			r.want(412, "StaleToken", "PUT", "/b/a", content, token)
		},
		"stale at the gate": func(r *remote) {
			r.interfere("HeadObject", func(*call) { r.want(200, "", "PUT", "/b/a?fence", "", "X-Fence-Token: 35") })
			r.want(412, "StaleToken", "PUT", "/b/a", content, token)
		},
		"store does not say": func(r *remote) {
			r.fault("HeadObject", misbehave.Fault{Status: 500})
			r.want(503, "ServiceUnavailable", "PUT", "/b/a", content, token)
		},
		"refused by the store": func(r *remote) {
			r.fault("PutObject", misbehave.Fault{Status: 403, Code: "AccessDenied", Lose: true})
			r.want(403, "AccessDenied", "PUT", "/b/a", content, token)
		},
		"in doubt": func(r *remote) {
			r.fault("PutObject", misbehave.Fault{Drop: true})
			r.want(504, "OutcomeUnknown", "PUT", "/b/a", content, token)
		},
		"lost races": func(r *remote) {
			for i := range maxTries {
				r.race("PutObject", "a", fmt.Sprint(i))
			}
			r.want(503, "SlowDown", "PUT", "/b/a", content, token)
		},
		"panic in the backend": func(r *remote) {
			r.interfere("PutObject", func(c *call) {
				_, _ = io.Copy(io.Discard, c.Body) // to the gate, where it is at the end
				panic("boom")
			})
			r.want(504, "OutcomeUnknown", "PUT", "/b/a", content, token)
		},
		"not fenced": func(r *remote) { r.want(200, "", "PUT", "/b/free/a", content) },
	}
	for where, change := range map[string]func(*Config, *Backend){"memory": nil, "spool": spooling} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			before(t, change, func(r *remote) {
				for what, run := range outcomes {
					t.Log(what)
					run(r)
					r.unspent()
					r.unspooled(0)
					r.again()
				}
			}, rules.Rule{Match: "free/**", Token: rules.Off})
		})
	}
}

// TestWrongChecksumStopsBeforeTheStore: it hears nothing of a whole body that is not what was announced, and no mark moves.
func TestWrongChecksumStopsBeforeTheStore(t *testing.T) {
	t.Parallel()
	for where, change := range map[string]func(*Config, *Backend){"memory": nil, "spool": spooling} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			before(t, change, func(r *remote) {
				for header, code := range map[string]string{
					"Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==":                                                  "BadDigest",
					"X-Amz-Checksum-Crc32: AAAAAA==":                                                         "BadDigest",
					"X-Amz-Content-Sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": "XAmzContentSHA256Mismatch",
				} {
					r.want(400, code, "PUT", "/b/a", "content that is longer than ten bytes", "X-Fence-Token: 34", header)
				}
				r.check(r.serve(r.request("PUT", "/b/a", broken(30), 50, "X-Fence-Token: 34")), 400, "IncompleteBody")
				r.mu.Lock()
				if len(r.heard) != 0 {
					t.Errorf("the store has heard of %d requests", len(r.heard))
				}
				r.mu.Unlock()
				if m := r.mark("b/a"); m != 0 || r.tries() != 0 {
					t.Errorf("the mark is at %d, and %d writes stood at the gate", m, r.tries())
				}
				r.settled()
			})
		})
	}
}

// TestSpool: a store that may make pieces of a body the object gets a large one from a file, which has no name, verified, and with its SHA-256;
// behind the gate as a whole only if it does not even look at that.
func TestSpool(t *testing.T) {
	t.Parallel()
	for _, unhashed := range []bool{false, true} {
		testSpool(t, unhashed)
	}
}

func testSpool(t *testing.T, unhashed bool) {
	change := func(c *Config, b *Backend) {
		spooling(c, b)
		probe := b.Probe
		b.Probe = func(ctx context.Context, bucket string) (Findings, error) {
			f, err := probe(ctx, bucket)
			f.Unhashed = unhashed
			return f, err
		}
	}
	before(t, change, func(r *remote) {
		content := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
		r.interfere("PutObject", func(*call) { r.unspooled(1) })
		in := r.request("PUT", "/b/a", iotest.HalfReader(bytes.NewReader(content)), len(content), "X-Fence-Token: 34")
		r.check(r.serve(in), 200, "")
		r.has("a", string(content))
		digest := sha256.Sum256(content)
		if h := r.takeOne("PutObject"); h.whole != unhashed || h.header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(digest[:]) {
			t.Errorf("whole %v, %v", h.whole, h.header)
		}
		r.race("PutObject", "a", "quicker") // it can be sent again
		r.want(200, "", "PUT", "/b/a", string(content), "X-Fence-Token: 34")
		r.has("a", string(content))
		r.unspooled(0)
		r.unspent()
	})
}

// TestSpoolThatFails: nothing is written, nor is the fence open.
func TestSpoolThatFails(t *testing.T) {
	t.Parallel()
	change := func(c *Config, b *Backend) {
		spooling(c, b)
		c.Spool = filepath.Join(c.Spool, "missing")
	}
	before(t, change, func(r *remote) {
		r.want(500, "InternalError", "PUT", "/b/a", strings.Repeat("x", 100), "X-Fence-Token: 34")
		r.quiet()
		r.settled()
		r.want(200, "", "PUT", "/b/a", "small", "X-Fence-Token: 34")
	})
}

// TestARaiseCutsOffAWholeBody: the older holder's upload, which the store has not heard of yet, is refused within moments, however long
// its client pauses.
func TestARaiseCutsOffAWholeBody(t *testing.T) {
	t.Parallel()
	for where, change := range map[string]func(*Config, *Backend){"memory": nil, "spool": spooling, "stream": limits(10, 0)} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			before(t, change, func(r *remote) {
				c := r.dial()
				fmt.Fprintf(c, "PUT /b/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nX-Fence-Token: 33\r\n\r\nhalf of it")
				synctest.Wait()
				if where == "spool" {
					r.unspooled(1)
				}
				start := time.Now()
				r.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 34")
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				if resp.StatusCode != 412 || resp.Header.Get("X-Fence-Error") != "StaleToken" || !resp.Close {
					t.Errorf("%d %v", resp.StatusCode, resp.Header)
				}
				if waited := time.Since(start); waited > 5*time.Second {
					t.Errorf("it took %v", waited)
				}
				r.has("a", "newer")
				synctest.Wait()
				r.unspent()
				r.unspooled(0)
				r.settled()
			})
		})
	}
}

// dial connects to a server of the handler's, in memory.
func (r *remote) dial() net.Conn {
	r.Helper()
	network := misbehave.NewNetwork()
	server := &http.Server{Handler: r.h}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(network); !errors.Is(err, http.ErrServerClosed) {
			r.Error(err)
		}
	})
	c, err := network.Dial(r.Context(), "", "")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		serving.Wait()
	})
	return c
}

// TestAStoreInThisProcessGetsWhatComes: it needs no copy of a body, and nobody looks at its keys.
func TestAStoreInThisProcessGetsWhatComes(t *testing.T) {
	t.Parallel()
	change := func(_ *Config, b *Backend) { b.Probe, b.Stamp = nil, false }
	before(t, change, func(r *remote) {
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		if h := r.takeOne("PutObject"); h.whole || h.header.Get("If-None-Match") != "" {
			t.Errorf("whole %v, %v", h.whole, h.header)
		}
		r.want(204, "", "DELETE", "/b/missing", "", "X-Fence-Token: 34")
		r.takeOne("DeleteObject")
		if n := len(r.take("HeadObject")); n != 0 {
			t.Errorf("%d looks", n)
		}
	})
}

// TestASpoolThatEndsEarlyIsNoBody: its gate is not asked, and what was sent is no object.
func TestASpoolThatEndsEarlyIsNoBody(t *testing.T) {
	c := &content{ReaderAt: strings.NewReader("short"), size: 10, late: true}
	out := httptest.NewRequest("PUT", "/b/a", nil)
	body := c.deliver(out, func() error {
		t.Error("the gate was asked")
		return nil
	})
	if got, err := io.ReadAll(out.Body); err == nil || body.passed() || body.failure() == nil {
		t.Errorf("%q, %v, passed %v", got, err, body.passed())
	}
}
