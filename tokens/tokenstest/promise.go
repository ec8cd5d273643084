package tokenstest

import (
	"context"
	"errors"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

func isWaiting(err error) bool {
	var w *tokens.WaitingError
	return errors.As(err, &w)
}

// refused fails the test unless err is the refusal of a token below highest.
func (w *world) refused(err error, highest tokens.Token) {
	w.t.Helper()
	var stale *tokens.StaleError
	if !errors.As(err, &stale) || stale.Highest != highest {
		w.t.Fatalf("%v; want the refusal of a token below %d", err, highest)
	}
}

// mustRefuse begins a write that must be refused at once.
func (w *world) mustRefuse(t, highest tokens.Token) {
	w.t.Helper()
	_, err := w.fence.Begin(context.Background(), claim(t))
	w.refused(err, highest)
}

// storyCases is what everybody expects to see. A fence that is broken in a subtle way passes them.
var storyCases = []testCase{
	{"a stale writer is refused, before and after a restart", func(w *world) {
		w.write(34)
		w.mustRefuse(33, 34)
		w.write(34)
		w.kill()
		w.start()
		w.mustRefuse(33, 34)
		w.write(34)
		w.stop(time.Second)
		w.start()
		w.mustRefuse(33, 34)
		w.write(35)
		w.mustRefuse(34, 35)
	}},
	{"an announcement closes the door without a write", func(w *world) {
		w.write(33)
		e, err := w.fence.Announce(context.Background(), claim(34))
		if err != nil || e.Token != 34 {
			w.t.Fatalf("%+v, %v", e, err)
		}
		w.mustRefuse(33, 34)
	}},
	{"a reset lets a restarted lock service begin again", func(w *world) {
		w.write(34)
		if _, err := w.fence.Reset(context.Background(), res, 0); err != nil {
			w.t.Fatal(err)
		}
		w.acked[res] = 0
		w.write(1)
		w.write(2)
		w.mustRefuse(1, 2)
	}},
}

// promiseCases are the ways in which a late write could slip past a newer holder. Each is a schedule that a model of the protocol
// has found; the name says what is promised.
var promiseCases = []testCase{
	{"a raise waits for older writes that are past the gate", func(w *world) {
		old := w.admit(1)
		w.finish(old, 30*time.Second)
		w.took(30*time.Second, 31*time.Second, func() { w.write(2) })
	}},
	{"a raise does not wait for an upload before the gate, which is cancelled", func(w *world) {
		old := w.begin(1)
		defer old.End()
		w.took(0, time.Second, func() { w.write(2) })
		select {
		case <-old.Context().Done():
			w.refused(context.Cause(old.Context()), 2)
		default:
			w.t.Error("the upload was not told")
		}
		w.refused(old.Admit(context.Background()), 2)
	}},
	{"equal tokens do not wait for each other", func(w *world) {
		first := w.admit(1)
		defer first.End()
		w.took(0, time.Second, func() { w.write(1) })
		first.Done()
	}},
	{"a longer settle time does not make an equal token wait", func(w *world) {
		old := w.admit(1)
		old.InDoubt()
		defer old.End()
		w.took(0, time.Second, func() {
			c := claim(1)
			c.Settle = 10 * time.Minute // as of a copy, whose grant has to be raised anew
			copying, err := w.fence.Begin(context.Background(), c)
			if err != nil {
				w.t.Fatal(err)
			}
			defer copying.End()
			if err := copying.Admit(context.Background()); err != nil {
				w.t.Fatal(err)
			}
			copying.Done()
		})
	}},
	{"a write in doubt holds a raise back until it has settled, and equal tokens not at all", func(w *world) {
		old := w.admit(1)
		w.send(res, 1, 59*time.Second)
		old.InDoubt()
		old.End()
		w.took(0, time.Second, func() { w.write(1) })
		w.took(59*time.Second, 61*time.Second, func() { w.write(2) })
	}},
	{"a write in doubt that is proven holds nobody back", func(w *world) {
		old := w.admit(1)
		proven := old.InDoubt()
		old.End()
		proven()
		proven()
		w.took(0, time.Second, func() { w.write(2) })
	}},
	{"a write that nobody settled is in doubt", func(w *world) {
		old := w.admit(1)
		w.send(res, 1, 59*time.Second)
		old.End() // a panic in the handler
		w.took(59*time.Second, 61*time.Second, func() { w.write(2) })
	}},
	{"a client that leaves past the gate does not settle its write", func(w *world) {
		ctx, leave := context.WithCancel(context.Background())
		old, err := w.fence.Begin(ctx, claim(1))
		if err != nil {
			w.t.Fatal(err)
		}
		if err := old.Admit(ctx); err != nil {
			w.t.Fatal(err)
		}
		w.finish(old, 30*time.Second)
		leave()
		synctest.Wait()
		w.took(30*time.Second, 31*time.Second, func() { w.write(2) })
	}},
	{"a raise that its client has left goes on and counts", func(w *world) {
		old := w.admit(1)
		impatient := w.begin(2)
		if err := impatient.Admit(context.Background()); !isWaiting(err) {
			w.t.Fatalf("%v; want to be told to wait", err)
		}
		impatient.End()
		w.mustRefuse(1, 2) // it was seen, if not recorded
		w.land(res, 1, w.now())
		old.Done()
		old.End()
		synctest.Wait()
		if e, err := w.reg.Lookup(context.Background(), res); err != nil || e.Token != 2 {
			w.t.Errorf("the registry has %+v, %v; want token 2", e, err)
		}
	}},
	{"the grants of every earlier run are waited for", func(w *world) {
		w.admit(1)
		w.send(res, 1, 50*time.Second)
		time.Sleep(time.Second)
		w.kill()
		w.start()
		time.Sleep(time.Second)
		w.kill()
		w.start()
		w.write(2)
		w.mustHaveBeenLate()
	}},
	{"a clean stop leaves the grants of earlier runs", func(w *world) {
		w.admit(1)
		w.send(res, 1, 50*time.Second)
		w.kill()
		w.start()
		w.write(1) // this run has a grant of its own, which it gives back
		w.stop(time.Second)
		w.start()
		w.write(2)
		w.mustHaveBeenLate()
	}},
	{"a clean stop leaves the grant of a write in doubt", func(w *world) {
		old := w.admit(1)
		w.send(res, 1, 50*time.Second)
		old.InDoubt()
		old.End()
		w.stop(time.Second)
		w.start()
		w.write(2)
		w.mustHaveBeenLate()
	}},
	{"a clean stop gives back what has settled", func(w *world) {
		w.write(1)
		w.stop(time.Second)
		w.start()
		w.took(0, time.Second, func() { w.write(2) })
	}},
	{"a token-less write has a grant that a later run waits for", func(w *world) {
		w.admit(0)
		w.send(res, 0, 50*time.Second)
		w.kill()
		w.start()
		w.write(1)
		w.mustHaveBeenLate()
	}},
	{"a first raise waits for token-less writes", func(w *world) {
		old := w.admit(0)
		w.finish(old, 30*time.Second)
		w.took(30*time.Second, 31*time.Second, func() { w.write(1) })
		w.mustRefuse(0, 1)
	}},
	{"a resource with a write or a raise under way stays in memory", func(w *world) {
		w.stop(time.Second)
		w.options.Idle = 10 * time.Second
		w.start()
		w.write(1) // used, then idle
		old := w.admit(1)
		w.finish(old, 50*time.Second)
		time.Sleep(40 * time.Second) // long enough to be evicted four times
		w.took(10*time.Second, 11*time.Second, func() { w.write(2) })
		time.Sleep(time.Minute)
		if n := w.fence.Stats().Resources; n != 0 {
			w.t.Errorf("%d resources are still in memory", n)
		}
		w.mustRefuse(1, 2)
	}},
	{"a write with a longer settle time gets a grant that says so", func(w *world) {
		w.write(1)
		c := claim(1)
		c.Settle = 10 * time.Minute
		copying, err := w.fence.Begin(context.Background(), c)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := copying.Admit(context.Background()); err != nil {
			w.t.Fatal(err)
		}
		w.send(res, 1, 9*time.Minute)
		w.kill()
		w.start()
		w.write(2)
		w.mustHaveBeenLate()
	}},
	{"a grant that came too late to be used is not given back under open writes", func(w *world) {
		w.admit(1)
		w.send(res, 1, 50*time.Second)
		release := w.holdAnswers()
		go func() { // the same token, for longer: its grant takes the place of the first in the registry
			c := claim(1)
			c.Settle = 10 * time.Minute
			if copying, err := w.fence.Begin(context.Background(), c); err == nil {
				_ = copying.Admit(context.Background())
				copying.End()
			}
		}()
		synctest.Wait()
		newer := w.begin(2)
		defer newer.End()
		go func() { _ = newer.Admit(context.Background()) }() // moves the mark before the answer is there
		synctest.Wait()
		release()
		synctest.Wait()
		w.kill()
		w.start()
		w.write(2)
		w.mustHaveBeenLate()
	}},
	{"what began before a reset is refused after it", func(w *world) {
		w.write(34)
		old := w.begin(34)
		defer old.End()
		if _, err := w.fence.Reset(context.Background(), res, 0); err != nil {
			w.t.Fatal(err)
		}
		w.acked[res] = 0
		w.write(1)
		var reset *tokens.ResetError
		if err := old.Admit(context.Background()); !errors.As(err, &reset) || reset.Highest != 1 {
			w.t.Errorf("%v; want it refused for the reset", err)
		}
		if !errors.As(context.Cause(old.Context()), &reset) {
			w.t.Errorf("its upload was not told: %v", context.Cause(old.Context()))
		}
		w.write(2)
	}},
	{"a reset waits for every write past the gate", func(w *world) {
		old := w.admit(34)
		w.finish(old, 30*time.Second)
		w.took(30*time.Second, 31*time.Second, func() {
			if _, err := w.fence.Reset(context.Background(), res, 1); err != nil {
				w.t.Error(err)
			}
		})
		w.write(2)
	}},
	{"a reset that is left waiting changes nothing", func(w *world) {
		old := w.admit(34)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := w.fence.Reset(ctx, res, 1); !errors.Is(err, context.DeadlineExceeded) {
			w.t.Errorf("%v; want the deadline", err)
		}
		old.Done()
		old.End()
		w.mustRefuse(33, 34)
		w.write(34)
	}},
	{"nothing passes a fence that is closed", func(w *world) {
		wr := w.begin(1)
		fence := w.fence
		w.stop(time.Second)
		if err := wr.Admit(context.Background()); !errors.Is(err, tokens.ErrUnavailable) {
			w.t.Errorf("at the gate: %v", err)
		}
		wr.End()
		if _, err := fence.Begin(context.Background(), claim(1)); !errors.Is(err, tokens.ErrUnavailable) {
			w.t.Errorf("at the start: %v", err)
		}
		w.start()
	}},
}

// mustHaveBeenLate guards a case against testing nothing: the late effect must have come, and before the newer write.
func (w *world) mustHaveBeenLate() {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	late := w.late
	w.mu.Unlock()
	time.Sleep(2 * settle) // an effect still to come would be judged against the newer write now
	if late == 0 {
		w.t.Error("broken promise: the newer write was answered before the older one had landed")
	}
}
