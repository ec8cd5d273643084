package s3

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

// How far a source has come. It never goes back.
const (
	flowing  int32 = iota
	released       // the store may have the end: nothing can be called back
	aborted        // the store will never get the end
)

var errAborted = errors.New("the request was cut off before the end of its body")

// A source is a body on its way. It gives the store everything but the end, and the end only after the body has returned io.EOF:
//
//	body:  b b b b … b  (the gate) io.EOF
//	store: b b b b …               b            without frames: the last byte is held back
//	store: [b b b b] … [b]         [0;signature]  in frames: so is the chunk that ends the body
//
// The transport reads it, in a goroutine that may outlive RoundTrip; stop ends that.
type source struct {
	body   io.Reader
	length int64
	frames *framer // nil for a body that goes as it is
	end    atomic.Int32

	answered chan struct{} // closed when the store's answer is there: the body is read no further
	stopped  chan struct{} // closed when the request is over

	reading chan struct{} // holds one token; who has it, may touch what is below and body
	left    int64         // bytes of the body not yet read
	eof     bool
	err     error // why the body came to no end
}

func newSource(body io.Reader, length int64) *source {
	s := &source{
		body: body, length: length, left: length,
		answered: make(chan struct{}), stopped: make(chan struct{}), reading: make(chan struct{}, 1),
	}
	s.reading <- struct{}{}
	return s
}

// Read is the transport's.
func (s *source) Read(p []byte) (int, error) {
	<-s.reading
	defer func() { s.reading <- struct{}{} }()
	if s.frames != nil {
		return s.frames.read(s, p)
	}
	return s.readPlain(p)
}

// Close leaves the body to its owner.
func (s *source) Close() error { return nil }

// readPlain passes the body on, and its last byte together with its end.
func (s *source) readPlain(p []byte) (int, error) {
	if s.eof {
		return 0, io.EOF
	}
	if len(p) == 0 || s.err != nil {
		return 0, s.err
	}
	n, err := s.next(p)
	if err != io.EOF {
		return n, err
	}
	if err := s.release(); err != nil {
		return 0, err
	}
	return n, nil
}

// next reads from the body. It returns the last byte of it together with io.EOF, and only then.
func (s *source) next(p []byte) (int, error) {
	select {
	case <-s.answered:
		<-s.stopped // an error any earlier would close the connection under the answer
		return 0, errAborted
	case <-s.stopped:
		return 0, errAborted
	default:
	}
	if s.left > 1 {
		n, err := s.body.Read(p[:min(int64(len(p)), s.left-1)])
		s.left -= int64(n)
		return n, s.note(err)
	}
	var last [2]byte // one is left, and a second one would be too many
	n := 0
	for n < len(last) {
		m, err := s.body.Read(last[n:])
		n += m
		if err == io.EOF && n == 1 {
			p[0], s.left, s.eof = last[0], 0, true
			return 1, io.EOF
		}
		if err != nil {
			return 0, s.note(err)
		}
	}
	s.err = wrongLength(s.length)
	return 0, s.err
}

// note keeps the error that ended the body early.
func (s *source) note(err error) error {
	if err == io.EOF {
		s.err = wrongLength(s.length)
	} else if err != nil {
		s.err = badBody("IncompleteBody", "The body could not be read to its end: %v.", err)
	}
	return s.err
}

// release lets the end go, unless the request was cut off.
func (s *source) release() error {
	if !s.end.CompareAndSwap(flowing, released) {
		s.err = errAborted
		return errAborted
	}
	return nil
}

// abortWith cuts the request off when ctx ends, unless the end is released: from there on nobody's leaving changes anything.
func (s *source) abortWith(ctx context.Context, cancel context.CancelCauseFunc) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		if s.end.CompareAndSwap(flowing, aborted) {
			cancel(errAborted)
		}
	})
}

// stop waits for a Read of the body under way, and lets no other follow.
func (s *source) stop() {
	close(s.stopped)
	<-s.reading
	s.reading <- struct{}{}
}

// failure is the body's own, nil if it was not the body that failed. It is read after RoundTrip has failed, or after stop.
func (s *source) failure() error {
	if errors.Is(s.err, errAborted) {
		return nil
	}
	return s.err
}
