package s3

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

var (
	errNoAnswer = errors.New("the store did not answer in time")
	errEarly    = errors.New("the store answered success before it had the end of the body")
)

// An exchange is one request on its way to the store, and what is known of how far it came.
type exchange struct {
	s      *Store
	w      http.ResponseWriter
	r      *http.Request
	write  bool
	body   payload
	cancel context.CancelCauseFunc
	clock  *time.Timer // cancels the request when the store is silent for too long
	time   *deadline   // of a write, from the gate on

	queried  bool        // the signature is in the query
	answered atomic.Bool // the headers of the store's answer are there
	conn     *conn       // the connection that the request was given, nil if none
}

// ServeHTTP forwards a request to the store, once, and the store's answer to the client.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{s: s, w: w, r: r, write: isWrite(r.Method)}
	if err := x.serve(); err != nil {
		x.refuse(err)
	}
}

func isWrite(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return true
}

// serve returns an error if nothing was answered yet.
func (x *exchange) serve() (err error) {
	x.time = newDeadline(x.s.o.Boot, sendTime(x.s.settle(x.r)), func() {
		if !x.answered.Load() { // a gate that opens after an early answer starts the timer in vain
			x.cancel(errLate)
		}
	})
	defer x.time.timer.Stop() // last: nobody reads a body any more, so nobody starts it
	if x.body, err = x.payloadOf(x.r); err != nil {
		return err
	}
	ctx, done := x.context()
	defer done()
	if x.write && x.body.pass == nil && !x.body.streams() {
		x.time.start() // what has no end, and what was read to its end, has passed the gate
	}
	out := x.s.outgoing(ctx, x.r)
	if err := x.body.attach(out); err != nil {
		return err
	}
	if err := x.sign(out); err != nil {
		x.s.o.Log.Error("no credentials for the store", "cause", err)
		return unchanged("The proxy has no credentials for the store.")
	}
	if err := x.passGate(); err != nil {
		return err
	}
	if src := x.body.source; src != nil {
		defer src.stop() // after the answer is through, for it closes the connection
	}
	return x.send(out)
}

// passGate asks the gate of a body that came whole. From here on nothing depends on the client.
func (x *exchange) passGate() error {
	if x.body.pass == nil {
		return nil
	}
	if err := x.body.pass(); err != nil {
		return badBody("IncompleteBody", "The request was not let through: %v.", err)
	}
	if x.write {
		x.time.start()
	}
	if src := x.body.source; src != nil {
		src.seeEnd()
	}
	return nil
}

// context is the request's to the store. A read ends with its client. A write ends with it only until the gate, which is before
// it is sent; but one that streams passes it when its end is released.
func (x *exchange) context() (ctx context.Context, done func()) {
	ctx = x.r.Context()
	if x.write {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, x.cancel = context.WithCancelCause(ctx)
	unwatch := func() bool { return true }
	if src := x.body.source; x.body.streams() {
		unwatch = src.abortWith(x.r.Context(), x.cancel)
	}
	x.clock = time.AfterFunc(time.Hour, func() { x.cancel(errNoAnswer) })
	x.clock.Stop()
	return ctx, func() {
		unwatch()
		x.clock.Stop()
		x.cancel(nil)
	}
}

// trace follows the request on its way.
func (x *exchange) trace() *httptrace.ClientTrace {
	t := &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			x.conn = info.Conn.(*conn) // by newTransport
			x.conn.giveTo(x)
			if x.body.source != nil {
				x.body.source.gone = x.conn.closed
			}
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err != nil || x.answered.Load() {
				return
			}
			x.time.timer.Stop() // what is still in the transport's buffer goes out in time, or conn.Write fails
			x.clock.Reset(x.patience())
		},
	}
	if src := x.body.source; src != nil {
		t.GotFirstResponseByte = func() { src.begun.Store(true) }
		t.Got100Continue = func() { close(src.wanted) }
	}
	return t
}

// send sends the request and forwards the answer.
func (x *exchange) send(out *http.Request) error {
	if x.time.over() {
		return x.failed(errLate)
	}
	out = out.WithContext(httptrace.WithClientTrace(out.Context(), x.trace()))
	resp, err := x.s.transport.RoundTrip(out)
	if err != nil {
		return x.failed(err)
	}
	x.answered.Store(true)
	x.time.timer.Stop()
	x.s.clock.learn(resp.Header.Get("Date"))
	defer resp.Body.Close()
	src := x.body.source
	if src != nil {
		close(src.answered)
		if src.end.CompareAndSwap(flowing, aborted) && resp.StatusCode < 300 {
			return x.failed(errEarly)
		}
	}
	return x.forward(resp)
}

// patience is how long the store may take to answer. Copies and completions take long.
func (x *exchange) patience() time.Duration {
	if x.r.Method == http.MethodPost || x.r.Header.Get("X-Amz-Copy-Source") != "" {
		return x.s.o.LongAnswerTimeout
	}
	return x.s.o.AnswerTimeout
}

// incomplete says that the store cannot have the whole request: its end was never let go, or the kernel did not take all of it. The
// latter is known only if RoundTrip has failed: beside an answer, the counting may be a moment behind.
func (x *exchange) incomplete() bool {
	if src := x.body.source; src != nil && src.end.Load() != released {
		return !x.torn()
	}
	needed := x.body.length
	if x.body.chunked() {
		needed -= endLength(x.body.trailer) + int64(len(crlf)) // some stores do without the empty chunk, and what ends the data before it
	}
	return !x.answered.Load() && (x.conn == nil || !x.conn.progress().whole(needed)) && !x.torn()
}

// torn says that the store may have made an object of less than the whole body: one that the probe has seen do that, with a body in the
// form that was sent.
func (x *exchange) torn() bool {
	found := x.s.found.Load()
	if found == nil || x.queried || x.body.length <= 0 || !found.Unhashed && (!found.Torn || !x.body.chunked()) {
		return false
	}
	return x.conn != nil && x.conn.progress().head == len(emptyLine)
}

// failed says what it means that there is no answer.
func (x *exchange) failed(err error) error {
	log := x.s.o.Log.With("method", x.r.Method, "path", x.r.URL.Path, "cause", err)
	if src := x.body.source; src != nil && !x.answered.Load() && x.incomplete() {
		if err := src.failure(); err != nil {
			return err
		}
	}
	switch {
	case x.r.Context().Err() != nil && (!x.write || x.body.streams() && x.incomplete()):
		return unchanged("The request was given up by its client.")
	case err == errEarly:
		log.Error("the store answered a write with success before it had the whole of it")
		return unknown(http.StatusBadGateway, "BadGateway")
	case x.incomplete() && errors.Is(err, errLate):
		log.Warn("the store was not sent the whole of a write in time after the gate", "limit", x.time.limit)
		return tooLate()
	case x.incomplete():
		log.Warn("the store could not be reached, or hung up before it had the whole request")
		return unchanged("The store could not be reached, or hung up before it had the whole request.")
	}
	log.Warn("the store has the request, and did not answer")
	if isTimeout(err) {
		return unknown(http.StatusGatewayTimeout, "GatewayTimeout")
	}
	return unknown(http.StatusBadGateway, "BadGateway")
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, errNoAnswer) || errors.Is(err, errLate) || errors.As(err, &t) && t.Timeout()
}
