package tokens

import (
	"context"
	"hash/maphash"
	"time"
)

// A resource is what a fence has in memory of one. All fields but name and shard are guarded by shard.mu.
type resource struct {
	name  string
	shard *shard

	mark       Token  // the high-water mark: the highest token seen. Only Reset takes it down
	recorded   Token  // the highest token that the registry is known to have; mark may be ahead of it
	issued     Token  // the highest token that the proxy's own lock is known to have issued
	holder     string // that the mark is bound to; "" where none is, or none is known yet
	generation int64

	grant     Grant               // usable only while usable() says so
	row       GrantID             // this instance's latest grant in the registry, usable or not; 0 if there is none
	open      []tokenCount        // writes past the gate that are not settled
	raises    map[raiseKey]*raise // under way in the background
	uploads   map[*Write]struct{} // begun, before the gate
	resetting bool                // nobody passes, and no raise begins
	doubt     uint64              // incarnation in which a raise failed that may be recorded yet; 0 if none did
	asked     time.Time           // when freshen asked the registry last

	pins    int           // who holds a pointer to this resource; it stays in memory while there is one
	used    time.Time     // when the last pin was taken away
	changed chan struct{} // closed at the next change that somebody may wait for; nil while nobody waits
}

type tokenCount struct {
	token Token
	named bool // by its holder, which is the one that the token is bound to
	n     int
}

// A raise is one call of Registry.Raise with the drain before it. All clients that claim the same wait for the same one.
type raise struct {
	claim Claim
	done  chan struct{} // closed when err is set
	err   error
}

type raiseKey struct {
	token  Token
	holder string
	settle time.Duration
}

func (c Claim) key() raiseKey { return raiseKey{c.Token, c.Holder, c.Settle} }

func (f *Fence) shard(name string) *shard {
	return &f.shards[maphash.String(f.seed, name)%shardCount]
}

// pin brings a resource into memory and keeps it there until unpin. It asks the registry where memory has nothing.
func (f *Fence) pin(ctx context.Context, name string) (*resource, error) {
	if f.ctx.Err() != nil {
		return nil, errClosed
	}
	sh := f.shard(name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	res, ok := sh.resources[name]
	if !ok {
		sh.mu.Unlock()
		e, err := f.registry.Lookup(ctx, name)
		sh.mu.Lock()
		if err != nil {
			return nil, f.registryError(err)
		}
		if res, ok = sh.resources[name]; !ok { // else somebody was quicker, and knows no less
			res = newResource(name, sh, e)
			sh.resources[name] = res
			f.makeRoom(sh, res)
		}
	}
	res.pins++
	return res, nil
}

func newResource(name string, sh *shard, e Entry) *resource {
	return &resource{
		name: name, shard: sh,
		mark: e.Token, recorded: e.Token, holder: e.Holder, generation: e.Generation,
		raises:  make(map[raiseKey]*raise),
		uploads: make(map[*Write]struct{}),
	}
}

func (f *Fence) unpin(res *resource) {
	res.shard.mu.Lock()
	res.unpin()
	res.shard.mu.Unlock()
}

func (res *resource) unpin() {
	res.pins--
	res.used = time.Now()
}

// judge says whether a claim may stand, before any mark moves. What it lets through is judged again at the gate.
func (f *Fence) judge(ctx context.Context, res *resource, c *Claim) error {
	err := f.judgeOnce(ctx, res, c)
	if err != nil && f.freshen(ctx, res) {
		return f.judgeOnce(ctx, res, c)
	}
	return err
}

func (f *Fence) judgeOnce(ctx context.Context, res *resource, c *Claim) error {
	res.shard.mu.Lock()
	c.Generation = res.generation
	err := res.refuse(*c)
	tooFar := err == nil && res.tooFar(*c)
	res.shard.mu.Unlock()
	if !tooFar {
		return err
	}
	// Another instance may have raised the token meanwhile: refuse only on fresh word.
	e, err := f.registry.Lookup(ctx, c.Resource)
	if err != nil {
		return f.registryError(err)
	}
	issued, err := f.issued(ctx, c.Resource)
	if err != nil {
		return f.registryError(err)
	}
	res.shard.mu.Lock()
	defer res.shard.mu.Unlock()
	if e.Generation == res.generation || !f.shared {
		res.recorded = max(res.recorded, e.Token)
	}
	res.issued = max(res.issued, issued)
	if res.tooFar(*c) {
		return res.tooFarError(*c)
	}
	return res.refuse(*c)
}

// issued asks the registry for the highest token that its own lock on a resource has handed out; 0 where it has no locks.
func (f *Fence) issued(ctx context.Context, resource string) (Token, error) {
	locks, ok := f.registry.(LockStore)
	if !ok {
		return 0, nil
	}
	v, err := locks.LoadLock(ctx, resource)
	return v.Row.Issued, err
}

// refuse returns the refusal that a claim meets here and now, nil if none.
func (res *resource) refuse(c Claim) error {
	if c.Generation != res.generation {
		return &ResetError{Resource: res.name, Token: c.Token, Highest: res.mark, Holder: res.holder, Generation: res.generation}
	}
	if c.Token < res.mark {
		return res.stale(c)
	}
	if c.Token == res.mark && res.holder != "" && c.Holder != res.holder {
		return &ConflictError{Resource: res.name, Token: c.Token, Holder: c.Holder, Bound: res.holder}
	}
	return nil
}

func (res *resource) stale(c Claim) *StaleError {
	return &StaleError{Resource: res.name, Token: c.Token, Highest: res.mark, Holder: res.holder}
}

// tooFar goes by what is recorded, not by the mark: a token that was only knocked with must not open the way for a higher one.
// And it goes by what the proxy's own lock has issued, which may be many more tokens than were seen: a holder need not write.
func (res *resource) tooFar(c Claim) bool {
	if c.Token <= res.issued {
		return false
	}
	return c.MaxAdvance > 0 && res.recorded > 0 && c.Token > res.recorded && c.Token-res.recorded > c.MaxAdvance
}

func (res *resource) tooFarError(c Claim) error {
	return &TooFarError{Resource: res.name, Token: c.Token, Highest: res.recorded, MaxAdvance: c.MaxAdvance}
}

// usable says whether a claim may be admitted under the grant there is, without asking the registry.
func (res *resource) usable(c Claim, incarnation uint64) bool {
	g := &res.grant
	return incarnation != 0 && g.Incarnation == incarnation && // a grant from before a lost lease is none
		g.Token == c.Token && res.mark == c.Token &&
		g.Holder == c.Holder && g.Settle >= c.Settle
}

// advance moves the mark up. Older writes are refused from here on; those past the gate are drained by the raise.
func (res *resource) advance(t Token, holder string) {
	if t <= res.mark {
		return
	}
	res.mark, res.holder = t, holder
	res.cancelRefused()
	res.broadcast()
}

// cancelRefused tells the uploads that can only be refused at the gate, so that their clients learn now.
func (res *resource) cancelRefused() {
	for w := range res.uploads {
		if err := res.refuse(w.claim); err != nil {
			w.cancel(err)
		}
	}
}

// bind takes over that the mark is bound to a holder. A grant for writers that do not name themselves counts no more from here on.
func (res *resource) bind(t Token, holder string) {
	if t != res.mark || holder == "" {
		return
	}
	if res.grant.Token == t && res.grant.Holder == "" {
		res.grant = Grant{}
	}
	if res.holder == holder {
		return
	}
	res.holder = holder
	res.cancelRefused()
	res.broadcast()
}

// take counts a write as past the gate.
func (res *resource) take(c Claim) {
	for i := range res.open {
		if o := &res.open[i]; o.token == c.Token && o.named == (c.Holder != "") {
			o.n++
			return
		}
	}
	res.open = append(res.open, tokenCount{c.Token, c.Holder != "", 1})
}

// drop counts a write as settled.
func (res *resource) drop(c Claim) {
	for i := range res.open {
		if o := &res.open[i]; o.token == c.Token && o.named == (c.Holder != "") {
			if o.n--; o.n == 0 {
				last := len(res.open) - 1
				res.open[i] = res.open[last]
				res.open = res.open[:last]
			}
			res.broadcast()
			return
		}
	}
	panic("tokens: a write settled twice")
}

// openBelow says whether writes with a token below t are past the gate and not settled.
func (res *resource) openBelow(t Token) bool {
	for _, o := range res.open {
		if o.token < t {
			return true
		}
	}
	return false
}

// openBefore says whether writes that come before what is recorded are past the gate and not settled: with a lower token, or, where the
// token is bound to a holder, with the same one and without a name.
func (res *resource) openBefore(e Entry) bool {
	for _, o := range res.open {
		if o.token == e.Token && e.Holder != "" && !o.named {
			return true
		}
	}
	return res.openBelow(e.Token)
}

// wait returns a channel that is closed at the next change.
func (res *resource) wait() <-chan struct{} {
	if res.changed == nil {
		res.changed = make(chan struct{})
	}
	return res.changed
}

func (res *resource) broadcast() {
	if res.changed != nil {
		close(res.changed)
		res.changed = nil
	}
}

func (res *resource) entry() Entry {
	return Entry{Resource: res.name, Token: res.mark, Holder: res.holder, Generation: res.generation}
}

// sweepUntilClosed takes idle resources out of memory.
func (f *Fence) sweepUntilClosed() {
	tick := time.NewTicker(f.options.Idle / 2)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			for i := range f.shards {
				f.sweep(&f.shards[i], now.Add(-f.options.Idle))
			}
		case <-f.ctx.Done():
			return
		}
	}
}

// sweep evicts the resources of a shard that nobody has used since then, and gives their grants back. The registry keeps
// their tokens.
func (f *Fence) sweep(sh *shard, since time.Time) {
	var ids []GrantID
	sh.mu.Lock()
	for _, res := range sh.resources {
		if res.used.Before(since) {
			ids = f.evict(res, ids)
		}
	}
	sh.mu.Unlock()
	f.giveBack(ids...)
}

// makeRoom keeps a shard near its share of the memory: every new resource beyond it evicts a few idle ones, whichever the map
// yields first. Called with the shard's lock held.
func (f *Fence) makeRoom(sh *shard, newest *resource) {
	tries := 8
	var ids []GrantID
	for _, res := range sh.resources {
		if len(sh.resources) <= max(1, f.options.Resources/shardCount) || tries == 0 {
			break
		}
		tries--
		if res != newest {
			ids = f.evict(res, ids)
		}
	}
	f.giveBack(ids...)
}

// evict takes a resource out of memory unless somebody still holds it: a write, a raise or a client that waits would go on with
// a resource that the next write cannot see. It appends the grant to give back to ids. Called with the shard's lock held.
func (f *Fence) evict(res *resource, ids []GrantID) []GrantID {
	if res.pins > 0 {
		return ids
	}
	if f.unrecorded(res) {
		return ids
	}
	delete(res.shard.resources, res.name)
	if res.row != 0 {
		ids = append(ids, res.row)
	}
	return ids
}

// unrecorded says whether a raise to the mark may be recorded yet, although its call has failed. If memory forgot the mark, an older write could
// pass, and the late record would take the place of its grant: nobody would wait for it.
func (f *Fence) unrecorded(res *resource) bool {
	if res.doubt == 0 || res.mark <= res.recorded {
		return false
	}
	now := f.registry.Incarnation()
	return now == 0 || now == res.doubt // what belongs to an incarnation that has ended cannot be recorded any more
}

// giveBack tells the registry in the background that nothing is open under these grants. If it fails they stay, and cost
// another instance or the next run a wait, never a wrong write.
func (f *Fence) giveBack(ids ...GrantID) {
	if len(ids) > 0 {
		f.background(func() { _ = f.registry.GiveBack(f.ctx, ids...) })
	}
}
