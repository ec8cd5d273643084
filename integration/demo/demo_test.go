// Package demo runs the stories of `fenceproxy demo` as their audience does: the built program, its output and its exit code, and what is left
// when it has ended, however it ended.
package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds every story and every wait. The longest story takes half a minute.
const patience = 2 * time.Minute

// mark is in the environment of every process that a demo starts, so that those it leaves can be found.
const mark = "FENCEPROXY_TEST_DEMO="

var program string

func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "8") // a story waits for its lock to run out
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "fenceproxy-demos-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "fenceproxy")
	build := exec.Command("go", "build", "-race", "-o", program, "./cmd/fenceproxy")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// need skips where a program is missing. In CI, where everything has to be there, that is a failure.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			continue
		}
		if os.Getenv("CI") != "" {
			t.Fatalf("NOT SHOWN: there is no %s here (integration/test brings it)", p)
		}
		t.Skipf("SKIPPED, and not shown: there is no %s here (integration/test brings it)", p)
	}
}

// A demo is one run of the program.
type demo struct {
	cmd  *exec.Cmd
	temp string // the folder that it makes its own in
	mark string // in the environment of its processes
	out  *bufio.Reader
	errs bytes.Buffer
	said strings.Builder
}

// start starts `fenceproxy demo`.
func start(t *testing.T, args ...string) *demo {
	t.Helper()
	return startWith(t, nil, args...)
}

// startWith starts it with something in its environment.
func startWith(t *testing.T, env []string, args ...string) *demo {
	t.Helper()
	d := &demo{temp: t.TempDir()}
	for _, dir := range []string{d.temp, filepath.Dir(d.temp)} { // PostgreSQL runs as somebody else
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.mark = mark + d.temp
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	d.cmd = exec.CommandContext(ctx, program, append([]string{"demo"}, args...)...)
	d.cmd.Env = append(append(os.Environ(), "TMPDIR="+d.temp, d.mark), env...)
	d.cmd.Stderr = &d.errs
	out, err := d.cmd.StdoutPipe()
	if err == nil {
		err = d.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	d.out = bufio.NewReader(out)
	return d
}

// until reads on until a line has a text.
func (d *demo) until(t *testing.T, text string) {
	t.Helper()
	for {
		line, err := d.out.ReadString('\n')
		d.said.WriteString(line)
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			_ = d.cmd.Wait()
			t.Fatalf("%q was not told:\n%s%s", text, d.said.String(), d.errs.String())
		}
	}
}

// end waits for the end, which must come with a code, and looks whether anything is left.
func (d *demo) end(t *testing.T, code int) {
	t.Helper()
	_, _ = io.Copy(&d.said, d.out)
	err := d.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || d.cmd.ProcessState.ExitCode() != code {
		t.Errorf("it ended with %v, not %d:\n%s%s", d.cmd.ProcessState, code, d.said.String(), d.errs.String())
	}
	if left := d.left(t); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	if entries, err := os.ReadDir(d.temp); err != nil || len(entries) > 0 {
		t.Errorf("files are left: %v, %v", entries, err)
	}
}

// left are the command lines of processes of this run.
func (d *demo) left(t *testing.T) (left []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(all) == 0 {
		t.Skip("there is no /proc here to look for processes in")
	}
	for _, dir := range all {
		env, _ := os.ReadFile(filepath.Join(dir, "environ")) // redis-server writes over its own
		work, _ := os.Readlink(filepath.Join(dir, "cwd"))
		if bytes.Contains(append(env, 0), append([]byte(d.mark), 0)) || strings.HasPrefix(work, d.temp+"/") {
			line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			left = append(left, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return left
}

// tells fails if the story is without one of these patterns, in this order.
func (d *demo) tells(t *testing.T, patterns ...string) {
	t.Helper()
	story := strings.Join(strings.Fields(d.said.String()), " ") // lines are broken where the right margin is
	for _, p := range patterns {
		at := regexp.MustCompile(p).FindStringIndex(story)
		if at == nil {
			t.Fatalf("the story is without %q from here on:\n%s\n\nThe whole:\n%s", p, story, d.said.String())
		}
		story = story[at[1]:]
	}
}

// pausedWriter is what each story of a paused writer tells.
var pausedWriter = []string{
	`worker 1 has the lock, token \d+, and reads: ann `, `SIGSTOP to worker 1`, `worker 2 has the lock, token \d+, and reads: ann `, `worker 2 writes: ann carol`,
	`SIGCONT to worker 1`, `worker 1 writes: ann bob `, `store ann bob — carol's order is lost`,
	`worker 1 has the lock, token \d+, and reads: ann `, `SIGSTOP to worker 1`, `worker 2 writes: ann carol`, `SIGCONT to worker 1`,
	`worker 1 is refused.*PreconditionFailed.*token \d+ is below \d+, the highest one seen for demo/orders`, `store ann carol — carol's order stands`,
	`fenceproxy audit --code StaleToken TIME .* StaleToken demo/orders \d+ \d+ worker-1 127.0.0.1`, `Shown: `,
}

func TestPause(t *testing.T) {
	t.Parallel()
	d := start(t, "pause", "--ttl", "3s")
	d.end(t, 0)
	d.tells(t, append([]string{`fence://127\.0\.0\.1:\d+/demo/orders`}, pausedWriter...)...)
	if lines := strings.Count(d.said.String(), "\n"); lines > 45 {
		t.Errorf("the story has %d lines", lines)
	}
}

func TestPauseEtcdctl(t *testing.T) {
	t.Parallel()
	need(t, "etcd", "etcdctl", "curl")
	d := start(t, "pause", "--lock", "etcdctl", "--ttl", "3s")
	d.end(t, 0)
	d.tells(t, append([]string{`etcdctl lock orders --ttl=3 -- sh worker\.sh`}, pausedWriter...)...)
}

func TestPauseRedisCLI(t *testing.T) {
	t.Parallel()
	need(t, "redis-server", "redis-cli", "curl")
	d := start(t, "pause", "--lock", "redis-cli", "--ttl", "3s")
	d.end(t, 0)
	d.tells(t, append([]string{`SET NX PX 3000 and INCR`}, pausedWriter...)...)
}

func TestNaive(t *testing.T) {
	t.Parallel()
	need(t, "redis-server", "redis-cli", "curl")
	d := start(t, "naive")
	d.end(t, 0)
	d.tells(t, append([]string{
		`A SET lock:1 A → OK .*B SET lock:1 B → OK A and B are both in`,
		`kill -9 of A.* B SETNX lock:2 B → \(integer\) 0, 10 times .*TTL lock:2 → \(integer\) -1 It never runs out`,
		`B SET lock:3 .* → OK .*A DEL lock:3 → \(integer\) 1 .*C SET lock:3 .* → OK .*B and C are both in`,
		`A SET lock:4 .* → OK .*B SET lock:4 .* → \(nil\) One gets in`,
		`kill -9 of A.* lock:5 has run out .*B SET lock:5 .* → OK`,
		`A EVAL compare-and-delete lock:6 a-7f3c → \(integer\) 0 .*C SET lock:6 .* → \(nil\)`,
	}, pausedWriter...)...)
}

// TestInterrupted: Ctrl-C, also one that is held down, and SIGTERM leave nothing.
func TestInterrupted(t *testing.T) {
	for name, s := range map[string]struct {
		signal syscall.Signal
		times  int
	}{"SIGINT": {syscall.SIGINT, 1}, "SIGINT held down": {syscall.SIGINT, 200}, "SIGTERM": {syscall.SIGTERM, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, "pause", "--ttl", "20s")
			d.until(t, "worker 2  wants the lock") // worker 1 stands still
			if len(d.left(t)) < 3 {
				t.Errorf("these run: %q", d.left(t))
			}
			for range s.times {
				if err := d.cmd.Process.Signal(s.signal); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
			}
			d.end(t, 1)
			if !strings.Contains(d.errs.String(), "the demo was cut short") {
				t.Errorf("it says %q", d.errs.String())
			}
		})
	}
}

// TestKilled: SIGKILL leaves the folder, but no process.
func TestKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	need(t, "redis-server", "redis-cli", "curl")
	d := start(t, "pause", "--lock", "redis-cli")
	d.until(t, "worker 2  wants the lock")
	if len(d.left(t)) < 5 { // the demo, the proxy, the server, two workers
		t.Errorf("these run: %q", d.left(t))
	}
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, d.out)
	_ = d.cmd.Wait()
	for deadline := time.Now().Add(30 * time.Second); len(d.left(t)) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("processes are left: %q", d.left(t))
		}
	}
}

// TestNobodyReads: `fenceproxy demo naive | head` ends when head does.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	need(t, "redis-server", "redis-cli", "curl")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	d := &demo{temp: t.TempDir(), out: bufio.NewReader(strings.NewReader(""))}
	d.mark = mark + d.temp
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d.cmd = exec.CommandContext(ctx, program, "demo", "naive")
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.temp, d.mark)
	d.cmd.Stdout, d.cmd.Stderr = w, &d.errs
	err = d.cmd.Start()
	w.Close()
	if err == nil {
		_, err = bufio.NewReader(r).ReadString('\n')
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	d.end(t, 1)
	if !strings.Contains(d.errs.String(), "nobody reads on") {
		t.Errorf("it says %q", d.errs.String())
	}
}

// TestRefusals: what cannot be shown is said in a sentence, and exits with 1.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		path string // PATH; "" for ours
		want string
	}{
		"no redis":      {[]string{"naive"}, "/nowhere", "apt-get install -y --no-install-recommends redis-server redis-tools curl"},
		"no etcd":       {[]string{"pause", "--lock", "etcdctl"}, "/nowhere", "apt-get install -y --no-install-recommends etcd-server etcd-client curl"},
		"no such lock":  {[]string{"pause", "--lock", "mysql://host/name"}, "", "mysql"},
		"a short TTL":   {[]string{"pause", "--ttl", "10ms"}, "", "--ttl 10ms: it is from 1s to 20s"},
		"a long TTL":    {[]string{"pause", "--ttl", "1h"}, "", "--ttl 1h0m0s: it is from 1s to 20s"},
		"too many args": {[]string{"pause", "now"}, "", "now"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.path != "" {
				t.Setenv("PATH", c.path)
			}
			d := start(t, c.args...)
			d.end(t, 1)
			if !strings.Contains(d.errs.String(), c.want) {
				t.Errorf("it says %q, without %q", d.errs.String(), c.want)
			}
		})
	}
}
