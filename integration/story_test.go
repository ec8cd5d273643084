package integration

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A channel is a way for a token to travel. dress gives the target and the headers of a request that carries one.
type channel struct {
	name   string
	holder string // that it names
	dress  func(n int64, path string) (target string, headers []string)
}

var channels = []channel{
	{"header", "", func(n int64, path string) (string, []string) {
		return path, []string{"X-Fence-Token", token(n)}
	}},
	{"header with holder", "worker-1", func(n int64, path string) (string, []string) {
		return path, []string{"X-Fence-Token", token(n), "X-Fence-Holder", "worker-1"}
	}},
	{"hexadecimal", "", func(n int64, path string) (string, []string) {
		return path, []string{"X-Fence-Token", fmt.Sprintf("0x%x", n)}
	}},
	{"path", "", func(n int64, path string) (string, []string) {
		return "/~fence/" + token(n) + path, nil
	}},
	{"path with holder", "a", func(n int64, path string) (string, []string) {
		return "/~fence/" + token(n) + ";holder=a" + path, nil
	}},
	{"encoded path", "", func(n int64, path string) (string, []string) {
		return "/%7Efence/" + token(n) + path, nil
	}},
	{"encoded path with holder", "a", func(n int64, path string) (string, []string) {
		return "/%7ef%65nce/" + token(n) + "%3Bholder%3Da" + path, nil
	}},
	{"session token", "", func(n int64, path string) (string, []string) {
		return path, []string{"X-Amz-Security-Token", "fence=" + token(n)}
	}},
	{"session token with holder", "a", func(n int64, path string) (string, []string) {
		return path, []string{"X-Amz-Security-Token", "fence=" + token(n) + ";holder=a"}
	}},
	{"all at once", "a", func(n int64, path string) (string, []string) {
		return "/~fence/" + token(n) + path, []string{
			"X-Fence-Token", token(n), "X-Fence-Holder", "a", "X-Amz-Security-Token", "fence=" + token(n) + ";holder=a",
		}
	}},
}

// send carries a token through the channel.
func (c channel) send(t *testing.T, p *proxy, method, path string, n int64, body string, headers ...string) answer {
	t.Helper()
	target, own := c.dress(n, path)
	return p.do(t, method, target, body, append(own, headers...)...)
}

// TestAStaleWriterIsRefused is the story (etcd #11788, terraform's S3 backend) of the paused writer, by every channel: before and after a
// restart, a kill, and the deletion of the object.
func TestAStaleWriterIsRefused(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	key := func(c channel) string { return "/bkt/jobs/" + strings.ReplaceAll(c.name, " ", "-") + "/state" }
	all := func(f func(*testing.T, channel, string)) {
		for _, c := range channels {
			t.Run(c.name, func(t *testing.T) { f(t, c, key(c)) })
		}
	}
	refused := func(t *testing.T, c channel, path string, n, highest int64, content string) {
		t.Helper()
		c.exactlyStale(t, p, c.send(t, p, "PUT", path, n, "stale"), path, n, highest)
		p.holds(t, path, content)
	}
	all(func(t *testing.T, c channel, path string) {
		a := c.send(t, p, "PUT", path, 34, "of 34").want(t, 200)
		tellsFence(t, a, path, 34)
		p.holds(t, path, "of 34")
		refused(t, c, path, 33, 34, "of 34")
		refused(t, c, path, 1, 34, "of 34")
		c.send(t, p, "PUT", path, 34, "of 34 again").want(t, 200)
		p.holds(t, path, "of 34 again")
		c.send(t, p, "PUT", path, 35, "of 35").want(t, 200)
		p.holds(t, path, "of 35")
		refused(t, c, path, 34, 35, "of 35")
		if f := p.fence(t, path); f.Highest != 35 || f.Holder != c.holder {
			t.Errorf("the fence is %+v, want 35 of holder %q", f, c.holder)
		}
	})
	for how, again := range map[string]func(*testing.T){"restart": p.restart, "kill": p.crash} {
		again(t)
		all(func(t *testing.T, c channel, path string) {
			refused(t, c, path, 34, 35, "of 35")
			c.send(t, p, "PUT", path, 35, "of 35").want(t, 200)
			p.holds(t, path, "of 35")
			if t.Failed() {
				t.Logf("this was after a %s", how)
			}
		})
	}
	all(func(t *testing.T, c channel, path string) {
		c.exactlyStale(t, p, c.send(t, p, "DELETE", path, 34, ""), path, 34, 35)
		p.holds(t, path, "of 35")
		c.send(t, p, "DELETE", path, 35, "").want(t, 204)
		p.absent(t, path)
		c.exactlyStale(t, p, c.send(t, p, "PUT", path, 34, "stale"), path, 34, 35)
		c.exactlyStale(t, p, c.send(t, p, "DELETE", path, 34, ""), path, 34, 35)
		p.absent(t, path)
	})
	p.crash(t)
	all(func(t *testing.T, c channel, path string) {
		c.exactlyStale(t, p, c.send(t, p, "PUT", path, 34, "stale"), path, 34, 35)
		p.absent(t, path)
		c.send(t, p, "PUT", path, 36, "of 36").want(t, 200)
		p.holds(t, path, "of 36")
	})
}

// tellsFence checks the headers that every answer on a fenced key carries.
func tellsFence(t *testing.T, a answer, path string, highest int64) {
	t.Helper()
	if got := a.header.Get("X-Fence-Resource"); got != resourceOf(path) {
		t.Errorf("X-Fence-Resource is %q, want %q", got, resourceOf(path))
	}
	if got := a.header.Get("X-Fence-Highest"); got != token(highest) {
		t.Errorf("X-Fence-Highest is %q, want %d", got, highest)
	}
}

// resourceOf is what plainConfig makes of a path.
func resourceOf(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if len(parts) > 3 && parts[1] == "jobs" {
		parts = parts[:3]
	}
	return strings.Join(parts, "/")
}

// exactlyStale holds an answer to what is promised of it, header by header.
func (c channel) exactlyStale(t *testing.T, p *proxy, a answer, path string, n, highest int64) {
	t.Helper()
	a.stale(t, highest)
	tellsFence(t, a, path, highest)
	if got, want := a.header.Get("Content-Length"), fmt.Sprint(len(a.body)); got != want {
		t.Errorf("Content-Length is %q, want %s", got, want)
	}
	if got := a.header.Get("Content-Type"); got != "application/xml" {
		t.Errorf("Content-Type is %q", got)
	}
	var names []string
	for name := range a.header {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"Content-Length", "Content-Type", "Date", "X-Amz-Request-Id", "X-Fence-Error", "X-Fence-Highest", "X-Fence-Resource"}
	if !slices.Equal(names, want) { // Retry-After would be one too many
		t.Errorf("the headers are %q, want %q", names, want)
	}
	e := a.xml()
	if e.Condition != "X-Fence-Token" || e.RequestID != a.header.Get("X-Amz-Request-Id") || e.Resource != path {
		t.Errorf("the error is %+v", e)
	}
	for _, part := range []string{token(n), token(highest), resourceOf(path), c.holder} {
		if !strings.Contains(e.Message, part) {
			t.Errorf("%q is not in the message %q", part, e.Message)
		}
	}
}

// TestStaleAnswersForOtherClients: compare-and-swap clients and rules that ask for 403, clients that read JSON, HEAD.
func TestStaleAnswersForOtherClients(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	etag := p.put(t, "/bkt/k", 34, "x").want(t, 200).header.Get("ETag")
	p.put(t, "/bkt/soft/k", 34, "x").want(t, 200)

	for _, condition := range [][]string{{"If-Match", etag}, {"If-Match", `"other"`}, {"If-Match", "*"}, {"If-None-Match", "*"}} {
		for _, method := range []string{"PUT", "DELETE"} {
			a := p.do(t, method, "/bkt/k", "stale", append(condition, "X-Fence-Token", "33")...)
			a.refusedAs(t, 403, "AccessDenied", "StaleToken")
			tellsFence(t, a, "/bkt/k", 34)
			if e := a.xml(); e.Condition != "" || !strings.Contains(e.Message, "33") || !strings.Contains(e.Message, "34") {
				t.Errorf("%s %v: %+v", method, condition, e)
			}
		}
	}
	a := p.put(t, "/bkt/soft/k", 33, "stale").refusedAs(t, 403, "AccessDenied", "StaleToken")
	tellsFence(t, a, "/bkt/soft/k", 34)
	if e := a.xml(); e.Condition != "" || !strings.Contains(e.Message, "33") || !strings.Contains(e.Message, "34") {
		t.Errorf("%+v", e)
	}
	p.do(t, "PUT", "/bkt/soft/k?fence", "", "X-Fence-Token", "33").refusedAs(t, 403, "AccessDenied", "StaleToken")

	a = p.do(t, "PUT", "/bkt/k", "stale", "X-Fence-Token", "33", "Accept", "application/json").want(t, 412)
	var problem map[string]any
	if err := json.Unmarshal(a.body, &problem); err != nil || a.header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("not a problem: %v %v %s", err, a.header, a.body)
	}
	for name, want := range map[string]any{"status": 412.0, "title": "PreconditionFailed", "error": "StaleToken", "token": 33.0, "highest": 34.0, "resource": "bkt/k"} {
		if problem[name] != want {
			t.Errorf("%s is %v, want %v", name, problem[name], want)
		}
	}
	if a.header.Get("X-Fence-Error") != "StaleToken" || a.header.Get("Content-Length") != fmt.Sprint(len(a.body)) || a.header.Get("Retry-After") != "" {
		t.Errorf("headers %v", a.header)
	}
	tellsFence(t, a, "/bkt/k", 34)

	for _, headers := range [][]string{{"X-Fence-Token", "-1"}, {"X-Fence-Holder", "nobody"}} { // a HEAD that is refused
		a = p.do(t, "HEAD", "/bkt/k", "", headers...).want(t, 400)
		if len(a.body) != 0 || a.header.Get("X-Fence-Error") != "BadToken" || a.header.Get("Content-Length") == "" || a.header.Get("Content-Length") == "0" {
			t.Errorf("HEAD: %v %q", a.header, a.body)
		}
	}
	p.holds(t, "/bkt/k", "x")
	p.holds(t, "/bkt/soft/k", "x")
}

// TestEveryAnswerTellsTheFence: a client learns of a fenced key where its fence stands, whatever it asked and was told.
func TestEveryAnswerTellsTheFence(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/a%20b+c/%C3%BC", 34, "x").want(t, 200)
	const resource = "bkt/jobs/a%20b+c" // percent-encoded as a path is
	const key = "/bkt/jobs/a%20b+c/%C3%BC"
	for _, ask := range []struct {
		method, target string
		status         int
		headers        []string
	}{
		{"GET", key, 200, nil},
		{"HEAD", key, 200, nil},
		{"GET", key, 206, []string{"Range", "bytes=0-0"}},
		{"GET", key, 304, []string{"If-None-Match", `"9dd4e461268c8034f5c8564e155c67a6"`}},
		{"GET", key + "x", 404, nil},
		{"GET", key, 200, []string{"X-Fence-Token", "33"}},
		{"GET", key + "?fence", 200, nil},
		{"HEAD", key + "?fence", 200, nil},
		{"GET", "/bkt?list-type=2&prefix=jobs/a%20b%2Bc/", 200, nil},
		{"PUT", key, 412, []string{"X-Fence-Token", "33"}},
		{"PUT", key, 412, nil},
		{"PUT", key, 412, []string{"X-Fence-Token", "34", "If-None-Match", "*"}},
		{"PUT", key, 200, []string{"X-Fence-Token", "34"}},
		{"PUT", key + "?fence", 412, []string{"X-Fence-Token", "33"}},
		{"PUT", key + "?fence", 200, []string{"X-Fence-Token", "34"}},
		{"PUT", key, 400, []string{"X-Fence-Token", "34", "Content-MD5", "1B2M2Y8AsgTpgAmY7PhCfg=="}},
		{"DELETE", key, 204, []string{"X-Fence-Token", "34"}},
	} {
		body := ""
		if ask.method == "PUT" && !strings.Contains(ask.target, "?") {
			body = "x"
		}
		a := p.do(t, ask.method, ask.target, body, ask.headers...)
		if a.status != ask.status || a.header.Get("X-Fence-Resource") != resource || a.header.Get("X-Fence-Highest") != "34" {
			t.Errorf("%s %s %v: %d %v, want %d with the fence of %s at 34", ask.method, ask.target, ask.headers, a.status, a.header, ask.status, resource)
		}
	}
}

// TestThePrefix: with resource jobs/{job} a token on one key fences every key of the job, for every write there is, and no key of
// another job.
func TestThePrefix(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	mine := []string{"/bkt/jobs/7/a", "/bkt/jobs/7/b", "/bkt/jobs/7/deep/er/c", "/bkt/jobs/7/.hidden", "/bkt/jobs/%37/d", "/bkt/%6Aobs/7/e"}
	others := []string{"/bkt/jobs/77/a", "/bkt/jobs/6/a", "/bkt/jobs/7a", "/bkt/jobs/7%2B/a", "/bkt/xjobs/7/a", "/bkt/a", "/bkt/Jobs/7/a"}
	for _, k := range slices.Concat(mine, others) {
		p.put(t, k, 33, "of 33").want(t, 200)
	}
	p.do(t, "PUT", "/another", "").want(t, 200)
	p.put(t, "/another/jobs/7/a", 33, "of 33").want(t, 200) // another bucket's job 7
	others = append(others, "/another/jobs/7/a")

	p.put(t, mine[2], 34, "of 34").want(t, 200)
	for _, k := range mine {
		content := "of 33"
		if k == mine[2] {
			content = "of 34"
		}
		p.put(t, k, 33, "stale").stale(t, 34)
		p.put(t, k, 0, "stale").stale(t, 34)
		p.put(t, k, 33, "").stale(t, 34)
		p.put(t, k+"-new", 33, "stale").stale(t, 34)
		p.do(t, "DELETE", k, "", "X-Fence-Token", "33").stale(t, 34)
		p.do(t, "DELETE", k, "").stale(t, 34)
		p.do(t, "PUT", k+"?fence", "", "X-Fence-Token", "33").stale(t, 34)
		p.holds(t, k, content)
		p.absent(t, k+"-new")
	}
	for _, k := range others {
		p.marked(t, k, 33)
		p.put(t, k, 33, "again").want(t, 200)
		p.holds(t, k, "again")
		p.do(t, "PUT", k+"?fence", "", "X-Fence-Token", "33").want(t, 200)
		p.do(t, "DELETE", k, "", "X-Fence-Token", "33").want(t, 204)
		p.absent(t, k)
	}
	for _, k := range mine {
		p.put(t, k, 34, "of 34").want(t, 200)
		p.holds(t, k, "of 34")
		p.do(t, "DELETE", k, "", "X-Fence-Token", "34").want(t, 204)
	}
}

// TestCurl tells the story with the client that is on every machine.
func TestCurl(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		skip(t, "there is no curl here")
	}
	p := startProxy(t)
	content := filepath.Join(p.dir, "content")
	status := func(body, path string, args ...string) string {
		mustWrite(t, content, body)
		args = append([]string{"-q", "-sS", "-m", "30", "-o", filepath.Join(p.dir, "answer"), "-w", "%{http_code}", "-T", content}, args...)
		out, err := exec.Command(curl, append(args, "http://"+p.addr+path)...).CombinedOutput()
		if err != nil {
			t.Fatalf("curl %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	large := strings.Repeat("larger than what curl sends without asking first\n", 100_000)
	for _, step := range []struct {
		body, path, status string
		args               []string
	}{
		{"of 34", "/bkt/k", "200", []string{"-H", "X-Fence-Token: 34"}},
		{"of 33", "/bkt/k", "412", []string{"-H", "X-Fence-Token: 33"}},
		{large, "/bkt/k", "412", []string{"-H", "X-Fence-Token: 33"}},
		{large, "/~fence/33/bkt/k", "412", nil},
		{"of 34", "/~fence/34/bkt/k", "200", nil},
		{large, "/~fence/35/bkt/k", "200", nil},
		{"of 34", "/~fence/34/bkt/k", "412", nil},
	} {
		if got := status(step.body, step.path, step.args...); got != step.status {
			t.Errorf("%.20q to %s %v: %s, want %s", step.body, step.path, step.args, got, step.status)
		}
	}
	p.holds(t, "/bkt/k", large)
	if !strings.Contains(mustRead(t, filepath.Join(p.dir, "answer")), "<Code>PreconditionFailed</Code>") {
		t.Error("curl was not shown S3's error")
	}
}
