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

	answered atomic.Bool // the headers of the store's answer are there
	conn     *conn       // the connection that the request was given, nil if none
	before   int64       // what had been written on it for others
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
	if x.body, err = x.s.payloadOf(x.r); err != nil {
		return err
	}
	ctx, done := x.context()
	defer done()
	out := x.s.outgoing(ctx, x.r)
	x.body.attach(out)
	links, err := x.s.sign(out, x.body.hash)
	if err != nil {
		x.s.o.Log.Error("no credentials for the store", "cause", err)
		return unchanged("The proxy has no credentials for the store.")
	}
	src := x.body.source
	if src == nil {
		return x.send(out)
	}
	if x.body.hash == signedChunks {
		src.frames = newFramer(links)
	}
	defer src.stop() // after the answer is through, for it closes the connection
	return x.send(out)
}

// context is the request's to the store. A read ends with its client. A write ends with it only until the gate: a body read whole, or
// none, has passed it before; one that streams passes it when its end is released.
func (x *exchange) context() (ctx context.Context, done func()) {
	ctx = x.r.Context()
	if x.write {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, x.cancel = context.WithCancelCause(ctx)
	unwatch := func() bool { return true }
	if src := x.body.source; src != nil {
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

// send sends the request and forwards the answer.
func (x *exchange) send(out *http.Request) error {
	out = out.WithContext(httptrace.WithClientTrace(out.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			x.conn = info.Conn.(*conn) // by newTransport
			x.before = x.conn.written.Load()
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil && !x.answered.Load() {
				x.clock.Reset(x.patience())
			}
		},
	}))
	resp, err := x.s.transport.RoundTrip(out)
	if err != nil {
		return x.failed(err)
	}
	x.answered.Store(true)
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

// incomplete says that the store cannot have the whole request: its end was never let go, or the kernel took no more bytes than the
// body alone has. These are counted only if RoundTrip has failed: beside an answer, the counting may be a moment behind.
func (x *exchange) incomplete() bool {
	if src := x.body.source; src != nil && src.end.Load() != released {
		return true
	}
	return !x.answered.Load() && (x.conn == nil || x.conn.written.Load()-x.before <= x.body.length)
}

// failed says what it means that there is no answer.
func (x *exchange) failed(err error) error {
	log := x.s.o.Log.With("method", x.r.Method, "path", x.r.URL.Path, "cause", err)
	if src := x.body.source; src != nil && !x.answered.Load() {
		if err := src.failure(); err != nil {
			return err
		}
	}
	switch {
	case x.r.Context().Err() != nil && (!x.write || x.incomplete()):
		return unchanged("The request was given up by its client.")
	case err == errEarly:
		log.Error("the store answered a write with success before it had the whole of it")
		return unknown(http.StatusBadGateway, "BadGateway")
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
	return errors.Is(err, errNoAnswer) || errors.As(err, &t) && t.Timeout()
}
