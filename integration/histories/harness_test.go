package histories

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
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
)

// patience bounds every wait for something that takes moments on an idle machine.
const patience = 60 * time.Second

var (
	histories = flag.Int("histories", defaultHistories, "how many histories to run, over both stores together")
	firstSeed = flag.Uint64("seed", 1, "the seed of the first history")
	recheck   = flag.String("recheck", "", "a recorded history.json to check again")
)

var (
	binDir string // of the program
	binary = sync.OnceValues(buildBinary)
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

// buildBinary builds the program, once, with the race detector in it, and returns its path. Where that cannot be built in, for want of a
// C compiler, it does without, and says so.
func buildBinary() (string, error) {
	path := filepath.Join(binDir, "fenceproxy")
	out, err := build("-o", path, "-race")
	if err != nil && (strings.Contains(out, "cgo") || strings.Contains(out, "C compiler")) {
		fmt.Fprintf(os.Stderr, "NOTE: the program is tested without the race detector: %s", out)
		out, err = build("-o", path)
	}
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
}

func build(flags ...string) (string, error) {
	cmd := exec.Command("go", append(append([]string{"build"}, flags...), "./cmd/fenceproxy")...)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A process is a program that is started, stopped, killed and started again.
type process struct {
	name  string
	args  []string
	env   []string // all of it; nil for ours
	ready *regexp.Regexp

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	logs *logs         // of all its lives
}

// start runs the program and waits for the line that says it is ready, whose groups it returns; without one it waits for nothing.
func (p *process) start() ([]string, error) {
	if p.logs == nil {
		p.logs = &logs{changed: make(chan struct{})}
	}
	from := p.logs.length()
	p.cmd = exec.Command(p.name, p.args...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = p.logs, p.logs, p.env
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // how it ended is of no interest: we end it
		close(done)
	}(p.cmd, p.done)
	if p.ready == nil {
		return nil, nil
	}
	found, err := p.logs.await(p.ready, from, p.done)
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("%s did not come up: %w\n%s", filepath.Base(p.name), err, p.logs.since(from))
	}
	return found, nil
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // one that has ended is found out by done

// kill ends it with SIGKILL, whatever state it is in, and waits for the end.
func (p *process) kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

// running says whether it has not ended by itself.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// logs keep what a process says, and let a test wait for a line of it.
type logs struct {
	mu      sync.Mutex
	text    []byte
	changed chan struct{} // closed at the next change
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	close(l.changed)
	l.changed = make(chan struct{})
	return len(p), nil
}

func (l *logs) length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.text)
}

func (l *logs) since(from int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text[from:])
}

// await waits for a match in a whole line behind from, for the end of the process, or until patience is over.
func (l *logs) await(what *regexp.Regexp, from int, done <-chan struct{}) ([]string, error) {
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		found := what.FindStringSubmatch(string(l.text[from:max(from, bytes.LastIndexByte(l.text, '\n')+1)]))
		changed := l.changed
		l.mu.Unlock()
		if found != nil {
			return found, nil
		}
		select {
		case <-changed:
		case <-done:
			return nil, errors.New("it ended")
		case <-deadline:
			return nil, fmt.Errorf("no line like %q came within %v", what, patience)
		}
	}
}

// eventually waits until f says nil.
func eventually(ctx context.Context, what string, f func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("%s: not within %v: %w", what, patience, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

const bucket = "bkt"

// What versitygw, a real S3 server, is started with.
const (
	gatewayKey    = "GATEWAYKEY"
	gatewaySecret = "gateway-secret-of-the-tests"
	gatewayRegion = "eu-west-1"
)

// A stack is what a history runs on: clients → front → proxy → the file store, or → back → versitygw.
type stack struct {
	dir    string
	front  *relay
	proxy  *process
	back   *relay   // nil over the file store
	store  *process // the same
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
	if s.front, err = newRelay(patience); err != nil {
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
	s.proxy = &process{
		name: program, args: []string{"serve", "--config", file},
		ready: regexp.MustCompile(`msg=serving listen=(\S+) `),
	}
	if err := s.startProxy(); err != nil {
		t.Fatal(err)
	}
	// The objects beside those of the clients keep versitygw from removing a directory that becomes empty, under a PUT.
	for _, path := range []string{"", "/jobs/0/other", "/jobs/1/other", "/own/other"} {
		if err := eventually(t.Context(), "PUT "+path, func() error { return s.mustPut(path) }); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *stack) mustPut(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+s.front.address()+"/"+bucket+path, nil)
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

func (s *stack) startProxy() error {
	found, err := s.proxy.start()
	if err == nil {
		s.front.connectTo(found[1])
	}
	return err
}

// startGateway runs versitygw behind a relay and returns what the configuration says of it.
func (s *stack) startGateway(t *testing.T, gateway string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	if err := os.Mkdir(s.root, 0o755); err != nil {
		t.Fatal(err)
	}
	s.store = &process{
		name: gateway, env: []string{"PATH=" + os.Getenv("PATH")},
		args: []string{
			"--port", address, "--access", gatewayKey, "--secret", gatewaySecret, "--region", gatewayRegion, "--keep-alive", "--quiet",
			"posix", s.root,
		},
	}
	if s.back, err = newRelay(longestHold); err != nil {
		t.Fatal(err)
	}
	s.back.connectTo(address)
	if err := s.startStore(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("type: s3, endpoint: %q, region: %s, path_style: true, access_key: %s, secret_key: %s, settle: %s",
		"http://"+s.back.address(), gatewayRegion, gatewayKey, gatewaySecret, settle)
}

func (s *stack) startStore() error {
	if _, err := s.store.start(); err != nil {
		return err
	}
	return eventually(context.Background(), "versitygw listens", func() error {
		if !s.store.running() {
			return errors.New("it ended")
		}
		c, err := net.DialTimeout("tcp", s.store.args[1], time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// stop ends everything.
func (s *stack) stop() {
	for _, p := range []*process{s.proxy, s.store} {
		if p != nil {
			p.kill()
		}
	}
	s.client.CloseIdleConnections()
	for _, r := range []*relay{s.front, s.back} {
		if r != nil {
			r.close()
		}
	}
}

// end is the cleanup. What the proxy must never say is looked for in all its lives.
func (s *stack) end(t *testing.T) {
	s.stop()
	if s.proxy == nil || s.proxy.logs == nil {
		return
	}
	text := s.proxy.logs.since(0)
	for _, never := range []string{"DATA RACE", "panic"} {
		if strings.Contains(text, never) {
			t.Errorf("%s in the proxy", never)
		}
	}
	if t.Failed() {
		file := filepath.Join(keptDir(t), "proxy.log")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
		t.Logf("the proxy's log is %s", file)
	}
}

// gateway finds versitygw: where integration/test says, where integration/setup puts it, or in PATH. Else it says loudly what is not
// shown.
func gateway(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("FENCEPROXY_VERSITYGW"); path != "" {
		return path
	}
	if cache, err := os.UserCacheDir(); err == nil {
		if found, _ := filepath.Glob(filepath.Join(cache, "fenceproxy-tests", "versitygw-*", "versitygw")); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	path, err := exec.LookPath("versitygw")
	switch {
	case err == nil:
		return path
	case os.Getenv("CI") != "":
		t.Fatal("NOT SHOWN: versitygw is not here (integration/test brings it)")
	}
	t.Skip("SKIPPED, and not shown: versitygw is not here, so no history on a real S3 server (integration/test brings it)")
	return ""
}
