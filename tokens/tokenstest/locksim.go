package tokenstest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// What the simulation of locks has met. It shows nothing of what never happened.
type lockFindings struct{ takes, takeovers, refused, retries, lost, late, two int }

func (m *lockFindings) mustBeWhole(t *testing.T, seeds int) {
	t.Logf("%d seeds: %+v", seeds, *m)
	if seeds >= 10 && (m.takes == 0 || m.takeovers == 0 || m.refused == 0 || m.retries == 0 || m.lost == 0 || m.late == 0 || m.two == 0) {
		t.Errorf("something never happened: %+v", *m)
	}
}

// A simClient wants the lock, has it or believes so.
type simClient struct {
	name  string
	id    string       // of the lease that it has, or asks for; "": of none
	floor tokens.Token // what was seen when it first asked for this lease
	token tokens.Token
	until time.Duration // boot time: it believes that it has the lock until then, by its own clock
	sleep int           // so many steps it is paused, and looks at no clock
}

// simulate lets random clients at random proxies take, keep and release one lock, over a store whose swaps fail, or take effect and fail, or take effect
// much later, while proxies are started anew and tokens are raised and reset beside them. What they are told is held against a
// model of four lines:
//
//   - a token that is answered is higher than all that were answered before, and than all that were seen when it was asked for;
//   - a lock is not answered while somebody else has it by its own clock, which ends a tenth before the TTL;
//   - who has it by its own clock is not told that it is lost;
//   - who renews has the highest token that was answered.
func (w *lockWorld) simulate(seed uint64, met *lockFindings) {
	s := &lockSim{lockWorld: w, rnd: rand.New(rand.NewPCG(seed, 7)), seed: seed, met: met}
	for i := range w.faults {
		w.faults[i].swap = s.swap
	}
	for i := range 4 {
		s.clients = append(s.clients, &simClient{name: fmt.Sprint("c", i)})
	}
	for range 400 {
		s.step()
	}
	s.mustComeFree()
}

type lockSim struct {
	*lockWorld
	rnd     *rand.Rand
	seed    uint64
	met     *lockFindings
	clients []*simClient
	late    []func() (int64, error)
	highest tokens.Token // answered or seen
	last    tokens.Token // answered
	healed  bool
}

func (s *lockSim) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d: %s", s.seed, fmt.Sprintf(format, args...))
}

// swap is one of the stores'.
func (s *lockSim) swap(do func() (int64, error)) (int64, error) {
	if s.healed {
		return do()
	}
	switch s.rnd.IntN(12) {
	case 0: // not done
		return 0, errBroken
	case 1: // done, and reported failed
		_, _ = do()
		return 0, errBroken
	case 2: // done later, maybe
		s.late = append(s.late, do)
		return 0, errBroken
	}
	return do()
}

func (s *lockSim) step() {
	for _, c := range s.clients {
		c.sleep = max(0, c.sleep-1)
	}
	c := s.clients[s.rnd.IntN(len(s.clients))]
	locks := s.locks[s.rnd.IntN(len(s.locks))]
	switch n := s.rnd.IntN(100); {
	case n < 25:
		s.clock.pass(time.Duration(s.rnd.Int64N(int64(lockTTL/2))), time.Duration(s.rnd.Int64N(int64(time.Hour)))-30*time.Minute)
	case n < 30 && len(s.late) > 0:
		i := s.rnd.IntN(len(s.late))
		if version, err := s.late[i](); err == nil && version != 0 {
			s.met.late++
		}
		s.late = append(s.late[:i], s.late[i+1:]...)
	case n < 33:
		c.sleep = 5 + s.rnd.IntN(40)
	case n < 35: // a proxy is started anew
		i := s.rnd.IntN(len(s.locks))
		s.locks[i] = tokens.NewLocks(s.faults[i], s.clock)
	case n < 37:
		s.highest += tokens.Token(s.rnd.Int64N(20)) + 1
		s.raise(s.highest)
	case n < 38:
		to := tokens.Token(s.rnd.Int64N(int64(s.highest) + 1))
		if _, err := s.stores[0].Reset(bg, res, to); err != nil {
			s.fail("reset: %v", err)
		}
		s.highest = max(to, s.last)
		for _, c := range s.clients {
			c.floor = min(c.floor, to)
		}
	case c.sleep > 0:
	case n < 60 && c.token != 0:
		s.renew(c, locks)
	case n < 66 && c.token != 0:
		s.release(c, locks)
	case c.token == 0:
		s.take(c, locks)
	}
}

// believes says whether a client goes on as the holder.
func (s *lockSim) believes(c *simClient) bool { return c.token != 0 && s.clock.Boot() < c.until }

// own is how long a client believes, as locks.Grant has it.
func (s *lockSim) own() time.Duration { return s.clock.Boot() + lockTTL - lockTTL/10 }

func (s *lockSim) take(c *simClient, locks *tokens.Locks) {
	if again := c.id != ""; again {
		s.met.retries++
	} else {
		c.id, c.floor = fmt.Sprintf("%s-%032x", c.name, s.rnd.Uint64()), s.highest
	}
	until := s.own()
	l, err := locks.Take(bg, tokens.LockRequest{Resource: res, Lease: c.id, Holder: c.name, TTL: lockTTL})
	switch {
	case err == nil:
	case errors.As(err, new(*tokens.HeldError)):
		s.met.refused++
		return
	case errors.As(err, new(*tokens.LeaseLostError)):
		s.fail("%s takes the lock: %v, and it never released this one", c.name, err)
	case errors.Is(err, tokens.ErrUnavailable):
		return // unknown: it asks again with the same id
	default:
		s.fail("%s takes the lock: %v", c.name, err)
	}
	if l.Token <= max(s.last, c.floor) {
		s.fail("%s was given token %d after %d, and %d was seen before it asked", c.name, l.Token, s.last, c.floor)
	}
	for _, other := range s.clients {
		if other == c || other.token == 0 {
			continue
		}
		if s.believes(other) {
			s.fail("%s was given the lock with token %d while %s has it with %d", c.name, l.Token, other.name, other.token)
		}
		if other.sleep > 0 {
			s.met.two++ // it is paused and does not look at its clock: no lock can help it
		}
	}
	s.met.takes++
	if l.TakenOver {
		s.met.takeovers++
	}
	c.token, c.until, s.last, s.highest = l.Token, until, l.Token, max(s.highest, l.Token)
}

func (s *lockSim) renew(c *simClient, locks *tokens.Locks) {
	until := s.own()
	l, err := locks.Renew(bg, res, c.id)
	switch {
	case err == nil && (l.Token != c.token || c.token != s.last):
		s.fail("%s renews token %d and is told %d, while %d was answered last", c.name, c.token, l.Token, s.last)
	case err == nil:
		c.until = until
	case errors.As(err, new(*tokens.LeaseLostError)):
		if s.believes(c) {
			s.fail("%s has lost token %d in the time that it was promised: %v", c.name, c.token, err)
		}
		s.met.lost++
		c.id, c.token = "", 0
	case !errors.Is(err, tokens.ErrUnavailable):
		s.fail("%s renews: %v", c.name, err)
	}
}

// release: whatever becomes of it, the client goes on as one that has no lock.
func (s *lockSim) release(c *simClient, locks *tokens.Locks) {
	err := locks.Release(bg, res, c.id)
	if errors.As(err, new(*tokens.LeaseLostError)) && s.believes(c) {
		s.fail("%s releases token %d in the time that it was promised: %v", c.name, c.token, err)
	}
	c.id, c.token = "", 0
}

// mustComeFree: a lock that nobody renews can be taken.
func (s *lockSim) mustComeFree() {
	s.healed = true
	for range 2 { // first it is seen, and then it is over
		_, err := s.locks[1].Take(bg, tokens.LockRequest{Resource: res, Lease: lockID("last"), Holder: "last", TTL: lockTTL})
		if err == nil {
			return
		}
		s.clock.pass(lockTTL, 0)
	}
	if l, err := s.locks[1].Take(bg, tokens.LockRequest{Resource: res, Lease: lockID("last"), Holder: "last", TTL: lockTTL}); err != nil || l.Token <= s.highest {
		s.fail("nobody renews, and the lock does not come free: %+v, %v", l, err)
	}
}
