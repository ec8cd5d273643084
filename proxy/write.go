package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// writeThrough is the one way of a write:
//
//	demand what the rules ask → begin: refuse now what can be refused now → the backend reads the body, whose end is held back
//	→ gate → the end is released, the store commits → settle → the client is told
//
// If the process dies before the gate, nothing has happened. If it dies behind it, the store may have the write or not; the
// client has no answer, and the registry knows how long a newer holder has to wait.
func (x *exchange) writeThrough() error {
	checks, err := x.demand()
	if err != nil {
		x.drain(drainTime)
		return err
	}
	if !x.target.Fenced {
		return x.passBody(x.detached(), checks, ungated{})
	}
	w, err := x.h.Fence.Begin(x.detached(), x.claim())
	if err != nil {
		x.drain(drainTime)
		return err
	}
	defer w.End() // a panic between gate and store leaves the write in doubt
	return x.passBody(w.Context(), checks, &gated{Write: w, x: x})
}

// detached is a context that does not end with the client: past the gate a write no longer depends on it. Before the gate, a
// client that leaves ends its body.
func (x *exchange) detached() context.Context { return context.WithoutCancel(x.r.Context()) }

// demand is what the rules ask of a write, whatever the fence says of its token.
func (x *exchange) demand() ([]check, error) {
	t := &x.target
	switch {
	case t.Token == rules.Required && x.who.token == 0:
		return nil, &ruleError{tokenRequired, "this write needs a fencing token: send it as " + headerToken + ", in the endpoint path or in the session token"}
	case t.HolderRequired && x.who.holder == "":
		return nil, &ruleError{holderRequired, "this write has to say who its holder is: send " + headerHolder + " beside the token"}
	case t.RequireCondition && !conditional(x.r.Header):
		return nil, &ruleError{conditionRequired, "this write needs a condition: send If-Match with the ETag that it replaces, or If-None-Match: *"}
	case x.op.name == "PutObject" && x.r.ContentLength < 0:
		return nil, notImplemented("a body of unknown length (Transfer-Encoding: chunked) is not taken, as S3 does not take it: send Content-Length")
	case x.op.name == "PutObject" && x.r.Header.Get("Content-Length") == "":
		// net/http takes this for an empty body, and an object would become empty by a slip.
		return nil, &s3Error{http.StatusLengthRequired, missingContentLength, "send Content-Length; for an empty object, send 0"}
	}
	return checksOf(x.r.Header)
}

// A passage is what a write has to do with the fence. ungated is that of keys that no rule fences.
type passage interface {
	admit() error
	Done()
	Failed()
	InDoubt() (proven func())
}

type ungated struct{}

func (ungated) admit() error    { return nil }
func (ungated) Done()           {}
func (ungated) Failed()         {}
func (ungated) InDoubt() func() { return func() {} }

type gated struct {
	*tokens.Write
	x *exchange
}

func (g *gated) admit() error {
	start := time.Now()
	err := g.Admit(g.x.r.Context())
	g.x.h.metrics.gateWait(time.Since(start))
	return err
}

// passBody lets the backend read the body and act, settles, and tells the client. ctx ends when the upload is to be cut off.
func (x *exchange) passBody(ctx context.Context, checks []check, p passage) error {
	body := &gatedBody{src: x.r.Body, control: x.control, idle: x.h.BodyIdle, gate: p.admit, checks: checks}
	stopWatching := watch(ctx, body)
	rec := newRecorder(x.w.Header())
	err := x.callBackend(ctx, rec, body)
	stopWatching()
	if err != nil {
		x.drain(drainInterrupted)
		return err
	}
	if !body.opened {
		return x.answeredEarly(rec)
	}
	return x.settle(rec, p)
}

// watch interrupts the body when ctx ends. stop waits for an interruption under way, which must not hit the next request.
func watch(ctx context.Context, body *gatedBody) (stop func()) {
	done := make(chan struct{})
	stopFunc := context.AfterFunc(ctx, func() {
		defer close(done)
		body.interrupt(context.Cause(ctx))
	})
	return func() {
		if !stopFunc() {
			<-done
		}
		body.disarm()
	}
}

// callBackend runs the backend up to its answer. Its error says that the body came to no end, so that the store has changed nothing.
func (x *exchange) callBackend(ctx context.Context, rec *recorder, body *gatedBody) error {
	x.bodyTouched = x.r.ContentLength != 0
	out := x.toBackend().WithContext(ctx)
	x.addConditions(out)
	out.Body = body
	if x.op.name != "PutObject" || x.r.ContentLength == 0 {
		// Nothing worth holding back: the body is read, and the gate passed, before the store is called.
		small, err := io.ReadAll(io.LimitReader(body, maxSmall+1))
		if err != nil {
			return err
		}
		if len(small) > maxSmall {
			return badRequest("EntityTooLarge", "the body of %s has more than %d bytes", x.op.name, maxSmall)
		}
		out.Body = io.NopCloser(bytes.NewReader(small))
	}
	x.runBackend(rec, out)
	return body.failure()
}

// maxSmall bounds the bodies that are read whole: those of operations other than PutObject, in bytes.
const maxSmall = 1 << 20

// runBackend makes a panic in a backend an answer that never came.
func (x *exchange) runBackend(rec *recorder, out *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			rec.status = 0
			x.h.Log.Error("panic in a backend", "panic", p, "request", x.id, "stack", string(debug.Stack()))
		}
	}()
	x.backend().ServeHTTP(rec, out)
}

// addConditions is write_once: the store itself refuses to overwrite.
func (x *exchange) addConditions(out *http.Request) {
	if x.target.WriteOnce && x.op.name == "PutObject" {
		out.Header.Del("If-Match")
		out.Header.Set("If-None-Match", "*")
	}
}

// answeredEarly is a backend that did not want the body: a bucket that is missing, a key that it cannot hold.
func (x *exchange) answeredEarly(rec *recorder) error {
	x.drain(drainTime)
	if outcomeOf(rec.status) != failed {
		return errors.New("the backend answered " + strconv.Itoa(rec.status) + " to a write before it had the whole body")
	}
	return x.replay(rec)
}

type outcome int

const (
	done outcome = iota
	failed
	unknown
)

// outcomeOf reads a backend's status by the contract of package backends.
func outcomeOf(status int) outcome {
	switch {
	case status >= 200 && status < 300:
		return done
	case status >= 300 && status < 500, status == http.StatusNotImplemented, status == http.StatusServiceUnavailable:
		return failed
	}
	return unknown
}

// settle tells the fence what became of an admitted write, and then the client.
func (x *exchange) settle(rec *recorder, p passage) error {
	switch outcomeOf(rec.status) {
	case done:
		p.Done()
	case failed:
		p.Failed()
	default:
		p.InDoubt()
		return errOutcomeUnknown
	}
	if rec.status == http.StatusPreconditionFailed && x.existsByRule() {
		return &ruleError{objectExists, "the object exists, and its rule says write_once: it is never overwritten"}
	}
	return x.replay(rec)
}

// existsByRule says that it was the rule's condition and not the client's own that was not met.
func (x *exchange) existsByRule() bool {
	return x.target.WriteOnce && x.r.Header.Get("If-None-Match") == ""
}

// replay tells the client what the backend said.
func (x *exchange) replay(rec *recorder) error {
	if x.target.Fenced {
		x.lookFence()
	}
	rec.replay(x.w)
	return nil
}
