package histories

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
)

var (
	histories = flag.Int("histories", defaultHistories, "how many histories to run, over both stores together")
	firstSeed = flag.Uint64("seed", 1, "the seed of the first history")
	recheck   = flag.String("recheck", "", "a recorded history.json to check again")
)

var (
	binDir string // of the program
	binary = sync.OnceValues(func() (string, error) {
		path := filepath.Join(binDir, "fenceproxy")
		return path, Build(path)
	})
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "6") // a history waits for most of its time
	}
	var err error
	if binDir, err = os.MkdirTemp("", "fenceproxy-histories-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binDir)
	return m.Run()
}

// A stack is what a history runs on: clients → front → proxy → the file store, or → back → versitygw.
type stack struct {
	dir    string
	front  *Relay
	proxy  *Process
	back   *Relay   // nil over the file store
	store  *Process // the same
	root   string   // of the files: root/bucket/key
	client *http.Client
}

const config = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: %s/data
backends:
  store: {%s}
buckets:
  - name: bkt
    rules:
      - {match: "jobs/{job}/**", resource: "jobs/{job}"}
limits: {raise_wait: 3s}
`

// newStack starts everything, makes the bucket, and has all of it ended with the test. A bare one has neither conditions nor stamps, which
// keep out what comes late where the settle time does not, and give back marks that the registry has lost: registry and settle time
// alone have to keep the promise.
func newStack(t *testing.T, gateway string, bare bool) *stack {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{dir: t.TempDir(), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	s.root = filepath.Join(s.dir, "objects")
	t.Cleanup(func() { s.end(t) })
	backend := fmt.Sprintf("type: file, root: %q", s.root)
	if s.front, err = NewRelay(Patience); err != nil {
		t.Fatal(err)
	}
	if gateway != "" {
		backend = s.startGateway(t, gateway)
	}
	if bare {
		backend += ", stamp: off"
		if gateway != "" {
			backend += ", conditional: off"
		}
	}
	file := filepath.Join(s.dir, "config.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, s.dir, backend), 0o600); err != nil {
		t.Fatal(err)
	}
	s.proxy = &Process{
		Name: program, Args: []string{"serve", "--config", file},
		Ready: regexp.MustCompile(`msg=serving listen=(\S+) `),
	}
	if err := s.startProxy(); err != nil {
		t.Fatal(err)
	}
	// The objects beside those of the clients keep versitygw from removing a directory that becomes empty, under a PUT.
	for _, path := range []string{"", "/jobs/0/other", "/jobs/1/other", "/own/other"} {
		if err := Eventually(t.Context(), "PUT "+path, func() error { return s.mustPut(path) }); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *stack) mustPut(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+s.front.Address()+"/"+Bucket+path, nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func (s *stack) target() Target {
	return Target{Client: s.client, Address: s.front.Address, Open: Files(s.root)}
}

func (s *stack) startProxy() error {
	found, err := s.proxy.Start()
	if err == nil {
		s.front.ConnectTo(found[1])
	}
	return err
}

// startGateway runs versitygw behind a relay and returns what the configuration says of it.
func (s *stack) startGateway(t *testing.T, gateway string) string {
	t.Helper()
	if err := os.Mkdir(s.root, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.store, err = NewGateway(gateway, s.root); err != nil {
		t.Fatal(err)
	}
	if s.back, err = NewRelay(longestHold); err != nil {
		t.Fatal(err)
	}
	s.back.ConnectTo(s.store.Address)
	return fmt.Sprintf("type: s3, endpoint: %q, region: %s, path_style: true, access_key: %s, secret_key: %s, settle: %s",
		"http://"+s.back.Address(), GatewayRegion, GatewayKey, GatewaySecret, settle)
}

// stop ends everything.
func (s *stack) stop() {
	for _, p := range []*Process{s.proxy, s.store} {
		if p != nil {
			p.Kill()
		}
	}
	s.client.CloseIdleConnections()
	for _, r := range []*Relay{s.front, s.back} {
		if r != nil {
			r.Close()
		}
	}
}

// end is the cleanup. What the proxy must never say is looked for in all its lives.
func (s *stack) end(t *testing.T) {
	s.stop()
	if s.proxy == nil || s.proxy.Logs == nil {
		return
	}
	text := s.proxy.Logs.Since(0)
	for _, never := range []string{"DATA RACE", "panic"} {
		if strings.Contains(text, never) {
			t.Errorf("%s in the proxy", never)
		}
	}
	if t.Failed() {
		file := filepath.Join(KeptDir(t), "proxy.log")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
		t.Logf("the proxy's log is %s", file)
	}
}
