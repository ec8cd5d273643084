package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// A scene is a story with a process of two (a shell and its child), which ends as the test has it.
type scene struct {
	dir  string
	pids []int
}

func (sc *scene) play(ctx context.Context, s *Stage) error {
	sc.dir = s.Dir
	p, err := s.Start("sleeper", exec.Command("sh", "-c", "sleep 1000 & echo child $!; wait"))
	if err != nil {
		return err
	}
	child, err := p.Expect(ctx, patience, "child")
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(child)
	sc.pids = []int{p.PID, pid}
	return errors.Join(err, p.Pause()) // also one that stands still has to go
}

// gone fails if something of the scene is left.
func (sc *scene) gone(t *testing.T) {
	t.Helper()
	if len(sc.pids) != 2 {
		t.Fatalf("the scene has not been played: %v", sc.pids)
	}
	for _, pid := range sc.pids { // an orphan is reaped by others, when they come to it
		for deadline := time.Now().Add(patience); !ended(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d is left", pid)
			}
		}
	}
	if _, err := os.Stat(sc.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}

// ended says that a process has ended, reaped or not.
func ended(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestNothingIsLeft(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	failed := errors.New("it did not come out as it says")
	for name, c := range map[string]struct {
		end  func(ctx context.Context) error
		want string
	}{
		"after the end":  {func(context.Context) error { return nil }, ""},
		"after an error": {func(context.Context) error { return failed }, failed.Error()},
		"after Ctrl-C": {func(ctx context.Context) error {
			_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
			<-ctx.Done()
			return context.Cause(ctx)
		}, "cut short: interrupt"},
		"after SIGTERM": {func(ctx context.Context) error {
			_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
			<-ctx.Done()
			return nil
		}, "cut short: terminated"},
	} {
		t.Run(name, func(t *testing.T) {
			var sc scene
			err := Play(context.Background(), Options{Out: &bytes.Buffer{}}, func(ctx context.Context, s *Stage) error {
				if err := sc.play(ctx, s); err != nil {
					return err
				}
				return c.end(ctx)
			})
			if c.want == "" && err != nil || err != nil && !strings.Contains(err.Error(), c.want) || c.want != "" && err == nil {
				t.Errorf("it ended with %v, not %q", err, c.want)
			}
			sc.gone(t)
		})
	}
	t.Run("after a panic", func(t *testing.T) {
		var sc scene
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = Play(context.Background(), Options{Out: &bytes.Buffer{}}, func(ctx context.Context, s *Stage) error {
				if err := sc.play(ctx, s); err != nil {
					return err
				}
				panic("a fault of the story")
			})
		}()
		sc.gone(t)
	})
	t.Run("when nobody reads on", func(t *testing.T) {
		var sc scene
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		defer w.Close()
		err = Play(context.Background(), Options{Out: w}, func(ctx context.Context, s *Stage) error {
			if err := sc.play(ctx, s); err != nil {
				return err
			}
			s.Title("once upon a time")
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, syscall.EPIPE) {
			t.Errorf("it ended with %v", err)
		}
		sc.gone(t)
	})
}

// TestAfterTheEnd: what a goroutine of the story starts too late does not start.
func TestAfterTheEnd(t *testing.T) {
	var late *Stage
	if err := Play(context.Background(), Options{Out: &bytes.Buffer{}}, func(_ context.Context, s *Stage) error { late = s; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Start("late", exec.Command("sleep", "1000")); err == nil {
		t.Error("a process was started after the end")
	}
}

// TestFailures: a process that ends too early, says something else, or nothing, is told with its last words.
func TestFailures(t *testing.T) {
	start := func(t *testing.T, s *Stage, script string) *Process {
		t.Helper()
		p, err := s.Start("worker 1", exec.Command("sh", "-c", script))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	says := func(t *testing.T, err error, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not say %q", err, part)
			}
		}
	}
	err := Play(context.Background(), Options{Out: &bytes.Buffer{}}, func(ctx context.Context, s *Stage) error {
		_, err := start(t, s, "echo the disk is full >&2; exit 3").Expect(ctx, patience, "locked")
		says(t, err, "worker 1", "exit status 3", "the disk is full")
		_, err = start(t, s, "echo refused 412; exec sleep 1000").Expect(ctx, patience, "locked")
		says(t, err, "worker 1", `"locked"`, `"refused 412"`)
		_, err = start(t, s, "exec sleep 1000").Expect(ctx, 50*time.Millisecond, "locked")
		says(t, err, "worker 1", "said nothing for 50ms")
		says(t, start(t, s, "exit 4").Wait(ctx), "exit status 4")
		p := start(t, s, "printf 'locked 34\nread ann'; printf ' bob\n'")
		token, err := p.Expect(ctx, patience, "locked")
		read, err2 := p.Expect(ctx, patience, "read")
		if err := errors.Join(err, err2, p.Wait(ctx)); err != nil || token != "34" || read != "ann bob" {
			t.Errorf("%q, %q, %v", token, read, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestEnvironment: what would lead servers and clients of a demo elsewhere does not reach them.
func TestEnvironment(t *testing.T) {
	for _, name := range []string{"ETCDCTL_ENDPOINTS", "ETCD_LOCK_REV", "REDISCLI_AUTH", "PGHOST", "FENCE_TOKEN"} {
		t.Setenv(name, "foreign")
	}
	t.Setenv("FENCEPROXY_TEST", "ours")
	got := "\n" + strings.Join(environment("NAME=worker-1"), "\n") + "\n"
	if strings.Contains(got, "foreign") || !strings.Contains(got, "\nFENCEPROXY_TEST=ours\n") || !strings.HasSuffix(got, "\nNAME=worker-1\n") {
		t.Errorf("the environment is %s", got)
	}
}

// TestNeed: where something is missing, the line that installs it is told.
func TestNeed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := (&Stage{}).Need("redis-server", "redis-cli", "curl")
	if err == nil || !strings.HasSuffix(err.Error(), "\n  apt-get install -y --no-install-recommends redis-server redis-tools curl") {
		t.Errorf("it says %v", err)
	}
	if err := (&Stage{}).Need(); err != nil {
		t.Error(err)
	}
}
