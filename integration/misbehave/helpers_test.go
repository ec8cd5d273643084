package misbehave

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a store with a server before it and a client that signs, in virtual time.
type world struct {
	*testing.T
	store  *Store
	net    *Network
	client *http.Client
}

func inWorld(t *testing.T, o Options, run func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, store: New(o, "b"), net: NewNetwork()}
		server := &http.Server{Handler: w.store}
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(w.net) }()
		transport := &http.Transport{DialContext: w.net.Dial, DisableKeepAlives: true}
		w.client = &http.Client{Transport: transport}
		run(w)
		transport.CloseIdleConnections()
		_ = server.Close()
		<-ended
		w.store.Close()
	})
}

type got struct {
	status int
	code   string
	etag   string
	body   string
	header http.Header
	err    error
}

func (w *world) request(method, target string, body io.Reader, headers ...string) *http.Request {
	w.Helper()
	r, err := http.NewRequest(method, "http://store"+target, body)
	if err != nil {
		w.Fatal(err)
	}
	signed := []string{"host"}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	for name := range r.Header {
		signed = append(signed, strings.ToLower(name))
	}
	r.Header.Set("X-Amz-Date", time.Now().UTC().Format("20060102T150405Z"))
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=x, SignedHeaders="+strings.Join(append(signed, "x-amz-date"), ";")+", Signature=x")
	return r
}

func (w *world) do(method, target, body string, headers ...string) got {
	w.Helper()
	return w.send(w.request(method, target, strings.NewReader(body), headers...))
}

func (w *world) send(r *http.Request) got {
	resp, err := w.client.Do(r)
	if err != nil {
		return got{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	var e struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	_ = xml.Unmarshal(body, &e)
	return got{resp.StatusCode, e.Code, resp.Header.Get("Etag"), string(body), resp.Header, err}
}

func (w *world) want(g got, status int, code string) got {
	w.Helper()
	if g.err != nil || g.status != status || g.code != code && g.body != "" {
		w.Fatalf("answered %d %s %v, want %d %s", g.status, g.body, g.err, status, code)
	}
	return g
}

func (w *world) put(key, content string, headers ...string) got {
	w.Helper()
	return w.want(w.do("PUT", "/b/"+key, content, headers...), 200, "")
}

// has checks what a reader sees; "" is nothing.
func (w *world) has(key, content string) {
	w.Helper()
	if g := w.do("GET", "/b/"+key, ""); g.err != nil || g.status == 200 && g.body != content || g.status != 200 && content != "" {
		w.Fatalf("%s has %d %q %v, want %q", key, g.status, g.body, g.err, content)
	}
}

// journal is what the journal has of each effect.
func (w *world) journal() string {
	var lines []string
	for _, a := range w.store.Journal() {
		line := a.Name + " " + a.Target + "=" + string(a.Content)
		if a.Late {
			line += " late"
		}
		if a.Second {
			line += " second"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, ", ")
}

func (w *world) wantJournal(want string) {
	w.Helper()
	if got := w.journal(); got != want {
		w.Fatalf("the journal is %s, want %s", got, want)
	}
}

func tag(content string) string { return md5Tag([]byte(content)) }

func hashOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func frames(chunks ...string) string {
	var b strings.Builder
	for _, c := range chunks {
		fmt.Fprintf(&b, "%x;chunk-signature=%s\r\n%s\r\n", len(c), strings.Repeat("0", 64), c)
	}
	return b.String()
}

// bare sends a request without a network between, such as net/http would not send.
func bare(s *Store, method, target string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, r)
	return rec
}
