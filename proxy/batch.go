package proxy

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// deleteMany is DeleteObjects, judged key by key: stale ones come back as errors of their own, the others are deleted. It crosses the
// gates of all resources at once, without ever waiting at one while it is past another.
func (x *exchange) deleteMany() error {
	release, err := x.reserveSmall()
	if err != nil {
		x.drain(drainTime)
		return err
	}
	defer release()
	b, err := x.readBatch()
	if err != nil {
		x.drain(drainTime)
		return err
	}
	gates := x.beginAll(b)
	defer func() {
		for _, w := range gates.writes {
			w.End()
		}
	}()
	if err := x.observeBatch(b); err != nil {
		return err
	}
	rec, err := x.forwardBatch(b, gates)
	if err == nil {
		return x.tellBatch(rec, b)
	}
	for i := range b.entries { // they are on record, whatever became of the others
		if e := &b.entries[i]; e.refusal != nil {
			x.refuseEntry(e, e.refusal)
		}
	}
	return err
}

// readBatch reads and checks the body, and finds out where each key leads and what the rules ask there.
func (x *exchange) readBatch() (*batch, error) {
	checks, err := x.checks()
	if err != nil {
		return nil, err
	}
	x.bodyTouched = true
	tooLong := badRequest("MalformedXML", "a Delete has %d bytes at most", maxSmall)
	body := &gatedBody{src: &capped{x.r.Body, maxSmall, tooLong}, control: x.control, idle: x.h.BodyIdle, gate: func() error { return nil }, checks: checks}
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	x.promoteTrailers()
	b, err := parseBatch(text)
	if err != nil {
		return nil, err
	}
	found, err := x.findings()
	if err != nil {
		return nil, err
	}
	for i := range b.entries {
		e := &b.entries[i]
		if !x.mayReach(x.op.bucket, e.Key) {
			e.refusal = x.deniedKey(e.Key)
			continue
		}
		e.target, _ = x.h.Rules.Object(x.op.bucket, e.Key)
		e.conditioned = e.target.Fenced && !e.target.Unconditional && e.ETag == "" && e.VersionId == "" && x.backend().conditional(found, deleteObjects)
		e.refusal = x.who.meets(e.target.Policy)
		if e.refusal == nil {
			e.refusal = x.allows(found, deleteObjects, e.Key, e.target)
		}
		if e.refusal == nil && e.target.RequireCondition && e.ETag == "" {
			e.refusal = &ruleError{conditionRequired, "this delete needs a condition: send the object's ETag with its key"}
		}
	}
	return b, nil
}

// gates are those of a batch: one write per resource, as many keys as there may be.
type gates struct {
	writes  []*tokens.Write
	entries map[*tokens.Write][]*batchEntry
	refused *tokens.Write // by the last admit
}

// admit passes all gates, or none. A refusal of one resource is noted with its keys.
func (g *gates) admit(x *exchange) error {
	start := time.Now()
	defer func() { x.h.metrics.gateWait(time.Since(start)) }()
	g.refused = nil
	w, err := tokens.AdmitAll(x.detached(), g.writes)
	if err != nil && w != nil && x.answerTo(err).refusal() {
		g.refused = w
		for _, e := range g.entries[w] {
			e.refusal = err
		}
	}
	return err
}

// leaveOut lets go of the resource that was refused.
func (g *gates) leaveOut() {
	g.refused.End()
	g.remove(g.refused)
}

func (x *exchange) beginAll(b *batch) *gates {
	g := &gates{entries: map[*tokens.Write][]*batchEntry{}}
	begun := map[string]*tokens.Write{}
	refused := map[string]error{}
	for i := range b.entries {
		e := &b.entries[i]
		resource := e.target.Resource
		if e.refusal == nil {
			e.refusal = refused[resource]
		}
		if e.refusal != nil || !e.target.Fenced {
			continue
		}
		w := begun[resource]
		if w == nil {
			c := x.claim()
			c.Resource, c.MaxAdvance = resource, tokens.Token(e.target.MaxAdvance)
			var err error
			if w, err = x.h.Fence.Begin(x.detached(), c); err != nil {
				refused[resource], e.refusal = err, err
				continue
			}
			begun[resource] = w
			g.writes = append(g.writes, w)
		}
		g.entries[w] = append(g.entries[w], e)
	}
	return g
}

func (g *gates) remove(w *tokens.Write) {
	left := g.writes[:0]
	for _, other := range g.writes {
		if other != w {
			left = append(left, other)
		}
	}
	g.writes = left
}

// observers is how many keys of a batch are looked at at a time.
const observers = 16

// observeBatch looks at each key before the gate, as at that of a single write, and puts a condition on those that are to have one: the ETag
// that the key has now. One that is absent has none.
func (x *exchange) observeBatch(b *batch) error {
	var all errgroup.Group
	all.SetLimit(observers)
	for i := range b.entries {
		e := &b.entries[i]
		if e.refusal != nil || !e.target.Fenced {
			continue
		}
		all.Go(func() error {
			err := x.one(e).observeEntry(e)
			if errors.As(err, new(*tokens.StaleError)) {
				e.refusal, err = err, nil
			}
			return err
		})
	}
	return all.Wait()
}

func (x *exchange) observeEntry(e *batchEntry) error {
	switch b := x.backend(); {
	case !b.remote():
		return x.checkStamp(x.detached())
	case !e.conditioned && !b.Stamp:
		return nil
	}
	seen, err := x.observe(x.detached(), true) // there is one try
	if e.conditioned = e.conditioned && seen.etag != ""; e.conditioned {
		e.ETag = seen.etag
	}
	return err
}

// one is the exchange as if a key had come alone.
func (x *exchange) one(e *batchEntry) *exchange {
	one := *x
	one.op.key, one.target, one.path = e.Key, e.target, "/"+x.op.bucket+"/"+e.Key
	return &one
}

// forwardBatch hands the store the keys that are not refused, and settles. Where the gate refuses a resource, its keys are left out, and the
// others come to it again.
func (x *exchange) forwardBatch(b *batch, g *gates) (*recorder, error) {
	for {
		rec := newRecorder(x.w.Header())
		passed := batch{Quiet: b.Quiet}
		for _, e := range b.entries {
			if e.refusal == nil {
				passed.Objects = append(passed.Objects, e.batchItem)
			}
		}
		if len(passed.Objects) == 0 { // the store is not asked
			rec.WriteHeader(http.StatusOK)
			rec.body = []byte("<DeleteResult/>")
			return rec, nil
		}
		text, err := xml.Marshal(passed)
		if err != nil {
			return nil, err
		}
		out := x.toBackend().WithContext(x.detached())
		body := setBody(out, append([]byte(xml.Header), text...)).deliver(out, func() error { return g.admit(x) })
		x.runBackend(rec, out)
		x.forgetAll(b)
		switch err := body.failure(); {
		case body.passed():
			rec.doubtful = x.backend().remote() && leavesOpen(rec)
			return rec, x.settle(sent{rec: rec, passed: true}, g)
		case err == nil:
			return rec, x.answeredEarly(rec)
		case g.refused == nil:
			return nil, err
		}
		g.leaveOut()
	}
}

// leavesOpen says that a store elsewhere did not tell of some key what became of it: by the contract of backends, nobody knows of the whole then.
func leavesOpen(rec *recorder) bool {
	if rec.status != http.StatusOK {
		return false
	}
	var answer batchAnswer
	if xml.Unmarshal(rec.body, &answer) != nil {
		return true
	}
	return slices.ContainsFunc(answer.Errors, func(e batchError) bool {
		return !definite[e.Code] && e.Code != slowDown // which S3 says of keys that it did not come to
	})
}

// forgetAll forgets the ETags of keys that are deleted, or may be.
func (x *exchange) forgetAll(b *batch) {
	for i := range b.entries {
		x.h.etags.forget(x.one(&b.entries[i]).name())
	}
}

// tellBatch adds the refused keys to the store's answer, each on record first.
func (x *exchange) tellBatch(rec *recorder, b *batch) error {
	if rec.status != http.StatusOK {
		return x.tell(rec, nil) // the store refused it as a whole
	}
	var answer batchAnswer
	if err := xml.Unmarshal(rec.body, &answer); err != nil {
		return err // settled as unknown before
	}
	changed := x.explainRaces(b, &answer)
	for i := range b.entries {
		if e := &b.entries[i]; e.refusal != nil {
			answer.Errors = append(answer.Errors, x.refuseEntry(e, e.refusal))
			changed = true
		}
	}
	if changed {
		answer.XMLName.Space = "http://s3.amazonaws.com/doc/2006-03-01/"
		body, err := xml.Marshal(answer)
		if err != nil {
			return err
		}
		rec.header.Set("Content-Type", xmlType)
		rec.body = append([]byte(xml.Header), body...)
		rec.header.Set("Content-Length", strconv.Itoa(len(rec.body)))
	}
	return x.tell(rec, nil)
}

// explainRaces says in our words what the store says of our conditions: the client has sent none. A key that is gone is deleted.
func (x *exchange) explainRaces(b *batch, answer *batchAnswer) (changed bool) {
	ours := map[string]*batchEntry{}
	for i := range b.entries {
		if e := &b.entries[i]; e.conditioned {
			ours[e.Key] = e
		}
	}
	told := answer.Errors
	answer.Errors = nil
	for _, t := range told {
		e := ours[t.Key]
		switch {
		case e == nil || t.Code != preconditionFailed && t.Code != noSuchKey && !isConflict(t.Code):
			answer.Errors = append(answer.Errors, t)
			continue
		case t.Code != noSuchKey:
			answer.Errors = append(answer.Errors, x.explainRace(e))
		case !b.Quiet:
			answer.Deleted = append(answer.Deleted, batchDeleted{Key: e.Key})
		}
		changed = true
	}
	return changed
}

// explainRace is what becomes of a key that has changed since it was looked at.
func (x *exchange) explainRace(e *batchEntry) batchError {
	x.h.metrics.lostRaces.Inc()
	if err := x.one(e).lostRace(); !errors.Is(err, errLostRace) {
		return x.refuseEntry(e, err)
	}
	return batchError{Key: e.Key, Code: slowDown, Message: errLostRace.Error() + ": it was not deleted; send it again"}
}

// refuseEntry records the refusal of one key, as if it had come alone.
func (x *exchange) refuseEntry(e *batchEntry, refusal error) batchError {
	one := x.one(e)
	if e.target.Fenced {
		if entry, err := x.h.Fence.Highest(x.detached(), e.target.Resource); err == nil {
			one.highest = entry.Token
		}
	}
	a := one.answerTo(refusal)
	one.record(a, refusal)
	x.h.metrics.refusal(a.name)
	return batchError{Key: e.Key, VersionId: e.VersionId, Code: a.code, Message: a.message}
}

// gates are a passage: what becomes of the batch becomes of each of its resources.

func (g *gates) Done() {
	for _, w := range g.writes {
		w.Done()
	}
}

func (g *gates) Failed() {
	for _, w := range g.writes {
		w.Failed()
	}
}

func (g *gates) InDoubt() (proven func()) {
	var each []func()
	for _, w := range g.writes {
		each = append(each, w.InDoubt())
	}
	return func() {
		for _, proven := range each {
			proven()
		}
	}
}
