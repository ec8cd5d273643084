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
	recordSQL = `
SELECT outcome, coalesce(generation, 0), coalesce(token, 0), coalesce(holder, ''), coalesce(raised, false), coalesce(id, 0), coalesce(settle_ms, 0), lower_ids, lower_incarnations
FROM fenceproxy.record($1, $2, $3, $4, $5, $6, $7, $8)`
	resetSQL = "SELECT outcome, coalesce(generation, 0), coalesce(raised_at, 0), lower_ids, lower_incarnations FROM fenceproxy.reset($1, $2, $3)"

	// Locked in the order of their ids, as everybody does. Who waits for one of them is told.
	removeSQL = `
WITH locked AS MATERIALIZED (
	SELECT id FROM fenceproxy.grants WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
), gone AS (
	DELETE FROM fenceproxy.grants g USING locked WHERE g.id = locked.id RETURNING g.revoked
), told AS (
	SELECT pg_notify('fenceproxy', '') FROM gone WHERE revoked LIMIT 1
)
SELECT count(*) FROM gone LEFT JOIN told ON true`
	standingSQL = "SELECT id FROM fenceproxy.grants WHERE id = ANY ($1::bigint[])"
)

// Record implements [fleet.Store]. It is one round trip.
func (s *store) Record(ctx context.Context, incarnation int64, c tokens.Claim) (rec fleet.Recorded, err error) {
	var outcome string
	var generation, token, id, settle int64
	var holder []byte
	var raised bool
	var lower, incarnations []int64
	err = write(ctx, s.calls, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, recordSQL, incarnation, []byte(c.Resource), c.Generation, int64(c.Token), []byte(c.Holder), []byte(c.AccessKey), ceil(c.Settle), c.Holder != "").
			Scan(&outcome, &generation, &token, &holder, &raised, &id, &settle, &lower, &incarnations)
	})
	if err != nil {
		return rec, fmt.Errorf("record a token of %q: %w", c.Resource, err)
	}
	switch outcome {
	case "recorded":
		if id == 0 {
			_, rec.Own = others(references(c.Resource, lower, incarnations), incarnation)
			return rec, nil
		}
		rec.Grant = tokens.Grant{
			ID: tokens.GrantID(id), Token: c.Token, Holder: string(holder), Settle: time.Duration(settle) * time.Millisecond, Raised: raised, Generation: generation,
		}
		rec.Lower = references(c.Resource, lower, incarnations)
		return rec, nil
	case "ended":
		return rec, fleet.ErrEnded
	case "reset":
		return rec, &tokens.ResetError{Resource: c.Resource, Token: c.Token, Highest: tokens.Token(token), Holder: string(holder), Generation: generation}
	case "stale":
		return rec, &tokens.StaleError{Resource: c.Resource, Token: c.Token, Highest: tokens.Token(token), Holder: string(holder)}
	case "conflict":
		return rec, &tokens.ConflictError{Resource: c.Resource, Token: c.Token, Holder: c.Holder, Bound: string(holder)}
	}
	return rec, fmt.Errorf("the database answered %q to a raise", outcome)
}

// ceil is in ms, and never shorter than asked for.
func ceil(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func references(resource string, ids, incarnations []int64) (refs []fleet.GrantRef) {
	for i, id := range ids {
		refs = append(refs, fleet.GrantRef{ID: tokens.GrantID(id), Resource: resource, Incarnation: incarnations[i]})
	}
	return refs
}

// others takes an incarnation's own grant out of some; 0 if there is none.
func others(refs []fleet.GrantRef, incarnation int64) (left []fleet.GrantRef, own tokens.GrantID) {
	for _, ref := range refs {
		if ref.Incarnation == incarnation {
			own = ref.ID
		} else {
			left = append(left, ref)
		}
	}
	return left, own
}

// RecordReset implements [fleet.Store].
func (s *store) RecordReset(ctx context.Context, incarnation int64, resource string, t tokens.Token) (e tokens.Entry, rec fleet.Recorded, err error) {
	var outcome string
	var generation, at int64
	var lower, incarnations []int64
	err = write(ctx, s.calls, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, resetSQL, incarnation, []byte(resource), int64(t)).Scan(&outcome, &generation, &at, &lower, &incarnations)
	})
	switch {
	case err != nil:
		return e, rec, fmt.Errorf("reset %q: %w", resource, err)
	case outcome == "ended":
		return e, rec, fleet.ErrEnded
	}
	rec.Lower, rec.Grant.ID = others(references(resource, lower, incarnations), incarnation)
	return tokens.Entry{Resource: resource, Token: t, Generation: generation, RaisedAt: time.UnixMilli(at)}, rec, nil
}

// Standing implements [fleet.Store]. A grant that is waited for stays revoked until it is gone: there is nothing to see to anew.
func (s *store) Standing(ctx context.Context, grants []fleet.GrantRef) (standing []fleet.GrantRef, err error) {
	ids := make([]int64, len(grants))
	for i, g := range grants {
		ids[i] = int64(g.ID)
	}
	there := make(map[tokens.GrantID]bool)
	err = s.query(ctx, func(rows pgx.Rows) error {
		var id int64
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error { there[tokens.GrantID(id)] = true; return nil })
		return err
	}, standingSQL, ids)
	if err != nil {
		return nil, err
	}
	for _, g := range grants {
		if there[g.ID] {
			standing = append(standing, g)
		}
	}
	return standing, nil
}

// removeAtOnce is how many grants are removed in one transaction: a proxy that stops gives all of its own back.
const removeAtOnce = 5000

// Remove implements [fleet.Store]. Each of the grants is gone for itself: what it has removed when it fails stays removed.
func (s *store) Remove(ctx context.Context, ids ...tokens.GrantID) error {
	for len(ids) > 0 {
		some := make([]int64, min(len(ids), removeAtOnce))
		for i := range some {
			some[i] = int64(ids[i])
		}
		ids = ids[len(some):]
		err := write(ctx, s.calls, func(conn *pgx.Conn) error {
			var removed int64
			return conn.QueryRow(ctx, removeSQL, some).Scan(&removed)
		})
		if err != nil {
			return fmt.Errorf("give grants back: %w", err)
		}
	}
	return nil
}
