package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// Raise implements [Registry]. Raises that wait at the same time share one transaction and one sync of the disk.
//
// If we crash before the commit, nothing is recorded and nobody was told. If we crash after it, the next run refuses lower
// tokens, and waits for this run's grant before it raises above it.
func (r *Registry) Raise(ctx context.Context, c tokens.Claim) (tokens.Grant, error) {
	var g tokens.Grant
	var refusal error
	err := r.write(ctx, func(tx *sqlitedb.Tx) (err error) {
		g, refusal, err = r.record(tx, c)
		return err
	})
	if err := errors.Join(err, refusal); err != nil {
		return tokens.Grant{}, err
	}
	err = r.waitSettled(ctx, c.Resource, func(t tokens.Token) bool { return t < c.Token })
	if err == nil && c.Settle > 0 {
		err = r.waitHeld(ctx)
	}
	if err != nil {
		if g.ID != 0 { // nobody can write under a grant that was never handed out
			_ = r.GiveBack(ctx, g.ID)
		}
		return tokens.Grant{}, err
	}
	return g, nil
}

// record is the part of Raise that must be durable. err is a failure of the database, refusal is what it says of the claim.
func (r *Registry) record(tx *sqlitedb.Tx, c tokens.Claim) (g tokens.Grant, refusal, err error) {
	e, err := entry(tx.QueryRow, c.Resource)
	if err != nil {
		return g, nil, err
	}
	if refusal := refuse(e, c); refusal != nil {
		return g, refusal, nil
	}
	g = tokens.Grant{Token: c.Token, Holder: c.Holder, Settle: c.Settle, Incarnation: r.Incarnation()}
	if c.Token > e.Token || c.Holder != e.Holder {
		g.Raised = c.Token > e.Token
		if err := record(tx, c); err != nil {
			return g, nil, err
		}
	}
	if c.Settle > 0 {
		err = r.recordGrant(tx, c.Resource, &g)
	}
	return g, nil, err
}

func refuse(e tokens.Entry, c tokens.Claim) error {
	switch {
	case c.Token < e.Token:
		return &tokens.StaleError{Resource: c.Resource, Token: c.Token, Highest: e.Token, Holder: e.Holder}
	case c.Token == e.Token && e.Holder != "" && c.Holder != e.Holder:
		return &tokens.ConflictError{Resource: c.Resource, Token: c.Token, Holder: c.Holder, Bound: e.Holder}
	}
	return nil
}

func record(tx *sqlitedb.Tx, c tokens.Claim) error {
	_, err := tx.Exec(`
INSERT INTO fences (resource, generation, token, holder, access_key, raised_at) VALUES (?, 0, ?, ?, ?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token, holder = excluded.holder,
	access_key = excluded.access_key, raised_at = excluded.raised_at`,
		c.Resource, int64(c.Token), c.Holder, c.AccessKey, time.Now().UnixMilli())
	return err
}

// recordGrant puts the grant in the place of this run's earlier one on the resource. The fence has drained what was admitted
// under a lower token; what is open under the same one may need the longer settle time.
func (r *Registry) recordGrant(tx *sqlitedb.Tx, resource string, g *tokens.Grant) error {
	var token, ms int64
	err := tx.QueryRow("SELECT token, settle_ms FROM grants WHERE run = ? AND resource = ?", r.run, resource).Scan(&token, &ms)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if err == nil && token == int64(g.Token) {
		g.Settle = max(g.Settle, time.Duration(ms)*time.Millisecond)
	}
	ms = int64((g.Settle + time.Millisecond - 1) / time.Millisecond) // never shorter than asked for
	res, err := tx.Exec("INSERT OR REPLACE INTO grants (run, resource, token, settle_ms) VALUES (?, ?, ?, ?)",
		r.run, resource, int64(g.Token), ms)
	if err != nil {
		return err
	}
	id, err := res.LastInsertId()
	g.ID = tokens.GrantID(id)
	return err
}

// GiveBack implements [Registry].
func (r *Registry) GiveBack(ctx context.Context, ids ...tokens.GrantID) error {
	return r.write(ctx, func(tx *sqlitedb.Tx) error {
		for _, id := range ids {
			if _, err := tx.Exec("DELETE FROM grants WHERE id = ?", int64(id)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TouchUpload implements [Registry]. Parts come by the thousand with one token: only a higher one is written.
func (r *Registry) TouchUpload(ctx context.Context, upload string, t tokens.Token) error {
	if known, err := r.UploadToken(ctx, upload); err != nil || known >= t {
		return err
	}
	return r.write(ctx, func(tx *sqlitedb.Tx) error {
		_, err := tx.Exec(`INSERT INTO uploads (upload, token) VALUES (?, ?)
ON CONFLICT (upload) DO UPDATE SET token = max(token, excluded.token)`, upload, int64(t))
		return err
	})
}

// UploadToken implements [Registry].
func (r *Registry) UploadToken(ctx context.Context, upload string) (t tokens.Token, err error) {
	err = r.db.Reader().QueryRowContext(ctx, "SELECT token FROM uploads WHERE upload = ?", upload).Scan((*int64)(&t))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("%w: look up an upload: %w", tokens.ErrUnavailable, err)
	}
	return t, nil
}

// ForgetUpload implements [Registry].
func (r *Registry) ForgetUpload(ctx context.Context, upload string) error {
	return r.write(ctx, func(tx *sqlitedb.Tx) error {
		_, err := tx.Exec("DELETE FROM uploads WHERE upload = ?", upload)
		return err
	})
}

// Reset implements [Registry].
func (r *Registry) Reset(ctx context.Context, resource string, t tokens.Token) (tokens.Entry, error) {
	if err := r.waitSettled(ctx, resource, func(tokens.Token) bool { return true }); err != nil {
		return tokens.Entry{}, err
	}
	var e tokens.Entry
	err := r.write(ctx, func(tx *sqlitedb.Tx) (err error) {
		if e, err = entry(tx.QueryRow, resource); err != nil {
			return err
		}
		e = tokens.Entry{Resource: resource, Token: t, Generation: e.Generation + 1, RaisedAt: time.UnixMilli(time.Now().UnixMilli())}
		if _, err := tx.Exec("INSERT OR REPLACE INTO fences (resource, generation, token, holder, access_key, raised_at) VALUES (?, ?, ?, '', '', ?)",
			resource, e.Generation, int64(t), e.RaisedAt.UnixMilli()); err != nil {
			return err
		}
		_, err = tx.Exec("DELETE FROM grants WHERE resource = ?", resource)
		return err
	})
	if err != nil {
		return tokens.Entry{}, err
	}
	return e, nil
}

const columns = "resource, generation, token, holder, access_key, raised_at"

// Lookup implements [Registry].
func (r *Registry) Lookup(ctx context.Context, resource string) (tokens.Entry, error) {
	e, err := entry(func(query string, args ...any) *sql.Row {
		return r.db.Reader().QueryRowContext(ctx, query, args...)
	}, resource)
	if err != nil {
		return tokens.Entry{}, fmt.Errorf("%w: look up %s: %w", tokens.ErrUnavailable, resource, err)
	}
	return e, nil
}

// List implements [Registry].
func (r *Registry) List(ctx context.Context, prefix, after string, limit int) (_ []tokens.Entry, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: list resources: %w", tokens.ErrUnavailable, err)
		}
	}()
	// The end of the prefix is a bound of the index, not a test of each row: else a page that is not full reads to the end of the table.
	query, args := "SELECT "+columns+" FROM fences WHERE resource >= ? AND resource > ?", []any{prefix, after}
	if end := behind(prefix); end != "" {
		query, args = query+" AND resource < ?", append(args, end)
	}
	rows, err := r.db.Reader().QueryContext(ctx, query+" ORDER BY resource LIMIT ?", append(args, limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var entries []tokens.Entry
	for rows.Next() {
		e, err := scan(rows)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

// behind is the first text after all that begin with prefix; "" if there is no end to them.
func behind(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return ""
}

func entry(query func(string, ...any) *sql.Row, resource string) (tokens.Entry, error) {
	e, err := scan(query("SELECT "+columns+" FROM fences WHERE resource = ?", resource))
	if errors.Is(err, sql.ErrNoRows) {
		return tokens.Entry{Resource: resource}, nil
	}
	return e, err
}

func scan(row interface{ Scan(...any) error }) (e tokens.Entry, err error) {
	var ms int64
	err = row.Scan(&e.Resource, &e.Generation, (*int64)(&e.Token), &e.Holder, &e.AccessKey, &ms)
	e.RaisedAt = time.UnixMilli(ms)
	return e, err
}
