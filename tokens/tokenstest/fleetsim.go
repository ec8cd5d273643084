package tokenstest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// SimulateFleet runs random writers through three instances on which everything happens that may happen to them, a seed each. Time is virtual. It
// fails if no effect came behind the end of the lease under which it was let through, if none was older than what another instance answered next,
// and if no call took effect behind its caller's back: a simulation in which nothing is late proves nothing.
func SimulateFleet(t *testing.T, engine func(t testing.TB, seed uint64) Engine) {
	var sum fleetCounts
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			h := FleetHarness{Engine: func(t testing.TB) Engine { return engine(t, seed) }}
			h.run(t, func(w *fleetWorld) {
				s := &fleetSimulation{fleetWorld: w, seed: seed, ups: map[*instance]up{}}
				s.run()
				sum.add(s)
			})
		})
	}
	t.Logf("%d seeds: %d effects, %d of them behind the end of the lease under which they were let through, %d older than what another instance answered next, "+
		"%d of these only for want of a name, %d answers, %d resets, %d leases lost by instances that went on, %d calls that took effect when their caller had given up",
		*seeds, sum.Effects, sum.Late, sum.Crossed, sum.Bound, sum.Answers, sum.Resets, sum.Lost, sum.LateCalls)
	if sum.Late == 0 || sum.Crossed == 0 || sum.LateCalls == 0 || sum.Resets == 0 || sum.Lost == 0 || sum.Answers == 0 || sum.Bound == 0 && *seeds >= 100 {
		t.Errorf("something never happened: %+v", sum)
	}
}

// fleetCounts is what happened.
type fleetCounts struct {
	Effects   int
	Late      int // effects when the lease was over under which they were let through
	Crossed   int // effects that were older than what another instance answered next
	Bound     int // those of them with the same token, and no holder
	Answers   int // clients that were told yes
	Resets    int // that were answered
	Lost      int // leases, by instances that went on
	LateCalls int // calls that took effect when their caller had given up
}

func (c *fleetCounts) add(s *fleetSimulation) {
	s.fleetWorld.mu.Lock()
	defer s.fleetWorld.mu.Unlock()
	c.Effects += s.landed
	c.Late += s.late
	c.Crossed += s.crossed
	c.Bound += s.bound
	c.Answers += s.counts.Answers
	c.Resets += s.counts.Resets
	c.Lost += s.counts.Lost
	c.LateCalls += s.counts.LateCalls
}

type fleetSimulation struct {
	*fleetWorld
	seed  uint64
	until time.Time

	mu     sync.Mutex
	last   [2]tokens.Token  // what the lock service gave out last for each resource; guarded by mu
	ups    map[*instance]up // of the instances that answer; guarded by mu
	runs   int              // guarded by mu
	counts fleetCounts      // guarded by fleetWorld.mu
}

// up is a run of an instance.
type up struct {
	run         int
	fence       *tokens.Fence
	link        *link
	incarnation func() uint64
}

func (s *fleetSimulation) run() {
	all := []*instance{s.a, s.b, s.c}
	for _, i := range all {
		if i.reg != nil {
			i.stop(0)
		}
		i.options = tokens.Options{Idle: s.lease, RaiseWait: s.lease}
		i.start()
	}
	s.until = time.Now().Add(15 * time.Minute)
	var actors, writers sync.WaitGroup
	for n, i := range all {
		s.begun(i)
		actors.Go(func() { s.nemesis(s.actor(uint64(100+n)), i) })
	}
	actors.Go(func() { s.operator(s.actor(0)) })
	for n := range uint64(9) {
		writers.Go(func() { s.writer(s.actor(n + 1)) })
	}
	actors.Wait()
	writers.Wait()
	time.Sleep(s.lease + 3*s.settle) // the last effects
	s.mu.Lock()
	token := s.last[0] + 1000
	s.mu.Unlock()
	for _, i := range all {
		s.eventually(2*s.lease, "every instance at work again", func() bool { return i.try(token) == nil })
		s.gone(i)
	}
}

func (s *fleetSimulation) actor(i uint64) actor { return actor{rand.New(rand.NewPCG(s.seed, i))} }

func (s *fleetSimulation) begun(i *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	s.ups[i] = up{s.runs, i.fence, i.link, i.reg.Incarnation}
}

// gone ends a run: nothing is let through by it, sent or answered from then on.
func (s *fleetSimulation) gone(i *instance) {
	s.mu.Lock()
	delete(s.ups, i)
	s.mu.Unlock()
	s.fleetWorld.mu.Lock()
	s.counts.LateCalls += i.link.lateCalls()
	s.fleetWorld.mu.Unlock()
}

func (s *fleetSimulation) is(i *instance, run int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ups[i].run == run
}

// any is an instance that answers.
func (s *fleetSimulation) any(a actor) (*instance, up) {
	for {
		i := []*instance{s.a, s.b, s.c}[a.IntN(3)]
		s.mu.Lock()
		u, ok := s.ups[i]
		s.mu.Unlock()
		if ok {
			return i, u
		}
		time.Sleep(time.Second)
	}
}

// nemesis is what happens to one instance, one thing after the other.
func (s *fleetSimulation) nemesis(a actor, i *instance) {
	for time.Now().Before(s.until) {
		a.sleep(time.Minute)
		before := i.reg.Incarnation()
		switch a.IntN(9) {
		case 0:
			i.link.partition()
			a.sleep(2 * s.lease)
			i.link.mend()
		case 1, 2:
			s.unreliable(a, i)
		case 3:
			i.pause()
			a.sleep(2 * s.settle)
			i.resume()
		case 4:
			wrong := time.Hour - a.upTo(2*time.Hour)
			i.clock.set(wrong)
			a.sleep(s.lease)
			i.link.partition()
			a.sleep(3 * s.lease)
			i.link.mend()
			i.clock.set(-wrong)
		case 5:
			i.link.set(func(l *link) { l.dropHints = true })
			a.sleep(s.settle)
			i.link.mend()
		case 6:
			s.gone(i)
			i.kill()
			s.again(a, i)
			continue
		case 7, 8:
			ctx, cancel := context.WithTimeout(context.Background(), a.upTo(s.settle))
			_ = i.fence.Close(ctx) // writers go on until it is closed
			cancel()
			s.gone(i)
			i.setUp(nil)
			_ = i.reg.Close()
			s.again(a, i)
			continue
		}
		a.sleep(s.lease)
		if now := i.reg.Incarnation(); now != before {
			s.fleetWorld.mu.Lock()
			s.counts.Lost++
			s.fleetWorld.mu.Unlock()
		}
	}
}

func (s *fleetSimulation) again(a actor, i *instance) {
	a.sleep(3 * s.lease)
	i.options = tokens.Options{Idle: s.lease, RaiseWait: s.lease}
	if a.IntN(2) == 0 {
		i.options.Resources = 1 // each resource drives the other out of memory, if it has nothing under way
	}
	i.start()
	s.begun(i)
}

// unreliable has calls be lost, or late, or their answers, for a while.
func (s *fleetSimulation) unreliable(a actor, i *instance) {
	luck := actor{rand.New(rand.NewPCG(s.seed, a.Uint64()))}
	often := 2 + a.IntN(6)
	beats := a.IntN(2) == 0
	var mu sync.Mutex
	i.link.set(func(l *link) {
		l.faults = func(call string) fault {
			mu.Lock()
			defer mu.Unlock()
			if luck.IntN(often) > 0 || !beats && (call == "Beat" || call == "Look") {
				return fault{}
			}
			switch luck.IntN(4) {
			case 0:
				return fault{lost: true, before: luck.upTo(s.lease)}
			case 1:
				return fault{unanswered: true, before: luck.upTo(s.lease / 2)}
			case 2:
				return fault{before: luck.upTo(s.settle)} // its caller waits for half a lease
			default:
				return fault{before: luck.upTo(s.lease / 5), after: luck.upTo(s.lease / 2)}
			}
		}
	})
	a.sleep(2 * s.settle)
	i.link.mend()
}

// operator resets fences. The lock service begins anew with some.
func (s *fleetSimulation) operator(a actor) {
	for time.Now().Before(s.until) {
		a.sleep(3 * time.Minute)
		i, u := s.any(a)
		n := a.IntN(2)
		s.mu.Lock()
		s.last[n] += 100
		if a.IntN(3) > 0 {
			s.last[n] = 0
		}
		t := s.last[n]
		s.mu.Unlock()
		resource := resourceName(n)
		ctx, cancel := context.WithTimeout(context.Background(), a.upTo(3*s.settle))
		e, err := u.fence.Reset(ctx, resource, t)
		cancel()
		if err == nil && s.is(i, u.run) {
			s.ack(resource, stamp{e.Generation, e.Token, 0, i})
			s.fleetWorld.mu.Lock()
			s.counts.Resets++
			s.fleetWorld.mu.Unlock()
		}
	}
}

func resourceName(n int) string { return fmt.Sprintf("bucket/jobs/%d", 7+n) }

// lock is the lock service: it gives out a new token, or, to another process of the same client, the last one again.
func (s *fleetSimulation) lock(a actor, n int) tokens.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.IntN(2) == 0 {
		s.last[n]++
	}
	return s.last[n]
}

// writer is a client that sometimes takes the lock, and often goes on without noticing that it has lost it.
func (s *fleetSimulation) writer(a actor) {
	var mine [2]tokens.Token // 0: begins without one
	for time.Now().Before(s.until) {
		a.sleep(10 * time.Second)
		n := a.IntN(2)
		if a.IntN(3) == 0 {
			mine[n] = s.lock(a, n)
		}
		c := tokens.Claim{Resource: resourceName(n), Token: mine[n], Settle: s.settle}
		if a.IntN(4) == 0 {
			c.Settle = 2 * s.settle
		}
		if mine[n] > 0 && a.IntN(3) == 0 {
			c.Holder = fmt.Sprint(mine[n])
		}
		i, u := s.any(a)
		u.link.thaw()
		if mine[n] > 0 && a.IntN(5) == 0 {
			e, err := u.fence.Announce(context.Background(), c)
			if err == nil && e.Token == c.Token { // else it was reset meanwhile
				s.answer(i, u, c.Resource, claimed(i, e.Generation, c))
			}
			continue
		}
		s.oneWrite(a, i, u, c)
	}
}

func (s *fleetSimulation) oneWrite(a actor, i *instance, u up, c tokens.Claim) {
	w, err := u.fence.Begin(context.Background(), c)
	if err != nil {
		return
	}
	defer w.End()
	a.sleep(10 * time.Second) // the upload
	u.link.thaw()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if a.IntN(5) == 0 {
		time.AfterFunc(a.upTo(10*time.Second), leave)
	}
	if w.Admit(ctx) != nil || !s.is(i, u.run) {
		return // or the process died between the gate and the send
	}
	st, incarnation := stampOf(i, w), u.incarnation()
	send := func(within time.Duration) {
		time.AfterFunc(within, func() { s.land(c.Resource, st, incarnation) })
	}
	switch a.IntN(10) {
	case 0:
		a.sleep(c.Settle / 3)
		w.Failed()
	case 1:
		send(a.upTo(c.Settle))
		a.sleep(c.Settle / 3) // the deadline of the answer
		w.InDoubt()
	case 2: // a handler that panics: End leaves it in doubt
		send(a.upTo(c.Settle))
	default:
		latency := a.upTo(c.Settle / 3)
		send(latency)
		time.Sleep(latency + time.Millisecond)
		w.Done()
		s.answer(i, u, c.Resource, st)
	}
}

// answer tells a client yes, if the process is there to tell it.
func (s *fleetSimulation) answer(i *instance, u up, resource string, st stamp) {
	if s.is(i, u.run) {
		s.ack(resource, st)
		s.fleetWorld.mu.Lock()
		s.counts.Answers++
		s.fleetWorld.mu.Unlock()
	}
}
