package proxy

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// A deleter is a store that deletes what it is told, and remembers it.
type deleter struct {
	mu      sync.Mutex
	deleted []string // guarded by mu
	asked   int      // guarded by mu
}

func (d *deleter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if r.URL.RawQuery != "delete" {
		w.WriteHeader(http.StatusOK)
		return
	}
	var asked struct {
		Object []struct{ Key string }
	}
	if err := xml.Unmarshal(body, &asked); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	w.Header().Set("Content-Type", "application/xml")
	fmt.Fprint(w, `<?xml version="1.0"?><DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`)
	for _, o := range asked.Object {
		d.deleted = append(d.deleted, o.Key)
		fmt.Fprintf(w, "<Deleted><Key>%s</Key></Deleted>", o.Key)
	}
	fmt.Fprint(w, "</DeleteResult>")
}

func (d *deleter) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	got := d.deleted
	d.deleted = nil
	slices.Sort(got)
	return got
}

func deleteBody(keys ...string) string {
	var b strings.Builder
	b.WriteString("<Delete>")
	for _, k := range keys {
		fmt.Fprintf(&b, "<Object><Key>%s</Key></Object>", k)
	}
	return b.String() + "</Delete>"
}

type deleteResult struct {
	Deleted []struct{ Key string }
	Error   []struct{ Key, Code, Message string }
}

func parseResult(t *testing.T, body string) deleteResult {
	t.Helper()
	var r deleteResult
	if err := xml.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	return r
}

var jobRules = rules.Rule{Match: "jobs/{job}/**", Resource: "jobs/{job}"}

// TestBatchIsJudgedKeyByKey: story cortex #5432, an old compactor deletes blocks while a newer one uploads.
func TestBatchIsJudgedKeyByKey(t *testing.T) {
	d := &deleter{}
	f := newFixture(t, Backend{Handler: d}, jobRules)
	f.want(200, "", "PUT", "/b/jobs/2/x", "x", "X-Fence-Token: 40")
	resp, body := f.do("POST", "/b?delete", deleteBody("jobs/1/a", "jobs/2/a", "jobs/3/a", "jobs/2/b", "jobs/1/b"), "X-Fence-Token: 34")
	r := parseResult(t, body)
	if resp.StatusCode != 200 || len(r.Deleted) != 3 || len(r.Error) != 2 {
		t.Fatalf("%d\n%s", resp.StatusCode, body)
	}
	for _, e := range r.Error {
		if !strings.HasPrefix(e.Key, "jobs/2/") || e.Code != "PreconditionFailed" || !strings.Contains(e.Message, "34") || !strings.Contains(e.Message, "40") {
			t.Errorf("%+v", e)
		}
	}
	if got := d.take(); !slices.Equal(got, []string{"jobs/1/a", "jobs/1/b", "jobs/3/a"}) {
		t.Errorf("the store deleted %q", got)
	}
	f.want(412, "StaleToken", "PUT", "/b/jobs/1/x", "x", "X-Fence-Token: 33") // the batch has raised it
	f.want(200, "", "PUT", "/b/jobs/1/x", "x", "X-Fence-Token: 34")
	records, _, err := f.audit.Query(t.Context(), audit.Filter{Code: "StaleToken", Resource: "b/jobs/2"})
	if err != nil || len(records) != 1 || records[0].Count != 2 || records[0].Operation != "DeleteObjects" || records[0].Key != "jobs/2/a" {
		t.Errorf("%+v, %v", records, err)
	}
}

func TestBatchOfStaleKeysAsksNoStore(t *testing.T) {
	d := &deleter{}
	f := newFixture(t, Backend{Handler: d}, jobRules)
	f.want(200, "", "PUT", "/b/jobs/2/x", "x", "X-Fence-Token: 40")
	_, body := f.do("POST", "/b?delete", deleteBody("jobs/2/a"))
	if r := parseResult(t, body); len(r.Error) != 1 || len(r.Deleted) != 0 {
		t.Error(body)
	}
	if d.asked != 0 {
		t.Error("the store was asked")
	}
}

// TestBatchMeansOneKeyPerObject: what two parsers could read as different keys is refused, and the store gets what we have judged.
func TestBatchMeansOneKeyPerObject(t *testing.T) {
	d := &deleter{}
	f := newFixture(t, Backend{Handler: d}, jobRules)
	for _, body := range []string{
		"", "<Delete", "<Other><Object><Key>a</Key></Object></Other>", "<Delete><Object><Key></Key></Object></Delete>",
		"<Delete><Object><Key>jobs/1/a</Key><Key>jobs/2/a</Key></Object></Delete>",
		"<Delete><Object><key>a</key></Object></Delete>", "<Delete><Object/></Delete>",
		"<Delete><Object><Key>a</Key><Else>b</Else></Object></Delete>", "<Delete><Else/><Object><Key>a</Key></Object></Delete>",
		"<Delete><Object><Key>a</Key>", "<Delete><Object><Key>a&#1;</Key></Object></Delete>", deleteBody(make([]string, 1001)...),
	} {
		resp, text := f.do("POST", "/b?delete", body, "X-Fence-Token: 34")
		if resp.StatusCode != 400 || !strings.Contains(text, "MalformedXML") {
			t.Errorf("%.80q: %d %s", body, resp.StatusCode, text)
		}
	}
	if d.asked != 0 {
		t.Error("the store was asked")
	}
	f.do("POST", "/b?delete", `<?xml version="1.0"?><!-- x --><Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key><![CDATA[a<b]]>&amp;&#13;</Key></Object><Quiet>true</Quiet></Delete>`, "X-Fence-Token: 34")
	if got := d.take(); len(got) != 1 || got[0] != "a<b&\r" {
		t.Errorf("%q", got)
	}
	f.want(400, "", "POST", "/b?delete", deleteBody("a"), "Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==")
}

func TestBatchAsksTheRulesOfEachKey(t *testing.T) {
	d := &deleter{}
	f := newFixture(t, Backend{Handler: d}, rules.Rule{Match: "need/**", Token: rules.Required}, rules.Rule{Match: "if/**", RequireCondition: true}, rules.Rule{Match: "off/**", Token: rules.Off})
	_, body := f.do("POST", "/b?delete", deleteBody("need/a", "if/a", "off/a", "free"))
	codes := map[string]string{}
	for _, e := range parseResult(t, body).Error {
		codes[e.Key] = e.Code
	}
	if len(codes) != 2 || codes["need/a"] != "AccessDenied" || codes["if/a"] != "AccessDenied" {
		t.Errorf("%v\n%s", codes, body)
	}
	if got := d.take(); !slices.Equal(got, []string{"free", "off/a"}) {
		t.Errorf("%q", got)
	}
}

// TestOppositeBatches: 32 batches over the same resources in opposite orders all come to an end.
func TestOppositeBatches(t *testing.T) {
	d := &deleter{}
	f := newFixture(t, Backend{Handler: d}, jobRules)
	keys := []string{"jobs/1/a", "jobs/2/a", "jobs/3/a", "jobs/4/a"}
	backwards := slices.Clone(keys)
	slices.Reverse(backwards)
	var batches sync.WaitGroup
	for i := range 32 {
		order := keys
		if i%2 == 1 {
			order = backwards
		}
		batches.Go(func() {
			resp, body := f.do("POST", "/b?delete", deleteBody(order...), fmt.Sprintf("X-Fence-Token: %d", 1+i/4))
			if resp.StatusCode != 200 {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		})
	}
	batches.Wait()
	for _, k := range keys {
		f.want(412, "StaleToken", "PUT", "/b/"+k, "x", "X-Fence-Token: 7")
		f.want(200, "", "PUT", "/b/"+k, "x", "X-Fence-Token: 8")
	}
	if s := f.fence.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// TestLongBatch: a thousand of the longest keys, one of them stale, are answered whole.
func TestLongBatch(t *testing.T) {
	d := &deleter{}
	f := newFixture(t, Backend{Handler: d}, jobRules)
	f.want(200, "", "PUT", "/b/jobs/2/x", "x", "X-Fence-Token: 40")
	keys := []string{"jobs/2/a"}
	for i := range 999 {
		keys = append(keys, fmt.Sprintf("jobs/1/%03d%s", i, strings.Repeat("k", 1014)))
	}
	_, body := f.do("POST", "/b?delete", deleteBody(keys...), "X-Fence-Token: 34")
	if r := parseResult(t, body); len(r.Deleted) != 999 || len(r.Error) != 1 {
		t.Errorf("%d deleted, %d refused", len(r.Deleted), len(r.Error))
	}
}
