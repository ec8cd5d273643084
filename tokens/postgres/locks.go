package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

const (
	// There is a row of zeros where there is none: a version counts from 1.
	lockSQL = `
SELECT coalesce(f.generation, 0), coalesce(f.token, 0), coalesce(f.holder, ''),
	coalesce(l.version, 0), coalesce(l.issued, 0), coalesce(l.lease, ''), coalesce(l.released, false), coalesce(l.taken_over, false),
	coalesce(l.holder, ''), coalesce(l.access_key, ''), coalesce(l.ttl_ms, 0), coalesce(l.since, 0), coalesce(l.renewed, 0)
FROM (SELECT $1::bytea AS resource) r LEFT JOIN fenceproxy.fences f USING (resource) LEFT JOIN fenceproxy.locks l USING (resource)`
	swapSQL = "SELECT fenceproxy.swap_lock($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"

	// What was issued counts as seen. Then the fences are raised, and last what may be issued; all leases are over.
	issuedSeenSQL = `
INSERT INTO fenceproxy.fences AS f SELECT resource, 0, issued, '', '', fenceproxy.now_ms() FROM fenceproxy.locks
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE f.token < excluded.token`
	raiseLocksSQL = "UPDATE fenceproxy.locks SET version = version + 1, issued = issued + $1, lease = ''"
)

// LoadLock implements [fleet.Store].
func (s *store) LoadLock(ctx context.Context, resource string) (v tokens.LockView, err error) {
	var fenceHolder, holder, accessKey []byte
	var ttl, since, renewed int64
	row := &v.Row
	err = s.calls.AcquireFunc(ctx, func(c conn) error {
		return c.QueryRow(ctx, lockSQL, []byte(resource)).Scan(&v.Fence.Generation, (*int64)(&v.Fence.Token), &fenceHolder,
			&row.Version, (*int64)(&row.Issued), &row.Lease, &row.Released, &row.TakenOver, &holder, &accessKey, &ttl, &since, &renewed)
	})
	if err != nil {
		return tokens.LockView{}, fmt.Errorf("look up the lock on %q: %w", resource, err)
	}
	v.Fence.Resource, v.Fence.Holder = resource, string(fenceHolder)
	if row.Version != 0 {
		row.Holder, row.AccessKey = string(holder), string(accessKey)
		row.TTL, row.Since, row.Renewed = time.Duration(ttl)*time.Millisecond, time.UnixMilli(since), time.UnixMilli(renewed)
	}
	return v, nil
}

// SwapLock implements [fleet.Store]. It is one round trip.
func (s *store) SwapLock(ctx context.Context, incarnation int64, was tokens.LockView, now tokens.LockRow) (version int64, err error) {
	var outcome string
	err = write(ctx, s.calls, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, swapSQL, incarnation, []byte(was.Fence.Resource), was.Row.Version, int64(now.Issued), now.Lease, now.Released, now.TakenOver,
			[]byte(now.Holder), []byte(now.AccessKey), now.TTL.Milliseconds(), now.Since.UnixMilli(), now.Renewed.UnixMilli(),
			now.Issued > was.Row.Issued, was.Fence.Generation, int64(was.Fence.Token)).Scan(&outcome)
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("change the lock on %q: %w", was.Fence.Resource, err)
	case outcome == "ended":
		return 0, fleet.ErrEnded
	case outcome == "swapped":
		return was.Row.Version + 1, nil
	}
	return 0, nil
}
