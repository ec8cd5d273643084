package integration

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestFencesCommands: list, show, raise and reset, on a running proxy.
func TestFencesCommands(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	if out := p.ok(t, "fences", "list"); !strings.Contains(out, "No fences") {
		t.Errorf("without fences: %q", out)
	}
	p.do(t, "PUT", "/bkt/jobs/1/k", "x", "X-Fence-Token", "34", "X-Fence-Holder", "worker-1").want(t, 200)
	p.put(t, "/bkt/jobs/2/k", 35, "x").want(t, 200)
	p.put(t, "/bkt/k", 1, "x").want(t, 200)
	p.put(t, "/bkt/jobs/2/k", 34, "stale").stale(t, 35)
	p.audited(t, "code=StaleToken", 1)

	var listed []map[string]any
	decode(t, p.ok(t, "fences", "list", "--format", "json"), &listed)
	if len(listed) != 3 || listed[0]["resource"] != "bkt/jobs/1" || listed[0]["token"] != 34.0 || listed[0]["holder"] != "worker-1" || listed[1]["refusals"] != 1.0 {
		t.Errorf("fences list --format json: %v", listed)
	}
	if lines := strings.Split(strings.TrimSpace(p.ok(t, "fences", "list", "--format", "jsonl")), "\n"); len(lines) != 3 {
		t.Errorf("as jsonl: %q", lines)
	} else {
		var first map[string]any
		decode(t, lines[0], &first)
	}
	rows := readCSV(t, p.ok(t, "fences", "list", "--format", "csv", "--prefix", "bkt/jobs/"))
	if len(rows) != 3 || rows[0][0] != "resource" || rows[2][0] != "bkt/jobs/2" || rows[2][1] != "35" {
		t.Errorf("as csv: %q", rows)
	}
	if out := p.ok(t, "fences", "list"); !regexp.MustCompile(`(?m)^bkt/jobs/1 +34 +worker-1 `).MatchString(out) {
		t.Errorf("as a table:\n%s", out)
	}
	var one map[string]any
	decode(t, p.ok(t, "fences", "show", "bkt/jobs/1", "--format", "json"), &one)
	if one["token"] != 34.0 || one["holder"] != "worker-1" {
		t.Errorf("fences show: %v", one)
	}
	p.fails(t, "no fence", "fences", "show", "bkt/jobs/3")

	if out := p.ok(t, "fences", "raise", "bkt/jobs/1", "40", "--reason", "moved"); !strings.Contains(out, "bkt/jobs/1 is 40") {
		t.Errorf("fences raise: %q", out)
	}
	p.put(t, "/bkt/jobs/1/k", 39, "stale").stale(t, 40)
	p.holds(t, "/bkt/jobs/1/k", "x")
	p.fails(t, "below", "fences", "raise", "bkt/jobs/1", "39")
	p.fails(t, "fencing token", "fences", "raise", "bkt/jobs/1", "0")
	p.fails(t, "--reason", "fences", "reset", "bkt/jobs/1", "1")
	p.fails(t, "--yes", "fences", "reset", "bkt/jobs/1", "1", "--reason", "lost")
	p.marked(t, "/bkt/jobs/1/k", 40)
	if out := p.ok(t, "fences", "reset", "bkt/jobs/1", "1", "--reason", "the counter was lost", "--yes"); !strings.Contains(out, "bkt/jobs/1 is 1") {
		t.Errorf("fences reset: %q", out)
	}
	for range 2 {
		p.marked(t, "/bkt/jobs/1/k", 1)
		p.put(t, "/bkt/jobs/1/k", 0, "stale").stale(t, 1)
		p.crash(t)
	}
	p.put(t, "/bkt/jobs/1/k", 2, "counts again").want(t, 200)
	p.put(t, "/bkt/jobs/1/k", 1, "stale").stale(t, 2)

	resets := p.audit(t, "kind=reset")
	if len(resets) != 1 || resets[0].Detail != "the counter was lost" || resets[0].Resource != "bkt/jobs/1" || resets[0].Token != 1 {
		t.Errorf("the audit log has the resets %+v", resets)
	}
	raised := false
	for _, r := range p.audit(t, "kind=raise&resource=bkt/jobs/1") {
		raised = raised || r.Token == 40 && r.Detail == "moved"
	}
	if !raised {
		t.Error("the audit log does not have the operator's raise")
	}
	p.stop(t)
	p.fails(t, "no proxy answers", "fences", "list")
}

// fails runs a command that must end with code 1 and a sentence that has part in it.
func (p *proxy) fails(t *testing.T, part string, args ...string) {
	t.Helper()
	stdout, stderr, code := cli(t, append(args, "--admin", p.admin)...)
	if code != 1 || stdout != "" || !strings.Contains(stderr, part) {
		t.Errorf("%q: code %d, %q, %q; want a sentence with %q", args, code, stdout, stderr, part)
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

func readCSV(t *testing.T, text string) [][]string {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return rows
}

// TestAuditCommand: what was refused, by every filter and in every format.
func TestAuditCommand(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.do(t, "PUT", "/another", "").want(t, 200)
	agent := []string{"User-Agent", "writer/1.0 \u009b31mred"}
	p.put(t, "/bkt/jobs/1/k", 34, "x").want(t, 200)
	p.put(t, "/another/k", 34, "x").want(t, 200)
	for range 3 {
		p.do(t, "PUT", "/bkt/jobs/1/k", "stale", append(agent, "X-Fence-Token", "33")...).stale(t, 34)
	}
	p.do(t, "DELETE", "/another/k", "", "X-Fence-Token", "33").stale(t, 34)
	p.do(t, "PUT", "/bkt/k", "bad", "X-Fence-Token", "x").refusedAs(t, 400, "InvalidArgument", "BadToken")
	p.put(t, "/bkt/must/k", 0, "x").refusedAs(t, 403, "AccessDenied", "TokenRequired")
	p.audited(t, "code=StaleToken", 4)

	rows := func(args ...string) []record {
		t.Helper()
		var records []record
		decode(t, p.ok(t, append([]string{"audit", "--format", "json"}, args...)...), &records)
		return records
	}
	for _, c := range []struct {
		args string
		want int
	}{
		{"--kind refusal", 4},
		{"--kind refusal --limit 2", 2},
		{"--kind raise", 2},
		{"--kind start", 1},
		{"--kind reset", 0},
		{"--code StaleToken", 2},
		{"--code BadToken", 1},
		{"--code StaleToken --bucket another", 1},
		{"--kind refusal --resource bkt/jobs/1", 1},
		{"--kind refusal --access-key nobody", 0},
		{"--kind refusal --since 1h", 4},
		{"--kind refusal --until 1h", 0},
		{"--kind refusal --since 2000-01-01T00:00:00Z --until 2100-01-01T00:00:00Z", 4},
	} {
		if c.want == 2 && strings.Contains(c.args, "raise") {
			eventually(t, "raises are written", func() bool { return len(p.audit(t, "kind=raise")) == c.want })
		}
		if got := rows(strings.Fields(c.args)...); len(got) != c.want {
			t.Errorf("audit %s: %d records, want %d: %+v", c.args, len(got), c.want, got)
		}
	}
	stale := rows("--code", "StaleToken", "--bucket", "bkt")
	if len(stale) != 1 {
		t.Fatalf("%+v", stale)
	}
	r := stale[0]
	if r.Count != 3 || r.Kind != "refusal" || r.Bucket != "bkt" || r.Key != "jobs/1/k" || r.Operation != "PutObject" || r.Resource != "bkt/jobs/1" ||
		r.Token != 33 || r.Highest != 34 || !strings.HasPrefix(r.Client, "127.0.0.1") || !strings.HasPrefix(r.UserAgent, "writer/1.0") || r.RequestID == "" {
		t.Errorf("the record is %+v", r)
	}
	if out := p.ok(t, "audit", "--code", "StaleToken", "--format", "json"); strings.Contains(out, "\u009b") || !strings.Contains(out, `\u009b31mred`) {
		t.Errorf("what a terminal acts on is not escaped: %q", out)
	}
	table := p.ok(t, "audit", "--kind", "refusal")
	if !strings.Contains(table, "StaleToken") || strings.Count(table, "\n") != 5 {
		t.Errorf("as a table:\n%q", table)
	}
	lines := strings.Split(strings.TrimSpace(p.ok(t, "audit", "--kind", "refusal", "--format", "jsonl")), "\n")
	for _, line := range lines {
		var r record
		decode(t, line, &r)
	}
	if len(lines) != 4 {
		t.Errorf("as jsonl: %q", lines)
	}
	if rows := readCSV(t, p.ok(t, "audit", "--kind", "refusal", "--format", "csv")); len(rows) != 5 || rows[0][0] != "id" {
		t.Errorf("as csv: %q", rows)
	}
	if newest := rows("--kind", "refusal")[0]; newest.Code != "TokenRequired" {
		t.Errorf("the newest is %+v", newest)
	}
	p.fails(t, "no kind", "audit", "--kind", "nonsense")
	p.fails(t, "since", "audit", "--since", "yesterday")
	p.fails(t, "--format", "audit", "--format", "xml")
	p.crash(t)
	if got := rows("--code", "StaleToken"); len(got) != 2 {
		t.Errorf("after a kill: %+v", got)
	}
	if starts := rows("--kind", "start"); len(starts) != 2 || !strings.Contains(starts[0].Detail, "kill") {
		t.Errorf("the starts are %+v", starts)
	}
}

// TestVersionAndHelp need no proxy.
func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	if stdout, stderr, code := cli(t, "version"); code != 0 || stderr != "" || !regexp.MustCompile(`^fenceproxy \S+ go\S+ \S+/\S+\n$`).MatchString(stdout) {
		t.Errorf("version: %d %q %q", code, stdout, stderr)
	}
	stdout, _, code := cli(t, "--help")
	for _, command := range []string{"serve", "fences", "audit", "config", "version"} {
		if code != 0 || !strings.Contains(stdout, "\n  "+command+" ") {
			t.Errorf("help does not have %s:\n%s", command, stdout)
		}
	}
	for _, wrong := range [][]string{{"surve"}, {"serve", "--no-such-flag"}, {"serve", "extra"}, {"fences", "raise", "one"}} {
		if stdout, stderr, code := cli(t, wrong...); code != 1 || stdout != "" || stderr == "" {
			t.Errorf("%q: %d %q %q", wrong, code, stdout, stderr)
		}
	}
}

// TestHealthAndMetrics: what a supervisor and a dashboard ask.
func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/a-secret-key", 34, "x").want(t, 200)
	p.do(t, "PUT", "/bkt/a-secret-key", "x", "X-Fence-Token", "33", "X-Fence-Holder", "a-secret-holder").stale(t, 34)
	p.do(t, "PUT", "/bkt/k?no-such-parameter", "").want(t, 501)
	p.do(t, "BREW", "/bkt/k", "").want(t, 501)
	for path, part := range map[string]string{
		"/healthz": `"status":"ok"`, "/readyz": `"ready"`,
		"/metrics": `fenceproxy_refusals_total{error="StaleToken"} 1`,
	} {
		a, err := send(fresh, p.admin, "GET", path, nil)
		if err != nil || a.status != 200 || !strings.Contains(string(a.body), part) {
			t.Errorf("%s: %v %d %s", path, err, a.status, a.body)
		}
	}
	a, err := send(fresh, p.admin, "GET", "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(a.body)) {
		if strings.Contains(line, "secret") || strings.Contains(line, "no-such-parameter") || strings.Contains(line, "BREW") {
			t.Errorf("a label grows with what clients send: %s", line)
		}
		if name, _, _ := strings.Cut(line, "{"); !strings.HasPrefix(line, "#") && !regexp.MustCompile(`^(fenceproxy|go|process|promhttp)_`).MatchString(name) {
			t.Errorf("a metric of another name: %s", line)
		}
	}
	if !strings.Contains(string(a.body), `fenceproxy_requests_total{operation="PutObject",status="200"} 1`) {
		t.Errorf("the metrics are\n%s", a.body)
	}
	// The data plane is not the admin API, and the other way round.
	for _, path := range []string{"/healthz", "/metrics", "/api/v1/fences"} {
		if a := p.do(t, "GET", path, ""); a.status == 200 {
			t.Errorf("the data plane answers %s with %d %s", path, a.status, a.body)
		}
	}
	if a, err := send(fresh, p.admin, "PUT", "/bkt/k", strings.NewReader("x")); err != nil || a.status < 400 {
		t.Errorf("the admin API takes objects: %v %d", err, a.status)
	}
}

// TestSIGTERM: an upload that has begun is let finish, new ones are not taken, and the exit code is 0.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	u := lateUpload{size: 1 << 20, sent: 1 << 19}
	c := u.begin(t, p, "/bkt/slow", "X-Fence-Token: 34\r\n")
	p.terminate(t)
	eventually(t, "the proxy says that it stops", func() bool { return strings.Contains(p.logs.String(), "stopping") })
	eventually(t, "the listener is closed", func() bool {
		other, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err == nil {
			other.Close()
		}
		return err != nil
	})
	if a, err := send(fresh, p.admin, "GET", "/readyz", nil); err != nil || a.status != 503 {
		t.Errorf("while it stops, /readyz says %v %d", err, a.status)
	}
	for i := u.sent; i < u.size; i += u.size / 16 { // slowly
		if _, err := c.Write(lateBody(u.size)[i : i+u.size/16]); err != nil {
			t.Fatal(err)
		}
	}
	a, _, err := c.answer("PUT")
	if err != nil {
		t.Fatal(err)
	}
	a.want(t, 200)
	p.ended(t, patience)
	p.start(t)
	if !strings.Contains(p.logs.String(), "after a clean stop") {
		t.Errorf("the stop was not clean:\n%s", p.logs)
	}
	p.holds(t, "/bkt/slow", string(lateBody(u.size)))
	p.put(t, "/bkt/slow", 33, "stale").stale(t, 34)
	p.put(t, "/bkt/k", 33, "stale").stale(t, 34)
}

// TestTheShippedConfiguration serves: it is the manual, and the first thing that is tried.
func TestTheShippedConfiguration(t *testing.T) {
	t.Parallel()
	if stdout, stderr, code := cli(t, "config", "check", "--config", absolute(t, filepath.Join("..", "config.yaml"))); code != 0 || !strings.Contains(stdout, "is good") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	shipped := mustRead(t, "../config.yaml")
	for _, port := range []string{"9000", "9001"} {
		shipped = strings.ReplaceAll(shipped, fmt.Sprintf(": 127.0.0.1:%s\n", port), ": 127.0.0.1:0\n")
	}
	p := newProxy(t, shipped)
	p.start(t)
	p.do(t, "PUT", "/bkt", "").want(t, 200)
	p.put(t, "/bkt/jobs/7/state", 0, "x").refusedAs(t, 403, "AccessDenied", "TokenRequired")
	p.put(t, "/bkt/jobs/7/state", 34, "of 34").want(t, 200)
	p.put(t, "/bkt/jobs/7/state", 33, "stale").stale(t, 34)
	p.put(t, "/bkt/other", 0, "x").want(t, 200)
	p.holds(t, "/bkt/jobs/7/state", "of 34")
}
