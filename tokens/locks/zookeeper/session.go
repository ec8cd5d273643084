package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// Why a session is over.
var (
	errClosed     = errors.New("the lock was closed")
	errReleased   = errors.New("it was released")
	errUnanswered = errors.New("it was released, but no answer came; at the latest it comes free with its TTL")
	errIdle       = errors.New("it was not renewed for its TTL")
	errExpired    = errors.New("its session has expired: ZooKeeper has not heard of this process for its TTL")
)

// A session is one of ours with the ensemble. The library connects it anew as often as it has to; but where the session has expired, it would
// begin another one without a word, and that is not let happen.
type session struct {
	lock   *lock
	ttl    time.Duration
	conn   *zk.Conn
	events <-chan zk.Event // closed when the library's goroutines have ended
	over   chan struct{}   // closed when nothing may be asked any more; why is set before
	ending sync.Once
	calls  sync.WaitGroup // of the library that are under way; added to under mu, and only while why is nil

	mu      sync.Mutex // guards the rest
	why     error
	idle    *time.Timer   // ends the session; nil before it is a hold's
	wire    net.Conn      // the connection of the moment
	refused error         // why the last attempt to connect failed
	granted time.Duration // the timeout that the server gave it; 0 before it did
	heard   time.Time     // when a server last answered
}

// open begins a session, which connects in the background.
func (l *lock) open(ttl time.Duration) (*session, error) {
	s := &session{lock: l, ttl: ttl, over: make(chan struct{})}
	conn, events, err := zk.Connect(l.servers, ttl, zk.WithHostProvider(&hosts{}), zk.WithDialer(s.dial), zk.WithEventCallback(s.event),
		zk.WithLogger(silent{}), zk.WithLogInfo(false),
		zk.WithMaxBufferSize(1<<20), zk.WithMaxConnBufferSize(64<<10)) // lists of 10,000 contenders; what we send is small
	if err != nil {
		return nil, err
	}
	s.conn, s.events = conn, events
	if err := l.enter(s); err != nil {
		s.end(err)
		return nil, err
	}
	return s, nil
}

// end ends the session, whatever the reason. Unless the lock was closed it says so to the server, if it can: then its nodes are gone at once,
// else they go with its timeout.
func (s *session) end(why error) {
	s.ending.Do(func() {
		if why == errClosed {
			s.fail(why)
		}
		s.conn.Close() // waits a second for the answer
		s.fail(why)
		for range s.events { // until its goroutines have ended
		}
		s.calls.Wait()
		s.lock.leave(s)
	})
}

// fail lets nothing more be asked or sent.
func (s *session) fail(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return
	}
	s.why = why
	close(s.over)
	if s.idle != nil {
		s.idle.Stop()
	}
	if s.wire != nil {
		_ = s.wire.Close()
	}
}

func (s *session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// event is told what happens to the session, and must not block.
func (s *session) event(e zk.Event) {
	if e.Type == zk.EventSession && e.State == zk.StateExpired {
		s.fail(errExpired)
	}
}

// keep lets the session live for another TTL at most.
func (s *session) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.why != nil:
	case s.idle == nil:
		s.idle = time.AfterFunc(s.ttl, func() { s.end(errIdle) })
	default:
		s.idle.Reset(s.ttl)
	}
}

// dial connects for the library.
func (s *session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	if err := s.reason(); err != nil {
		return nil, err
	}
	c, err := s.lock.dial(network, address, timeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = err
	if err == nil && s.why != nil {
		_ = c.Close()
		err = s.why
	}
	if err != nil {
		return nil, err
	}
	s.wire = &wire{Conn: c, session: s}
	return s.wire, nil
}

// A wire reads along the server's first answer, for the library does not tell what timeout the session was given.
type wire struct {
	net.Conn
	session *session
	head    []byte // its length, the protocol's version, the timeout in ms: 4 bytes each, big endian (ConnectResponse of zookeeper.jute)
}

// Read is called by one goroutine at a time.
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if missing := 12 - len(w.head); missing > 0 {
		w.head = append(w.head, b[:min(n, missing)]...)
		if len(w.head) == 12 {
			w.session.mu.Lock()
			w.session.granted = time.Duration(binary.BigEndian.Uint32(w.head[8:])) * time.Millisecond
			w.session.mu.Unlock()
		}
	}
	return n, err
}

// ask makes a call of the library, which knows no contexts: one that is under way when ctx ends goes on, at most until the session ends.
func ask[T any](ctx context.Context, s *session, call func(*zk.Conn) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	var none T
	s.mu.Lock()
	if s.why != nil {
		s.mu.Unlock()
		return none, s.why
	}
	s.calls.Go(func() {
		value, err := call(s.conn)
		answered <- answer{value, err}
	})
	s.mu.Unlock()
	select {
	case a := <-answered:
		return a.value, s.explain(a.err)
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-s.over:
		return none, s.reason()
	}
}

// do is ask for a call that answers nothing.
func do(ctx context.Context, s *session, call func(*zk.Conn) error) error {
	_, err := ask(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, call(c) })
	return err
}

// explain says what an error means, and remembers that a server has answered. Afterwards nothing is known of a call that failed with one of
// [passing].
func (s *session) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && s.why != nil:
		return s.why
	case passing(err):
		if s.refused != nil {
			return fmt.Errorf("no ZooKeeper answers at %s: %w: %w", strings.Join(s.lock.servers, ", "), err, s.refused)
		}
		return fmt.Errorf("the connection to ZooKeeper at %s: %w", strings.Join(s.lock.servers, ", "), err)
	}
	s.heard = time.Now()
	switch err {
	case zk.ErrNoAuth:
		return fmt.Errorf("ZooKeeper does not allow it; does the ACL of %s let this user read, create, delete and write? %w", s.lock.path, err)
	case zk.ErrAuthFailed:
		return fmt.Errorf("ZooKeeper takes neither this user nor its password: %w", err)
	}
	return err
}

// passing says that an error is of the connection, and may be gone when it is asked again.
func passing(err error) bool {
	return errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrSessionMoved) || errors.Is(err, zk.ErrClosing)
}

// heardOf says whether a server has answered within the TTL: else the session is most likely over, and waiting for nothing.
func (s *session) heardOf() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.heard.IsZero() && time.Since(s.heard) < s.ttl
}

// short says that the server gave the session less time than the TTL.
func (s *session) short() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.granted >= s.ttl.Truncate(time.Millisecond) {
		return nil
	}
	return fmt.Errorf("this ZooKeeper keeps a session that is not heard of for %s at most, and the TTL is %s: "+
		"ask for a shorter TTL, or raise maxSessionTimeout on its servers", s.granted, s.ttl)
}

// hosts is the list of servers in the order that the library has shuffled them into. Its own would look their addresses up only once.
type hosts struct {
	mu    sync.Mutex // guards the rest
	names []string
	turn  int // which one was tried last
	since int // how many were tried since one let us in
}

func (h *hosts) Init(names []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names, h.turn = names, len(names)-1
	return nil
}

func (h *hosts) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.names)
}

// Next also says whether all were tried without success: then the library waits a second.
func (h *hosts) Next() (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turn = (h.turn + 1) % len(h.names)
	again := h.since > 0 && h.since%len(h.names) == 0
	h.since++
	return h.names[h.turn], again
}

func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = 0
}

// silent is the library's log. What is worth telling is in errors.
type silent struct{}

func (silent) Printf(string, ...any) {}
