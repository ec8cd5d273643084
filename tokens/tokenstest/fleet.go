package tokenstest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// RunFleet runs what several instances promise together: fences over registries over one engine. Three instances are there; most cases use two.
func RunFleet(t *testing.T, h FleetHarness) {
	for _, suite := range []struct {
		name  string
		cases []fleetCase
		timed bool // they depend on when things happen, to the tenth of a lease
	}{
		{"Story", fleetStories, false},
		{"Promise", fleetPromises, false},
		{"Holder", fleetHolders, false},
		{"Late", fleetLateCalls, true},
		{"Binding", fleetBindings, true},
		{"Lease", fleetLeases, true},
		{"Reset", fleetResets, true},
		{"Around", fleetAround, true},
	} {
		t.Run(suite.name, func(t *testing.T) {
			if suite.timed && !h.virtual() && os.Getenv("FENCEPROXY_LONG") == "" {
				return // minutes of real time, on a machine that keeps it; they are about what drivers have in common, and have passed in virtual time
			}
			for _, c := range suite.cases {
				t.Run(c.name, func(t *testing.T) { h.run(t, c.run) })
			}
		})
	}
}

type fleetCase struct {
	name string
	run  func(*fleetWorld)
}

// fleetStories is what everybody expects to see. A protocol that is broken in a subtle way passes them.
var fleetStories = []fleetCase{
	{"a stale writer is refused by every instance, also by one that knew nothing", func(w *fleetWorld) {
		w.a.write(33)
		w.b.write(34)
		w.stale(w.a.try(33), 34)
		w.stale(w.b.try(33), 34)
		w.c.start()
		w.stale(w.c.try(33), 34)
		w.c.write(34)
		w.a.write(35)
		w.stale(w.b.try(34), 35)
		w.stale(w.c.try(34), 35)
	}},
	{"one holder through two instances: both have a grant, and later writes ask nobody", func(w *fleetWorld) {
		w.a.write(34)
		w.took(0, 0, func() { w.b.write(34) })
		before := w.a.link.count() + w.b.link.count()
		for range 5 {
			w.a.write(34)
			w.b.write(34)
		}
		if after := w.a.link.count() + w.b.link.count(); after != before {
			w.t.Errorf("ten writes asked the store %d times", after-before)
		}
	}},
	{"an announcement through one instance closes the door of another", func(w *fleetWorld) {
		w.a.write(33)
		if e, err := w.b.fence.Announce(context.Background(), w.claim(34)); err != nil || e.Token != 34 {
			w.t.Fatalf("%+v, %v", e, err)
		}
		w.stale(w.a.try(33), 34)
	}},
	{"a holder is bound for all instances", func(w *fleetWorld) {
		c := w.claim(34)
		c.Holder = "x"
		if _, err := w.a.fence.Announce(context.Background(), c); err != nil {
			w.t.Fatal(err)
		}
		c.Holder = "y"
		_, err := w.b.fence.Announce(context.Background(), c)
		var conflict *tokens.ConflictError
		if !errors.As(err, &conflict) || conflict.Bound != "x" {
			w.t.Errorf("%v", err)
		}
	}},
}

// fleetHolders are about binding a token that is in use already, by writers that do not name themselves.
var fleetHolders = []fleetCase{
	{"a token that is bound through one instance is refused without a name by all", func(w *fleetWorld) {
		w.c.start()
		for _, i := range []*instance{w.a, w.b, w.c} {
			i.write(34) // each has a grant now
		}
		upload := w.a.begin(34)
		defer upload.End()
		w.took(0, w.lease/5, func() { w.mustBind(w.b, "x") })
		for _, i := range []*instance{w.a, w.b, w.c} {
			w.conflict(i.try(34), "x")
		}
		select {
		case <-upload.Context().Done():
			w.conflict(context.Cause(upload.Context()), "x")
		case <-time.After(w.lease/5 + w.slack):
			w.t.Error("the upload was not told")
		}
		for _, i := range []*instance{w.a, w.b, w.c} {
			w.mustBind(i, "x")
			if e, err := i.fence.Highest(context.Background(), res); err != nil || e.Token != 34 || e.Holder != "x" {
				w.t.Errorf("%s shows %+v, %v", i.name, e, err)
			}
		}
		w.a.write(35)
		w.stale(w.b.tryAs(34, "x"), 35)
	}},
	{"who binds a token waits for writes without a name that are past the gate of another instance", func(w *fleetWorld) {
		old := w.a.admit(34)
		w.a.finish(old, w.settle/2)
		w.took(w.settle/2, w.settle/2+w.lease/5, func() { w.mustBind(w.b, "x") })
		w.mustHaveLanded(1)
		w.conflict(w.a.try(34), "x")
	}},
	{"who binds a token waits for writes without a name that are past the gate of the same instance, and none comes after them", func(w *fleetWorld) {
		old := w.a.admit(34)
		w.a.finish(old, w.settle/2)
		w.took(w.settle/2, w.settle/2+w.lease/5, func() {
			time.AfterFunc(w.settle/4, func() { w.conflict(w.a.try(34), "x") })
			w.mustBind(w.a, "x")
		})
		w.mustHaveLanded(1)
	}},
	{"a killed instance without a name is waited for by who binds its token", func(w *fleetWorld) {
		w.a.doubt(w.a.admit(34), w.settle-w.lease/5)
		w.a.kill()
		w.took(w.settle, w.lease+w.settle+w.lease/2, func() { w.mustBind(w.b, "x") })
		w.mustHaveLanded(1)
	}},
	{"once a token is bound, its holder waits for nobody at any instance", func(w *fleetWorld) {
		w.mustBind(w.a, "x")
		old := w.a.admitAs(34, "x")
		w.a.finish(old, w.settle/2)
		w.took(0, 0, func() { w.mustBind(w.b, "x") })
	}},
	{"two names at once, and writers without: one of them gets the token, and the others are told", func(w *fleetWorld) {
		for _, i := range []*instance{w.a, w.b} {
			i.finish(i.admit(34), w.lease)
		}
		results := make(chan error, 2)
		go func() { results <- w.bind(w.a, "x") }()
		go func() { results <- w.bind(w.b, "y") }()
		one, other := <-results, <-results
		if one == nil {
			one, other = other, one
		}
		var conflict *tokens.ConflictError
		if other != nil || !errors.As(one, &conflict) {
			w.t.Errorf("%v and %v", one, other)
		}
		for _, i := range []*instance{w.a, w.b} {
			if err := i.try(34); !errors.As(err, &conflict) {
				w.t.Errorf("without a name, through %s: %v", i.name, err)
			}
		}
	}},
	{"one name at two instances that both have writes without: both come to an end", func(w *fleetWorld) {
		for _, i := range []*instance{w.a, w.b} {
			i.finish(i.admit(34), w.lease)
		}
		results := make(chan error, 2)
		for _, i := range []*instance{w.a, w.b} {
			go func() { results <- w.bind(i, "x") }()
		}
		w.took(w.lease/2, w.lease*3/2, func() {
			for range 2 {
				if err := <-results; err != nil {
					w.t.Error(err)
				}
			}
		})
	}},
}

// fleetBindings are what becomes of a token that is being bound while calls are late, instances fail and fences are reset.
var fleetBindings = []fleetCase{
	{"the answer to a raise without a name that comes behind the binding gives no right", func(w *fleetWorld) {
		w.a.link.fail(fault{after: w.lease * 4 / 10}, "Record")
		admitted := make(chan error, 1)
		go func() { admitted <- w.a.try(34) }()
		w.eventually(w.lease/5, "recorded", func() bool {
			e, err := w.b.reg.Lookup(context.Background(), res)
			return err == nil && e.Token == 34
		})
		w.took(0, w.lease/5, func() { w.mustBind(w.b, "x") })
		w.conflict(<-admitted, "x")
	}},
	{"a binding whose caller has given up, and that takes effect later, is heard of by its instance before the holder is told yes by another", func(w *fleetWorld) {
		w.restart(w.a, tokens.Options{RaiseWait: w.lease})
		w.a.write(34)
		w.a.link.fail(fault{before: w.lease}, "Record") // its caller waits for half a lease
		w.unavailable(w.bind(w.a, "x"))
		w.a.link.mend()
		old := w.a.admit(34) // nobody knows yet
		w.a.finish(old, 2*w.lease)
		w.eventually(w.lease, "bound", func() bool {
			e, err := w.b.reg.Lookup(context.Background(), res)
			return err == nil && e.Holder == "x"
		})
		w.took(w.lease/2, w.lease*2, func() { w.mustBind(w.b, "x") })
		w.mustHaveLanded(2)
		w.conflict(w.a.try(34), "x")
	}},
	{"a binding whose answer was lost leaves its instance's grant to be given back", func(w *fleetWorld) {
		w.a.write(34)
		w.a.link.fail(fault{unanswered: true}, "Record")
		w.unavailable(w.bind(w.a, "x"))
		w.a.link.mend()
		w.took(0, w.lease/5, func() { w.mustBind(w.b, "x") })
		w.conflict(w.a.try(34), "x")
	}},
	{"a binding that gives up because the lease is lost takes no grant from under a write", func(w *fleetWorld) {
		w.b.write(34)
		old := w.a.admit(34)
		failed := make(chan error, 1)
		go func() { failed <- w.bind(w.b, "x") }() // waits for a's
		w.eventually(w.lease/5, "bound", func() bool {
			e, err := w.a.reg.Lookup(context.Background(), res)
			return err == nil && e.Holder == "x"
		})
		w.lose(w.b)
		w.a.finish(old, w.settle/2)
		<-failed
		w.took(0, w.settle+w.lease, func() { w.a.write(35) })
		w.mustHaveLanded(3)
	}},
	{"the next token's raise waits for what is open under one that is being bound", func(w *fleetWorld) {
		old := w.a.admit(34)
		w.a.finish(old, w.settle/2)
		bound := make(chan error, 1)
		go func() { bound <- w.bind(w.a, "x") }()
		time.Sleep(w.lease / 5)
		w.took(w.settle/4, w.settle/2+w.lease/5, func() { w.b.write(35) })
		w.mustHaveLanded(2)
		<-bound
	}},
	{"a reset meets bindings at both instances, and all come to an end", func(w *fleetWorld) {
		w.c.start()
		for _, i := range []*instance{w.a, w.b} {
			i.finish(i.admit(34), w.settle/2)
		}
		results := make(chan error, 2)
		for _, i := range []*instance{w.a, w.b} {
			go func() { results <- w.bind(i, "x") }()
		}
		time.Sleep(w.lease / 5)
		w.took(w.settle/4, w.settle/2+w.lease, func() { w.reset(w.c, 0) })
		<-results
		<-results
		w.eventually(w.lease, "all well", func() bool { return w.a.try(99) == nil && w.b.try(99) == nil && w.c.try(99) == nil })
	}},
}

// fleetPromises are the ways in which a write through one instance could slip past a newer holder's through another.
var fleetPromises = []fleetCase{
	{"a raise waits for older writes that are past the gate of another instance", func(w *fleetWorld) {
		old := w.a.admit(1)
		w.a.finish(old, w.settle/2)
		w.took(w.settle/2, w.settle/2+w.lease/5, func() { w.b.write(2) })
		w.mustHaveLanded(2)
		w.stale(w.a.try(1), 2)
	}},
	{"a raise waits for token-less writes through another instance", func(w *fleetWorld) {
		old := w.a.admit(0)
		w.a.finish(old, w.settle/2)
		w.took(w.settle/2, w.settle/2+w.lease/5, func() { w.b.write(1) })
		w.stale(w.a.try(0), 1)
	}},
	{"an upload before the gate of another instance is cancelled, and not waited for", func(w *fleetWorld) {
		w.a.write(1)
		old := w.a.begin(1)
		defer old.End()
		w.took(0, w.lease/5, func() { w.b.write(2) })
		select {
		case <-old.Context().Done():
			w.stale(context.Cause(old.Context()), 2)
		case <-time.After(w.lease/5 + w.slack):
			w.t.Error("the upload was not told")
		}
		w.stale(old.Admit(context.Background()), 2)
	}},
	{"a write in doubt holds back the raise of another instance until it has settled", func(w *fleetWorld) {
		w.a.doubt(w.a.admit(1), w.settle-w.lease/5)
		w.took(0, 0, func() { w.b.write(1) })
		w.took(w.settle-w.lease/5, w.settle+w.lease/5, func() { w.b.write(2) })
		w.mustHaveLanded(3)
	}},
	{"a write in doubt that is proven holds nobody back", func(w *fleetWorld) {
		proven := w.a.doubt(w.a.admit(1), 0)
		time.Sleep(w.lease / 10)
		proven()
		w.took(0, w.lease/5, func() { w.b.write(2) })
	}},
	{"a cached grant is given back within two beats when every hint is lost", func(w *fleetWorld) {
		for _, i := range []*instance{w.a, w.b} {
			i.link.set(func(l *link) { l.dropHints = true })
		}
		w.a.write(1)
		w.took(0, w.lease*3/10, func() { w.b.write(2) })
	}},
	{"a silent instance is waited for until its lease is over and its writes have settled", func(w *fleetWorld) {
		old := w.a.admit(1)
		w.a.link.partition()
		w.a.doubt(old, w.settle-w.lease/5)
		w.took(w.settle, w.lease+w.settle+w.lease/2, func() { w.b.write(2) })
		w.mustHaveLanded(2)
		w.unavailable(w.a.try(1))
	}},
	{"a killed instance is waited for", func(w *fleetWorld) {
		old := w.a.admit(1)
		w.a.doubt(old, w.settle-w.lease/5)
		w.a.kill()
		w.took(w.settle, w.lease+w.settle+w.lease/2, func() { w.b.write(2) })
		w.mustHaveLanded(2)
	}},
	{"a silent instance without a lower grant is not waited for", func(w *fleetWorld) {
		w.a.write(2)
		w.a.kill()
		w.took(0, 0, func() {
			w.b.write(2)
			c := w.claim(1)
			c.Resource = "bucket/jobs/8"
			if _, err := w.b.fence.Announce(context.Background(), c); err != nil {
				w.t.Error(err)
			}
		})
	}},
	{"each grant of a silent instance has its own settle time", func(w *fleetWorld) {
		long := w.claim(1)
		long.Settle = 2 * w.settle
		wr, err := w.a.fence.Begin(context.Background(), long)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := wr.Admit(context.Background()); err != nil {
			w.t.Fatal(err)
		}
		w.a.doubt(wr, 2*w.settle-w.lease/5)
		other := w.claim(1)
		other.Resource = "bucket/jobs/8"
		if _, err := w.a.fence.Announce(context.Background(), other); err != nil {
			w.t.Fatal(err)
		}
		w.a.kill()
		other.Token = 2
		w.took(w.settle, w.settle+w.lease*3/2, func() {
			w.patiently(w.b, other)
		})
		w.took(w.settle-w.lease*3/2-w.slack, w.settle+w.lease*3/2, func() { w.b.write(2) })
		w.mustHaveLanded(2)
	}},
	{"giving back names one grant, not what stands in its place", func(w *fleetWorld) {
		first := w.mustRaise(w.a, 1, w.settle)
		second := w.mustRaise(w.a, 1, w.settle)
		if err := w.a.reg.GiveBack(context.Background(), first.ID); err != nil || second.ID <= first.ID {
			w.t.Fatalf("%v; grant %d after %d", err, second.ID, first.ID)
		}
		old := w.a.admit(1) // under a third; the second one goes now
		if err := w.a.reg.GiveBack(context.Background(), second.ID); err != nil {
			w.t.Fatal(err)
		}
		w.a.finish(old, w.settle/2)
		w.took(w.settle/2, w.settle/2+w.lease/5, func() { w.b.write(2) })
	}},
	{"the grant of a resource that is not in memory any more is given back when it is asked for", func(w *fleetWorld) {
		w.restart(w.a, tokens.Options{Idle: w.lease / 5})
		w.a.write(1)
		w.a.link.fail(fault{lost: true}, "Remove") // so that it stands when memory has forgotten it
		w.eventually(w.lease, "evicted", func() bool { return w.a.fence.Stats().Resources == 0 })
		w.a.link.mend()
		w.took(0, w.lease/5, func() { w.b.write(2) })
		w.stale(w.a.try(1), 2)
	}},
	{"a resource whose raise is pending stays in memory", func(w *fleetWorld) {
		w.restart(w.a, tokens.Options{Idle: w.lease / 10})
		w.b.finish(w.b.admit(1), w.lease)
		pending := w.a.begin(2)
		admitted := make(chan error, 1)
		go func() { admitted <- admitPatiently(pending) }()
		time.Sleep(w.lease / 2) // long enough to be evicted
		other := w.a.begin(2)
		if err := <-admitted; err != nil {
			w.t.Fatal(err)
		}
		other.End()
		w.a.finish(pending, w.settle/2)
		w.took(w.settle/2-w.lease/5, w.settle/2+w.lease/5, func() { w.b.write(3) })
	}},
	{"a grant that memory never heard of is given back when it is asked for", func(w *fleetWorld) {
		w.a.link.fail(fault{unanswered: true}, "Record")
		w.unavailable(w.a.try(1))
		w.a.link.mend()
		w.took(0, w.lease/5, func() { w.b.write(2) })
	}},
	{"a clean stop gives back what has settled", func(w *fleetWorld) {
		w.a.write(1)
		w.a.stop(time.Second)
		w.took(0, 0, func() { w.b.write(2) })
	}},
	{"a clean stop leaves the grant of a write in doubt, which settles from then on", func(w *fleetWorld) {
		w.a.doubt(w.a.admit(1), w.settle-w.lease/5)
		w.a.stop(0)
		w.took(w.settle-w.lease/5, w.settle+w.lease/5, func() { w.b.write(2) })
		w.mustHaveLanded(2)
	}},
	{"a raise that its client has left goes on and counts", func(w *fleetWorld) {
		w.restart(w.b, tokens.Options{RaiseWait: w.lease / 10})
		old := w.a.admit(1)
		wr := w.b.begin(2)
		if err := wr.Admit(context.Background()); !isWaiting(err) {
			w.t.Fatalf("%v; want to be told to wait", err)
		}
		wr.End()
		w.eventually(w.lease/5, "known to the other instance", func() bool {
			_, err := w.a.fence.Begin(context.Background(), w.claim(1))
			return err != nil
		})
		w.a.done(old)
		w.took(0, w.lease/5, func() { w.b.write(2) })
	}},
}

func (w *fleetWorld) patiently(i *instance, c tokens.Claim) {
	w.t.Helper()
	deadline := time.Now().Add(4 * (w.lease + w.settle))
	for {
		if _, err := i.fence.Announce(context.Background(), c); err == nil {
			return
		} else if !isWaiting(err) || time.Now().After(deadline) {
			w.t.Fatal(err)
		}
	}
}

// bind announces token 34 with a holder, until it is done or refused. Its client is told yes.
func (w *fleetWorld) bind(i *instance, holder string) error {
	c := w.claim(34)
	c.Holder = holder
	deadline := time.Now().Add(4 * (w.lease + w.settle))
	for {
		e, err := i.fence.Announce(context.Background(), c)
		if err == nil {
			w.ack(res, claimed(i, e.Generation, c))
		}
		if err == nil || !isWaiting(err) || time.Now().After(deadline) {
			return err
		}
	}
}

func (w *fleetWorld) mustBind(i *instance, holder string) {
	w.t.Helper()
	if err := w.bind(i, holder); err != nil {
		w.t.Fatalf("holder %q through %s: %v", holder, i.name, err)
	}
}

func (w *fleetWorld) conflict(err error, bound string) {
	w.t.Helper()
	var conflict *tokens.ConflictError
	if !errors.As(err, &conflict) || conflict.Bound != bound {
		w.t.Errorf("%v; want the refusal of a token that is bound to %q", err, bound)
	}
}

func (w *fleetWorld) mustRaise(i *instance, t tokens.Token, settle time.Duration) tokens.Grant {
	w.t.Helper()
	g, err := i.reg.Raise(context.Background(), tokens.Claim{Resource: res, Token: t, Settle: settle})
	if err != nil || g.Token != t || g.Incarnation == 0 || g.Incarnation != i.reg.Incarnation() {
		w.t.Fatalf("raise to %d: %+v, %v", t, g, err)
	}
	return g
}

// restart has an instance begin anew with other options.
func (w *fleetWorld) restart(i *instance, o tokens.Options) {
	w.t.Helper()
	i.stop(time.Second)
	i.options = o
	i.start()
}

// fleetLateCalls are what a call does that takes effect when its caller has given up.
var fleetLateCalls = []fleetCase{
	{"a reset whose answer was lost takes no grant from under a write", func(w *fleetWorld) {
		w.a.write(34)
		ctx, cancel := context.WithTimeout(context.Background(), w.lease/10)
		defer cancel()
		w.a.link.fail(fault{before: w.lease}, "RecordReset")
		if _, err := w.a.fence.Reset(ctx, res, 0); err == nil {
			w.t.Fatal("it was answered")
		}
		w.a.link.mend()
		old := w.a.admit(34) // nobody knows yet
		w.a.finish(old, 2*w.lease)
		w.eventually(w.lease, "reset", func() bool {
			e, err := w.b.reg.Lookup(context.Background(), res)
			return err == nil && e.Generation == 1
		})
		w.took(w.lease/2, w.lease*3/2, func() { w.b.write(1) })
		w.mustHaveLanded(3)
		w.eventually(w.lease, "through the other instance, too", func() bool { return w.a.try(1) == nil })
	}},
	{"a record that comes late takes no grant from under a write of an instance that has forgotten it", func(w *fleetWorld) {
		w.restart(w.a, tokens.Options{Idle: w.lease / 10, RaiseWait: w.lease})
		w.a.write(1)
		w.a.link.fail(fault{before: 2 * w.lease}, "Record")
		_ = w.a.try(2)
		w.a.link.mend()
		time.Sleep(w.lease / 2) // long enough to be evicted
		w.b.write(1)
		if wr, err := w.a.fence.Begin(context.Background(), w.claim(1)); err == nil {
			if wr.Admit(context.Background()) == nil {
				w.a.finish(wr, 3*w.lease)
			} else {
				wr.End()
			}
		}
		w.eventually(2*w.lease, "recorded", func() bool {
			e, err := w.b.reg.Lookup(context.Background(), res)
			return err == nil && e.Token == 2
		})
		w.b.write(2)
		time.Sleep(3 * w.lease)
	}},
	{"a give-back that comes late takes only what it names", func(w *fleetWorld) {
		w.restart(w.a, tokens.Options{Idle: w.lease / 10})
		w.a.write(1)
		w.a.link.fail(fault{before: w.lease}, "Remove")
		w.eventually(w.lease/2, "evicted", func() bool { return w.a.fence.Stats().Resources == 0 })
		w.a.link.mend()
		w.a.finish(w.a.admit(1), 2*w.lease)
		time.Sleep(w.lease)
		w.took(w.lease/2, w.lease*3/2, func() { w.b.write(2) })
		w.mustHaveLanded(3)
	}},
	{"a record of an incarnation that has ended comes too late", func(w *fleetWorld) {
		w.a.link.fail(fault{before: 2 * w.lease}, "Record")
		_ = w.a.try(1)
		w.a.kill()
		time.Sleep(3 * w.lease)
		if e, err := w.b.reg.Lookup(context.Background(), res); err != nil || e.Token != 0 {
			w.t.Errorf("%+v, %v", e, err)
		}
	}},
	{"of two equal raises, the one that fails does not give back the grant of the other", equalRaises},
	{"an answer of before a lost lease gives no right after it", func(w *fleetWorld) {
		start := time.Now()
		at := func(tenths time.Duration) { time.Sleep(time.Until(start.Add(tenths * w.lease / 10))) }
		w.a.link.fail(fault{lost: true}, "Beat")
		at(7)
		old := w.a.begin(1)
		defer old.End()
		w.a.link.set(func(l *link) {
			l.faults = func(call string) fault {
				switch call {
				case "Record":
					return fault{after: w.lease * 47 / 100}
				case "Beat", "Join", "Look":
					return fault{lost: true}
				}
				return fault{}
			}
		})
		admitted := make(chan error, 1)
		go func() { admitted <- old.Admit(context.Background()) }()
		w.eventually(w.lease/10, "recorded", func() bool {
			e, err := w.b.reg.Lookup(context.Background(), res)
			return err == nil && e.Token == 1
		})
		// Others end the lease, and it is won anew, while the answer is on its way.
		store := w.engine.Store(w.t)
		defer store.Close()
		before := w.a.reg.Incarnation()
		if err := store.Leave(context.Background(), int64(before)); err != nil {
			w.t.Fatal(err)
		}
		w.a.link.set(func(l *link) { l.faults = nil })
		w.eventually(w.lease/3, "back in the fleet", func() bool { now := w.a.reg.Incarnation(); return now != 0 && now != before })
		newer := make(chan struct{})
		go func() {
			defer close(newer)
			w.b.write(2) // waits for the grant of the ended incarnation
		}()
		// The client's gate opens with a grant of the new incarnation, or not at all.
		if err := <-admitted; err == nil {
			w.a.finish(old, w.settle)
		}
		<-newer
		time.Sleep(w.settle)
	}},
}

// equalRaises: two raises of one token wait for an older write; the second one's grant stands in the place of the first one's. While the lease is over
// for a moment, by the instance's own clock only, the second gives up.
func equalRaises(w *fleetWorld) {
	old := w.a.admit(1)
	raise := func(settle time.Duration) <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := w.b.reg.Raise(context.Background(), tokens.Claim{Resource: res, Token: 2, Settle: settle})
			result <- err
		}()
		w.eventually(w.lease/5, "recorded", func() bool {
			e, err := w.a.reg.Lookup(context.Background(), res)
			return err == nil && e.Token == 2
		})
		time.Sleep(w.lease / 25) // another phase of the ticks
		return result
	}
	first := raise(w.settle)
	ctx, cancel := context.WithCancel(context.Background())
	second := make(chan error, 1)
	go func() {
		_, err := w.b.reg.Raise(ctx, tokens.Claim{Resource: res, Token: 2, Settle: 2 * w.settle})
		second <- err
	}()
	time.Sleep(w.lease / 25)
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		w.t.Fatal(err)
	}
	w.a.done(old)
	if err := <-first; err != nil {
		w.t.Fatal(err)
	}
	// What the first one was handed has to be on record: the raise of another instance finds it.
	c := w.claim(3)
	store := w.engine.Store(w.t)
	defer store.Close()
	n, err := store.Join(context.Background(), w.lease, w.engine.Mapping(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	rec, err := store.Record(context.Background(), n, c)
	if err != nil || len(rec.Lower) != 1 {
		w.t.Fatalf("a write under the grant that was handed out would be waited for by nobody: %+v, %v", rec, err)
	}
	if err := store.Leave(context.Background(), n); err != nil {
		w.t.Error(err)
	}
}

// fleetLeases are about when an instance may use its grants, and when others may go on without it.
var fleetLeases = []fleetCase{
	{"while the registry is away cached grants serve until the lease is over, and all is well when it comes back", func(w *fleetWorld) {
		w.a.write(34)
		time.Sleep(w.lease / 5)
		for _, i := range []*instance{w.a, w.b} {
			i.link.partition()
		}
		away := time.Now()
		for time.Since(away) < w.lease*7/10 {
			w.a.write(34)
			time.Sleep(w.lease / 20)
		}
		w.eventually(w.lease/5, "over", func() bool { return w.a.reg.Incarnation() == 0 })
		if d := time.Since(away); d > w.lease*9/10+w.lease/20 {
			w.t.Errorf("the lease went on for %v", d)
		}
		w.unavailable(w.a.try(34))
		w.unavailable(w.b.try(35))
		time.Sleep(w.lease)
		w.a.link.mend()
		w.b.link.mend()
		w.eventually(w.lease, "back", func() bool { return w.a.try(34) == nil })
		w.eventually(w.settle+w.lease, "newer holders", func() bool { return w.b.try(35) == nil })
		w.stale(w.a.try(34), 35)
	}},
	{"a lease that was lost for an instant only is the same lease, with its grants", func(w *fleetWorld) {
		w.a.write(34)
		w.a.clock.set(w.lease) // its wall clock is set forward
		w.eventually(w.lease/5, "the same", func() bool { return w.a.reg.Incarnation() != 0 })
		before := w.a.link.count()
		w.a.write(34)
		if after := w.a.link.count(); after != before {
			w.t.Errorf("it asked the store %d times", after-before)
		}
	}},
	{"a machine whose clock of the time since the start stood still knows by its wall clock that the lease is over", func(w *fleetWorld) {
		w.a.write(1)
		wr := w.a.begin(1)
		w.a.pause()
		w.took(w.settle, w.lease*3/2+w.settle, func() { w.b.write(2) })
		if err := wr.Admit(context.Background()); err == nil {
			w.a.finish(wr, w.settle/2)
			w.t.Error("it wrote under a lease that was over")
		} else {
			wr.End()
			w.unavailable(err)
		}
		w.a.resume()
		w.eventually(w.lease, "refused for the newer token", func() bool {
			var stale *tokens.StaleError
			return errors.As(w.a.try(1), &stale)
		})
		time.Sleep(w.settle / 2)
	}},
	{"a machine whose wall clock is set back knows by the other one that the lease is over", func(w *fleetWorld) {
		w.a.write(1)
		w.a.link.partition()
		w.a.clock.set(-24 * time.Hour)
		w.took(w.settle, w.lease*3/2+w.settle, func() { w.b.write(2) })
		w.unavailable(w.a.try(1))
	}},
	{"an instance counts its lease from when it sent the beat, not from the answer", func(w *fleetWorld) {
		if !w.h.virtual() {
			w.t.Skip("to the tenth of a second")
		}
		w.a.write(1)
		sent := time.Now()
		w.a.link.fail(fault{after: w.lease * 20 / 100}, "Beat")
		time.Sleep(w.lease * 29 / 100) // one beat is sent, within a tenth, and none after it
		w.a.link.partition()
		time.Sleep(time.Until(sent.Add(w.lease * 105 / 100)))
		if w.a.reg.Incarnation() != 0 {
			w.t.Error("the lease goes on")
		}
		w.b.write(2)
		w.unavailable(w.a.try(1))
	}},
	{"an instance that is back leaves the grants of its lost lease to settle", func(w *fleetWorld) {
		before := w.a.reg.Incarnation()
		w.a.doubt(w.a.admit(1), w.settle-w.lease/20)
		w.lose(w.a)
		w.eventually(w.lease, "back", func() bool { now := w.a.reg.Incarnation(); return now != 0 && now != before })
		w.took(w.settle-w.lease*2, w.settle+w.lease, func() { w.b.write(2) })
		w.mustHaveLanded(2)
	}},
	{"two lost leases settle each for itself", func(w *fleetWorld) {
		w.a.doubt(w.a.admit(1), w.settle-w.lease/20)
		w.lose(w.a)
		w.eventually(w.lease, "back", func() bool { return w.a.reg.Incarnation() != 0 })
		w.a.doubt(w.a.admit(1), w.settle-w.lease/20)
		w.lose(w.a)
		w.eventually(w.lease, "back", func() bool { return w.a.reg.Incarnation() != 0 })
		w.b.write(2)
		w.mustHaveLanded(3)
	}},
	{"one that beats again is not expelled by who has seen it silent", func(w *fleetWorld) {
		if w.h.Timed {
			w.t.Skip("this engine times leases itself")
		}
		w.a.write(1)
		before := w.a.reg.Incarnation()
		w.b.link.fail(fault{before: w.lease * 4 / 10}, "Expel")
		w.a.link.partition()
		time.Sleep(w.lease * 12 / 10) // b has sent its expulsion
		w.a.link.mend()
		w.eventually(w.lease/4, "back", func() bool { return w.a.reg.Incarnation() != 0 })
		time.Sleep(w.lease)
		if now := w.a.reg.Incarnation(); now != before {
			w.t.Errorf("incarnation %d after %d", now, before)
		}
	}},
	{"a write of a lost lease that is open holds back the new one's give-back", func(w *fleetWorld) {
		old := w.a.admit(1)
		w.a.finish(old, w.settle/2)
		w.lose(w.a)
		w.eventually(w.lease, "back", func() bool { return w.a.reg.Incarnation() != 0 })
		w.a.write(1)
		w.b.write(2)
		w.mustHaveLanded(3)
	}},
}

// lose has an instance lose its lease: others end it, as they do when it has been silent.
func (w *fleetWorld) lose(i *instance) {
	w.t.Helper()
	store := w.engine.Store(w.t)
	defer store.Close()
	before := i.reg.Incarnation()
	i.link.partition()
	if err := store.Leave(context.Background(), int64(before)); err != nil {
		w.t.Fatal(err)
	}
	i.link.mend()
	w.eventually(w.lease, "known to have ended", func() bool { return i.reg.Incarnation() != before })
}

// fleetResets are about the only way down, which every instance has to hear of.
var fleetResets = []fleetCase{
	{"a reset is seen by all: new low tokens pass everywhere, and what began before it nowhere", func(w *fleetWorld) {
		w.c.start()
		w.a.write(34)
		w.b.write(34)                                                // has a grant
		_, _ = w.c.fence.Announce(context.Background(), w.claim(33)) // knows the token, and has none
		before := map[*instance]*tokens.Write{w.a: w.a.begin(34), w.b: w.b.begin(34), w.c: w.c.begin(34)}
		w.took(0, w.lease/5, func() { w.reset(w.a, 0) })
		start := time.Now()
		for _, i := range []*instance{w.b, w.c, w.a} {
			w.eventually(time.Second, "accepted everywhere", func() bool { return i.try(1) == nil })
		}
		if d := time.Since(start); d > 2*time.Second+w.h.Slack {
			w.t.Errorf("after %v", d)
		}
		for i, wr := range before {
			var reset *tokens.ResetError
			if err := wr.Admit(context.Background()); !errors.As(err, &reset) {
				w.t.Errorf("a write from before the reset at the gate of %s: %v", i.name, err)
			}
			wr.End()
		}
	}},
	{"a reset waits for writes past the gate of every instance, whatever their tokens", func(w *fleetWorld) {
		w.a.write(34)
		old := w.b.admit(34)
		w.b.finish(old, w.settle/2)
		w.took(w.settle/2, w.settle/2+w.lease/5, func() { w.reset(w.a, 0) })
		w.mustHaveLanded(2)
	}},
	{"a reset waits for a silent instance", func(w *fleetWorld) {
		w.b.doubt(w.b.admit(34), w.settle-w.lease/5)
		w.b.kill()
		w.took(w.settle, w.settle+w.lease*3/2, func() { w.reset(w.a, 0) })
		w.mustHaveLanded(1)
		w.a.write(1)
	}},
	{"a raise after a reset waits for what is open from before it", func(w *fleetWorld) {
		old := w.b.admit(34)
		w.b.finish(old, w.settle/2)
		ctx, cancel := context.WithTimeout(context.Background(), w.lease/5)
		defer cancel()
		if _, err := w.a.fence.Reset(ctx, res, 0); !errors.Is(err, context.DeadlineExceeded) {
			w.t.Errorf("%v; want the deadline", err)
		}
		w.eventually(w.settle/2, "a write by the new generation", func() bool {
			err := w.a.try(1)
			w.mu.Lock()
			defer w.mu.Unlock()
			if err == nil && w.landed != 2 {
				w.t.Error("it did not wait for the one from before the reset")
			}
			return err == nil
		})
	}},
	{"two resets at the same time both come to an end", func(w *fleetWorld) {
		w.a.write(34)
		w.b.write(34)
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.reset(w.b, 2)
		}()
		w.reset(w.a, 1)
		<-done
		w.eventually(w.lease, "all well", func() bool { return w.a.try(5) == nil && w.b.try(5) == nil })
	}},
	{"a reset meets raises of both instances, and all come to an end", func(w *fleetWorld) {
		w.c.start()
		old := w.c.admit(1)
		w.c.finish(old, w.settle/2)
		results := make(chan error, 2)
		for n, i := range []*instance{w.a, w.b} {
			go func() {
				wr, err := i.fence.Begin(context.Background(), w.claim(tokens.Token(10+n)))
				if err == nil {
					err = admitPatiently(wr)
					if err == nil {
						i.done(wr)
					} else {
						wr.End()
					}
				}
				results <- err
			}()
		}
		time.Sleep(w.lease / 5)
		w.took(w.settle/4, w.settle/2+w.lease, func() { w.reset(w.c, 0) })
		<-results
		<-results
		w.eventually(w.lease, "all well", func() bool { return w.a.try(1) == nil && w.b.try(1) == nil && w.c.try(1) == nil })
	}},
}

// reset resets the fence through an instance, whose client is told yes.
func (w *fleetWorld) reset(i *instance, t tokens.Token) {
	w.t.Helper()
	e, err := i.fence.Reset(context.Background(), res, t)
	if err != nil {
		w.t.Errorf("reset through %s: %v", i.name, err)
		return
	}
	w.ack(res, stamp{e.Generation, e.Token, 0, i})
}

// fleetAround is about joining, leaving and mappings.
var fleetAround = []fleetCase{
	{"other mappings end the older instances, and who begins by them waits until their writes have settled", func(w *fleetWorld) {
		w.a.doubt(w.a.admit(1), w.settle-w.lease/5)
		w.b.write(1)
		remapped := time.Now()
		w.engine.Remap(w.t)
		w.c.start()
		if d := time.Since(remapped); d < w.settle-w.lease/5 || d > w.settle+w.lease+w.slack {
			w.t.Errorf("it began after %v; want the settle time, %v", d, w.settle)
		}
		w.mustHaveLanded(2)
		for _, i := range []*instance{w.a, w.b} {
			w.unavailable(i.try(1))
			if i.reg.Failure() == nil {
				w.t.Errorf("%s does not know why", i.name)
			}
		}
		w.took(0, 0, func() { w.c.write(2) })
	}},
	{"an instance with other mappings than those on record does not begin", func(w *fleetWorld) {
		w.c.connect()
		err := w.c.reg.Begin(context.Background(), w.engine.Mapping(w.t)+1000)
		if !errors.Is(err, tokens.ErrRemapped) {
			w.t.Errorf("%v", err)
		}
		w.unavailable(w.c.try(1))
	}},
	{"who waits for the mappings from before is told when it may wait no longer", func(w *fleetWorld) {
		w.a.write(1)
		w.a.kill()
		w.engine.Remap(w.t)
		w.c.connect()
		ctx, cancel := context.WithTimeout(context.Background(), w.lease/2)
		defer cancel()
		if err := w.c.reg.Begin(ctx, w.engine.Mapping(w.t)); !errors.Is(err, fleet.ErrDraining) {
			w.t.Errorf("%v", err)
		}
	}},
	{"a stop leaves the fleet", func(w *fleetWorld) {
		w.a.write(1)
		incarnation := int64(w.a.reg.Incarnation())
		w.a.stop(time.Second)
		store := w.engine.Store(w.t)
		defer store.Close()
		v, err := store.Look(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		for _, p := range v.Alive {
			if p.Incarnation == incarnation {
				w.t.Error("it is alive")
			}
		}
		w.eventually(w.lease/5, "forgotten", func() bool {
			v, err := store.Look(context.Background())
			return err == nil && len(v.Ended) == 0
		})
	}},
	{"nothing passes a fence that is closed, whatever grant it has", func(w *fleetWorld) {
		w.a.write(1)
		wr := w.a.begin(1)
		w.a.stop(time.Second)
		w.unavailable(wr.Admit(context.Background()))
		wr.End()
	}},
	{"while another registry's writes may take effect no raise returns", func(w *fleetWorld) {
		w.a.reg.Hold(time.Now().Add(w.lease))
		w.took(w.lease*9/10, w.lease, func() { w.a.write(1) })
	}},
}

// RunOver runs the suite for one instance over a fleet's registry, which is all that an instance alone has to be: see [Run].
func RunOver(t *testing.T, engine func(testing.TB) Engine) {
	engines := map[string]Engine{}
	Run(t, Harness{
		Open: func(t testing.TB, dir string) tokens.Registry {
			e := engines[dir]
			if e == nil {
				e = engine(t)
				engines[dir] = e
			}
			r := fleet.New(newLink(e.Store(t)), fleet.Options{Lease: fleetLease, Clock: &testClock{began: time.Now()}})
			if err := r.Begin(context.Background(), e.Mapping(t)); err != nil {
				t.Fatal(err)
			}
			return r
		},
		Kill: func(t testing.TB, r tokens.Registry) {
			if err := r.(*fleet.Registry).Kill(); err != nil {
				t.Fatal(err)
			}
		},
		Silence: fleetLease + fleetLease/2,
	})
}

// fleetLease is that of the instances of RunOver.
const fleetLease = 10 * time.Second
