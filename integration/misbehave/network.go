package misbehave

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A Network is one listener and the connections to it, in memory. Like a kernel, and unlike net.Pipe, it takes what is written without
// waiting for the reader, and still delivers it when the writer has hung up or is dead.
type Network struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewNetwork returns a network without connections.
func NewNetwork() *Network {
	return &Network{accept: make(chan net.Conn), closed: make(chan struct{})}
}

// Dial connects to the listener. It fits http.Transport's DialContext.
func (n *Network) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var there, back stream
	there.init()
	back.init()
	ours, theirs := &conn{in: &back, out: &there}, &conn{in: &there, out: &back}
	select {
	case n.accept <- theirs:
		return ours, nil
	case <-n.closed:
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: addr{}, Err: errors.New("connection refused")}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept, Close and Addr make the network a [net.Listener].
func (n *Network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accept:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close ends the listener. Connections stay.
func (n *Network) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

// Addr says that the listener is in memory.
func (n *Network) Addr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "memory" }
func (addr) String() string  { return "memory" }

// window is how many bytes a stream takes ahead of its reader.
const window = 256 << 10

// A stream is one direction of a connection.
type stream struct {
	mu      sync.Mutex
	changed sync.Cond
	data    []byte
	ended   bool // the writer has closed it: what is there is read, then EOF
	broken  bool // the reader has closed it: nobody will read what is written
	read    deadline
	write   deadline
}

func (s *stream) init() { s.changed.L = &s.mu }

// A deadline is guarded by its stream's mu.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (s *stream) setDeadline(d *deadline, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.at = at; !at.IsZero() {
		d.timer = time.AfterFunc(time.Until(at), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	}
	s.changed.Broadcast()
}

// A conn is one end of a connection.
type conn struct{ in, out *stream }

func (c *conn) Read(p []byte) (int, error) {
	s := c.in
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.broken:
			return 0, net.ErrClosed
		case s.read.passed():
			return 0, os.ErrDeadlineExceeded
		case len(s.data) > 0:
			n := copy(p, s.data)
			s.data = s.data[n:]
			s.changed.Broadcast()
			return n, nil
		case s.ended:
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		s.changed.Wait()
	}
}

func (c *conn) Write(p []byte) (int, error) {
	s := c.out
	s.mu.Lock()
	defer s.mu.Unlock()
	written := 0
	for {
		switch room := window - len(s.data); {
		case s.ended:
			return written, net.ErrClosed
		case s.broken:
			return written, io.ErrClosedPipe
		case s.write.passed():
			return written, os.ErrDeadlineExceeded
		case room > 0:
			n := min(room, len(p)-written)
			s.data = append(s.data, p[written:written+n]...)
			s.changed.Broadcast()
			if written += n; written == len(p) {
				return written, nil
			}
		}
		s.changed.Wait()
	}
}

// Close hangs up: the other end still reads what was written, then EOF.
func (c *conn) Close() error {
	for _, s := range []*stream{c.in, c.out} {
		s.mu.Lock()
		if s == c.in {
			s.broken = true
		} else {
			s.ended = true
		}
		s.changed.Broadcast()
		s.mu.Unlock()
	}
	for _, d := range []struct {
		s *stream
		d *deadline
	}{{c.in, &c.in.read}, {c.out, &c.out.write}} {
		d.s.setDeadline(d.d, time.Time{})
	}
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return addr{} }
func (c *conn) RemoteAddr() net.Addr { return addr{} }

func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.read, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.write, t)
	return nil
}
