package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

const (
	joinSQL = "SELECT outcome, coalesce(given, 0) FROM fenceproxy.enter($1, $2, $3)"
	beatSQL = "UPDATE fenceproxy.instances SET beat = beat + 1 WHERE incarnation = $1 RETURNING beat"

	// One statement: nobody ends between the two.
	peersSQL = `
SELECT incarnation, beat, lease_ms, true FROM fenceproxy.instances
UNION ALL SELECT incarnation, 0, 0, false FROM fenceproxy.ended`
	revokedSQL = `
SELECT g.id, f.resource, f.generation, f.token, f.holder, f.access_key, f.raised_at
FROM fenceproxy.grants g JOIN fenceproxy.fences f ON f.resource = g.resource WHERE g.incarnation = $1 AND g.revoked`
	epochSQL   = "SELECT map_epoch FROM fenceproxy.counters"
	adoptedSQL = "SELECT id FROM fenceproxy.adopted WHERE id <> ''"

	endSQL = `
WITH gone AS (DELETE FROM fenceproxy.instances WHERE incarnation = $1 AND ($2 = 0 OR beat = $2) RETURNING incarnation, map_epoch)
INSERT INTO fenceproxy.ended SELECT incarnation, map_epoch FROM gone`
	sweepSQL = "SELECT removed, next_ms FROM fenceproxy.sweep($1, $2, $3)"
)

// Join implements [fleet.Store].
func (s *store) Join(ctx context.Context, lease time.Duration, epoch int64) (incarnation int64, err error) {
	s.mu.Lock()
	life := s.life
	s.mu.Unlock()
	var outcome string
	err = write(ctx, s.beats, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, joinSQL, life, lease.Milliseconds(), epoch).Scan(&outcome, &incarnation)
	})
	if err != nil {
		return 0, err
	}
	switch outcome {
	case "joined":
		s.note(lastBeat{incarnation, 1})
		return incarnation, nil
	case "remapped":
		return 0, fleet.ErrRemapped
	case "draining":
		return 0, fleet.ErrDraining
	case "restored":
		return 0, errOtherLife
	}
	return 0, fmt.Errorf("the database answered %q to a join", outcome)
}

// note remembers what was acknowledged.
func (s *store) note(b lastBeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked = b
}

// Beat implements [fleet.Store]. It is one round trip. The beat comes last in it: what we see is then no older than our beat for others.
func (s *store) Beat(ctx context.Context, incarnation int64) (v fleet.View, err error) {
	var beat int64
	err = write(ctx, s.beats, func(conn *pgx.Conn) error {
		return s.look(ctx, conn, incarnation, &v, func(b *pgx.Batch) {
			b.Queue(beatSQL, incarnation).QueryRow(func(row pgx.Row) error {
				err := row.Scan(&beat)
				if errors.Is(err, pgx.ErrNoRows) {
					return fleet.ErrEnded
				}
				return err
			})
		})
	})
	if err != nil {
		return fleet.View{}, err
	}
	s.note(lastBeat{incarnation, beat})
	return v, nil
}

// Look implements [fleet.Store].
func (s *store) Look(ctx context.Context) (v fleet.View, err error) {
	err = s.beats.AcquireFunc(ctx, func(c conn) error { return s.look(ctx, c.Conn(), 0, &v, func(*pgx.Batch) {}) })
	return v, err
}

// look asks for everything in one round trip.
func (s *store) look(ctx context.Context, conn *pgx.Conn, incarnation int64, v *fleet.View, more func(*pgx.Batch)) error {
	var b pgx.Batch
	b.Queue(peersSQL).Query(func(rows pgx.Rows) error {
		var p fleet.Peer
		var lease int64
		var alive bool
		_, err := pgx.ForEachRow(rows, []any{&p.Incarnation, &p.Beat, &lease, &alive}, func() error {
			if !alive {
				v.Ended = append(v.Ended, p.Incarnation)
				return nil
			}
			p.Lease = time.Duration(lease) * time.Millisecond
			v.Alive = append(v.Alive, p)
			return nil
		})
		return err
	})
	b.Queue(revokedSQL, incarnation).Query(func(rows pgx.Rows) error {
		var id int64
		var e fence
		_, err := pgx.ForEachRow(rows, append([]any{&id}, e.fields()...), func() error {
			v.Revoked = append(v.Revoked, tokens.Revocation{ID: tokens.GrantID(id), Entry: e.entry()})
			return nil
		})
		return err
	})
	b.Queue(epochSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&v.Mapping) })
	b.Queue(adoptedSQL).Query(func(rows pgx.Rows) error {
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err == nil {
			s.setAdopted(ids)
		}
		return err
	})
	more(&b)
	return conn.SendBatch(ctx, &b).Close()
}

// Expel implements [fleet.Store].
func (s *store) Expel(ctx context.Context, p fleet.Peer) error {
	_, err := s.end(ctx, p.Incarnation, p.Beat)
	return err
}

// Leave implements [fleet.Store].
func (s *store) Leave(ctx context.Context, incarnation int64) error {
	ended, err := s.end(ctx, incarnation, 0)
	if err == nil && !ended {
		err = fleet.ErrEnded
	}
	return err
}

// end waits for the raises of the incarnation that are being recorded: they hold its row. Those that come later find none. beat is 0 where any will do.
func (s *store) end(ctx context.Context, incarnation, beat int64) (ended bool, err error) {
	err = write(ctx, s.beats, func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, endSQL, incarnation, beat)
		ended = tag.RowsAffected() > 0
		return err
	})
	return ended, err
}

// sweepAtOnce is how many grants are removed in one transaction: a silent instance may leave a great many.
const sweepAtOnce = 5000

// Sweep implements [fleet.Store]. It goes beside the beats. What it has removed when it fails has settled and stays removed.
func (s *store) Sweep(ctx context.Context, incarnation int64, settled time.Duration) (next time.Duration, err error) {
	for {
		var removed, ms int64
		err := write(ctx, s.calls, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, sweepSQL, incarnation, settled.Milliseconds(), sweepAtOnce).Scan(&removed, &ms)
		})
		if err != nil || removed < sweepAtOnce {
			return time.Duration(ms) * time.Millisecond, err
		}
	}
}
