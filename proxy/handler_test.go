package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.nofailfile", "true") // mutants fail here on purpose, and must leave nothing behind; the seed is printed
	goleak.VerifyTestMain(m)
}

// A fixture is a handler over a real registry and a backend of the test's.
type fixture struct {
	*testing.T
	url   string
	fence *tokens.Fence
	audit *audit.Log
}

func newFixture(t *testing.T, b Backend, entries ...rules.Rule) *fixture {
	return newFixtureWith(t, func(*Config) {}, b, entries...)
}

// newFixtureWith is newFixture with a configuration that the test has changed.
func newFixtureWith(t *testing.T, change func(*Config), b Backend, entries ...rules.Rule) *fixture {
	table, err := rules.New([]rules.Bucket{{Name: "*", Backend: "test", Rules: entries}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	lock, err := sqlite.Lock(dir, "a test")
	if err != nil {
		t.Fatal(err)
	}
	registry, err := sqlite.Open(t.Context(), lock, sqlite.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(t.Context(), filepath.Join(dir, "audit.db"), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fence := tokens.NewFence(registry, tokens.Options{RaiseWait: 2 * time.Second})
	c := Config{
		Fence: fence, Locks: tokens.NewLocks(registry, nil), Uploads: registry, Rules: table, Backends: map[string]Backend{"test": b}, Audit: log, Log: slog.New(slog.DiscardHandler),
		Memory: 64 << 20,
	}
	change(&c)
	server := httptest.NewServer(New(c))
	t.Cleanup(func() {
		server.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = fence.Close(ctx) // some tests leave writes in doubt
		if err := errors.Join(log.Close(), registry.Close(), lock.Release()); err != nil {
			t.Error(err)
		}
	})
	return &fixture{t, server.URL, fence, log}
}

// request makes a request.
func (f *fixture) request(method, path, body string, headers ...string) *http.Request {
	f.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(f.Context(), method, f.url+path, content)
	if err != nil {
		f.Fatal(err)
	}
	for _, h := range headers {
		if name, value, ok := strings.Cut(h, ": "); ok {
			r.Header.Add(name, value)
		}
	}
	return r
}

// do sends a request and returns the answer and its body.
func (f *fixture) do(method, path, body string, headers ...string) (*http.Response, string) {
	f.Helper()
	return f.send(f.request(method, path, body, headers...))
}

func (f *fixture) send(r *http.Request) (*http.Response, string) {
	f.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		f.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		f.Fatal(err)
	}
	return resp, string(got)
}

func (f *fixture) want(status int, fenceError, method, path, body string, headers ...string) string {
	f.Helper()
	resp, got := f.do(method, path, body, headers...)
	if resp.StatusCode != status || resp.Header.Get("X-Fence-Error") != fenceError {
		f.Fatalf("%s %s %q: %d %s; want %d %s\n%s", method, path, headers, resp.StatusCode, resp.Header.Get("X-Fence-Error"), status, fenceError, got)
	}
	return got
}

// answering is a backend that reads the body and answers with a status.
func answering(status int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.WriteHeader(status)
	})
}

// TestOutcomes: what a backend says becomes what the client is told and what the fence believes, as package backends has it.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		backend http.Handler
		status  int
		err     string
		doubt   bool
	}{
		{"done", answering(200), 200, "", false},
		{"no content", answering(204), 204, "", false},
		{"refused by the store", answering(403), 403, "", false},
		{"not there", answering(404), 404, "", false},
		{"condition of the client", answering(412), 412, "", false},
		{"not implemented", answering(501), 501, "", false},
		{"no room", answering(503), 503, "", false},
		{"failed somewhere", answering(500), 504, "OutcomeUnknown", true},
		{"no answer from behind", answering(502), 504, "OutcomeUnknown", true},
		{"late", answering(504), 504, "OutcomeUnknown", true},
		{"says nothing", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }), 504, "OutcomeUnknown", true},
		{"panics behind the gate", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			panic("boom")
		}), 504, "OutcomeUnknown", true},
		{"panics before the gate", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }), 500, "", false},
		{"says yes before it has the body", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }), 500, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Backend{Handler: c.backend, Settle: time.Hour})
			f.want(c.status, c.err, "PUT", "/b/a", "content", "X-Fence-Token: 34")
			if s := f.fence.Stats(); (s.InDoubt == 1) != c.doubt || (s.Open == 1) != c.doubt {
				t.Errorf("%+v; in doubt should be %v", s, c.doubt)
			}
			records, _, err := f.audit.Query(t.Context(), audit.Filter{Kind: audit.KindInDoubt})
			if err != nil || (len(records) == 1) != c.doubt {
				t.Errorf("audit of in_doubt: %v, %v", records, err)
			}
			if c.doubt { // it holds a raise back, and equal tokens not
				f.want(503, "WaitingForOlderWrite", "PUT", "/b/a", "content", "X-Fence-Token: 35")
				f.want(412, "StaleToken", "PUT", "/b/a", "content", "X-Fence-Token: 34")
			}
		})
	}
}

func TestEqualTokenGoesOnBesideADoubt(t *testing.T) {
	t.Parallel()
	status := make(chan int, 2)
	status <- 500
	status <- 200
	f := newFixture(t, Backend{Settle: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(<-status)
	})})
	f.want(504, "OutcomeUnknown", "PUT", "/b/a", "content", "X-Fence-Token: 34")
	f.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
}

// A slowStore has a write behind the gate that ends when the test says so.
type slowStore struct {
	reached chan struct{} // the gate is open
	finish  chan int      // the status to answer with
}

func (s *slowStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if r.Header.Get("X-Amz-Meta-Slow") == "" {
		w.WriteHeader(http.StatusOK)
		return
	}
	s.reached <- struct{}{}
	select {
	case status := <-s.finish:
		w.WriteHeader(status)
	case <-r.Context().Done():
		w.WriteHeader(http.StatusBadRequest) // a write past the gate must not end so
	}
}

// TestPastTheGateTheClientDoesNotMatter: its leaving neither cancels the write nor settles it.
func TestPastTheGateTheClientDoesNotMatter(t *testing.T) {
	t.Parallel()
	store := &slowStore{make(chan struct{}), make(chan int)}
	f := newFixture(t, Backend{Handler: store, Settle: time.Hour})
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "PUT", f.url+"/b/a", strings.NewReader("content"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Fence-Token", "34")
	r.Header.Set("X-Amz-Meta-Slow", "1")
	var client sync.WaitGroup
	client.Go(func() {
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
			t.Error("the client was answered")
		}
	})
	<-store.reached
	leave()
	client.Wait()
	// For two seconds: the server has long seen then that the client left.
	f.want(503, "WaitingForOlderWrite", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
	store.finish <- 200
	for range 100 { // until it has settled
		if resp, _ := f.do("PUT", "/b/a", "newer", "X-Fence-Token: 35"); resp.StatusCode == 200 {
			return
		}
	}
	t.Error("the newer writer never got through")
}

// TestARaiseWaitsForTheStore: nobody newer is told yes while an older write is in the store's hands.
func TestARaiseWaitsForTheStore(t *testing.T) {
	t.Parallel()
	store := &slowStore{make(chan struct{}), make(chan int)}
	f := newFixture(t, Backend{Handler: store})
	var older sync.WaitGroup
	older.Go(func() { f.want(200, "", "PUT", "/b/a", "older", "X-Fence-Token: 33", "X-Amz-Meta-Slow: 1") })
	<-store.reached
	f.want(503, "WaitingForOlderWrite", "PUT", "/b/a", "newer", "X-Fence-Token: 34")
	f.want(503, "WaitingForOlderWrite", "GET", "/b/a", "", "X-Fence-Token: 34")
	f.want(412, "StaleToken", "PUT", "/b/a", "older still", "X-Fence-Token: 33")
	store.finish <- 200
	older.Wait()
	f.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 34")
}

// TestDeleteWithABody: it is not the store's to read.
func TestDeleteWithABody(t *testing.T) {
	t.Parallel()
	var seen string
	f := newFixture(t, Backend{Settle: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = string(body)
		w.WriteHeader(http.StatusNoContent)
	})})
	f.want(204, "", "DELETE", "/b/a", "body", "X-Fence-Token: 34")
	if seen != "body" {
		t.Errorf("the backend saw %q", seen)
	}
	f.want(412, "StaleToken", "DELETE", "/b/a", "body", "X-Fence-Token: 33")
	for _, more := range []int{1, 2, 1000} { // none of them comes to the gate, and leaves a write open there
		f.want(400, "", "DELETE", "/b/a", strings.Repeat("x", maxSmall+more), "X-Fence-Token: 34")
	}
	f.want(204, "", "DELETE", "/b/a", strings.Repeat("x", maxSmall), "X-Fence-Token: 34")
	if s := f.fence.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

func TestBackendThatDoesNotWantTheBody(t *testing.T) {
	f := newFixture(t, Backend{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Said", "no bucket")
		w.WriteHeader(http.StatusNotFound)
	})})
	resp, _ := f.do("PUT", "/b/a", strings.Repeat("x", 1<<20), "X-Fence-Token: 34")
	if resp.StatusCode != 404 || resp.Header.Get("X-Said") != "no bucket" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	f.want(404, "", "PUT", "/b/a", "x", "X-Fence-Token: 33") // nobody has passed the gate: the mark has not moved
}

// TestEveryRefusal holds the table of answers: never 5xx, never 409, both tokens and the rule in the message.
func TestEveryRefusal(t *testing.T) {
	rule := "(rule \"jobs/{job}/**\" of bucket \"*\")"
	for _, c := range []struct {
		name   string
		err    error
		change func(*exchange)
		status int
		code   string
		error  string
		words  []string
	}{
		{"stale", &tokens.StaleError{Resource: "b/jobs/7", Token: 33, Highest: 34, Holder: "a"}, nil, 412, "PreconditionFailed", "StaleToken", []string{"33", "34", `"a"`, "b/jobs/7", rule, "lost its lock"}},
		{"stale, no token", &tokens.StaleError{Resource: "b/jobs/7", Highest: 34}, nil, 412, "PreconditionFailed", "StaleToken", []string{"without a token", "34"}},
		{"stale, by rule", &tokens.StaleError{Token: 33, Highest: 34}, func(x *exchange) { x.target.Refuse = 403 }, 403, "AccessDenied", "StaleToken", []string{"33", "34"}},
		{"stale, If-Match", &tokens.StaleError{Token: 33, Highest: 34}, func(x *exchange) { x.r.Header.Set("If-Match", `"x"`) }, 403, "AccessDenied", "StaleToken", nil},
		{"stale, If-None-Match", &tokens.StaleError{Token: 33, Highest: 34}, func(x *exchange) { x.r.Header.Set("If-None-Match", "*") }, 403, "AccessDenied", "StaleToken", nil},
		{"conflict", &tokens.ConflictError{Resource: "b/jobs/7", Token: 34, Holder: "b", Bound: "a"}, nil, 403, "AccessDenied", "TokenConflict", []string{"34", `"a"`, `"b"`, rule}},
		{"too far", &tokens.TooFarError{Resource: "b/jobs/7", Token: 99, Highest: 34, MaxAdvance: 10}, nil, 403, "AccessDenied", "TokenTooFar", []string{"99", "34", "10", "max_advance", rule}},
		{"bad", badToken("no"), nil, 400, "InvalidArgument", "BadToken", nil},
		{"rule", &ruleError{tokenRequired, "send one"}, nil, 403, "AccessDenied", "TokenRequired", []string{"send one", rule}},
		{"waiting", &tokens.WaitingError{Resource: "b/jobs/7", Token: 34}, nil, 503, "SlowDown", "WaitingForOlderWrite", []string{"34", "again"}},
		{"registry", fmt.Errorf("%w: failed to connect to user=inside host=secret", tokens.ErrUnavailable), nil, 503, "ServiceUnavailable", "RegistryUnavailable", []string{"out of reach"}},
		{"unknown", errOutcomeUnknown, nil, 504, "GatewayTimeout", "OutcomeUnknown", []string{"may or may not"}},
		{"ours", errors.New("bug"), nil, 500, "InternalError", "", nil},
	} {
		x := &exchange{r: httptest.NewRequest("PUT", "http://host/b/jobs/7/a", nil), target: rules.Target{Rule: `rule "jobs/{job}/**" of bucket "*"`}}
		if c.change != nil {
			c.change(x)
		}
		a := x.answerTo(c.err)
		if a.status != c.status || a.code != c.code || a.name != c.error {
			t.Errorf("%s: %+v", c.name, a)
		}
		if a.refusal() != (c.error != "" && c.status < 500) {
			t.Errorf("%s: a refusal? %v", c.name, a.refusal())
		}
		if strings.Contains(a.message, "inside") {
			t.Errorf("%s: %q tells a client what is for the log", c.name, a.message)
		}
		for _, word := range c.words {
			if !strings.Contains(a.message, word) {
				t.Errorf("%s: %q does not say %q", c.name, a.message, word)
			}
		}
	}
}

func TestAnswersAreReadable(t *testing.T) {
	f := newFixture(t, Backend{Handler: answering(200)}, rules.Rule{Match: "a<b/**", Resource: "ü x", Token: rules.Required})
	resp, body := f.do("PUT", "/b/a%3Cb/c", "x")
	var e xmlError
	if err := xml.Unmarshal([]byte(body), &e); err != nil || e.Code != "AccessDenied" || e.Resource != "/b/a<b/c" || e.RequestID != resp.Header.Get("X-Amz-Request-Id") {
		t.Errorf("%+v, %v", e, err)
	}
	if got := resp.Header.Get("X-Fence-Resource"); got != "b/%C3%BC%20x" {
		t.Errorf("X-Fence-Resource: %q", got)
	}
	_, body = f.do("PUT", "/b/a%3Cb/c", "x", "Accept: application/json")
	var p problem
	if err := json.Unmarshal([]byte(body), &p); err != nil || p.Status != 403 || p.Error != "TokenRequired" || p.Resource != "b/ü x" {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestRefusalsAreAuditedFirst: when the client reads its refusal, the record is there.
func TestRefusalsAreAuditedFirst(t *testing.T) {
	f := newFixture(t, Backend{Handler: answering(200)})
	f.want(200, "", "PUT", "/b/a", "x", "X-Fence-Token: 34")
	f.want(412, "StaleToken", "PUT", "/b/a", "x", "X-Fence-Token: 33", "User-Agent: stale/1")
	records, _, err := f.audit.Query(t.Context(), audit.Filter{Kind: audit.KindRefusal})
	if err != nil || len(records) != 1 {
		t.Fatal(records, err)
	}
	r := records[0]
	if r.Code != "StaleToken" || r.Bucket != "b" || r.Key != "a" || r.Operation != "PutObject" || r.Resource != "b/a" ||
		r.Token != 33 || r.Highest != 34 || r.UserAgent != "stale/1" || r.RequestID == "" || r.Client == "" {
		t.Errorf("%+v", r)
	}
}

// TestTokenOffStillVerifies: a key that is not fenced still gets no half a body.
func TestTokenOffStillVerifies(t *testing.T) {
	var got bytes.Buffer
	f := newFixture(t, Backend{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Reset()
		if _, err := io.Copy(&got, r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusOK)
	})}, rules.Rule{Match: "**", Token: rules.Off})
	f.want(400, "", "PUT", "/b/a", "content", "Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==")
	if got.Len() >= len("content") {
		t.Error("the backend had it all")
	}
	f.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
	resp, _ := f.do("PUT", "/b/a", "content", "X-Fence-Token: 33")
	if resp.StatusCode != 200 || resp.Header.Get("X-Fence-Highest") != "" || got.String() != "content" {
		t.Errorf("%d %v %q", resp.StatusCode, resp.Header, got.String())
	}
	f.want(400, "", "GET", "/b/a?fence", "")
}

// TestPutNeedsALength: without one an object would become empty by a slip, or end where a connection breaks.
func TestPutNeedsALength(t *testing.T) {
	f := newFixture(t, Backend{Handler: answering(200)})
	for request, status := range map[string]string{
		"PUT /b/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":                                                    "411",
		"PUT /b/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": "501",
		"PUT /b/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n":                               "200",
		"PUT /b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":                                                      "200",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(request))
		answer, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+status) {
			t.Errorf("%q: %q, %v; want %s", request, answer, err, status)
		}
	}
}

// TestBackendThatGivesUpWithItsContext: a store that is busy sending does not read the body, and only sees that its context has ended.
func TestBackendThatGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	f := newFixture(t, Backend{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Meta-Slow") == "" {
			answering(200).ServeHTTP(w, r)
			return
		}
		_, _ = r.Body.Read(make([]byte, 1))
		close(begun)
		<-r.Context().Done()
		w.WriteHeader(http.StatusServiceUnavailable)
	})})
	var older sync.WaitGroup
	older.Go(func() {
		f.want(412, "StaleToken", "PUT", "/b/a", "older", "X-Fence-Token: 33", "X-Amz-Meta-Slow: 1")
	})
	<-begun
	f.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 34")
	older.Wait()
}

// TestBucketsOfSeveralBackends: each shows what leads to it, and one that does not answer is no empty list.
func TestBucketsOfSeveralBackends(t *testing.T) {
	listing := func(names ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			var list bucketList
			for _, n := range names {
				list.Buckets = append(list.Buckets, struct{ Name, CreationDate string }{n, "2026-01-01T00:00:00.000Z"})
			}
			body, _ := xml.Marshal(list)
			_, _ = w.Write(body)
		})
	}
	table, err := rules.New([]rules.Bucket{{Name: "s3-*", Backend: "one"}, {Name: "*", Backend: "two"}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(one, two http.Handler) *httptest.ResponseRecorder {
		h := New(Config{Rules: table, Backends: map[string]Backend{"one": {Handler: one}, "two": {Handler: two}}, Log: slog.New(slog.DiscardHandler)})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/", nil))
		return w
	}
	var got bucketList
	w := ask(listing("s3-b", "other"), listing("a", "s3-c", "z"))
	if err := xml.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got.Buckets) != 3 || got.Buckets[0].Name != "a" || got.Buckets[1].Name != "s3-b" || got.Buckets[2].Name != "z" {
		t.Errorf("%+v, %v", got, err)
	}
	if w := ask(listing("s3-b"), answering(403)); w.Code != 403 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
