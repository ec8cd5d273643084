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

// The calls in this file are for an operator who repairs a registry that no proxy is using: they know of no fence above, wait for
// nothing and give no right to write. A grant that was inherited stays, and holds up the raises that come later.

// RaiseAll implements [tokens.Maintained].
func (r *Registry) RaiseAll(ctx context.Context, by tokens.Token) (raised int64, err error) {
	if by < 1 {
		return 0, fmt.Errorf("tokens are raised by 1 or more, not by %d", by)
	}
	var refusal error
	err = r.write(ctx, func(tx *sqlitedb.Tx) error {
		over := &tokens.OverflowError{By: by}
		err := tx.QueryRow(`SELECT resource, token FROM (SELECT resource, token FROM fences UNION ALL SELECT resource, issued FROM locks)
WHERE token > ? ORDER BY token DESC LIMIT 1`, int64(tokens.Max-by)).
			Scan(&over.Resource, (*int64)(&over.Token))
		if err == nil {
			refusal = over
			return nil
		} else if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if err := raiseLocks(tx, by); err != nil {
			return err
		}
		res, err := tx.Exec("UPDATE fences SET token = token + ?, holder = '', access_key = '', raised_at = ? WHERE token > 0",
			int64(by), time.Now().UnixMilli())
		if err != nil {
			return err
		}
		if raised, err = res.RowsAffected(); err != nil {
			return err
		}
		_, err = tx.Exec("DELETE FROM repair WHERE state = ?", string(tokens.RepairMargin))
		return err
	})
	if err = errors.Join(err, refusal); err != nil {
		return 0, err
	}
	return raised, nil
}

// Repair implements [tokens.Maintained].
func (r *Registry) Repair(ctx context.Context) (state tokens.Repair, err error) {
	err = r.db.Reader().QueryRowContext(ctx, "SELECT state FROM repair").Scan((*string)(&state))
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return state, err
}

// SetRepair implements [tokens.Maintained].
func (r *Registry) SetRepair(ctx context.Context, state tokens.Repair) error {
	return r.write(ctx, func(tx *sqlitedb.Tx) error {
		if _, err := tx.Exec("DELETE FROM repair"); err != nil || state == tokens.RepairNone {
			return err
		}
		_, err := tx.Exec("INSERT INTO repair (state) VALUES (?)", string(state))
		return err
	})
}

// RaiseTo implements [tokens.Maintained].
func (r *Registry) RaiseTo(ctx context.Context, marks map[string]tokens.Mark, at time.Time) (raised int64, err error) {
	err = r.write(ctx, func(tx *sqlitedb.Tx) error {
		for resource, m := range marks {
			e, err := entry(tx.QueryRow, resource)
			if err != nil {
				return err
			}
			if m.Token <= e.Token && m.Generation <= e.Generation {
				continue
			}
			if m.Token > e.Token {
				if e.Token == 0 || e.RaisedAt.UnixMilli() != at.UnixMilli() {
					raised++
				}
				e = tokens.Entry{Token: m.Token, Generation: e.Generation, RaisedAt: at}
			}
			if _, err := tx.Exec("INSERT OR REPLACE INTO fences (resource, generation, token, holder, access_key, raised_at) VALUES (?, ?, ?, ?, ?, ?)",
				resource, max(e.Generation, m.Generation), int64(e.Token), e.Holder, e.AccessKey, e.RaisedAt.UnixMilli()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return raised, nil
}
