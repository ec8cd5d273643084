package tokenstest

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// A FleetHarness makes engines of one driver for several instances.
type FleetHarness struct {
	Engine func(t testing.TB) Engine

	// Lease of the instances. With 0 time is virtual, in a bubble of its own for each case, and the lease 10 s; a real engine needs real time,
	// and a lease of some seconds.
	Lease time.Duration

	// Timed says that the engine times leases itself, and Slack, where time is real, how much later it may end one than it ought to.
	Timed bool
	Slack time.Duration
}

func (h FleetHarness) virtual() bool { return h.Lease == 0 }

// A fleetWorld is one engine, some instances on it, and a store that applies what was sent to it late. It checks the promise at every effect.
type fleetWorld struct {
	t             testing.TB
	h             FleetHarness
	engine        Engine
	lease, settle time.Duration
	slack         time.Duration // how much longer than it must a step may take

	a, b, c *instance

	mu      sync.Mutex
	acked   map[string]stamp   // the highest that a client was told yes for, by resource; guarded by mu
	landed  int                // effects; guarded by mu
	late    int                // effects when the incarnation that let them through was over; guarded by mu
	crossed int                // effects after which another instance answered a higher token; guarded by mu
	bound   int                // those of them after which it answered the same token, to a holder; guarded by mu
	open    map[string][]stamp // effects since the last answer, by resource; guarded by mu
}

// A stamp is a token in a generation of its resource, with a holder or without. What the promise orders: a fleet does so for holders, too.
type stamp struct {
	generation int64
	token      tokens.Token
	named      int // 1: by its holder
	by         *instance
}

func (s stamp) below(o stamp) bool {
	return cmp.Or(cmp.Compare(s.generation, o.generation), cmp.Compare(s.token, o.token), cmp.Compare(s.named, o.named)) < 0
}

// An instance is one proxy: its clock, its link to the store, its registry and its fence.
type instance struct {
	*fleetWorld
	name    string
	clock   *testClock
	link    *link
	reg     *fleet.Registry
	fence   *tokens.Fence
	options tokens.Options

	up *fleet.Registry // reg, for effects, which come at any time; guarded by fleetWorld.mu
}

// A testClock can stand still, as that of a paused virtual machine, and be set wrong.
type testClock struct {
	began time.Time

	mu     sync.Mutex
	frozen time.Time     // since when Boot stands still; guarded by mu
	stood  time.Duration // how long Boot has stood still before; guarded by mu
	wall   time.Duration // by which Wall is wrong; guarded by mu
}

func (c *testClock) Boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.frozen.IsZero() {
		now = c.frozen
	}
	return time.Hour + now.Sub(c.began) - c.stood
}

func (c *testClock) Wall() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Round(0).Add(c.wall)
}

func (c *testClock) freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = time.Now()
}

func (c *testClock) thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stood += time.Since(c.frozen)
	c.frozen = time.Time{}
}

func (c *testClock) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += by
}

// run runs a test in a world with three instances. Those that are not started by then cost nothing.
func (h FleetHarness) run(t *testing.T, test func(*fleetWorld)) {
	if !h.virtual() {
		t.Parallel()
		h.inWorld(t, test)
		return
	}
	synctest.Test(t, func(t *testing.T) { h.inWorld(t, test) })
}

func (h FleetHarness) inWorld(t *testing.T, test func(*fleetWorld)) {
	w := &fleetWorld{t: t, h: h, engine: h.Engine(t), acked: map[string]stamp{}, open: map[string][]stamp{}}
	w.lease, w.settle, w.slack = h.Lease, 3*h.Lease, max(2*h.Lease, 4*time.Second)+h.Slack
	if h.virtual() {
		w.lease, w.settle, w.slack = 10*time.Second, time.Minute, 3*time.Second
	}
	w.a, w.b, w.c = w.instance("a"), w.instance("b"), w.instance("c")
	defer func() {
		for _, i := range []*instance{w.a, w.b, w.c} {
			if i.reg != nil {
				i.kill()
			}
		}
	}()
	w.a.start()
	w.b.start()
	test(w)
}

func (w *fleetWorld) instance(name string) *instance {
	return &instance{fleetWorld: w, name: name, clock: &testClock{began: time.Now()}}
}

// start begins a process.
func (i *instance) start() {
	i.t.Helper()
	i.connect()
	if err := i.reg.Begin(context.Background(), i.engine.Mapping(i.t)); err != nil {
		i.t.Fatalf("instance %s begins: %v", i.name, err)
	}
}

func (i *instance) connect() {
	i.link = newLink(i.engine.Store(i.t))
	i.reg = fleet.New(i.link, fleet.Options{Lease: i.lease, Clock: i.clock})
	i.fence = tokens.NewFence(i.reg, i.options)
	i.setUp(i.reg)
}

func (i *instance) setUp(up *fleet.Registry) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.up = up
}

// kill ends a process as kill -9 does. What is on its link still arrives.
func (i *instance) kill() {
	i.setUp(nil)
	i.link.partition()
	i.resume()
	_ = i.reg.Kill()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = i.fence.Close(ctx) // puts its goroutines to rest; nothing gets through
	i.reg, i.fence = nil, nil
}

// stop ends a process as SIGTERM does, with so much time for the writes under way.
func (i *instance) stop(patience time.Duration) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = i.fence.Close(ctx)
	i.setUp(nil)
	if err := i.reg.Close(); err != nil {
		i.t.Errorf("instance %s leaves: %v", i.name, err)
	}
	i.reg, i.fence = nil, nil
}

// pause stops the process and its machine's clock of the time since the start, as a paused virtual machine: its wall clock is right afterwards.
func (i *instance) pause() {
	i.clock.freeze()
	i.link.set(func(l *link) { l.paused = make(chan struct{}) })
}

func (i *instance) resume() {
	i.link.set(func(l *link) {
		if l.paused != nil {
			i.clock.thaw()
			close(l.paused)
			l.paused = nil
		}
	})
}

func (w *fleetWorld) claim(t tokens.Token) tokens.Claim {
	return tokens.Claim{Resource: res, Token: t, Settle: w.settle}
}

// took fails the test unless f takes at least low and at most high, with some slack.
func (w *fleetWorld) took(low, high time.Duration, f func()) {
	w.t.Helper()
	start := time.Now()
	f()
	if d := time.Since(start); d < low || d > high+w.slack {
		w.t.Fatalf("it took %v; want %v to %v", d, low, high+w.slack)
	}
}

// eventually waits until something is so, for as long as it may take.
func (w *fleetWorld) eventually(within time.Duration, what string, is func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(within + w.slack)
	for !is() {
		if time.Now().After(deadline) {
			w.t.Fatalf("within %v: not %s", within+w.slack, what)
		}
		time.Sleep(w.lease / 100)
	}
}

func stampOf(i *instance, wr *tokens.Write) stamp {
	return claimed(i, wr.Generation(), wr.Claim())
}

func claimed(i *instance, generation int64, c tokens.Claim) stamp {
	return stamp{generation, c.Token, min(len(c.Holder), 1), i}
}

// land is the effect of a write: what no reader may see after a higher token's client was told yes.
func (w *fleetWorld) land(resource string, s stamp, incarnation uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.landed++
	if up := s.by.up; up == nil || up.Incarnation() != incarnation {
		w.late++
	}
	switch acked := w.acked[resource]; {
	case !s.below(acked):
	case s.generation == acked.generation && s.token == acked.token:
		w.t.Errorf("broken promise: on %s a write through %s with token %d and no holder took effect after one by its holder was answered", resource, s.by.name, s.token)
	default:
		w.t.Errorf("broken promise: on %s a write through %s with token %d of generation %d took effect after token %d of generation %d was answered",
			resource, s.by.name, s.token, s.generation, acked.token, acked.generation)
	}
	w.open[resource] = append(w.open[resource], s)
}

// ack is a client that is told yes.
func (w *fleetWorld) ack(resource string, s stamp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.acked[resource].below(s) {
		return
	}
	w.acked[resource] = s
	for _, o := range w.open[resource] {
		if o.below(s) && o.by != s.by {
			w.crossed++
			if o.generation == s.generation && o.token == s.token {
				w.bound++
			}
		}
	}
	w.open[resource] = nil
}

// begin is a write up to the gate.
func (i *instance) begin(t tokens.Token) *tokens.Write {
	i.t.Helper()
	return i.beginAs(t, "")
}

func (i *instance) beginAs(t tokens.Token, holder string) *tokens.Write {
	i.t.Helper()
	c := i.claim(t)
	c.Holder = holder
	wr, err := i.fence.Begin(context.Background(), c)
	if err != nil {
		i.t.Fatalf("%s begins with token %d: %v", i.name, t, err)
	}
	return wr
}

// admit is a write past the gate. Clients come back when they are told to wait.
func (i *instance) admit(t tokens.Token) *tokens.Write {
	i.t.Helper()
	return i.admitAs(t, "")
}

func (i *instance) admitAs(t tokens.Token, holder string) *tokens.Write {
	i.t.Helper()
	wr := i.beginAs(t, holder)
	deadline := time.Now().Add(4 * (i.lease + i.settle))
	for {
		err := wr.Admit(context.Background())
		switch {
		case err == nil:
			return wr
		case !isWaiting(err) || time.Now().After(deadline):
			i.t.Fatalf("token %d at the gate of %s: %v", t, i.name, err)
		}
	}
}

// write is a whole write whose client is told yes: the store applies it at once.
func (i *instance) write(t tokens.Token) {
	i.t.Helper()
	i.done(i.admit(t))
}

func (i *instance) done(wr *tokens.Write) {
	i.land(res, stampOf(i, wr), i.reg.Incarnation())
	wr.Done()
	wr.End()
	i.ack(res, stampOf(i, wr))
}

// try is a write that may be refused. It does not come back.
func (i *instance) try(t tokens.Token) error { return i.tryAs(t, "") }

func (i *instance) tryAs(t tokens.Token, holder string) error {
	c := i.claim(t)
	c.Holder = holder
	wr, err := i.fence.Begin(context.Background(), c)
	if err != nil {
		return err
	}
	defer wr.End()
	if err := wr.Admit(context.Background()); err != nil {
		return err
	}
	i.done(wr)
	return nil
}

// finish is a store that takes its time with a write past the gate, and tells.
func (i *instance) finish(wr *tokens.Write, after time.Duration) {
	incarnation := i.reg.Incarnation()
	time.AfterFunc(after, func() {
		i.land(res, stampOf(i, wr), incarnation)
		wr.Done()
		wr.End()
	})
}

// doubt is a store that takes its time with a write past the gate, and does not tell.
func (i *instance) doubt(wr *tokens.Write, after time.Duration) (proven func()) {
	s, incarnation := stampOf(i, wr), i.reg.Incarnation()
	time.AfterFunc(after, func() { i.land(res, s, incarnation) })
	proven = wr.InDoubt()
	wr.End()
	return proven
}

func (w *fleetWorld) stale(err error, highest tokens.Token) {
	w.t.Helper()
	var stale *tokens.StaleError
	if !errors.As(err, &stale) || stale.Highest != highest {
		w.t.Fatalf("%v; want the refusal of a token below %d", err, highest)
	}
}

func (w *fleetWorld) unavailable(err error) {
	w.t.Helper()
	if !errors.Is(err, tokens.ErrUnavailable) {
		w.t.Fatalf("%v; want the registry to be out of reach", err)
	}
}

// mustHaveLanded guards a case against testing nothing: so many effects came, before the newer write was answered or after.
func (w *fleetWorld) mustHaveLanded(n int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.landed != n {
		w.t.Errorf("%d writes took effect; want %d by now", w.landed, n)
	}
}
