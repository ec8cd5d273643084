package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// oldest is the first version of PostgreSQL that this runs on: it numbers transactions with pg_current_xact_id.
const oldest = 13

// maxConns is how many raises may be under way at once, unless the DSN has pool_max_conns.
const maxConns = 16

var errDSN = errors.New("the DSN of the token registry cannot be read. It has the form postgres://USER:PASSWORD@HOST:5432/DATABASE?sslmode=verify-full, " +
	"with percent signs for characters such as / @ : # in user and password (%2F %40 %3A %23), or user=… password=… host=… port=… dbname=…")

// configure reads the DSN, and sets what must hold of every connection.
func (s *store) configure() (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(s.options.DSN)
	if err != nil {
		return nil, errDSN // what the parser says may quote a piece of the password
	}
	if !strings.Contains(s.options.DSN, "pool_max_conns") {
		config.MaxConns = maxConns
	}
	// No call goes on in the database for longer than its caller waits: what takes effect late is what nobody has reckoned with.
	call := max(s.options.Lease/2, time.Second) * 9 / 10
	params := config.ConnConfig.RuntimeParams
	if params["synchronous_commit"] != "remote_apply" { // which waits for even more
		params["synchronous_commit"] = "on"
	}
	params["application_name"] = "fenceproxy"
	params["search_path"] = "pg_catalog" // every name of ours says its schema
	params["default_transaction_isolation"] = "read committed"
	params["statement_timeout"] = milliseconds(call)
	params["lock_timeout"] = milliseconds(call * 9 / 10)
	params["idle_in_transaction_session_timeout"] = milliseconds(call)
	// An instance that is cut off in the midst of a call holds locks until the server has noticed.
	params["tcp_user_timeout"] = milliseconds(s.options.Lease)
	params["tcp_keepalives_idle"] = strconv.Itoa(max(1, int(s.options.Lease/2/time.Second)))
	params["tcp_keepalives_interval"] = "1"
	params["tcp_keepalives_count"] = "5"

	config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	if config.ConnConfig.ConnectTimeout == 0 || config.ConnConfig.ConnectTimeout > call {
		config.ConnConfig.ConnectTimeout = call
	}
	config.ConnConfig.OnNotice = markUnsure
	config.ConnConfig.Tracer = s.options.tracer
	config.AfterConnect = s.admit
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // it would double the time of a raise
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return !hungUp(conn.PgConn().Conn()), nil }
	return config, nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// admit checks a new connection before anything is asked over it, and prepares what a raise needs, so that it takes one round trip.
func (s *store) admit(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, max(s.options.Lease/2, time.Second))
	defer cancel()
	if err := checkSettings(ctx, conn); err != nil {
		return err
	}
	if err := s.identify(ctx, conn); err != nil {
		return err
	}
	for _, text := range []string{recordSQL, removeSQL, standingSQL, lookupSQL, joinSQL, lockSQL, swapSQL} {
		if _, err := conn.Prepare(ctx, text, text); err != nil {
			return err
		}
	}
	return nil
}

// checkSettings refuses a server that would acknowledge what it has not written.
func checkSettings(ctx context.Context, conn *pgx.Conn) error {
	var version int
	var fsync, fullPageWrites, commit string
	err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('fsync'), current_setting('full_page_writes'),
		current_setting('synchronous_commit')`).Scan(&version, &fsync, &fullPageWrites, &commit)
	switch {
	case err != nil:
		return err
	case version < oldest*10000:
		return fmt.Errorf("the server is PostgreSQL %d, and %d is the oldest that this runs on", version/10000, oldest)
	case fsync != "on":
		return errors.New("the server runs with fsync = off, and would lose tokens with its power: set `fsync = on` in postgresql.conf and reload it")
	case fullPageWrites != "on":
		return errors.New("the server runs with full_page_writes = off, and could lose tokens with its power: set `full_page_writes = on` in postgresql.conf and reload it")
	case commit != "on" && commit != "remote_apply":
		return fmt.Errorf("synchronous_commit is %s on this connection, although it was asked to be on: connect without what changes settings on the way", commit)
	}
	return nil
}

// unsure is set in the custom data of a connection whose last commit may not be on its standby.
const unsure = "unsure"

// markUnsure hears the one warning that the server gives in place of an error: it has committed, but was kept from waiting for the standby.
func markUnsure(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Code == "01000" {
		conn.CustomData()[unsure] = n.Message
	}
}

var errUnsure = errors.New("the database was kept from waiting for its synchronous standby, so that a failover may undo what was written")

// write calls f over a connection of the pool and fails if what it wrote may be lost with the server.
func write(ctx context.Context, pool *pgxpool.Pool, f func(*pgx.Conn) error) error {
	return pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return sure(c.Conn(), f) })
}

// sure calls f and fails if what it wrote may be lost with the server.
func sure(conn *pgx.Conn, f func(*pgx.Conn) error) error {
	data := conn.PgConn().CustomData()
	delete(data, unsure)
	if err := f(conn); err != nil {
		return err
	}
	if data[unsure] != nil {
		return errUnsure
	}
	return nil
}

// long runs f in one transaction that may take its time: for operators and upgrades.
func long(ctx context.Context, conn *pgx.Conn, f func(pgx.Tx) error) error {
	return sure(conn, func(conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for _, setting := range []string{"statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"} {
				if _, err := tx.Exec(ctx, "SELECT set_config($1, '10min', true)", setting); err != nil {
					return err
				}
			}
			return f(tx)
		})
	})
}
