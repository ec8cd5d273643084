// Package simulation runs the handler, the fence and the drivers that ship, over a store that misbehaves within what is promised of it,
// under random clients, restarts and kills, in virtual time. Every effect in the store is held against what clients were told before.
//
// A seed fixes the choices of everyone, and not every interleaving of goroutines.
package simulation

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

var (
	seeds = flag.Int("seeds", 5, "how many simulations to run of each kind")
	first = flag.Uint64("seed", 1, "the seed of the first simulation")
	trace = flag.Bool("trace", false, "tell all of what happened, also where nothing went wrong")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestOrder: once a token was answered, no write with a lower one takes effect, though the store is late, within its settle time, and
// fails and loses as it likes.
func TestOrder(t *testing.T) {
	run(t, s3Kind, counted...)
}

// TestLate: a store that is late without bound, and judges conditions. What is promised then is that no key is overwritten by an older
// token, unless its content recurred or it was deleted meanwhile, neither of which happens here.
func TestLate(t *testing.T) {
	run(t, lateKind, written, late, lost, restarted, refused, unmet)
}

// TestFile is the file store. It is never late; the process that has it dies at any moment.
func TestFile(t *testing.T) {
	run(t, fileKind, written, paused, restarted, refused)
}

// TestCalm is one writer after the other before a store that does as it should: what a fence that is broken in a subtle way does, too.
func TestCalm(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s3Kind, 0)
		w.calm = true
		w.openStore(t, dir)
		p := w.start(t, dir+"/data")
		say := func(want, key string, token int64) {
			t.Helper()
			a := &writer{world: w, luck: newLuck(0, 0), name: uint64(token), token: token, count: int(w.token.Add(1)), etags: map[string]string{}}
			id := a.nextID()
			r := a.send(id, call{method: http.MethodPut, target: target(key), keys: []string{key}, body: content(id, 100)})
			a.settle(id, key, r, true)
			if got := fmt.Sprint(r.status, r.header.Get("X-Fence-Error")); got != want {
				t.Errorf("token %d on %s: %s, want %s", token, key, got, want)
			}
		}
		say("200", keys[0], 33)
		say("200", keys[0], 34)
		say("412StaleToken", keys[1], 33)
		say("200", keys[2], 1)
		w.stop(p)
		p = w.start(t, p.dir)
		say("412StaleToken", keys[0], 33)
		say("200", keys[1], 34)
		p = w.start(t, w.kill(t, p, dir))
		say("412StaleToken", keys[0], 33)
		say("200", keys[0], 34)
		w.stop(p)
		w.closeStore()
	})
}

// run runs a seed each, and fails if what the test is about never happened: a simulation in which nothing is late proves nothing.
func run(t *testing.T, k kind, must ...event) {
	var all counts
	var mu sync.Mutex
	start := time.Now()
	t.Run("seeds", func(t *testing.T) {
		for seed := *first; seed < *first+uint64(*seeds); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				synctest.Test(t, func(t *testing.T) {
					c := simulate(t, k, seed, dir)
					mu.Lock()
					defer mu.Unlock()
					for e, n := range c {
						all[e] += n
					}
				})
			})
		}
	})
	took := time.Since(start)
	t.Logf("%d seeds, %.1f a second: %s", *seeds, float64(*seeds)/took.Seconds(), all)
	for _, e := range must {
		if all[e] == 0 {
			t.Errorf("not once in %d seeds: %s", *seeds, eventNames[e])
		}
	}
}

// An event is what is counted.
type event int

const (
	written event = iota
	late
	paused
	lost
	restarted
	refused
	unmet
	announced
	cut
	evicted
	events
)

// counted must all happen in TestOrder.
var counted = []event{written, late, paused, lost, restarted, refused, unmet, announced, cut, evicted}

var eventNames = [events]string{
	written:   "writes answered with success",
	late:      "effects after the answer, or after the death of who sent them",
	paused:    "pauses past the gate",
	lost:      "answers that never came",
	restarted: "restarts",
	refused:   "refusals of a stale token",
	unmet:     "conditions that the store found unmet",
	announced: "announcements",
	cut:       "clients that hung up",
	evicted:   "resources that left memory and came back",
}

type counts [events]int

func (c counts) String() string {
	var parts []string
	for e, n := range c {
		parts = append(parts, fmt.Sprintf("%d %s", n, eventNames[e]))
	}
	return strings.Join(parts, ", ")
}

// A luck is one actor's random choices.
type luck struct{ *rand.Rand }

func newLuck(seed uint64, who uint64) luck { return luck{rand.New(rand.NewPCG(seed, who))} }

func (l luck) upTo(most time.Duration) time.Duration { return time.Duration(l.Int64N(int64(most) + 1)) }

func (l luck) sleep(most time.Duration) { time.Sleep(l.upTo(most)) }

// oneIn is true once in n times.
func (l luck) oneIn(n int) bool { return l.IntN(n) == 0 }
