package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fenceproxy/fenceproxy/backends/file"
	"github.com/fenceproxy/fenceproxy/proxy"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

const (
	lostID  = "DXMGMTXTDWWVKZQIUBK5IN35VF"
	otherID = "5MP4GMTXTDWWVKZQIUBK5IN35A"
)

// A site is a configuration in a directory of its own, whose proxy is stopped.
type site struct {
	dir, config, data string
}

func newSite(t *testing.T, backends string) *site {
	t.Helper()
	dir := t.TempDir()
	p := &site{dir: dir, config: filepath.Join(dir, "config.yaml"), data: filepath.Join(dir, "data")}
	text := "data: " + p.data + "\nbackends: " + strings.ReplaceAll(backends, "DIR", dir) + `
buckets:
  - name: "*"
    rules:
      - {match: "jobs/{job}/**", resource: "jobs/{job}"}
      - {match: "free/**", token: off}
`
	if err := os.WriteFile(p.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs a command of the program.
func (p *site) run(t *testing.T, ctx context.Context, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	err = execute(ctx, append(args, "--config", p.config), strings.NewReader(""), &out, &errOut)
	return out.String(), errOut.String(), err
}

// open opens registry and audit log, for a look.
func (p *site) open(t *testing.T) *state {
	t.Helper()
	if err := os.MkdirAll(p.data, 0o755); err != nil {
		t.Fatal(err)
	}
	return openRepair(t, p.data)
}

// recorded checks all tokens of the registry.
func (p *site) recorded(t *testing.T, want map[string]tokens.Token) {
	t.Helper()
	s := p.open(t)
	defer s.mustClose(t)
	all, err := s.registry.List(t.Context(), "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]tokens.Token{}
	for _, e := range all {
		got[e.Resource] = e.Token
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func (s *state) mustRecord(t *testing.T, marks map[string]tokens.Token) {
	t.Helper()
	for resource, token := range marks {
		if _, err := s.registry.Raise(t.Context(), tokens.Claim{Resource: resource, Token: token, Holder: "h"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRaiseAllBy(t *testing.T) {
	p := newSite(t, "{local: {type: file, root: DIR/objects}}")
	_, _, err := p.run(t, t.Context(), "raise", "--all-by", "5")
	wantError(t, err, "no such file") // the data directory
	if err := os.Mkdir(p.data, 0o755); err != nil {
		t.Fatal(err)
	}
	_, _, err = p.run(t, t.Context(), "raise", "--all-by", "5")
	wantError(t, err, "fenceproxy rebuild")
	if _, err := os.Stat(filepath.Join(p.data, sqlite.FileName)); err == nil {
		t.Error("a registry was made")
	}
	s := p.open(t)
	s.mustRecord(t, map[string]tokens.Token{"b/a": 34, "b/b": tokens.Max - 5})
	_, _, err = p.run(t, t.Context(), "raise", "--all-by", "5")
	wantError(t, err, "stopped")
	wantError(t, err, "a test") // who has the lock
	s.mustClose(t)

	for _, by := range []string{"0", "-1", "x", "9223372036854775808"} {
		_, _, err = p.run(t, t.Context(), "raise", "--all-by", by)
		wantError(t, err, "not a fencing token")
	}
	_, _, err = p.run(t, t.Context(), "raise")
	wantError(t, err, "all-by")
	_, _, err = p.run(t, t.Context(), "raise", "--all-by", "6")
	wantError(t, err, "b/b is at")
	p.recorded(t, map[string]tokens.Token{"b/a": 34, "b/b": tokens.Max - 5})

	stdout, stderr, err := p.run(t, t.Context(), "raise", "--all-by", "5")
	if err != nil || !strings.Contains(stdout, "The tokens of 2 resources were raised by 5") || !strings.Contains(stderr, "Next: ") {
		t.Errorf("%v: %q %q", err, stdout, stderr)
	}
	p.recorded(t, map[string]tokens.Token{"b/a": 39, "b/b": tokens.Max})
	s = p.open(t)
	defer s.mustClose(t)
	records, _, err := s.audit.Query(t.Context(), audit.Filter{Kind: audit.KindRaise})
	if err != nil || len(records) != 1 || !strings.Contains(records[0].Detail, "2 resources") || records[0].Token != 5 {
		t.Errorf("audited %+v, %v", records, err)
	}
}

// stampOf is what the proxy of a registry leaves on an object.
func stampOf(registry, resource string, t tokens.Token) string {
	return proxy.Stamp{Registry: registry, Resource: proxy.ResourceHash(resource), Token: t, WriteID: "0123456789abcdef"}.String()
}

// put writes an object, or makes a bucket, in a store that no proxy is before.
func put(t *testing.T, store http.Handler, path, stamp string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPut, "http://store"+path, strings.NewReader("x"))
	if strings.Count(path, "/") == 1 {
		r = httptest.NewRequest(http.MethodPut, "http://store"+path, nil)
	}
	if stamp != "" {
		r.Header.Set("X-Amz-Meta-Fenceproxy", stamp)
	}
	w := httptest.NewRecorder()
	if store.ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Fatalf("PUT %s: %d %s", path, w.Code, w.Body)
	}
}

// inStore opens the file store of a site.
func (p *site) inStore(t *testing.T, f func(*file.Store)) {
	t.Helper()
	root := filepath.Join(p.dir, "objects")
	store, err := file.Open(root, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f(store)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

// rebuilt runs a rebuild that has to succeed and returns its rows and what it says.
func (p *site) rebuilt(t *testing.T, args ...string) ([]bucketCount, string) {
	t.Helper()
	stdout, stderr, err := p.run(t, t.Context(), append([]string{"rebuild", "--format", "json"}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	var rows []bucketCount
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	return rows, stderr
}

// TestRebuild of a file store whose registry is lost.
func TestRebuild(t *testing.T) {
	p := newSite(t, "{local: {type: file, root: DIR/objects}}")
	p.inStore(t, func(store *file.Store) {
		put(t, store, "/bkt", "")
		put(t, store, "/empty", "")
		for key, stamp := range map[string]string{
			"jobs/1/a":      stampOf(lostID, "bkt/jobs/1", 34),
			"jobs/1/b":      strings.Replace(stampOf(lostID, "bkt/jobs/1", 36), ".0.36.", ".3.36.", 1), // after three resets
			"jobs/1/c":      stampOf(lostID, "bkt/jobs/1", 35),
			"jobs/2/copied": stampOf(lostID, "bkt/jobs/1", 99),
			"k +%&é":        stampOf(otherID, "bkt/k +%&é", 5),
			"none":          stampOf(lostID, "bkt/none", 0), // written without a token
			"unstamped":     "",
			"nonsense":      "1.x",
			"free/x":        stampOf(lostID, "bkt/free/x", 7),
		} {
			put(t, store, (&url.URL{Path: "/bkt/" + key}).EscapedPath(), stamp)
		}
		if err := store.BindRegistry(lostID); err != nil {
			t.Fatal(err)
		}
	})
	marks := map[string]tokens.Token{"bkt/jobs/1": 36, "bkt/k +%&é": 5}
	bkt := bucketCount{Bucket: "bkt", Backend: "local", Objects: 9, Stamps: 5, Raised: 2, NoStamp: 2, OtherResource: 1, NotFenced: 1}
	empty := bucketCount{Bucket: "empty", Backend: "local"}

	rows, said := p.rebuilt(t)
	if diff := cmp.Diff([]bucketCount{bkt, empty}, rows); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{"a new one was made", "was=" + lostID, lostID, otherID, "lower bounds", "raise --all-by N"} {
		if !strings.Contains(said, part) {
			t.Errorf("it says\n%swithout %q", said, part)
		}
	}
	p.recorded(t, marks)
	s := p.open(t)
	id := s.registry.Start().ID
	if got, want := s.registry.Adopted(), []string{otherID, lostID}; !slices.Equal(got, want) {
		t.Errorf("adopted are %q, want %q", got, want)
	}
	if e, err := s.registry.Lookup(t.Context(), "bkt/jobs/1"); e.Generation != 3 || err != nil {
		t.Errorf("%+v, %v; want generation 3", e, err)
	}
	records, _, err := s.audit.Query(t.Context(), audit.Filter{Kind: audit.KindRaise})
	if err != nil || len(records) != 1 || records[0].Operation != "rebuild" || !strings.HasPrefix(records[0].Detail, "2 resources") {
		t.Errorf("audited %+v, %v", records, err)
	}
	s.mustClose(t)
	p.inStore(t, func(store *file.Store) {
		if bound, err := store.RegistryID(); bound != id || err != nil {
			t.Errorf("the objects are bound to %q, %v; want %s", bound, err, id)
		}
	})

	t.Run("again", func(t *testing.T) {
		bkt.Raised = 0
		rows, _ := p.rebuilt(t, "--bucket", "bkt")
		if diff := cmp.Diff([]bucketCount{bkt}, rows); diff != "" {
			t.Error(diff)
		}
		p.recorded(t, marks)
	})
	t.Run("a stamp of one more registry", func(t *testing.T) {
		const third = "ABCDGMTXTDWWVKZQIUBK5IN35A"
		p.inStore(t, func(store *file.Store) { put(t, store, "/empty/x", stampOf(third, "empty/x", 8)) })
		rows, said := p.rebuilt(t)
		if rows[1] != (bucketCount{Bucket: "empty", Backend: "local", Objects: 1, OtherRegistry: 1}) || !strings.Contains(said, "rebuild --adopt "+third) {
			t.Errorf("%+v\n%s", rows[1], said)
		}
		p.recorded(t, marks)
		rows, _ = p.rebuilt(t, "--adopt", third)
		if rows[1] != (bucketCount{Bucket: "empty", Backend: "local", Objects: 1, Stamps: 1, Raised: 1}) {
			t.Errorf("%+v", rows[1])
		}
		marks["empty/x"] = 8
		p.recorded(t, marks)
	})
	t.Run("table", func(t *testing.T) {
		stdout, _, err := p.run(t, t.Context(), "rebuild")
		const want = `BUCKET  BACKEND  OBJECTS  STAMPS  RAISED  NO STAMP  OTHER RESOURCE  OTHER REGISTRY  NOT FENCED  FAILURES
bkt     local    9        5       0       2         1               0               1           0
empty   local    1        1       0       0         0               0               0           0
all     -        10       6       0       2         1               0               1           0
`
		if stdout != want || err != nil {
			t.Errorf("%v\n%s", err, stdout)
		}
	})
	t.Run("bound to another registry", func(t *testing.T) { // most likely the wrong data directory
		p.inStore(t, func(store *file.Store) {
			if err := store.BindRegistry(lostID); err != nil {
				t.Fatal(err)
			}
		})
		_, _, err := p.run(t, t.Context(), "rebuild")
		wantError(t, err, "fenced by registry "+lostID)
	})
	t.Run("a bucket of no entry", func(t *testing.T) {
		text, err := os.ReadFile(p.config)
		if err != nil {
			t.Fatal(err)
		}
		q := &site{dir: p.dir, data: p.data, config: filepath.Join(p.dir, "narrow.yaml")}
		if err := os.WriteFile(q.config, bytes.Replace(text, []byte(`name: "*"`), []byte(`name: "bkt"`), 1), 0o644); err != nil {
			t.Fatal(err)
		}
		p.inStore(t, func(store *file.Store) {
			if err := store.BindRegistry(id); err != nil {
				t.Fatal(err)
			}
		})
		_, _, err = q.run(t, t.Context(), "rebuild", "--bucket", "empty")
		wantError(t, err, "--bucket empty")
		if rows, _ := q.rebuilt(t); len(rows) != 1 || rows[0].Bucket != "bkt" {
			t.Errorf("%+v", rows)
		}
	})
}

// A fakeS3 has one bucket, bkt, whose objects carry stamps, and fails as it is told.
type fakeS3 struct {
	mu      sync.Mutex
	objects map[string]string // stamps by key
	answers map[string][]int  // statuses of the next HEADs of a key, before the right answer
	page    int               // keys in a list
	lists   func(w http.ResponseWriter, r *http.Request) bool
}

func (f *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key, isObject := strings.CutPrefix(r.URL.Path, "/bkt/")
	switch {
	case isObject && key != "":
		if next := f.answers[key]; len(next) > 0 {
			f.answers[key] = next[1:]
			w.WriteHeader(next[0])
			return
		}
		w.Header().Set("X-Amz-Meta-Fenceproxy", f.objects[key])
	case f.lists != nil && f.lists(w, r):
	case r.URL.Path == "/":
		fmt.Fprint(w, `<ListAllMyBucketsResult xmlns="x"><Buckets><Bucket><Name>bkt</Name></Bucket></Buckets></ListAllMyBucketsResult>`)
	default:
		f.list(w, r.URL.Query())
	}
}

func (f *fakeS3) list(w http.ResponseWriter, q url.Values) {
	type content struct{ Key string }
	result := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		EncodingType          string
		Contents              []content
	}{EncodingType: q.Get("encoding-type")}
	keys := make([]string, 0, len(f.objects))
	for key := range f.objects {
		if key > q.Get("continuation-token") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if len(keys) > f.page {
		keys, result.IsTruncated, result.NextContinuationToken = keys[:f.page], true, keys[f.page-1]
	}
	for _, key := range keys {
		result.Contents = append(result.Contents, content{url.QueryEscape(key)})
	}
	_ = xml.NewEncoder(w).Encode(result)
}

func newFakeS3(t *testing.T, n int) (*fakeS3, *site) {
	t.Helper()
	f := &fakeS3{objects: map[string]string{}, answers: map[string][]int{}, page: 3}
	for i := range n {
		key := fmt.Sprintf("a +%d", i)
		f.objects[key] = stampOf(lostID, "bkt/"+key, 34)
	}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, newSite(t, "{s3: {type: s3, endpoint: '"+server.URL+"', path_style: true, access_key: A, secret_key: S}}")
}

// TestRebuildOfS3: page by page; what fails for a moment is asked again, and what goes on failing is counted.
func TestRebuildOfS3(t *testing.T) {
	f, p := newFakeS3(t, 10)
	f.answers["a +1"] = []int{503, 500}
	f.answers["a +2"] = []int{403}
	stdout, stderr, err := p.run(t, t.Context(), "rebuild", "--format", "jsonl")
	wantError(t, err, "1 objects or lists could not be read")
	want := `{"bucket":"bkt","backend":"s3","objects":10,"stamps":9,"raised":9,"no_stamp":0,"other_resource":0,"other_registry":0,"not_fenced":0,"failures":1}` + "\n"
	if stdout != want || !strings.Contains(stderr, `key="a +2"`) || !strings.Contains(stderr, "403 Forbidden") {
		t.Errorf("%s\n%s", stdout, stderr)
	}
	rows, _ := p.rebuilt(t)
	if rows[0] != (bucketCount{Bucket: "bkt", Backend: "s3", Objects: 10, Stamps: 10, Raised: 1}) {
		t.Errorf("%+v", rows)
	}
}

// TestRebuildBreaksOff where a list cannot be read on, and says so.
func TestRebuildBreaksOff(t *testing.T) {
	for name, lists := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"no buckets": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/" {
				return false
			}
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
			return true
		},
		"no list": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/bkt" {
				return false
			}
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
			return true
		},
		"nonsense": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/bkt" {
				return false
			}
			fmt.Fprint(w, "<html>")
			return true
		},
		"no way on": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/bkt" {
				return false
			}
			fmt.Fprint(w, "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")
			return true
		},
		"round and round": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/bkt" {
				return false
			}
			fmt.Fprint(w, "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken></ListBucketResult>")
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newFakeS3(t, 1)
			f.lists = lists
			_, stderr, err := p.run(t, t.Context(), "rebuild")
			if name == "no buckets" {
				wantError(t, err, "--bucket")
				wantError(t, err, "AccessDenied")
				if rows, _ := p.rebuilt(t, "--bucket", "bkt"); rows[0].Stamps != 1 {
					t.Errorf("%+v", rows)
				}
				return
			}
			wantError(t, err, "1 objects or lists could not be read")
			if !strings.Contains(stderr, "broke off") {
				t.Errorf("it says %s", stderr)
			}
		})
	}
}

// TestRebuildInterrupted leaves what it has found, and the next one goes over everything.
func TestRebuildInterrupted(t *testing.T) {
	f, p := newFakeS3(t, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.lists = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("continuation-token") == "a +5" { // the third page
			cancel()
		}
		return false
	}
	_, _, err := p.run(t, ctx, "rebuild")
	wantError(t, err, "interrupted")
	s := p.open(t)
	if n, err := s.registry.Count(t.Context(), ""); n != 6 || err != nil {
		t.Errorf("%d are recorded, %v; want the 6 of two pages", n, err)
	}
	s.mustClose(t)
	rows, _ := p.rebuilt(t)
	if rows[0] != (bucketCount{Bucket: "bkt", Backend: "s3", Objects: 10, Stamps: 10, Raised: 4}) {
		t.Errorf("%+v", rows)
	}
}

// TestRebuildWithOtherRules is refused as serve is: it would raise other resources.
func TestRebuildWithOtherRules(t *testing.T) {
	p := newSite(t, "{local: {type: file, root: DIR/objects}}")
	s := p.open(t)
	s.mustRecord(t, map[string]tokens.Token{"bkt/x": 1})
	if err := s.checkMapping(t.Context(), mustParseConfig(t, "backends: {local: {type: file, root: objects}}"), false, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s.mustClose(t)
	_, _, err := p.run(t, t.Context(), "rebuild")
	wantError(t, err, "serve --remap")
}

func TestProgress(t *testing.T) {
	var w bytes.Buffer
	p := newProgress(&w)
	p.every = 0
	p.object("b\x1b")
	p.object("b")
	p.done()
	if got := w.String(); strings.Count(got, "\n") != 2 || !strings.HasPrefix(got, "1 objects, ") || !strings.Contains(got, `in bucket b\x1b`) || strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
}
