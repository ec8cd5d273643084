package proxy

import (
	"context"
	"errors"
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
//	demand what the rules ask → begin: refuse now what can be refused now → gather a body that goes whole → observe what the key has
//	→ the store gets the request, but for its end → gate → the end is released, the store commits → settle → the client is told
//
// If the process dies before the gate, nothing has happened. If it dies behind it, the store may have the write or not; the
// client has no answer, and the registry knows how long a newer holder has to wait.
func (x *exchange) writeThrough() error {
	rec, err := x.through(func(w *tokens.Write) passage { return &gated{Write: w, x: x} })
	if err == nil && x.op.upload != "" && rec.outcome() == done {
		x.forgetUpload() // it was completed or aborted
		x.locate(rec)
	}
	return x.tell(rec, err)
}

// through is the way up to the store's answer. pass says how the write passes the gate.
func (x *exchange) through(pass func(*tokens.Write) passage) (*recorder, error) {
	d, err := x.demand()
	if err != nil {
		x.drain(drainTime)
		return nil, err
	}
	defer d.release()
	if !x.target.Fenced {
		return x.attempt(x.detached(), d, ungated{})
	}
	for {
		rec, err := x.admitted(d, pass)
		if !errors.Is(err, errLostRace) {
			return rec, err
		}
		if d.tries++; d.tries == maxTries || d.content == nil && x.streams() {
			return nil, x.lostRace()
		}
	}
}

// maxTries is how often a write is tried that meets a key which has changed since it was observed.
const maxTries = 10

// admitted is one admission of a write, from its beginning to its end.
func (x *exchange) admitted(d *draft, pass func(*tokens.Write) passage) (*recorder, error) {
	w, err := x.h.Fence.Begin(x.detached(), x.claim())
	if err != nil {
		x.drain(drainTime)
		return nil, err
	}
	defer w.End() // a panic between gate and store leaves the write in doubt
	x.generation = w.Generation()
	return x.attempt(w.Context(), d, pass(w))
}

// detached is a context that does not end with the client: past the gate a write no longer depends on it. Before the gate, a
// client that leaves ends its body.
func (x *exchange) detached() context.Context { return context.WithoutCancel(x.r.Context()) }

// A draft is a write that has met the demands of its rule, and what is kept of it from one try to the next.
type draft struct {
	checks  []check
	found   Findings
	content *content // of a body that goes whole, once it is here

	tries     int
	conflicts int
	blind     bool // no condition: it cannot be known what it would have to be
}

func (d *draft) release() {
	if d.content != nil {
		d.content.release()
	}
}

// demand is what the rules ask of a write, whatever the fence says of its token, and what S3 asks of a body.
func (x *exchange) demand() (*draft, error) {
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
	case x.target.WriteOnce && x.op.name == appendObject:
		return nil, &ruleError{objectExists, "its rule says write_once: an object is never changed, and an append would"}
	case x.streams() && x.r.ContentLength > maxObject:
		return nil, badRequest("EntityTooLarge", "Your proposed upload exceeds the maximum allowed object size.")
	case x.streams() && x.r.ContentLength < 0:
		return nil, notImplemented("a body of unknown length (Transfer-Encoding: chunked) is not taken, as S3 does not take it: send Content-Length")
	case x.streams() && length == "":
		// net/http takes this for an empty body, and an object would become empty by a slip.
		return nil, &s3Error{http.StatusLengthRequired, missingContentLength, "send Content-Length; for an empty object, send 0"}
	}
	checks, err := x.checks()
	if err != nil {
		return nil, err
	}
	return &draft{checks: checks}, nil
}

// streams says whether the body is an object's content, which flows on as it comes. Other bodies are small and read whole first.
func (x *exchange) streams() bool { return slices.Contains(streaming, x.op.name) }

var streaming = []string{"PutObject", "UploadPart", appendObject}

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

// attempt takes a write to the store and settles it. What the store said is returned, and not told to the client yet. ctx ends when the
// upload is to be cut off.
func (x *exchange) attempt(ctx context.Context, d *draft, p passage) (*recorder, error) {
	c, err := x.prepare(ctx, d)
	if err != nil {
		x.drainRefused(ctx)
		return nil, err
	}
	if c.seen.absent() && x.op.name == "DeleteObject" && x.nothingToDelete(c.seen) {
		return x.deleteNothing(p)
	}
	s, err := x.deliver(ctx, d, c, p)
	if err != nil {
		return nil, err
	}
	if s.passed {
		if err := x.settle(s, p); err != nil {
			return s.rec, err
		}
	}
	if x.existsByRule(s.rec, c) {
		return s.rec, errObjectExists
	}
	return s.rec, x.checkRace(s.rec, d, c)
}

// prepare is all that comes before the store is sent the write: it must be one for it, a body that goes whole is here, and the key is
// observed.
func (x *exchange) prepare(ctx context.Context, d *draft) (c condition, err error) {
	if d.content == nil && x.small() { // what is wrong with it, no store is asked about
		if d.content, err = x.gatherSmall(ctx, d.checks); err != nil {
			return c, err
		}
	}
	if d.tries == 0 && x.op.level == object {
		if d.found, err = x.findings(); err != nil {
			return c, err
		}
		if err := x.allows(d.found, x.op.name, x.op.key, x.target); err != nil {
			return c, err
		}
	}
	if d.content == nil {
		if d.content, err = x.gather(ctx, d.checks, d.found); err != nil {
			return c, err
		}
	}
	if c, err = x.observed(ctx, d); err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx) // it was refused meanwhile
	}
	return c, err
}

// observed makes the write's condition. It comes before the gate: a condition that is made later would hold for a late write, too.
func (x *exchange) observed(ctx context.Context, d *draft) (condition, error) {
	b := x.backend()
	judged := x.target.Fenced && x.conditionable() && b.conditional(d.found, x.op.name) && !x.target.Unconditional
	switch {
	case !x.target.Fenced, !x.conditionable(), b.remote() && !judged && !b.Stamp:
		return x.conditionFor(observation{}, false), nil
	case !b.remote():
		return x.conditionFor(observation{}, false), x.checkStamp(ctx)
	}
	seen, err := x.observe(ctx, d.tries > 0)
	if err != nil {
		return condition{}, err
	}
	if seen.hidden && (d.tries > 0 || d.content == nil) {
		d.blind = true // the object may be there, after all, and this is the last try
	}
	return x.conditionFor(seen, judged && !d.blind), nil
}

// conditionable says whether S3 judges conditions on the request: not on one version of many.
func (x *exchange) conditionable() bool {
	return slices.Contains(conditionable, x.op.name) && !x.r.URL.Query().Has("versionId")
}

// A sent write is one that the store has answered.
type sent struct {
	rec     *recorder
	passed  bool   // it has passed the gate; where it has not, the store did not want the body
	writeID string // of its stamp, "" if it has none
}

// deliver lets the store have the request. An error says that the write has not passed the gate: the store has changed nothing.
func (x *exchange) deliver(ctx context.Context, d *draft, c condition, p passage) (s sent, err error) {
	out := x.toBackend().WithContext(ctx)
	s.writeID = x.stamp(out.Header)
	c.put(out)
	s.rec = newRecorder(x.w.Header())
	s.rec.blank = x.keepWaiting
	var body delivery
	if d.content != nil {
		body = d.content.deliver(out, p.admit)
		x.runBackend(s.rec, out)
	} else {
		body = x.stream(ctx, s.rec, out, d.checks, p.admit)
	}
	if s.passed = body.passed(); s.passed {
		return s, nil
	}
	if err = body.failure(); err == nil {
		err = context.Cause(ctx) // the backend gave up because its context was cancelled, and not for a reason of its own
	}
	if err != nil {
		x.drainRefused(ctx)
		return s, err
	}
	return s, x.answeredEarly(s.rec)
}

// stream lets the store read the client's body, whose end is held back.
func (x *exchange) stream(ctx context.Context, rec *recorder, out *http.Request, checks []check, gate func() error) delivery {
	body := x.clientBody(checks, gate)
	out.Body = body
	stop := x.watch(ctx, body)
	x.runBackend(rec, out)
	stop()
	x.bodyTouched = body.touched
	return body
}

// runBackend makes a panic in a backend an answer that never came.
func (x *exchange) runBackend(rec *recorder, out *http.Request) {
	defer func() {
		p := recover()
		if p != nil {
			rec.status = 0
		}
		if p != nil && p != http.ErrAbortHandler { // that one breaks off an answer on purpose, and the backend has logged why
			x.h.Log.Error("panic in a backend", "panic", p, "request", x.id, "stack", string(debug.Stack()))
		}
	}()
	x.backend().ServeHTTP(rec, out)
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
	if rec.doubtful {
		return unknown
	}
	code, isError := rec.errorCode()
	if rec.status != http.StatusOK || !isError {
		return outcomeOf(rec.status)
	}
	if definite[code] {
		return failed
	}
	return unknown
}

// definite are the codes of an error inside a success that say that nothing was written, and never will be: those that S3 has with a status of
// 4xx ("Error responses"). Stores have many of their own for the rest.
var definite = map[string]bool{
	preconditionFailed: true, "ConditionalRequestConflict": true, "OperationAborted": true, noSuchKey: true, "NoSuchUpload": true, noSuchBucket: true,
	"NoSuchVersion": true, "InvalidPart": true, "InvalidPartOrder": true, "EntityTooSmall": true, "EntityTooLarge": true, accessDenied: true,
	"InvalidRequest": true, invalidArgument: true, "MalformedXML": true, "InvalidObjectState": true, "MethodNotAllowed": true, notImplementedCode: true,
	"BadDigest": true, "InvalidDigest": true, "KeyTooLongError": true, "ObjectLocked": true,
}

// settle tells the fence what became of an admitted write.
func (x *exchange) settle(s sent, p settler) error {
	x.remember(s.rec)
	switch s.rec.outcome() {
	case done:
		p.Done()
	case failed:
		p.Failed()
	default:
		x.h.metrics.inDoubt.Inc()
		x.prove(s.writeID, p.InDoubt())
		return errOutcomeUnknown
	}
	return nil
}

// tell tells the client what the backend said.
func (x *exchange) tell(rec *recorder, err error) error {
	if err != nil {
		return err
	}
	if x.waiting {
		if _, isError := rec.errorCode(); rec.status != http.StatusOK && !isError {
			return errors.New("the backend answered " + strconv.Itoa(rec.status) + " when a 200 had been passed on already")
		}
		x.endWaiting(rec.body)
		return nil
	}
	if x.target.Fenced {
		x.lookFence()
	}
	rec.header.Del(headerStamp)
	rec.replay(x.w)
	return nil
}
