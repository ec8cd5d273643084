package tokens

import (
	"context"
	"errors"
	"time"
)

// A Write is one write's way: begun, then past the gate with [Write.Admit], then settled with [Write.Done], [Write.Failed] or
// [Write.InDoubt]. It belongs to one goroutine; only its Context may be used by others.
type Write struct {
	fence  *Fence
	res    *resource
	claim  Claim
	ctx    context.Context
	cancel context.CancelCauseFunc

	stage   stage
	settled bool // no longer counted as open; guarded by res.shard.mu
}

type stage int

const (
	begun    stage = iota
	admitted       // past the gate, outcome to come
	doubtful       // past the gate, outcome unknown
	over
)

// Context is cancelled when the write comes to be refused before it has passed the gate, with the refusal as its cause: a
// [*StaleError] mostly, when a higher token is seen. Past the gate nothing of the fence cancels it until the write is settled.
func (w *Write) Context() context.Context { return w.ctx }

// Claim is what the write was begun with.
func (w *Write) Claim() Claim { return w.claim }

// Generation is that of the resource when the write began. The gate lets it pass only as long as it is.
func (w *Write) Generation() int64 { return w.claim.Generation }

// Admit is the gate: when it returns nil the write may take effect, and nobody with a higher token is told yes before it has
// settled. It must be called when everything that can be checked has been checked, right before the store can act.
//
// Its errors are those of [Fence.Begin], a [*WaitingError] after Options.RaiseWait, and the error of ctx, which is the
// client's and ends only its own wait.
func (w *Write) Admit(ctx context.Context) error {
	if w.stage != begun {
		panic("tokens: Admit called twice")
	}
	return w.fence.reach(ctx, w.res, w.claim, w.take)
}

// take counts the write as past the gate. Called with the shard's lock held.
func (w *Write) take() {
	w.res.take(w.claim)
	delete(w.res.uploads, w) // past the gate no raise cancels it
	w.stage = admitted
	w.fence.open.Add(1)
}

// putBack undoes take for a write of which the store has heard nothing.
func (w *Write) putBack() {
	sh := w.res.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	w.res.drop(w.claim)
	w.fence.open.Add(-1)
	w.stage = begun
	w.enlist()
}

// enlist has the write cancelled when it comes to be refused, or at once if it is. Called with the shard's lock held.
func (w *Write) enlist() {
	w.res.uploads[w] = struct{}{}
	if err := w.res.refuse(w.claim); err != nil {
		w.cancel(err)
	}
}

// AdmitAll is the gate of one request that writes to several resources: all pass or none. It raises every token first, and then
// takes all at once without waiting; where that fails halfway, it gives all back and begins again. So two such requests never
// wait for each other in a circle: who waits holds nothing.
//
// Where one write is refused, or cannot be admitted, it is returned with the error, and no write has passed.
func AdmitAll(ctx context.Context, writes []*Write) (failed *Write, err error) {
	for {
		for _, w := range writes { // begin all raises before waiting for the first: the registry commits them together
			_, _, _ = w.fence.step(w.res, w.claim, nil)
		}
		for _, w := range writes {
			if err := w.fence.reach(ctx, w.res, w.claim, nil); err != nil {
				return w, err
			}
		}
		missed, err := takeAll(writes)
		if err != nil || missed == nil {
			return missed, err
		}
	}
}

// takeAll takes every write past the gate, or none: then it returns the one that could not be taken, with the refusal if that
// is why.
func takeAll(writes []*Write) (missed *Write, err error) {
	for i, w := range writes {
		next, _, err := w.fence.step(w.res, w.claim, w.take)
		if err == nil && next == nil {
			continue
		}
		for _, taken := range writes[:i] {
			taken.putBack()
		}
		return w, err
	}
	return nil, nil
}

// Done settles a write that has taken effect.
func (w *Write) Done() { w.settle() }

// Failed settles a write that has not taken effect and never will.
func (w *Write) Failed() { w.settle() }

func (w *Write) settle() {
	if w.stage != admitted {
		panic("tokens: only an admitted write can be settled")
	}
	w.stage = over
	w.drop()
}

// InDoubt says that nobody knows whether the write has taken effect. It stays open for raises until proven is called or the
// claim's settle time is over; writes with an equal token go on. proven may be called from any goroutine.
func (w *Write) InDoubt() (proven func()) {
	if w.stage != admitted {
		panic("tokens: only an admitted write can be in doubt")
	}
	w.stage = doubtful
	if w.claim.Settle <= 0 { // a store in this process: what has not happened by now never will
		w.drop()
		return func() {}
	}
	w.fence.inDoubt.Add(1)
	leave := func() {
		if w.drop() {
			w.fence.inDoubt.Add(-1)
		}
	}
	timer := time.AfterFunc(w.claim.Settle, leave)
	return func() {
		timer.Stop()
		leave()
	}
}

// drop takes the write out of the open ones, once, and says whether it did.
func (w *Write) drop() bool {
	sh := w.res.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.settled {
		return false
	}
	w.settled = true
	w.res.drop(w.claim)
	w.res.unpin()
	w.fence.open.Add(-1)
	return true
}

// End is for defer: it lets go of a write that has not passed the gate, and leaves one in doubt whose outcome nobody told.
func (w *Write) End() {
	switch w.stage {
	case begun:
		w.stage = over
		sh := w.res.shard
		sh.mu.Lock()
		delete(w.res.uploads, w)
		w.res.unpin()
		sh.mu.Unlock()
	case admitted:
		w.InDoubt()
	}
	w.cancel(nil)
}

// reach brings a claim to where it may be admitted, and calls take there, under the shard's lock. It raises the token if need be.
func (f *Fence) reach(ctx context.Context, res *resource, c Claim, take func()) error {
	var patience <-chan time.Time
	start := time.Now()
	for {
		next, raised, err := f.step(res, c, take)
		if err != nil || next == nil {
			return err
		}
		if patience == nil {
			timer := time.NewTimer(f.options.RaiseWait)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-next:
			if raised != nil && raised.err != nil {
				return raised.err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-patience:
			return &WaitingError{Resource: res.name, Token: c.Token, Waited: time.Since(start).Round(time.Millisecond)}
		}
	}
}

// step is one look at a resource: it refuses, or takes, or says what to wait for. raised is the raise that next belongs to.
func (f *Fence) step(res *resource, c Claim, take func()) (next <-chan struct{}, raised *raise, err error) {
	res.shard.mu.Lock()
	defer res.shard.mu.Unlock()
	if f.ctx.Err() != nil {
		return nil, nil, errClosed
	}
	if res.resetting {
		return res.wait(), nil, nil
	}
	if err := res.refuse(c); err != nil {
		return nil, nil, err
	}
	if res.tooFar(c) { // judged before; but the first token of a resource was free then, and may not be now
		return nil, nil, res.tooFarError(c)
	}
	if res.usable(c, f.registry.Incarnation()) {
		if take != nil {
			take()
		}
		return nil, nil, nil
	}
	r := f.startRaise(res, c)
	return r.done, r, nil
}

// startRaise moves the mark and begins to raise the token in the background, where the client's patience does not matter, or
// joins who does so already. Called with the shard's lock held.
func (f *Fence) startRaise(res *resource, c Claim) *raise {
	res.advance(c.Token, "")
	if r, ok := res.raises[c.key()]; ok {
		return r
	}
	r := &raise{claim: c, done: make(chan struct{})}
	if !f.background(func() { f.raise(res, r) }) {
		r.err = errClosed
		close(r.done)
		return r
	}
	res.raises[c.key()] = r
	res.pins++
	return r
}

// raise drains, asks the registry, and installs the grant.
func (f *Fence) raise(res *resource, r *raise) {
	drained := f.drain(res, r.claim)
	var g Grant
	err, incarnation := drained, f.registry.Incarnation()
	if drained == nil {
		g, err = f.registry.Raise(f.ctx, r.claim)
	}
	if err == nil && g.Raised && !r.claim.Audited && f.options.Raised != nil {
		f.options.Raised(r.claim)
	}
	sh := res.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case err == nil:
		f.install(res, g)
	case drained == nil:
		res.learn(r.claim, err)
		if f.shared && errors.Is(f.registryError(err), ErrUnavailable) && incarnation != 0 {
			res.doubt = incarnation
		}
	}
	r.err = f.registryError(err)
	delete(res.raises, r.claim.key())
	if reset := refusedByReset(err); reset != nil {
		res.learnReset(Entry{Token: reset.Highest, Holder: reset.Holder, Generation: reset.Generation})
	}
	res.unpin()
	close(r.done)
	res.broadcast()
}

// drain waits until no write with a lower token is past the gate. None can pass any more: the mark has moved.
func (f *Fence) drain(res *resource, c Claim) error {
	sh := res.shard
	for {
		sh.mu.Lock()
		if c.Token < res.mark {
			defer sh.mu.Unlock()
			return res.stale(c)
		}
		if !res.openBelow(c.Token) {
			sh.mu.Unlock()
			return nil
		}
		changed := res.wait()
		sh.mu.Unlock()
		select {
		case <-changed:
		case <-f.ctx.Done():
			return errClosed
		}
	}
}

// install puts a grant into use, unless a higher token has been seen since it was asked for.
//
// It is not given back then: it stands in the registry in the place of this instance's earlier one, under which writes may still be
// open. The raise to the higher token replaces it; if there is none, eviction or Close gives it back when nothing is open.
func (f *Fence) install(res *resource, g Grant) {
	res.row = max(res.row, g.ID)
	if f.shared && g.Generation != res.generation {
		return // reset since; what is recorded now is not what it tells
	}
	res.recorded = max(res.recorded, g.Token)
	if res.mark != g.Token {
		return
	}
	if g.Holder == "" && res.holder != "" || res.grant.Token == g.Token && g.ID < res.grant.ID {
		return // answers overtook each other: the later one bound the token to its holder, or replaced this grant
	}
	res.grant, res.holder = g, g.Holder
}

// learn takes over what a refusal of the registry tells.
func (res *resource) learn(c Claim, err error) {
	var stale *StaleError
	var conflict *ConflictError
	switch {
	case errors.As(err, &stale):
		res.recorded = max(res.recorded, stale.Highest)
		res.advance(stale.Highest, stale.Holder)
	case errors.As(err, &conflict) && res.mark == c.Token:
		res.holder = conflict.Bound
	}
}
