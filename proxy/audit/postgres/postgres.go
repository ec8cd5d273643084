// Package postgres keeps the audit log of a fleet in PostgreSQL: every proxy writes its own records, and any of them shows all.
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

	"github.com/fenceproxy/fenceproxy/proxy/audit"
)

const (
	connections = 4                // to the server: the registry has its own, which the audit log must never take
	openTime    = 15 * time.Second // for all that Open does
	callTime    = 10 * time.Second // for a call whose caller sets no shorter time
)

// A Store is a connection pool to one audit log. It implements [audit.Store].
type Store struct {
	pool *pgxpool.Pool
}

// Open opens the audit log in the database that dsn names, and makes it or brings it up to date where that is to be done. Its errors never show dsn.
func Open(ctx context.Context, dsn string) (*Store, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil { // what it says may have a part of a password in it
		return nil, errors.New("the audit log: the connection string of PostgreSQL cannot be read")
	}
	config.MaxConns = connections
	config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	config.ConnConfig.ConnectTimeout = min(nonZero(config.ConnConfig.ConnectTimeout, 5*time.Second), 5*time.Second)
	params := config.ConnConfig.RuntimeParams
	if params["synchronous_commit"] != "remote_apply" { // which waits for even more
		params["synchronous_commit"] = "on"
	}
	for name, value := range map[string]string{
		"application_name": "fenceproxy audit", "default_transaction_isolation": "read committed",
		"statement_timeout": milliseconds(callTime), "lock_timeout": milliseconds(callTime / 2), "idle_in_transaction_session_timeout": milliseconds(callTime),
	} {
		params[name] = value
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the audit log in PostgreSQL: %w", err)
	}
	s := &Store{pool}
	if err := s.upgrade(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open the audit log in PostgreSQL: %w", err)
	}
	return s, nil
}

func nonZero(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Shared implements [audit.Store].
func (s *Store) Shared() bool { return true }

// Close implements [audit.Store].
func (s *Store) Close() error {
	s.pool.Close()
	return nil
}

const columns = `time, last, count, kind, code, bucket, key, operation, resource, token, highest, holder, access_key, client,
	user_agent, request_id, detail, instance`

const insertRecord = `INSERT INTO fenceproxy.audit_record (` + columns + `, event)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, nullif($19, ''))`

func valuesOf(r audit.Record) []any {
	return []any{
		r.Time.UnixMilli(), r.Last.UnixMilli(), r.Count, r.Kind, r.Code, r.Bucket, r.Key, r.Operation, r.Resource, r.Token, r.Highest, r.Holder,
		r.AccessKey, r.Client, r.UserAgent, r.RequestID, r.Detail, r.Instance, r.Event,
	}
}

// Insert implements [audit.Store].
func (s *Store) Insert(ctx context.Context, r audit.Record) (id int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err = s.pool.QueryRow(ctx, insertRecord+" RETURNING id", valuesOf(r)...).Scan(&id)
	return id, err
}

// Write implements [audit.Store]. One batch is one round trip, and without a BEGIN of its own one transaction.
//
// If we crash in the middle, all of it is there or nothing. Where only the answer is lost, the next try finds the counts as they are to be, and the
// records by their events.
func (s *Store) Write(ctx context.Context, counts []audit.Count, records []audit.Record) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var b pgx.Batch
	for _, c := range counts {
		b.Queue("UPDATE fenceproxy.audit_record SET count = $2, last = $3 WHERE id = $1", c.ID, c.Count, c.Last.UnixMilli())
	}
	for _, r := range records {
		b.Queue(insertRecord+" ON CONFLICT (event) DO NOTHING", valuesOf(r)...)
	}
	return s.pool.SendBatch(ctx, &b).Close()
}

// Search implements [audit.Store].
func (s *Store) Search(ctx context.Context, q audit.Search) ([]audit.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	query, args := searchSQL(q)
	rows, err := s.pool.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

func searchSQL(q audit.Search) (query string, args []any) {
	var where []string
	value := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	for _, c := range []struct{ column, value string }{
		{"kind", q.Kind}, {"code", q.Code}, {"bucket", q.Bucket}, {"access_key", q.AccessKey},
	} {
		if c.value != "" {
			where = append(where, c.column+" = "+value(c.value))
		}
	}
	if q.Resource != "" {
		name := value(q.Resource)
		where = append(where, "hashtextextended(resource, 0) = hashtextextended("+name+", 0)", "resource = "+name)
	}
	if !q.LastFrom.IsZero() {
		where = append(where, "time >= "+value(q.BeganFrom.UnixMilli()), "last >= "+value(q.LastFrom.UnixMilli()))
	}
	if !q.BeganBefore.IsZero() {
		where = append(where, "time < "+value(q.BeganBefore.UnixMilli()))
	}
	if q.Behind != nil {
		where = append(where, "(time, id) < ("+value(q.Behind.Time.UnixMilli())+", "+value(q.Behind.ID)+")")
	}
	query = "SELECT id, " + columns + " FROM fenceproxy.audit_record"
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	return query + " ORDER BY time DESC, id DESC LIMIT " + value(q.Limit), args
}

func scan(row pgx.CollectableRow) (r audit.Record, err error) {
	var first, last int64
	err = row.Scan(&r.ID, &first, &last, &r.Count, &r.Kind, &r.Code, &r.Bucket, &r.Key, &r.Operation, &r.Resource, &r.Token, &r.Highest, &r.Holder,
		&r.AccessKey, &r.Client, &r.UserAgent, &r.RequestID, &r.Detail, &r.Instance)
	r.Time, r.Last = time.UnixMilli(first).UTC(), time.UnixMilli(last).UTC()
	return r, err
}

const countRefusals = `SELECT r.resource, sum(r.count)::bigint FROM (SELECT DISTINCT unnest($1::text[]) AS name) AS asked
	JOIN fenceproxy.audit_record AS r ON hashtextextended(r.resource, 0) = hashtextextended(asked.name, 0) AND r.resource = asked.name
	WHERE r.kind = 'refusal' GROUP BY r.resource`

// Refusals implements [audit.Store].
func (s *Store) Refusals(ctx context.Context, resources []string) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	rows, err := s.pool.Query(ctx, countRefusals, resources)
	if err != nil {
		return nil, err
	}
	sums := map[string]int64{}
	var resource string
	var sum int64
	_, err = pgx.ForEachRow(rows, []any{&resource, &sum}, func() error {
		sums[resource] = sum
		return nil
	})
	return sums, err
}

// Remove implements [audit.Store]. Proxies that remove at the same time take different records.
func (s *Store) Remove(ctx context.Context, before time.Time, limit int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	done, err := s.pool.Exec(ctx, `DELETE FROM fenceproxy.audit_record WHERE id IN
		(SELECT id FROM fenceproxy.audit_record WHERE time < $1 AND last < $1 ORDER BY time LIMIT $2 FOR UPDATE SKIP LOCKED)`, before.UnixMilli(), limit)
	return done.RowsAffected(), err
}
