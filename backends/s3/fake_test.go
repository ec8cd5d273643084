package s3

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// A got is a request as it stood on the wire.
type got struct {
	*http.Request
	head string
	body []byte
}

// A fake is a store that does with each connection what the test says, and keeps the requests that came whole.
type fake struct {
	*testing.T
	url  string
	mu   sync.Mutex
	all  []got
	raw  []*recording
	serv func(f *fake, c *recording, n int)

	running sync.WaitGroup
}

// A recording is a connection that keeps what came in.
type recording struct {
	net.Conn
	in   *bufio.Reader
	mu   sync.Mutex
	read bytes.Buffer
}

func (r *recording) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read.Write(p[:n])
	return n, err
}

// came is what came in so far.
func (r *recording) came() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.read.Bytes())
}

// bubble runs a test in virtual time, with a store that is in memory: nothing of it depends on how fast the machine is.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// newMemory is a store in memory. What a connection to it has taken, the store has read: there is no kernel between.
func newMemory(t *testing.T, serve func(f *fake, c *recording, n int)) *fake {
	f := &fake{T: t, url: "http://store.test", serv: serve}
	t.Cleanup(func() {
		f.mu.Lock()
		for _, c := range f.raw {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.running.Wait()
	})
	return f
}

// dial is for Options.DialContext.
func (f *fake) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	f.mu.Lock()
	defer f.mu.Unlock()
	r, n := &recording{Conn: theirs}, len(f.raw)
	r.in = bufio.NewReader(r)
	f.raw = append(f.raw, r)
	f.running.Go(func() {
		defer theirs.Close()
		f.serv(f, r, n)
	})
	return ours, nil
}

// open opens a store that is in memory, with the bubble's time.
func (f *fake) open(change ...func(*Options)) *Store {
	began := time.Now()
	virtual := func(o *Options) { o.DialContext, o.Boot = f.dial, func() time.Duration { return time.Since(began) } }
	return open(f.T, f.url, append([]func(*Options){virtual}, change...)...)
}

// newFake listens. serve has one connection, the n-th, which is closed when it returns.
func newFake(t *testing.T, serve func(f *fake, c *recording, n int)) *fake {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{T: t, url: "http://" + l.Addr().String(), serv: serve}
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := &recording{Conn: c}
			r.in = bufio.NewReader(r)
			f.mu.Lock()
			f.raw = append(f.raw, r)
			f.mu.Unlock()
			all.Go(func() {
				defer c.Close()
				serve(f, r, n)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.mu.Lock()
		for _, c := range f.raw {
			_ = c.Close()
		}
		f.mu.Unlock()
		all.Wait()
	})
	return f
}

// request reads one request whole. It says 100 where it is expected.
func (f *fake) request(c *recording) (got, error) {
	g, err := readHead(c)
	if err != nil {
		return g, err
	}
	if g.Header.Get("Expect") != "" {
		_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
	}
	if g.body, err = io.ReadAll(g.Body); err != nil {
		return g, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, g)
	return g, nil
}

func readHead(c *recording) (got, error) {
	from := len(c.came()) - c.in.Buffered()
	r, err := http.ReadRequest(c.in)
	if err != nil {
		return got{}, err
	}
	head, _, _ := strings.Cut(string(c.came()[from:]), "\r\n\r\n")
	return got{Request: r, head: head}, nil
}

func (f *fake) requests() []got {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]got(nil), f.all...)
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nETag: \"e\"\r\n\r\nok"

// answering answers every request with this.
func answering(answer string) func(*fake, *recording, int) {
	return func(f *fake, c *recording, _ int) {
		for {
			g, err := f.request(c)
			if err != nil {
				return
			}
			if g.Method == http.MethodHead {
				_, _ = io.WriteString(c, strings.TrimSuffix(answer, "ok"))
			} else {
				_, _ = io.WriteString(c, answer)
			}
		}
	}
}

// do sends one request through the store.
func do(s *Store, method, target string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// A mode is a way in which an object's body reaches the store.
type mode struct {
	name  string
	whole bool   // it came whole, and has Pass
	hash  bool   // it streams as it is, for the client has said its hash
	kind  string // its checksum comes behind it
}

var modes = []mode{{name: "whole", whole: true}, {name: "chunks"}, {name: "hash", hash: true}, {name: "trailer", kind: "Crc32"}}

// eachMode runs a test in virtual time, in each mode.
func eachMode(t *testing.T, test func(t *testing.T, m mode)) {
	for _, m := range modes {
		bubble(t, m.name, func(t *testing.T) { test(t, m) })
	}
}

// A gated body has its content, then waits at the gate, and ends with end. One that is whole waits in Pass.
type gated struct {
	io.Reader
	atGate func() error
	once   sync.Once
	end    error
	reads  int
	passes int
}

func (g *gated) gate() error {
	g.once.Do(func() {
		g.passes++
		if g.end = g.atGate(); g.end == nil {
			g.end = io.EOF
		}
	})
	return g.end
}

func (g *gated) Read(p []byte) (int, error) {
	g.reads++
	n, err := g.Reader.Read(p)
	if err == io.EOF {
		return n, g.gate()
	}
	return n, err
}

func (g *gated) Close() error { return nil }

// A wholeBody is a gated one that is whole.
type wholeBody struct{ *gated }

func (w wholeBody) Pass() error {
	if err := w.gate(); err != io.EOF {
		return err
	}
	return nil
}

// request makes a PUT that has content and is said to have length bytes.
func (m mode) request(ctx context.Context, target string, content []byte, length int, gate func() error, headers ...string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPut, target, nil)
	g := &gated{Reader: bytes.NewReader(content), atGate: gate}
	r.Body, r.ContentLength = g, int64(length)
	if m.whole {
		r.Body = wholeBody{g}
	}
	if m.whole || m.hash {
		r.Header.Set("X-Amz-Content-Sha256", sha256Hex(content))
	}
	if m.kind != "" {
		name := checksumPrefix + m.kind
		r.Trailer = http.Header{name: nil}
		g.atGate = func() error {
			r.Trailer.Set(name, digest(m.kind, content))
			return gate()
		}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// put sends content that waits at a gate.
func (m mode) put(ctx context.Context, s *Store, content []byte, gate func() error, headers ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, m.request(ctx, "/bucket/key", content, len(content), gate, headers...))
	return w
}

// passes is a gate that is open.
func passes() error { return nil }

// checkSignature signs what came in once more, with the SDK, and compares.
func checkSignature(t *testing.T, g got) {
	t.Helper()
	auth := g.Header.Get("Authorization")
	_, rest, _ := strings.Cut(auth, "SignedHeaders=")
	signed, _, found := strings.Cut(rest, ",")
	if !found {
		t.Fatalf("no signature in %q", g.head)
	}
	again := &http.Request{Method: g.Method, Host: g.Host, URL: g.URL, Header: http.Header{}, ContentLength: -1}
	for name := range strings.SplitSeq(signed, ";") {
		switch name {
		case "host":
		case "content-length":
			again.ContentLength = g.ContentLength
		default:
			again.Header[http.CanonicalHeaderKey(name)] = g.Header.Values(name)
		}
	}
	for name := range g.Header {
		if strings.HasPrefix(name, "X-Amz-") && !strings.Contains(";"+signed+";", ";"+strings.ToLower(name)+";") {
			t.Errorf("%s is not signed", name)
		}
	}
	at, err := time.Parse(dateFormat, g.Header.Get(dateHeader))
	if err != nil {
		t.Fatal(err)
	}
	who := aws.Credentials{AccessKeyID: testKey, SecretAccessKey: testSecret, SessionToken: g.Header.Get("X-Amz-Security-Token")}
	hash := g.Header.Get("X-Amz-Content-Sha256")
	err = v4.NewSigner().SignHTTP(t.Context(), who, again, hash, "s3", testRegion, at, func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err != nil {
		t.Fatal(err)
	}
	if want := again.Header.Get("Authorization"); auth != want {
		t.Errorf("the signature of %q is\n%s, want\n%s", g.head, auth, want)
	}
	if !inChunks(g.Header) && hash != sha256Hex(g.body) {
		t.Errorf("x-amz-content-sha256 is %s: it is not the body's", hash)
	}
}

func sha256Hex(p []byte) string {
	sum := sha256Sum(p)
	return hex.EncodeToString(sum[:])
}

var errBody = errors.New("the client hung up")
