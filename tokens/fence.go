package tokens

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// A Fence lets writes through to a store in the order of their tokens. It is the only caller of its [Registry].
//
// For every resource it keeps, in memory: the high-water mark, the grant, the writes past the gate, and what waits. A write
// passes the gate at once where the grant is for its token and nothing higher has been seen: no I/O. Otherwise the token is
// raised first:
//
//	move the mark: older writes are refused from here on, and their uploads cancelled
//	→ wait until older writes that are past the gate have settled
//	→ record the token in the registry, which waits for other runs and instances
//	→ install the grant, if the mark has not moved on
//
// If the process dies before the registry has recorded the token, nobody was told anything and the older writer may go on.
// If it dies after, the next run refuses the older writer and finds the grants of this one in the registry.
type Fence struct {
	registry Registry
	shared   bool // others ask the registry, too
	options  Options

	ctx    context.Context // of everything that runs in the background; ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // background raises, give-backs and the sweeper
	tasksM sync.Mutex     // guards closed against a task that begins; taken inside a shard's lock, never around one
	closed bool

	seed   maphash.Seed
	shards [shardCount]shard

	open    atomic.Int64 // writes past the gate, not settled
	inDoubt atomic.Int64 // those of them whose outcome is unknown
}

const shardCount = 64

// A shard holds a part of the resources. Its mutex guards its map and every field of the resources in it, and is held for
// memory only, never over I/O or a wait.
type shard struct {
	mu        sync.Mutex
	resources map[string]*resource
}

// Options of a Fence. A zero field takes its default.
type Options struct {
	RaiseWait time.Duration // how long a client waits for a raise; 5 s
	Idle      time.Duration // an unused resource leaves memory after this time; 10 min
	Resources int           // about how many resources stay in memory; 100,000

	// Raised, where it is set, is told of every token that was newly recorded, unless its claim is Audited. It must not block.
	Raised func(Claim)
}

// NewFence returns a fence over a registry. Close it before the registry.
func NewFence(r Registry, o Options) *Fence {
	if o.RaiseWait == 0 {
		o.RaiseWait = 5 * time.Second
	}
	if o.Idle == 0 {
		o.Idle = 10 * time.Minute
	}
	if o.Resources == 0 {
		o.Resources = 100_000
	}
	f := &Fence{registry: r, options: o, seed: maphash.MakeSeed()}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	for i := range f.shards {
		f.shards[i].resources = make(map[string]*resource)
	}
	f.background(f.sweepUntilClosed)
	if shared, ok := r.(Shared); ok {
		f.shared = true
		shared.OnRevoke(f.yield)
	}
	return f
}

// background runs a task that Close waits for. It says false, and runs nothing, when the fence is closed.
func (f *Fence) background(task func()) bool {
	f.tasksM.Lock()
	defer f.tasksM.Unlock()
	if f.closed {
		return false
	}
	f.tasks.Go(task)
	return true
}

// Begin judges a write before anything of it moves: its token against the highest one seen, its holder, its advance. It
// fails with a [*StaleError], [*ConflictError] or [*TooFarError], or with an error that wraps [ErrUnavailable]. The write that
// it returns must be ended with [Write.End]. ctx is the parent of [Write.Context].
func (f *Fence) Begin(ctx context.Context, c Claim) (*Write, error) {
	res, err := f.pin(ctx, c.Resource)
	if err != nil {
		return nil, err
	}
	if err := f.judge(ctx, res, &c); err != nil {
		f.unpin(res)
		return nil, err
	}
	w := &Write{fence: f, res: res, claim: c}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	res.shard.mu.Lock()
	defer res.shard.mu.Unlock()
	w.enlist() // the mark may have moved after we judged
	return w, nil
}

// Announce raises the token without writing: when it returns nil, no write with a lower token takes effect any more. Its errors
// are those of [Fence.Begin], and a [*WaitingError] while older writes are not settled. The entry tells the highest token
// seen, also beside a refusal.
func (f *Fence) Announce(ctx context.Context, c Claim) (Entry, error) {
	res, err := f.pin(ctx, c.Resource)
	if err != nil {
		return Entry{Resource: c.Resource}, err
	}
	defer f.unpin(res)
	if err = f.judge(ctx, res, &c); err == nil {
		err = f.reach(ctx, res, c, nil)
	}
	res.shard.mu.Lock()
	defer res.shard.mu.Unlock()
	return res.entry(), err
}

// Highest returns the highest token seen for a resource and its holder, without keeping the resource in memory.
func (f *Fence) Highest(ctx context.Context, resource string) (Entry, error) {
	sh := f.shard(resource)
	sh.mu.Lock()
	res, known := sh.resources[resource]
	var seen Entry
	if known {
		seen = res.entry()
		known = !f.shared || res.granted(f.registry.Incarnation()) // else another instance may have seen more
	}
	sh.mu.Unlock()
	if known {
		return seen, nil
	}
	e, err := f.registry.Lookup(ctx, resource)
	if err != nil {
		return Entry{Resource: resource}, f.registryError(err)
	}
	if seen.Generation == e.Generation && seen.Token > e.Token {
		return seen, nil // a raise is under way
	}
	return e, nil
}

// Reset sets the token of a resource, lower ones included, and starts a new generation of it. It waits, as long as ctx lets it,
// until every write past the gate has settled; new ones wait meanwhile. Writes that have begun and not passed the gate are refused.
func (f *Fence) Reset(ctx context.Context, resource string, t Token) (Entry, error) {
	res, err := f.pin(ctx, resource)
	if err != nil {
		return Entry{}, err
	}
	defer f.unpin(res)
	if err := f.hold(ctx, res); err != nil {
		return Entry{}, err
	}
	e, err := f.registry.Reset(ctx, resource, t)

	res.shard.mu.Lock()
	defer res.shard.mu.Unlock()
	res.resetting = false
	res.grant = Grant{} // also after an error: whether the registry did it is unknown then, and a raise will ask
	if err == nil {
		res.mark, res.recorded, res.holder, res.row = t, t, e.Holder, 0
		res.generation = e.Generation // what began before belongs to the old one, whatever its token
		res.cancelRefused()
	}
	res.broadcast()
	if err != nil {
		return Entry{}, f.registryError(err)
	}
	return e, nil
}

// hold keeps new writes and raises of a resource waiting, and waits until those under way are over.
func (f *Fence) hold(ctx context.Context, res *resource) error {
	sh := res.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if res.resetting {
		return fmt.Errorf("%w: %s", ErrResetting, res.name)
	}
	res.resetting = true
	for len(res.open) > 0 || len(res.raises) > 0 {
		changed := res.wait()
		sh.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = fmt.Errorf("writes to %s are not settled yet: %w", res.name, ctx.Err())
		case <-f.ctx.Done():
			err = errClosed
		}
		sh.mu.Lock()
		if err != nil {
			res.resetting = false
			res.broadcast()
			return err
		}
	}
	return nil
}

// errClosed is what a fence that stops says.
var errClosed = fmt.Errorf("%w: the proxy is stopping", ErrUnavailable)

// Close lets no new write pass, waits as long as ctx lets it for those past the gate, and gives back every grant under which
// nothing is open or in doubt. Grants of the others stay in the registry, where the next run finds them.
func (f *Fence) Close(ctx context.Context) error {
	f.tasksM.Lock()
	f.closed = true
	f.tasksM.Unlock()
	f.cancel()
	f.tasks.Wait()
	err := f.settled(ctx)
	var idle []GrantID
	for i := range f.shards {
		sh := &f.shards[i]
		sh.mu.Lock()
		for _, res := range sh.resources {
			if len(res.open) == 0 && res.row != 0 {
				idle = append(idle, res.row)
				res.grant, res.row = Grant{}, 0
			}
		}
		sh.mu.Unlock()
	}
	if len(idle) == 0 {
		return err
	}
	// Not ctx, which may be over: what is not given back costs the next run a wait.
	giveCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(err, f.registry.GiveBack(giveCtx, idle...))
}

// settled waits until no write is past the gate.
func (f *Fence) settled(ctx context.Context) error {
	for i := range f.shards {
		sh := &f.shards[i]
		for {
			sh.mu.Lock()
			var busy *resource
			for _, res := range sh.resources {
				if len(res.open) > 0 {
					busy = res
					break
				}
			}
			if busy == nil {
				sh.mu.Unlock()
				break
			}
			changed := busy.wait()
			sh.mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
				return fmt.Errorf("%d writes are not settled: %w", f.open.Load(), ctx.Err())
			}
		}
	}
	return nil
}

// Stats of a fence, for metrics.
type Stats struct {
	Resources int   // in memory
	Open      int64 // writes past the gate, those in doubt included
	InDoubt   int64 // writes whose outcome is unknown, until their settle time is over
}

// Stats counts what the fence has in memory.
func (f *Fence) Stats() Stats {
	s := Stats{Open: f.open.Load(), InDoubt: f.inDoubt.Load()}
	for i := range f.shards {
		sh := &f.shards[i]
		sh.mu.Lock()
		s.Resources += len(sh.resources)
		sh.mu.Unlock()
	}
	return s
}

// registryError turns whatever a registry says beside its refusals into an error that wraps [ErrUnavailable].
func (f *Fence) registryError(err error) error {
	var stale *StaleError
	var conflict *ConflictError
	switch {
	case err == nil, errors.As(err, &stale), errors.As(err, &conflict), refusedByReset(err) != nil, errors.Is(err, ErrUnavailable):
		return err
	case f.ctx.Err() != nil:
		return errClosed
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
