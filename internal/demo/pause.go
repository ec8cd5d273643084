package demo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// PauseOptions say which lock the workers of [Pause] take.
type PauseOptions struct {
	// Lock is the URL of a lock, or "etcdctl" or "redis-cli" for workers that are shell scripts, with a server of their own. "" is the
	// lock of the proxy itself.
	Lock string
	TTL  time.Duration // of the lock: from 1 s to 20 s, in whole seconds
}

// Pause is the story of the paused writer: once straight to a directory, where the newer object is lost, and once through fenceproxy, where
// the older write is refused.
func Pause(ctx context.Context, o Options, p PauseOptions) error {
	if p.TTL < time.Second || p.TTL > 20*time.Second || p.TTL%time.Second != 0 {
		return fmt.Errorf("--ttl %s: it is from 1s to 20s, in whole seconds", p.TTL)
	}
	return Play(ctx, o, func(ctx context.Context, s *Stage) error {
		proxy, crew, err := s.pauseCast(ctx, p)
		if err != nil {
			return err
		}
		s.Title("A lock, two workers, one pause")
		s.Text("Each worker takes a lock, reads the list of orders, adds one, and writes it back. The first is stopped in the middle by SIGSTOP, "+
			"as a long garbage collection or a frozen virtual machine would stop it. The lock (TTL %s): %s", p.TTL, crew.lock)
		s.Act("1 · Straight to the store: a directory, write and rename")
		if err := s.unfenced(ctx, crew, p.TTL); err != nil {
			return err
		}
		s.Act("2 · Through fenceproxy, over a directory: the same workers, each write with its token")
		if err := s.fenced(ctx, proxy, crew, p.TTL); err != nil {
			return err
		}
		s.Verdict("Shown: the lock alone let the late write win, and a newer one was lost. With its token the late write was refused.")
		return nil
	})
}

// pauseCast starts what the story needs.
func (s *Stage) pauseCast(ctx context.Context, p PauseOptions) (proxy *Proxy, c *crew, err error) {
	switch p.Lock {
	case "etcdctl":
		err = s.Need("etcd", "etcdctl", "curl")
	case "redis-cli":
		err = s.Need("redis-server", "redis-cli", "curl")
	case "":
	default:
		c, err = s.program(p.Lock, p.TTL)
	}
	if err != nil {
		return nil, nil, err
	}
	if proxy, err = s.Proxy(ctx); err != nil {
		return nil, nil, err
	}
	switch p.Lock {
	case "etcdctl":
		var e *Etcd
		if e, err = s.Etcd(ctx); err == nil {
			c, err = s.etcdctl(e, p.TTL)
		}
	case "redis-cli":
		var r *Redis
		if r, err = s.Redis(ctx); err == nil {
			c, err = s.redisCLI(r, p.TTL)
		}
	case "":
		if c, err = s.program(s.ownLock(proxy), p.TTL); err == nil {
			c.lock += ", the proxy's own"
		}
	}
	return proxy, c, err
}

// A pausedWrite is how one round of the story went.
type pausedWrite struct {
	first, second uint64 // the tokens
	late          Event  // what became of the first worker's write
	state         string // of the object, after it
}

// What is in the object at first, and after each of the workers alone.
const (
	before      = "ann"
	afterFirst  = "ann bob"
	afterSecond = "ann carol"
)

// unfenced is the round in a directory. It fails if the newer object is not lost.
func (s *Stage) unfenced(ctx context.Context, c *crew, ttl time.Duration) error {
	o := object{where: s.Path("orders"), holder: "demo"}
	w, err := s.pausedWriter(ctx, c, ttl, o)
	if err != nil {
		return err
	}
	if w.late.Word != "wrote" || w.state != afterFirst {
		return fmt.Errorf("the late write was to win in the directory, but the worker %s, and the orders are %q", w.late.Word, w.state)
	}
	s.Say("worker 1", "writes: %s", w.late.Rest)
	s.Alarm("store", "%s — carol's order is lost, and nobody was told", w.state)
	return nil
}

// fenced is the round through the proxy. It fails if the late write is not refused.
func (s *Stage) fenced(ctx context.Context, p *Proxy, c *crew, ttl time.Duration) error {
	w, err := s.pausedWriter(ctx, c, ttl, object{where: p.URL + "/demo/orders"})
	if err != nil {
		return err
	}
	if w.late.Word != "refused" || w.state != afterSecond {
		return fmt.Errorf("the late write was to be refused, but the worker %s, and the orders are %q", w.late.Word, w.state)
	}
	s.Relief("worker 1", "is refused. It gets: %s", w.late.Rest)
	s.Relief("store", "%s — carol's order stands, and worker 1 knows that it has to begin again", w.state)
	table, err := p.Audit(ctx, "--code", "StaleToken")
	if err != nil {
		return err
	}
	s.Quote("$ fenceproxy audit --code StaleToken\n" + withoutDetail(table))
	if said := fmt.Sprintf("token %d is below %d", w.first, w.second); !strings.Contains(w.late.Rest, said) || !strings.Contains(table, said) {
		return fmt.Errorf("the refusal and the audit log were to say %q", said)
	}
	return nil
}

// withoutDetail leaves out the last column of the audit log's table, which says what the worker was told, and is too wide.
func withoutDetail(table string) string {
	column := strings.Index(table, "DETAIL")
	lines := strings.SplitAfter(table, "\n")
	for i, line := range lines {
		if column >= 0 && len(line) > column {
			lines[i] = line[:column] + "…\n"
		}
	}
	return strings.Join(lines, "")
}

// pausedWriter is one round: the first worker is paused between its read and its write, until the second has had the lock and written.
func (s *Stage) pausedWriter(ctx context.Context, c *crew, ttl time.Duration, o object) (r pausedWrite, err error) {
	if err := o.write(ctx, before); err != nil {
		return r, err
	}
	first, err := s.hire(c, "worker 1", "bob", o.where, ttl)
	if err != nil {
		return r, err
	}
	token1, read, err := first.locked(ctx)
	if err != nil {
		return r, err
	}
	s.Say("worker 1", "has the lock, token %s, and reads: %s", token1, read)
	if err := first.Pause(); err != nil {
		return r, err
	}
	s.Say("demo", "SIGSTOP to worker 1, process %d: it no longer renews its lock, and cannot know", first.PID)

	token2, err := s.takeover(ctx, c, ttl, o)
	if err != nil {
		return r, err
	}
	if r.first, r.second, err = growing(token1, token2); err != nil {
		return r, err
	}

	if err := first.Resume(); err != nil {
		return r, err
	}
	s.Say("demo", "SIGCONT to worker 1: it goes on where it was, and does not look at its lock again")
	s.Why("To look would not help: the next pause may come right after the look.")
	if r.late, err = first.finish(ctx); err != nil {
		return r, err
	}
	first.Kill() // it would now release a lock that it does not have
	r.state, err = o.read(ctx)
	return r, err
}

// takeover has the second worker wait for the lock, and write.
func (s *Stage) takeover(ctx context.Context, c *crew, ttl time.Duration, o object) (token string, err error) {
	second, err := s.hire(c, "worker 2", "carol", o.where, ttl)
	if err != nil {
		return "", err
	}
	s.Say("worker 2", "wants the lock, and has to wait until it has run out: %s", ttl)
	token, read, err := second.locked(ctx)
	if err != nil {
		return "", err
	}
	s.Say("worker 2", "has the lock, token %s, and reads: %s", token, read)
	s.Why("The lock has to let it in: a holder that is not heard of may be dead.")
	e, err := second.finish(ctx)
	if err != nil {
		return "", err
	}
	if e.Word != "wrote" {
		return "", fmt.Errorf("worker 2 has the lock, and was refused: %s", e.Rest)
	}
	s.Say("worker 2", "writes: %s. It is done, and releases the lock", e.Rest)
	return token, second.Wait(ctx)
}

// growing reads two tokens, the second of which must be the higher one.
func growing(first, second string) (a, b uint64, err error) {
	a, err1 := strconv.ParseUint(first, 10, 63)
	b, err2 := strconv.ParseUint(second, 10, 63)
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, err
	}
	if a >= b {
		return 0, 0, fmt.Errorf("the lock gave token %d to the first worker and %d to the second: they must grow", a, b)
	}
	return a, b, nil
}
