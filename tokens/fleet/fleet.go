// Package fleet is what a token registry does that several proxies share, whatever engine keeps it: leases, grants that are waited for and
// given back, and the time until the writes of an instance that has fallen silent have settled. An engine is a [Store].
//
// # The lease
//
// An instance has the right to use its grants while its incarnation goes on: for nine tenths of the lease after it sent its last beat that
// was answered. Others time it by what they see: an incarnation whose beat has not changed for a whole lease, by the clock of who looks, is
// expelled, and raises nothing from then on. Nobody compares the clocks of two machines. What it let through before may still take effect for as
// long as its grants say; only then are they removed. A lease that was lost is won back as a new incarnation, whose grants begin anew; those
// of the old one settle like a stranger's.
//
// # The grant
//
// A raise records its token, and its own grant, and learns which lower grants there are. Each is given back by who has it, once no write
// under it can take effect any more, or removed as above. The raise returns when the last of them is gone. Whoever has a grant is asked
// for it by what stands in the store, not by what it remembers; a message that says so may be lost, and each beat looks anew.
//
// A token is bound to a holder in the same way: grants with it for writers that do not name themselves are lower ones. That goes for our own grant,
// too. A raise to a higher token takes its place, for the fence has let nothing older pass since before the raise was sent. It cannot
// bind its memory as early: the token may be another holder's already. So the store says first whose it is.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/clock"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// Options of New. A zero field takes its default.
type Options struct {
	Lease time.Duration // how long an instance may go on without word from the store, at most; 10 s. A tenth of it passes between two beats
	Clock clock.Clock   // this machine's
	Log   *slog.Logger  // told of leases won and lost; nil: nobody is told
}

// A Registry is a [tokens.Registry] over a Store. Begin gives it the right to raise.
type Registry struct {
	store   Store
	options Options
	clock   clock.Clock
	log     *slog.Logger

	ctx    context.Context // of everything in the background; ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	look   chan struct{} // holds one token: look around now
	check  chan struct{} // holds one token: a raise has begun to wait

	lease   atomic.Pointer[lease]
	failure atomic.Pointer[error] // why there will be no lease any more; nil if there will
	trouble atomic.Pointer[error] // what the store said last, nil if all was well

	mapping  int64 // that Begin was called with; not changed afterwards
	onRevoke func(context.Context, tokens.Revocation) error

	mu       sync.Mutex
	peers    map[int64]seenPeer          // guarded by mu
	ended    map[int64]*endedPeer        // guarded by mu
	yielding map[tokens.GrantID]struct{} // revocations that are being answered; guarded by mu
	waiting  map[*waiter]struct{}        // raises that wait for lower grants; guarded by mu
	raising  map[string]*abreast         // by resource; guarded by mu
	held     time.Duration               // boot time: no raise on a store with a settle time returns before; guarded by mu
}

// A lease is the right to use the grants of an incarnation, until the first of two clocks says that it is over.
type lease struct {
	incarnation int64
	boot        time.Duration
	wall        time.Time
}

// seenPeer is an incarnation and when its beat was first seen.
type seenPeer struct {
	Peer
	since time.Duration // boot time
}

// An endedPeer is waited for until its writes have settled.
type endedPeer struct {
	since    time.Duration // boot time at which it was seen that it had ended
	due      time.Duration // settle time of the next grants to be removed
	sweeping bool          // they are being removed
}

// A waiter is a raise that waits for lower grants.
type waiter struct {
	left []GrantRef    // guarded by Registry.mu
	done chan struct{} // closed when left is empty
}

// abreast are the raises of one resource that run at the same time.
type abreast struct {
	n      int  // how many are under way
	handed bool // one of them has returned its grant
}

// New returns a registry that is not yet begun. It owns the store, and closes it.
func New(s Store, o Options) *Registry {
	if o.Lease == 0 {
		o.Lease = 10 * time.Second
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Registry{
		store: s, options: o, clock: o.Clock, log: o.Log,
		look: make(chan struct{}, 1), check: make(chan struct{}, 1),
		onRevoke: func(context.Context, tokens.Revocation) error { return nil }, // nobody writes under grants without a fence
		peers:    map[int64]seenPeer{}, ended: map[int64]*endedPeer{},
		yielding: map[tokens.GrantID]struct{}{}, waiting: map[*waiter]struct{}{}, raising: map[string]*abreast{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// OnRevoke implements [tokens.Shared].
func (r *Registry) OnRevoke(yield func(context.Context, tokens.Revocation) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onRevoke = yield
}

// Begin implements [tokens.Maintained]: it joins the fleet. It waits as long as instances by other mappings have writes under way, and as
// long as ctx lets it; an error of the store is returned at once.
func (r *Registry) Begin(ctx context.Context, mapping int64) error {
	r.mapping = mapping
	told := false
	for {
		err := r.beat()
		switch {
		case r.Failure() != nil:
			return r.Failure()
		case err == nil && r.Incarnation() != 0:
			r.tasks.Go(r.beatUntilClosed)
			r.tasks.Go(r.watchGrants)
			return nil
		case err != nil && !errors.Is(err, ErrDraining):
			return unavailable(err)
		}
		if !told {
			n, wait := r.Unsettled()
			r.log.Warn("waiting for the last writes of instances that went by other mappings", "ended", n, "wait", wait.Round(time.Second))
			told = true
		}
		select {
		case <-time.After(r.pause()):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrDraining, context.Cause(ctx))
		}
	}
}

// pause is the time between two beats.
func (r *Registry) pause() time.Duration { return r.options.Lease / 10 }

// Incarnation implements [tokens.Registry].
func (r *Registry) Incarnation() uint64 {
	l := r.lease.Load()
	if l == nil || r.clock.Boot() >= l.boot || !r.clock.Wall().Before(l.wall) {
		return 0
	}
	return uint64(l.incarnation)
}

// Failure implements [tokens.Maintained].
func (r *Registry) Failure() error {
	if err := r.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// beatUntilClosed keeps the lease, or wins a new one.
func (r *Registry) beatUntilClosed() {
	timer := time.NewTimer(r.pause())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-r.look:
		case <-r.ctx.Done():
			return
		}
		_ = r.beat() // said in the log, and by trouble
		timer.Reset(r.pause())
	}
}

// beat says that we go on, or joins, and does what it then sees to be done.
func (r *Registry) beat() error {
	patience := r.options.Lease / 4 // one that gets no answer leaves time for others
	if r.lease.Load() == nil {
		patience = max(r.callTime(), 5*time.Second) // there is no lease to be lost meanwhile
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	sent, wall := r.clock.Boot(), r.clock.Wall() // before the store can count it: our lease must be over first
	view, err := r.keepOrJoin(ctx, sent, wall)
	r.note(err)
	if view != nil {
		r.observe(ctx, view)
	}
	return err
}

// keepOrJoin returns what there is to see, also where it fails to join.
func (r *Registry) keepOrJoin(ctx context.Context, sent time.Duration, wall time.Time) (*View, error) {
	if l := r.lease.Load(); l != nil {
		view, err := r.store.Beat(ctx, l.incarnation)
		switch {
		case errors.Is(err, ErrEnded):
			r.lose("others have not heard from it for too long")
		case err != nil:
			return nil, err // what we have goes on to its end
		case view.Mapping != r.mapping:
			r.lose("the mappings on record are others now")
			r.fail(fmt.Errorf("%w: `serve --remap` of another instance has changed what leads keys to resources: start this one with the same buckets and rules", tokens.ErrUnavailable))
			return &view, r.store.Leave(ctx, l.incarnation)
		default:
			r.extend(l.incarnation, sent, wall)
			return &view, nil
		}
	}
	if r.Failure() != nil {
		view, err := r.store.Look(ctx)
		return &view, err
	}
	incarnation, err := r.store.Join(ctx, r.options.Lease, r.mapping)
	switch {
	case err == nil:
		r.extend(incarnation, sent, wall)
		r.log.Info("joined the fleet", "incarnation", incarnation)
	case errors.Is(err, ErrRemapped):
		r.fail(fmt.Errorf("%w: start this one anew with the buckets and rules of the others", err))
		return nil, err
	case !errors.Is(err, ErrDraining):
		return nil, err
	}
	view, lookErr := r.store.Look(ctx)
	if lookErr != nil {
		return nil, errors.Join(err, lookErr)
	}
	return &view, err
}

// extend counts the lease from when the beat was sent. It never moves the end of one that is over on our clocks by what was sent before.
func (r *Registry) extend(incarnation int64, sent time.Duration, wall time.Time) {
	own := r.options.Lease - r.options.Lease/10 // clocks of two machines may run at rates that differ by a tenth
	r.lease.Store(&lease{incarnation, sent + own, wall.Add(own)})
}

// lose gives all grants up: their incarnation is over, and none of them is usable any more.
func (r *Registry) lose(why string) {
	l := r.lease.Swap(nil)
	r.log.Warn("this instance has lost its lease: it asks for every right to write anew", "incarnation", l.incarnation, "cause", why)
}

func (r *Registry) fail(err error) {
	r.failure.CompareAndSwap(nil, &err)
	r.log.Error("this instance raises no token any more", "cause", err)
}

// note says once when the store goes away, and when it is back.
func (r *Registry) note(err error) {
	if r.ctx.Err() != nil {
		return
	}
	if err == nil {
		if r.trouble.Swap(nil) != nil {
			r.log.Info("the token registry answers again")
		}
		return
	}
	if r.trouble.Swap(&err) == nil && !errors.Is(err, ErrDraining) {
		r.log.Warn("the token registry does not answer: what was granted goes on until the lease is over", "cause", err)
	}
}

// observe times the others and does what the view asks for.
func (r *Registry) observe(ctx context.Context, v *View) {
	now := r.clock.Boot() // after the view: what it shows is no younger
	for _, p := range r.silent(v, now) {
		if err := r.store.Expel(ctx, p); err == nil {
			r.log.Warn("an instance has been silent for longer than its lease: its writes are waited for, then its grants removed", "incarnation", p.Incarnation)
			r.lookAgain()
		}
	}
	for _, due := range r.settled(v, now) {
		r.tasks.Go(func() { r.sweep(due) })
	}
	for _, rv := range v.Revoked {
		r.yield(rv)
	}
}

// silent takes note of the beats and returns the peers that have had none for a whole lease.
func (r *Registry) silent(v *View, now time.Duration) (silent []Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(map[int64]seenPeer, len(v.Alive))
	own := r.lease.Load()
	for _, p := range v.Alive {
		if own != nil && p.Incarnation == own.incarnation {
			continue
		}
		was, known := r.peers[p.Incarnation]
		if !known || was.Beat != p.Beat {
			was = seenPeer{p, now}
		}
		seen[p.Incarnation] = was
		if p.Beat != 0 && now-was.since >= p.Lease { // else the store times it
			silent = append(silent, p)
		}
	}
	r.peers = seen
	return silent
}

// A sweep is due: so long ago an incarnation was seen to have ended.
type sweep struct {
	incarnation int64
	settled     time.Duration
}

// sweep removes what has settled, beside the beats: there may be many.
func (r *Registry) sweep(s sweep) {
	ctx, cancel := context.WithTimeout(r.ctx, sweepTime)
	defer cancel()
	next, err := r.store.Sweep(ctx, s.incarnation, s.settled)
	r.mu.Lock()
	if e := r.ended[s.incarnation]; e != nil {
		e.sweeping = false // where it failed, the next beat tries again
		if err == nil {
			e.due = next
		}
	}
	r.mu.Unlock()
	r.checkGrants()
}

// sweepTime is how long one sweep may take. What it has removed by then is removed.
const sweepTime = time.Minute

// settled takes note of the incarnations that have ended and returns those of which grants have settled.
func (r *Registry) settled(v *View, now time.Duration) (due []sweep) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(map[int64]*endedPeer, len(v.Ended))
	for _, incarnation := range v.Ended {
		e := r.ended[incarnation]
		if e == nil {
			e = &endedPeer{since: now}
		}
		seen[incarnation] = e
		if settled := now - e.since; settled >= e.due && !e.sweeping {
			e.sweeping = true
			due = append(due, sweep{incarnation, settled})
		}
	}
	r.ended = seen
	return due
}

// yield answers a revocation in the background: when the fence says that nothing can come of the grant any more, it is given back.
func (r *Registry) yield(rv tokens.Revocation) {
	r.mu.Lock()
	_, busy := r.yielding[rv.ID]
	if !busy {
		r.yielding[rv.ID] = struct{}{}
	}
	r.mu.Unlock()
	if busy {
		return
	}
	r.tasks.Go(func() {
		err := r.revoker()(r.ctx, rv)
		if err == nil {
			err = r.GiveBack(r.ctx, rv.ID)
		}
		r.mu.Lock()
		delete(r.yielding, rv.ID) // if it is still there, the next beat shows it again
		r.mu.Unlock()
		if err != nil && r.ctx.Err() == nil {
			r.log.Debug("a grant was not given back", "resource", rv.Resource, "cause", err)
		}
	})
}

// Raise implements [tokens.Registry].
//
// If we crash before Record, nothing is recorded and nobody was told. If we crash after it, the token is refused to nobody but lower ones, and
// the grant is removed when it has settled.
func (r *Registry) Raise(ctx context.Context, c tokens.Claim) (tokens.Grant, error) {
	incarnation := r.Incarnation()
	if incarnation == 0 {
		return tokens.Grant{}, r.noLease()
	}
	r.enter(c.Resource)
	rec, err := r.recordClaim(ctx, int64(incarnation), c)
	if err != nil {
		r.leave(c.Resource, false)
		return tokens.Grant{}, err
	}
	rec.Grant.Incarnation = incarnation
	err = r.await(ctx, incarnation, rec.Lower)
	if err == nil && c.Settle > 0 {
		err = r.waitHeld(ctx)
	}
	if alone := r.leave(c.Resource, err == nil); err != nil && !alone {
		// This grant may have taken the place of that of an equal raise, under which writes are open. It stands until it is revoked.
		return tokens.Grant{}, err
	}
	if err != nil { // nobody can write under a grant that was never handed out
		giveCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.pause())
		defer cancel()
		_ = r.GiveBack(giveCtx, rec.Grant.ID)
		return tokens.Grant{}, err
	}
	return rec.Grant, nil
}

// recordClaim records a claim, after it has given back what stands in its way of our own. If we crash in between, the token is bound, and its holder
// comes again.
func (r *Registry) recordClaim(ctx context.Context, incarnation int64, c tokens.Claim) (Recorded, error) {
	for {
		rec, err := r.record(ctx, func(ctx context.Context) (Recorded, error) { return r.store.Record(ctx, incarnation, c) })
		if err != nil || rec.Own == 0 {
			return rec, err
		}
		// Asked here, and not by way of a beat: for a reset the fence waits for its raises, and so for this one.
		bound := tokens.Entry{Resource: c.Resource, Token: c.Token, Holder: c.Holder, Generation: c.Generation}
		if err := r.revoker()(ctx, tokens.Revocation{ID: rec.Own, Entry: bound}); err != nil {
			return rec, err
		}
		if err := r.GiveBack(ctx, rec.Own); err != nil {
			return rec, unavailable(err)
		}
	}
}

// revoker is who is asked for grants.
func (r *Registry) revoker() func(context.Context, tokens.Revocation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.onRevoke
}

func (r *Registry) enter(resource string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.raising[resource]
	if a == nil {
		a = &abreast{}
		r.raising[resource] = a
	}
	a.n++
}

// leave ends a raise, and says whether it was alone: no other is under way, and none beside it was handed its grant.
func (r *Registry) leave(resource string, handed bool) (alone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.raising[resource]
	a.n--
	alone = a.n == 0 && !a.handed
	a.handed = a.handed || handed
	if a.n == 0 {
		delete(r.raising, resource)
	}
	return alone
}

// callTime is how long one call of the store may take.
func (r *Registry) callTime() time.Duration { return max(r.options.Lease/2, time.Second) }

func (r *Registry) record(ctx context.Context, f func(context.Context) (Recorded, error)) (Recorded, error) {
	callCtx, cancel := context.WithTimeout(ctx, r.callTime())
	defer cancel()
	rec, err := f(callCtx)
	switch {
	case errors.Is(err, ErrEnded):
		r.lookAgain()
		return rec, unavailable(err)
	case err != nil && !refusal(err):
		return rec, unavailable(err)
	}
	return rec, err
}

func refusal(err error) bool {
	var stale *tokens.StaleError
	var conflict *tokens.ConflictError
	var reset *tokens.ResetError
	return errors.As(err, &stale) || errors.As(err, &conflict) || errors.As(err, &reset)
}

// noLease says why there is none.
func (r *Registry) noLease() error {
	if err := r.Failure(); err != nil {
		return err
	}
	if err := r.trouble.Load(); err != nil {
		return fmt.Errorf("%w: it has not answered for longer than the lease: %w", tokens.ErrUnavailable, *err)
	}
	return fmt.Errorf("%w: %w, and it waits for a new one", tokens.ErrUnavailable, ErrEnded)
}

func unavailable(err error) error {
	if errors.Is(err, tokens.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", tokens.ErrUnavailable, err)
}

// await waits until these grants are removed.
func (r *Registry) await(ctx context.Context, incarnation uint64, lower []GrantRef) error {
	if len(lower) == 0 {
		return nil
	}
	w := &waiter{left: lower, done: make(chan struct{})}
	r.mu.Lock()
	r.waiting[w] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.waiting, w)
		r.mu.Unlock()
	}()
	r.checkGrants()
	lost := time.NewTicker(r.pause())
	defer lost.Stop()
	for {
		select {
		case <-w.done:
			return nil
		case <-lost.C:
			if r.Incarnation() != incarnation { // the grant would be of no use
				return r.noLease()
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.ctx.Done():
			return fmt.Errorf("%w: the registry is closed", tokens.ErrUnavailable)
		}
	}
}

// watchGrants tells the raises when what they wait for is gone: soon after a hint, and else by looking, at first often and then less.
func (r *Registry) watchGrants() {
	const often = 20 * time.Millisecond
	wait := often
	timer := time.NewTimer(r.pause())
	defer timer.Stop()
	for {
		select {
		case <-r.store.Hints():
			r.lookAgain() // it may have been about a grant of ours
			wait = often
		case <-r.check:
			wait = often
		case <-timer.C:
			wait = min(2*wait, r.pause())
		case <-r.ctx.Done():
			return
		}
		if !r.lookAtGrants() {
			wait = r.pause()
		}
		timer.Reset(wait)
	}
}

// lookAtGrants asks which grants are still there, for all raises at once, and says whether there are raises that wait.
func (r *Registry) lookAtGrants() bool {
	r.mu.Lock()
	asked := make(map[tokens.GrantID]struct{})
	var refs []GrantRef
	for w := range r.waiting {
		for _, ref := range w.left {
			if _, twice := asked[ref.ID]; !twice {
				asked[ref.ID] = struct{}{}
				refs = append(refs, ref)
			}
		}
	}
	r.mu.Unlock()
	if len(refs) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.callTime())
	defer cancel()
	standing, err := r.store.Standing(ctx, refs)
	if err != nil {
		return true // nothing is known to be gone
	}
	still := make(map[tokens.GrantID]struct{}, len(standing))
	for _, ref := range standing {
		still[ref.ID] = struct{}{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.waiting {
		if len(w.left) == 0 {
			continue // told already
		}
		var left []GrantRef
		for _, ref := range w.left {
			_, stands := still[ref.ID]
			_, wasAsked := asked[ref.ID] // else it came while we asked
			if stands || !wasAsked {
				left = append(left, ref)
			}
		}
		if w.left = left; len(left) == 0 {
			close(w.done)
		}
	}
	return true
}

func (r *Registry) lookAgain()   { signal(r.look) }
func (r *Registry) checkGrants() { signal(r.check) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// GiveBack implements [tokens.Registry].
func (r *Registry) GiveBack(ctx context.Context, ids ...tokens.GrantID) error {
	ctx, cancel := context.WithTimeout(ctx, r.callTime())
	defer cancel()
	return r.store.Remove(ctx, ids...)
}

// Reset implements [tokens.Registry]. The new generation is recorded before the wait: who began before it is refused from then on, also if
// ctx ends the wait.
func (r *Registry) Reset(ctx context.Context, resource string, t tokens.Token) (tokens.Entry, error) {
	incarnation := r.Incarnation()
	if incarnation == 0 {
		return tokens.Entry{}, r.noLease()
	}
	var e tokens.Entry
	rec, err := r.record(ctx, func(ctx context.Context) (rec Recorded, err error) {
		e, rec, err = r.store.RecordReset(ctx, int64(incarnation), resource, t)
		return rec, err
	})
	if err != nil {
		return tokens.Entry{}, err
	}
	if rec.Grant.ID != 0 {
		_ = r.GiveBack(ctx, rec.Grant.ID) // the caller has drained it; if it stays, it is asked for as any other
	}
	if err := r.await(ctx, incarnation, rec.Lower); err != nil {
		return tokens.Entry{}, err
	}
	return e, nil
}

// Hold implements [tokens.Maintained].
func (r *Registry) Hold(until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = max(r.held, r.clock.Boot()+time.Until(until))
}

func (r *Registry) waitHeld(ctx context.Context) error {
	for {
		r.mu.Lock()
		wait := r.held - r.clock.Boot()
		r.mu.Unlock()
		if wait <= 0 {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.ctx.Done():
			return fmt.Errorf("%w: the registry is closed", tokens.ErrUnavailable)
		}
	}
}

// Unsettled implements [tokens.Maintained].
func (r *Registry) Unsettled() (n int, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Boot()
	for _, e := range r.ended {
		wait = max(wait, e.due-(now-e.since))
	}
	return len(r.ended), wait
}

// WaitSettled implements [tokens.Maintained]. Begin is what waits, for all instances that went by other mappings.
func (r *Registry) WaitSettled(context.Context) error { return nil }

// Lookup implements [tokens.Registry].
func (r *Registry) Lookup(ctx context.Context, resource string) (tokens.Entry, error) {
	return call(ctx, r, func(ctx context.Context) (tokens.Entry, error) { return r.store.Lookup(ctx, resource) })
}

// List implements [tokens.Registry].
func (r *Registry) List(ctx context.Context, prefix, after string, limit int) ([]tokens.Entry, error) {
	return call(ctx, r, func(ctx context.Context) ([]tokens.Entry, error) { return r.store.List(ctx, prefix, after, limit) })
}

// TouchUpload implements [tokens.Registry].
func (r *Registry) TouchUpload(ctx context.Context, upload string, t tokens.Token) error {
	_, err := call(ctx, r, func(ctx context.Context) (struct{}, error) { return struct{}{}, r.store.TouchUpload(ctx, upload, t) })
	return err
}

// UploadToken implements [tokens.Registry].
func (r *Registry) UploadToken(ctx context.Context, upload string) (tokens.Token, error) {
	return call(ctx, r, func(ctx context.Context) (tokens.Token, error) { return r.store.UploadToken(ctx, upload) })
}

// ForgetUpload implements [tokens.Registry].
func (r *Registry) ForgetUpload(ctx context.Context, upload string) error {
	_, err := call(ctx, r, func(ctx context.Context) (struct{}, error) { return struct{}{}, r.store.ForgetUpload(ctx, upload) })
	return err
}

// LoadLock implements [tokens.LockStore].
func (r *Registry) LoadLock(ctx context.Context, resource string) (tokens.LockView, error) {
	return call(ctx, r, func(ctx context.Context) (tokens.LockView, error) { return r.store.LoadLock(ctx, resource) })
}

// SwapLock implements [tokens.LockStore]. Without a lease this instance changes no lock: the registry may not be the one that it knows any more, or
// its mappings others.
func (r *Registry) SwapLock(ctx context.Context, was tokens.LockView, now tokens.LockRow) (int64, error) {
	incarnation := r.Incarnation()
	if incarnation == 0 {
		return 0, r.noLease()
	}
	version, err := call(ctx, r, func(ctx context.Context) (int64, error) { return r.store.SwapLock(ctx, int64(incarnation), was, now) })
	if errors.Is(err, ErrEnded) {
		r.lookAgain()
	}
	return version, err
}

// call bounds a question in time.
func call[T any](ctx context.Context, r *Registry, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, r.callTime())
	defer cancel()
	answer, err := f(ctx)
	if err != nil {
		return answer, unavailable(err)
	}
	return answer, nil
}

// Close implements [tokens.Registry]: it leaves the fleet. Grants that were not given back settle.
func (r *Registry) Close() error {
	r.cancel()
	r.tasks.Wait()
	var err error
	if l := r.lease.Swap(nil); l != nil {
		ctx, cancel := context.WithTimeout(context.Background(), r.callTime())
		defer cancel()
		if err = r.store.Leave(ctx, l.incarnation); errors.Is(err, ErrEnded) {
			err = nil
		}
	}
	return errors.Join(err, r.store.Close())
}

// Kill lets everything go as the end of the process would: for tests.
func (r *Registry) Kill() error {
	r.cancel()
	r.tasks.Wait()
	r.lease.Store(nil)
	return r.store.Close()
}
