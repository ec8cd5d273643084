package histories

import (
	"math/rand/v2"
	"syscall"
	"time"
)

// How long the store may take from the gate to the effect, as the proxy is told: its settle time. The proxy takes up to a third of it to
// send; what the nemesis adds, in the relay and by stopping the store, stays below the rest. A history in which the store took longer than
// that rest promises nothing: it is void, and is run again.
const (
	settle       = 6 * time.Second
	longestTaken = settle - settle/3
	longestHold  = settle / 2
	longestStop  = settle / 6
)

// What a nemesis does. Each must have met somebody in the histories of a test.
const (
	stopProxy    = "proxy stopped"            // SIGSTOP, SIGCONT
	killProxy    = "proxy killed"             // SIGKILL, then started on the same directory
	stopStore    = "store stopped"            // versitygw, as the next
	killStore    = "store killed"             //
	delayed      = "delayed"                  // every piece of one direction
	held         = "held"                     // the connections that there were, in one direction or both
	cutRST       = "cut by RST"               // every connection, wherever its requests are
	cutFIN       = "cut by FIN"               //
	dropped      = "answers dropped"          // the request has been carried out, its answer is lost
	lateAfterCut = "late, its connection cut" // a request is delivered although its sender saw the connection fail
	lateOfProxy  = "late, its proxy killed"   // a request reaches the store after the proxy that sent it was killed and while the next one runs
	lateOfUser   = "late, its client left"    // a request reaches the proxy after its client has gone
)

func kindsFor(withStore bool) []string {
	kinds := []string{stopProxy, killProxy, delayed, held, cutRST, cutFIN, dropped, lateOfUser, lateAfterCut}
	if withStore {
		kinds = append(kinds, stopStore, killStore, lateOfProxy)
	}
	return kinds
}

// A nemesis does one thing after the other to a stack.
type nemesis struct {
	*stack
	rec    *Recorder
	rand   *rand.Rand
	events []Event
	count  func() // counts whom the last fault has met; what it set free may take a moment
	undo   func() // of the last fault, which may go on beside the next
	failed error  // something did not come up again
}

const eventsEach = 5 // of a history

// run does what the plan says.
func (n *nemesis) run(plan []string) {
	for _, what := range plan {
		time.Sleep(n.upTo(400 * time.Millisecond))
		n.takeCount()
		e := Event{What: what, From: time.Since(n.rec.Start)}
		r := n.relay(what)
		before := r.Stats()
		undo := n.do(what, r)
		n.heal()
		if n.undo = undo; n.rand.IntN(2) == 0 {
			n.heal()
		}
		if (what == killProxy || what == lateOfProxy) && n.rand.IntN(3) > 0 {
			n.await(2*settle, func() bool { return n.rec.WroteSince(e.From) }) // mostly the next proxy gets somewhere before the next deed
		}
		e.To = time.Since(n.rec.Start)
		n.count = func() {
			e.Met = met(what, before, r.Stats())
			n.events = append(n.events, e)
		}
	}
	n.heal()
	time.Sleep(n.upTo(400 * time.Millisecond))
	n.takeCount()
}

// await waits for something, but not for ever.
func (n *nemesis) await(atMost time.Duration, f func() bool) {
	for deadline := time.Now().Add(atMost); !f() && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
}

func (n *nemesis) takeCount() {
	if n.count != nil {
		n.count()
	}
	n.count = nil
}

func (n *nemesis) heal() {
	if n.undo != nil {
		n.undo()
	}
	n.undo = nil
}

// Relay is where the network fails: mostly before the store, where there is one.
func (n *nemesis) relay(what string) *Relay {
	if what != lateOfProxy && (n.back == nil || what == lateOfUser || n.rand.IntN(3) == 0) {
		return n.front
	}
	return n.back
}

func (n *nemesis) upTo(d time.Duration) time.Duration { return time.Duration(n.rand.Int64N(int64(d))) }

func met(what string, before, after RelayCounts) int {
	switch what {
	case delayed:
		return after.Delayed - before.Delayed
	case held:
		return after.Held - before.Held
	case cutRST, cutFIN:
		return after.Cut - before.Cut
	case dropped:
		return after.Dropped - before.Dropped
	case lateOfUser, lateOfProxy, lateAfterCut:
		return after.Late - before.Late
	}
	return 1
}

// do does one thing and lets it last. What it returns, if anything, ends it.
func (n *nemesis) do(what string, r *Relay) (undo func()) {
	switch what {
	case stopProxy:
		n.stop(n.proxy, 1500*time.Millisecond)
	case stopStore:
		n.stop(n.store, longestStop)
	case killProxy:
		n.proxy.Kill()
		time.Sleep(n.upTo(300 * time.Millisecond))
		n.startAgain(n.startProxy)
	case killStore:
		n.store.Kill()
		time.Sleep(n.upTo(300 * time.Millisecond))
		n.startAgain(n.store.StartListening)
	case delayed:
		d := Direction(n.rand.IntN(2))
		r.Slow(d, 30*time.Millisecond+n.upTo(300*time.Millisecond))
		time.Sleep(n.upTo(time.Second))
		return func() { r.Slow(d, 0) }
	case held:
		n.await(settle, func() bool { return r.Connections() > 0 })
		release := r.Hold([][]Direction{{Requests}, {Answers}, {Requests, Answers}}[n.rand.IntN(3)]...)
		time.Sleep(n.upTo(longestHold))
		return release
	case cutRST, cutFIN:
		r.Cut(what == cutRST)
	case dropped:
		r.DropAnswers(1 + n.rand.IntN(3))
		time.Sleep(200*time.Millisecond + n.upTo(500*time.Millisecond))
		return func() { r.DropAnswers(0) }
	case lateOfUser:
		n.late(r, n.rec.HangUp, nil)
	case lateAfterCut:
		n.late(r, r.Abandon, nil)
	case lateOfProxy:
		n.late(r, n.proxy.Kill, n.restarts)
	}
	return nil
}

func (n *nemesis) stop(p *Process, atMost time.Duration) {
	p.Signal(syscall.SIGSTOP)
	time.Sleep(n.upTo(atMost))
	p.Signal(syscall.SIGCONT)
}

func (n *nemesis) startAgain(start func() error) {
	if err := start(); err != nil {
		n.failed = err
	}
}

// restarts starts the proxy again, and now and then kills that one too: what the first has sent is still on its way.
func (n *nemesis) restarts() {
	n.startAgain(n.startProxy)
	if n.rand.IntN(3) == 0 && n.failed == nil {
		n.proxy.Kill()
		n.startAgain(n.startProxy)
	}
}

// late keeps requests back, lets their senders go, and delivers them. Meanwhile the next sender comes up, where there is one to start,
// and newer tokens have their chance, as long as what is kept back may still be delivered.
func (n *nemesis) late(r *Relay, leave, next func()) {
	n.await(settle, func() bool { return r.Connections() > 1 })
	before := r.Stats().Held
	release := r.Hold(Requests)
	n.await(settle, func() bool { return r.Stats().Held > before })
	mustGo := time.After(longestHold * 3 / 4)
	time.Sleep(n.upTo(longestHold / 8)) // for more of them
	leave()
	r.Orphan()
	up := make(chan struct{})
	go func() {
		defer close(up)
		if next != nil {
			next()
		}
		time.Sleep(longestHold / 4)
	}()
	select {
	case <-up:
	case <-mustGo:
	}
	release()
	<-up
}
