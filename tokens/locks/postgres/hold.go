package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// Acquire implements [locks.Service]. Who waits has a connection, too, and the server's queue is first come, first served, but for those who
// have waited for a third of their TTL or five seconds: they begin anew.
//
// If we crash, or ctx ends, the session ends, and with it the lock or the place in its queue.
func (s *Service) Acquire(ctx context.Context, r locks.Request) (_ locks.Hold, err error) {
	if context.Cause(ctx) != nil {
		return nil, context.Cause(ctx)
	}
	defer func() {
		if err == nil {
			return
		}
		if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
			<-ctx.Done() // a call's own timer may go first
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
	}()
	open, err := s.connect(ctx, r.TTL)
	if err != nil {
		return nil, err
	}
	h := &hold{session: open, ttl: r.TTL}
	err = open.ask(ctx, func(life context.Context) error {
		if err := open.lock(life, r); err != nil {
			return err
		}
		return h.advance(life, r.Holder)
	})
	if err == nil {
		return h, nil
	}
	closed := open.life.Err() != nil
	open.end()
	if closed {
		return nil, errClosed
	}
	return nil, err
}

// lock waits for the advisory lock. An error may come although it was granted in the same moment: the session must end then, or ask again, and
// have it.
func (o *session) lock(ctx context.Context, r locks.Request) error {
	var got bool
	limit := patience(r.TTL) + connectTime // the server answers within its lock_timeout, if it is there
	if err := o.row(ctx, limit, []any{&got}, "SELECT pg_try_advisory_lock("+key+")", o.service.name); err != nil || got {
		return err
	}
	var told *locks.Other
	for {
		other, err := o.other(ctx, limit)
		if err != nil {
			return err
		}
		if r.Waiting != nil && (told == nil || other.Token != 0 && other.Token != told.Token) {
			r.Waiting(other)
			told = &other
		}
		err = o.row(ctx, limit, []any{nil}, "SELECT pg_advisory_lock("+key+")", o.service.name)
		if err == nil || !isCode(err, "55P03") { // lock_not_available: it has waited long enough
			return err
		}
	}
}

// other is who has the lock, by the table. Nobody, where the holder has not counted yet, or is one of another name with the same hash.
func (o *session) other(ctx context.Context, limit time.Duration) (other locks.Other, err error) {
	err = o.row(ctx, limit, []any{&other.Holder, &other.Token, &other.Since}, holderOf, o.service.name)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return other, err
}

// A hold is a session that has the lock, and its number.
type hold struct {
	*session
	ttl       time.Duration
	token     tokens.Token
	takenOver bool

	mu       sync.Mutex // guards the rest
	released bool
	unknown  error // why it is not known whether it was released; nil where nobody has tried
}

// advance gets the token. pgx returns when the server is ready for the next statement, which it is after the commit: this one's errors are
// seen, and no number whose commit has failed.
func (h *hold) advance(ctx context.Context, holder string) error {
	data := h.conn.PgConn().CustomData()
	delete(data, unsure)
	err := h.row(ctx, max(h.ttl, connectTime), []any{&h.token, &h.takenOver}, advance, h.service.name, holder)
	if err == nil && data[unsure] != nil {
		err = errors.New("the lock was taken, but the server was kept from waiting for its synchronous standby, so that a failover may give its token again: try anew")
	}
	return err
}

// Token implements [locks.Hold].
func (h *hold) Token() tokens.Token { return h.token }

// TakenOver implements [locks.Hold].
func (h *hold) TakenOver() bool { return h.takenOver }

// Renew implements [locks.Hold]. The question itself is what keeps the session from being idle.
func (h *hold) Renew(ctx context.Context) error {
	if err := h.over(); err != nil {
		return err
	}
	return h.ask(ctx, func(life context.Context) error {
		var locked, newest bool
		err := h.row(life, h.ttl, []any{&locked, &newest}, standing, h.service.name, int64(h.token))
		return h.judge(err, locked && newest)
	})
}

// judge says what an answer means for the hold. Where the connection is closed there is none: the session is over, or soon.
func (h *hold) judge(err error, stands bool) error {
	switch {
	case h.conn.IsClosed():
		return fmt.Errorf("%w: the connection that it lived on is closed: %w", locks.ErrLost, err)
	case err == nil && !stands:
		return fmt.Errorf("%w: somebody has unlocked it, or counted on in public.fenceproxy_locks", locks.ErrLost)
	}
	return err
}

// over says why the hold is over, if we have ended it.
func (h *hold) over() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.released:
		return fmt.Errorf("%w: it was released", locks.ErrLost)
	case h.unknown != nil:
		return fmt.Errorf("it was given back, and whether it still stood then is not known: %w", h.unknown)
	}
	return nil
}

// Release implements [locks.Hold]. Whatever becomes of it, the session ends, and the lock with it as soon as the server sees that.
func (h *hold) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return nil
	}
	if h.unknown != nil {
		return h.unknown
	}
	err := h.ask(ctx, func(life context.Context) error {
		// The next holder is to see that, so it comes before the unlocking.
		var marked, locked bool
		err := h.row(life, h.ttl, []any{&marked}, mark, h.service.name, int64(h.token))
		if err == nil {
			err = h.row(life, h.ttl, []any{&locked}, "SELECT pg_advisory_unlock("+key+")", h.service.name)
		}
		return h.judge(err, marked && locked)
	})
	h.end()
	h.released, h.unknown = err == nil, err
	return err
}
