package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const settings = `SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_standby_names'), pg_is_in_recovery(),
	current_setting('server_version_num')::int,
	(SELECT count(*) FROM pg_stat_replication), (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
	(SELECT count(*) FROM pg_stat_replication WHERE sync_state IS NULL)`

// Check implements [locks.Checker]. It does not see that a backup is restored over the server, as a copy of its files: that is the same timeline.
func (s *Service) Check(ctx context.Context) (found []string, err error) {
	config := s.config.Copy()
	config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil { // it may be that there are only standbys
		conn, err = pgx.ConnectConfig(ctx, s.config.Copy())
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	defer hangUp(conn)
	var fsync, pages, names string
	var recovery bool
	var version, standbys, synchronous, hidden int
	if err := conn.QueryRow(ctx, settings).Scan(&fsync, &pages, &names, &recovery, &version, &standbys, &synchronous, &hidden); err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	say := func(is bool, format string, args ...any) {
		if is {
			found = append(found, fmt.Sprintf(format, args...))
		}
	}
	say(version < oldest*10000, "The server is version %d, which never ends the session of a paused holder: no lock is taken from it. Version %d does.", version/10000, oldest)
	say(recovery, "The server is a standby, which gives no locks, and no other in the URL is a primary: name that, too.")
	say(fsync != "on", "The server runs with fsync = off: it loses what it has committed with its power, and gives those tokens again. Set fsync = on and reload it.")
	say(pages != "on", "The server runs with full_page_writes = off, and may lose pages with its power. Set full_page_writes = on and reload it.")
	say(hidden > 0, "Whether the server's %d standbys are synchronous could not be found out: GRANT pg_read_all_stats TO %s.", standbys, s.config.User)
	say(hidden == 0 && standbys > synchronous && synchronous == 0, "None of the server's %d standbys is a synchronous one: one that is promoted may not have the last tokens. "+
		"Then the next one is a million higher; so that it need not be, set synchronous_standby_names.", standbys)
	say(names != "" && hidden == 0 && synchronous == 0, "synchronous_standby_names is %q, and no such standby is there: the lock cannot be taken until one is.", names)
	return found, nil
}
