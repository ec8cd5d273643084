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
				s := &simulation{world: w, rnd: rand.New(rand.NewPCG(seed, 0))}
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
// answer, and an operator who kills and stops the proxy.
type simulation struct {
	*world
	rndMu sync.Mutex
	rnd   *rand.Rand // guarded by rndMu

	last  tokens.Token // what the lock service gave out last; guarded by rndMu
	until time.Time

	upMu sync.Mutex
	up   *tokens.Fence // of the run that answers, nil between two; guarded by upMu
}

func (s *simulation) run() {
	s.stop(0)
	s.options = tokens.Options{Idle: 10 * time.Second}
	s.start()
	s.setUp(s.fence)
	s.until = time.Now().Add(20 * time.Minute)
	var actors sync.WaitGroup
	for range 6 {
		actors.Go(s.writer)
	}
	actors.Go(s.operator)
	actors.Wait()
	time.Sleep(2 * settle) // the last effects
}

func (s *simulation) n(n int) int {
	s.rndMu.Lock()
	defer s.rndMu.Unlock()
	return s.rnd.IntN(n)
}

func (s *simulation) sleep(atMost time.Duration) {
	time.Sleep(time.Duration(s.n(int(atMost))))
}

// acquire is the lock service.
func (s *simulation) acquire() tokens.Token {
	s.rndMu.Lock()
	defer s.rndMu.Unlock()
	s.last++
	return s.last
}

func (s *simulation) operator() {
	for time.Now().Before(s.until) {
		s.sleep(3 * time.Minute)
		if s.n(2) == 0 {
			s.setUp(nil)
			s.kill()
		} else {
			s.stop(time.Duration(s.n(int(20 * time.Second)))) // writers go on until it is closed
			s.setUp(nil)
		}
		s.sleep(10 * time.Second)
		s.start()
		s.setUp(s.fence)
	}
}

func (s *simulation) setUp(f *tokens.Fence) {
	s.upMu.Lock()
	defer s.upMu.Unlock()
	s.up = f
}

// proxy is the run that answers now.
func (s *simulation) proxy() (f *tokens.Fence, run int) {
	for {
		s.upMu.Lock()
		f, run = s.up, s.now()
		s.upMu.Unlock()
		if f != nil {
			return f, run
		}
		time.Sleep(time.Second) // not on a mutex, which virtual time does not pass
	}
}

// writer is a client that sometimes takes the lock, and often goes on without noticing that it has lost it.
func (s *simulation) writer() {
	var mine tokens.Token // 0: begins without one
	for time.Now().Before(s.until) {
		s.sleep(20 * time.Second)
		if s.n(4) == 0 {
			mine = s.acquire()
		}
		c := claim(mine)
		c.Resource = fmt.Sprintf("bucket/jobs/%d", s.n(2))
		f, run := s.proxy()
		if mine > 0 && s.n(5) == 0 {
			s.announce(f, run, c)
		} else {
			s.oneWrite(f, run, c)
		}
	}
}

func (s *simulation) announce(f *tokens.Fence, run int, c tokens.Claim) {
	if _, err := f.Announce(context.Background(), c); err == nil {
		s.answer(run, c)
	}
}

func (s *simulation) oneWrite(f *tokens.Fence, run int, c tokens.Claim) {
	w, err := f.Begin(context.Background(), c)
	if err != nil {
		return
	}
	defer w.End()
	s.sleep(10 * time.Second) // the upload
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if s.n(5) == 0 {
		time.AfterFunc(time.Duration(s.n(int(10*time.Second))), leave)
	}
	if w.Admit(ctx) != nil {
		return
	}
	if run != s.now() {
		return // the process died between the gate and the send
	}
	switch s.n(10) {
	case 0:
		s.sleep(settle / 3)
		w.Failed()
	case 1:
		s.send(c.Resource, c.Token, time.Duration(s.n(int(settle))))
		s.sleep(settle / 3) // the deadline of the answer
		w.InDoubt()
	case 2: // a handler that panics: End leaves it in doubt
		s.send(c.Resource, c.Token, time.Duration(s.n(int(settle))))
	default:
		latency := time.Duration(s.n(int(settle / 3)))
		s.send(c.Resource, c.Token, latency)
		time.Sleep(latency)
		time.Sleep(time.Millisecond)
		w.Done()
		s.answer(run, c)
	}
}

// answer tells a client yes, if the process is there to tell it.
func (s *simulation) answer(run int, c tokens.Claim) {
	if run == s.now() {
		s.ack(c.Resource, c.Token)
	}
}
