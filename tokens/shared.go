package tokens

import (
	"context"
	"errors"
	"time"
)

// What a fence does because of other instances, where its registry is a [Shared] one.

// freshFor is how long a refusal goes by what memory has, without a grant that would say when it changes: another instance may have reset
// the resource.
const freshFor = time.Second

// yield lets go of a grant that another instance waits for, or a raise of our own: it moves the mark, or binds it, so that nothing older passes any
// more, and waits until what is past the gate has settled. It asks memory for nothing but that: a resource that is not in memory has no write past the gate, whatever
// grants of it are on record.
func (f *Fence) yield(ctx context.Context, rv Revocation) error {
	sh := f.shard(rv.Resource)
	sh.mu.Lock()
	res, known := sh.resources[rv.Resource]
	if !known {
		sh.mu.Unlock()
		return nil
	}
	res.pins++
	reset := rv.Generation > res.generation
	sh.mu.Unlock()
	defer f.unpin(res)
	if reset {
		// Every write from before it has to settle, whatever its token.
		if err := f.hold(ctx, res); err != nil {
			return err
		}
		sh.mu.Lock()
		defer sh.mu.Unlock()
		res.resetting = false
		res.restart(rv.Entry)
		return nil
	}
	for {
		sh.mu.Lock()
		if rv.Generation == res.generation {
			res.advance(rv.Token, rv.Holder)
			res.bind(rv.Token, rv.Holder)
			res.recorded = max(res.recorded, rv.Token)
		}
		if !res.openBefore(rv.Entry) || rv.Generation < res.generation { // a reset has drained all since
			sh.mu.Unlock()
			return nil
		}
		changed := res.wait()
		sh.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.ctx.Done():
			return errClosed
		}
	}
}

// restart takes over what is recorded after a reset. Nothing may be past the gate, and no raise under way.
func (res *resource) restart(e Entry) {
	if e.Generation <= res.generation {
		res.broadcast()
		return
	}
	res.mark, res.recorded, res.holder, res.generation = e.Token, e.Token, e.Holder, e.Generation
	res.grant, res.row = Grant{}, 0
	res.cancelRefused()
	res.broadcast()
}

// freshen asks the registry anew before a claim is refused by what memory has, unless it has been asked lately or there is a grant, which
// would have been revoked. What it cannot ask it leaves: a refusal is safe.
func (f *Fence) freshen(ctx context.Context, res *resource) (changed bool) {
	if !f.shared {
		return false
	}
	sh := res.shard
	sh.mu.Lock()
	now := time.Now()
	known := res.granted(f.registry.Incarnation()) || now.Sub(res.asked) < freshFor
	if !known {
		res.asked = now
	}
	sh.mu.Unlock()
	if known {
		return false
	}
	e, err := f.registry.Lookup(ctx, res.name)
	if err != nil {
		return false
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return res.learnReset(e)
}

// learnReset takes over a reset by another instance, where that can be done at once; else the revocation of the grant will.
func (res *resource) learnReset(e Entry) bool {
	if e.Generation <= res.generation || res.resetting || len(res.open) > 0 || len(res.raises) > 0 {
		return false
	}
	res.restart(e)
	return true
}

// granted says whether there is a grant that counts now.
func (res *resource) granted(incarnation uint64) bool {
	return incarnation != 0 && res.grant.ID != 0 && res.grant.Incarnation == incarnation && res.grant.Token == res.mark
}

// refusedByReset is the reset that a registry's error tells of, nil if none.
func refusedByReset(err error) *ResetError {
	var reset *ResetError
	if errors.As(err, &reset) {
		return reset
	}
	return nil
}
