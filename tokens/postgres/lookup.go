package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// conn is a connection of a pool.
type conn = *pgxpool.Conn

const (
	fenceColumns = "resource, generation, token, holder, access_key, raised_at"
	lookupSQL    = "SELECT " + fenceColumns + " FROM fenceproxy.fences WHERE resource = $1"

	// The end of the prefix is a bound of the index, not a test of each row: else a page that is not full reads to the end of the table. Where
	// there is no end to it, null is given.
	within   = " WHERE resource >= $1 AND ($2::bytea IS NULL OR resource < $2) AND raised_at IS NOT NULL"
	listSQL  = "SELECT " + fenceColumns + " FROM fenceproxy.fences" + within + " AND resource > $3 ORDER BY resource LIMIT $4"
	countSQL = "SELECT count(*) FROM fenceproxy.fences" + within

	uploadSQL = "SELECT token FROM fenceproxy.uploads WHERE upload = $1"
	touchSQL  = `
INSERT INTO fenceproxy.uploads VALUES ($1, $2)
ON CONFLICT (upload) DO UPDATE SET token = excluded.token WHERE uploads.token < excluded.token`
	forgetSQL = "DELETE FROM fenceproxy.uploads WHERE upload = $1"
)

// fence is a row of the fences.
type fence struct {
	resource, holder, accessKey []byte
	generation, token           int64
	raisedAt                    *int64
}

func (f *fence) fields() []any {
	return []any{&f.resource, &f.generation, &f.token, &f.holder, &f.accessKey, &f.raisedAt}
}

func (f *fence) entry() tokens.Entry {
	e := tokens.Entry{
		Resource: string(f.resource), Token: tokens.Token(f.token), Holder: string(f.holder), AccessKey: string(f.accessKey), Generation: f.generation,
	}
	if f.raisedAt != nil {
		e.RaisedAt = time.UnixMilli(*f.raisedAt)
	}
	return e
}

// query gives f the rows of one question.
func (s *store) query(ctx context.Context, f func(pgx.Rows) error, text string, args ...any) error {
	return s.calls.AcquireFunc(ctx, func(c conn) error {
		rows, err := c.Query(ctx, text, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		return f(rows)
	})
}

// execute runs one statement that writes.
func (s *store) execute(ctx context.Context, text string, args ...any) error {
	return write(ctx, s.calls, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, text, args...)
		return err
	})
}

// Lookup implements [fleet.Store].
func (s *store) Lookup(ctx context.Context, resource string) (tokens.Entry, error) {
	e := tokens.Entry{Resource: resource}
	err := s.calls.AcquireFunc(ctx, func(c conn) error {
		var f fence
		err := c.QueryRow(ctx, lookupSQL, []byte(resource)).Scan(f.fields()...)
		if err == nil {
			e = f.entry()
		} else if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return err
	})
	if err != nil {
		return tokens.Entry{}, fmt.Errorf("look up %q: %w", resource, err)
	}
	return e, nil
}

// List implements [fleet.Store].
func (s *store) List(ctx context.Context, prefix, after string, limit int) (entries []tokens.Entry, err error) {
	err = s.query(ctx, func(rows pgx.Rows) error {
		var f fence
		_, err := pgx.ForEachRow(rows, f.fields(), func() error {
			entries = append(entries, f.entry())
			return nil
		})
		return err
	}, listSQL, []byte(prefix), behind(prefix), []byte(after), limit)
	if err != nil {
		return nil, fmt.Errorf("list resources: %w", err)
	}
	return entries, nil
}

// Count implements [tokens.Maintained].
func (r *Registry) Count(ctx context.Context, prefix string) (n int64, err error) {
	err = r.maintain(ctx, "count resources", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, countSQL, []byte(prefix), behind(prefix)).Scan(&n)
	})
	return n, err
}

// behind is the first name after all that begin with prefix; nil if there is no end to them.
func behind(prefix string) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return append([]byte(prefix[:i]), prefix[i]+1)
		}
	}
	return nil
}

// TouchUpload implements [fleet.Store]. Parts come by the thousand with one token: only a higher one is written.
func (s *store) TouchUpload(ctx context.Context, upload string, t tokens.Token) error {
	known, err := s.uploadToken(ctx, upload)
	if err == nil && (known == nil || *known < int64(t)) {
		err = s.execute(ctx, touchSQL, []byte(upload), int64(t))
	}
	if err != nil {
		return fmt.Errorf("record the token of an upload: %w", err)
	}
	return nil
}

// UploadToken implements [fleet.Store].
func (s *store) UploadToken(ctx context.Context, upload string) (tokens.Token, error) {
	t, err := s.uploadToken(ctx, upload)
	if err != nil {
		return 0, fmt.Errorf("look up an upload: %w", err)
	}
	if t == nil {
		return 0, nil
	}
	return tokens.Token(*t), nil
}

// uploadToken returns nil where there is none.
func (s *store) uploadToken(ctx context.Context, upload string) (t *int64, err error) {
	err = s.calls.AcquireFunc(ctx, func(c conn) error { return c.QueryRow(ctx, uploadSQL, []byte(upload)).Scan(&t) })
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return t, err
}

// ForgetUpload implements [fleet.Store].
func (s *store) ForgetUpload(ctx context.Context, upload string) error {
	if err := s.execute(ctx, forgetSQL, []byte(upload)); err != nil {
		return fmt.Errorf("forget an upload: %w", err)
	}
	return nil
}
