package proxy

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// A leaseAnswer is what the wire promises.
type leaseAnswer struct {
	Resource  string    `json:"resource"`
	Token     int64     `json:"token"`
	Lease     string    `json:"lease"`
	Holder    string    `json:"holder"`
	TakenOver bool      `json:"taken_over"`
	Since     time.Time `json:"since"`
	Expires   time.Time `json:"expires"`
}

func (f *fixture) lease(method, path string, headers ...string) (l leaseAnswer) {
	f.Helper()
	text := f.want(200, "", method, path, "", headers...)
	if err := json.Unmarshal([]byte(text), &l); err != nil || l.Lease == "" {
		f.Fatalf("%s: %v", text, err)
	}
	return l
}

// A movedClock is moved by hand.
type movedClock struct {
	mu   sync.Mutex
	boot time.Duration // guarded by mu
}

func (c *movedClock) Boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

func (c *movedClock) Wall() time.Time { return time.Now() }

func (c *movedClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot += d
}

// lockRules have one resource for each job.
var lockRules = []rules.Rule{
	{Match: "off/**", Token: rules.Off},
	{Match: "named/{job}/**", Resource: "named/{job}", HolderRequired: true},
	{Match: "jobs/{job}/**", Resource: "jobs/{job}"},
}

// lockFixture is one whose locks go by a clock of the test's, and what it has written to its log.
func lockFixture(t *testing.T, change func(*Config)) (*fixture, *movedClock, *prometheus.Registry, *strings.Builder) {
	clock, metrics, log := &movedClock{}, prometheus.NewRegistry(), &strings.Builder{}
	f := newFixtureWith(t, func(c *Config) {
		c.Locks = tokens.NewLocks(c.Uploads.(tokens.LockStore), clock)
		c.Metrics, c.Log = metrics, slog.New(slog.NewTextHandler(log, nil))
		change(c)
	}, Backend{Handler: answering(200)}, lockRules...)
	return f, clock, metrics, log
}

// TestLock: the life of a lock on the wire, and that a write with its token shuts the holder before out.
func TestLock(t *testing.T) {
	t.Parallel()
	f, clock, metrics, log := lockFixture(t, func(*Config) {})
	const path, lease = "/b/jobs/7/any?fence", "&lease="
	first := f.lease("POST", path+lease+"30s", "X-Fence-Holder: a")
	if first.Resource != "b/jobs/7" || first.Token != 1 || first.Holder != "a" || first.TakenOver || first.Expires.Sub(first.Since) != 30*time.Second {
		t.Errorf("%+v", first)
	}
	resp, text := f.do("POST", "/b/jobs/7/other?fence&lease=1m", "", "X-Fence-Holder: b")
	var held struct {
		Holder         string
		Token          int64
		Since, Expires time.Time
	}
	if err := json.Unmarshal([]byte(text), &held); err != nil || resp.StatusCode != 423 || resp.Header.Get("X-Fence-Error") != "LockHeld" ||
		held.Holder != "a" || held.Token != 1 || !held.Since.Equal(first.Since) || !held.Expires.Equal(first.Expires) ||
		resp.Header.Get("X-Fence-Resource") != "b/jobs/7" || resp.Header.Get("Content-Type") != "application/json" || strings.Contains(text, first.Lease) {
		t.Fatalf("%d %v %s, %v; want to be told that a has it, and no id", resp.StatusCode, resp.Header, text, err)
	}
	if text := f.want(200, "", "GET", path, ""); !strings.Contains(text, `"highest":0`) || !strings.Contains(text, `"lock":{"holder":"a","token":1,`) || strings.Contains(text, first.Lease) {
		t.Errorf("it shows %s; a lock raises no fence, and its id is nobody's business", text)
	}
	clock.pass(29 * time.Second)
	if again := f.lease("PUT", path+lease+first.Lease); again.Token != 1 || again.Lease != first.Lease || !again.Expires.After(first.Expires) {
		t.Errorf("renewed: %+v", again)
	}
	clock.pass(29 * time.Second)
	f.want(423, "LockHeld", "POST", path+lease+"30s", "", "X-Fence-Holder: b")
	clock.pass(time.Second)
	second := f.lease("POST", path+lease+"30s", "X-Fence-Holder: b")
	if second.Token != 2 || !second.TakenOver {
		t.Errorf("taken over: %+v", second)
	}
	for _, method := range []string{"PUT", "DELETE"} {
		text := f.want(412, "LeaseLost", method, path+lease+first.Lease, "")
		var x xmlError
		if err := xml.Unmarshal([]byte(text), &x); err != nil || x.Code != "PreconditionFailed" || !strings.Contains(x.Message, `"b" has the lock, with token 2`) || strings.Contains(text, second.Lease) {
			t.Errorf("%s: %s, %v", method, text, err)
		}
	}
	f.want(200, "", "PUT", "/b/jobs/7/x", "content", "X-Fence-Token: 2")
	f.want(412, "StaleToken", "PUT", "/b/jobs/7/x", "content", "X-Fence-Token: 1")
	f.want(204, "", "DELETE", path+lease+second.Lease, "")
	f.want(204, "", "DELETE", path+lease+second.Lease, "") // an answer may be lost
	if text := f.want(200, "", "GET", path, ""); strings.Contains(text, "lock") {
		t.Errorf("after the release: %s", text)
	}
	f.want(200, "", "PUT", "/b/jobs/7/x?fence", "", "X-Fence-Token: 40")
	if third := f.lease("POST", path+lease+"1h"); third.Token != 41 || third.TakenOver || third.Holder != "127.0.0.1" {
		t.Errorf("after token 40 was seen, without a name: %+v", third)
	}
	for line, n := range map[string]int{"a lock was taken over": 1, "from=a token=2 holder=b": 1, "error=LeaseLost": 2, "LockHeld": 0, first.Lease: 0, second.Lease: 0} {
		if got := strings.Count(log.String(), line); got != n {
			t.Errorf("the log has %q %d times, want %d:\n%s", line, got, n, log)
		}
	}
	mustCount(t, metrics, map[string]float64{"taken": 2, "taken_over": 1, "held": 2, "renewed": 1, "released": 2, "lost": 2})
	records, _, err := f.audit.Query(t.Context(), audit.Filter{Kind: audit.KindRefusal})
	if err != nil || len(records) != 2 || records[1].Code != "LeaseLost" { // and StaleToken; equal ones are one
		t.Errorf("%+v, %v; want nobody who waits on record", records, err)
	}
}

func mustCount(t *testing.T, r *prometheus.Registry, want map[string]float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "fenceproxy_locks_total" {
			for _, m := range family.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
}

// TestLockAgain: a client that has lost the answer asks again with its id, by whatever channel names it, and has its lock. Nobody else does.
func TestLockAgain(t *testing.T) {
	t.Parallel()
	f, _, metrics, _ := lockFixture(t, func(*Config) {})
	id := "X-Fence-Lease: " + strings.Repeat("a", 32)
	for range 2 {
		if l := f.lease("POST", "/b/named/7/x?fence&lease=30s", id, "X-Fence-Holder: a"); l.Token != 1 || "X-Fence-Lease: "+l.Lease != id || l.TakenOver {
			t.Errorf("%+v", l)
		}
	}
	f.want(412, "LeaseLost", "POST", "/b/named/7/x?fence&lease=30s", "", id, "X-Fence-Holder: b")
	f.want(423, "LockHeld", "POST", "/b/named/7/x?fence&lease=30s", "", "X-Fence-Holder: a")
	// What else is said of a token counts for nothing here; but a holder is one wherever it stands.
	f.want(423, "LockHeld", "POST", "/~fence/99;holder=a/b/named/7/x?fence&lease=30s", "")
	if e, err := f.fence.Highest(t.Context(), "b/named/7"); err != nil || e.Token != 0 {
		t.Errorf("a lock has raised the fence: %+v, %v", e, err)
	}
	mustCount(t, metrics, map[string]float64{"taken": 1, "renewed": 1, "lost": 1, "held": 2})
}

func TestLockRefusals(t *testing.T) {
	t.Parallel()
	f, _, _, _ := lockFixture(t, func(*Config) {})
	for _, c := range []struct {
		status            int
		name              string
		method, path      string
		says              string
		header, andHeader string
	}{
		{400, "", "POST", "/b/k?fence", "lease=30s", "", ""},
		{400, "", "DELETE", "/b/k?fence", "lease=ID", "", ""},
		{400, "", "POST", "/b/k?fence&lease=", "", "", ""},
		{400, "", "POST", "/b/k?fence&lease=30", "1s to 1h", "", ""},
		{400, "", "POST", "/b/k?fence&lease=999ms", "1s to 1h", "", ""},
		{400, "", "POST", "/b/k?fence&lease=1h0m1s", "1s to 1h", "", ""},
		{400, "", "POST", "/b/k?fence&lease=-30s", "1s to 1h", "", ""},
		{400, "", "POST", "/b/k?fence&lease=30s&lease=30s", "once", "", ""},
		{400, "", "POST", "/b/off/k?fence&lease=30s", "token: off", "", ""},
		{400, "", "PUT", "/b/off/k?fence&lease=x", "token: off", "", ""},
		{400, "", "POST", "/b/k?fence&lease=30s", "22 to 64", "X-Fence-Lease: worker", ""},
		{400, "", "POST", "/b/k?fence&lease=30s", "letters", "X-Fence-Lease: " + strings.Repeat("ä", 20), ""},
		{400, "", "POST", "/b/k?fence&lease=30s", "once", "X-Fence-Lease: " + strings.Repeat("a", 32), "X-Fence-Lease: " + strings.Repeat("a", 32)},
		{400, "BadToken", "POST", "/b/k?fence&lease=30s", "holder", "X-Fence-Holder: a b", ""},
		{400, "BadToken", "POST", "/b/k?fence&lease=30s", "", "X-Fence-Token: x", ""},
		{400, "BadToken", "PUT", "/b/k?fence", "no token", "X-Fence-Holder: a", ""}, // it is no lock that is asked for
		{403, "HolderRequired", "POST", "/b/named/7/k?fence&lease=30s", "X-Fence-Holder", "", ""},
		{412, "LeaseLost", "PUT", "/b/k?fence&lease=30s", "nobody has the lock", "", ""},
		{412, "LeaseLost", "DELETE", "/b/k?fence&lease=x", "nobody has the lock", "", ""},
		{501, "", "POST", "/b/k?fence&lease=30s&x=1", "", "", ""},
		{501, "", "POST", "/b?fence&lease=30s", "", "", ""},
	} {
		text := f.want(c.status, c.name, c.method, c.path, "", c.header, c.andHeader)
		if !strings.Contains(text, c.says) {
			t.Errorf("%s %s: %s; want it to say %q", c.method, c.path, text, c.says)
		}
	}
	f.want(200, "", "PUT", "/b/k?fence", "", fmt.Sprintf("X-Fence-Token: %d", tokens.Max-tokens.LockMargin))
	if text := f.want(403, "TokensSpent", "POST", "/b/k?fence&lease=30s", ""); !strings.Contains(text, "fences reset") {
		t.Error(text)
	}
	text := f.want(412, "LeaseLost", "PUT", "/b/k?fence&lease=x", "", "Accept: application/json")
	var p problem
	if err := json.Unmarshal([]byte(text), &p); err != nil || p.Error != "LeaseLost" {
		t.Errorf("%s, %v", text, err)
	}
}

// TestLockAccess: a lock is for who may write, and is taken by signed requests, presigned ones too.
func TestLockAccess(t *testing.T) {
	t.Parallel()
	f, _, _, _ := lockFixture(t, restricted(map[string]*rules.Access{
		"AKIDREADER": {ReadOnly: true}, "AKIDOTHER": {Prefixes: []string{"other/"}}, "AKIDONE": nil,
	}))
	const path = "/b/jobs/7/k?fence&lease="
	for _, key := range []string{"AKIDREADER", "AKIDOTHER"} {
		for _, request := range [][2]string{{"POST", path + "30s"}, {"PUT", path + "x"}, {"DELETE", path + "x"}} {
			if resp, text := f.signs(key, request[0], request[1], ""); resp.StatusCode != 403 || resp.Header.Get("X-Fence-Resource") != "" || !strings.Contains(text, "access_keys") {
				t.Errorf("%s %v: %d %s", key, request, resp.StatusCode, text)
			}
		}
	}
	f.want(403, "", "POST", path+"30s", "")
	resp, text := f.signs("AKIDONE", "POST", path+"30s", "")
	var l leaseAnswer
	if err := json.Unmarshal([]byte(text), &l); err != nil || resp.StatusCode != 200 || l.Holder != "AKIDONE" || l.Token != 1 {
		t.Fatalf("%d %s, %v", resp.StatusCode, text, err)
	}
	if resp, text := f.signs("AKIDREADER", "GET", "/b/jobs/7/k?fence", ""); resp.StatusCode != 200 || !strings.Contains(text, `"lock":{"holder":"AKIDONE"`) {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if resp, text := f.signs("AKIDONE", "DELETE", "/~fence/7"+path+l.Lease, ""); resp.StatusCode != 204 {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

// TestLockWithoutARegistry: 503, and no cause of it for clients.
func TestLockWithoutARegistry(t *testing.T) {
	t.Parallel()
	f, _, _, log := lockFixture(t, func(c *Config) { c.Locks = tokens.NewLocks(brokenLocks{}, nil) })
	for _, request := range [][2]string{{"POST", "lease=30s"}, {"PUT", "lease=x"}, {"DELETE", "lease=x"}, {"GET", ""}} {
		if text := f.want(503, "RegistryUnavailable", request[0], "/b/k?fence&"+request[1], ""); strings.Contains(text, "s3cr3t") {
			t.Error(text)
		}
	}
	if !strings.Contains(log.String(), "s3cr3t") {
		t.Errorf("the log has no cause:\n%s", log)
	}
	none, _, _, _ := lockFixture(t, func(c *Config) { c.Locks = nil })
	none.want(501, "", "POST", "/b/k?fence&lease=30s", "")
	none.want(200, "", "GET", "/b/k?fence", "")
}

type brokenLocks struct{ tokens.LockStore }

func (brokenLocks) LoadLock(_ context.Context, _ string) (tokens.LockView, error) {
	return tokens.LockView{}, fmt.Errorf("%w: the database at s3cr3t is away", tokens.ErrUnavailable)
}
