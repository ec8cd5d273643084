package tokens

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/clock"
)

// Locks are the proxy's own locks, over the registry that has the fences: one lock on each resource, whose tokens are higher than all that were
// issued for the resource and all that it has seen.
//
// # When a lease is over
//
// No two clocks are compared. A lease is over when its row has not changed for its whole TTL, by the clock of the proxy that looks, counted
// from when that proxy first saw the row so. The proxy that took or renewed it saw it right then. Another one, and one that was started anew,
// counts from its own first look, so that it waits longer, never less. Until somebody else has taken the lock its holder may renew it, how
// late it may be.
//
// A swap that takes effect late does no harm: it takes effect only on the version that it was made for.
type Locks struct {
	store LockStore
	clock clock.Clock

	mu   sync.Mutex
	seen map[string]sighting // by resource, of leases that stand; guarded by mu
}

// A sighting is a row as it was seen first.
type sighting struct {
	lease   string
	version int64
	since   time.Duration // boot time
}

// maxSightings bounds them. One that is forgotten costs who waits for the lock another TTL.
const maxSightings = 100_000

// lockTries is how often a change is tried anew because another one was faster.
const lockTries = 10

// NewLocks returns the locks of a registry. c is this machine's clock; nil: the system's.
func NewLocks(s LockStore, c clock.Clock) *Locks {
	if c == nil {
		c = clock.System{}
	}
	return &Locks{store: s, clock: c, seen: map[string]sighting{}}
}

// A LockRequest says who wants which lock, and for how long.
type LockRequest struct {
	Resource  string
	Lease     string // the id that it shall have, made by the client for this one: see [ParseLeaseID]. "": one is made
	Holder    string // as others shall see it
	AccessKey string // recorded for the operator
	TTL       time.Duration
	Above     Token // seen, though the registry may not know it yet
}

// Take takes the lock, or fails with a [*HeldError]. A request with the id, the holder and the access key of the lease that stands gets that one
// again, renewed, with the token that it had: its client has lost an answer. An id that is over is not good for another lease ([*LeaseLostError]).
//
// The token is issued in the step that records the lease. If we crash before it, nothing has happened; if after it, the lock is held by
// a client that knows nothing of it, until its TTL is over or it asks again with the same id.
func (l *Locks) Take(ctx context.Context, q LockRequest) (Lease, error) {
	if q.Lease == "" {
		q.Lease = rand.Text()
	}
	var before LockRow
	row, err := l.change(ctx, q.Resource, func(v LockView, over bool) (LockRow, error) {
		before = v.Row
		return l.take(v, over, q)
	})
	if err != nil {
		return Lease{}, err
	}
	lease := row.lease(q.Resource)
	lease.Again = before.Lease == row.Lease
	if row.TakenOver && !lease.Again {
		lease.From = before.Holder
	}
	return lease, nil
}

func (l *Locks) take(v LockView, over bool, q LockRequest) (LockRow, error) {
	row := v.Row
	if row.Lease == q.Lease {
		if row.Released || row.Holder != q.Holder || row.AccessKey != q.AccessKey {
			return row, lost(q.Resource, row)
		}
		row.TTL = q.TTL
		return l.renewed(row), nil
	}
	if row.stands() && !over {
		return row, &HeldError{row.seen(q.Resource)}
	}
	highest := max(row.Issued, v.Fence.Token, q.Above)
	if highest >= Max-LockMargin {
		return row, &SpentError{q.Resource, highest, row.Issued >= Max-LockMargin}
	}
	return l.renewed(LockRow{
		Version: row.Version, Issued: highest + 1, Lease: q.Lease, TakenOver: row.Version != 0 && !row.Released,
		Holder: q.Holder, AccessKey: q.AccessKey, TTL: q.TTL, Since: l.now(),
	}), nil
}

// Renew keeps a lease for another TTL. It fails with a [*LeaseLostError] where the lease is over.
func (l *Locks) Renew(ctx context.Context, resource, lease string) (Lease, error) {
	row, err := l.change(ctx, resource, func(v LockView, _ bool) (LockRow, error) {
		if v.Row.Lease != lease || !v.Row.stands() {
			return v.Row, lost(resource, v.Row)
		}
		return l.renewed(v.Row), nil
	})
	if err != nil {
		return Lease{}, err
	}
	return row.lease(resource), nil
}

// Release ends a lease, and no other. It fails with a [*LeaseLostError] where the lease is over and it was not released; to release
// twice is no error, unless somebody else has taken the lock in between.
func (l *Locks) Release(ctx context.Context, resource, lease string) error {
	_, err := l.change(ctx, resource, func(v LockView, _ bool) (LockRow, error) {
		row := v.Row
		switch {
		case row.Lease != lease || row.Lease == "":
			return row, lost(resource, row)
		case row.Released:
			return row, errReleased
		}
		row.Released = true
		return row, nil
	})
	if errors.Is(err, errReleased) {
		return nil
	}
	return err
}

// errReleased: there is nothing to change.
var errReleased = errors.New("the lease was released before")

// Show returns the lock on a resource as others may see it. held is false where nobody has it. It may have run out, and not been taken by
// anybody yet.
func (l *Locks) Show(ctx context.Context, resource string) (by Lease, held bool, err error) {
	v, _, err := l.load(ctx, resource)
	if err != nil || !v.Row.stands() {
		return Lease{}, false, err
	}
	return v.Row.seen(resource), true, nil
}

// change puts what decide makes of a row in its place. over says that its lease has run out.
func (l *Locks) change(ctx context.Context, resource string, decide func(v LockView, over bool) (LockRow, error)) (LockRow, error) {
	for range lockTries {
		v, over, err := l.load(ctx, resource)
		if err != nil {
			return LockRow{}, err
		}
		next, err := decide(v, over)
		if err != nil {
			return LockRow{}, err
		}
		version, err := l.store.SwapLock(ctx, v, next)
		if err != nil {
			return LockRow{}, lockError(resource, err)
		}
		if version != 0 {
			next.Version = version
			l.see(resource, next)
			return next, nil
		}
	}
	return LockRow{}, fmt.Errorf("%w: %s", ErrLockContended, resource)
}

func (l *Locks) load(ctx context.Context, resource string) (v LockView, over bool, err error) {
	if v, err = l.store.LoadLock(ctx, resource); err != nil {
		return v, false, lockError(resource, err)
	}
	v.Fence.Resource = resource
	return v, l.see(resource, v.Row) >= v.Row.TTL, nil
}

// see takes note of a row, and says for how long it has been so at least. The row may be older than now, never younger.
func (l *Locks) see(resource string, row LockRow) time.Duration {
	now := l.clock.Boot()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !row.stands() {
		delete(l.seen, resource)
		return 0
	}
	s, known := l.seen[resource]
	if known && s.lease == row.Lease && s.version == row.Version {
		return now - s.since
	}
	for other := range l.seen { // some other, if there are too many: the map yields them in no order
		if known || len(l.seen) < maxSightings {
			break
		}
		delete(l.seen, other)
	}
	l.seen[resource] = sighting{row.Lease, row.Version, now}
	return 0
}

func (l *Locks) renewed(row LockRow) LockRow {
	row.Renewed = l.now()
	return row
}

// now is for people, in the milliseconds that a registry keeps.
func (l *Locks) now() time.Time { return time.UnixMilli(l.clock.Wall().UnixMilli()) }

// lost says that a lease is over, and who has the lock.
func lost(resource string, row LockRow) error {
	e := &LeaseLostError{Resource: resource}
	if row.stands() {
		e.Now = row.seen(resource)
	}
	return e
}

func lockError(resource string, err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: the lock on %s: %w", ErrUnavailable, resource, err)
}
