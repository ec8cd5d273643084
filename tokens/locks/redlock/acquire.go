package redlock

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

// lockScript answers {"1", the counter}, or {"0", who has the lock}.
const lockScript = `
local had = redis.call('GET', KEYS[1])
if had then
	return {'0', had}
end
redis.call('SET', KEYS[1], '0 ' .. ARGV[1] .. ' ' .. ARGV[4] .. ' ' .. ARGV[2], 'PX', ARGV[3])
return {'1', redis.call('GET', KEYS[2]) or '0'}`

// raiseScript answers {"1"} if the counter was raised. Numbers are compared as texts without leading zeros: those of Lua are exact up to 2^53 only.
// From then on the lock's value tells the token.
const raiseScript = `
local had = redis.call('GET', KEYS[1])
if not had or not string.find(had, ' ' .. ARGV[1] .. ' ', 1, true) then
	return {'0'}
end
local counter, token = redis.call('GET', KEYS[2]) or '0', ARGV[2]
if #counter > #token or (#counter == #token and counter >= token) then
	return {'0'}
end
redis.call('SET', KEYS[2], token)
redis.call('SET', KEYS[1], token .. string.sub(had, 2), 'PX', math.max(redis.call('PTTL', KEYS[1]), 1))
return {'1'}`

// shortest is the shortest TTL: the tries of others, and our own, take some of it.
const shortest = 100 * time.Millisecond

// How long to wait before the next try: short at first, and never long, for nobody tells us of a release. Where several want it and nobody has it,
// they keep each other from a majority until their waits differ.
const (
	firstPoll = 20 * time.Millisecond
	lastPoll  = 500 * time.Millisecond
)

// Acquire implements [locks.Service]. It tries again and again, in no order with others who wait. Once a majority has answered, one that cannot be
// reached is waited for as long as the TTL.
func (s *Service) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	if r.TTL < shortest {
		return nil, fmt.Errorf("a lock on several Redis servers lasts for %s at least, not %s", shortest, r.TTL)
	}
	var heard time.Time // when a majority answered last
	var told string
	for poll := firstPoll; ; poll = min(2*poll, lastPoll) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		t := try{s: s, r: r, id: rand.Text()}
		hold, err := t.run(ctx)
		switch {
		case hold != nil:
			return hold, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && time.Since(heard) > r.TTL:
			return nil, err
		case err == nil:
			heard = time.Now()
		}
		if t.other == "" {
			poll = firstPoll
		} else if told != t.other && r.Waiting != nil {
			told = t.other
			r.Waiting(node.Other(told))
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll/4 + mathrand.N(poll)):
		}
	}
}

// A try is one to get the lock.
type try struct {
	s     *Service
	r     locks.Request
	id    string
	other string // the value of who has the lock of a majority, and has come by its token
}

// run returns a hold, or nil where the lock is not to be had now, or an error where no majority has answered. What it may have taken is given back.
func (t *try) run(ctx context.Context) (locks.Hold, error) {
	// A try ends soon by itself, and what it has taken is known better if it is not cut short. A pause in the middle of it may let the locks run
	// out; whoever is given the hold renews it first, and learns that.
	detached := context.WithoutCancel(ctx)
	locked := t.s.each(detached, patience(t.r.TTL), every, lockScript, 2, t.id, t.r.Holder, node.Millis(t.r.TTL.Milliseconds()), node.Millis(time.Now().UnixMilli()))
	token, err := t.token(locked)
	if token == 0 || err != nil || ctx.Err() != nil {
		t.withdraw(detached, locked)
		return nil, err
	}
	raised := t.s.each(detached, patience(t.r.TTL), func(i int) bool { return locked[i].yes() }, raiseScript, 1, t.id, node.Millis(int64(token)))
	if count(raised, answer.yes) < t.s.majority || ctx.Err() != nil {
		t.withdraw(detached, locked)
		return nil, t.s.unanswered(raised)
	}
	return &hold{s: t.s, id: t.id, ttl: t.r.TTL, token: token, done: make([]bool, len(t.s.nodes))}, nil
}

// token is the one to raise the counters to, 0 where others have locks that keep us from a majority.
func (t *try) token(locked []answer) (tokens.Token, error) {
	t.other = t.s.holder(locked)
	if count(locked, answer.yes) < t.s.majority {
		return 0, t.s.unanswered(locked)
	}
	var highest int64
	for i, a := range locked {
		if !a.yes() {
			continue
		}
		n, err := strconv.ParseInt(a.texts[1], 10, 64)
		if err != nil || n < 0 || strconv.FormatInt(n, 10) != a.texts[1] || tokens.Token(n) >= tokens.Max {
			return 0, fmt.Errorf("the counter %s of server %d of %d stands at %q, from which no token follows: set it to a number above all tokens that were used",
				t.s.keys[1], i+1, len(t.s.nodes), a.texts[1])
		}
		highest = max(highest, n)
	}
	return tokens.Token(highest + 1), nil
}

// unanswered is an error where those that did not answer are so many that the others are no majority.
func (s *Service) unanswered(answers []answer) error {
	failed := count(answers, func(a answer) bool { return a.err != nil })
	if len(s.nodes)-failed >= s.majority {
		return nil
	}
	return fmt.Errorf("%d of %d Redis servers did not do what they were asked, and a majority is needed:\n%w", failed, len(s.nodes), trouble(answers))
}

// holder is the value that a majority of servers has. One that begins with 0 is of somebody who tries as we do.
func (s *Service) holder(locked []answer) string {
	seen := make(map[string]int)
	for _, a := range locked {
		if !a.no() {
			continue
		}
		value := a.texts[1]
		if seen[value]++; seen[value] >= s.majority && value[:min(2, len(value))] != "0 " {
			return value
		}
	}
	return ""
}

// withdraw gives back what may have been taken. If that fails, too, it runs out.
func (t *try) withdraw(ctx context.Context, locked []answer) {
	t.s.each(ctx, patience(t.r.TTL), func(i int) bool { return locked[i].maybe() }, releaseScript, 1, t.id)
}
