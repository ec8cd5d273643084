package integration

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// hidden is a request that an attacker hides in what the proxy has to take for something else. Were it ever executed, its key would be
// there, and its resource fenced.
const hidden = "PUT /bkt/jobs/hidden/k HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 99\r\nContent-Length: 8\r\n\r\nsmuggled"

// smuggle sends text on one connection, reads whatever is answered until the proxy closes it, and wants nothing of it to have been done.
func (p *proxy) smuggle(t *testing.T, name, text string) {
	t.Helper()
	p.unmoved(t, name, func() {
		c := p.dial(t)
		defer c.Close()
		c.say("%s", text)
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		said, err := io.ReadAll(c.r)
		if err != nil && !cut(err) {
			t.Errorf("%s: the connection is not closed: %v", name, err)
		}
		if strings.Contains(string(said), "HTTP/1.1 200") || strings.Contains(string(said), "HTTP/1.1 204") {
			t.Errorf("%s was done:\n%.600s", name, said)
		}
	})
}

// TestAttackByFraming: where two readers of HTTP could see the end of a body at two places, nothing is done, neither the request nor
// what is behind it (RFC 9112, section 6.3). S3 takes no body in chunks, so those are refused in any case.
func TestAttackByFraming(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/1/k", 34, "of 34").want(t, 200)
	chunked := fmt.Sprintf("5\r\nstale\r\n0\r\n\r\n%s", hidden)
	for name, framing := range map[string]string{ // headers of a PUT with the newest token, and what comes behind them
		"length and chunks":           "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"chunks and length":           "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunked,
		"length 0 and chunks":         "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"two lengths":                 "Content-Length: 5\r\nContent-Length: 50\r\n\r\nstale" + hidden,
		"two lengths, the other way":  "Content-Length: 50\r\nContent-Length: 5\r\n\r\nstale" + hidden,
		"two lengths in one":          "Content-Length: 5, 50\r\n\r\nstale" + hidden,
		"a length with a sign":        "Content-Length: +5\r\n\r\nstale" + hidden,
		"a negative length":           "Content-Length: -5\r\n\r\nstale" + hidden,
		"a hexadecimal length":        "Content-Length: 0x5\r\n\r\nstale" + hidden,
		"a length that wraps":         "Content-Length: 18446744073709551621\r\n\r\nstale" + hidden,
		"a length with a blank in it": "Content-Length: 5 0\r\n\r\nstale" + hidden,
		"a length that is none":       "Content-Length: five\r\n\r\nstale" + hidden,
		"a length of nothing":         "Content-Length:\r\n\r\n" + hidden,
		"a blank before the colon":    "Content-Length : 5\r\n\r\nstale" + hidden,
		"a tab before the colon":      "Transfer-Encoding\t: chunked\r\n\r\n" + chunked,
		"an unknown coding":           "Transfer-Encoding: xchunked\r\n\r\n" + chunked,
		"two codings":                 "Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked,
		"identity":                    "Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nstale" + hidden,
		"chunked twice":               "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"chunked and identity":        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + chunked,
		"chunked behind a control":    "Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n\r\n" + chunked,
		"chunked in quotes":           "Transfer-Encoding: \"chunked\"\r\nContent-Length: 5\r\n\r\n" + chunked,
		"a folded coding":             "Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n\r\n" + chunked,
		"a NUL in a value":            "X-A: a\x00b\r\nContent-Length: 5\r\n\r\nstale" + hidden,
		"a NUL in a name":             "X\x00A: b\r\nContent-Length: 5\r\n\r\nstale" + hidden,
		"a line without a colon":      "X-A\r\nContent-Length: 5\r\n\r\nstale" + hidden,
		"an empty name":               ": b\r\nContent-Length: 5\r\n\r\nstale" + hidden,
		"a bare CR in a value":        "X-A: b\rX-Fence-Token: 99\r\nContent-Length: 5\r\n\r\nstale" + hidden,
		"a chunk too large":           "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nstale" + hidden,
		"a chunk with a sign":         "Transfer-Encoding: chunked\r\n\r\n+5\r\nstale\r\n0\r\n\r\n" + hidden,
		"a chunk ended by LF":         "Transfer-Encoding: chunked\r\n\r\n5\nstale\n0\n\n" + hidden,
		"an extension ended by LF":    "Transfer-Encoding: chunked\r\n\r\n5;\nxx\r\nstale\r\n0\r\n\r\n" + hidden,
		"a trailer that is a header":  "Transfer-Encoding: chunked\r\nTrailer: X-Fence-Token\r\n\r\n5\r\nstale\r\n0\r\nX-Fence-Token: 99\r\n\r\n",
		"an upgrade":                  "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
	} {
		text := "PUT /bkt/jobs/1/k HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 34\r\n" + framing
		if name == "an upgrade" { // to chunks alone: they have one end, and what is behind it is honestly another request
			text = strings.TrimSuffix(text, hidden)
		}
		p.smuggle(t, name, text)
	}
	p.smuggle(t, "HTTP/2 by prior knowledge", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+hidden)
	p.smuggle(t, "HTTP/0.9", "PUT /bkt/jobs/1/k\r\n\r\n"+hidden)
	p.smuggle(t, "another version", "PUT /bkt/jobs/1/k HTTP/3.0\r\nHost: localhost\r\nX-Fence-Token: 34\r\nContent-Length: 5\r\n\r\nstale")
	p.smuggle(t, "two hosts", "PUT /bkt/jobs/1/k HTTP/1.1\r\nHost: localhost\r\nHost: y\r\nX-Fence-Token: 34\r\nContent-Length: 5\r\n\r\nstale")
	p.put(t, "/bkt/jobs/1/k", 34, "again").want(t, 200)
}

// TestAttackByHeaderLines: lines that are joined, folded or ended oddly are one header or none; no token comes of it that was not sent as one.
func TestAttackByHeaderLines(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/1/k", 34, "of 34").want(t, 200)
	for name, lines := range map[string]string{
		"folded into two numbers":   "X-Fence-Token: 3\r\n 5\r\n",
		"folded with a tab":         "X-Fence-Token: 3\r\n\t5\r\n",
		"folded behind the stale":   "X-Fence-Token: 33\r\n ,35\r\n",
		"folded under another":      "X-Amz-Meta-A: b\r\n X-Fence-Token: 35\r\n",
		"in the value of another":   "X-Amz-Meta-A: b%0d%0aX-Fence-Token: 35\r\n",
		"in the request's own name": "X-Amz-Meta-X-Fence-Token: 35\r\n",
		"named by Connection":       "X-Fence-Token: 33\r\nConnection: X-Fence-Token\r\n",
		"no token, by Connection":   "Connection: close, X-Fence-Highest, Content-Length\r\n",
	} {
		p.smuggle(t, name, "PUT /bkt/jobs/1/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"+lines+"\r\nstale")
	}
	// A line that ends with LF alone is a line, to this reader and to every other that takes it at all.
	c := p.dial(t)
	c.say("PUT /bkt/jobs/1/k HTTP/1.1\nHost: localhost\nX-Fence-Token: 33\nContent-Length: %d\nConnection: close\n\n%s", len(hidden), hidden)
	if a, _, err := c.answer("PUT"); err != nil || a.status != 412 && a.status != 400 {
		t.Errorf("%v %d %s", err, a.status, a.body)
	}
	p.marked(t, "/bkt/jobs/hidden/k", 0)
	p.absent(t, "/bkt/jobs/hidden/k")
}

// TestAttackByAHiddenRequest: a body that is refused before it is read, or cut off, is never taken for the next request.
func TestAttackByAHiddenRequest(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/1/k", 34, "of 34").want(t, 200)
	length := fmt.Sprintf("Content-Length: %d\r\n", len(hidden))
	for name, head := range map[string]string{
		"a stale write":              "PUT /bkt/jobs/1/k HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 33\r\n" + length,
		"a stale write that asks":    "PUT /bkt/jobs/1/k HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 33\r\nExpect: 100-continue\r\n" + length,
		"an unknown expectation":     "PUT /bkt/jobs/1/k HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 33\r\nExpect: 200-ok\r\n" + length,
		"a bad token":                "PUT /bkt/jobs/1/k HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: x\r\n" + length,
		"a bad path":                 "PUT /bkt/../k HTTP/1.1\r\nHost: localhost\r\n" + length,
		"no bucket":                  "PUT /missing/k HTTP/1.1\r\nHost: localhost\r\n" + length,
		"a bad length of its hash":   "PUT /bkt/k HTTP/1.1\r\nHost: localhost\r\nContent-MD5: AAAA\r\n" + length,
		"another hash":               "PUT /bkt/k HTTP/1.1\r\nHost: localhost\r\nContent-MD5: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + length,
		"an unknown operation":       "PATCH /bkt/k HTTP/1.1\r\nHost: localhost\r\n" + length,
		"an unknown sub-resource":    "PUT /bkt/k?unknown HTTP/1.1\r\nHost: localhost\r\n" + length,
		"a form":                     "POST /bkt HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n" + length,
		"bodies in signed chunks":    "PUT /bkt/k HTTP/1.1\r\nHost: localhost\r\nX-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\nX-Amz-Decoded-Content-Length: 5\r\n" + length,
		"a batch that is no XML":     "POST /bkt?delete HTTP/1.1\r\nHost: localhost\r\n" + length,
		"a Complete that is no XML":  "POST /bkt/k?uploadId=x HTTP/1.1\r\nHost: localhost\r\n" + length,
		"a PUT into a denied bucket": "PUT /denied HTTP/1.1\r\nHost: localhost\r\n" + length,
		"a batch that is too long":   fmt.Sprintf("POST /bkt?delete HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n", 5<<20),
	} {
		body := hidden
		if strings.Contains(name, "too long") {
			body = strings.Repeat(" ", 5<<20-len(hidden)) + hidden
		}
		p.smuggle(t, name, head+"\r\n"+body)
	}
	// Reads answer with 200; their bodies are thrown away.
	for _, head := range []string{"GET /bkt/jobs/1/k", "HEAD /bkt/jobs/1/k", "GET /bkt?list-type=2", "GET /", "GET /bkt/jobs/1/k?fence"} {
		p.unmoved(t, head, func() {
			c := p.dial(t)
			defer c.Close()
			c.say("%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n%s", head, length, hidden)
			_ = c.Conn.(*net.TCPConn).CloseWrite()
			said, _ := io.ReadAll(c.r)
			if n := strings.Count(string(said), "X-Amz-Request-Id:"); n != 1 {
				t.Errorf("%s with a body has %d answers:\n%.600s", head, n, said)
			}
		})
	}
}

// TestAttackByACutUpload: an old upload that was cut off by a newer token goes on with a request where its body should be.
func TestAttackByACutUpload(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	for i, size := range []int{1 << 10, 1 << 20, 20 << 20} {
		key := fmt.Sprintf("/bkt/jobs/%d/k", i)
		c := p.dial(t)
		c.say("PUT %s HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 33\r\nContent-Length: %d\r\n\r\n", key, size)
		_, err := c.Write(lateBody(size)[:size/2])
		must(t, "send", err)
		p.put(t, key, 34, "of 34").want(t, 200)
		p.unmoved(t, fmt.Sprintf("an upload of %d bytes", size), func() {
			c.say("%s", strings.Repeat(hidden, 3))
			_ = c.Conn.(*net.TCPConn).CloseWrite()
			said, err := io.ReadAll(c.r)
			if err != nil && !cut(err) {
				t.Errorf("the connection is not closed: %v", err)
			}
			if n := strings.Count(string(said), "HTTP/1.1 "); n > 1 {
				t.Errorf("there are %d answers:\n%s", n, said)
			}
		})
		p.holds(t, key, "of 34")
	}
}

// TestAttackByHangingUp: a client that leaves at any tenth of a body, of whatever operation, has done nothing and raised nothing.
func TestAttackByHangingUp(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const key = "/bkt/jobs/1/k"
	p.put(t, key, 34, "of 34").want(t, 200)
	upload := p.create(t, key, "X-Fence-Token", "34")
	part := p.do(t, "PUT", key+"?partNumber=1&uploadId="+upload, "a part", "X-Fence-Token", "34").want(t, 200)
	complete := "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + part.header.Get("Etag") + "</ETag></Part></CompleteMultipartUpload>"
	for name, r := range map[string]struct{ method, target, body string }{
		"PUT":           {"PUT", key, strings.Repeat("stale", 20000)},
		"a small PUT":   {"PUT", key, "stale stale"},
		"a new key":     {"PUT", "/bkt/jobs/1/new", strings.Repeat("stale", 20000)},
		"UploadPart":    {"PUT", key + "?partNumber=2&uploadId=" + upload, strings.Repeat("stale", 20000)},
		"the same part": {"PUT", key + "?partNumber=1&uploadId=" + upload, strings.Repeat("stale", 20000)},
		"Complete":      {"POST", key + "?uploadId=" + upload, complete},
		"DeleteObjects": {"POST", "/bkt?delete", "<Delete><Object><Key>jobs/1/k</Key></Object></Delete>"},
	} {
		p.unmoved(t, name, func() {
			for tenth := range 11 {
				sent := min(len(r.body)*tenth/10, len(r.body)-1)
				for _, resets := range []bool{false, true} {
					c := p.dial(t)
					c.say("%s %s HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 35\r\nContent-Length: %d\r\n\r\n%s", r.method, r.target, len(r.body), r.body[:sent])
					if resets {
						_ = c.Conn.(*net.TCPConn).SetLinger(0)
					}
					c.Close()
				}
			}
		})
	}
	p.do(t, "POST", key+"?uploadId="+upload, complete, "X-Fence-Token", "34").want(t, 200) // the upload is as it was
	p.holds(t, key, "a part")
}

// TestAttackBySlowHeaders: a connection whose headers never end is cut off, on both ports, whether its client is silent or sends a byte now
// and then. (Bodies may be idle for 60 s, which is not waited for here.)
func TestAttackBySlowHeaders(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	for _, addr := range []string{p.addr, p.admin} {
		for _, begin := range []string{"P", "PUT /bkt/k HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 34\r\nX-A: "} {
			for _, trickles := range []bool{false, true} {
				t.Run(fmt.Sprintf("%.3s, trickles %v", begin, trickles), func(t *testing.T) {
					t.Parallel()
					conn, err := net.Dial("tcp", addr)
					must(t, "dial", err)
					defer conn.Close()
					_ = conn.SetReadDeadline(time.Now().Add(patience))
					_, _ = io.WriteString(conn, begin)
					ended := make(chan struct{})
					go func() {
						for trickles {
							select {
							case <-ended:
								return
							case <-time.After(100 * time.Millisecond):
								_, _ = io.WriteString(conn, "b")
							}
						}
					}()
					_, err = io.Copy(io.Discard, conn)
					close(ended)
					if err != nil && !cut(err) {
						t.Errorf("after %v it is still open: %v", patience, err)
					}
				})
			}
		}
	}
}
