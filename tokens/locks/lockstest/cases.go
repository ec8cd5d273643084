package lockstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// testTokens: tokens grow from holder to holder, from client to client, and also where the same holder comes twice.
func testTokens(b *bench) {
	one, other := b.client(), b.client()
	var last tokens.Token
	for _, turn := range []struct {
		client *client
		holder string
	}{{one, "a"}, {one, "a"}, {other, "b"}, {other, "a"}, {one, "a"}} {
		h := turn.client.acquire(turn.holder, b.long(), soon)
		b.higher(h.Token(), last)
		last = h.Token()
		b.renew(h)
		if h.Token() != last {
			b.Fatalf("a renewal made %d of the token %d", h.Token(), last)
		}
		if h.TakenOver() {
			b.Errorf("token %d: the holder before had released, and is said not to have", last)
		}
		b.release(h)
	}
}

// testOneClient: a client is not let in twice because it is in already.
func testOneClient(b *bench) {
	c := b.client()
	first := c.acquire("a", b.long(), soon)
	c.cannot("a", b.TTL/2)
	b.renew(first)
	b.release(first)
	second := c.acquire("a", b.long(), soon)
	b.higher(second.Token(), first.Token())
	b.release(second)
}

// testPaused: who is not heard of for the TTL loses the lock, and learns it; its token is the lower one; it can no longer renew, nor release
// what its successor has, though it has the same name.
func testPaused(b *bench, holder, successor string) {
	paused, next, third := b.client(), b.client(), b.client()
	old := paused.acquire(holder, b.TTL, soon)
	began := time.Now()
	b.renew(old)
	paused.pause()
	hold := next.acquire(successor, b.long(), b.TTL+b.Late+soon)
	if took := time.Since(began); took < b.TTL-b.TTL/50 { // they count in milliseconds, or ticks
		b.Errorf("the lock was free %s after a renewal for %s", took, b.TTL)
	} else if took > b.TTL+b.Late+b.TTL/2+time.Second {
		b.Logf("NOTE: the lock came free %s after a renewal for %s; that is late", took, b.TTL)
	}
	b.higher(hold.Token(), old.Token())
	if hold.TakenOver() != b.TellsTakeover {
		b.Errorf("TakenOver is %v after a holder that did not release", hold.TakenOver())
	}
	b.renew(hold)
	paused.wake()
	b.lost("Renew", old.Renew)
	b.lost("Release", old.Release)
	b.renew(hold)
	third.cannot("third", b.TTL/2)
	b.renew(hold)
	b.release(hold)
	last := third.acquire("third", b.long(), b.long()/2)
	b.higher(last.Token(), hold.Token())
	b.release(last)
}

// testPausedRenewal: a renewal that is on its way while the lock is lost arrives late, and must not take the lock back, nor be told as done.
func testPausedRenewal(b *bench) {
	paused, next := b.client(), b.client()
	old := paused.acquire("a", b.TTL, soon)
	paused.pause()
	renewed := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*b.TTL+b.Late+soon)
	defer cancel()
	go func() { renewed <- old.Renew(ctx) }()
	hold := next.acquire("b", b.long(), b.TTL+b.Late+soon)
	paused.wake()
	if err := <-renewed; err == nil {
		b.Error("a renewal that arrived after the lock was lost was told as done")
	}
	b.renew(hold)
	b.higher(hold.Token(), old.Token())
	b.lost("Renew", old.Renew)
	b.release(hold)
}

// testRenewed: who renews keeps the lock beyond its TTL.
func testRenewed(b *bench) {
	holder, other := b.client(), b.client()
	hold := holder.acquire("a", b.TTL, soon)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for end := time.Now().Add(3*b.TTL + b.Late); time.Now().Before(end); time.Sleep(b.TTL / 6) {
			if err := settled(hold.Renew); err != nil {
				b.Errorf("it was renewed in time, and then not: %v", err)
				return
			}
		}
	}()
	other.cannot("b", 2*b.TTL+b.Late+b.TTL/2)
	<-done
	b.release(hold)
}

// testReleased: a release lets the next one in at once, may come twice, and is the end of the hold.
func testReleased(b *bench) {
	holder, other := b.client(), b.client()
	hold := holder.acquire("a", b.long(), soon)
	next := make(chan locks.Hold)
	waits := make(chan struct{}, 100)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*b.long()+soon)
		defer cancel()
		h, err := other.Acquire(ctx, locks.Request{Holder: "b", TTL: b.long(), Waiting: func(locks.Other) { waits <- struct{}{} }})
		if err != nil {
			b.Errorf("a lock that was released: %v", err)
		}
		next <- h
	}()
	<-waits
	began := time.Now()
	b.release(hold)
	h := <-next
	if h == nil {
		return
	}
	if took := time.Since(began); took > b.long()*3/4 {
		b.Errorf("the next one got the lock %s after it was released; it would have run out after %s", took, b.long())
	}
	b.higher(h.Token(), hold.Token())
	b.release(hold)
	b.lost("Renew", hold.Renew)
	b.renew(h)
	holder.cannot("a", b.TTL/2)
	b.release(h)
}

// testGivenUp: who gives up waiting gets the cause of it, and is in nobody's way afterwards.
func testGivenUp(b *bench) {
	holder, gone, next := b.client(), b.client(), b.client()
	cause := errors.New("no longer wanted")
	before, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if h, err := gone.Acquire(before, locks.Request{Holder: "gone", TTL: b.long()}); !errors.Is(err, cause) {
		b.Fatalf("asked for with a context that had ended: %v, %v", h, err)
	}
	hold := holder.acquire("a", b.long(), soon)
	waiting, cancel := context.WithCancelCause(context.Background())
	h, err := gone.Acquire(waiting, locks.Request{Holder: "gone", TTL: b.long(), Waiting: func(locks.Other) { cancel(cause) }})
	if !errors.Is(err, cause) {
		b.Fatalf("given up: %v, %v; want the cause of its context", h, err)
	}
	gone.cannot("gone", b.TTL/2)
	b.release(hold)
	h = next.acquire("b", b.long(), b.long()*3/4)
	b.higher(h.Token(), hold.Token())
	b.release(h)
}

// testGivenUpAtAnyMoment: what is taken and given up in the same moment runs out, and its number is never given again.
func testGivenUpAtAnyMoment(b *bench) {
	hasty, other := b.client(), b.client()
	h := hasty.acquire("warm", b.long(), soon)
	began := time.Now()
	b.release(h)
	trip := 3 * time.Since(began) // about what it takes to acquire
	last := h.Token()
	for i := range 25 {
		cause := errors.New("no longer wanted")
		ctx, cancel := context.WithTimeoutCause(context.Background(), rand.N(trip), cause)
		h, err := hasty.Acquire(ctx, locks.Request{Holder: "hasty", TTL: b.TTL})
		cancel()
		switch {
		case err == nil:
			b.higher(h.Token(), last)
			last = h.Token()
			b.release(h)
		case !errors.Is(err, cause):
			b.Fatalf("given up: %v; want the cause of its context", err)
		}
		if i%8 == 7 {
			h = other.acquire("other", b.TTL, b.TTL+b.Late+soon)
			b.higher(h.Token(), last)
			last = h.Token()
			b.release(h)
		}
	}
}

// testWaiting: who waits is told who has the lock, as far as the service says it, and truly.
func testWaiting(b *bench) {
	holder, other := b.client(), b.client()
	began := time.Now()
	hold := holder.acquire("the-holder:1", b.long(), soon)
	ctx, cancel := context.WithTimeout(context.Background(), b.TTL)
	defer cancel()
	var told []locks.Other // from the goroutine that waits, or the one that calls: it has ended when Acquire returns
	if _, err := other.Acquire(ctx, locks.Request{Holder: "b", TTL: b.TTL, Waiting: func(o locks.Other) { told = append(told, o) }}); err == nil {
		b.Fatal("a lock that is held was acquired")
	}
	if len(told) != 1 {
		b.Fatalf("told %d times who has the lock: %+v; want once, for it did not change hands", len(told), told)
	}
	if o := told[0]; o.Holder != "" && o.Holder != "the-holder:1" {
		b.Errorf("the holder is said to be %q", o.Holder)
	} else if o.Token != 0 && o.Token != hold.Token() {
		b.Errorf("its token is said to be %d, and is %d", o.Token, hold.Token())
	} else if !o.Since.IsZero() && (o.Since.Before(began.Add(-2*time.Second)) || o.Since.After(time.Now().Add(2*time.Second))) {
		b.Errorf("it is said to hold since %s, and does since %s", o.Since, began)
	} else {
		b.Logf("it is said of the holder: %+v", o)
	}
	b.release(hold)
}

// testCrash: a client that goes without a word leaves a lock that comes free.
func testCrash(b *bench) {
	holder, other := b.client(), b.client()
	hold := holder.acquire("a", b.TTL, soon)
	holder.crash()
	next := other.acquire("b", b.TTL, b.TTL+b.Late+soon)
	b.higher(next.Token(), hold.Token())
	if next.TakenOver() != b.TellsTakeover {
		b.Errorf("TakenOver is %v after a holder that crashed", next.TakenOver())
	}
	b.release(next)
}

// testStalled: no call outlasts its context because the service does not answer; what becomes of it then is not known.
func testStalled(b *bench) {
	c, other := b.client(), b.client()
	h := c.acquire("a", b.TTL, soon)
	c.pause()
	cause := errors.New("no longer wanted")
	for what, call := range map[string]func(context.Context) error{
		"Renew":   h.Renew,
		"Release": h.Release,
		"Acquire": func(ctx context.Context) error {
			_, err := c.Acquire(ctx, locks.Request{Holder: "b", TTL: b.TTL})
			if err != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w, and not the cause of its context", err)
			}
			return err
		},
	} {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 200*time.Millisecond, cause)
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		var err error
		select {
		case err = <-done:
		case <-time.After(3 * time.Second):
			b.Errorf("%s goes on, though its context has ended long ago", what)
			err = context.Cause(ctx)
		}
		cancel()
		if err == nil {
			b.Errorf("%s: it was done, and cannot have been", what)
		} else if errors.Is(err, locks.ErrLost) {
			b.Errorf("%s: %v; that is more than can be known", what, err)
		} else {
			b.Logf("%s without an answer: %v", what, err)
		}
	}
	c.wake()
	next := other.acquire("c", b.long(), 2*(b.TTL+b.Late)+soon)
	b.higher(next.Token(), h.Token())
	b.release(next)
}

// testDeleted: the tokens grow on where somebody tidied up in between.
func testDeleted(b *bench) {
	if b.lock.Delete == nil {
		b.Skip("nothing of this lock can be deleted without taking its tokens back")
	}
	c, other := b.client(), b.client()
	var last tokens.Token
	for range 3 {
		for _, c := range []*client{c, c, other} {
			h := c.acquire("a", b.long(), soon)
			b.higher(h.Token(), last)
			last = h.Token()
			b.release(h)
		}
		b.lock.Delete(b.T)
	}
}

// testRestart: the tokens grow on over restarts of the service.
func testRestart(b *bench) {
	var last tokens.Token
	for i := range 3 {
		c := b.client()
		var h locks.Hold
		for end := time.Now().Add(time.Minute); h == nil; time.Sleep(50 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(context.Background(), b.TTL+b.Late+soon)
			var err error
			h, err = c.Acquire(ctx, locks.Request{Holder: fmt.Sprint("run", i), TTL: b.TTL})
			cancel()
			if err != nil && time.Now().After(end) {
				b.Fatalf("after restart %d: %v", i, err)
			}
		}
		b.higher(h.Token(), last)
		last = h.Token()
		if i != 1 { // one is held over the restart
			b.release(h)
		}
		c.crash()
		b.Restart(b.T)
	}
}
