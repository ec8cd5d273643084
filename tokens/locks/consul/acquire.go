package consul

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// Acquire waits, by blocking queries, until nobody has the key, and acquires it. Consul knows no queue: whoever comes first has it.
func (l *lock) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	h, err := l.acquire(ctx, r)
	switch {
	case err == nil:
		return h, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("the lock %s: %w", l.key, err)
}

func (l *lock) acquire(ctx context.Context, r locks.Request) (*hold, error) {
	session, err := l.session(ctx, r.Holder, r.TTL)
	if err != nil {
		return nil, err
	}
	w := &waiter{lock: l, request: r, session: session, heard: time.Now()}
	h := &hold{lock: l, session: session, value: value{Holder: r.Holder}}
	before, err := w.wait(ctx, &h.value)
	if err == nil {
		var now *entry
		if now, err = l.ours(ctx, session); err == nil {
			h.token = tokens.Token(now.ModifyIndex)
			h.takenOver = before != nil && before.CreateIndex == now.CreateIndex && before.LockIndex+1 == now.LockIndex && // nobody was in between
				before.value().Holder != "" && !before.value().Released
			return h, nil
		}
	}
	l.destroy(ctx, session) // with it goes what it may have acquired
	return nil, err
}

// A waiter waits for a key.
type waiter struct {
	lock    *lock
	request locks.Request
	session string
	told    string    // the session of whom Waiting was told
	unsure  bool      // whether the key was acquired is not known
	heard   time.Time // when the session was last renewed
}

// wait returns once the key is acquired, with what it was before: nil where there was none. What may pass is tried again for as long as the
// session can be alive.
func (w *waiter) wait(ctx context.Context, v *value) (*entry, error) {
	var index uint64
	for {
		before, met, err := w.try(ctx, &index, v)
		if met {
			return before, nil
		}
		if err != nil && (w.unsure || !passing(err) || time.Since(w.heard) > w.request.TTL) {
			return nil, err
		}
		if err == nil && index > 0 { // the next look waits by itself
			continue
		}
		timer := time.NewTimer(pause(w.request.TTL))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// try looks at the key, when it has changed since *index, and acquires it if it is free.
func (w *waiter) try(ctx context.Context, index *uint64, v *value) (before *entry, met bool, err error) {
	if asked := time.Now(); asked.Sub(w.heard) >= w.request.TTL/3 {
		if err := w.lock.renewSession(ctx, w.session); err != nil {
			return nil, false, err
		}
		w.heard = asked
	}
	before, *index, err = w.lock.read(ctx, *index, w.request.TTL/3)
	if err != nil {
		return nil, false, err
	}
	if before != nil && before.Session != "" {
		w.tell(before)
		return nil, false, nil
	}
	v.Since = time.Now().UTC().Truncate(time.Second)
	met, err = w.lock.put(ctx, url.Values{"acquire": {w.session}}, *v)
	w.unsure = err != nil
	*index = 0 // somebody was faster; or another client's lock delay keeps it from everybody, of whose end no query would tell
	return before, met, err
}

// pause is how long to wait before the key is looked at again where no blocking query does it: not all at once.
func pause(ttl time.Duration) time.Duration {
	d := min(ttl/10, time.Second)
	return d/2 + rand.N(d/2+1)
}

func (w *waiter) tell(e *entry) {
	if w.request.Waiting == nil || w.told == e.Session {
		return
	}
	w.told = e.Session
	o := locks.Other{Token: tokens.Token(e.ModifyIndex)}
	v := e.value()
	if holder, err := tokens.ParseHolder(v.Holder); err == nil {
		o.Holder, o.Since = holder, v.Since
	}
	w.request.Waiting(o)
}

// ours renews a session, and reads the key, which must show it.
func (l *lock) ours(ctx context.Context, session string) (*entry, error) {
	err := l.renewSession(ctx, session)
	if isStatus(err, http.StatusNotFound) {
		return nil, fmt.Errorf("%w: its session is over: Consul has not heard of this process for its TTL, or somebody has ended it", locks.ErrLost)
	}
	if err != nil {
		return nil, err
	}
	e, _, err := l.read(ctx, 0, 0)
	switch {
	case err != nil:
		return nil, err
	case e == nil:
		return nil, fmt.Errorf("%w: somebody has deleted its key", locks.ErrLost)
	case e.Session != session:
		return nil, fmt.Errorf("%w: its key is not our session's any more", locks.ErrLost)
	case e.ModifyIndex < 1 || e.ModifyIndex > uint64(tokens.Max):
		return nil, fmt.Errorf("the index %d of Consul is no token", e.ModifyIndex)
	}
	return e, nil
}

// A hold is a key that was acquired by a session of its own.
type hold struct {
	lock      *lock
	session   string
	value     value
	token     tokens.Token
	takenOver bool

	mu       sync.Mutex // held during a release; guards released
	released bool
}

func (h *hold) Token() tokens.Token { return h.token }
func (h *hold) TakenOver() bool     { return h.takenOver }

// Renew renews the session, and reads from a leader that is confirmed by a majority whether the key still is its.
func (h *hold) Renew(ctx context.Context) error {
	if _, err := h.lock.ours(ctx, h.session); err != nil {
		return h.failed("renew", err)
	}
	return nil
}

// Release gives the key back, and ends the session, by which the lock comes free even where the key could not be given back.
func (h *hold) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return nil
	}
	v := h.value
	v.Released = true
	met, err := h.lock.put(ctx, url.Values{"release": {h.session}}, v)
	h.lock.destroy(ctx, h.session)
	if err == nil && !met {
		err = fmt.Errorf("%w: its key is not our session's any more", locks.ErrLost)
	}
	if err != nil {
		return h.failed("release", err)
	}
	h.released = true
	return nil
}

func (h *hold) failed(what string, err error) error {
	if errors.Is(err, locks.ErrLost) {
		return fmt.Errorf("the lock %s: %w", h.lock.key, err)
	}
	return fmt.Errorf("the lock %s: cannot %s it: %w", h.lock.key, what, err)
}
