package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
)

// A gatedBody is the body of a write on its way to the store. Its last byte and its end are held back until the body has been
// verified whole and the gate is open: a store can commit nothing of it before.
//
//	read … read | held: the last byte | verify → gate → last byte, io.EOF → the store commits
//
// It is read by one goroutine, the backend's; interrupt may come from another.
type gatedBody struct {
	src     io.Reader
	control *http.ResponseController // of the connection, for deadlines
	idle    time.Duration            // longest wait for the client's next leastProgress bytes, or its last
	gate    func() error             // admits the write
	checks  []check

	held    byte
	isHeld  bool
	touched bool  // the client was asked for its body
	opened  bool  // the gate has let the write pass
	armed   bool  // the client was given time
	fresh   int   // bytes that came since the client was given time
	err     error // what the next Read returns

	mu    sync.Mutex
	ended bool  // nothing more is read from the connection: to interrupt it would hit the server's own read; guarded by mu
	cause error // why the upload was interrupted; guarded by mu
}

// Read gives the store everything but the end, and the end once the gate is open.
func (b *gatedBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.touched = true
	for b.err == nil {
		n, err := b.readBehindHeld(p)
		if err == nil {
			if n > 0 {
				return n, nil
			}
			continue // there is one byte, and it is held
		}
		if err != io.EOF {
			b.err = b.explain(err)
			break
		}
		if b.err = b.open(); b.err != nil {
			break
		}
		b.err = io.EOF
		if b.isHeld {
			p[n] = b.held
			return n + 1, nil
		}
		return n, io.EOF
	}
	return 0, b.err
}

// readBehindHeld reads once and fills p with all that has come but the last byte, which it holds. At the end of the body it
// leaves room for that byte in p.
func (b *gatedBody) readBehindHeld(p []byte) (n int, err error) {
	if err := b.arm(); err != nil {
		return 0, err
	}
	var one [1]byte
	into := p[1:]
	if !b.isHeld {
		into = p
	} else if len(into) == 0 {
		into = one[:]
	}
	m, err := b.src.Read(into)
	b.fresh += m
	for _, c := range b.checks {
		c.hash.Write(into[:m])
	}
	if m == 0 {
		return 0, err
	}
	last := into[m-1]
	if b.isHeld {
		p[0] = b.held
		n = m
	} else {
		n = m - 1
	}
	b.held, b.isHeld = last, true
	if err == io.EOF && n == len(p) {
		err = nil // no room for the last byte in p: the next Read meets the end again
	}
	return n, err
}

// open verifies the body and lets the write pass the gate. Where it fails, the store never sees the end, and so changes nothing.
func (b *gatedBody) open() error {
	if err := b.end(); err != nil {
		return err
	}
	for _, c := range b.checks {
		if err := c.verify(); err != nil {
			return err
		}
	}
	if err := b.gate(); err != nil {
		return err
	}
	b.opened = true
	return nil
}

// passed says whether the gate has let the write pass.
func (b *gatedBody) passed() bool { return b.opened }

// failure is why the body came to no end, nil if it did or was not read so far.
func (b *gatedBody) failure() error {
	if b.err == io.EOF {
		return nil
	}
	return b.err
}

// leastProgress is how many bytes of a body have to come, at least, within the time that a client is given. A body that drips would hold its
// connection, and what it has here, for days.
const leastProgress = 1 << 10

// arm gives the client time for its next bytes, unless the upload was interrupted.
func (b *gatedBody) arm() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cause != nil {
		return b.cause
	}
	if b.armed && b.fresh < leastProgress {
		return nil
	}
	b.armed, b.fresh = true, 0
	_ = b.control.SetReadDeadline(time.Now().Add(b.idle)) // a connection without deadlines has none to pass
	return nil
}

// end is the end of reading: from here on the server itself reads from the connection, to see whether the client leaves.
func (b *gatedBody) end() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cause != nil {
		return b.cause
	}
	b.ended = true
	_ = b.control.SetReadDeadline(time.Time{})
	return nil
}

// interrupt makes the Read under way, and every later one, fail with cause. A body that has come whole it leaves to the gate.
func (b *gatedBody) interrupt(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.cause = cause
	_ = b.control.SetReadDeadline(time.Now())
}

// interrupted says whether the connection's deadline was used to end a Read: then it may have hit the server's own.
func (b *gatedBody) interrupted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cause != nil
}

// explain says why the client's body ended early.
func (b *gatedBody) explain(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.cause != nil:
		return b.cause
	case errors.As(err, new(*s3Error)), errors.As(err, new(*sigv4.Error)):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return badRequest("RequestTimeout", "less than %d bytes of the body came in %v", leastProgress, b.idle)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return badRequest("IncompleteBody", "the body ended before the number of bytes that Content-Length announced")
	}
	return badRequest("IncompleteBody", "the body could not be read: %v", err)
}

// Close leaves the client's body to the server.
func (b *gatedBody) Close() error { return nil }
