package fence

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// mostPause is the longest time between two looks at a lock that is held.
const mostPause = time.Second

// giveUpTime is how long a request may take by which a lock is given back that we may have, and do not want any more.
const giveUpTime = time.Second

// Acquire implements [locks.Service]. It asks again and again, always for the same id: whose answer is lost gets its own lock with the next
// one. A proxy that has answered once may be away for a TTL.
func (s *Service) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w := wait{request: r, heard: time.Now()}
	id := rand.Text()
	for {
		l, err := s.call(ctx, http.MethodPost, r.TTL.String(), "X-Fence-Lease", id, "X-Fence-Holder", r.Holder)
		if err == nil {
			return &hold{service: s, id: id, token: l.Token, resource: l.Resource, takenOver: l.TakenOver}, nil
		}
		w.open = w.open || unknown(err) && !noService(err)
		if ctx.Err() == nil && !w.goesOn(err) {
			s.giveUp(ctx, id, w.open)
			return nil, err
		}
		if !w.sleep(ctx) {
			s.giveUp(ctx, id, w.open)
			return nil, context.Cause(ctx)
		}
	}
}

// A wait is what is known while a lock is waited for.
type wait struct {
	request  locks.Request
	heard    time.Time   // when the proxy last said something definite
	answered bool        // it ever has
	open     bool        // a request may have taken the lock, and we do not know it
	told     locks.Other // what Waiting was told last
}

// goesOn says whether to ask again after this.
func (w *wait) goesOn(err error) bool {
	var refused *Refusal
	switch {
	case errors.As(err, &refused) && refused.held != nil:
		w.heard, w.answered = time.Now(), true
		w.tell(locks.Other{Holder: refused.held.Holder, Token: refused.held.Token, Since: refused.held.Since})
		return true
	case !unknown(err):
		return false
	case !w.answered && noService(err):
		return false
	}
	return time.Since(w.heard) < w.request.TTL
}

// noService says that nobody took the connection, so that no request was made.
func noService(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func (w *wait) tell(o locks.Other) {
	if w.request.Waiting != nil && (o.Holder != w.told.Holder || o.Token != w.told.Token) {
		w.request.Waiting(o)
	}
	w.told = o
}

// sleep waits for the time of the next look, which differs from client to client. It is false if ctx has ended.
func (w *wait) sleep(ctx context.Context) bool {
	pause := min(w.request.TTL/10, mostPause)
	timer := time.NewTimer(pause*3/4 + mathrand.N(pause/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// giveUp gives a lock back that we may have. If that fails it runs out.
func (s *Service) giveUp(ctx context.Context, id string, open bool) {
	if !open {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpTime)
	defer cancel()
	_, _ = s.call(ctx, http.MethodDelete, id)
}

// A hold implements [locks.Hold].
type hold struct {
	service   *Service
	id        string
	token     tokens.Token
	resource  string
	takenOver bool

	mu       sync.Mutex
	released bool // guarded by mu
}

// Token implements [locks.Hold].
func (h *hold) Token() tokens.Token { return h.token }

// Resource is what the token fences: see [locks.Grant.Resource].
func (h *hold) Resource() string { return h.resource }

// TakenOver implements [locks.Hold].
func (h *hold) TakenOver() bool { return h.takenOver }

// Renew implements [locks.Hold].
func (h *hold) Renew(ctx context.Context) error {
	_, err := h.service.call(ctx, http.MethodPut, h.id)
	return lost(err)
}

// Release implements [locks.Hold].
func (h *hold) Release(ctx context.Context) error {
	h.mu.Lock()
	released := h.released
	h.mu.Unlock()
	if released {
		return nil
	}
	if _, err := h.service.call(ctx, http.MethodDelete, h.id); err != nil {
		return lost(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = true
	return nil
}
