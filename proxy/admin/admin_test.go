package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var raisedAt = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// A fake is a fence and a registry: a map. Its err, if set, is what everything answers.
type fake struct {
	entries map[string]tokens.Entry
	claims  []tokens.Claim
	err     error
}

func (f *fake) Announce(_ context.Context, c tokens.Claim) (tokens.Entry, error) {
	f.claims = append(f.claims, c)
	e := f.entries[c.Resource]
	switch {
	case f.err != nil:
		return e, f.err
	case c.Token < e.Token:
		return e, &tokens.StaleError{Resource: c.Resource, Token: c.Token, Highest: e.Token, Holder: e.Holder}
	}
	return f.set(c.Resource, c.Token), nil
}

func (f *fake) Reset(_ context.Context, resource string, t tokens.Token) (tokens.Entry, error) {
	if f.err != nil {
		return tokens.Entry{}, f.err
	}
	return f.set(resource, t), nil
}

func (f *fake) set(resource string, t tokens.Token) tokens.Entry {
	e := tokens.Entry{Resource: resource, Token: t, Holder: f.entries[resource].Holder, RaisedAt: raisedAt}
	f.entries[resource] = e
	return e
}

func (f *fake) Lookup(_ context.Context, resource string) (tokens.Entry, error) {
	e := f.entries[resource]
	e.Resource = resource
	return e, f.err
}

func (f *fake) List(_ context.Context, prefix, after string, limit int) (all []tokens.Entry, err error) {
	for _, e := range f.entries {
		if strings.HasPrefix(e.Resource, prefix) && e.Resource > after {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b tokens.Entry) int { return cmp.Compare(a.Resource, b.Resource) })
	return all[:min(limit, len(all))], f.err
}

// A fixture is the API on a fake with the fences b/jobs/1 … b/jobs/5, of tokens 10 … 50.
type fixture struct {
	*fake
	handler http.Handler
	audit   *audit.Log
	ready   error
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	l, err := audit.Open(t.Context(), filepath.Join(t.TempDir(), "audit.db"), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	f := &fixture{fake: &fake{entries: map[string]tokens.Entry{}}, audit: l}
	for i := range 5 {
		e := f.set(fmt.Sprintf("b/jobs/%d", i+1), tokens.Token(10*(i+1)))
		e.Holder = fmt.Sprintf("h%d", i+1)
		f.entries[e.Resource] = e
	}
	f.handler = New(Config{
		Fence: f, Registry: f, Audit: l, Version: "v9",
		Ready:   func() error { return f.ready },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fenceproxy_up 1\n") }),
		Settle:  func(string) time.Duration { return time.Minute },
		now:     func() time.Time { return raisedAt },
	})
	return f
}

func (f *fixture) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w
}

func (f *fixture) get(target string) *httptest.ResponseRecorder {
	return f.do(httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9001"+target, nil))
}

func (f *fixture) post(target, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:9001"+target, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	r.Header.Set("User-Agent", "test/1")
	return f.do(r)
}

// wantProblem checks the status, the form and a part of the sentence of an error.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, sentence string) (p problem) {
	t.Helper()
	if w.Code != status || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("answer %d %s, want the problem %d", w.Code, w.Header().Get("Content-Type"), status)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != status || !strings.Contains(p.Detail, sentence) {
		t.Errorf("body %s (%v), want status %d and %q", w.Body, err, status, sentence)
	}
	return p
}

func wantBody(t *testing.T, w *httptest.ResponseRecorder, body string) {
	t.Helper()
	if got := strings.TrimSpace(w.Body.String()); w.Code != http.StatusOK || got != body {
		t.Errorf("answer %d\n%s, want\n%s", w.Code, got, body)
	}
}

func TestHealth(t *testing.T) {
	f := newFixture(t)
	wantBody(t, f.get("/healthz"), `{"status":"ok","version":"v9"}`)
	wantBody(t, f.get("/readyz"), `{"status":"ready"}`)
	wantBody(t, f.get("/metrics"), "fenceproxy_up 1")
	f.ready = errors.New("the data listener is not open yet")
	wantProblem(t, f.get("/readyz"), http.StatusServiceUnavailable, "the data listener is not open yet")
	wantBody(t, f.get("/healthz"), `{"status":"ok","version":"v9"}`)
	if w := f.do(httptest.NewRequest(http.MethodHead, "http://localhost/healthz", nil)); w.Code != http.StatusOK {
		t.Errorf("HEAD: %d", w.Code)
	}
}

func TestListFences(t *testing.T) {
	f := newFixture(t)
	for range 3 {
		f.audit.Add(t.Context(), audit.Record{Kind: audit.KindRefusal, Resource: "b/jobs/2"})
	}
	wantBody(t, f.get("/api/v1/fences?prefix=b/jobs/&after=b/jobs/1&limit=2"),
		`{"fences":[`+
			`{"resource":"b/jobs/2","token":20,"holder":"h2","access_key":"","raised_at":"2026-05-04T03:02:01.000Z","refusals":3},`+
			`{"resource":"b/jobs/3","token":30,"holder":"h3","access_key":"","raised_at":"2026-05-04T03:02:01.000Z","refusals":0}`+
			`],"next":"b/jobs/3"}`)
	wantBody(t, f.get("/api/v1/fences?after=b/jobs/4&limit=1"),
		`{"fences":[{"resource":"b/jobs/5","token":50,"holder":"h5","access_key":"","raised_at":"2026-05-04T03:02:01.000Z","refusals":0}],"next":""}`)
	wantBody(t, f.get("/api/v1/fences?resource=b/jobs/2"),
		`{"fences":[{"resource":"b/jobs/2","token":20,"holder":"h2","access_key":"","raised_at":"2026-05-04T03:02:01.000Z","refusals":3}],"next":""}`)
	wantBody(t, f.get("/api/v1/fences?resource=b/jobs/99"), `{"fences":[],"next":""}`)
	wantBody(t, f.get("/api/v1/fences?prefix=z"), `{"fences":[],"next":""}`)
}

func TestRegistryOutage(t *testing.T) {
	f := newFixture(t)
	for _, err := range []error{fmt.Errorf("%w: gone", tokens.ErrUnavailable), errors.New("gone")} {
		f.err = err
		for _, target := range []string{"/api/v1/fences", "/api/v1/fences?resource=b/x"} {
			if p := wantProblem(t, f.get(target), http.StatusServiceUnavailable, "gone"); p.Code != "RegistryUnavailable" {
				t.Errorf("%s: code %q", target, p.Code)
			}
		}
	}
}

func TestRaise(t *testing.T) {
	f := newFixture(t)
	wantBody(t, f.post("/api/v1/fences/raise", `{"resource":"b/jobs/1","token":9007199254740993,"reason":"rebuilt"}`),
		`{"resource":"b/jobs/1","token":9007199254740993,"holder":"h1","access_key":"","raised_at":"2026-05-04T03:02:01.000Z"}`)
	if c := f.claims[0]; c != (tokens.Claim{Resource: "b/jobs/1", Token: 9007199254740993, Audited: true, Settle: time.Minute}) {
		t.Errorf("claimed %+v", c)
	}
	p := wantProblem(t, f.post("/api/v1/fences/raise", `{"resource":"b/jobs/2","token":19}`), http.StatusPreconditionFailed, "19 is below 20")
	if p.Code != "StaleToken" || p.Token != 19 || p.Highest != 20 {
		t.Errorf("the stale raise is answered with %+v", p)
	}
	f.err = &tokens.ConflictError{Resource: "b/jobs/2", Token: 20, Bound: "h2"}
	wantProblem(t, f.post("/api/v1/fences/raise", `{"resource":"b/jobs/2","token":20}`), http.StatusPreconditionFailed, `"h2"`)

	if got := audited(t, f); len(got) != 1 || got[0].Kind != audit.KindRaise || got[0].Detail != "rebuilt" || got[0].Token != 9007199254740993 ||
		got[0].Bucket != "b" || got[0].Client != "192.0.2.1:1234" || got[0].UserAgent != "test/1" || got[0].Code != "" {
		t.Errorf("audited %+v, want the one raise", got)
	}
}

func TestReset(t *testing.T) {
	f := newFixture(t)
	wantProblem(t, f.post("/api/v1/fences/reset", `{"resource":"b/jobs/5","token":1,"reason":" "}`), http.StatusBadRequest, "reason")
	wantBody(t, f.post("/api/v1/fences/reset", `{"resource":"b/jobs/5","token":1,"reason":"etcd restored"}`),
		`{"resource":"b/jobs/5","token":1,"holder":"h5","access_key":"","raised_at":"2026-05-04T03:02:01.000Z"}`)
	got := audited(t, f)
	if len(got) != 1 || got[0].Kind != audit.KindReset || got[0].Detail != "etcd restored" || got[0].Highest != 1 {
		t.Errorf("audited %+v, want the one reset", got)
	}
}

// What may have happened is audited, too.
func TestOutcomeUnknownIsAudited(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{&tokens.WaitingError{Resource: "b/x", Token: 7}, http.StatusServiceUnavailable, "WaitingForOlderWrite"},
		{context.DeadlineExceeded, http.StatusServiceUnavailable, "WaitingForOlderWrite"},
		{fmt.Errorf("%w: gone", tokens.ErrUnavailable), http.StatusServiceUnavailable, "RegistryUnavailable"},
		{errors.New("no idea"), http.StatusInternalServerError, "OutcomeUnknown"},
	} {
		f.err = c.err
		for _, what := range []string{"raise", "reset"} {
			w := f.post("/api/v1/fences/"+what, `{"resource":"b/x","token":7,"reason":"why"}`)
			wantProblem(t, w, c.status, c.err.Error())
			got := audited(t, f)[0]
			if got.Kind != what || got.Code != c.code || !strings.HasPrefix(got.Detail, "why (") {
				t.Errorf("%v: audited %+v, want a %s with code %s", c.err, got, what, c.code)
			}
		}
	}
}

func audited(t *testing.T, f *fixture) []audit.Record {
	t.Helper()
	records, _, err := f.audit.Query(t.Context(), audit.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(records, func(a, b audit.Record) int { return cmp.Compare(b.ID, a.ID) })
	return records
}

func TestAudit(t *testing.T) {
	f := newFixture(t)
	for i := range 4 {
		f.audit.Add(t.Context(), audit.Record{
			Time: raisedAt.Add(-time.Duration(i) * 24 * time.Hour), Kind: audit.KindRefusal, Code: "StaleToken", Bucket: "b",
			Resource: fmt.Sprintf("b/%d", i), AccessKey: "AK", Token: 33, Highest: 34,
		})
	}
	ask := func(query string) (resources, next string) {
		t.Helper()
		w := f.get("/api/v1/audit?" + query)
		var answer struct {
			Records []audit.Record
			Next    string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s (%v)", query, w.Code, w.Body, err)
		}
		for _, r := range answer.Records {
			resources += r.Resource + " "
		}
		return strings.TrimSpace(resources), answer.Next
	}
	for query, want := range map[string]string{
		"":                           "b/0 b/1 b/2 b/3",
		"since=24h":                  "b/0 b/1",
		"since=1d12h":                "b/0 b/1",
		"since=7d&until=1d":          "b/2 b/3",
		"since=2026-05-03T03:02:01Z": "b/0 b/1",
		"kind=refusal&code=StaleToken&bucket=b&access_key=AK&resource=b/2": "b/2",
		"kind=raise": "",
		"since=" + url.QueryEscape("2026-05-03T05:02:01+02:00"): "b/0 b/1",
	} {
		if got, _ := ask(query); got != want {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
	first, next := ask("limit=3")
	rest, end := ask("limit=3&after=" + next)
	if first != "b/0 b/1 b/2" || rest != "b/3" || end != "" {
		t.Errorf("pages %q, %q, then %q", first, rest, end)
	}
	if got := f.get("/api/v1/audit?kind=raise").Body.String(); got != `{"records":[],"next":"","log":""}`+"\n" {
		t.Errorf("nothing found is answered with %s", got)
	}
}

func TestBadRequests(t *testing.T) {
	f := newFixture(t)
	for target, sentence := range map[string]string{
		"/api/v1/fences?prefx=b":                        `no parameter "prefx"`,
		"/api/v1/fences?limit=0":                        "1 to 1000",
		"/api/v1/fences?limit=1001":                     "1 to 1000",
		"/api/v1/fences?limit=ten":                      "1 to 1000",
		"/api/v1/fences?prefix=a&prefix=b":              "2 times",
		"/api/v1/fences?resource=b/x&prefix=b":          "one fence",
		"/api/v1/fences?prefix=%zz":                     "query",
		"/api/v1/audit?kind=refusals":                   "there are refusal, raise",
		"/api/v1/audit?since=yesterday":                 "90m, 24h or 7d",
		"/api/v1/audit?since=-1h":                       "90m",
		"/api/v1/audit?since=7":                         "90m",
		"/api/v1/audit?since=99999999d":                 "90m",
		"/api/v1/audit?since=1h&until=2h":               "not before",
		"/api/v1/audit?after=here":                      "next",
		"/api/v1/audit?since=2026-05-03T05:02:01+02:00": "%2B",
	} {
		wantProblem(t, f.get(target), http.StatusBadRequest, sentence)
	}
	for body, sentence := range map[string]string{
		``:                               "expected",
		`[]`:                             "expected",
		`{"resource":"b/x"}`:             "which token",
		`{"token":1}`:                    "which resource",
		`{"resource":"b","token":1}`:     "a bucket and a slash",
		`{"resource":"/x","token":1}`:    "a bucket and a slash",
		`{"resource":"b/x","token":"1"}`: "not a fencing token",
		`{"resource":"b/x","token":1.5}`: "not a fencing token",
		`{"resource":"b/x","token":0}`:   "not a fencing token",
		`{"resource":"b/x","token":-1}`:  "not a fencing token",
		`{"resource":"b/x","token":1,"force":true}`:                                        `"force"`,
		`{"resource":"b/x","token":1} {}`:                                                  "more in the body",
		`{"resource":"b/\u0000","token":1}`:                                                "NUL",
		`{"resource":"b/x","token":1,"reason":"` + strings.Repeat("x", maxReason+1) + `"}`: "reason",
	} {
		wantProblem(t, f.post("/api/v1/fences/raise", body), http.StatusBadRequest, sentence)
	}
	wantProblem(t, f.post("/api/v1/fences/raise", `"`+strings.Repeat("x", maxBody)+`"`), http.StatusRequestEntityTooLarge, "bytes")
	wantProblem(t, f.post("/api/v1/fences/raise?token=3", `{"resource":"b/x","token":1}`), http.StatusBadRequest, "there are none")
	wantProblem(t, f.get("/api/v1/nothing"), http.StatusNotFound, "/api/v1/")
	w := f.get("/api/v1/fences/raise")
	wantProblem(t, w, http.StatusMethodNotAllowed, "GET")
	if got := w.Header().Values("Allow"); !slices.Equal(got, []string{"POST"}) {
		t.Errorf("Allow: %v", got)
	}
	if len(f.claims) != 0 || len(audited(t, f)) != 0 {
		t.Errorf("a bad request raised %v or was audited", f.claims)
	}
}

// A page in the operator's browser must not get through.
func TestBrowserIsKeptOut(t *testing.T) {
	f := newFixture(t)
	const body = `{"resource":"b/jobs/1","token":99,"reason":"mine"}`
	post := func(host string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:9001/api/v1/fences/reset", strings.NewReader(body))
		r.Host = host
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		return f.do(r)
	}
	wantProblem(t, post("127.0.0.1:9001", "Sec-Fetch-Site", "cross-site"), http.StatusForbidden, "another origin")
	wantProblem(t, post("127.0.0.1:9001", "Origin", "https://evil.example"), http.StatusForbidden, "another origin")
	for _, host := range []string{"evil.example:9001", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:9001", ""} {
		wantProblem(t, post(host, "Sec-Fetch-Site", "same-origin"), http.StatusForbidden, "IP address")
	}
	for _, contentType := range []string{"text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"} {
		wantProblem(t, post("127.0.0.1:9001", "Content-Type", contentType), http.StatusUnsupportedMediaType, "application/json")
	}
	if f.entries["b/jobs/1"].Token != 10 {
		t.Fatal("a page got through")
	}
	for _, host := range []string{"127.0.0.1:9001", "localhost:9001", "localhost", "[::1]:9001", "[::1]", "127.0.0.1"} {
		if w := post(host); w.Code != http.StatusOK {
			t.Errorf("Host %s: %d %s", host, w.Code, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "http://evil.example/api/v1/audit", nil)
	wantProblem(t, f.do(r), http.StatusForbidden, "IP address")
	if h := f.get("/api/v1/audit").Header(); h.Get("Access-Control-Allow-Origin") != "" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", h)
	}
}

// The address of health may be reached by anybody, by any name, and changes and tells nothing.
func TestHealthAlone(t *testing.T) {
	var notReady error
	h := NewHealth(Config{
		Version: "v1", Ready: func() error { return notReady }, AuditOf: "X",
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("metrics")) }),
	})
	ask := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "http://lb.example.com"+path, strings.NewReader("{}")))
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/healthz", 200},
		{"GET", "/readyz", 200},
		{"HEAD", "/readyz", 200},
		{"GET", "/metrics", 200},
		{"POST", "/readyz", 405},
		{"GET", "/", 404},
		{"GET", "/api/v1/fences", 404},
		{"GET", "/api/v1/audit", 404},
		{"POST", "/api/v1/fences/raise", 404},
		{"POST", "/api/v1/fences/reset", 404},
	} {
		if status, body := ask(c.method, c.path); status != c.status {
			t.Errorf("%s %s: %d, want %d: %s", c.method, c.path, status, c.status, body)
		}
	}
	notReady = errors.New("the lease is over")
	if status, body := ask("GET", "/readyz"); status != 503 || !strings.Contains(body, "the lease is over") {
		t.Errorf("not ready: %d %s", status, body)
	}
	if status, _ := ask("GET", "/healthz"); status != 200 {
		t.Errorf("alive and not ready: %d", status)
	}
}
