package integration

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	crashRounds    = 100 // in all lanes together
	crashLanes     = 4   // proxies that are killed side by side
	crashJobs      = 30  // resources of a lane
	crashKeys      = 3   // of each resource
	crashWriters   = 6
	crashLoadLeast = 200 * time.Millisecond
	crashLoadMore  = 200 * time.Millisecond // at most, on top
)

// An attempt is one write that a client has sent. Its times are of a clock that the clients of a lane share.
type attempt struct {
	token      int64
	start, end int64  // end is 0 while no answer has come
	sum        string // of the content; "" for a DELETE
	ok         bool   // answered with success
}

// An object is what the clients know of a key.
type object struct {
	settled  string // its content's sum when all was quiet last; "" for none
	attempts []*attempt
}

// A job is what the clients know of a resource.
type job struct {
	mu       sync.Mutex
	issued   int64 // tokens given out
	begun    int64 // the highest one that a write has begun with
	answered int64 // the highest one answered with success
	keys     [crashKeys]object
}

// A lane is one proxy that is killed again and again, and what is known of it.
type lane struct {
	p      *proxy
	client *http.Client
	jobs   [crashJobs]job
	clock  atomic.Int64
	counts *crashCounts
}

type crashCounts struct {
	rounds, startKills, succeeded, refused, unanswered, checked, unansweredSeen atomic.Int64
}

// TestKills: kill -9 at random moments under load. What was answered is there, nothing is torn, nothing is left lying about.
func TestKills(t *testing.T) {
	t.Parallel()
	var counts crashCounts
	t.Run("lanes", func(t *testing.T) {
		for i := range crashLanes {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				l := &lane{p: startProxy(t), client: keepAlive(t, 2*crashWriters), counts: &counts}
				for range crashRounds / crashLanes {
					l.round(t)
					if t.Failed() {
						return
					}
				}
			})
		}
	})
	t.Logf("%d kills under load and %d more during the start; writes: %d succeeded, %d refused, %d unanswered; %d objects and fences checked, %d of them as an unanswered write left them",
		counts.rounds.Load(), counts.startKills.Load(), counts.succeeded.Load(), counts.refused.Load(), counts.unanswered.Load(), counts.checked.Load(), counts.unansweredSeen.Load())
	if counts.rounds.Load() != crashRounds && !t.Failed() {
		t.Errorf("%d rounds were run, want %d", counts.rounds.Load(), crashRounds)
	}
}

func (l *lane) round(t *testing.T) {
	l.load(t)
	l.p.checkLogs(t)
	if rand.IntN(5) == 0 {
		l.killDuringStart(t)
	}
	l.p.start(t)
	if log := l.p.logs.String(); !strings.Contains(log, "after a crash or a kill") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the start after a kill says\n%s", log)
	}
	if temps := l.p.temps(t); len(temps) > 0 {
		t.Errorf("after the start there are still %q", temps)
	}
	l.onlyObjects(t)
	l.check(t)
	if starts := l.p.audit(t, "kind=start"); len(starts) == 0 {
		t.Error("the audit log does not know of the start")
	}
	l.counts.rounds.Add(1)
}

// load lets writers write, and kills the proxy under them.
func (l *lane) load(t *testing.T) {
	t.Helper()
	var stop atomic.Bool
	var writers sync.WaitGroup
	for range crashWriters {
		writers.Go(func() {
			for !stop.Load() && l.write(t) {
			}
		})
	}
	time.Sleep(crashLoadLeast + rand.N(crashLoadMore)) // the moment of the kill is what is random here
	l.p.kill()
	stop.Store(true)
	writers.Wait()
	l.client.CloseIdleConnections()
}

// killDuringStart kills a proxy that may not have got to its feet yet.
func (l *lane) killDuringStart(t *testing.T) {
	t.Helper()
	if err := l.p.launch(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(rand.N(60 * time.Millisecond))
	l.p.kill()
	l.p.checkLogs(t)
	l.counts.startKills.Add(1)
}

// write sends one write and says whether an answer came.
func (l *lane) write(t *testing.T) bool {
	j, k := &l.jobs[rand.IntN(crashJobs)], rand.IntN(crashKeys)
	a := &attempt{}
	method, body := "PUT", []byte(nil)
	j.mu.Lock()
	if rand.IntN(3) == 0 || j.issued == 0 {
		j.issued++
	}
	a.token = j.issued
	if rand.IntN(8) == 0 && a.token > 1 {
		a.token--
	}
	j.begun = max(j.begun, a.token)
	floor := j.answered
	if rand.IntN(6) == 0 {
		method = "DELETE"
	} else {
		body, a.sum = newContent(a.token)
	}
	a.start = l.clock.Add(1)
	j.keys[k].attempts = append(j.keys[k].attempts, a)
	j.mu.Unlock()

	ans, err := send(l.client, l.p.addr, method, l.target(j, k), bytes.NewReader(body), "X-Fence-Token", token(a.token))
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		l.counts.unanswered.Add(1)
		return false
	}
	a.end = l.clock.Add(1)
	switch {
	case ans.status/100 == 2:
		a.ok = true
		j.answered = max(j.answered, a.token)
		l.counts.succeeded.Add(1)
		if a.token < floor {
			t.Errorf("token %d was let in after %d was answered", a.token, floor)
		}
	case ans.status == 412 && ans.header.Get("X-Fence-Error") == "StaleToken":
		l.counts.refused.Add(1)
	default:
		t.Errorf("%s with token %d: %d %s", method, a.token, ans.status, ans.body)
	}
	return true
}

func (l *lane) target(j *job, k int) string {
	for i := range l.jobs {
		if &l.jobs[i] == j {
			return fmt.Sprintf("/bkt/jobs/%d/dir-%d/k", i, k)
		}
	}
	panic("a job of another lane")
}

// newContent makes content that begins with its own checksum.
func newContent(n int64) (content []byte, sum string) {
	size := []int{10, 1000, 30_000, 200_000}[rand.IntN(4)]
	payload := bytes.Repeat(fmt.Appendf(nil, "%d of token %d,", rand.Uint64(), n), size/20+1)
	hash := sha256.Sum256(payload)
	sum = hex.EncodeToString(hash[:])
	return append([]byte(sum+"\n"), payload...), sum
}

// sumOf checks that content is whole.
func sumOf(content []byte) (string, error) {
	sum, payload, ok := bytes.Cut(content, []byte("\n"))
	hash := sha256.Sum256(payload)
	if !ok || string(sum) != hex.EncodeToString(hash[:]) {
		return "", fmt.Errorf("torn: %d bytes that begin %.80q", len(content), content)
	}
	return string(sum), nil
}

// check holds everything that the proxy has after a start against what the clients know.
func (l *lane) check(t *testing.T) {
	t.Helper()
	var checks sync.WaitGroup
	turn := make(chan struct{}, 2*crashWriters)
	for i := range l.jobs {
		checks.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			l.checkJob(t, &l.jobs[i])
		})
	}
	checks.Wait()
}

func (l *lane) checkJob(t *testing.T, j *job) {
	get := func(target string) answer {
		a, err := send(l.client, l.p.addr, "GET", target, nil)
		if err != nil {
			t.Errorf("GET %s: %v", target, err)
		}
		return a
	}
	for k := range j.keys {
		target, o := l.target(j, k), &j.keys[k]
		found := ""
		switch a := get(target); a.status {
		case 200:
			var err error
			if found, err = sumOf(a.body); err != nil {
				t.Errorf("%s: %v", target, err)
			}
		case 404:
		default:
			t.Errorf("GET %s: %d %s", target, a.status, a.body)
		}
		l.judge(t, target, o, found)
		l.counts.checked.Add(1)
	}
	a := get(l.target(j, 0) + "?fence")
	if a.status != 200 {
		t.Errorf("?fence: %d %s", a.status, a.body)
		return
	}
	f := a.fence(t)
	if f.Highest < j.answered || f.Highest > j.begun {
		t.Errorf("%s stands at %d; %d was answered and %d tried", f.Resource, f.Highest, j.answered, j.begun)
	}
	if f.Highest > 0 {
		a, err := send(l.client, l.p.addr, "PUT", l.target(j, 0), strings.NewReader("stale"), tokenHeader(f.Highest-1)...)
		if err != nil || a.status != 412 || a.header.Get("X-Fence-Error") != "StaleToken" {
			t.Errorf("%s stands at %d, and a lower token is told %v %d %s", f.Resource, f.Highest, err, a.status, a.body)
		}
	}
	j.answered = max(j.answered, f.Highest) // ?fence has answered it
	l.counts.checked.Add(1)
}

// judge says whether a key may hold what was found, and takes that for settled.
func (l *lane) judge(t *testing.T, target string, o *object, found string) {
	t.Helper()
	possible := !o.overwritten(&attempt{}) && found == o.settled
	for _, a := range o.attempts {
		if a.sum == found && (a.ok || a.end == 0) && !o.overwritten(a) {
			possible = true
			if !a.ok {
				l.counts.unansweredSeen.Add(1)
			}
		}
	}
	if !possible {
		t.Errorf("%s holds %.12q, which cannot be; settled was %.12q, then came:", target, found, o.settled)
		for _, a := range o.attempts {
			t.Logf("token %d, %d to %d, %.12q, answered with success: %v", a.token, a.start, a.end, a.sum, a.ok)
		}
	}
	o.settled, o.attempts = found, nil
}

// overwritten says that a write with success must have come after a: one with a higher token, or one that began when a was answered.
func (o *object) overwritten(a *attempt) bool {
	for _, b := range o.attempts {
		if b.ok && b != a && (b.token > a.token || a.end != 0 && b.start > a.end) {
			return true
		}
	}
	return false
}

// onlyObjects checks that below the root there are objects, directories, and what the store is known to keep.
func (l *lane) onlyObjects(t *testing.T) {
	t.Helper()
	known := map[string]bool{".fenceproxy/registry": true}
	for i := range l.jobs {
		for k := range crashKeys {
			known[strings.TrimPrefix(l.target(&l.jobs[i], k), "/")] = true
		}
	}
	err := filepath.WalkDir(l.p.root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(l.p.root, path)
		if !known[name] {
			t.Errorf("there is %s after a start", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestStopped: a process that is stopped, not killed, while a newer one cannot take its place, comes back and is told.
func TestStopped(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second := &proxy{dir: p.dir, config: p.config, data: p.data, root: p.root}
	t.Cleanup(func() { second.end(t) })
	said := second.refused(t)
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said, "in use") && !strings.Contains(said, "another process") {
		t.Errorf("a second serve says %q", said)
	}
	p.holds(t, "/bkt/k", "of 34")
	p.put(t, "/bkt/k", 33, "stale").stale(t, 34)
}

// TestLeftovers: what a killed process may leave is cleared away by the next start, and nothing else is.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	u := lateUpload{size: 1 << 20, sent: 1 << 19}
	u.begin(t, p, "/bkt/late", "X-Fence-Token: 34\r\n")
	eventually(t, "the upload begins", func() bool { return len(p.temps(t)) > 0 })
	p.kill()
	if len(p.temps(t)) == 0 {
		t.Fatal("the kill left nothing, so there is nothing to clear away")
	}
	empty := filepath.Join(p.root, "bkt", "made", "and", "left")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	p.holdsNothingOf(t, lateMark)
	if temps := p.temps(t); len(temps) > 0 {
		t.Errorf("still there: %q", temps)
	}
	p.absent(t, "/bkt/late")
	p.put(t, "/bkt/made/and/left", 34, "an object now").want(t, 200)
	p.holds(t, "/bkt/k", "of 34")
	p.put(t, "/bkt/k", 33, "stale").stale(t, 34)
}
