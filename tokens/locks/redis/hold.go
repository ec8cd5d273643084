package redis

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/internal/node"
)

// renewScript answers {"1"} if the lock is ours still.
const renewScript = `
local had = redis.call('GET', KEYS[1])
if not had or not string.find(had, ' ' .. ARGV[1] .. ' ', 1, true) then
	return {'0'}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'1'}`

// releaseScript answers {"1"} if the lock was ours, also where it was released before and the answer was lost.
const releaseScript = `
local mine = ' ' .. ARGV[1] .. ' '
local had = redis.call('GET', KEYS[1])
if had and string.find(had, mine, 1, true) then
	redis.call('DEL', KEYS[1])
	redis.call('SET', KEYS[3], had)
	return {'1'}
end
local released = redis.call('GET', KEYS[3])
if released and string.find(released, mine, 1, true) then
	return {'1'}
end
return {'0'}`

// A hold is a lock that was taken. Redis knows whether it still stands.
type hold struct {
	s        *Service
	id       string
	ttl      time.Duration
	token    tokens.Token
	over     bool
	released atomic.Bool
}

func (h *hold) Token() tokens.Token { return h.token }
func (h *hold) TakenOver() bool     { return h.over }

func (h *hold) Renew(ctx context.Context) error {
	return h.mine(ctx, renewScript, node.Millis(h.ttl.Milliseconds()))
}

func (h *hold) Release(ctx context.Context) error {
	if h.released.Load() {
		return nil
	}
	err := h.mine(ctx, releaseScript)
	if err == nil {
		h.released.Store(true)
	}
	return err
}

func (h *hold) mine(ctx context.Context, script string, args ...string) error {
	answer, err := h.s.eval(ctx, script, 1, append([]string{h.id}, args...)...)
	if err != nil {
		return err
	}
	if answer[0] != "1" {
		return fmt.Errorf("%w: %s in redis at %s has run out, or was removed", locks.ErrLost, h.s.keys[0], h.s.client.Address())
	}
	return nil
}
