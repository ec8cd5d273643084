package tokenstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A LockRegistry is what the proxy's own locks are over.
type LockRegistry interface {
	tokens.Registry
	tokens.LockStore
}

// A LockEngine is an empty registry.
type LockEngine struct {
	// Open opens an instance, which has the right to raise. Who uses it closes it.
	Open func(t testing.TB) LockRegistry

	// RaiseAll raises all tokens, while no instance is open; nil where there is no such call.
	RaiseAll func(t testing.TB, by tokens.Token) (int64, error)
}

// A LockHarness makes registries of one driver.
type LockHarness struct {
	New   func(t testing.TB) LockEngine
	Alone bool // one instance at a time
	Seeds int  // of the simulation
}

// RunLocks holds [tokens.Locks] over a driver, and the driver, to what they promise. There are two proxies, over two instances of the registry where it lets
// them, and else over one. Time is the test's own: nothing waits.
func RunLocks(t *testing.T, h LockHarness) {
	for _, c := range lockCases {
		t.Run(c.name, func(t *testing.T) { c.run(newLockWorld(t, h)) })
	}
	t.Run("simulation", func(t *testing.T) {
		var met lockFindings
		for seed := range h.Seeds {
			newLockWorld(t, h).simulate(uint64(seed), &met)
		}
		met.mustBeWhole(t, h.Seeds)
	})
}

// A lockClock is moved by hand.
type lockClock struct {
	mu   sync.Mutex
	boot time.Duration // guarded by mu
	wall time.Time     // guarded by mu
}

func (c *lockClock) Boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

func (c *lockClock) Wall() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

// pass lets time pass, and set the wall clock by so much more.
func (c *lockClock) pass(d, more time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot, c.wall = c.boot+d, c.wall.Add(d+more)
}

// lockTTL is that of the tests' leases.
const lockTTL = 30 * time.Second

// A lockWorld has two proxies over one registry.
type lockWorld struct {
	t      *testing.T
	engine LockEngine
	alone  bool
	clock  *lockClock
	stores [2]LockRegistry
	faults [2]*faultyLocks
	locks  [2]*tokens.Locks
}

func newLockWorld(t *testing.T, h LockHarness) *lockWorld {
	w := &lockWorld{t: t, engine: h.New(t), alone: h.Alone, clock: &lockClock{boot: time.Hour, wall: time.UnixMilli(1_800_000_000_000)}}
	w.open()
	t.Cleanup(w.close)
	return w
}

func (w *lockWorld) open() {
	w.stores[0] = w.engine.Open(w.t)
	w.stores[1] = w.stores[0]
	if !w.alone {
		w.stores[1] = w.engine.Open(w.t)
	}
	for i, s := range w.stores {
		w.faults[i] = &faultyLocks{LockStore: s}
		w.locks[i] = tokens.NewLocks(w.faults[i], w.clock)
	}
}

// close ends the instances, and with them what the proxies had in memory.
func (w *lockWorld) close() {
	for i, s := range w.stores {
		if i == 0 || s != w.stores[0] {
			if err := s.Close(); err != nil {
				w.t.Errorf("close: %v", err)
			}
		}
	}
}

// faultyLocks has the next swaps fail, each in its own way.
type faultyLocks struct {
	tokens.LockStore
	swap func(do func() (int64, error)) (int64, error) // nil: as it should be
}

func (f *faultyLocks) SwapLock(ctx context.Context, was tokens.LockView, now tokens.LockRow) (int64, error) {
	do := func() (int64, error) { return f.LockStore.SwapLock(context.WithoutCancel(ctx), was, now) }
	if f.swap == nil {
		return do()
	}
	return f.swap(do)
}

func lockID(name string) string { return name + strings.Repeat("-", tokens.MinLeaseID) }

func (w *lockWorld) request(name string) tokens.LockRequest {
	return tokens.LockRequest{Resource: res, Lease: lockID(name), Holder: name, TTL: lockTTL}
}

func (w *lockWorld) take(proxy int, name string) (tokens.Lease, error) {
	return w.locks[proxy].Take(bg, w.request(name))
}

func (w *lockWorld) mustTake(proxy int, name string, token tokens.Token, takenOver bool) {
	w.t.Helper()
	got, err := w.take(proxy, name)
	if err != nil {
		w.t.Fatalf("%s takes the lock: %v", name, err)
	}
	if got.Token != token || got.TakenOver != takenOver || got.ID != lockID(name) || got.Holder != name || got.Resource != res || got.TTL != lockTTL ||
		!got.Expires.Equal(w.clock.Wall().Add(lockTTL)) {
		w.t.Fatalf("%s takes the lock: %+v; want token %d, taken over: %v", name, got, token, takenOver)
	}
}

// mustBeHeld fails the test unless the lock is held against everybody, and who is told of it does not learn the id.
func (w *lockWorld) mustBeHeld(proxy int, holder string, token tokens.Token) {
	w.t.Helper()
	_, err := w.take(proxy, "another")
	var held *tokens.HeldError
	if !errors.As(err, &held) || held.By.Holder != holder || held.By.Token != token || held.By.ID != "" {
		w.t.Fatalf("%v; want it held by %s with token %d", err, holder, token)
	}
	if by, is, err := w.locks[proxy].Show(bg, res); err != nil || !is || by != held.By {
		w.t.Fatalf("it shows %+v, %v, %v; want %+v", by, is, err, held.By)
	}
}

func (w *lockWorld) mustRenew(proxy int, name string, token tokens.Token) {
	w.t.Helper()
	got, err := w.locks[proxy].Renew(bg, res, lockID(name))
	if err != nil || got.Token != token || got.ID != lockID(name) || !got.Expires.Equal(w.clock.Wall().Add(lockTTL)) {
		w.t.Fatalf("%s renews: %+v, %v; want token %d", name, got, err, token)
	}
}

func (w *lockWorld) mustRelease(proxy int, name string) {
	w.t.Helper()
	if err := w.locks[proxy].Release(bg, res, lockID(name)); err != nil {
		w.t.Fatalf("%s releases: %v", name, err)
	}
}

// mustBeLost fails the test unless a lease is over, and says who has the lock now, "" for nobody.
func (w *lockWorld) mustBeLost(err error, holder string) {
	w.t.Helper()
	var lost *tokens.LeaseLostError
	if !errors.As(err, &lost) || lost.Now.Holder != holder || lost.Now.ID != "" {
		w.t.Fatalf("%v; want it lost, and held by %q", err, holder)
	}
}

func (w *lockWorld) raise(t tokens.Token) {
	w.t.Helper()
	e, err := w.stores[0].Lookup(bg, res)
	if err == nil {
		_, err = w.stores[0].Raise(bg, tokens.Claim{Resource: res, Token: t, Generation: e.Generation})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// lockCases hold the locks to their promises.
var lockCases = []struct {
	name string
	run  func(*lockWorld)
}{
	{"it goes from holder to holder, and the token grows", func(w *lockWorld) {
		if _, is, err := w.locks[0].Show(bg, res); is || err != nil {
			w.t.Fatalf("at first: %v, %v", is, err)
		}
		w.mustTake(0, "a", 1, false)
		w.mustBeHeld(0, "a", 1)
		w.mustBeHeld(1, "a", 1)
		w.mustRenew(1, "a", 1)
		w.mustRelease(1, "a")
		if _, is, err := w.locks[0].Show(bg, res); is || err != nil {
			w.t.Fatalf("after the release: %v, %v", is, err)
		}
		w.mustTake(1, "b", 2, false)
		w.mustBeHeld(0, "b", 2)
		w.mustRelease(0, "b")
		w.mustTake(0, "c", 3, false)
	}},
	{"a lease is over a TTL after its last renewal, and not before", func(w *lockWorld) {
		w.mustTake(0, "a", 1, false)
		for range 3 {
			w.clock.pass(lockTTL-time.Millisecond, 0)
			w.mustBeHeld(0, "a", 1)
			w.mustRenew(0, "a", 1)
		}
		w.clock.pass(lockTTL, 0)
		w.mustTake(0, "b", 2, true)
		w.mustBeLost(func() error { _, err := w.locks[0].Renew(bg, res, lockID("a")); return err }(), "b")
		w.mustBeLost(w.locks[1].Release(bg, res, lockID("a")), "b")
		w.mustBeHeld(1, "b", 2)
	}},
	{"no wall clock decides", func(w *lockWorld) {
		w.mustTake(0, "a", 1, false)
		w.clock.pass(0, 1000*time.Hour)
		w.mustBeHeld(0, "a", 1)
		w.mustBeHeld(1, "a", 1)
		w.clock.pass(0, -5000*time.Hour)
		w.mustRenew(0, "a", 1)
		w.clock.pass(lockTTL, -time.Hour)
		w.mustTake(0, "b", 2, true)
	}},
	{"another proxy counts from when it saw the lease first", func(w *lockWorld) {
		w.mustTake(0, "a", 1, false)
		w.clock.pass(lockTTL/2, 0)
		w.mustBeHeld(1, "a", 1) // seen first
		w.mustRenew(0, "a", 1)
		w.clock.pass(lockTTL-time.Millisecond, 0)
		w.mustBeHeld(1, "a", 1) // the renewal is seen first
		w.clock.pass(lockTTL-time.Millisecond, 0)
		w.mustBeHeld(1, "a", 1)
		w.clock.pass(time.Millisecond, 0)
		w.mustTake(1, "b", 2, true)
	}},
	{"a proxy that was started anew counts anew, and the lock and its counter are there", func(w *lockWorld) {
		w.mustTake(0, "a", 1, false)
		w.close()
		w.clock.pass(10*lockTTL, 0)
		w.open()
		w.mustBeHeld(0, "a", 1)
		w.clock.pass(lockTTL-time.Millisecond, 0)
		w.mustRenew(0, "a", 1) // its holder has slept through it
		w.clock.pass(time.Millisecond, 0)
		w.mustBeHeld(0, "a", 1)
		w.mustRelease(0, "a")
		w.close()
		w.open()
		w.mustTake(0, "b", 2, false)
	}},
	{"a holder may renew late, as long as nobody else has taken the lock", func(w *lockWorld) {
		w.mustTake(0, "a", 1, false)
		w.clock.pass(100*lockTTL, 0)
		w.mustRenew(1, "a", 1)
		w.clock.pass(lockTTL-time.Millisecond, 0)
		w.mustBeHeld(1, "a", 1)
	}},
	{"a release ends one's own lease, and no other", func(w *lockWorld) {
		w.mustBeLost(w.locks[0].Release(bg, res, lockID("a")), "")
		w.mustTake(0, "a", 1, false)
		for _, id := range []string{"", lockID("b"), strings.ToUpper(lockID("a"))} {
			w.mustBeLost(w.locks[0].Release(bg, res, id), "a")
			_, err := w.locks[1].Renew(bg, res, id)
			w.mustBeLost(err, "a")
		}
		w.mustBeHeld(0, "a", 1)
		w.mustRelease(0, "a")
		w.mustRelease(1, "a") // twice is no error
		_, err := w.locks[0].Renew(bg, res, lockID("a"))
		w.mustBeLost(err, "")
		w.mustTake(0, "b", 2, false)
		w.mustBeLost(w.locks[0].Release(bg, res, lockID("a")), "b")
		w.mustBeHeld(0, "b", 2)
	}},
	{"a retry gets its own lock again, with its token", func(w *lockWorld) {
		w.mustTake(0, "a", 1, false)
		w.clock.pass(lockTTL-time.Millisecond, 0)
		w.mustTake(1, "a", 1, false) // renewed
		w.clock.pass(lockTTL-time.Millisecond, 0)
		w.mustBeHeld(1, "a", 1)
		w.clock.pass(lockTTL, 0)
		w.mustTake(1, "b", 2, true)
		w.mustTake(0, "b", 2, true) // and what is told of it
		_, err := w.take(0, "a")
		var held *tokens.HeldError
		if !errors.As(err, &held) { // whoever lost the lock waits for it as any other
			w.t.Errorf("%v; want it held", err)
		}
	}},
	{"an id is that of one lease of one holder", func(w *lockWorld) {
		w.mustTake(0, "a", 1, false)
		for _, other := range []tokens.LockRequest{
			{Resource: res, Lease: lockID("a"), Holder: "b", TTL: lockTTL},
			{Resource: res, Lease: lockID("a"), Holder: "a", TTL: lockTTL, AccessKey: "AK"},
		} {
			_, err := w.locks[0].Take(bg, other)
			w.mustBeLost(err, "a")
		}
		w.mustRelease(0, "a")
		_, err := w.take(0, "a") // as a request does that was long on its way
		w.mustBeLost(err, "")
		first, err := w.locks[0].Take(bg, tokens.LockRequest{Resource: res, Holder: "a", TTL: lockTTL})
		if _, bad := tokens.ParseLeaseID(first.ID); err != nil || bad != nil || first.Token != 2 {
			w.t.Fatalf("%+v, %v, %v", first, err, bad)
		}
	}},
	{"a token is above what was seen, and above what was issued", func(w *lockWorld) {
		w.raise(100)
		w.mustTake(0, "a", 101, false)
		w.raise(90 + 200)
		w.mustRelease(0, "a")
		w.mustTake(1, "b", 291, false)
		w.mustRelease(1, "b")
		q := w.request("c")
		q.Above = 400
		if got, err := w.locks[0].Take(bg, q); err != nil || got.Token != 401 {
			w.t.Fatalf("%+v, %v", got, err)
		}
		w.mustRelease(0, "c")
		if _, err := w.stores[0].Reset(bg, res, 7); err != nil { // which takes down what was seen
			w.t.Fatal(err)
		}
		w.mustTake(0, "d", 402, false)
	}},
	{"a token that is raised, or a fence that is reset, while one is issued, counts", func(w *lockWorld) {
		w.raise(1)
		once := func(change func()) {
			w.faults[0].swap = func(do func() (int64, error)) (int64, error) {
				w.faults[0].swap = nil
				change()
				return do()
			}
		}
		once(func() { w.raise(50) })
		w.mustTake(0, "a", 51, false)
		w.mustRelease(0, "a")
		once(func() {
			if _, err := w.stores[0].Reset(bg, res, 60); err != nil {
				w.t.Error(err)
			}
		})
		w.mustTake(0, "b", 61, false)
		once(func() { w.raise(70) })
		w.mustRenew(0, "b", 61) // is no business of a renewal
	}},
	{"of two who take the lock at once, one has it", func(w *lockWorld) {
		w.faults[0].swap = func(do func() (int64, error)) (int64, error) {
			w.faults[0].swap = nil
			w.mustTake(1, "b", 1, false)
			return do()
		}
		_, err := w.take(0, "a")
		var held *tokens.HeldError
		if !errors.As(err, &held) || held.By.Holder != "b" {
			w.t.Fatalf("%v; want it held by b", err)
		}
		w.faults[0].swap = func(do func() (int64, error)) (int64, error) {
			w.mustRenew(1, "b", 1)
			return do()
		}
		w.clock.pass(lockTTL, 0)
		if _, err := w.take(0, "a"); !errors.As(err, &held) { // the renewal was in time
			w.t.Fatalf("%v; want it held", err)
		}
		if _, err := w.locks[0].Renew(bg, res, lockID("b")); !errors.Is(err, tokens.ErrLockContended) {
			w.t.Fatalf("%v; want it contended", err)
		}
	}},
	{"who does not know whether it has the lock asks again with the same id", func(w *lockWorld) {
		for i, done := range []bool{true, false} {
			name := fmt.Sprint("a", i)
			w.faults[0].swap = func(do func() (int64, error)) (int64, error) {
				w.faults[0].swap = nil
				if done {
					if _, err := do(); err != nil {
						w.t.Error(err)
					}
				}
				return 0, errBroken
			}
			if _, err := w.take(0, name); !errors.Is(err, tokens.ErrUnavailable) || !errors.Is(err, errBroken) {
				w.t.Fatalf("%v; want it unavailable", err)
			}
			w.mustTake(i, name, tokens.Token(i+1), false)
			w.mustRelease(0, name)
		}
	}},
	{"what takes effect late takes effect only if nothing has changed", func(w *lockWorld) {
		var late []func() (int64, error)
		w.faults[0].swap = func(do func() (int64, error)) (int64, error) {
			late = append(late, do)
			return 0, errBroken
		}
		_, _ = w.take(0, "a")
		w.faults[0].swap = nil
		w.mustTake(1, "b", 1, false)
		w.faults[0].swap = func(do func() (int64, error)) (int64, error) {
			late = append(late, do)
			return 0, errBroken
		}
		_, _ = w.locks[0].Renew(bg, res, lockID("b"))
		_ = w.locks[0].Release(bg, res, lockID("b"))
		w.clock.pass(lockTTL, 0)
		w.mustTake(1, "c", 2, true)
		if len(late) != 3 {
			w.t.Fatalf("%d swaps are late", len(late))
		}
		for _, do := range late {
			if version, err := do(); version != 0 || err != nil {
				w.t.Errorf("version %d, %v; want nothing done", version, err)
			}
		}
		w.mustBeHeld(0, "c", 2)
	}},
	{"all tokens are raised, those that were issued too, and leases are over", raiseAllLocks},
	{"tokens end before there is none to raise to", func(w *lockWorld) {
		w.raise(tokens.Max - tokens.LockMargin - 1)
		w.mustTake(0, "a", tokens.Max-tokens.LockMargin, false)
		w.mustRelease(0, "a")
		_, err := w.take(0, "b")
		var spent *tokens.SpentError
		if !errors.As(err, &spent) || spent.Highest != tokens.Max-tokens.LockMargin || spent.Resource != res || !spent.Issued {
			w.t.Errorf("%v; want no token left", err)
		}
	}},
	{"an issued token is not too far, however many were issued and not used", func(w *lockWorld) {
		w.raise(1)
		for i := range 10 {
			w.mustTake(0, fmt.Sprint("a", i), tokens.Token(2+i), false)
			w.mustRelease(0, fmt.Sprint("a", i))
		}
		f := tokens.NewFence(w.stores[0], tokens.Options{})
		defer f.Close(bg)
		claim := tokens.Claim{Resource: res, Token: 12, MaxAdvance: 3}
		_, err := f.Announce(bg, claim)
		var far *tokens.TooFarError
		if !errors.As(err, &far) {
			w.t.Errorf("beyond all that was issued: %v; want it too far", err)
		}
		claim.Token = 11
		if _, err := f.Announce(bg, claim); err != nil {
			w.t.Errorf("the last one that was issued: %v", err)
		}
	}},
	{"locks know nothing of each other, whatever bytes are in their names", func(w *lockWorld) {
		names := []string{res, res + "/", res + "\xff", "b/\x00", "b/'", "b/\u00e9", strings.Repeat("b/", 500)}
		for round := range 2 {
			for i, name := range names {
				for j := range i + 1 {
					id := lockID(fmt.Sprint(round, "-", i, "-", j))
					got, err := w.locks[j%2].Take(bg, tokens.LockRequest{Resource: name, Lease: id, Holder: "a", AccessKey: "AK", TTL: time.Hour})
					if err != nil || got.Token != tokens.Token(round*(i+1)+j+1) || got.Resource != name {
						w.t.Fatalf("%q: %+v, %v", name, got, err)
					}
					if err := w.locks[0].Release(bg, name, id); err != nil {
						w.t.Fatal(err)
					}
				}
			}
		}
		if all, err := w.stores[0].List(bg, "", "", 10); len(all) != 0 || err != nil {
			w.t.Errorf("locks have raised fences: %+v, %v", all, err)
		}
	}},
	{"many at once: each token once, and higher than all before", lockStorm},
}

func raiseAllLocks(w *lockWorld) {
	if w.engine.RaiseAll == nil {
		return
	}
	take := func(resource, name string) (tokens.Lease, error) {
		return w.locks[0].Take(bg, tokens.LockRequest{Resource: resource, Lease: lockID(name), Holder: name, TTL: lockTTL})
	}
	w.raise(5)
	w.mustTake(0, "a", 6, false) // res: seen 5, issued 6
	for i := range 120 {         // only locked, and more than fit into one step
		if _, err := take(fmt.Sprintf("b/%03d", i), "a"); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := w.locks[0].Release(bg, "b/001", lockID("a")); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.stores[0].Raise(bg, tokens.Claim{Resource: "b/seen", Token: 50}); err != nil {
		w.t.Fatal(err)
	}
	w.close()
	var over *tokens.OverflowError
	if n, err := w.engine.RaiseAll(w.t, tokens.Max-5); n != 0 || !errors.As(err, &over) || over.Token != 50 {
		w.t.Errorf("beyond the highest: %d, %v", n, err)
	}
	if n, err := w.engine.RaiseAll(w.t, 1000); n != 122 || err != nil {
		w.t.Errorf("%d, %v; want 122", n, err)
	}
	w.open()
	for resource, want := range map[string]tokens.Token{res: 1006, "b/000": 1001, "b/119": 1001, "b/seen": 1050} {
		if e, err := w.stores[0].Lookup(bg, resource); err != nil || e.Token != want {
			w.t.Errorf("%+v, %v; want token %d: what was issued counts as seen", e, err, want)
		}
	}
	w.mustBeLost(w.locks[0].Release(bg, res, lockID("a")), "")
	_, err := w.locks[0].Renew(bg, res, lockID("a"))
	w.mustBeLost(err, "")
	w.mustTake(1, "b", 1007, true)
	if _, err := w.stores[0].Reset(bg, "b/000", 3); err != nil { // what was issued is not taken down with what was seen
		w.t.Fatal(err)
	}
	for resource, takenOver := range map[string]bool{"b/000": true, "b/001": false, "b/119": true} {
		if got, err := take(resource, "b"); err != nil || got.Token != 1002 || got.TakenOver != takenOver {
			w.t.Errorf("%+v, %v; want token 1002, taken over: %v", got, err, takenOver)
		}
	}
}

// lockStorm: what is done at once has some order in the store, and the tokens have the same.
func lockStorm(w *lockWorld) {
	const clients, rounds = 8, 5
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	var mu sync.Mutex
	var got []tokens.Token // in the order of their holds; guarded by mu
	holders := 0           // guarded by mu
	var tasks sync.WaitGroup
	for c := range clients {
		tasks.Go(func() {
			for round := range rounds {
				q := w.request(fmt.Sprint("c", c, "-", round))
				var l tokens.Lease
				err := again(ctx, func() (err error) {
					l, err = w.locks[(c+round)%2].Take(ctx, q)
					return err
				})
				if err != nil {
					w.t.Errorf("take: %v", err)
					return
				}
				mu.Lock()
				got = append(got, l.Token)
				if holders++; holders > 1 {
					w.t.Error("two hold the lock")
				}
				mu.Unlock()
				mu.Lock()
				holders--
				mu.Unlock()
				if err := again(ctx, func() error { return w.locks[c%2].Release(ctx, res, q.Lease) }); err != nil {
					w.t.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	tasks.Wait()
	if len(got) != clients*rounds || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		w.t.Errorf("tokens %v", got)
	}
}

// again asks until the answer is definite, or ctx ends.
func again(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if ctx.Err() != nil || !errors.As(err, new(*tokens.HeldError)) && !errors.Is(err, tokens.ErrLockContended) && !errors.Is(err, tokens.ErrUnavailable) {
			return err
		}
	}
}
