package demo

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A round is what was seen in one: the tokens of the two holders, and how long after the first one's end or pause the second had the lock.
type round struct {
	first, second uint64
	after         time.Duration
}

// killedHolder is the round in which the holder is killed before it writes.
func (s *Stage) killedHolder(ctx context.Context, c *crew, ttl time.Duration, o object) (round, error) {
	r, _, err := s.holders(ctx, c, ttl, o, func(first *worker) error {
		first.Kill()
		return nil
	})
	return r, err
}

// pausedHolder is the round in which it is stopped before it writes, and woken when the next one has written. It fails if its late write does
// not win in a directory, or is not refused behind a proxy.
func (s *Stage) pausedHolder(ctx context.Context, c *crew, ttl time.Duration, o object) (round, error) {
	r, first, err := s.holders(ctx, c, ttl, o, func(first *worker) error { return first.Pause() })
	if err != nil {
		return r, err
	}
	if err := first.Resume(); err != nil {
		return r, err
	}
	late, err := first.finish(ctx)
	if err != nil {
		return r, err
	}
	first.Kill() // it would now release a lock that it does not have
	state, err := o.read(ctx)
	switch {
	case err != nil:
		return r, err
	case !o.fenced() && (late.Word != "wrote" || state != afterFirst):
		return r, fmt.Errorf("the late write was to win in the directory, but the worker %s, and the object is %q", late.Word, state)
	case !o.fenced():
		return r, nil
	}
	if said := fmt.Sprintf("token %d is below %d", r.first, r.second); late.Word != "refused" || state != afterSecond || !strings.Contains(late.Rest, said) {
		return r, fmt.Errorf("the late write was to be refused with %q, but the worker %s: %s; the object is %q", said, late.Word, late.Rest, state)
	}
	return r, nil
}

// slack is for what a busy machine adds to a takeover.
const slack = 5 * time.Second

// holders has the first worker taken out when the second waits for its lock, and the second take it, write, and release it.
func (s *Stage) holders(ctx context.Context, c *crew, ttl time.Duration, o object, out func(*worker) error) (r round, first *worker, err error) {
	if err := o.write(ctx, before); err != nil {
		return r, nil, err
	}
	if first, err = s.hire(c, "worker 1", "bob", o.where, ttl); err != nil {
		return r, nil, err
	}
	token1, _, err := first.locked(ctx)
	if err != nil {
		return r, nil, err
	}
	second, err := s.hire(c, "worker 2", "carol", o.where, ttl)
	if err != nil {
		return r, nil, err
	}
	if _, err := second.Expect(ctx, patience, "waiting"); err != nil {
		return r, nil, err
	}
	at := time.Now()
	if err := out(first); err != nil {
		return r, nil, err
	}
	token2, _, err := second.locked(ctx)
	if err != nil {
		return r, nil, err
	}
	r.after = time.Since(at)
	if r.first, r.second, err = growing(token1, token2); err != nil {
		return r, nil, err
	}
	if r.after > 2*ttl+slack {
		return r, nil, fmt.Errorf("the next holder was to have the lock after about %s, and had it after %s", ttl, seconds(r.after))
	}
	e, err := second.finish(ctx)
	if err == nil && e.Word != "wrote" {
		err = fmt.Errorf("worker 2 has the lock, and was refused: %s", e.Rest)
	}
	if err != nil {
		return r, nil, err
	}
	return r, first, second.Wait(ctx)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
