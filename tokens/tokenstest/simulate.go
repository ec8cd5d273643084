package tokenstest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

var (
	seeds = flag.Int("seeds", 20, "how many simulations to run")
	first = flag.Uint64("seed", 1, "the seed of the first simulation")
)

// simulate runs random writers over random restarts, a seed each. It fails if no run had an effect after the end of the process
// that sent it: a simulation in which nothing is late proves nothing.
func (h Harness) simulate(t *testing.T) {
	late := 0
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			h.inBubble(t, func(w *world) {
				s := &simulation{world: w, seed: seed}
				s.run()
				w.mu.Lock()
				defer w.mu.Unlock()
				late += w.late
			})
		})
	}
	if late == 0 {
		t.Error("no effect was ever late")
	}
}

// A simulation is twenty minutes in the life of two resources: writers of all ages with a store that is late, fails or does not
// answer, and an operator who kills and stops the proxy and resets a fence.
type simulation struct {
	*world
	seed  uint64
	until time.Time

	mu   sync.Mutex
	last tokens.Token  // what the lock service gave out last; guarded by mu
	up   *tokens.Fence // of the run that answers, nil between two; guarded by mu
}

func (s *simulation) run() {
	s.stop(0)
	s.options = tokens.Options{Idle: 10 * time.Second}
	s.start()
	s.setUp(s.fence)
	s.until = time.Now().Add(20 * time.Minute)
	var actors sync.WaitGroup
	for i := range uint64(6) {
		actors.Go(func() { s.writer(s.actor(i + 1)) })
	}
	actors.Go(func() { s.operator(s.actor(0)) })
	actors.Wait()
	time.Sleep(2 * longSettle) // the last effects
}

// longSettle is the settle time of copies.
const longSettle = 3 * settle

// An actor draws its own luck, so that a seed says what each does, whatever the scheduler makes of it.
type actor struct{ *rand.Rand }

func (s *simulation) actor(i uint64) actor { return actor{rand.New(rand.NewPCG(s.seed, i))} }

func (a actor) sleep(atMost time.Duration) { time.Sleep(a.upTo(atMost)) }

func (a actor) upTo(atMost time.Duration) time.Duration { return time.Duration(a.IntN(int(atMost))) }

// acquire is the lock service.
func (s *simulation) acquire() tokens.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

func (s *simulation) operator(a actor) {
	for time.Now().Before(s.until) {
		a.sleep(3 * time.Minute)
		switch a.IntN(5) {
		case 0, 1:
			s.setUp(nil)
			s.kill()
		case 2, 3:
			s.stop(a.upTo(20 * time.Second)) // writers go on until it is closed
			s.setUp(nil)
		default:
			s.reset(a)
			continue
		}
		a.sleep(10 * time.Second)
		s.start()
		s.setUp(s.fence)
	}
}

// reset takes a fence down. What was answered before counts no more.
func (s *simulation) reset(a actor) {
	ctx, cancel := context.WithTimeout(context.Background(), a.upTo(2*longSettle))
	defer cancel()
	resource := fmt.Sprintf("bucket/jobs/%d", a.IntN(2))
	if _, err := s.fence.Reset(ctx, resource, tokens.Token(a.IntN(3))); err == nil || s.h.Silence > 0 {
		s.world.mu.Lock()
		s.acked[resource] = 0
		s.resets[resource]++
		s.world.mu.Unlock()
	}
}

func (s *simulation) setUp(f *tokens.Fence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = f
}

// proxy is the run that answers now.
func (s *simulation) proxy() (f *tokens.Fence, run int) {
	for {
		s.mu.Lock()
		f, run = s.up, s.now()
		s.mu.Unlock()
		if f != nil {
			return f, run
		}
		time.Sleep(time.Second) // not on a mutex, which virtual time does not pass
	}
}

// writer is a client that sometimes takes the lock, and often goes on without noticing that it has lost it.
func (s *simulation) writer(a actor) {
	var mine tokens.Token // 0: begins without one
	for time.Now().Before(s.until) {
		a.sleep(20 * time.Second)
		if a.IntN(4) == 0 {
			mine = s.acquire()
		}
		c := claim(mine)
		c.Resource = fmt.Sprintf("bucket/jobs/%d", a.IntN(2))
		if a.IntN(4) == 0 {
			c.Settle = longSettle
		}
		if mine > 0 && a.IntN(3) == 0 {
			c.Holder = fmt.Sprint(mine)
		}
		f, run := s.proxy()
		if mine > 0 && a.IntN(5) == 0 {
			s.announce(f, run, c)
		} else {
			s.oneWrite(a, f, run, c)
		}
	}
}

func (s *simulation) announce(f *tokens.Fence, run int, c tokens.Claim) {
	generation := s.generation(c.Resource)
	if _, err := f.Announce(context.Background(), c); err == nil {
		s.answer(run, generation, c)
	}
}

func (s *simulation) oneWrite(a actor, f *tokens.Fence, run int, c tokens.Claim) {
	w, err := f.Begin(context.Background(), c)
	if err != nil {
		return
	}
	defer w.End()
	a.sleep(10 * time.Second) // the upload
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if a.IntN(5) == 0 {
		time.AfterFunc(a.upTo(10*time.Second), leave)
	}
	if w.Admit(ctx) != nil {
		return
	}
	if run != s.now() {
		return // the process died between the gate and the send
	}
	generation := s.generation(c.Resource)
	switch a.IntN(10) {
	case 0:
		a.sleep(c.Settle / 3)
		w.Failed()
	case 1:
		s.send(c.Resource, c.Token, a.upTo(c.Settle))
		a.sleep(c.Settle / 3) // the deadline of the answer
		w.InDoubt()
	case 2: // a handler that panics: End leaves it in doubt
		s.send(c.Resource, c.Token, a.upTo(c.Settle))
	default:
		latency := a.upTo(c.Settle / 3)
		s.send(c.Resource, c.Token, latency)
		time.Sleep(latency)
		time.Sleep(time.Millisecond)
		w.Done()
		s.answer(run, generation, c)
	}
}

// generation counts the resets of a resource, as the registry has it.
func (s *simulation) generation(resource string) int64 {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	return s.resets[resource]
}

// answer tells a client yes, if the process is there to tell it.
func (s *simulation) answer(run int, generation int64, c tokens.Claim) {
	if run == s.now() && generation == s.generation(c.Resource) {
		s.ack(c.Resource, c.Token)
	}
}
