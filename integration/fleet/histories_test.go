package fleet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/histories"
)

var (
	count     = flag.Int("histories", 0, "how many histories to run over each registry and store; 0: none, and with FENCEPROXY_LONG 25")
	firstSeed = flag.Uint64("seed", 1, "the seed of the first history")
)

const (
	clientWait = 250 * time.Millisecond // of a client between two ops: faults last for seconds here
	attempts   = 3                      // at a history, where the store was slower than its settle time
)

// lateEffects are those of a store that took its time behind the back of a proxy.
const lateEffects = "late effects in the store's ledger"

// histories of each registry and store, and events of each.
func amount() (each, events int) {
	each, events = 1, 4
	if long {
		each, events = 25, 6
	}
	if *count > 0 {
		each = *count
	}
	return each, events
}

// TestHistories: whatever is stopped, killed, restarted, parted and delivered late, what clients were told by any proxy and what readers of
// the store see fits the promise.
func TestHistories(t *testing.T) {
	if !long && *count == 0 {
		return // it takes three proxies, clients, registry and store minutes on a small machine: the long form runs it
	}
	all := histories.NewTotals()
	t.Cleanup(func() {
		for _, what := range []string{histories.HandedOver, histories.SeenUnknown} {
			if all.Ops > 0 && all.Met[what] == 0 {
				t.Errorf("%q never happened in all histories together: there was nothing that could have gone wrong, and they show nothing", what)
			}
		}
	})
	forEachEngine(t, "", func(t *testing.T, kind engineKind) {
		start := time.Now()
		each, _ := amount()
		sum := histories.NewTotals()
		ran := 0
		t.Run("seeds", func(t *testing.T) {
			for i := range each {
				for _, misbehaving := range []bool{false, true} {
					ran++
					seed := *firstSeed + uint64(i)
					name := "versitygw"
					if misbehaving {
						name = "misbehave"
					}
					t.Run(fmt.Sprintf("%s/seed%d", name, seed), func(t *testing.T) {
						t.Parallel()
						for n := 1; !oneHistory(t, kind, seed, misbehaving, sum, all); n++ {
							if n == attempts {
								t.Errorf("the store took too long over an answer, %d times: on this machine nothing is shown", attempts)
								return
							}
						}
					})
				}
			}
		})
		t.Logf("%s: %d histories, %d ops, %d runs void, in %v; %v", kind.name, ran, sum.Ops, sum.Void, time.Since(start).Round(time.Second), sum.Met)
		for _, what := range append(kindsOf(kind), histories.Unanswered, histories.Refusals, histories.SeenUnknown, histories.HandedOver, lateEffects) {
			if sum.Met[what] == 0 && each >= 6 && !t.Failed() {
				t.Errorf("%q never happened in %d histories: they show nothing of it", what, ran)
			}
		}
	})
}

func kindsOf(kind engineKind) []string { return append([]string{kind.unseat}, faultKinds...) }

// oneHistory runs and checks one. It says false, and nothing else, if the store broke the assumption that the promise rests on.
func oneHistory(t *testing.T, kind engineKind, seed uint64, misbehaving bool, sums ...*histories.Totals) bool {
	// Each store begins elsewhere in the kinds, so that one history on each goes through eight of them.
	_, events := amount()
	place := 2 * seed
	if misbehaving {
		place++
	}
	plan := histories.Plan(kindsOf(kind), place, events)
	for i, what := range plan {
		if what == kind.unseat {
			kind.start = kind.spread
			plan[i] = unseatRegistry
		}
	}
	f := newFleet(t, kind, options{bare: seed%2 == 0, misbehaving: misbehaving, seed: seed})
	n := &nemesis{fleet: f, rand: rand.New(rand.NewPCG(seed, 1))}
	to := histories.Target{Client: f.client, Address: func() string { return f.balancer.address }, Open: f.store.open, Wait: clientWait}
	rec, err := histories.Play(t, to, seed, func(rec *histories.Recorder) error {
		n.rec = rec
		return n.run(plan)
	})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	f.stop()
	for _, m := range f.members {
		if slowest := m.toStore.Stats().Slowest; slowest > f.settle-f.settle/3 {
			t.Logf("void: the store took %v over an answer", slowest)
			for _, sum := range sums {
				sum.AddVoid()
			}
			return false
		}
		if f.balancer.sentTo(m.number) == 0 {
			t.Errorf("proxy %d got no request", m.number)
		}
	}
	for i, e := range n.events {
		if e.What == unseatRegistry {
			n.events[i].What = kind.unseat
		}
	}
	r := histories.Record{
		Seed: seed, Store: kind.name, Fleet: true, Events: n.events, History: rec.History, Unexpected: rec.Unexpected,
	}
	r.JudgeAll(t)
	for _, sum := range sums {
		sum.Add(r)
	}
	if misbehaving {
		violations, late := f.store.judge(rec.Start, rec.History)
		for _, v := range violations {
			t.Error(v)
		}
		t.Logf("%d effects, %d of them late; %v", len(f.store.ledger), late, f.store.faults)
		for _, sum := range sums {
			sum.Count(lateEffects, late)
		}
	}
	return true
}
