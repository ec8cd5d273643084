package proxy

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

// A remote is the handler before a store elsewhere, which goes by AWS's rules and misbehaves when it is told to. Time is virtual.
type remote struct {
	*testing.T
	h     *Handler
	fence *tokens.Fence
	audit *audit.Log
	store *misbehave.Store
	shown *prometheus.Registry

	mu     sync.Mutex
	heard  []*heard                 // guarded by mu
	meddle map[string][]func(*call) // by operation: what happens right before the store hears of it, once each; guarded by mu
}

// A heard is a request as it came to the store.
type heard struct {
	name   string // S3's name for it
	key    string
	header http.Header
	whole  bool // its body had a gate of its own
	body   bytes.Buffer
}

// A call is a request that is about to come to the store. What answers it, keeps it from the store.
type call struct {
	*http.Request
	w        http.ResponseWriter
	answered bool
}

func (c *call) answer(status int, body string) {
	c.answered = true
	_, _ = io.Copy(io.Discard, c.Body)
	c.w.WriteHeader(status)
	_, _ = io.WriteString(c.w, body)
}

// ourRegistry is an id as long as registries have them.
const ourRegistry = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// all are the findings of a store that judges every condition.
var all = Findings{Conditions: []string{"PutObject", "CopyObject", "CompleteMultipartUpload", "DeleteObject", "DeleteObjects"}}

// before runs a test before a store. change, if it is not nil, may change what the handler is made of.
func before(t *testing.T, change func(*Config, *Backend), test func(*remote), entries ...rules.Rule) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &remote{T: t, shown: prometheus.NewRegistry(), meddle: map[string][]func(*call){}}
		r.store = misbehave.New(misbehave.Options{}, "b", "other")
		b := Backend{
			Handler: http.HandlerFunc(r.serveStore), Settle: time.Minute, SettleLong: 10 * time.Minute, Stamp: true, Conditional: ConditionalAuto,
			Probe: func(context.Context, string) (Findings, error) { return all, nil },
		}
		c := Config{
			Log: slog.New(slog.DiscardHandler), Metrics: r.shown, RegistryID: ourRegistry, Buffer: 1 << 20, Memory: 4 << 20, Spool: t.TempDir(),
		}
		if change != nil {
			change(&c, &b)
		}
		r.open(c, b, entries)
		test(r)
	})
}

func (r *remote) open(c Config, b Backend, entries []rules.Rule) {
	table, err := rules.New([]rules.Bucket{{Name: "*", Backend: "test", Rules: entries}})
	if err != nil {
		r.Fatal(err)
	}
	dir := r.TempDir()
	lock, err := sqlite.Lock(dir, "a test")
	if err != nil {
		r.Fatal(err)
	}
	registry, err := sqlite.Open(r.Context(), lock, sqlite.Options{Create: true})
	if err != nil {
		r.Fatal(err)
	}
	if r.audit, err = audit.Open(r.Context(), filepath.Join(dir, "audit.db"), audit.Options{}); err != nil {
		r.Fatal(err)
	}
	r.fence = tokens.NewFence(registry, tokens.Options{RaiseWait: 2 * time.Second})
	c.Fence, c.Uploads, c.Rules, c.Audit = r.fence, registry, table, r.audit
	c.Backends = map[string]Backend{"test": b}
	r.h = New(c)
	r.Cleanup(func() {
		r.store.Close()
		r.h.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.fence.Close(ctx) // some tests leave writes in doubt
		if err := errors.Join(r.audit.Close(), registry.Close(), lock.Release()); err != nil {
			r.Error(err)
		}
	})
}

// serveStore is what package backends asks of a store elsewhere: a whole body's gate is passed when the request is signed, and before
// anything of it goes out.
func (r *remote) serveStore(w http.ResponseWriter, in *http.Request) {
	op, _ := parseOperation(in, in.URL.Path)
	h := &heard{name: op.name, key: op.key, header: in.Header.Clone()}
	var gate interface{ Pass() error }
	if gate, h.whole = in.Body.(interface{ Pass() error }); h.whole && gate.Pass() != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	in = in.Clone(in.Context())
	in.Body = io.NopCloser(io.TeeReader(in.Body, &h.body))
	sign(in)
	r.mu.Lock()
	r.heard = append(r.heard, h)
	var meddle func(*call)
	if next := r.meddle[op.name]; len(next) > 0 {
		meddle, r.meddle[op.name] = next[0], next[1:]
	}
	r.mu.Unlock()
	if meddle != nil {
		c := &call{Request: in, w: w}
		if meddle(c); c.answered {
			return
		}
	}
	r.store.ServeHTTP(w, in)
}

// sign makes a signature that covers what it must. The store does not verify it.
func sign(in *http.Request) {
	in.Header.Set("X-Amz-Date", time.Now().UTC().Format("20060102T150405Z"))
	signed := []string{"host"}
	for name := range in.Header {
		signed = append(signed, strings.ToLower(name))
	}
	in.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=x, SignedHeaders="+strings.Join(signed, ";")+", Signature=x")
}

// interfere has f run right before the next request of this operation comes to the store that has none to run yet.
func (r *remote) interfere(name string, f func(*call)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meddle[name] = append(r.meddle[name], f)
}

// fault has the store do this with the next request of an operation.
func (r *remote) fault(name string, f misbehave.Fault) { r.store.Next(misbehave.Named(name), f) }

// put puts an object there behind the proxy's back.
func (r *remote) put(key, content string) (etag string) {
	r.store.Put("b", key, []byte(content), nil)
	journal := r.store.Journal()
	return journal[len(journal)-1].ETag
}

// take returns the requests of an operation that the store has heard since the last time, in their order.
func (r *remote) take(name string) (taken []*heard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := r.heard[:0:0]
	for _, h := range r.heard {
		if h.name == name {
			taken = append(taken, h)
		} else {
			rest = append(rest, h)
		}
	}
	r.heard = rest
	return taken
}

// takeOne is take of a request that came once.
func (r *remote) takeOne(name string) *heard {
	r.Helper()
	taken := r.take(name)
	if len(taken) != 1 {
		r.Fatalf("the store has heard %d times of %s, want once", len(taken), name)
	}
	return taken[0]
}

// quiet fails if the store has heard of any write since the last take.
func (r *remote) quiet() {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.heard {
		if !slices.Contains([]string{"HeadObject", "GetObject", "GetBucketVersioning"}, h.name) {
			r.Errorf("the store has heard of a %s of %s", h.name, h.key)
		}
	}
}

// has checks what a key has in the store; "" is nothing.
func (r *remote) has(key, content string) {
	r.Helper()
	if got, ok := r.store.Content("b", key); string(got) != content || ok != (content != "") {
		r.Fatalf("%s has %q, want %q", key, got, content)
	}
}

// request makes one as a server would hand it to the handler.
func (r *remote) request(method, target string, body io.Reader, size int, headers ...string) *http.Request {
	in := httptest.NewRequest(method, target, body)
	in.Host, in.ContentLength = "localhost", int64(size)
	in.Header.Set("Content-Length", strconv.Itoa(size))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		in.Header.Add(name, value)
	}
	return in
}

func (r *remote) do(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	return r.serve(r.request(method, target, strings.NewReader(body), len(body), headers...))
}

func (r *remote) serve(in *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, in)
	return w
}

// want sends a request and checks status and X-Fence-Error of its answer, or where there is none the code of S3.
func (r *remote) want(status int, code, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r.Helper()
	w := r.do(method, target, body, headers...)
	r.check(w, status, code)
	return w
}

func (r *remote) check(w *httptest.ResponseRecorder, status int, code string) {
	r.Helper()
	got := w.Header().Get("X-Fence-Error")
	if got == "" {
		got = codeOf(w.Body.Bytes())
	}
	if w.Code != status || got != code {
		r.Fatalf("answered %d %s, want %d %s\n%s", w.Code, got, status, code, w.Body)
	}
}

func codeOf(body []byte) string {
	var e struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	_ = xml.Unmarshal(body, &e)
	return e.Code
}

// settled checks that the fence has no write open.
func (r *remote) settled() {
	r.Helper()
	if s := r.fence.Stats(); s.Open != 0 || s.InDoubt != 0 {
		r.Errorf("%d writes are open, %d in doubt", s.Open, s.InDoubt)
	}
}

// doubtful checks how many writes are in doubt.
func (r *remote) doubtful(n int64) {
	r.Helper()
	if s := r.fence.Stats(); s.Open != n || s.InDoubt != n {
		r.Fatalf("%d writes are open, %d in doubt; want %d", s.Open, s.InDoubt, n)
	}
}

// mark is the highest token of a resource.
func (r *remote) mark(resource string) tokens.Token {
	r.Helper()
	e, err := r.fence.Highest(r.Context(), resource)
	if err != nil {
		r.Fatal(err)
	}
	return e.Token
}

// metric is the value of a metric, summed over those of its labels that are not asked for: name, or name{label=value}.
func (r *remote) metric(name string, labels ...string) (sum float64) {
	r.Helper()
	families, err := r.shown.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			has := map[string]bool{}
			for _, l := range m.GetLabel() {
				has[l.GetName()+"="+l.GetValue()] = true
			}
			if slices.ContainsFunc(labels, func(l string) bool { return !has[l] }) {
				continue
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// records are those of a kind in the audit log.
func (r *remote) records(kind string) []audit.Record {
	r.Helper()
	records, _, err := r.audit.Query(r.Context(), audit.Filter{Kind: kind})
	if err != nil {
		r.Fatal(err)
	}
	return records
}

// upload begins a multipart upload, and sends its only part. It returns the target and the body of its Complete.
func (r *remote) upload(key, content string, headers ...string) (target, list string) {
	r.Helper()
	var created struct{ UploadId string }
	w := r.want(200, "", "POST", "/b/"+key+"?uploads", "", headers...)
	if err := xml.Unmarshal(w.Body.Bytes(), &created); err != nil {
		r.Fatal(err)
	}
	target = "/b/" + key + "?uploadId=" + created.UploadId
	w = r.want(200, "", "PUT", target+"&partNumber=1", content, headers...)
	return target, fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", w.Header().Get("Etag"))
}

// An op is a write of one of the operations that may have a condition.
type op struct {
	name string
	send func(headers ...string) *httptest.ResponseRecorder
}

// prepare makes ready a write to a key: "content-of-" and its name is what will be there, but for Delete.
func (r *remote) prepare(name, key string) op {
	r.Helper()
	content := "content-of-" + name
	switch name {
	case "PutObject":
		return op{name, func(h ...string) *httptest.ResponseRecorder { return r.do("PUT", "/b/"+key, content, h...) }}
	case "CopyObject":
		r.store.Put("other", "source", []byte(content), nil)
		return op{name, func(h ...string) *httptest.ResponseRecorder {
			return r.do("PUT", "/b/"+key, "", append(h, "X-Amz-Copy-Source: other/source")...)
		}}
	case "CompleteMultipartUpload":
		target, list := r.upload(key, content, "X-Fence-Token: 34")
		return op{name, func(h ...string) *httptest.ResponseRecorder { return r.do("POST", target, list, h...) }}
	case "DeleteObject":
		return op{name, func(h ...string) *httptest.ResponseRecorder { return r.do("DELETE", "/b/"+key, "", h...) }}
	}
	r.Fatalf("%s is not one of them", name)
	return op{}
}
