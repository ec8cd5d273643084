package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/admin"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/spf13/cobra"
)

// A marks is a fence and its registry: a map, used by one request at a time.
type marks map[string]tokens.Entry

func (m marks) Announce(ctx context.Context, c tokens.Claim) (tokens.Entry, error) {
	if e := m[c.Resource]; c.Token < e.Token {
		return e, &tokens.StaleError{Resource: c.Resource, Token: c.Token, Highest: e.Token}
	}
	return m.Reset(ctx, c.Resource, c.Token)
}

func (m marks) Reset(_ context.Context, resource string, t tokens.Token) (tokens.Entry, error) {
	m[resource] = tokens.Entry{Resource: resource, Token: t, Holder: "h", RaisedAt: then}
	return m[resource], nil
}

func (m marks) Lookup(_ context.Context, resource string) (tokens.Entry, error) {
	return m[resource], nil
}

func (m marks) List(_ context.Context, prefix, after string, limit int) (all []tokens.Entry, err error) {
	for _, e := range m {
		if strings.HasPrefix(e.Resource, prefix) && e.Resource > after {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b tokens.Entry) int { return cmp.Compare(a.Resource, b.Resource) })
	return all[:min(limit, len(all))], nil
}

var then = time.Date(2026, 5, 4, 3, 2, 1, 0, time.Local)

// A running is a proxy's admin API, and the commands that call it.
type running struct {
	marks
	audit *audit.Log
	url   string
}

func startAdmin(t *testing.T) *running {
	t.Helper()
	l, err := audit.Open(t.Context(), filepath.Join(t.TempDir(), "audit.db"), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &running{marks: marks{}, audit: l}
	server := httptest.NewServer(admin.New(admin.Config{Fence: p, Registry: p, Audit: l}))
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// run runs a command line the way main does and returns what it printed.
func run(in io.Reader, args ...string) (stdout, stderr string, err error) {
	root := &cobra.Command{Use: "fenceproxy", SilenceErrors: true}
	root.AddCommand(newAuditCommand(), newFencesCommand())
	var out, errs bytes.Buffer
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.Execute()
	return out.String(), errs.String(), err
}

func (p *running) run(t *testing.T, args ...string) string {
	t.Helper()
	stdout, _, err := run(strings.NewReader(""), append(args, "--admin", p.url)...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return stdout
}

func wantError(t *testing.T, err error, sentence string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), sentence) {
		t.Errorf("error %v, want %q", err, sentence)
	}
}

func someRecords(t *testing.T, p *running) {
	t.Helper()
	for i := range 3 {
		p.audit.Add(t.Context(), audit.Record{
			Time: then.Add(time.Duration(i) * time.Minute), Kind: audit.KindRefusal, Code: "StaleToken", Bucket: "b", Key: "jobs/1/out",
			Resource: "b/jobs/1", Token: 33, Highest: 34, Holder: "a\x1b[31m", AccessKey: "AK", Client: "10.0.0.1:5000",
		})
	}
	p.audit.Add(t.Context(), audit.Record{Time: then.Add(-time.Hour), Kind: audit.KindReset, Resource: "b/x", Token: 1, Detail: "say \"why\""})
}

func TestAuditTable(t *testing.T) {
	p := startAdmin(t)
	someRecords(t, p)
	want := `TIME                 LAST      COUNT  WHAT        RESOURCE  TOKEN  HIGHEST  WHO        CLIENT    DETAIL
2026-05-04 03:02:01  03:04:01  3      StaleToken  b/jobs/1  33     34       a\x1b[31m  10.0.0.1  -
2026-05-04 02:02:01  -         1      reset       b/x       1      -        -          -         say "why"
`
	if got := p.run(t, "audit", "--since", ""); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := p.run(t, "audit", "--bucket", "other", "--since", "7d"); got != "No records match.\n" {
		t.Errorf("nothing: %q", got)
	}
}

func TestAuditFormats(t *testing.T) {
	p := startAdmin(t)
	someRecords(t, p)
	want, _, err := p.audit.Query(t.Context(), audit.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	var records []audit.Record
	if err := json.Unmarshal([]byte(p.run(t, "audit", "--since", "", "--format", "json")), &records); err != nil || !slices.Equal(records, want) {
		t.Errorf("json: %+v (%v), want %+v", records, err, want)
	}
	lines := strings.Split(strings.TrimSpace(p.run(t, "audit", "--since", "", "--format", "jsonl")), "\n")
	for i, line := range lines {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil || len(lines) != 2 || r != want[i] {
			t.Errorf("jsonl: %s (%v), want %+v", line, err, want[i])
		}
	}
	rows, err := csv.NewReader(strings.NewReader(p.run(t, "audit", "--since", "", "--format", "csv"))).ReadAll()
	if err != nil || len(rows) != 3 || rows[0][0] != "id" || rows[1][12] != "a\x1b[31m" || rows[2][17] != `say "why"` ||
		rows[1][1] != then.UTC().Format("2006-01-02T15:04:05.000Z") {
		t.Errorf("csv: %q (%v)", rows, err)
	}
	if got := p.run(t, "audit", "--code", "none", "--format", "json"); got != "[]\n" {
		t.Errorf("nothing as json: %q", got)
	}
}

func TestAuditFiltersAndPages(t *testing.T) {
	p := startAdmin(t)
	for i := range pageSize + 10 {
		p.audit.Note(audit.Record{Time: then.Add(time.Duration(i) * time.Second), Kind: audit.KindRaise, Bucket: "b", Token: int64(i + 1)})
	}
	count := func(args ...string) int {
		t.Helper()
		return strings.Count(p.run(t, append([]string{"audit", "--format", "jsonl"}, args...)...), "\n")
	}
	at := func(i int) string { return then.Add(time.Duration(i) * time.Second).UTC().Format(time.RFC3339) }
	for want, args := range map[int][]string{
		100:           {"--since", ""},
		pageSize + 5:  {"--since", "", "--limit", fmt.Sprint(pageSize + 5)},
		pageSize + 10: {"--since", "", "--limit", "5000", "--kind", "raise", "--bucket", "b"},
		7:             {"--until", at(7)},
		3:             {"--since", at(4), "--until", at(7)},
		0:             {"--since", "", "--access-key", "AK"},
	} {
		if got := count(args...); got != want {
			t.Errorf("%v: %d records, want %d", args, got, want)
		}
	}
	_, stderr, err := run(nil, "audit", "--since", "", "--limit", "2", "--admin", p.url)
	if err != nil || !strings.Contains(stderr, "newest 2; there are more") {
		t.Errorf("cut short: %q (%v)", stderr, err)
	}
	for _, c := range []struct{ flag, value, sentence string }{
		{"--since", "yesterday", "90m, 24h or 7d"},
		{"--limit", "0", "from 1 on"},
		{"--kind", "refusals", "there are refusal"},
		{"--format", "xml", "there are table"},
	} {
		_, _, err := run(nil, "audit", c.flag, c.value, "--admin", p.url)
		wantError(t, err, c.sentence)
	}
}

func TestFences(t *testing.T) {
	p := startAdmin(t)
	if got := p.run(t, "fences", "list"); !strings.HasPrefix(got, "No fences") {
		t.Errorf("empty list: %q", got)
	}
	if got := p.run(t, "fences", "raise", "b/jobs/1", "0x22", "--reason", "why not"); got != "The highest token of b/jobs/1 is 34 now.\n" {
		t.Errorf("raise: %q", got)
	}
	want := `RESOURCE  TOKEN  HOLDER  ACCESS KEY  RAISED               REFUSED
b/jobs/1  34     h       -           2026-05-04 03:02:01  0
`
	if got := p.run(t, "fences", "list", "--prefix", "b/"); got != want {
		t.Errorf("list:\n%swant\n%s", got, want)
	}
	if got := p.run(t, "fences", "show", "b/jobs/1"); got != want {
		t.Errorf("show:\n%swant\n%s", got, want)
	}
	var f fence
	if err := json.Unmarshal([]byte(p.run(t, "fences", "show", "b/jobs/1", "--format", "json")), &f); err != nil || f.Token != 34 {
		t.Errorf("show as json: %+v (%v)", f, err)
	}
	records, _, err := p.audit.Query(t.Context(), audit.Filter{})
	if err != nil || len(records) != 1 || records[0].Detail != "why not" {
		t.Errorf("audited %+v (%v)", records, err)
	}
	_, _, err = run(nil, "fences", "raise", "b/jobs/1", "33", "--admin", p.url)
	wantError(t, err, "33 is below 34")
	_, _, err = run(nil, "fences", "raise", "b/jobs/1", "034", "--admin", p.url)
	wantError(t, err, "not a fencing token")
	_, _, err = run(nil, "fences", "show", "b/jobs/2", "--admin", p.url)
	wantError(t, err, "has no fence")
}

func TestListPagesThroughAll(t *testing.T) {
	p := startAdmin(t)
	for i := range 2*pageSize + 1 {
		_, _ = p.Reset(t.Context(), fmt.Sprintf("b/%05d", i), 1)
	}
	got := strings.Split(strings.TrimSpace(p.run(t, "fences", "list", "--format", "csv")), "\n")
	if len(got) != 2*pageSize+2 || !slices.IsSorted(got[1:]) {
		t.Errorf("%d lines, want a header and %d", len(got), 2*pageSize+1)
	}
}

func TestReset(t *testing.T) {
	p := startAdmin(t)
	_, _ = p.Reset(t.Context(), "b/x", 50)
	reset := func(in string, args ...string) (stderr string, err error) {
		_, stderr, err = run(strings.NewReader(in), append([]string{"fences", "reset", "b/x", "1", "--admin", p.url}, args...)...)
		return stderr, err
	}
	_, err := reset("y\n")
	wantError(t, err, "--reason")
	_, err = reset("y\n", "--reason", "restored")
	wantError(t, err, "--yes")

	sitting := isTerminal
	isTerminal = func(io.Reader) bool { return true }
	t.Cleanup(func() { isTerminal = sitting })
	for _, answer := range []string{"", "\n", "n\n", "yeah\n"} {
		asked, err := reset(answer, "--reason", "restored")
		wantError(t, err, "nothing was changed")
		if !strings.Contains(asked, "b/x is at token 50 of holder h") {
			t.Errorf("asked %q", asked)
		}
	}
	if p.marks["b/x"].Token != 50 {
		t.Fatal("reset without a yes")
	}
	if _, err = reset("Yes\n", "--reason", "restored"); err != nil || p.marks["b/x"].Token != 1 {
		t.Errorf("with a yes: %v, token %d", err, p.marks["b/x"].Token)
	}
	isTerminal = sitting
	_, _ = p.Reset(t.Context(), "b/x", 50)
	if _, err = reset("", "--reason", "restored", "--yes"); err != nil || p.marks["b/x"].Token != 1 {
		t.Errorf("with --yes: %v, token %d", err, p.marks["b/x"].Token)
	}
}

func TestTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if isTerminal(null) || isTerminal(strings.NewReader("")) {
		t.Error("nobody sits there")
	}
}

func TestNoProxy(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	_, _, err := run(nil, "audit", "--admin", server.URL)
	wantError(t, err, "is not the admin API of a fenceproxy")
	server.Close()
	_, _, err = run(nil, "audit", "--admin", server.URL)
	wantError(t, err, "no proxy answers at "+server.URL+": is `fenceproxy serve` running? (--admin says where)")
	for _, bad := range []string{"ftp://127.0.0.1", "http://", "http://127.0.0.1:9001/?x=1"} {
		_, _, err = run(nil, "audit", "--admin", bad)
		wantError(t, err, "is not the URL of a proxy")
	}
}

func TestAdminFromConfig(t *testing.T) {
	p := startAdmin(t)
	path := filepath.Join(t.TempDir(), "config.yaml")
	_, _, err := run(nil, "audit", "--config", path)
	wantError(t, err, "--admin URL")
	write := func(address string) {
		if err := os.WriteFile(path, []byte("admin: "+address+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.TrimPrefix(p.url, "http://"))
	if out, _, err := run(nil, "fences", "list", "--config", path); err != nil || !strings.HasPrefix(out, "No fences") {
		t.Errorf("got %q (%v)", out, err)
	}
	write("127.0.0.1:0")
	_, _, err = run(nil, "audit", "--config", path)
	wantError(t, err, "which one it took")
}

func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{
		"jobs/é/日本":       "jobs/é/日本",
		"a\x1b[2J\r\n\tb": `a\x1b[2J\r\n\tb`,
		"\u009b31m\x7f":   `\u009b31m\x7f`,
		"gpj.\u202etxt":   `gpj.\u202etxt`,
		"no\u00a0break":   `no\u00a0break`,
		"bad \xff byte":   "bad \uFFFD byte",
		"tag \U000e0041":  `tag \U000e0041`,
	} {
		if got := printable(s); got != want {
			t.Errorf("printable(%q) = %q, want %q", s, got, want)
		}
		b, err := json.Marshal([]string{s})
		if err != nil {
			t.Fatal(err)
		}
		var back []string
		text := printableJSON(string(b))
		if err := json.Unmarshal([]byte(text), &back); err != nil || back[0] != strings.ToValidUTF8(s, "\uFFFD") || printable(text) != text {
			t.Errorf("printableJSON(%s) = %s (%v)", b, text, err)
		}
	}
}

// Several proxies are asked at once: those that have logs of their own are shown together, the newest first, and one that does not answer is told.
func TestAuditOfSeveralProxies(t *testing.T) {
	a, b := startAdmin(t), startAdmin(t)
	for i, p := range []*running{a, b, a, b, a} {
		p.audit.Note(audit.Record{Time: then.Add(time.Duration(i) * time.Second), Kind: audit.KindRaise, Token: int64(i + 1)})
	}
	show := func(limit int, urls ...string) (got []string, said string, err error) {
		t.Helper()
		stdout, said, err := run(nil, "audit", "--since", "", "--format", "csv", "--limit", fmt.Sprint(limit), "--admin", strings.Join(urls, ","))
		rows, csvErr := csv.NewReader(strings.NewReader(stdout)).ReadAll()
		if csvErr != nil {
			t.Fatal(csvErr)
		}
		for _, row := range rows[min(1, len(rows)):] {
			got = append(got, row[10]+" "+row[18])
		}
		return got, said, err
	}
	all := []string{"5 " + a.url, "4 " + b.url, "3 " + a.url, "2 " + b.url, "1 " + a.url}
	if got, _, err := show(9, a.url, b.url); err != nil || !slices.Equal(got, all) {
		t.Errorf("both: %q (%v), want %q", got, err, all)
	}
	if got, said, err := show(2, b.url, a.url); err != nil || !slices.Equal(got, all[:2]) || !strings.Contains(said, "there are more") {
		t.Errorf("two of both: %q (%v) %s", got, err, said)
	}
	const nobody = "http://127.0.0.1:1"
	got, _, err := show(9, nobody, b.url)
	if !slices.Equal(got, []string{all[1], all[3]}) {
		t.Errorf("one and nobody: %q", got)
	}
	wantError(t, err, "no proxy answers at "+nobody)
	wantError(t, err, "1 of 2 proxies did not answer: what they have written is missing")
	if exitCode(err) == 0 {
		t.Error("it exits with 0 although one did not answer")
	}
	got, _, err = show(9, nobody)
	wantError(t, err, "no proxy answers at "+nobody)
	if len(got) > 0 {
		t.Errorf("nobody: %q", got)
	}
}

// Proxies that write to one log are asked, and it is shown once.
func TestAuditOfOneLogOfSeveralProxies(t *testing.T) {
	a := startAdmin(t)
	a.audit.Note(audit.Record{Time: then, Kind: audit.KindRaise, Token: 1})
	var urls []string
	for range 2 {
		server := httptest.NewServer(admin.New(admin.Config{Fence: a, Registry: a, Audit: a.audit, AuditOf: "THEREGISTRY"}))
		t.Cleanup(server.Close)
		urls = append(urls, server.URL)
	}
	stdout, _, err := run(nil, "audit", "--since", "", "--format", "jsonl", "--admin", strings.Join(urls, ","))
	if err != nil || strings.Count(stdout, "\n") != 1 {
		t.Errorf("%s (%v), want the record once", stdout, err)
	}
	_, _, err = run(nil, "audit", "--since", "", "--format", "jsonl", "--admin", urls[0]+",127.0.0.1:1")
	wantError(t, err, "1 of 2 proxies did not answer: it is shown what they write to together")
}

// Of proxies that share a registry any one will do.
func TestFencesOfTheFirstThatAnswers(t *testing.T) {
	p := startAdmin(t)
	p.marks["b/x"] = tokens.Entry{Resource: "b/x", Token: 7}
	stdout, said, err := run(nil, "fences", "list", "--format", "jsonl", "--admin", "127.0.0.1:1,"+p.url)
	if err != nil || !strings.Contains(stdout, `"token":7`) || !strings.Contains(said, "no proxy answers at http://127.0.0.1:1") {
		t.Errorf("%s %s (%v)", stdout, said, err)
	}
	_, _, err = run(nil, "fences", "list", "--admin", "127.0.0.1:1,127.0.0.1:2")
	wantError(t, err, "no proxy answers at http://127.0.0.1:2")
}
