package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A session is a connection that a lock lives on.
type session struct {
	service *Service
	conn    *pgx.Conn     // for who has the turn
	turn    chan struct{} // has room for one
	life    context.Context
	stop    context.CancelFunc // ends life
	once    sync.Once          // of end
}

var errClosed = errors.New("the lock's service was closed")

// oldest is the first version of PostgreSQL that this runs on: it ends idle sessions.
const oldest = 14

// connect opens a session that the server ends when it has heard nothing for the TTL. No transaction is ever left open in one, for then
// that does not count.
func (s *Service) connect(ctx context.Context, ttl time.Duration) (_ *session, err error) {
	config := s.config.Copy()
	config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	defer func() {
		if err != nil {
			hangUp(conn)
		}
	}()
	if err := prepare(ctx, conn, ttl); err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	open := &session{service: s, conn: conn, turn: make(chan struct{}, 1)}
	open.life, open.stop = context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		open.stop()
		return nil, errClosed
	}
	s.sessions[open] = struct{}{}
	return open, nil
}

func prepare(ctx context.Context, conn *pgx.Conn, ttl time.Duration) error {
	var version int
	var pid uint32
	err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int, pg_backend_pid()").Scan(&version, &pid)
	switch {
	case err != nil:
		return err
	case version < oldest*10000:
		return fmt.Errorf("the server is version %d, and %d is the first that ends the session of a holder that is paused (idle_session_timeout): "+
			"take the lock from a newer server", version/10000, oldest)
	case pid != conn.PgConn().PID():
		return errors.New("between us and the server is a pooler of connections (PgBouncer or the like), which gives one session to many clients: " +
			"a lock lives by its session, so name the server itself in the lock's URL")
	}
	var there bool
	err = conn.QueryRow(ctx, `SELECT to_regclass('public.fenceproxy_locks') IS NOT NULL,
		set_config('search_path', 'pg_catalog', false), set_config('default_transaction_isolation', 'read committed', false),
		set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
		set_config('idle_session_timeout', $1, false), set_config('lock_timeout', $2, false), set_config('statement_timeout', '0', false)`,
		milliseconds(ttl), milliseconds(patience(ttl))).Scan(&there, nil, nil, nil, nil, nil, nil)
	if err != nil || there {
		return err
	}
	switch _, err := conn.Exec(ctx, table); {
	case err == nil, isCode(err, "23505", "42P07"): // somebody makes it at the same moment
		return nil
	case isCode(err, "42501"):
		return fmt.Errorf("%w; a user who may make it must:\n%s;\nGRANT SELECT, INSERT, UPDATE ON public.fenceproxy_locks TO …;", err, table)
	default:
		return err
	}
}

// patience is how long the server waits for a lock before it says that it does. Then we wait anew, behind others who do. It would wait
// for a client that is no more, else, and we for a server.
func patience(ttl time.Duration) time.Duration { return min(ttl/3, 5*time.Second) }

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// ask calls f over the connection. If ctx ends first, f goes on, by the time that it takes itself, and the next one who asks waits for it: a
// question that is given up costs nobody the session.
func (o *session) ask(ctx context.Context, f func(context.Context) error) error {
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("PostgreSQL has not answered: %w", context.Cause(ctx))
	}
	if err := context.Cause(ctx); err != nil {
		<-o.turn
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-o.turn }()
		done <- f(o.life)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("PostgreSQL has not answered: %w", context.Cause(ctx))
	}
}

// row asks for one row. A statement that takes longer is cancelled.
func (o *session) row(ctx context.Context, limit time.Duration, to []any, statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := o.conn.QueryRow(ctx, statement, args...).Scan(to...); err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	return nil
}

// end closes the connection, and what is under way on it.
func (o *session) end() {
	o.once.Do(func() {
		o.stop()
		o.turn <- struct{}{}
		hangUp(o.conn)
		<-o.turn
		o.service.mu.Lock()
		defer o.service.mu.Unlock()
		delete(o.service.sessions, o)
	})
}
