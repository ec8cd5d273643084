package integration

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// unsupported are writes that this version cannot fence, or that S3 does not have.
var unsupported = []struct {
	method, target string
	headers        []string
}{
	{"PUT", "/bkt/k?acl", nil},
	{"PUT", "/bkt/k?acl=", nil},
	{"PUT", "/bkt/k?%61cl", nil},
	{"PUT", "/bkt/k?retention", nil},
	{"PUT", "/bkt/k?legal-hold", nil},
	{"PUT", "/bkt/k?renameObject", []string{"X-Amz-Rename-Source", "/bkt/other"}},
	{"PUT", "/bkt/k?encryption", nil},
	{"POST", "/bkt/k?restore", nil},
	{"PATCH", "/bkt/k", nil},
	{"PUT", "/bkt?acl", nil},
	{"PUT", "/bkt?policy", nil},
	{"PUT", "/bkt?versioning", nil},
	{"PUT", "/bkt?lifecycle", nil},
	{"DELETE", "/bkt?lifecycle", nil},
	{"DELETE", "/bkt?policy", nil},
	{"PUT", "/bkt?object-lock", nil},
	{"PUT", "/bkt/k?unknown", nil},
	{"PUT", "/bkt/k?unknown=1", nil},
	{"DELETE", "/bkt?force", nil},
	{"PUT", "/bkt/k?X-ID=PutObject", nil},
	{"PUT", "/bkt/k?prefix=x", nil},
	{"PUT", "/bkt/k?lease=30s", nil},
	{"PUT", "/bkt/k", []string{"X-Amz-Write-Offset-Bytes", "0"}},
	{"PUT", "/bkt/k", []string{"X-Amz-Server-Side-Encryption", "AES256"}},
	{"PUT", "/bkt/k", []string{"X-Amz-Object-Lock-Mode", "GOVERNANCE"}},
	{"PUT", "/bkt/k", []string{"X-Amz-Acl", "public-read"}},
	{"PUT", "/bkt/k", []string{"If-None-Match", `"etag"`}},
	{"PUT", "/bkt/k", []string{"If-Unmodified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"}},
	{"DELETE", "/bkt/k", []string{"If-None-Match", "*"}},
}

// TestUnsupportedWrites are 501 and change nothing, with the newest token, with a newer one, and with none.
func TestUnsupportedWrites(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	p.put(t, "/bkt/other", 0, "other").want(t, 200)
	before := tree(t, p.root)
	for _, u := range unsupported {
		for _, n := range []int64{34, 0, 33} {
			a := p.do(t, u.method, u.target, "stale", append(tokenHeader(n), u.headers...)...)
			// What the store alone cannot do is refused behind the fence: an older token is stale there first.
			staleFirst := n < 34 && a.header.Get("X-Fence-Error") == "StaleToken"
			if (a.status != 501 || a.code() != "NotImplemented") && !staleFirst {
				t.Errorf("%s %s %q with token %d: %d %s, want 501", u.method, u.target, u.headers, n, a.status, a.body)
			}
		}
	}
	// Two operations in one request are not one of them, nor is one about a version that it cannot be about, or about no upload.
	for _, target := range []string{"/bkt/k?acl&tagging", "/bkt/k?fence&acl", "/bkt/k?versionId=1", "/bkt/k?partNumber=1&uploadId=", "/bkt/k?partNumber=1&partNumber=2&uploadId=x"} {
		p.do(t, "PUT", target, "stale", "X-Fence-Token", "34").want(t, 400)
	}
	for _, target := range []string{"/bkt/k?uploadId=", "/bkt/k?uploadId=a&uploadId=b"} {
		p.do(t, "DELETE", target, "", "X-Fence-Token", "33").want(t, 400)
	}
	// A body of unknown length.
	for _, target := range []string{"/bkt/k", "/bkt/new"} {
		a, err := send(fresh, p.addr, "PUT", target, io.MultiReader(strings.NewReader("stale")), "X-Fence-Token", "34")
		if err != nil {
			t.Fatal(err)
		}
		a.refusedAs(t, 501, "NotImplemented", "")
	}
	if after := tree(t, p.root); after != before {
		t.Errorf("something was changed:\n%s\nwas\n%s", after, before)
	}
	p.marked(t, "/bkt/k", 34)
	p.marked(t, "/bkt/other", 0)
}

// TestDigests: a body that is not the one that was announced changes nothing.
func TestDigests(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	for _, size := range []int{0, 1, 100, 1 << 20} {
		body := strings.Repeat("x", size)
		other := strings.Repeat("y", size) + "y"
		md5Of := func(s string) string { sum := md5.Sum([]byte(s)); return base64.StdEncoding.EncodeToString(sum[:]) }
		shaOf := func(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) }
		for _, c := range []struct{ header, value, code string }{
			{"Content-MD5", md5Of(other), "BadDigest"},
			{"Content-MD5", "AAAA", "InvalidDigest"},
			{"Content-MD5", "!", "InvalidDigest"},
			{"X-Amz-Content-Sha256", shaOf(other), "XAmzContentSHA256Mismatch"},
			{"X-Amz-Content-Sha256", "e3b0", "InvalidArgument"},
			{"X-Amz-Content-Sha256", "unsigned-payload", "InvalidArgument"},
		} {
			p.do(t, "PUT", "/bkt/k", body, "X-Fence-Token", "34", c.header, c.value).refusedAs(t, 400, c.code, "")
			p.do(t, "PUT", "/bkt/new", body, c.header, c.value).refusedAs(t, 400, c.code, "")
			p.do(t, "PUT", "/bkt/k", body, "X-Fence-Token", "99", c.header, c.value).refusedAs(t, 400, c.code, "")
		}
		p.holds(t, "/bkt/k", "of 34")
		p.absent(t, "/bkt/new")
		p.marked(t, "/bkt/k", 34) // a body that is refused has not reached the gate: it raises nothing
		p.do(t, "PUT", "/bkt/good", body, "Content-MD5", md5Of(body), "X-Amz-Content-Sha256", strings.ToUpper(shaOf(body))).want(t, 200)
		p.do(t, "PUT", "/bkt/good", body, "X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD").want(t, 200)
		p.holds(t, "/bkt/good", body)
	}
	p.noTemps(t)
}

// TestCutBodies: a client that leaves, at whatever point of its body, changes nothing and leaves nothing behind.
func TestCutBodies(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	const size = 1 << 20
	body := bytes.Repeat([]byte{'x'}, size)
	for _, sent := range []int{0, size / 10, 2 * size / 10, 3 * size / 10, 4 * size / 10, size / 2, 6 * size / 10, 7 * size / 10, 8 * size / 10, 9 * size / 10, size - 1} {
		for how, leave := range map[string]func(*net.TCPConn){
			"half-closes": func(c *net.TCPConn) { _ = c.CloseWrite() },
			"closes":      func(c *net.TCPConn) { _ = c.Close() },
			"resets":      func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
		} {
			for _, key := range []string{"/bkt/k", "/bkt/new"} {
				c := p.dial(t)
				c.say("PUT %s HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 35\r\nContent-Length: %d\r\n\r\n", key, size)
				if _, err := c.Write(body[:sent]); err != nil {
					t.Fatal(err)
				}
				leave(c.Conn.(*net.TCPConn))
				if how == "half-closes" {
					a, _, err := c.answer("PUT")
					if err != nil {
						t.Fatalf("%d bytes sent: %v", sent, err)
					}
					a.refusedAs(t, 400, "IncompleteBody", "")
				}
			}
		}
	}
	p.noTemps(t)
	p.holds(t, "/bkt/k", "of 34")
	p.absent(t, "/bkt/new")
	p.put(t, "/bkt/k", 34, "still 34").want(t, 200) // none of them has raised anything
}

// TestRefusalsArriveBeforeTheBody: a client that is still sending hears the refusal and not a reset.
func TestRefusalsArriveBeforeTheBody(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	const size = 60 << 20
	large := make([]byte, size)
	// upload is not held to its answer where the machine took so long that draining came to its end: after 10 s the connection is closed.
	repeated := int64(0)
	upload := func(headers ...string) (answer, error) {
		for tries := 0; ; tries++ {
			start := time.Now()
			a, err := send(fresh, p.addr, "PUT", "/bkt/k", bytes.NewReader(large), headers...)
			if err == nil || tries == 2 || time.Since(start) < 9*time.Second {
				return a, err
			}
			if headers[1] == "33" {
				repeated++
			}
			t.Logf("an upload of 60 MiB took longer than it is drained: %v", err)
		}
	}
	for i := range 10 {
		a, err := upload("X-Fence-Token", "33")
		if err != nil {
			t.Fatalf("upload %d of 60 MiB: %v", i, err)
		}
		a.stale(t, 34)
	}
	kept := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}} // the connection is good for the next request
	defer kept.CloseIdleConnections()
	for range 3 {
		a, err := send(kept, p.addr, "PUT", "/bkt/k", bytes.NewReader(large[:8<<20]), "X-Fence-Token", "33")
		if err != nil {
			t.Fatal(err)
		}
		a.stale(t, 34)
		if a, err = send(kept, p.addr, "GET", "/bkt/k", nil); err != nil || string(a.body) != "of 34" {
			t.Fatalf("%v %q", err, a.body)
		}
	}
	// Other refusals come as surely.
	for _, headers := range [][]string{{"X-Fence-Token", "x"}, {"X-Fence-Token", "33", "If-Match", "*"}, {"X-Fence-Token", "34", "X-Amz-Copy-Source", "x"}} {
		a, err := upload(headers...)
		if err != nil || a.status < 400 {
			t.Errorf("%v: %v %d", headers, err, a.status)
		}
	}
	p.holds(t, "/bkt/k", "of 34")
	p.audited(t, "code=StaleToken", 14+repeated)
}

// TestExpectIsAnsweredAtOnce: who asks before it sends is told no, without 100 Continue, without sending.
func TestExpectIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	for _, lines := range []string{
		"X-Fence-Token: 33\r\n", "", "X-Fence-Token: 33\r\nIf-Match: *\r\n", "X-Fence-Token: -1\r\n", "X-Fence-Token: 34\r\nX-Amz-Copy-Source: x\r\n",
		"X-Fence-Token: 34\r\nContent-MD5: x\r\n",
	} {
		p.refusesUnsent(t, "/bkt/k", lines)
	}
	p.holds(t, "/bkt/k", "of 34")

	// aws-sdk-go-v2 sends the header and does not wait: it is drained first.
	c := p.dial(t)
	c.say("PUT /bkt/k HTTP/1.1\r\nHost: localhost\r\nUser-Agent: aws-sdk-go-v2/1.30.3 os/linux\r\nExpect: 100-continue\r\nX-Fence-Token: 33\r\nContent-Length: %d\r\n\r\n", 20<<20)
	if _, err := c.Write(make([]byte, 20<<20)); err != nil {
		t.Fatal(err)
	}
	a, _, err := c.answer("PUT")
	if err != nil {
		t.Fatal(err)
	}
	a.stale(t, 34)

	// And who may write is asked to.
	c = p.dial(t)
	c.say("PUT /bkt/k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nX-Fence-Token: 34\r\nContent-Length: 5\r\n\r\n")
	if line, err := c.r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("%q %v", line, err)
	}
	_, _ = c.r.ReadString('\n')
	c.say("again")
	if a, _, err = c.answer("PUT"); err != nil || a.status != 200 {
		t.Fatalf("%v %d", err, a.status)
	}
	p.holds(t, "/bkt/k", "again")
}

// refusesUnsent asks before it sends, and wants a refusal alone and at once.
func (p *proxy) refusesUnsent(t *testing.T, path, lines string) {
	t.Helper()
	start := time.Now()
	c := p.dial(t)
	c.say("PUT %s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\nExpect: 100-continue\r\nContent-Length: %d\r\n%s\r\n", path, 60<<20, lines)
	a, interim, err := c.answer("PUT")
	if err != nil {
		t.Fatalf("%s %q: %v", path, lines, err)
	}
	if a.status < 400 || len(interim) > 0 {
		t.Errorf("%s %q: %v, then %d %s; want a refusal alone", path, lines, interim, a.status, a.body)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("%s %q took %v", path, lines, took)
	}
	if _, err := c.r.ReadByte(); !cut(err) { // nobody may take the body for the next request
		t.Errorf("%s %q: the connection stays open: %v", path, lines, err)
	}
}

// TestExpectIsAnsweredAtOnceByTheStore: the same where the fence lets the write in and the store does not want its body.
func TestExpectIsAnsweredAtOnceByTheStore(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	for path, lines := range map[string]string{
		"/missing/k": "X-Fence-Token: 34\r\n",
		"/bkt/a//b":  "X-Fence-Token: 34\r\n",
		"/bkt/date":  "If-Unmodified-Since: Mon, 02 Jan 2006 15:04:05 GMT\r\n",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			p.refusesUnsent(t, path, lines)
		})
	}
}

// TestNothingIsEver409: clients take it for "send it again".
func TestNothingIsEver409(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/1/k", 34, "x").want(t, 200)
	for _, headers := range [][]string{
		nil,
		{"X-Fence-Token", "33"},
		{"X-Fence-Token", "x"},
		{"X-Fence-Token", "34", "X-Fence-Holder", "a"},
		{"X-Fence-Token", "34"},
		{"X-Fence-Token", "34", "If-Match", `"no"`},
		{"X-Fence-Token", "33", "If-Match", `"no"`},
		{"X-Fence-Token", "34", "If-None-Match", "*"},
	} {
		for _, path := range []string{"/bkt/jobs/1/k", "/bkt/jobs/1", "/bkt/jobs/1/k/below", "/bkt/must/k", "/bkt/once/k", "/bkt/cas/k", "/bkt/near/k", "/none/k"} {
			for _, method := range []string{"PUT", "DELETE", "PUT ?fence", "GET"} {
				method, query, _ := strings.Cut(method, " ")
				target := path + query
				a := p.do(t, method, target, "y", headers...)
				if a.status == 409 || a.status >= 500 {
					t.Errorf("%s %s %v: %d %s", method, target, headers, a.status, a.body)
				}
				if a.header.Get("X-Fence-Error") != "" && a.header.Get("Retry-After") != "" {
					t.Errorf("a refusal asks to be sent again: %v", a.header)
				}
			}
		}
	}
}
