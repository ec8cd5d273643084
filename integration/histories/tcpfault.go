// Package histories runs random clients against the built program while processes are stopped and killed and connections fail, records
// what every client was told, and checks the records against a model of the promise (model.go). What other tests use of it, too, is not in
// its test files: the clients, the model and its judge, processes, and the network that fails.
package histories

import (
	"io"
	"net"
	"sync"
	"time"
)

// A Direction is one half of a connection through a [Relay].
type Direction int

const (
	Requests Direction = iota // from who dialled to the target
	Answers
)

// A Relay is a TCP proxy that fails on command. It knows nothing of HTTP. Without a command it passes everything on, the end of one
// direction (FIN) too.
type Relay struct {
	listener net.Listener
	longest  time.Duration // a request that was kept back for longer is cut off, not delivered
	tasks    sync.WaitGroup

	mu     sync.Mutex // guards everything below and the fields of every link
	target string
	links  map[*link]struct{}
	delay  [2]time.Duration // of each piece in a direction
	parted [2]chan struct{} // what connections come to are held by, too; nil: not held
	drop   int              // that many answers are still to be dropped
	closed bool
	counts RelayCounts
}

// RelayCounts say what a relay did, so that a fault that met nobody is not taken for one.
type RelayCounts struct {
	Delayed, Held, Cut, Dropped int
	Late                        int           // requests delivered after their sender had gone
	Slowest                     time.Duration // from the last piece of a request to the first of its answer
}

// A link is one connection and the one to the target that belongs to it.
type link struct {
	ends  [2]*net.TCPConn // the dialler's, the target's
	done  chan struct{}   // closed when the link is cut
	held  [2]chan struct{}
	ended bool      // done is closed
	last  time.Time // when the last piece of the request came; zero when it was answered
	gone  bool      // its sender has said that it is gone, see orphan
}

// NewRelay listens on a free port of the loopback interface. Nothing reaches the target that it had for longer than longest.
func NewRelay(longest time.Duration) (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{listener: l, longest: longest, links: make(map[*link]struct{})}
	r.tasks.Go(r.accept)
	return r, nil
}

func (r *Relay) Address() string { return r.listener.Addr().String() }

// ConnectTo says where connections go that are dialled from now on. "" refuses them.
func (r *Relay) ConnectTo(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// Close ends the relay and every connection through it.
func (r *Relay) Close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.Cut(true)
	r.tasks.Wait()
}

func (r *Relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.Take(c.(*net.TCPConn))
	}
}

// Take relays a connection that somebody else has accepted.
func (r *Relay) Take(c *net.TCPConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		reset(c)
		return
	}
	r.tasks.Go(func() { r.serve(c) })
}

func (r *Relay) serve(client *net.TCPConn) {
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		reset(client)
		return
	}
	l := &link{ends: [2]*net.TCPConn{client, server.(*net.TCPConn)}, done: make(chan struct{})}
	r.mu.Lock()
	r.links[l] = struct{}{}
	l.held = r.parted
	closed := r.closed
	r.mu.Unlock()
	if closed {
		r.end(l, true)
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { r.pump(l, Requests) })
	pumps.Go(func() { r.pump(l, Answers) })
	pumps.Wait()
	r.end(l, false)
	r.mu.Lock()
	delete(r.links, l)
	r.mu.Unlock()
}

// A piece is what one read brought, or the error that ended a direction.
type piece struct {
	data []byte
	came time.Time
	err  error
}

// maxPieces of a direction lie in the relay: more than a request of the tests has, mostly, so that little waits in a sender's kernel, where
// nobody knows for how long.
const maxPieces = 1024

// pump passes pieces on in one direction until an end of it is reached. They are taken in at once, whatever keeps them back.
func (r *Relay) pump(l *link, d Direction) {
	pieces := make(chan piece, maxPieces)
	r.tasks.Go(func() { l.read(d, pieces) })
	to := l.ends[1-d]
	for {
		var p piece
		select {
		case p = <-pieces:
		case <-l.done:
			return
		}
		switch {
		case p.err == io.EOF:
			_ = to.CloseWrite()
			return
		case p.err != nil:
			r.end(l, true)
			return
		case !r.pass(l, d, p.came):
			return
		}
		if _, err := to.Write(p.data); err != nil {
			r.end(l, true)
			return
		}
	}
}

func (l *link) read(d Direction, into chan<- piece) {
	for {
		data := make([]byte, 32<<10)
		n, err := l.ends[d].Read(data)
		came := time.Now()
		if n > 0 && !l.put(into, piece{data: data[:n], came: came}) {
			return
		}
		if err != nil {
			l.put(into, piece{err: err})
			return
		}
	}
}

func (l *link) put(into chan<- piece, p piece) bool {
	select {
	case into <- p:
		return true
	case <-l.done:
		return false
	}
}

// pass keeps a piece back as commands say, and says whether it may go on.
func (r *Relay) pass(l *link, d Direction, came time.Time) bool {
	r.mu.Lock()
	if d == Requests {
		l.last = came
	} else {
		r.answered(l)
		if r.drop > 0 {
			r.drop--
			r.counts.Dropped++
			r.mu.Unlock()
			r.end(l, true) // the target has answered: for it, this is a client that left
			return false
		}
	}
	delay, held := time.Until(came.Add(r.delay[d])), l.held[d]
	if delay > 0 {
		r.counts.Delayed++
	}
	if held != nil {
		r.counts.Held++
	}
	r.mu.Unlock()
	if !l.sleep(delay) || !l.wait(held) {
		return false
	}
	if d == Answers {
		return true
	}
	r.mu.Lock()
	tooLate := time.Since(came) > r.longest
	if l.gone && !tooLate {
		r.counts.Late++
	}
	r.mu.Unlock()
	if tooLate {
		r.end(l, true)
	}
	return !tooLate
}

// answered takes the time of an answer. Called with mu held.
func (r *Relay) answered(l *link) {
	if !l.last.IsZero() {
		r.counts.Slowest = max(r.counts.Slowest, time.Since(l.last))
		l.last = time.Time{}
	}
}

func (l *link) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

func (l *link) wait(held <-chan struct{}) bool {
	if held == nil {
		return true
	}
	select {
	case <-held:
		return true
	case <-l.done:
		return false
	}
}

// end closes both ends of a link, with RST or FIN. The second time it does nothing.
func (r *Relay) end(l *link, rst bool) {
	r.mu.Lock()
	ended := l.ended
	l.ended = true
	r.mu.Unlock()
	if ended {
		return
	}
	close(l.done)
	for _, c := range l.ends {
		if rst {
			reset(c)
		} else {
			_ = c.Close()
		}
	}
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// Cut ends every connection there is, with RST or FIN, wherever its requests and answers are.
func (r *Relay) Cut(rst bool) {
	for _, l := range r.now(func(l *link) {
		if !l.ended {
			r.counts.Cut++
		}
	}) {
		r.end(l, rst)
	}
}

// now applies f, under the lock, to every link that there is.
func (r *Relay) now(f func(*link)) (links []*link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		f(l)
		links = append(links, l)
	}
	return links
}

// Slow delays every piece in a direction by d; 0 ends that.
func (r *Relay) Slow(dir Direction, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay[dir] = d
}

// Hold keeps back what comes in these directions on the connections that there are now. Later ones are not concerned: who dials anew
// overtakes. release lets everything go on.
func (r *Relay) Hold(dirs ...Direction) (release func()) {
	gate := make(chan struct{})
	r.now(func(l *link) {
		for _, d := range dirs {
			l.held[d] = gate
		}
	})
	return r.releasing(gate)
}

// Part keeps back what comes in these directions on all connections, those that are made meanwhile, too: nobody is told of a failure, and
// nothing comes through. What it kept back is delivered, late, when heal ends it.
func (r *Relay) Part(dirs ...Direction) (heal func()) {
	gate := make(chan struct{})
	r.mu.Lock()
	for _, d := range dirs {
		r.parted[d] = gate
	}
	for l := range r.links {
		for _, d := range dirs {
			l.held[d] = gate
		}
	}
	r.mu.Unlock()
	release := r.releasing(gate)
	return func() {
		r.mu.Lock()
		for d := range r.parted {
			if r.parted[d] == gate {
				r.parted[d] = nil
			}
		}
		r.mu.Unlock()
		release()
	}
}

// releasing returns what lets go of all that is held by a gate.
func (r *Relay) releasing(gate chan struct{}) func() {
	return func() {
		r.now(func(l *link) {
			for d := range l.held {
				if l.held[d] == gate {
					l.held[d] = nil
				}
			}
		})
		close(gate)
	}
}

// Orphan notes that the senders on the connections that there are now have gone: what is delivered of them from here on is late.
func (r *Relay) Orphan() { r.now(func(l *link) { l.gone = true }) }

// Abandon cuts the senders' ends of what is held, with RST, and keeps what they have sent, to be delivered.
func (r *Relay) Abandon() {
	r.now(func(l *link) {
		if l.held[Requests] != nil {
			l.gone = true
			reset(l.ends[Requests])
		}
	})
}

// DropAnswers lets the next n requests through and cuts their connections when the answer comes.
func (r *Relay) DropAnswers(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop = n
}

// Connections is how many go through the relay now.
func (r *Relay) Connections() int { return len(r.now(func(*link) {})) }

func (r *Relay) Stats() RelayCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}
