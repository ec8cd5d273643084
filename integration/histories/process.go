package histories

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Patience bounds every wait for something that takes moments on an idle machine.
const Patience = 60 * time.Second

// Build builds the program with the race detector in it, at path. Where that cannot be built in, for want of a C compiler, it does without, and
// says so.
func Build(path string) error {
	out, err := goBuild("-o", path, "-race")
	if err != nil && (strings.Contains(out, "cgo") || strings.Contains(out, "C compiler")) {
		fmt.Fprintf(os.Stderr, "NOTE: the program is tested without the race detector: %s", out)
		out, err = goBuild("-o", path)
	}
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

func goBuild(flags ...string) (string, error) {
	cmd := exec.Command("go", append(append([]string{"build"}, flags...), "./cmd/fenceproxy")...)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A Process is a program that is started, stopped, killed and started again.
type Process struct {
	Name    string
	Args    []string
	Env     []string // all of it; nil for ours
	Ready   *regexp.Regexp
	Address string // that it listens at, where that is known before

	cmd  *exec.Cmd
	pid  atomic.Int64
	Done chan struct{} // closed when it has ended
	Logs *Logs         // of all its lives
}

// Start runs the program and waits for the line that says it is ready, whose groups it returns; without one it waits for nothing.
func (p *Process) Start() ([]string, error) {
	if p.Logs == nil {
		p.Logs = &Logs{changed: make(chan struct{})}
	}
	from := p.Logs.Length()
	p.cmd = exec.Command(p.Name, p.Args...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = p.Logs, p.Logs, p.Env
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.pid.Store(int64(p.cmd.Process.Pid))
	p.Done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // how it ended is of no interest: we end it
		close(done)
	}(p.cmd, p.Done)
	if p.Ready == nil {
		return nil, nil
	}
	found, err := p.Logs.Await(p.Ready, from, p.Done)
	if err != nil {
		p.Kill()
		return nil, fmt.Errorf("%s did not come up: %w\n%s", filepath.Base(p.Name), err, p.Logs.Since(from))
	}
	return found, nil
}

func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // one that has ended is found out by done

// Kill ends it with SIGKILL, whatever state it is in, and waits for the end.
func (p *Process) Kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.Done
}

// PID is that of its present life, or the last one; 0 if it was never started.
func (p *Process) PID() int { return int(p.pid.Load()) }

// Running says whether it has not ended by itself.
func (p *Process) Running() bool {
	select {
	case <-p.Done:
		return false
	default:
		return true
	}
}

// Logs keep what a process says, and let a test wait for a line of it.
type Logs struct {
	mu      sync.Mutex
	text    []byte
	changed chan struct{} // closed at the next change
}

func (l *Logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	close(l.changed)
	l.changed = make(chan struct{})
	return len(p), nil
}

func (l *Logs) Length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.text)
}

func (l *Logs) Since(from int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text[from:])
}

// Await waits for a match in a whole line behind from, for the end of the process, or until patience is over.
func (l *Logs) Await(what *regexp.Regexp, from int, done <-chan struct{}) ([]string, error) {
	deadline := time.After(Patience)
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
			return nil, fmt.Errorf("no line like %q came within %v", what, Patience)
		}
	}
}

// Eventually waits until f says nil.
func Eventually(ctx context.Context, what string, f func() error) error {
	deadline := time.Now().Add(Patience)
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("%s: not within %v: %w", what, Patience, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// What versitygw, a real S3 server, is started with.
const (
	GatewayKey    = "GATEWAYKEY"
	GatewaySecret = "gateway-secret-of-the-tests"
	GatewayRegion = "eu-west-1"
)

// NewGateway runs versitygw over a directory, on a free port.
func NewGateway(program, root string) (*Process, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	l.Close()
	p := &Process{
		Name: program, Env: []string{"PATH=" + os.Getenv("PATH")}, Address: address,
		Args: []string{
			"--port", address, "--access", GatewayKey, "--secret", GatewaySecret, "--region", GatewayRegion, "--keep-alive", "--quiet",
			"posix", root,
		},
	}
	return p, p.StartListening()
}

// StartListening starts a program without a line that says it is ready, and returns when something listens at its address.
func (p *Process) StartListening() error {
	if _, err := p.Start(); err != nil {
		return err
	}
	return Eventually(context.Background(), filepath.Base(p.Name)+" listens", func() error {
		if !p.Running() {
			return errors.New("it ended")
		}
		c, err := net.DialTimeout("tcp", p.Address, time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// Gateway finds versitygw: where integration/test says, where integration/setup puts it, or in PATH. Else it says loudly what is not
// shown.
func Gateway(t *testing.T) string {
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
