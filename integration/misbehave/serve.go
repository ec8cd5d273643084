package misbehave

import (
	"net/http"
	"time"
)

// A request is one on its way through the store.
type request struct {
	s      *Store
	w      http.ResponseWriter
	r      *http.Request
	op     Operation
	fault  Fault
	before int // how often its object had changed when it came

	trailer http.Header // what came behind the body
}

// An effect is a request that is carried out, once more perhaps.
type effect struct {
	op     Operation
	late   bool
	second bool
	before int  // how often the object had changed when the request came
	ignore bool // its conditions
}

// A decision is made with the lock held: what is to be answered, and what is to be done. A commit that is nil changes nothing.
type decision struct {
	reply  reply
	commit func()
}

// An action judges a request against what is there now. It is called with the lock held, whenever the request takes effect.
type action func(e *effect) decision

// ServeHTTP answers one request, or misbehaves.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &request{s: s, w: w, r: r, op: s.operation(r)}
	x.fault = s.faultOf(x.op)
	if !s.wait(x.fault.Stall, nil) {
		panic(http.ErrAbortHandler)
	}
	x.before = s.changes(x.op.Bucket, x.op.Key)
	if refused := s.checkSignature(x.op); refused != nil {
		x.send(*refused)
		return
	}
	if x.fault.Unread {
		x.answer(okay)
		return
	}
	body, refused := x.readBody()
	if refused != nil {
		x.send(*refused)
		return
	}
	act, refused := x.action(body)
	if refused != nil {
		x.send(*refused)
		return
	}
	x.carryOut(act)
}

// changes counts how often an object has changed.
func (s *Store) changes(bucket, key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.buckets[bucket]; ok {
		return b.changes[s.merged(key)]
	}
	return 0
}

// carryOut lets the request take effect and answers, in the order that the fault says.
func (x *request) carryOut(act action) {
	f := x.fault
	if f.Late == 0 || f.truthful() {
		if !x.s.wait(f.Late, nil) {
			panic(http.ErrAbortHandler)
		}
		r := x.apply(act, effect{late: f.Late > 0})
		x.again(act, f.Again)
		x.answer(r)
		return
	}
	x.s.later(f.Late, func() {
		x.apply(act, effect{late: true})
		x.again(act, f.Again)
	})
	x.answer(x.would(act))
}

// apply is the moment of effect.
func (x *request) apply(act action, e effect) reply {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	d := act(x.complete(&e))
	if d.commit != nil && !x.fault.Lose {
		d.commit()
	}
	return d.reply
}

// would is the answer that the request would get now.
func (x *request) would(act action) reply {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	return act(x.complete(&effect{})).reply
}

func (x *request) complete(e *effect) *effect {
	e.op, e.before, e.ignore = x.op, x.before, x.fault.IgnoreConditions
	return e
}

func (x *request) again(act action, after time.Duration) {
	if after > 0 {
		x.s.later(after, func() { x.apply(act, effect{late: true, second: true}) })
	}
}

// later runs f after d, unless the store is closed by then.
func (s *Store) later(d time.Duration, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.late.Go(func() {
		if s.wait(d, nil) {
			f()
		}
	})
}

// answer tells what has happened, or what the fault says.
func (x *request) answer(r reply) {
	f := x.fault
	if !x.s.wait(f.Hold, f.Until) || f.Drop {
		panic(http.ErrAbortHandler)
	}
	switch {
	case f.Status == 0:
	case f.Code != "":
		r = fail(f.Status, f.Code, "this is what the test asked for")
	case f.Status < 300 && r.status >= 300:
		r = reply{status: f.Status, header: http.Header{"Etag": {md5Tag([]byte("made up"))}}}
	default:
		r.status = f.Status
	}
	x.send(r)
}
