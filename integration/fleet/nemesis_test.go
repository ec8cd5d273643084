package fleet

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/histories"
)

// What a nemesis does. Each must have met somebody in the histories of a test.
const (
	stopProxy       = "proxy stopped longer than its lease" // SIGSTOP, SIGCONT
	killProxy       = "proxy killed"
	restartProxy    = "proxy restarted"              // SIGTERM
	restartRegistry = "registry restarted"           // all of it
	slowRegistry    = "registry slow"                // for one proxy, in one direction
	cutRegistry     = "registry connections cut"     // of one proxy
	partRegistry    = "proxy parted from registry"   // longer than its lease; what it has sent comes late
	deafToRegistry  = "registry's answers kept back" // what it is asked it does
	partStore       = "proxy parted from store"
	cutStore        = "store connections cut"
	unseatRegistry  = "registry without the server that decided"
)

var faultKinds = []string{
	stopProxy, killProxy, restartProxy, restartRegistry, slowRegistry, cutRegistry, partRegistry, deafToRegistry, partStore, cutStore,
}

// A nemesis does one thing after the other to a fleet, and now and then the next before the last is over.
type nemesis struct {
	*fleet
	rec    *histories.Recorder
	rand   *rand.Rand
	events []histories.Event
	undo   func() // of the last fault
}

func (n *nemesis) upTo(d time.Duration) time.Duration { return time.Duration(n.rand.Int64N(int64(d))) }

// run does what the plan says.
func (n *nemesis) run(plan []string) error {
	for _, what := range plan {
		time.Sleep(n.upTo(600 * time.Millisecond))
		e := histories.Event{What: what, From: time.Since(n.rec.Start), Met: 1}
		m := n.members[n.rand.IntN(len(n.members))]
		met, undo, err := n.do(what, m)
		if err != nil {
			return fmt.Errorf("%s (proxy %d): %w", what, m.number, err)
		}
		n.heal()
		if n.undo = undo; n.rand.IntN(2) == 0 {
			n.heal()
		}
		if e.To = time.Since(n.rec.Start); met != nil {
			e.Met = met()
		}
		n.events = append(n.events, e)
	}
	n.heal()
	time.Sleep(n.upTo(time.Second))
	return nil
}

func (n *nemesis) heal() {
	if n.undo != nil {
		n.undo()
	}
	n.undo = nil
}

// do does one thing and lets it last. met says whom it has met, if that is to be counted; undo, if there is one, ends it.
func (n *nemesis) do(what string, m *member) (met func() int, undo func(), err error) {
	beyondLease := n.lease + n.upTo(n.lease)
	switch what {
	case stopProxy:
		m.Signal(syscall.SIGSTOP)
		time.Sleep(beyondLease)
		m.Signal(syscall.SIGCONT)
	case killProxy:
		m.Kill()
		time.Sleep(n.upTo(500 * time.Millisecond))
		err = n.comeBack(m)
	case restartProxy:
		if err = m.terminate(); err == nil {
			err = n.comeBack(m)
		}
	case restartRegistry:
		n.engine.stop()
		time.Sleep(n.upTo(500 * time.Millisecond))
		n.engine.start()
	case unseatRegistry:
		n.engine.unseat()
		time.Sleep(n.upTo(2 * n.lease))
		undo = n.engine.mend
	case slowRegistry:
		met, undo = n.slow(m)
	case cutRegistry:
		met = counted(m.toRegistry, func(c histories.RelayCounts) int { return c.Cut })
		for _, r := range m.toRegistry {
			r.Cut(n.rand.IntN(2) == 0)
		}
	case partRegistry:
		met, undo = n.part(m.toRegistry, beyondLease, histories.Requests, histories.Answers)
	case deafToRegistry:
		met, undo = n.part(m.toRegistry, beyondLease, histories.Answers)
	case partStore:
		met, undo = n.part([]*histories.Relay{m.toStore}, n.upTo(n.settle/4), histories.Requests, histories.Answers)
	case cutStore:
		met = counted([]*histories.Relay{m.toStore}, func(c histories.RelayCounts) int { return c.Cut })
		m.toStore.Cut(n.rand.IntN(2) == 0)
	}
	return met, undo, err
}

// comeBack starts a proxy again that has ended. The last fault is over by then: it may be what keeps this one from the registry, for as long as it lasts.
func (n *nemesis) comeBack(m *member) error {
	n.heal()
	return n.restart(m)
}

// slow delays what goes one way between a proxy and the registry: so that it is answered after its lease is over, or only nearly.
func (n *nemesis) slow(m *member) (func() int, func()) {
	met := counted(m.toRegistry, func(c histories.RelayCounts) int { return c.Delayed })
	d := histories.Direction(n.rand.IntN(2))
	by := 20*time.Millisecond + n.upTo(n.lease/2)
	for _, r := range m.toRegistry {
		r.Slow(d, by)
	}
	time.Sleep(n.lease + n.upTo(n.lease))
	return met, func() {
		for _, r := range m.toRegistry {
			r.Slow(d, 0)
		}
	}
}

// part keeps back what goes between a proxy and something else. It is delivered at the end.
func (n *nemesis) part(relays []*histories.Relay, lasting time.Duration, dirs ...histories.Direction) (func() int, func()) {
	met := counted(relays, func(c histories.RelayCounts) int { return c.Held })
	var heal []func()
	for _, r := range relays {
		heal = append(heal, r.Part(dirs...))
	}
	time.Sleep(lasting)
	return met, func() {
		for _, h := range heal {
			h()
		}
	}
}

// counted returns how much a count of some relays has grown since.
func counted(relays []*histories.Relay, of func(histories.RelayCounts) int) func() int {
	sum := func() (n int) {
		for _, r := range relays {
			n += of(r.Stats())
		}
		return n
	}
	before := sum()
	return func() int { return sum() - before }
}
