package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// LoadLock implements [tokens.LockStore].
func (r *Registry) LoadLock(ctx context.Context, resource string) (v tokens.LockView, err error) {
	if v.Fence, err = r.Lookup(ctx, resource); err != nil {
		return v, err
	}
	row := &v.Row
	var ttl, since, renewed int64
	err = r.db.Reader().QueryRowContext(ctx, `
SELECT version, issued, lease, released, taken_over, holder, access_key, ttl_ms, since, renewed FROM locks WHERE resource = ?`, resource).
		Scan(&row.Version, (*int64)(&row.Issued), &row.Lease, &row.Released, &row.TakenOver, &row.Holder, &row.AccessKey, &ttl, &since, &renewed)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return v, nil
	case err != nil:
		return v, fmt.Errorf("%w: look up the lock on %s: %w", tokens.ErrUnavailable, resource, err)
	}
	row.TTL, row.Since, row.Renewed = time.Duration(ttl)*time.Millisecond, time.UnixMilli(since), time.UnixMilli(renewed)
	return v, nil
}

// SwapLock implements [tokens.LockStore].
//
// If we crash before the commit, nothing has changed and nobody was told. If we crash after it, the row is as if we had answered.
func (r *Registry) SwapLock(ctx context.Context, was tokens.LockView, now tokens.LockRow) (version int64, err error) {
	err = r.write(ctx, func(tx *sqlitedb.Tx) error {
		if now.Issued > was.Row.Issued {
			e, err := entry(tx.QueryRow, was.Fence.Resource)
			if err != nil || e.Generation != was.Fence.Generation || e.Token != was.Fence.Token {
				return err
			}
		}
		res, err := tx.Exec(`
INSERT INTO locks (resource, version, issued, lease, released, taken_over, holder, access_key, ttl_ms, since, renewed)
VALUES (?1, ?2 + 1, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (resource) DO UPDATE SET version = excluded.version, issued = excluded.issued, lease = excluded.lease, released = excluded.released,
	taken_over = excluded.taken_over, holder = excluded.holder, access_key = excluded.access_key, ttl_ms = excluded.ttl_ms,
	since = excluded.since, renewed = excluded.renewed
WHERE version = ?2`,
			was.Fence.Resource, was.Row.Version, int64(now.Issued), now.Lease, now.Released, now.TakenOver, now.Holder, now.AccessKey,
			now.TTL.Milliseconds(), now.Since.UnixMilli(), now.Renewed.UnixMilli())
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err
		}
		version = was.Row.Version + 1
		return nil
	})
	if err != nil {
		return 0, err
	}
	return version, nil
}

// raiseLocks is the part of RaiseAll that is about the proxy's own locks: what was issued counts as seen, and is not issued again; all leases are over.
// The fences are raised after it.
func raiseLocks(tx *sqlitedb.Tx, by tokens.Token) error {
	_, err := tx.Exec(`
INSERT INTO fences (resource, generation, token, holder, access_key, raised_at)
SELECT resource, 0, issued, '', '', 0 FROM locks WHERE true
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE token < excluded.token`)
	if err != nil {
		return err
	}
	_, err = tx.Exec("UPDATE locks SET version = version + 1, issued = issued + ?, lease = ''", int64(by))
	return err
}
