package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// Repair implements [tokens.Maintained].
func (r *Registry) Repair(ctx context.Context) (state tokens.Repair, err error) {
	err = r.maintain(ctx, "look how far a rebuild has come", func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, "SELECT state FROM fenceproxy.repair").Scan((*string)(&state))
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return err
	})
	return state, err
}

// SetRepair implements [tokens.Maintained].
func (r *Registry) SetRepair(ctx context.Context, state tokens.Repair) error {
	return r.maintain(ctx, "record how far a rebuild has come", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM fenceproxy.repair"); err != nil || state == tokens.RepairNone {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO fenceproxy.repair VALUES ($1)", string(state))
		return err
	})
}

// RaiseTo implements [tokens.Maintained].
func (r *Registry) RaiseTo(ctx context.Context, marks map[string]tokens.Mark, at time.Time) (raised int64, err error) {
	var resources [][]byte
	var highest, generations []int64
	for resource, m := range marks {
		resources = append(resources, []byte(resource))
		highest = append(highest, int64(m.Token))
		generations = append(generations, m.Generation)
	}
	err = r.maintain(ctx, "record marks", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT fenceproxy.raise_to($1, $2, $3, $4)", resources, highest, generations, at.UnixMilli()).Scan(&raised)
	})
	if err != nil {
		return 0, err
	}
	return raised, nil
}

const highestSQL = `
SELECT resource, token FROM (SELECT resource, token FROM fenceproxy.fences UNION ALL SELECT resource, issued FROM fenceproxy.locks) t
WHERE token > $1 ORDER BY token DESC LIMIT 1`

// errOthers says that there are instances which would go on with tokens from before.
var errOthers = errors.New("nothing was raised: proxies are running over this registry, and would go on with the tokens from before. Stop them first")

// RaiseAll implements [tokens.Maintained]. Where instances are on record it waits for a lease first, and fails if one of them is alive.
//
// Opened with AcceptRestored it takes the registry into use again: it waits for a lease, in which instances that this state of the registry has never heard of
// find out that they are over; it ends all that it has heard of, so that their grants have to settle, and keeps those that still run out until they are
// started anew. [Registry.LastAdopted] tells when that was: writes may be under way under grants that were forgotten.
func (r *Registry) RaiseAll(ctx context.Context, by tokens.Token) (raised int64, err error) {
	if by < 1 {
		return 0, fmt.Errorf("tokens are raised by 1 or more, not by %d", by)
	}
	silent, err := r.waitSilent(ctx)
	if err != nil {
		return 0, err
	}
	err = r.maintain(ctx, "raise all tokens", func(tx pgx.Tx) error {
		// Nobody joins from here on: that locks this row, too.
		if _, err := tx.Exec(ctx, "SELECT FROM fenceproxy.registry FOR UPDATE"); err != nil {
			return err
		}
		if err := r.endAll(ctx, tx, silent); err != nil {
			return err
		}
		over := &tokens.OverflowError{By: by}
		var resource []byte
		err := tx.QueryRow(ctx, highestSQL, int64(tokens.Max-by)).Scan(&resource, (*int64)(&over.Token))
		if err == nil {
			over.Resource = string(resource)
			return over
		} else if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if _, err := tx.Exec(ctx, issuedSeenSQL); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "UPDATE fenceproxy.fences SET token = token + $1, holder = '', access_key = '', raised_at = fenceproxy.now_ms() WHERE token > 0", int64(by))
		if err != nil {
			return err
		}
		raised = tag.RowsAffected()
		if _, err := tx.Exec(ctx, raiseLocksSQL, int64(by)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "DELETE FROM fenceproxy.repair WHERE state = $1", string(tokens.RepairMargin))
		return err
	})
	if err != nil {
		return 0, err
	}
	return raised, nil
}

// waitSilent watches the instances on record for a whole lease, and returns those that had no beat in it. It fails as soon as one had, unless the
// registry is taken into use again.
func (r *Registry) waitSilent(ctx context.Context) (map[int64]fleet.Peer, error) {
	accept := r.store.options.AcceptRestored
	silent, wait, err := r.alive(ctx)
	if accept {
		wait = max(wait, r.store.options.Lease)
	}
	for end := time.Now().Add(wait); err == nil && time.Now().Before(end); {
		select {
		case <-time.After(min(time.Until(end), wait/10)):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		var now map[int64]fleet.Peer
		if now, _, err = r.alive(ctx); err != nil {
			break
		}
		for incarnation, p := range now {
			if was, known := silent[incarnation]; !accept && (!known || was.Beat != p.Beat) {
				return nil, errOthers
			}
		}
	}
	return silent, err
}

// alive are the instances on record, and the longest of their leases.
func (r *Registry) alive(ctx context.Context) (peers map[int64]fleet.Peer, lease time.Duration, err error) {
	v, err := r.store.Look(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: look for instances: %w", tokens.ErrUnavailable, err)
	}
	peers = make(map[int64]fleet.Peer)
	for _, p := range v.Alive {
		peers[p.Incarnation] = p
		lease = max(lease, p.Lease)
	}
	return peers, lease, nil
}

// endAll ends the instances on record, and fails if one has had a beat.
func (r *Registry) endAll(ctx context.Context, tx pgx.Tx, silent map[int64]fleet.Peer) error {
	if r.store.options.AcceptRestored {
		return r.store.acceptRestored(ctx, tx)
	}
	for _, incarnation := range slices.Sorted(maps.Keys(silent)) {
		if _, err := tx.Exec(ctx, endSQL, incarnation, silent[incarnation].Beat); err != nil {
			return err
		}
	}
	var left int64
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM fenceproxy.instances").Scan(&left); err != nil {
		return err
	}
	if left > 0 {
		return errOthers
	}
	return nil
}

// acceptRestored takes the registry into use where it is now. Numbers that were given out and forgotten are not given out again.
func (s *store) acceptRestored(ctx context.Context, tx pgx.Tx) error {
	if err := s.recordIdentity(ctx, tx); err != nil {
		return err
	}
	for _, statement := range []string{
		"WITH gone AS (DELETE FROM fenceproxy.instances RETURNING incarnation, map_epoch) INSERT INTO fenceproxy.ended SELECT incarnation, map_epoch FROM gone",
		"UPDATE fenceproxy.counters SET incarnation = incarnation + 1000000000",
		"SELECT setval('fenceproxy.grant_ids', nextval('fenceproxy.grant_ids') + 1000000000000)",
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return recordReplaced(ctx, tx)
}
