package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	fencelock "github.com/fenceproxy/fenceproxy/tokens/locks/fence"
)

// announceAgain is the time between two attempts while older writes settle.
const announceAgain = time.Second

// raise announces the token to the proxy, for as long as the lock is ours and --wait allows.
func (r *runner) raise(ctx context.Context, g *locks.Grant) error {
	if r.options.announce == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, max(r.options.wait, r.options.ttl))
	defer cancel()
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	go func() {
		select {
		case <-g.Lost():
			lost(g.Err())
		case <-ctx.Done():
		}
	}()
	resource, err := announce(ctx, r.proxy, r.options.announce, g.Token(), g.Holder())
	if err != nil {
		return fmt.Errorf("--announce %s: %w", r.options.announce, err)
	}
	if r.options.resource == "" {
		r.options.resource = resource
	}
	return nil
}

// announce raises the fence of bucket/key. It comes back while older writes are on their way.
func announce(ctx context.Context, p *fencelock.Proxy, where string, t tokens.Token, holder string) (resource string, err error) {
	bucket, key, _ := strings.Cut(where, "/")
	for {
		resource, err := p.Announce(ctx, bucket, key, t, holder)
		var refused *fencelock.Refusal
		if !errors.As(err, &refused) {
			return resource, err
		}
		if refused.Name != "WaitingForOlderWrite" {
			return "", explainRefusal(refused, t)
		}
		select {
		case <-time.After(announceAgain):
		case <-ctx.Done():
			return "", fmt.Errorf("%w; last the proxy said: %w", context.Cause(ctx), err)
		}
	}
}

// explainRefusal says what the refusal of a token that has just been issued means: the lock and the fence do not agree, and it is not this
// holder that is late.
func explainRefusal(e *fencelock.Refusal, t tokens.Token) error {
	switch e.Name {
	case "StaleToken":
		return fmt.Errorf("%w. The lock has only just given token %d, so its counter has gone back (a service restored, restarted without its data, "+
			"or set up anew), or another lock is used for the same keys. Set the counter above the highest token (docs/locks.md says how for "+
			"each service), then run this again", e, t)
	case "TokenConflict":
		return fmt.Errorf("%w. The lock has given token %d to two holders: it has lost its last hand-over, as a failover to a replica does that had "+
			"not heard of it. Run this again: the next token is higher", e, t)
	case "TokenTooFar":
		return fmt.Errorf("%w. If this lock is new for these keys, raise the fence by hand: fenceproxy fences raise", e)
	}
	return e
}
