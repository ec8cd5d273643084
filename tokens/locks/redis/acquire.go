package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/internal/node"
)

// acquireScript answers {"1", token, who released}, or {"0", who has it, for how many milliseconds still}. Numbers travel as texts, for those
// of Lua are exact up to 2^53 only. The counter is raised first: what follows may fail, and a number that nobody has had does no harm.
// An id that has the lock already is given the same answer again: its first one may have been lost.
const acquireScript = `
local had = redis.call('GET', KEYS[1])
if had then
	if not string.find(had, ' ' .. ARGV[1] .. ' ', 1, true) then
		return {'0', had, tostring(redis.call('PTTL', KEYS[1]))}
	end
	redis.call('PEXPIRE', KEYS[1], ARGV[3])
	return {'1', string.match(had, '^%d+'), 'again'}
end
local before = redis.call('GET', KEYS[2]) or ''
local released = redis.call('GET', KEYS[3]) or ''
redis.call('INCR', KEYS[2])
local token = redis.call('GET', KEYS[2])
redis.call('SET', KEYS[1], token .. ' ' .. ARGV[1] .. ' ' .. ARGV[4] .. ' ' .. ARGV[2], 'PX', ARGV[3])
if before == '' or before == string.match(released, '^%d+') then
	return {'1', token, 'released'}
end
return {'1', token, 'taken over'}`

// How long to wait before it is asked again: short at first, and never long, for nobody tells us of a release.
const (
	firstPoll = 20 * time.Millisecond
	lastPoll  = 500 * time.Millisecond
)

// Acquire implements [locks.Service]. It asks again and again, in no order with others who wait. Once the server has answered, one that
// cannot be reached is waited for as long as the TTL.
func (s *Service) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if r.TTL < time.Millisecond {
		return nil, fmt.Errorf("a lock in Redis lasts for a millisecond at least, not %s", r.TTL)
	}
	w := waiter{s: s, r: r, id: rand.Text()}
	hold, err := w.wait(ctx)
	if err != nil && w.maybe {
		w.withdraw(ctx)
	}
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return hold, err
}

// A waiter is one call of Acquire.
type waiter struct {
	s     *Service
	r     locks.Request
	id    string
	told  string // of whom Waiting was told last
	maybe bool   // the lock may have been taken
}

func (w *waiter) wait(ctx context.Context) (locks.Hold, error) {
	var heard time.Time // when the server answered last
	for poll := firstPoll; ; poll = min(2*poll, lastPoll) {
		answer, err := w.ask(ctx)
		w.maybe = w.maybe || !node.Refused(err) && (err != nil || answer[0] == "1")
		switch {
		case err != nil && (node.Refused(err) && !node.Passes(err) || ctx.Err() != nil || time.Since(heard) > w.r.TTL):
			return nil, err
		case err == nil && answer[0] == "1":
			return w.won(answer)
		case err == nil:
			heard = time.Now()
			w.tell(answer[1])
			poll = min(poll, left(answer[2]))
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(poll/2 + mathrand.N(poll/2)):
		}
	}
}

// ask does not end with ctx at once: where the answer comes soon, it is known what is to be taken back.
func (w *waiter) ask(ctx context.Context) ([]string, error) {
	ctx, cancel := lingering(ctx)
	defer cancel()
	return w.s.eval(ctx, acquireScript, 3, w.id, w.r.Holder, node.Millis(w.r.TTL.Milliseconds()), node.Millis(time.Now().UnixMilli()))
}

// lingering ends half a second after ctx.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-later.Done():
		case <-time.After(500 * time.Millisecond):
			cancel(context.Cause(ctx))
		}
	})
	return later, func() { stop(); cancel(nil) }
}

// left is how long a lock lasts still, at least a little; one that never runs out ("-1") lasts long.
func left(text string) time.Duration {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || ms > lastPoll.Milliseconds() {
		return lastPoll
	}
	return 2 * (time.Duration(ms)*time.Millisecond + 2*time.Millisecond) // of which at least the half is waited for
}

func (w *waiter) won(answer []string) (locks.Hold, error) {
	token, err := strconv.ParseInt(answer[1], 10, 64)
	if err != nil || token < 1 {
		return nil, fmt.Errorf("the counter %s of redis at %s stands at %q, which is no token: set it above all tokens that were used", w.s.keys[1], w.s.client.Address(), answer[1])
	}
	return &hold{s: w.s, id: w.id, ttl: w.r.TTL, token: tokens.Token(token), over: answer[2] == "taken over"}, nil
}

func (w *waiter) tell(value string) {
	if w.r.Waiting == nil || value == w.told {
		return
	}
	w.told = value
	w.r.Waiting(node.Other(value))
}

// withdraw takes back what may have been taken. If that fails, too, it runs out.
func (w *waiter) withdraw(ctx context.Context) {
	ctx, cancel := detached(ctx, w.r.TTL)
	defer cancel()
	_, _ = w.s.eval(ctx, releaseScript, 1, w.id)
}
