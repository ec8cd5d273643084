// Package fleet runs three proxies over one store and one registry, behind a load balancer that sends each request anywhere, and lets
// everything fail: proxies, the registry, and the networks between.
package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/histories"
)

var (
	long = os.Getenv("FENCEPROXY_LONG") != ""

	binDir string // of the program
	binary = sync.OnceValues(func() (string, error) {
		path := filepath.Join(binDir, "fenceproxy")
		return path, histories.Build(path)
	})
	plainBinary = sync.OnceValues(func() (string, error) {
		path := filepath.Join(binDir, "fenceproxy-plain")
		build := exec.Command("go", "build", "-o", path, "./cmd/fenceproxy")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build: %w\n%s", err, out)
		}
		return path, nil
	})
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "3") // fleets wait for most of their time
	}
	var err error
	if binDir, err = os.MkdirTemp("", "fenceproxy-fleet-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binDir)
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// program is the built binary.
func (o options) program(t *testing.T) string {
	t.Helper()
	build := binary
	if o.plain {
		build = plainBinary
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Options of a fleet. A zero field takes its default.
type options struct {
	proxies     int           // 3
	lease       time.Duration // 2 s
	settle      time.Duration // of the store; 6 s
	drain       time.Duration // 1 s
	raiseWait   time.Duration // 3 s
	bare        bool          // neither conditions nor stamps: registry and settle time alone have to keep the promise
	misbehaving bool          // the store in memory, in the place of versitygw
	direct      bool          // no relays
	calm        bool          // the store in memory does not misbehave
	plain       bool          // without the race detector, where time matters
	seed        uint64        // of what the store in memory does
}

// A fleet is clients → balancer → proxies → relays → the store, and proxies → relays → the registry.
type fleet struct {
	options
	dir      string
	engine   engine
	store    *store
	crossing *crossing
	balancer *balancer
	client   *http.Client

	mu      sync.Mutex
	members []*member // guarded by mu where the crossing may look
}

// A member is one proxy, what it was started with, and its ways to the store and to the registry.
type member struct {
	*histories.Process
	number     int
	config     string // its file
	toStore    *histories.Relay
	toRegistry []*histories.Relay
	address    string // of its S3 API
	admin      string
}

const configOf = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: %[1]s/data-%[2]d
drain: %[3]v
registry: {%[4]s}
backends:
  store: {%[5]s}
buckets:
  - name: bkt
    rules:
%[6]s
limits: {raise_wait: %[7]v}
`

const plainRules = `      - {match: "jobs/{job}/**", resource: "jobs/{job}"}`

// newFleet starts everything, all proxies at once, makes the bucket, and has all of it ended with the test.
func newFleet(t *testing.T, kind engineKind, o options) *fleet {
	t.Helper()
	f := &fleet{
		options: o.complete(), dir: t.TempDir(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}},
	}
	o.program(t) // first, for it takes long
	t.Cleanup(func() { f.end(t) })
	f.engine = kind.start(t)
	f.store = newStore(t, f.options)
	f.crossing = newCrossing(t, f)
	for i := range f.proxies {
		f.addMember(t, i, plainRules)
	}
	f.startAll(t)
	f.balancer = newBalancer(t, f.members)
	// The objects beside those of the clients keep versitygw from removing a directory that becomes empty, under a PUT.
	for _, path := range []string{"", "/jobs/0/other", "/jobs/1/other", "/own/other"} {
		if err := histories.Eventually(t.Context(), "PUT "+path, func() error { return f.put(path, 0, "") }); err != nil {
			t.Fatal(err)
		}
	}
	// Before its first write each proxy finds out what the store does, which takes a moment.
	var asked sync.WaitGroup
	for _, m := range f.members {
		asked.Go(func() {
			if err := histories.Eventually(t.Context(), "a first write", func() error {
				return f.expect(m.address, http.MethodPut, "/own/other", 0, "", http.StatusOK)
			}); err != nil {
				t.Error(err)
			}
		})
	}
	asked.Wait()
	return f
}

func (o options) complete() options {
	for _, d := range []struct {
		of        *time.Duration
		byDefault time.Duration
	}{{&o.lease, 2 * time.Second}, {&o.settle, 6 * time.Second}, {&o.drain, time.Second}, {&o.raiseWait, 3 * time.Second}} {
		if *d.of == 0 {
			*d.of = d.byDefault
		}
	}
	if o.proxies == 0 {
		o.proxies = 3
	}
	return o
}

// addMember writes the configuration of a proxy and makes its relays. It starts nothing.
func (f *fleet) addMember(t *testing.T, number int, rules string) *member {
	t.Helper()
	m := &member{number: number, config: filepath.Join(f.dir, fmt.Sprintf("config-%d.yaml", number))}
	m.toStore = relayTo(t, f.store.address(), f.store.longestHold(f.settle))
	for _, address := range f.engine.addresses() {
		m.toRegistry = append(m.toRegistry, relayTo(t, address, 10*time.Minute))
	}
	f.configure(t, m, rules)
	m.Process = &histories.Process{
		Name: f.program(t), Args: []string{"serve", "--config", m.config},
		Ready: regexp.MustCompile(`msg=serving listen=(\S+) admin=(\S+) `),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = append(f.members, m)
	return m
}

func (f *fleet) configure(t *testing.T, m *member, rules string) {
	t.Helper()
	var ways []string
	for _, r := range m.toRegistry {
		ways = append(ways, r.Address())
	}
	if f.direct {
		ways = f.engine.addresses()
	}
	store := f.store.config(f.crossing.address())
	if f.direct {
		store = f.store.config(f.store.address())
	}
	if f.bare {
		store += ", stamp: off, conditional: off"
	}
	text := fmt.Sprintf(configOf, f.dir, m.number, f.drain, f.engine.config(ways, f.lease), fmt.Sprintf("%s, settle: %v", store, f.settle), rules, f.raiseWait)
	if err := os.WriteFile(m.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// relayTo makes a relay that ends with the test.
func relayTo(t *testing.T, address string, longest time.Duration) *histories.Relay {
	t.Helper()
	r, err := histories.NewRelay(longest)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	r.ConnectTo(address)
	return r
}

// start runs a proxy and returns when it serves. As whoever supervises it would, it starts one again that has ended because the registry was
// out of reach: a short lease leaves it little time, and a busy machine takes long.
func (m *member) start() error {
	deadline := time.Now().Add(histories.Patience)
	for {
		found, err := m.Start()
		if err == nil {
			m.address, m.admin = found[1], found[2]
			return nil
		}
		text := err.Error()
		away := strings.Contains(text, "the token registry is out of reach") || strings.Contains(text, "open the token registry")
		if !away || time.Now().After(deadline) {
			return err
		}
	}
}

func (f *fleet) startAll(t *testing.T) {
	t.Helper()
	var all sync.WaitGroup
	errs := make([]error, len(f.members))
	for i, m := range f.members {
		all.Go(func() { errs[i] = m.start() })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// restart starts a proxy that has ended again and tells the balancer where it is.
func (f *fleet) restart(m *member) error {
	if err := m.start(); err != nil {
		return err
	}
	f.balancer.moved(m)
	return nil
}

// put is a PUT through the balancer that must succeed.
func (f *fleet) put(path string, token int64, body string) error {
	return f.expect(f.balancer.address, http.MethodPut, path, token, body, http.StatusOK)
}

// expect asks at an address and wants this answer.
func (f *fleet) expect(address, method, path string, token int64, body string, status int) error {
	a := f.ask(address, method, path, token, body, histories.Patience)
	if a.err == nil && a.status != status {
		return errors.New(a.String())
	}
	return a.err
}

// An answer is what a client was told.
type answer struct {
	status int
	name   string // X-Fence-Error
	body   string
	err    error // no answer came
	took   time.Duration
}

func (a answer) String() string {
	if a.err != nil {
		return fmt.Sprintf("%v after %v", a.err, a.took.Round(time.Millisecond))
	}
	return fmt.Sprintf("%d %s after %v: %.200s", a.status, a.name, a.took.Round(time.Millisecond), a.body)
}

func (f *fleet) ask(address, method, path string, token int64, body string, within time.Duration) (a answer) {
	begun := time.Now()
	defer func() { a.took = time.Since(begun) }()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+address+"/"+histories.Bucket+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	r.GetBody = nil // sent once
	if token > 0 {
		r.Header.Set("X-Fence-Token", fmt.Sprint(token))
	}
	resp, err := f.client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, name: resp.Header.Get("X-Fence-Error"), body: string(text), err: err}
}

// stop ends everything but the relays.
func (f *fleet) stop() {
	if f.balancer != nil {
		f.balancer.close()
	}
	for _, m := range f.members {
		m.Kill()
	}
	f.client.CloseIdleConnections()
}

// end is the cleanup. What a proxy must never say is looked for in all lives of all of them.
func (f *fleet) end(t *testing.T) {
	f.stop()
	for _, m := range f.members {
		if m.Logs == nil {
			continue
		}
		text := m.Logs.Since(0)
		for _, never := range []string{"DATA RACE", "panic"} {
			if strings.Contains(text, never) {
				t.Errorf("%s in proxy %d", never, m.number)
			}
		}
		if secret := f.engine.secret(); secret != "" && strings.Contains(text, secret) {
			t.Errorf("the registry's password is in the log of proxy %d", m.number)
		}
		if t.Failed() {
			file := filepath.Join(histories.KeptDir(t), fmt.Sprintf("proxy-%d.log", m.number))
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Error(err)
			}
			t.Logf("the log of proxy %d is %s", m.number, file)
		}
	}
}

// forEachEngine runs a test over each of them, beside all others; in the short form over the one that is named, for the drivers themselves are
// tested elsewhere (tokens/postgres, tokens/etcd).
func forEachEngine(t *testing.T, short string, test func(t *testing.T, kind engineKind)) {
	t.Parallel()
	for _, kind := range engineKinds {
		if !long && short != "" && kind.name != short {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// terminate stops a proxy the clean way, and waits.
func (m *member) terminate() error {
	m.Signal(syscall.SIGTERM)
	select {
	case <-m.Done:
		return nil
	case <-time.After(histories.Patience):
		return fmt.Errorf("proxy %d did not stop within %v", m.number, histories.Patience)
	}
}
