package s3

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// How far a source has come. It never goes back.
const (
	flowing  int32 = iota
	released       // the store may have the end: nothing can be called back
	aborted        // the store will never get the end
)

var (
	errAborted = errors.New("the request was cut off before the end of its body")
	errLate    = errors.New("the store was not sent the whole request in time after the gate")
)

// A source is a body on its way. It gives the store everything but the end, and the end only after the body has returned io.EOF:
//
//	body:  b b b b … b  (the gate) io.EOF
//	store: b b b b …               b            without frames: the last byte is held back
//	store: [b b b b] … [b]         [0;signature]  in frames: so is the chunk that ends the body
//
// A body that came whole has passed its gate before the first Read, and is not held back.
//
// The transport reads it, in a goroutine that may outlive RoundTrip; stop ends that.
type source struct {
	body   io.Reader
	length int64
	frames *framer // nil for a body that goes as it is
	whole  bool    // the gate is passed before the first Read
	time   *deadline
	end    atomic.Int32

	begun  atomic.Bool     // the first byte of an answer is there
	wanted chan struct{}   // closed when the store has asked for the body, with 100 Continue
	gone   <-chan struct{} // closed with the connection; set before the first Read

	answered chan struct{} // closed when the store's answer is there: the body is read no further
	stopped  chan struct{} // closed when the request is over

	reading chan struct{} // holds one token; who has it, may touch what is below and body
	asked   bool          // a Read has been let in
	left    int64         // bytes of the body not yet read
	eof     bool
	err     error // why the body came to no end
}

func newSource(body io.Reader, length int64, time *deadline) *source {
	s := &source{
		body: body, length: length, left: length, time: time, wanted: make(chan struct{}),
		answered: make(chan struct{}), stopped: make(chan struct{}), reading: make(chan struct{}, 1),
	}
	s.reading <- struct{}{}
	return s
}

// Read is the transport's.
func (s *source) Read(p []byte) (int, error) {
	<-s.reading
	defer func() { s.reading <- struct{}{} }()
	s.await()
	if s.frames != nil {
		return s.frames.read(s, p)
	}
	return s.readPlain(p)
}

// answerWait bounds how long half an answer keeps the body back. A whole answer, and the end of the connection, end that at once.
const answerWait = 30 * time.Second

// await keeps the first byte back while an answer is coming in. For when the store gives its final answer in the place of 100
// Continue, Go's transport wants to send the body, to use the connection again, and begins before RoundTrip has returned that
// answer (net/http/transport.go, readResponse). It must end: RoundTrip returns no error before its Read of the body has returned.
func (s *source) await() {
	if s.asked {
		return
	}
	s.asked = true
	if !s.begun.Load() {
		return
	}
	enough := time.NewTimer(answerWait)
	defer enough.Stop()
	select {
	case <-s.wanted:
	case <-s.answered:
	case <-s.stopped:
	case <-s.gone:
	case <-enough.C:
	}
}

// Close leaves the body to its owner.
func (s *source) Close() error { return nil }

// readPlain passes the body on, and its last byte together with its end.
func (s *source) readPlain(p []byte) (int, error) {
	if len(p) == 0 || s.err != nil {
		return 0, s.err
	}
	if s.eof {
		return 0, io.EOF
	}
	n, err := s.next(p)
	if err != io.EOF || s.whole {
		return n, err
	}
	if err := s.release(); err != nil {
		return 0, err
	}
	return n, nil
}

// next reads from the body. It returns the last byte of it together with io.EOF, and only then. The deadline starts with that end.
func (s *source) next(p []byte) (int, error) {
	select {
	case <-s.answered:
		<-s.stopped // an error any earlier would close the connection under the answer
		return 0, errAborted
	case <-s.stopped:
		return 0, errAborted
	default:
	}
	if s.whole {
		return s.nextOfWhole(p)
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
			s.time.start() // the gate has been passed
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

// nextOfWhole reads from a body that holds nothing back.
func (s *source) nextOfWhole(p []byte) (int, error) {
	n, err := s.body.Read(p[:min(int64(len(p)), s.left)])
	if s.left -= int64(n); s.left == 0 {
		s.eof = true
		return n, io.EOF
	}
	return n, s.note(err)
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

// release lets the end go, unless the request was cut off, or so much time has passed since the gate (a machine that slept) that
// it would come late.
func (s *source) release() error {
	if s.time.over() && s.end.CompareAndSwap(flowing, aborted) {
		s.err = errLate
		return errLate
	}
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

// seeEnd notes that the gate of a whole body was passed.
func (s *source) seeEnd() { s.end.Store(released) }

// stop waits for a Read of the body under way, and lets no other follow.
func (s *source) stop() {
	close(s.stopped)
	<-s.reading
	s.reading <- struct{}{}
}

// failure is the body's own, nil if it was not the body that failed. It is read after RoundTrip has failed, or after stop. Past
// the gate a body that cannot be read is the proxy's failure, and not its client's.
func (s *source) failure() error {
	if s.whole || s.err == errAborted || s.err == errLate {
		return nil
	}
	return s.err
}
