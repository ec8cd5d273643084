package proxy

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
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
	rec, err := x.through(func(w *tokens.Write) passage { return &gated{Write: w, x: x} })
	if err == nil && x.op.upload != "" && rec.outcome() == done {
		x.forgetUpload() // it was completed or aborted
	}
	return x.tell(rec, err)
}

// through is the way up to the store's answer. pass says how the write passes the gate.
func (x *exchange) through(pass func(*tokens.Write) passage) (*recorder, error) {
	checks, err := x.demand()
	if err != nil {
		x.drain(drainTime)
		return nil, err
	}
	if !x.target.Fenced {
		return x.throughStore(x.detached(), checks, ungated{})
	}
	w, err := x.h.Fence.Begin(x.detached(), x.claim())
	if err != nil {
		x.drain(drainTime)
		return nil, err
	}
	defer w.End() // a panic between gate and store leaves the write in doubt
	return x.throughStore(w.Context(), checks, pass(w))
}

// detached is a context that does not end with the client: past the gate a write no longer depends on it. Before the gate, a
// client that leaves ends its body.
func (x *exchange) detached() context.Context { return context.WithoutCancel(x.r.Context()) }

// demand is what the rules ask of a write, whatever the fence says of its token, and what S3 asks of a body.
func (x *exchange) demand() ([]check, error) {
	if err := x.who.meets(x.target.Policy); err != nil {
		return nil, err
	}
	conditional := conditional(x.r.Header) || !slices.Contains(conditionable, x.op.name)
	creates := slices.Contains(creating, x.op.name)
	switch length := x.r.Header.Get("Content-Length"); {
	case x.target.RequireCondition && !conditional:
		return nil, &ruleError{conditionRequired, "this write needs a condition: send If-Match with the ETag that it replaces, or If-None-Match: *"}
	case x.target.WriteOnce && creates && x.r.Header.Get("If-Match") != "":
		return nil, &ruleError{objectExists, "its rule says write_once: an object is never overwritten, and If-Match asks for that"}
	case x.streams() && x.r.ContentLength < 0:
		return nil, notImplemented("a body of unknown length (Transfer-Encoding: chunked) is not taken, as S3 does not take it: send Content-Length")
	case x.streams() && length == "":
		// net/http takes this for an empty body, and an object would become empty by a slip.
		return nil, &s3Error{http.StatusLengthRequired, missingContentLength, "send Content-Length; for an empty object, send 0"}
	}
	return checksOf(x.r.Header, x.streams())
}

// conditionable are the operations that S3 lets a client put a condition on.
var conditionable = []string{"PutObject", "CopyObject", "CompleteMultipartUpload", "DeleteObject"}

// creating are those of them that can be told not to overwrite.
var creating = conditionable[:3]

// streams says whether the body is an object's content, which flows on as it comes. Other bodies are small and read whole first.
func (x *exchange) streams() bool { return x.op.name == "PutObject" || x.op.name == "UploadPart" }

// meets says whether a writer is what a rule asks for.
func (id identity) meets(p rules.Policy) error {
	switch {
	case p.Token == rules.Required && id.token == 0:
		return &ruleError{tokenRequired, "this write needs a fencing token: send it as " + headerToken + ", in the endpoint path or in the session token"}
	case p.HolderRequired && id.holder == "":
		return &ruleError{holderRequired, "this write has to say who its holder is: send " + headerHolder + " beside the token"}
	}
	return nil
}

// A passage is what a write has to do with the fence. ungated is that of keys that no rule fences.
type passage interface {
	admit() error
	settler
}

// A settler is told what became of an admitted write.
type settler interface {
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
	err := g.Admit(g.x.detached()) // the body is here and good: its client, which may have shut its side, is not needed to decide
	g.x.h.metrics.gateWait(time.Since(start))
	return err
}

// throughStore lets the backend read the body and act, and settles. What the backend said is returned, and not told to the client
// yet. ctx ends when the upload is to be cut off.
func (x *exchange) throughStore(ctx context.Context, checks []check, p passage) (*recorder, error) {
	body := &gatedBody{src: x.r.Body, control: x.control, idle: x.h.BodyIdle, gate: p.admit, checks: checks}
	stopWatching := watch(ctx, body)
	rec := newRecorder(x.w.Header())
	err := x.callBackend(ctx, rec, body)
	stopWatching()
	x.bodyTouched = body.touched
	if body.interrupted() {
		x.w.Header().Set("Connection", "close")
	}
	if err == nil && !body.opened {
		err = context.Cause(ctx) // the backend gave up because its context was cancelled, and not for a reason of its own
	}
	if err != nil {
		x.drain(drainInterrupted)
		return nil, err
	}
	if !body.opened {
		return rec, x.answeredEarly(rec)
	}
	return rec, x.settle(rec, p)
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
	}
}

// callBackend runs the backend up to its answer. Its error says that the body came to no end, so that the store has changed nothing.
func (x *exchange) callBackend(ctx context.Context, rec *recorder, body *gatedBody) error {
	out := x.toBackend().WithContext(ctx)
	x.addConditions(out)
	out.Body = body
	if !x.streams() || x.r.ContentLength == 0 {
		// Nothing worth holding back: the body is read, and the gate passed, before the store is called.
		body.src = &capped{Reader: body.src, left: maxSmall, err: badRequest("EntityTooLarge", "the body of %s has more than %d bytes", x.op.name, maxSmall)}
		small, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		out.Body = io.NopCloser(bytes.NewReader(small))
	}
	x.runBackend(rec, out)
	return body.failure()
}

// capped fails before it gives out more than is left: a body that is too long must not come to its end, and to the gate.
type capped struct {
	io.Reader
	left int
	err  error
}

func (c *capped) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.left -= n; c.left < 0 {
		return 0, c.err
	}
	return n, err
}

// maxSmall bounds the bodies that are read whole, in bytes. The largest are lists of 10,000 parts.
const maxSmall = 4 << 20

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
	if x.target.WriteOnce && slices.Contains(creating, x.op.name) {
		out.Header.Set("If-None-Match", "*")
	}
}

// answeredEarly is a backend that did not want the body: a bucket that is missing, a key that it cannot hold.
func (x *exchange) answeredEarly(rec *recorder) error {
	x.drain(drainTime)
	if outcomeOf(rec.status) != failed {
		return errors.New("the backend answered " + strconv.Itoa(rec.status) + " to a write before it had the whole body")
	}
	return nil
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

// outcome reads the whole answer: S3 begins to answer Complete and Copy before it knows, with 200, and may put an error inside.
func (rec *recorder) outcome() outcome {
	var inside struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	if rec.status != http.StatusOK || xml.Unmarshal(rec.body, &inside) != nil {
		return outcomeOf(rec.status)
	}
	switch inside.Code {
	case internalError, slowDown, serviceUnavailable, "":
		return unknown
	}
	return failed
}

// settle tells the fence what became of an admitted write.
func (x *exchange) settle(rec *recorder, p settler) error {
	switch rec.outcome() {
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
	return nil
}

// existsByRule says that it was the rule's condition and not the client's own that was not met.
func (x *exchange) existsByRule() bool {
	return x.target.WriteOnce && x.r.Header.Get("If-None-Match") == "" && slices.Contains(creating, x.op.name)
}

// tell tells the client what the backend said.
func (x *exchange) tell(rec *recorder, err error) error {
	if err != nil {
		return err
	}
	if x.target.Fenced {
		x.lookFence()
	}
	rec.replay(x.w)
	return nil
}
