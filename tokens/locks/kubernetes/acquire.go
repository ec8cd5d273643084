package kubernetes

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// nonce is the length of the random part of a holder's identity.
const nonce = 12

// Acquire looks at the Lease every now and then until it is free, or has not changed for its duration, and writes our name into it.
func (l *lock) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	seconds := int64(math.Ceil(r.TTL.Seconds()))
	if seconds < 1 || seconds > math.MaxInt32 {
		return nil, fmt.Errorf("the lock %s: a TTL of %s cannot be the duration of a Lease; it has at least a second", l, r.TTL)
	}
	w := &waiter{lock: l, request: r, identity: r.Holder + "_" + rand.Text()[:nonce], seconds: seconds}
	h, err := w.wait(ctx)
	if err == nil {
		return h, nil
	}
	w.giveBack(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("the lock %s: %w", l, err)
}

// holderOf is the holder of an identity of ours, and else the identity: client-go's is most often a host's name, _ and a random part.
func holderOf(identity string) string {
	if i := len(identity) - nonce - 1; i > 0 && identity[i] == '_' && strings.Trim(identity[i+1:], "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == "" {
		return identity[:i]
	}
	return identity
}

// A waiter wants a Lease.
type waiter struct {
	lock     *lock
	request  locks.Request
	identity string // of this acquisition alone
	seconds  int64
	told     string    // the identity of whom Waiting was told
	unsure   bool      // a write of our name was not answered: it may be done, or be done yet
	heard    time.Time // when the API server last answered

	seen      []byte    // the spec that was seen last
	unchanged time.Time // since when it is known to have been like that, by our clock
}

// wait returns once the Lease is ours. What may pass is tried again for a TTL.
func (w *waiter) wait(ctx context.Context) (*hold, error) {
	for {
		h, left, err := w.try(ctx)
		switch {
		case h != nil:
			return h, nil
		case err != nil && (!passing(err) || time.Since(w.heard) > w.request.TTL):
			return nil, err
		}
		d := min(w.request.TTL/10, 2*time.Second)
		timer := time.NewTimer(min(d/2+mathrand.N(d/2+1), max(left, time.Millisecond))) // not all at once
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// try looks at the Lease, and takes it if it may be taken. It returns how long that may not be at most; somebody may be faster.
func (w *waiter) try(ctx context.Context) (h *hold, left time.Duration, err error) {
	now, err := w.lock.get(ctx)
	missing := isStatus(err, http.StatusNotFound)
	if err != nil && !missing {
		return nil, time.Hour, err
	}
	w.heard = time.Now()
	var s spec
	if !missing {
		if s, err = now.read(); err != nil {
			return nil, 0, err
		}
		if s.HolderIdentity == w.identity { // the answer to our write was lost
			return w.won(ctx, now, false)
		}
		if left := w.left(now, s); left > 0 && s.HolderIdentity != "" {
			w.tell(s)
			return nil, left, nil
		}
		if s.LeaseTransitions >= math.MaxInt32 {
			return nil, 0, fmt.Errorf("the Lease has had %d holders, and its count has no room for more", s.LeaseTransitions)
		}
	}
	before := s
	at := microTime{time.Now()}
	s = spec{HolderIdentity: w.identity, LeaseDurationSeconds: w.seconds, AcquireTime: at, RenewTime: at}
	if missing {
		now, err = w.lock.create(ctx, s)
	} else {
		s.LeaseTransitions = before.LeaseTransitions + 1
		now, err = w.lock.update(ctx, now, s)
	}
	switch {
	case err == nil:
		return w.won(ctx, now, before.HolderIdentity != "")
	case isStatus(err, http.StatusConflict):
		return nil, time.Hour, nil // somebody was faster
	case passing(err) || ctx.Err() != nil:
		w.unsure = true
	}
	return nil, time.Hour, err
}

// left is how long the Lease must stay as it is to be over. It changes with each renewal, and our clock tells since when it has not.
func (w *waiter) left(now *lease, s spec) time.Duration {
	text, _ := json.Marshal(now.Spec) // of a map: always in the same order
	if !bytes.Equal(text, w.seen) {
		w.seen, w.unchanged = text, time.Now()
	}
	return time.Duration(s.LeaseDurationSeconds)*time.Second - time.Since(w.unchanged)
}

// won makes a hold of a Lease that has our name.
func (w *waiter) won(ctx context.Context, now *lease, takenOver bool) (*hold, time.Duration, error) {
	s, err := now.read()
	if err == nil && s.HolderIdentity != w.identity {
		err = errors.New("the API server has taken our name, and answers with another")
	}
	if err != nil {
		return nil, 0, err
	}
	h := &hold{lock: w.lock, identity: w.identity, token: tokens.Token(s.LeaseTransitions + 1), takenOver: takenOver, lease: now}
	if w.unsure { // it may have been written long ago
		if err := h.Renew(ctx); err != nil {
			return nil, 0, err
		}
	}
	return h, 0, nil
}

func (w *waiter) tell(s spec) {
	if w.request.Waiting == nil || w.told == s.HolderIdentity {
		return
	}
	w.told = s.HolderIdentity
	o := locks.Other{Token: tokens.Token(s.LeaseTransitions + 1), Since: s.AcquireTime.Time}
	if holder, err := tokens.ParseHolder(holderOf(s.HolderIdentity)); err == nil {
		o.Holder = holder
	}
	w.request.Waiting(o)
}

// giveBack takes our name out of the Lease, where it may have come into it, even where ctx is over. But it does not take long; else the name
// runs out.
func (w *waiter) giveBack(ctx context.Context) {
	if !w.unsure {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if now, err := w.lock.get(ctx); err == nil {
		_ = (&hold{lock: w.lock, identity: w.identity, lease: now}).Release(ctx)
	}
}

// A hold is a Lease with an identity of its own.
type hold struct {
	lock      *lock
	identity  string
	token     tokens.Token
	takenOver bool

	mu       sync.Mutex // guards the rest; not held during calls
	lease    *lease     // as we last knew it
	released bool
}

func (h *hold) Token() tokens.Token { return h.token }
func (h *hold) TakenOver() bool     { return h.takenOver }

// Renew writes the time into the Lease, as it was when we last wrote to it.
func (h *hold) Renew(ctx context.Context) error {
	return h.write(ctx, "renew", func(s *spec) { s.RenewTime = microTime{time.Now()} })
}

// Release takes our name out of the Lease and leaves the count in it, as client-go does.
func (h *hold) Release(ctx context.Context) error {
	h.mu.Lock()
	released := h.released
	h.mu.Unlock()
	if released {
		return nil
	}
	err := h.write(ctx, "release", func(s *spec) {
		now := microTime{time.Now()}
		*s = spec{LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaseTransitions: s.LeaseTransitions}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = h.released || err == nil
	return err
}

// write changes the Lease while it is ours. Where somebody else has written to it, which is refused for certain, it is read again: our name in
// it says that nobody else's was, for everybody's is another one at each time.
func (h *hold) write(ctx context.Context, what string, change func(*spec)) error {
	h.mu.Lock()
	now := h.lease
	h.mu.Unlock()
	for range 3 {
		s, err := now.read()
		if err == nil && s.HolderIdentity != h.identity {
			return fmt.Errorf("%w: the Lease %s is %s now", locks.ErrLost, h.lock, whose(s.HolderIdentity))
		}
		if err == nil {
			change(&s)
			now, err = h.lock.update(ctx, now, s)
		}
		if err == nil {
			h.mu.Lock()
			h.lease = now
			h.mu.Unlock()
			return nil
		}
		if isStatus(err, http.StatusConflict) || isStatus(err, http.StatusNotFound) {
			if now, err = h.lock.get(ctx); isStatus(err, http.StatusNotFound) {
				return fmt.Errorf("%w: somebody has deleted the Lease %s", locks.ErrLost, h.lock)
			}
		}
		if err != nil {
			return fmt.Errorf("the lock %s: cannot %s it: %w", h.lock, what, err)
		}
	}
	return fmt.Errorf("the lock %s: cannot %s it: somebody else changes the Lease all the time", h.lock, what)
}

func whose(identity string) string {
	if identity == "" {
		return "nobody's"
	}
	return holderOf(identity) + "'s"
}
