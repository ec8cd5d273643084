package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// querier is a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, text string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
}

// What the server is now, as the registry's row has it from when it was written. A transaction's number is the xmin of what it writes, and is
// not used twice on one cluster before four thousand million others; VACUUM leaves it, a dump does not have it.
const (
	systemNow      = "(SELECT system_identifier FROM pg_control_system())"
	timelineNow    = "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint"
	transactionNow = "(pg_current_xact_id()::text::numeric % 4294967296)::bigint"
)

const identitySQL = `
SELECT r.id, r.life, r.system, r.timeline, r.written_by, r.xmin::text::bigint, ` + systemNow + `, ` + timelineNow + `,
	(SELECT max(c.incarnation) FROM fenceproxy.counters c), (SELECT i.beat FROM fenceproxy.instances i WHERE i.incarnation = $1)
FROM fenceproxy.registry r`

// identity is what is on record of the registry, and what is found.
type identity struct {
	id, life                    string
	system, timeline, writtenBy int64 // on record
	xmin, systemIs, timelineIs  int64 // found
	incarnation                 int64 // the last one that was given out
	beat                        *int64
}

func readIdentity(ctx context.Context, q querier, own int64) (is identity, err error) {
	err = q.QueryRow(ctx, identitySQL, own).Scan(&is.id, &is.life, &is.system, &is.timeline, &is.writtenBy, &is.xmin, &is.systemIs, &is.timelineIs,
		&is.incarnation, &is.beat)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = fmt.Errorf("%w: it has lost its id: restore the database from a backup", tokens.ErrUnavailable)
	case isCode(err, "42P01", "3F000"): // no such table, no such schema
		err = fmt.Errorf("%w: %w", tokens.ErrUnavailable, ErrMissing)
	}
	return is, err
}

func isCode(err error, codes ...string) bool {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false
	}
	for _, code := range codes {
		if pe.Code == code {
			return true
		}
	}
	return false
}

const (
	raiseMarks = "Run `fenceproxy raise --all-by N`, with N larger than the number of tokens that were handed out for any one resource since the state that is there now " +
		"(1 if nothing can be missing), and start every proxy anew"
	saySynchronous = "If a synchronous standby was promoted, so that nothing is missing, say `failover: synchronous` in the registry's configuration. Else: "
)

// forgotten says why the database may not be the one that the registry was written on; nil if it is. newer says that it is that one on a newer
// timeline, which only the operator can vouch for.
func (is identity) forgotten(acked lastBeat) (newer bool, err error) {
	switch {
	case is.system != is.systemIs:
		return false, fmt.Errorf("%w: the registry was written on database cluster %d, and this is cluster %d: it was restored from a dump, or moved. %s", ErrRestored, is.system, is.systemIs, raiseMarks)
	case is.writtenBy != is.xmin:
		return false, fmt.Errorf("%w: the registry is a copy: it was restored from a dump. %s", ErrRestored, raiseMarks)
	case is.timelineIs < is.timeline:
		return false, fmt.Errorf("%w: the registry was written on timeline %d of the database, and this server is on the older timeline %d. "+
			"Connect to the server that has taken this one's place, or, if it is lost: %s", ErrRestored, is.timeline, is.timelineIs, raiseMarks)
	case acked.incarnation > is.incarnation, acked.incarnation != 0 && is.beat != nil && *is.beat < acked.beat:
		return false, fmt.Errorf("%w: it does not know what it has acknowledged to this proxy: an older state of it was restored, or a standby promoted that was behind. %s", ErrRestored, raiseMarks)
	case is.timelineIs > is.timeline:
		return true, fmt.Errorf("%w: the registry was written on timeline %d of the database, and this server is on timeline %d: a standby was promoted, or a backup restored. %s%s",
			ErrRestored, is.timeline, is.timelineIs, saySynchronous, raiseMarks)
	}
	return false, nil
}

// identify refuses a database that may have forgotten what it acknowledged. It asks what it was told last before it looks: nothing that comes
// later can be missed.
func (s *store) identify(ctx context.Context, q querier) error {
	s.mu.Lock()
	acked, life, timeline := s.acked, s.life, s.timeline
	s.mu.Unlock()
	is, err := readIdentity(ctx, q, acked.incarnation)
	if err != nil {
		return err
	}
	if s.options.AcceptRestored {
		return nil
	}
	switch newer, err := is.forgotten(acked); {
	case newer && s.options.Failover:
		if err := s.recordFailover(ctx, q, is); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	if life != "" && is.life != life {
		return errOtherLife
	}
	if is.timelineIs < timeline { // its own row knows nothing of the failover
		return fmt.Errorf("%w: this server is on timeline %d of the database, which another one has left behind for timeline %d: shut this one off", ErrRestored, is.timelineIs, timeline)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life, s.timeline = is.life, max(s.timeline, is.timelineIs)
	return nil
}

var errOtherLife = fmt.Errorf("%w: its tokens were raised after it was restored: start this proxy anew", tokens.ErrUnavailable)

// recordFailover takes note of the new timeline. If two do it at once, the second changes nothing.
func (s *store) recordFailover(ctx context.Context, q querier, is identity) error {
	tag, err := q.Exec(ctx, "UPDATE fenceproxy.registry SET timeline = $1, written_by = "+transactionNow+" WHERE timeline < $1", is.timelineIs)
	if err == nil && tag.RowsAffected() > 0 {
		s.log.Warn("the database has failed over to a standby, which is taken for a synchronous one, as the configuration says", "timeline_was", is.timeline, "timeline", is.timelineIs)
	}
	return err
}

// recordIdentity has the registry's row say where it is now, and begins another life: instances that know the earlier one are kept out.
func (s *store) recordIdentity(ctx context.Context, q querier) error {
	life := rand.Text()
	_, err := q.Exec(ctx, "UPDATE fenceproxy.registry SET life = $1, system = "+systemNow+", timeline = "+timelineNow+", written_by = "+transactionNow, life)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life = life
	return nil
}
