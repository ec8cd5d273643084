package demo

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// scripts are the workers that are no program of ours.
//
//go:embed scripts
var scripts embed.FS

// A crew makes the workers of a story, which all use one lock.
type crew struct {
	lock    string // as it is told
	command func() *exec.Cmd
	env     []string // of every worker, beside its own
}

// ownLock is the lock of a proxy on an object.
func (s *Stage) ownLock(p *Proxy) string { return "fence://" + p.Address + "/demo/orders" }

// program is a crew of this program, with the lock of a URL.
func (s *Stage) program(lock string, ttl time.Duration) (*crew, error) {
	service, shown, err := s.options.OpenLock(lock)
	if err != nil {
		return nil, fmt.Errorf("--lock: %w", err)
	}
	return &crew{
		lock:    shown,
		command: func() *exec.Cmd { return exec.Command(s.options.Program, "demo", "worker") },
		env:     []string{"LOCK=" + lock, "TTL=" + ttl.String()},
	}, service.Close()
}

// etcdctl is a crew of scripts that are run by `etcdctl lock`.
func (s *Stage) etcdctl(e *Etcd, ttl time.Duration) (*crew, error) {
	return &crew{
		lock: fmt.Sprintf("etcdctl lock orders --ttl=%.0f -- sh worker.sh", ttl.Seconds()),
		command: func() *exec.Cmd {
			return exec.Command("etcdctl", "--endpoints", e.Endpoint, "lock", "orders", fmt.Sprintf("--ttl=%.0f", ttl.Seconds()), "--", "sh", s.Path("worker.sh"))
		},
	}, s.unpack()
}

// redisCLI is a crew of scripts that take a Redis lock with redis-cli.
func (s *Stage) redisCLI(r *Redis, ttl time.Duration) (*crew, error) {
	return &crew{
		lock:    fmt.Sprintf("redis-cli EVAL: SET NX PX %d and INCR in one script", ttl.Milliseconds()),
		command: func() *exec.Cmd { return exec.Command("sh", s.Path("redis.sh")) },
		env:     []string{fmt.Sprintf("REDIS_PORT=%d", r.Port), fmt.Sprintf("TTL_MS=%d", ttl.Milliseconds())},
	}, s.unpack()
}

// unpack writes the scripts into the stage's folder.
func (s *Stage) unpack() error {
	for _, name := range []string{"worker.sh", "redis.sh"} {
		text, err := scripts.ReadFile("scripts/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.Path(name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// A worker is a process of a crew.
type worker struct {
	*Process
	worked string // the file that ends its work
	wait   time.Duration
}

// hire starts a worker that adds a word to an object.
func (s *Stage) hire(c *crew, name, add, store string, ttl time.Duration) (*worker, error) {
	hyphened := strings.ReplaceAll(name, " ", "-")
	dir, err := os.MkdirTemp(s.Dir, hyphened+"-")
	if err != nil {
		return nil, err
	}
	w := &worker{worked: filepath.Join(dir, "worked"), wait: 2*ttl + patience}
	cmd := c.command()
	cmd.Env = append(environment(c.env...), "NAME="+hyphened, "ADD="+add, "STORE="+store, "WORKED="+w.worked)
	w.Process, err = s.Start(name, cmd)
	return w, err
}

// locked waits until the worker has the lock and has read the object.
func (w *worker) locked(ctx context.Context) (token, state string, err error) {
	e, err := w.Read(ctx, w.wait)
	for err == nil && e.Word == "waiting" {
		e, err = w.Read(ctx, w.wait)
	}
	if err == nil && e.Word != "locked" {
		err = fmt.Errorf("%s was to get the lock, and said %q", w.Name, e.Word+" "+e.Rest)
	}
	if err != nil {
		return "", "", err
	}
	token = e.Rest
	state, err = w.Expect(ctx, patience, "read")
	return token, state, err
}

// finish ends its work, and returns when it has written, or was refused. The lock it lets go by itself.
func (w *worker) finish(ctx context.Context) (Event, error) {
	if err := os.WriteFile(w.worked, nil, 0o600); err != nil {
		return Event{}, err
	}
	e, err := w.Read(ctx, patience)
	if err == nil && e.Word != "wrote" && e.Word != "refused" {
		err = fmt.Errorf("%s was to write, and said %q", w.Name, e.Word+" "+e.Rest)
	}
	return e, err
}
