// Package integration runs the built program as its users do: as a process, over HTTP and at the command line. Nothing here
// knows the inside of it.
package integration

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
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

// patience bounds every wait for something that takes milliseconds on an idle machine.
const patience = 30 * time.Second

// binary is the program, built once with the race detector in it.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "8") // most of the time is spent waiting for disks and timeouts
	}
	dir, err := os.MkdirTemp("", "fenceproxy-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Chmod(dir, 0o755), build(filepath.Join(dir, "fenceproxy"))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build makes the binary. Where the race detector cannot be built in, for want of a C compiler, it does without, and says so.
func build(path string) error {
	binary = path
	out, err := goBuild("-race")
	if err != nil && (strings.Contains(out, "cgo") || strings.Contains(out, "C compiler")) {
		fmt.Fprintf(os.Stderr, "NOTE: the program is tested without the race detector: %s", out)
		out, err = goBuild()
	}
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

func goBuild(flags ...string) (string, error) {
	args := append([]string{"build", "-o", binary}, flags...)
	cmd := exec.Command("go", append(args, "./cmd/fenceproxy")...)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A proxy is one data directory and one configuration, and the process that runs over them, if one does.
type proxy struct {
	dir    string // holds everything below
	config string
	data   string
	root   string // of the objects

	user  *syscall.SysProcAttr // whom serve runs as; nil for ourselves
	addr  string               // of the data plane of the running process
	admin string
	cmd   *exec.Cmd
	logs  *logs
	done  chan struct{} // closed when the process has ended
}

// plainConfig is what most tests run with. DIR is replaced by the proxy's directory.
const plainConfig = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: DIR/data
backends:
  local: {type: file, root: DIR/objects}
buckets:
  - {name: "denied", bucket_writes: deny}
  - {name: "guarded", bucket_writes: fence}
  - name: "*"
    rules:
      - {match: "jobs/{job}/**", resource: "jobs/{job}"}
      - {match: "must/**", token: required}
      - {match: "named/**", holder: required}
      - {match: "once/**", write_once: true}
      - {match: "cas/**", require_condition: true}
      - {match: "near/**", max_advance: 10}
      - {match: "free/**", token: off}
      - {match: "plain/**", reads: plain}
      - {match: "soft/**", refuse: 403}
# A loaded machine may take long to sync a disk; no test here is about this limit.
limits: {raise_wait: 1m}
`

// newProxy makes the directory and the configuration of a proxy, and starts nothing.
func newProxy(t *testing.T, config string) *proxy {
	t.Helper()
	dir := t.TempDir()
	p := &proxy{
		dir: dir, config: filepath.Join(dir, "config.yaml"),
		data: filepath.Join(dir, "data"), root: filepath.Join(dir, "objects"),
	}
	p.writeConfig(t, config)
	t.Cleanup(func() { p.end(t) })
	return p
}

func (p *proxy) writeConfig(t *testing.T, config string) {
	t.Helper()
	mustWrite(t, p.config, strings.ReplaceAll(config, "DIR", p.dir))
}

// startProxy runs a proxy with plainConfig and a bucket bkt.
func startProxy(t *testing.T) *proxy {
	t.Helper()
	p := newProxy(t, plainConfig)
	p.start(t)
	p.do(t, "PUT", "/bkt", "").want(t, 200)
	return p
}

// start runs serve and returns when it accepts.
func (p *proxy) start(t *testing.T, flags ...string) {
	t.Helper()
	if err := p.tryStart(flags...); err != nil {
		t.Fatal(err)
	}
}

var servingLine = regexp.MustCompile(`msg=serving listen=(\S+) admin=(\S+) .*pid=(\d+)`)

func (p *proxy) tryStart(flags ...string) error {
	if err := p.launch(flags...); err != nil {
		return err
	}
	found, err := p.logs.await(servingLine, p.done)
	if err != nil {
		p.kill()
		return fmt.Errorf("serve did not come up: %w\n%s", err, p.logs)
	}
	if found[3] != fmt.Sprint(p.cmd.Process.Pid) {
		return fmt.Errorf("the log says pid %s, and the process is %d", found[3], p.cmd.Process.Pid)
	}
	p.addr, p.admin = found[1], found[2]
	return nil
}

// launch begins serve and does not wait for it.
func (p *proxy) launch(flags ...string) error {
	p.logs, p.done = newLogs(), make(chan struct{})
	p.cmd = exec.Command(binary, append([]string{"serve", "--config", p.config}, flags...)...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = p.dir, p.logs, p.logs, p.user
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // what it says is in cmd.ProcessState
		close(done)
	}(p.cmd, p.done)
	return nil
}

// refused runs serve where it must not come up, and returns what it says. That is to end soon, and with exit code 1.
func (p *proxy) refused(t *testing.T, flags ...string) string {
	t.Helper()
	if err := p.launch(flags...); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(patience):
		p.kill()
		t.Fatalf("serve was to be refused, and runs:\n%s", p.logs)
	}
	p.checkLogs(t)
	if code := p.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("serve ended with code %d, want 1:\n%s", code, p.logs)
	}
	return p.logs.String()
}

// signal and wait.
func (p *proxy) terminate(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

func (p *proxy) ended(t *testing.T, within time.Duration) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		t.Fatalf("the proxy did not stop within %v:\n%s", within, p.logs)
	}
	p.checkLogs(t)
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the proxy ended with code %d, want 0:\n%s", code, p.logs)
	}
}

// stop ends the process the clean way.
func (p *proxy) stop(t *testing.T) {
	t.Helper()
	p.terminate(t)
	p.ended(t, patience)
}

// kill ends the process with SIGKILL.
func (p *proxy) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

func (p *proxy) restart(t *testing.T) {
	t.Helper()
	p.stop(t)
	p.start(t)
}

func (p *proxy) crash(t *testing.T) {
	t.Helper()
	p.kill()
	p.checkLogs(t)
	p.start(t)
}

// end is the cleanup. The process that a test leaves behind is stopped the clean way, so that its last words are heard.
func (p *proxy) end(t *testing.T) {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(2 * time.Second): // a test that failed may have left a request open
	}
	p.kill()
	p.checkLogs(t)
	if t.Failed() {
		t.Logf("log of the proxy:\n%s", p.logs.tail(60))
	}
}

// checkLogs holds the proxy to what it must never say.
func (p *proxy) checkLogs(t *testing.T) {
	t.Helper()
	text := p.logs.String()
	for _, never := range []string{"DATA RACE", "panic"} {
		if strings.Contains(text, never) {
			t.Errorf("%s in the proxy:\n%s", never, text)
		}
	}
}

// cli runs a command of the program that ends by itself.
func cli(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &errOut
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || ctx.Err() != nil {
			t.Fatalf("fenceproxy %q: %v\n%s", args, err, errOut.String())
		}
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// ok runs a command that must succeed, against this proxy, and returns what it prints.
func (p *proxy) ok(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := cli(t, append(args, "--admin", "http://"+p.admin)...)
	if code != 0 {
		t.Fatalf("fenceproxy %q ended with code %d:\n%s", args, code, stderr)
	}
	return stdout
}

// logs keep what a process says, and let a test wait for a line of it.
type logs struct {
	mu      sync.Mutex
	text    []byte
	changed chan struct{} // closed at the next change
}

func newLogs() *logs { return &logs{changed: make(chan struct{})} }

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	close(l.changed)
	l.changed = make(chan struct{})
	return len(p), nil
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

func (l *logs) tail(lines int) string {
	all := strings.Split(strings.TrimRight(l.String(), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// await waits for a match in a whole line, for the end of the process, or until patience is over.
func (l *logs) await(what *regexp.Regexp, done <-chan struct{}) ([]string, error) {
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		whole := l.text[:bytes.LastIndexByte(l.text, '\n')+1]
		found := what.FindStringSubmatch(string(whole))
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

// eventually waits until f says true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// skip says loudly what was not shown. In CI, where everything has to be there, that is a failure.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("NOT SHOWN: %s", why)
	}
	t.Skipf("SKIPPED, and not shown: %s", why)
}
