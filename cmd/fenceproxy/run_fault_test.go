package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A lateSignal is a lock whose holder gets a SIGTERM when it has been won: as the first thing that is asked of it is its token.
type lateSignal struct {
	folderLock
	send func()
}

func (l lateSignal) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	h, err := l.folderLock.Acquire(ctx, r)
	return lateHold{h, l.send}, err
}

type lateHold struct {
	locks.Hold
	send func()
}

func (h lateHold) Token() tokens.Token {
	h.send()
	return h.Hold.Token()
}

func testRunner(s locks.Service) *runner {
	r := &runner{options: runOptions{ttl: time.Second, wait: time.Minute, onLost: "term"}, command: []string{"true"}, lock: "test", service: s, log: newRunLog(io.Discard)}
	r.options.holder = "h"
	r.report = newRunReport(r)
	return r
}

// TestRunSignalWhenWon: a signal that comes after the lock was won and before the command is there ends run; it is not swallowed.
func TestRunSignalWhenWon(t *testing.T) {
	dir := t.TempDir()
	signals := make(chan os.Signal) // without room: when it is sent, it was taken
	var once sync.Once
	r := testRunner(lateSignal{folderLock{dir}, func() { once.Do(func() { signals <- syscall.SIGTERM }) }})
	if _, err := r.prepare(t.Context(), signals); err == nil || exitCode(err) != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("run goes on after a SIGTERM: %v", err)
	}
	mustBeFree(t, dir)
}

// TestRunSignalAtStart: one that came before run listened ends it, too.
func TestRunSignalAtStart(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as main has it
	if err := testRunner(folderLock{dir}).run(ctx); err == nil || exitCode(err) != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("run goes on after a signal: %v", err)
	}
	mustBeFree(t, dir)
}

// TestRunNobodyReads: run ends the command for a lost lock also when nobody reads its words any more.
func TestRunNobodyReads(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "run", "--lock", "test://"+dir, "--ttl", "1s", "--", "sh", "-c", "trap 'touch "+filepath.Join(dir, "ended")+"; exit' TERM; touch "+filepath.Join(dir, "ready")+"; sleep 60 >/dev/null 2>&1 & wait")
	cmd.Env, cmd.Stderr = append(os.Environ(), asProgram+"=1"), write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	_ = read.Close()
	waitFor(t, filepath.Join(dir, "ready"))
	touch(t, dir, "lost")
	_ = cmd.Wait()
	if code := codeOf(cmd.ProcessState); code != exitLockLost {
		t.Errorf("it ended with %d", code)
	}
	waitFor(t, filepath.Join(dir, "ended"))
}

// TestRunLostLeftBehind: what a script has started does not outlive the SIGKILL of a lost lock, though the script has ended with the SIGTERM.
func TestRunLostLeftBehind(t *testing.T) {
	dir := t.TempDir()
	exe, _ := os.Executable()
	r := startRun(t, dir, nil, "--kill-after", "300ms", "--", "sh", "-c", "FENCEPROXY_TEST_STUBBORN=1 "+exe+" & wait")
	r.line()
	touch(t, dir, "lost")
	began := time.Now()
	r.mustEnd(exitLockLost) // reads what it prints until nobody has its standard output any more; it would be a minute
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("what the command had started went on for %s", took)
	}
}

func waitFor(t *testing.T, file string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s never came", file)
		}
	}
}

// TestRunNohup: a signal that run was started without an ear for does not reach the command by way of run.
func TestRunNohup(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `trap "" HUP; exec "$0" "$@"`, exe, "run", "--lock", "test://"+dir, "--ttl", "1s", "--", "sh", "-c", "kill -HUP $PPID; sleep 0.3; echo alive")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != "alive" {
		t.Errorf("%v: %q", err, out)
	}
}

// TestLockURLSaysNoPassword: neither the URL that is shown nor an error has a piece of a password in it, wherever in the URL it stands.
func TestLockURLSaysNoPassword(t *testing.T) {
	for _, text := range []string{
		"redis://:hunter2@127.0.0.1/n", "redis://:hunter2/x@127.0.0.1/n", "redis://u:hunter2#x@127.0.0.1/n", "redis://u:hunter2?x@127.0.0.1/n", "redis://u:%hunter2@127.0.0.1/n",
		"zookeeper://u:12#hunter2@h/n", "consul://:12#hunter2@h/n", "gopher://h/n?password=hunter2",
		"postgres://u@127.0.0.1/db/n?password=hunter2", "postgres://u@127.0.0.1/db/n?sslmode=disable&sslpassword=hunter2&password=hunter2",
	} {
		s, shown, err := openLock(text)
		if said := fmt.Sprint(shown, err); strings.Contains(said, "hunter2") {
			t.Errorf("%s: %s", text, said)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}
