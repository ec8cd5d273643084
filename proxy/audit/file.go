package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
)

// A fileStore is an audit log in a SQLite file of its own, for one process.
type fileStore struct {
	db *sqlitedb.DB
}

// OpenFile opens the audit log in the file at path and makes it where there is none. It fails as sqlitedb.Open does.
func OpenFile(ctx context.Context, path string) (Store, error) {
	db, _, err := sqlitedb.Open(ctx, path, schema, true)
	if err != nil {
		return nil, err
	}
	return fileStore{db}, nil
}

// Open is [New] over [OpenFile].
func Open(ctx context.Context, path string, o Options) (*Log, error) {
	s, err := OpenFile(ctx, path)
	if err != nil {
		return nil, err
	}
	return New(s, o), nil
}

// schema: times are Unix milliseconds. Every index ends in the time (and SQLite adds the id), so that a filter walks one of them
// backwards and stops at its limit.
var schema = sqlitedb.Schema{
	ApplicationID: 0x66704175, // "fpAu"
	Name:          "audit log",
	Versions: []string{`
		CREATE TABLE record (
			id         INTEGER PRIMARY KEY AUTOINCREMENT,
			time       INTEGER NOT NULL,
			last       INTEGER NOT NULL,
			count      INTEGER NOT NULL,
			kind       TEXT NOT NULL,
			code       TEXT NOT NULL,
			bucket     TEXT NOT NULL,
			key        TEXT NOT NULL,
			operation  TEXT NOT NULL,
			resource   TEXT NOT NULL,
			token      INTEGER NOT NULL,
			highest    INTEGER NOT NULL,
			holder     TEXT NOT NULL,
			access_key TEXT NOT NULL,
			client     TEXT NOT NULL,
			user_agent TEXT NOT NULL,
			request_id TEXT NOT NULL,
			detail     TEXT NOT NULL
		) STRICT;
		CREATE INDEX record_time ON record (time);
		CREATE INDEX record_kind ON record (kind, time);
		CREATE INDEX record_code ON record (code, time);
		CREATE INDEX record_bucket ON record (bucket, time);
		CREATE INDEX record_resource ON record (resource, time);
		CREATE INDEX record_access_key ON record (access_key, time);
		CREATE INDEX record_refusals ON record (resource, count) WHERE kind = 'refusal';`},
}

const columns = `time, last, count, kind, code, bucket, key, operation, resource, token, highest, holder, access_key, client,
	user_agent, request_id, detail`

const insertRecord = `INSERT INTO record (` + columns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// Insert implements [Store].
func (s fileStore) Insert(ctx context.Context, r Record) (int64, error) {
	var id int64
	err := s.db.Write(ctx, func(tx *sqlitedb.Tx) (err error) {
		id, err = insertTx(tx, r)
		return err
	})
	if err != nil {
		return 0, err // and id may still be written to
	}
	return id, nil
}

func insertTx(tx *sqlitedb.Tx, r Record) (int64, error) {
	res, err := tx.Exec(insertRecord, r.Time.UnixMilli(), r.Last.UnixMilli(), r.Count, r.Kind, r.Code, r.Bucket, r.Key, r.Operation,
		r.Resource, r.Token, r.Highest, r.Holder, r.AccessKey, r.Client, r.UserAgent, r.RequestID, r.Detail)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

func scan(rows *sql.Rows) (r Record, err error) {
	var first, last int64
	err = rows.Scan(&r.ID, &first, &last, &r.Count, &r.Kind, &r.Code, &r.Bucket, &r.Key, &r.Operation, &r.Resource, &r.Token,
		&r.Highest, &r.Holder, &r.AccessKey, &r.Client, &r.UserAgent, &r.RequestID, &r.Detail)
	r.Time, r.Last = time.UnixMilli(first).UTC(), time.UnixMilli(last).UTC()
	return r, err
}

// Write implements [Store]. It cannot be cut short, so that a failed one has written nothing, and the file does not keep what names an event.
func (s fileStore) Write(ctx context.Context, counts []Count, records []Record) error {
	return s.db.Write(context.WithoutCancel(ctx), func(tx *sqlitedb.Tx) error {
		for _, c := range counts {
			if _, err := tx.Exec(`UPDATE record SET count = ?, last = ? WHERE id = ?`, c.Count, c.Last.UnixMilli(), c.ID); err != nil {
				return err
			}
		}
		for _, r := range records {
			if _, err := insertTx(tx, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// Search implements [Store].
func (s fileStore) Search(ctx context.Context, q Search) ([]Record, error) {
	query, args := searchSQL(q)
	rows, err := s.db.Reader().QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var records []Record
	for rows.Next() {
		r, err := scan(rows)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, rows.Err()
}

func searchSQL(q Search) (query string, args []any) {
	var where []string
	add := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	for _, c := range []struct{ column, value string }{
		{"kind", q.Kind}, {"code", q.Code}, {"bucket", q.Bucket}, {"resource", q.Resource}, {"access_key", q.AccessKey},
	} {
		if c.value != "" {
			add(c.column+" = ?", c.value)
		}
	}
	if !q.LastFrom.IsZero() {
		add("time >= ? AND last >= ?", q.BeganFrom.UnixMilli(), q.LastFrom.UnixMilli())
	}
	if !q.BeganBefore.IsZero() {
		add("time < ?", q.BeganBefore.UnixMilli())
	}
	if q.Behind != nil {
		add("(time, id) < (?, ?)", q.Behind.Time.UnixMilli(), q.Behind.ID)
	}
	query = "SELECT id, " + columns + " FROM record"
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	return query + " ORDER BY time DESC, id DESC LIMIT ?", append(args, q.Limit)
}

const countRefusals = `SELECT resource, sum(count) FROM record INDEXED BY record_refusals
	WHERE kind = 'refusal' AND resource IN (SELECT value FROM json_each(?)) GROUP BY resource`

// Refusals implements [Store].
func (s fileStore) Refusals(ctx context.Context, resources []string) (map[string]int64, error) {
	list, err := json.Marshal(resources)
	if err != nil {
		return nil, err
	}
	rows, err := s.db.Reader().QueryContext(ctx, countRefusals, string(list))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	sums := map[string]int64{}
	for rows.Next() {
		var resource string
		var sum int64
		if err := rows.Scan(&resource, &sum); err != nil {
			return nil, err
		}
		sums[resource] = sum
	}
	return sums, rows.Err()
}

// Remove implements [Store].
func (s fileStore) Remove(ctx context.Context, before time.Time, limit int) (removed int64, err error) {
	err = s.db.Write(context.WithoutCancel(ctx), func(tx *sqlitedb.Tx) error {
		res, err := tx.Exec(`DELETE FROM record WHERE id IN
			(SELECT id FROM record WHERE time < ?1 AND last < ?1 ORDER BY time LIMIT ?2)`, before.UnixMilli(), limit)
		if err != nil {
			return err
		}
		removed, err = res.RowsAffected()
		return err
	})
	return removed, err
}

// Shared implements [Store]: the file has one process.
func (s fileStore) Shared() bool { return false }

// Close implements [Store].
func (s fileStore) Close() error { return s.db.Close() }
