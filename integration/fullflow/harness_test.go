// Package fullflow runs the test suite of another S3 server, versitygw's full-flow, through the built program: over that server
// itself, plainly and by endpoint path with a token, and over the file store. What fails is in testdata, each with its reason; a
// test that fails and is not there is a fault, and so is one that is there and passes.
package fullflow

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// full is the long form: the suite one test after the other, as its authors run it, and over the file store one process each.
var full = flag.Bool("full", false, "run the suite one test after the other, and over the file store in one process each: half an hour")

// patience bounds every wait for something that takes milliseconds on an idle machine.
const patience = 30 * time.Second

// What the suite signs with. It is the key of the proxy and, where there is one, of the server behind it.
const (
	accessKey = "user"
	secretKey = "secret-of-the-suite"
	region    = "us-east-1"
)

// binary is fenceproxy, gateway versitygw, which has the suite in it ("" where it is missing), and suiteDir where the suite runs.
var binary, gateway, suiteDir string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	flag.Parse()
	dir, err := os.MkdirTemp("", "fenceproxy-fullflow-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "fenceproxy")
	build := exec.Command("go", "build", "-race", "-o", binary, "./cmd/fenceproxy")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	if gateway = os.Getenv("FENCEPROXY_VERSITYGW"); gateway == "" {
		gateway, _ = exec.LookPath("versitygw") // needGateway says that it is missing
	}
	suiteDir = filepath.Join(dir, "suite")
	if err := errors.Join(os.Mkdir(suiteDir, 0o755), os.Symlink(gateway, filepath.Join(suiteDir, "versitygw"))); err != nil && gateway != "" {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// needGateway skips where versitygw is missing. In CI, where everything has to be there, that is a failure.
func needGateway(t *testing.T) {
	t.Helper()
	switch {
	case gateway != "":
	case os.Getenv("CI") != "":
		t.Fatal("NOT SHOWN: versitygw is not here (integration/test brings it)")
	default:
		t.Skip("SKIPPED, and not shown: versitygw is not here (integration/test brings it)")
	}
}

// A process is a server that runs, and what it says.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu      sync.Mutex
	said    bytes.Buffer
	changed chan struct{} // closed at the next Write
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
	return p.said.Write(b)
}

func (p *process) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// start runs a program with nothing of our environment but the path: variables of AWS lead clients and servers elsewhere.
func start(name, program string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(program, args...), done: make(chan struct{}), changed: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, p, p
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	return p, nil
}

// await waits for a match in what the process says.
func (p *process) await(what *regexp.Regexp) ([]string, error) {
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		found, changed := what.FindStringSubmatch(p.said.String()), p.changed
		p.mu.Unlock()
		if found != nil {
			return found, nil
		}
		select {
		case <-changed:
		case <-p.done:
			return nil, fmt.Errorf("%s has ended:\n%s", p.name, p)
		case <-deadline:
			return nil, fmt.Errorf("%s said nothing like %q within %v:\n%s", p.name, what, patience, p)
		}
	}
}

// end stops the process the clean way if it can be, and returns what it must never have said.
func (p *process) end() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not stop within %v:\n%s", p.name, patience, p)
	}
	for _, never := range []string{"DATA RACE", "panic"} {
		if strings.Contains(p.String(), never) {
			return fmt.Errorf("%s in %s:\n%s", never, p.name, p)
		}
	}
	return nil
}

// A stand is a proxy over an empty store, and where the suite finds it.
type stand struct {
	endpoint  string
	processes []*process // the proxy first: it ends before its store does
}

// A setup makes a stand in an empty directory.
type setup func(dir string) (*stand, error)

// overFiles is fenceproxy over the file store.
func overFiles(dir string) (*stand, error) {
	return startProxy(dir, "type: file, root: "+filepath.Join(dir, "objects"))
}

// overGateway is fenceproxy over versitygw, which keeps its users in files so that the tests of its own admin API have what they need.
func overGateway(dir string) (*stand, error) {
	address, store, err := startGateway(dir)
	if err != nil {
		return nil, err
	}
	s, err := startProxy(dir, fmt.Sprintf("type: s3, region: %s, endpoint: http://%s, path_style: true, access_key: %s, secret_key: %s",
		region, address, accessKey, secretKey))
	if err != nil {
		return nil, errors.Join(err, store.end())
	}
	s.processes = append(s.processes, store)
	return s, nil
}

// byPath is overGateway for clients that have a token in their endpoint.
func byPath(dir string) (*stand, error) {
	s, err := overGateway(dir)
	if err == nil {
		s.endpoint += "/~fence/34"
	}
	return s, err
}

func startGateway(dir string) (address string, p *process, err error) {
	for _, sub := range []string{"store", "iam"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return "", nil, err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address = l.Addr().String()
	l.Close()
	p, err = start("versitygw", gateway, "--port", address, "--access", accessKey, "--secret", secretKey, "--region", region,
		"--keep-alive", "--quiet", "--iam-dir", filepath.Join(dir, "iam"), "posix", filepath.Join(dir, "store"))
	if err != nil {
		return "", nil, err
	}
	if err := listens(address); err != nil {
		return "", nil, errors.Join(err, p.end())
	}
	return address, p, nil
}

// listens waits for a server that does not say when it is ready.
func listens(address string) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

var servingLine = regexp.MustCompile(`msg=serving listen=(\S+) .*\n`)

func startProxy(dir, backend string) (*stand, error) {
	config := filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nregion: %s\ndata: %s\nbackends: {store: {%s}}\naccess_keys: [{id: %s, secret: %s}]\n",
		region, filepath.Join(dir, "data"), backend, accessKey, secretKey)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	p, err := start("fenceproxy", binary, "serve", "--config", config)
	if err != nil {
		return nil, err
	}
	found, err := p.await(servingLine)
	if err != nil {
		return nil, errors.Join(err, p.end())
	}
	return &stand{endpoint: "http://" + found[1], processes: []*process{p}}, nil
}

func (s *stand) end() error {
	var errs []error
	for _, p := range s.processes {
		errs = append(errs, p.end())
	}
	return errors.Join(errs...)
}
