package redlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/internal/node"
)

// renewScript answers {"1"} if the lock is ours still, and nobody has raised the counter above our token.
const renewScript = `
local had = redis.call('GET', KEYS[1])
if not had or not string.find(had, ' ' .. ARGV[1] .. ' ', 1, true) then
	return {'0'}
end
local counter, token = redis.call('GET', KEYS[2]) or '0', ARGV[2]
if #counter > #token or (#counter == #token and counter > token) then
	return {'0'}
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'1'}`

// releaseScript answers {"1"} if the lock was ours.
const releaseScript = `
local had = redis.call('GET', KEYS[1])
if not had or not string.find(had, ' ' .. ARGV[1] .. ' ', 1, true) then
	return {'0'}
end
redis.call('DEL', KEYS[1])
return {'1'}`

// A hold is a lock that was taken on a majority.
type hold struct {
	s     *Service
	id    string
	ttl   time.Duration
	token tokens.Token

	mu   sync.Mutex // guards done
	done []bool     // which servers have said that they released it
}

func (h *hold) Token() tokens.Token { return h.token }

// TakenOver is not known: of who was there before, no majority tells.
func (h *hold) TakenOver() bool { return false }

func (h *hold) Renew(ctx context.Context) error {
	answers := h.s.each(ctx, patience(h.ttl), every, renewScript, 1, h.id, node.Millis(int64(h.token)), node.Millis(h.ttl.Milliseconds()))
	return h.verdict(ctx, answers, count(answers, answer.yes))
}

func (h *hold) Release(ctx context.Context) error {
	h.mu.Lock()
	done := slices.Clone(h.done)
	h.mu.Unlock()
	answers := h.s.each(ctx, patience(h.ttl), func(i int) bool { return !done[i] }, releaseScript, 1, h.id)
	h.mu.Lock()
	defer h.mu.Unlock()
	released := 0
	for i, a := range answers {
		h.done[i] = h.done[i] || a.yes()
		if h.done[i] {
			released++
		}
	}
	return h.verdict(ctx, answers, released)
}

// verdict is nil with a majority of yes, and ErrLost where there cannot be one any more.
func (h *hold) verdict(ctx context.Context, answers []answer, yes int) error {
	switch no := count(answers, answer.no); {
	case yes >= h.s.majority:
		return nil
	case no > len(h.s.nodes)-h.s.majority:
		return fmt.Errorf("%w: %s is no longer ours on %d of %d Redis servers", locks.ErrLost, h.s.keys[0], no, len(h.s.nodes))
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("%d of %d Redis servers say that %s is ours, and a majority is needed:\n%w", yes, len(h.s.nodes), h.s.keys[0], trouble(answers))
}
