package histories

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	defaultHistories = 10
	clientsEach      = 4 // of a resource
	attempts         = 3 // at a history, where the store was slower than its settle time
)

// totals are counted over all histories of a store.
type totals struct {
	mu        sync.Mutex
	ops, void int
	met       map[string]int
}

// TestHistories: whatever is stopped, killed, cut, delayed and delivered late, what clients were told and what readers see fits the
// promise.
func TestHistories(t *testing.T) {
	start := time.Now()
	each := max(1, *histories/2)
	t.Run("file", func(t *testing.T) { runHistories(t, "", each) })
	t.Run("s3", func(t *testing.T) { runHistories(t, gateway(t), each) })
	t.Logf("%d histories on each store, in %v", each, time.Since(start).Round(time.Millisecond))
}

func runHistories(t *testing.T, gateway string, count int) {
	kinds := kindsFor(gateway != "")
	sum := &totals{met: make(map[string]int)}
	t.Run("seeds", func(t *testing.T) {
		for i := range count {
			seed := *firstSeed + uint64(i)
			t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
				t.Parallel()
				for n := 1; !oneHistory(t, gateway, seed, plan(kinds, seed), sum); n++ {
					if n == attempts {
						t.Errorf("versitygw took longer than %v over an answer, %d times: on this machine nothing is shown", longestTaken, n)
						return
					}
				}
			})
		}
	})
	t.Logf("%d histories, %d ops, %d runs void; %v", count, sum.ops, sum.void, sum.met)
	for _, what := range append(kinds, unanswered, refusals, seenUnknown) {
		if sum.met[what] == 0 && count >= defaultHistories/2 && !t.Failed() {
			t.Errorf("%q never happened in %d histories: they show nothing of it", what, count)
		}
	}
}

// plan is what is done in a history. Neighbouring seeds go through all kinds together, each in an order of its own.
func plan(kinds []string, seed uint64) (p []string) {
	for i := range eventsEach {
		p = append(p, kinds[(int(seed)*eventsEach+i)%len(kinds)])
	}
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

// oneHistory runs and checks one. It says false, and nothing else, if the store broke the assumption that the promise rests on.
func oneHistory(t *testing.T, gateway string, seed uint64, plan []string, sum *totals) bool {
	s := newStack(t, gateway, seed%2 == 0)
	rec := newRecorder(s)
	defer rec.hangUp()
	n := &nemesis{stack: s, rec: rec, rand: rand.New(rand.NewPCG(seed, 1))}
	resources := newResources()
	var stop, over atomic.Bool
	var clients, watchers sync.WaitGroup
	for i, res := range resources {
		for j := range clientsEach {
			id := i*clientsEach + j
			c := &client{id: id, rand: rand.New(rand.NewPCG(seed, uint64(2+id))), rec: rec, res: res}
			clients.Go(func() { c.run(&stop) })
		}
		w := &watcher{id: len(resources)*clientsEach + i, rec: rec, res: res}
		watchers.Go(func() { w.run(&over) })
	}
	n.run(plan)
	stop.Store(true)
	clients.Wait()
	if n.failed != nil {
		over.Store(true)
		watchers.Wait()
		t.Fatalf("seed %d: %v", seed, n.failed)
	}
	for i, res := range resources {
		finish(t, rec, res, len(resources)*(clientsEach+1)+i)
	}
	over.Store(true)
	watchers.Wait()
	s.stop()
	if s.back != nil && s.back.stats().Slowest > longestTaken {
		t.Logf("void: versitygw took %v over an answer", s.back.stats().Slowest)
		sum.mu.Lock()
		defer sum.mu.Unlock()
		sum.void++
		return false
	}
	for _, u := range rec.unexpected {
		t.Errorf("seed %d: an answer that means nothing: %s", seed, u)
	}
	name := "file"
	if gateway != "" {
		name = "s3"
	}
	r := record{Seed: seed, Store: name, Events: n.events, History: rec.history}
	r.judgeAll(t)
	sum.add(r)
	return true
}

// finish closes the door behind everybody with a new token, and looks what is there: at once, and again a while later. That it can
// says that everything works again.
func finish(t *testing.T, rec *recorder, res *resource, id int) {
	t.Helper()
	last := op{Client: id, Kind: announce, Token: res.issued.Add(1)}
	must := func(o op) {
		t.Helper()
		if err := eventually(t.Context(), o.String(), func() error {
			if got := rec.do(res, o, 0, patience); got.Outcome != success {
				return fmt.Errorf("it is answered %s", got.Answer)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	must(last)
	for k := range res.keys {
		must(op{Client: id, Kind: look, Key: k})
	}
	time.Sleep(300 * time.Millisecond)
	for k := range res.keys {
		must(op{Client: id, Kind: look, Key: k})
		must(op{Client: id, Kind: get, Key: k})
	}
}

// add counts what happened.
func (sum *totals) add(r record) {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	sum.ops += len(r.History)
	for _, e := range r.Events {
		sum.met[e.What] += e.Met
	}
	for _, o := range r.History {
		switch o.Outcome {
		case unknown:
			sum.met[unanswered]++
			if o.Kind == put && slices.ContainsFunc(r.History, func(read op) bool { return read.reads() && read.Value == o.Value }) {
				sum.met[seenUnknown]++
			}
		case stale:
			sum.met[refusals]++
		}
	}
}

// TestRecheck checks a recorded history again.
func TestRecheck(t *testing.T) {
	if *recheck == "" {
		t.Skip("nothing to check again: -args -recheck=FILE")
	}
	text, err := os.ReadFile(*recheck)
	var r record
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.judgeAll(t)
}
