package histories

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const clientsEach = 4 // of a resource

// Play has random clients and watchers work on a target while act does something to what is behind it. Then it closes the door behind them
// all, and sees that everything works again. It fails with the error of act, and the history says nothing then.
func Play(t *testing.T, to Target, seed uint64, act func(*Recorder) error) (*Recorder, error) {
	t.Helper()
	rec := newRecorder(to)
	defer rec.HangUp()
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
	err := act(rec)
	stop.Store(true)
	clients.Wait()
	for i, res := range resources {
		if err == nil {
			finish(t, rec, res, len(resources)*(clientsEach+1)+i)
		}
	}
	over.Store(true)
	watchers.Wait()
	return rec, err
}

// finish closes the door behind everybody with a new token, and looks what is there: at once, and again a while later. That it can
// says that everything works again.
func finish(t *testing.T, rec *Recorder, res *resource, id int) {
	t.Helper()
	last := Op{Client: id, Kind: Announce, Token: res.issued.Add(1)}
	must := func(o Op) {
		t.Helper()
		if err := Eventually(t.Context(), o.String(), func() error {
			if got := rec.do(res, o, 0, Patience); got.Outcome != Success {
				return fmt.Errorf("it is answered %s", got.Answer)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	must(last)
	for k := range res.keys {
		must(Op{Client: id, Kind: Look, Key: k})
	}
	time.Sleep(300 * time.Millisecond)
	for k := range res.keys {
		must(Op{Client: id, Kind: Look, Key: k})
		must(Op{Client: id, Kind: Get, Key: k})
	}
}

// Plan is what is done in a history. Neighbouring seeds go through all kinds together, each in an order of its own.
func Plan(kinds []string, seed uint64, events int) (p []string) {
	for i := range events {
		p = append(p, kinds[(int(seed)*events+i)%len(kinds)])
	}
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

// What comes of deeds, counted beside them.
const (
	Unanswered  = "ops of unknown outcome"
	Refusals    = "refusals"
	SeenUnknown = "unknown PUTs that count" // whose content was read
	HandedOver  = "tokens handed over between proxies"
)

// Totals are counted over all histories of a store.
type Totals struct {
	mu        sync.Mutex
	Ops, Void int
	Met       map[string]int
}

func NewTotals() *Totals { return &Totals{Met: make(map[string]int)} }

// AddVoid counts a history that says nothing.
func (sum *Totals) AddVoid() {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	sum.Void++
}

// Count counts something else.
func (sum *Totals) Count(what string, n int) {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	sum.Met[what] += n
}

// Add counts what happened in a history.
func (sum *Totals) Add(r Record) {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	sum.Ops += len(r.History)
	for _, e := range r.Events {
		sum.Met[e.What] += e.Met
	}
	sum.Met[HandedOver] += handedOver(r.History)
	for _, o := range r.History {
		switch o.Outcome {
		case Unknown:
			sum.Met[Unanswered]++
			if o.Kind == Put && slices.ContainsFunc(r.History, func(read Op) bool { return read.reads() && read.Value == o.Value }) {
				sum.Met[SeenUnknown]++
			}
		case Stale:
			sum.Met[Refusals]++
		}
	}
}

// handedOver counts, over all resources, the answers to higher tokens by another proxy than the one that had answered the last older write.
func handedOver(history []Op) (n int) {
	for _, ops := range perResource(history) {
		answered := slices.DeleteFunc(slices.Clone(ops), func(o Op) bool { return o.By == "" || !o.Raises() })
		slices.SortFunc(answered, func(a, b Op) int { return cmp.Compare(a.Return, b.Return) })
		var last Op
		for _, o := range answered {
			if last.By != "" && last.By != o.By && last.Token < o.Token {
				n++
			}
			if o.Token >= last.Token && !o.reads() && o.Kind != Announce {
				last = o
			}
		}
	}
	return n
}
