package histories

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

const (
	defaultHistories = 10
	attempts         = 3 // at a history, where the store was slower than its settle time
)

// TestHistories: whatever is stopped, killed, cut, delayed and delivered late, what clients were told and what readers see fits the
// promise.
func TestHistories(t *testing.T) {
	start := time.Now()
	each := max(1, *histories/2)
	t.Run("file", func(t *testing.T) { runHistories(t, "", each) })
	t.Run("s3", func(t *testing.T) { runHistories(t, Gateway(t), each) })
	t.Logf("%d histories on each store, in %v", each, time.Since(start).Round(time.Millisecond))
}

func runHistories(t *testing.T, gateway string, count int) {
	kinds := kindsFor(gateway != "")
	sum := NewTotals()
	t.Run("seeds", func(t *testing.T) {
		for i := range count {
			seed := *firstSeed + uint64(i)
			t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
				t.Parallel()
				for n := 1; !oneHistory(t, gateway, seed, Plan(kinds, seed, eventsEach), sum); n++ {
					if n == attempts {
						t.Errorf("versitygw took longer than %v over an answer, %d times: on this machine nothing is shown", longestTaken, n)
						return
					}
				}
			})
		}
	})
	t.Logf("%d histories, %d ops, %d runs void; %v", count, sum.Ops, sum.Void, sum.Met)
	for _, what := range append(kinds, Unanswered, Refusals, SeenUnknown) {
		if sum.Met[what] == 0 && count >= defaultHistories/2 && !t.Failed() {
			t.Errorf("%q never happened in %d histories: they show nothing of it", what, count)
		}
	}
}

// oneHistory runs and checks one. It says false, and nothing else, if the store broke the assumption that the promise rests on.
func oneHistory(t *testing.T, gateway string, seed uint64, plan []string, sum *Totals) bool {
	s := newStack(t, gateway, seed%2 == 0)
	n := &nemesis{stack: s, rand: rand.New(rand.NewPCG(seed, 1))}
	rec, err := Play(t, s.target(), seed, func(rec *Recorder) error {
		n.rec = rec
		n.run(plan)
		return n.failed
	})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	s.stop()
	if s.back != nil && s.back.Stats().Slowest > longestTaken {
		t.Logf("void: versitygw took %v over an answer", s.back.Stats().Slowest)
		sum.AddVoid()
		return false
	}
	name := "file"
	if gateway != "" {
		name = "s3"
	}
	r := Record{Seed: seed, Store: name, Events: n.events, History: rec.History, Unexpected: rec.Unexpected}
	r.JudgeAll(t)
	sum.Add(r)
	return true
}

// TestRecheck checks a recorded history again.
func TestRecheck(t *testing.T) {
	if *recheck == "" {
		t.Skip("nothing to check again: -args -recheck=FILE")
	}
	text, err := os.ReadFile(*recheck)
	var r Record
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.JudgeAll(t)
}
