// Package postgres takes a lock of a PostgreSQL server of version 14 or newer: an advisory lock of a session, and a table that counts.
//
//	postgres://user:password@host:5432/database/name[?sslmode=verify-full&…]
//
// What follows the database is the name of the lock; the rest is a URL as libpq and pgx read it.
//
// # The lock
//
// A hold is a connection of its own, which has pg_advisory_lock(hashtextextended('fenceproxy/' || name, 0)). The server lets the lock go with
// the session, at once: there is no TTL that runs on. So a holder whose connection breaks has lost the lock. One that is paused keeps its
// connection, for the kernel answers for it; the server ends the session when it has asked nothing for the TTL (idle_session_timeout, which
// is why it must be version 14). A heartbeat is a question over that same session. Two names with the same hash wait for each other, and no more.
//
// # The token
//
// It is the epoch of the lock's row in the table public.fenceproxy_locks, raised by one in a transaction that is committed, and waited for as
// the server is configured to wait for its standbys, before anybody sees the number. Not a sequence: nextval is not undone with its transaction, but
// neither is it on disk before a commit is, and a server that crashes gives the number again.
//
// What was committed is lost where a standby takes over that did not have it, and where a backup is restored. The row knows on which timeline
// of which database cluster it was written. On another one the epoch leaps by a million, which is more than can be missing; see [Service.Check]
// for what it does not see.
package postgres

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// connectTime is how long it may take to connect to one of the hosts.
const connectTime = 5 * time.Second

// A Service is one lock of a database. It implements [locks.Service] and [locks.Checker].
type Service struct {
	config *pgx.ConnConfig
	name   string

	mu       sync.Mutex // guards the rest
	sessions map[*session]struct{}
	closed   bool
}

var (
	_ locks.Service = (*Service)(nil)
	_ locks.Checker = (*Service)(nil)
)

var errForm = errors.New("the URL of the lock in PostgreSQL cannot be read. It has the form postgres://USER:PASSWORD@HOST:5432/DATABASE/NAME?sslmode=verify-full, " +
	"with percent signs for characters such as / @ : # in user and password (%2F %40 %3A %23)")

// Open reads the URL of a lock; see the package's words for its form. It does not connect.
func Open(text string) (*Service, error) {
	dsn, name, err := split(text)
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errForm // what the parser says may quote a piece of the password
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTime
	}
	config.RuntimeParams["application_name"] = "fenceproxy lock"
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // each statement is asked once or twice: nothing is prepared
	config.OnNotice = markUnsure
	// A call that is given up is cancelled, and its connection goes on: a hold is not lost because one heartbeat was.
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Second}
	}
	return &Service{config: config, name: name, sessions: make(map[*session]struct{})}, nil
}

// split parts the URL of a lock into that of its database and the name.
func split(text string) (dsn, name string, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "postgres" && scheme != "postgresql" {
		return "", "", errForm
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	database, name, _ := strings.Cut(path, "/")
	if name, err = url.PathUnescape(name); err != nil || authority == "" || database == "" || name == "" || strings.ContainsAny(rest+query, "#") || strings.ContainsRune(name, 0) {
		return "", "", errForm
	}
	return "postgres://" + authority + "/" + database + "?" + query, name, nil
}

// Close implements [locks.Service]. The holds that were not released end with their connections, at once.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	var all []*session
	for open := range s.sessions {
		all = append(all, open)
	}
	s.mu.Unlock()
	for _, open := range all {
		open.end()
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

// table makes what is not there, for users who may. For others somebody who may has to; docs/locks.md has it, too.
const table = `CREATE TABLE IF NOT EXISTS public.fenceproxy_locks (
	name text PRIMARY KEY, epoch bigint NOT NULL, holder text NOT NULL, since timestamptz NOT NULL, released boolean NOT NULL, origin text NOT NULL)`

// key is that of the advisory lock, of the name that is $1.
const key = "hashtextextended('fenceproxy/' || $1::text, 0)"

// origin is the database cluster and its timeline.
const origin = "(SELECT system_identifier::text FROM pg_control_system()) || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

// leap is how far an epoch goes on another timeline.
const leap = "1000000"

// advance is the only statement that makes tokens. Nobody else can run it for this name: we have the lock. Its second answer is whether the
// holder before had not released.
const advance = `WITH was AS (SELECT released FROM public.fenceproxy_locks WHERE name = $1)
INSERT INTO public.fenceproxy_locks AS l (name, epoch, holder, since, released, origin) VALUES ($1, 1, $2, clock_timestamp(), false, ` + origin + `)
ON CONFLICT (name) DO UPDATE SET epoch = l.epoch + CASE WHEN l.origin = excluded.origin THEN 1 ELSE ` + leap + ` END,
	holder = excluded.holder, since = excluded.since, released = false, origin = excluded.origin
RETURNING epoch, coalesce((SELECT NOT released FROM was), false)`

const holderOf = "SELECT holder, epoch, since FROM public.fenceproxy_locks WHERE name = $1 AND NOT released"

// standing asks whether the session has the lock, and whether nobody else has counted since.
const standing = `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted),
	EXISTS (SELECT FROM public.fenceproxy_locks WHERE name = $1 AND epoch = $2)`

const mark = `WITH ours AS (UPDATE public.fenceproxy_locks SET released = true WHERE name = $1 AND epoch = $2 RETURNING true)
SELECT EXISTS (SELECT FROM ours)`

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

func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
