package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// asProgram makes the test's own binary the program, with a lock in a folder: test:///folder.
const asProgram = "FENCEPROXY_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		lockKinds = append(lockKinds, lockForm{"test", "test:///folder", "counted in a file", openFolderLock})
		_ = os.Unsetenv(asProgram) // the command is not one
		main()
		os.Exit(0)
	}
	if os.Getenv("FENCEPROXY_TEST_STUBBORN") != "" { // a command that TERM does not end
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A folderLock is a folder with a counter. The file held says who has the lock; lost says that it is no longer theirs.
type folderLock struct{ dir string }

func openFolderLock(text string) (locks.Service, error) {
	u, err := url.Parse(text)
	return folderLock{u.Path}, err
}

func (l folderLock) file(name string) string { return filepath.Join(l.dir, name) }

func (l folderLock) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	told := false
	for {
		f, err := os.OpenFile(l.file("held"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			_, _ = f.WriteString(r.Holder)
			_ = f.Close()
			break
		} else if !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		if who, _ := os.ReadFile(l.file("held")); !told && len(who) > 0 {
			told = true
			r.Waiting(locks.Other{Holder: string(who), Token: l.count(), Since: time.Now()})
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
	n := l.count() + 1
	return folderHold{l, n}, os.WriteFile(l.file("count"), fmt.Append(nil, n), 0o600)
}

func (l folderLock) count() tokens.Token {
	text, _ := os.ReadFile(l.file("count"))
	n, _ := strconv.Atoi(string(text))
	return tokens.Token(n)
}

func (l folderLock) Close() error { return nil }

func (l folderLock) Check(context.Context) ([]string, error) {
	if _, err := os.Stat(l.file("careless")); err == nil {
		return []string{"it forgets"}, nil
	}
	return nil, nil
}

type folderHold struct {
	folderLock
	token tokens.Token
}

func (h folderHold) Token() tokens.Token { return h.token }
func (h folderHold) TakenOver() bool     { return false }

func (h folderHold) Renew(context.Context) error {
	if _, err := os.Stat(h.file("lost")); err == nil {
		return locks.ErrLost
	}
	return nil
}

func (h folderHold) Release(context.Context) error { return os.Remove(h.file("held")) }

// A runProcess is a `fenceproxy run` of a test.
type runProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    *bufio.Reader
	errOut string // a file
}

// startRun runs fenceproxy run with a lock in dir.
func startRun(t *testing.T, dir string, env []string, args ...string) *runProcess {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &runProcess{t: t, cmd: exec.Command(exe, append([]string{"run", "--lock", "test://" + dir, "--ttl", "1s"}, args...)...)}
	r.cmd.Env = append(os.Environ(), asProgram+"=1", "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null")
	r.cmd.Env = append(r.cmd.Env, env...)
	errOut, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer errOut.Close()
	r.cmd.Stderr, r.errOut = errOut, errOut.Name()
	pipe, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.out = bufio.NewReader(pipe)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

// line is the next one that the command prints.
func (r *runProcess) line() string {
	r.t.Helper()
	s, err := r.out.ReadString('\n')
	if err != nil {
		_ = r.cmd.Wait()
		r.t.Fatalf("the command printed no line: %v; on standard error: %s", err, r.said())
	}
	return strings.TrimSuffix(s, "\n")
}

// end waits for its end, and returns the exit code and what the command and run have said.
func (r *runProcess) end() (code int, out, said string) {
	r.t.Helper()
	rest, _ := io.ReadAll(r.out)
	_ = r.cmd.Wait()
	return codeOf(r.cmd.ProcessState), string(rest), r.said()
}

func (r *runProcess) said() string {
	text, _ := os.ReadFile(r.errOut)
	return string(text)
}

// waitSaid waits until run has said something.
func (r *runProcess) waitSaid(text string) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(r.said(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("it never said %q, but %q", text, r.said())
		}
	}
}

func (r *runProcess) mustEnd(want int) (out, said string) {
	r.t.Helper()
	code, out, said := r.end()
	if code != want {
		r.t.Fatalf("it ended with %d instead of %d: %s", code, want, said)
	}
	return out, said
}

func mustBeFree(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "held")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock was not released: %v", err)
	}
}

func touch(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRunEnvironment(t *testing.T) {
	dir := t.TempDir()
	inherited := []string{
		"FENCE_TOKEN=99", "FENCE_HOLDER=x", "FENCE_RESOURCE=x", "AWS_ENDPOINT_URL=http://elsewhere", "AWS_ENDPOINT_URL_S3=http://elsewhere",
		"AWS_SESSION_TOKEN=x", "AWS_SECURITY_TOKEN=x", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true", "KEPT=yes",
		lockVariable + "=redis://x", // --lock wins, and the command has nothing to do with it
	}
	out, said := startRun(t, dir, inherited, "--holder", "node-1", "--endpoint", "http://127.0.0.1:9000/", "--", "env").mustEnd(0)
	mustBeFree(t, dir)
	var got []string
	for _, line := range strings.Split(out, "\n") {
		switch nameOf(line) {
		case "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE", "AWS_REGION", "AWS_DEFAULT_REGION":
			continue // of the machine
		}
		if strings.HasPrefix(line, "FENCE_") || strings.HasPrefix(line, lockVariable) || strings.HasPrefix(line, "KEPT") || strings.HasPrefix(line, "AWS_") {
			got = append(got, line)
		}
	}
	slices.Sort(got)
	want := []string{
		"AWS_ENDPOINT_URL=http://127.0.0.1:9000/~fence/1;holder=node-1", "AWS_SESSION_TOKEN=fence=1;holder=node-1",
		"FENCE_HOLDER=node-1", "FENCE_TOKEN=1", "KEPT=yes",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the command has %q, want %q", got, want)
	}
	if !strings.Contains(said, "token 1; waited ") || !strings.Contains(said, "the command ended with 0") {
		t.Errorf("at the end run said %q", said)
	}
	out, _ = startRun(t, dir, []string{lockVariable + "=test://" + dir}, "--lock", "", "--resource", "demo/jobs/7", "--", "sh", "-c", "echo $FENCE_TOKEN $FENCE_RESOURCE ${AWS_ENDPOINT_URL:-none}").mustEnd(0)
	if out != "2 demo/jobs/7 none\n" {
		t.Errorf("the second command printed %q", out)
	}
}

func TestRunCodes(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	touch(t, dir, "plain")
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"own":              {[]string{"--", "sh", "-c", "exit 7"}, 7, "the command ended with 7"},
		"signal":           {[]string{"--", "sh", "-c", "kill -KILL $$"}, 137, "the command ended with 137"},
		"not found":        {[]string{"--", "fenceproxy-no-such-command"}, exitNotFound, "not found"},
		"not executable":   {[]string{"--", plain}, exitNotStarted, "permission denied"},
		"no command":       {nil, exitRunFailed, "no command to run"},
		"flag":             {[]string{"--no-such-flag", "--", "true"}, exitRunFailed, "unknown flag"},
		"lost":             {[]string{"--on-lost", "x", "--", "true"}, exitRunFailed, "term or keep"},
		"ttl":              {[]string{"--ttl", "10ms", "--", "true"}, exitRunFailed, "--ttl"},
		"holder":           {[]string{"--holder", "a;b", "--", "true"}, exitRunFailed, "--holder"},
		"announce to whom": {[]string{"--announce", "b/k", "--", "true"}, exitRunFailed, "--endpoint"},
		"announce what":    {[]string{"--announce", "b", "--endpoint", "http://x", "--", "true"}, exitRunFailed, "bucket/key"},
		"endpoint":         {[]string{"--endpoint", "x:9000/~fence/3", "--", "true"}, exitRunFailed, "--endpoint"},
		"lock":             {[]string{"--lock", "gopher://user:secret@x", "--", "true"}, exitRunFailed, `"gopher://user:xxxxx@x" is the URL of no lock`},
		"no lock":          {[]string{"--lock", "", "--", "true"}, exitRunFailed, "which lock?"},
	} {
		t.Run(name, func(t *testing.T) {
			out, said := startRun(t, dir, nil, test.args...).mustEnd(test.code)
			if out != "" || !strings.Contains(said, test.says) || strings.Contains(said, "secret") {
				t.Errorf("it printed %q and said %q", out, said)
			}
			mustBeFree(t, dir)
		})
	}
}

func TestRunWait(t *testing.T) {
	dir := t.TempDir()
	touch(t, dir, "careless")
	first := startRun(t, dir, nil, "--holder", "node-1", "--", "sh", "-c", "echo mine; read line; exit 3")
	if got := first.line(); got != "mine" { // its standard input is /dev/null: it goes on at once, unless it never got the lock
		t.Fatal(got)
	}
	first.mustEnd(3)

	hold := startRun(t, dir, nil, "--holder", "node-1", "--", "sh", "-c", "echo mine; sleep 60")
	hold.line()
	out, said := startRun(t, dir, nil, "--wait", "200ms", "--", "echo", "never").mustEnd(exitNotWon)
	if out != "" || !strings.Contains(said, "was not free within 200ms: node-1 has it since") || !strings.Contains(said, "token 2") || !strings.Contains(said, "careful: it forgets") {
		t.Errorf("it printed %q and said %q", out, said)
	}
	waiter := startRun(t, dir, nil, "--", "sh", "-c", "echo $FENCE_TOKEN")
	interrupted := startRun(t, dir, nil, "--", "echo", "never")
	interrupted.waitSaid("waiting for test://")
	_ = interrupted.cmd.Process.Signal(syscall.SIGHUP)
	if out, said := interrupted.mustEnd(exitSignal + int(syscall.SIGHUP)); out != "" || !strings.Contains(said, "before the command was started") {
		t.Errorf("it printed %q and said %q", out, said)
	}
	waiter.waitSaid("waiting for test://")
	_ = hold.cmd.Process.Signal(syscall.SIGTERM) // passed on
	hold.mustEnd(exitSignal + int(syscall.SIGTERM))
	if out, said := waiter.mustEnd(0); out != "3\n" || !strings.Contains(said, "for 1 holder, held for") {
		t.Errorf("it printed %q and said %q", out, said)
	}
	mustBeFree(t, dir)
}

func TestRunLost(t *testing.T) {
	t.Run("term", func(t *testing.T) {
		dir := t.TempDir()
		// The shell's child is ended, too: it is what writes.
		r := startRun(t, dir, nil, "--", "sh", "-c", "trap 'echo ended; exit 0' TERM; echo ready; sleep 60 & wait")
		r.line()
		touch(t, dir, "lost")
		out, said := r.mustEnd(exitLockLost)
		if out != "ended\n" || !strings.Contains(said, "the lock is lost. The command with token 1 is told to end") {
			t.Errorf("it printed %q and said %q", out, said)
		}
	})
	t.Run("kill", func(t *testing.T) {
		dir := t.TempDir()
		exe, _ := os.Executable()
		r := startRun(t, dir, []string{"FENCEPROXY_TEST_STUBBORN="}, "--kill-after", "300ms", "--", "env", "FENCEPROXY_TEST_STUBBORN=1", exe)
		r.line()
		touch(t, dir, "lost")
		if _, said := r.mustEnd(exitLockLost); !strings.Contains(said, "SIGKILL") {
			t.Error(said)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		dir := t.TempDir()
		r := startRun(t, dir, nil, "--kill-after", "1m", "--", "sh", "-c", "echo $$; kill -STOP $$; echo woken")
		r.line()
		touch(t, dir, "lost")
		r.mustEnd(exitLockLost)
	})
	t.Run("keep", func(t *testing.T) {
		dir := t.TempDir()
		r := startRun(t, dir, nil, "--on-lost", "keep", "--", "sh", "-c", "echo ready; sleep 1; exit 4")
		r.line()
		touch(t, dir, "lost")
		if _, said := r.mustEnd(4); !strings.Contains(said, "The command goes on with token 1") || !strings.Contains(said, "; the lock was lost; the command ended with 4") {
			t.Error(said)
		}
	})
}

func TestRunAnnounce(t *testing.T) {
	asked := make(chan string, 4)
	answers := make(chan func(http.ResponseWriter), 4)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- (r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get("X-Fence-Token") + " " + r.Header.Get("X-Fence-Holder") + " " + strings.SplitN(r.Header.Get("Authorization"), "/", 2)[0])
		(<-answers)(w)
	}))
	defer proxy.Close()
	refusal := func(status int, code, message string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("X-Fence-Error", code)
			w.WriteHeader(status)
			fmt.Fprintf(w, "<Error><Code>X</Code><Message>%s</Message></Error>", message)
		}
	}
	good := func(w http.ResponseWriter) { fmt.Fprint(w, `{"resource":"b/jobs/7","highest":1}`) }
	dir := t.TempDir()
	args := []string{"--endpoint", proxy.URL, "--announce", "b/jobs/7/a b", "--holder", "h", "--", "sh", "-c", "echo $FENCE_RESOURCE"}

	answers <- refusal(503, "WaitingForOlderWrite", "later")
	answers <- good
	if out, _ := startRun(t, dir, []string{"AWS_ACCESS_KEY_ID=AK", "AWS_SECRET_ACCESS_KEY=SK", "AWS_SESSION_TOKEN=fence=9"}, args...).mustEnd(0); out != "b/jobs/7\n" {
		t.Errorf("the command printed %q", out)
	}
	want := "PUT /b/jobs/7/a%20b?fence= 1 h AWS4-HMAC-SHA256 Credential=AK"
	for range 2 {
		if got := <-asked; got != want {
			t.Errorf("the proxy was asked %q", got)
		}
	}
	for code, says := range map[string]string{
		"StaleToken":    "its counter has gone back",
		"TokenConflict": "to two holders",
		"TokenTooFar":   "fences raise",
		"TokenRequired": "412 TokenRequired: ",
	} {
		answers <- refusal(412, code, "token 1 is below 34")
		out, said := startRun(t, dir, nil, args...).mustEnd(exitRunFailed)
		if out != "" || !strings.Contains(said, says) || !strings.Contains(said, "token 1 is below 34") {
			t.Errorf("%s: it printed %q and said %q", code, out, said)
		}
		mustBeFree(t, dir)
		<-asked
	}
	answers <- func(w http.ResponseWriter) { fmt.Fprint(w, "<ok/>") }
	if _, said := startRun(t, dir, nil, args...).mustEnd(exitRunFailed); !strings.Contains(said, "is not that of a fenceproxy") {
		t.Error(said)
	}
}

func TestRunReport(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "report")
	startRun(t, dir, nil, "--report", file, "--holder", "h", "--ttl", "2m", "--", "true").mustEnd(0)
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first = append(bytes.Repeat(first, adviceFrom-1), strings.Repeat("x", 100_000)+"\n"...) // and a line of somebody else's
	if err := os.WriteFile(file, first, 0o600); err != nil {
		t.Fatal(err)
	}
	_, said := startRun(t, dir, nil, "--report", file, "--holder", "h", "--ttl", "2m", "--", "sh", "-c", "exit 5").mustEnd(5)
	if !strings.Contains(said, "with --ttl 5s instead of 2m0s") {
		t.Errorf("it said %q", said)
	}
	if err := os.WriteFile(filepath.Join(dir, "held"), []byte("node-1"), 0o600); err != nil {
		t.Fatal(err)
	}
	startRun(t, dir, nil, "--report", file, "--holder", "h", "--wait", "0s", "--", "true").mustEnd(exitNotWon)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var last, lost runReport
	if err := errors.Join(json.Unmarshal([]byte(lines[adviceFrom]), &last), json.Unmarshal([]byte(lines[adviceFrom+1]), &lost)); err != nil {
		t.Fatal(err)
	}
	if last.Token != 2 || last.Exit != 5 || last.Lock != "test://"+dir || last.Holder != "h" || last.Held <= 0 || time.Since(last.Time) > time.Minute {
		t.Errorf("the report has %+v", last)
	}
	if lost.Token != 0 || lost.Exit != exitNotWon {
		t.Errorf("the report of a lock that was not won is %+v", lost)
	}
	if err := os.Remove(filepath.Join(dir, "held")); err != nil {
		t.Fatal(err)
	}
	startRun(t, dir, nil, "--wait", "0s", "--", "true").mustEnd(0)
	startRun(t, dir, nil, "--lock", "test:///nowhere/at/all", "--report", "/nowhere/at/all", "--", "true").mustEnd(exitRunFailed)
}

func TestAdvice(t *testing.T) {
	held := func(d time.Duration) []time.Duration { return slices.Repeat([]time.Duration{d}, adviceFrom) }
	for _, test := range []struct {
		ttl  time.Duration
		held []time.Duration
		want string
	}{
		{30 * time.Second, held(time.Second)[1:], ""},
		{30 * time.Second, held(5 * time.Second), ""},
		{30 * time.Second, held(time.Minute), "--ttl 3m "},
		{30 * time.Second, held(time.Second), "--ttl 5s instead of 30s"},
		{5 * time.Second, held(time.Millisecond), ""},
		{3 * time.Hour, held(10 * time.Minute), "--ttl 30m instead"},
		{time.Hour, append(held(time.Second), slices.Repeat([]time.Duration{time.Second}, 80)...), "--ttl 5s instead of 1h0m0s"},
	} {
		if got := advice(test.ttl, test.held); (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("TTL %s, held %s: %q, want %q", test.ttl, test.held[0], got, test.want)
		}
	}
}
