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

// An OverflowError refuses a raise beyond [tokens.Max]. Nothing was changed.
type OverflowError struct {
	Resource string
	Token    tokens.Token // recorded
	By       tokens.Token
}

func (e *OverflowError) Error() string {
	return fmt.Sprintf("no token was raised: %s is at %d, and %d more would be beyond the highest token there is, %d", e.Resource, e.Token, e.By, tokens.Max)
}

// RaiseAll raises every recorded token by the same number, at least 1, all of them or none, and says how many there were. Nobody holds
// the new tokens: they are bound to no holder. A resource that has seen no token yet stays as it is. It fails with an [*OverflowError].
//
// If we crash before the commit, nothing is raised, and after it all are.
func (r *Registry) RaiseAll(ctx context.Context, by tokens.Token) (raised int64, err error) {
	if by < 1 {
		return 0, fmt.Errorf("tokens are raised by 1 or more, not by %d", by)
	}
	var refusal error
	err = r.write(ctx, func(tx *sqlitedb.Tx) error {
		over := &OverflowError{By: by}
		err := tx.QueryRow("SELECT resource, token FROM fences WHERE token > ? ORDER BY token DESC LIMIT 1", int64(tokens.Max-by)).
			Scan(&over.Resource, (*int64)(&over.Token))
		if err == nil {
			refusal = over
			return nil
		} else if !errors.Is(err, sql.ErrNoRows) {
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
		_, err = tx.Exec("DELETE FROM repair WHERE state = ?", string(RepairMargin))
		return err
	})
	if err = errors.Join(err, refusal); err != nil {
		return 0, err
	}
	return raised, nil
}

// A Repair is how far a rebuild has come. While there is one, the registry knows too little for a proxy to run over it.
type Repair string

const (
	RepairNone   Repair = ""       // there is none
	RepairNew    Repair = "new"    // a registry that was empty is being filled
	RepairKnown  Repair = "known"  // one that knew something is being filled up
	RepairMargin Repair = "margin" // it has come to its end; what it knows are lower bounds, until [Registry.RaiseAll]
)

// Repair says how far a rebuild has come.
func (r *Registry) Repair(ctx context.Context) (state Repair, err error) {
	err = r.db.Reader().QueryRowContext(ctx, "SELECT state FROM repair").Scan((*string)(&state))
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return state, err
}

// SetRepair records how far a rebuild has come.
func (r *Registry) SetRepair(ctx context.Context, state Repair) error {
	return r.write(ctx, func(tx *sqlitedb.Tx) error {
		if _, err := tx.Exec("DELETE FROM repair"); err != nil || state == RepairNone {
			return err
		}
		_, err := tx.Exec("INSERT INTO repair (state) VALUES (?)", string(state))
		return err
	})
}

// A Mark is what is known of a resource from elsewhere, as a lower bound.
type Mark struct {
	Token      tokens.Token
	Generation int64
}

// RaiseTo records at least these marks, by resource, and says how many tokens it raised. at is when the repair began, to the
// millisecond: a resource that was raised by an earlier call with the same at is not counted again.
//
// A token that is there and not lower stays, with its holder. A higher generation is recorded and takes no token down: whether the token
// is from before the reset or from after it is not known here. If we crash, what earlier calls have recorded is there, and the same calls
// can be made again.
func (r *Registry) RaiseTo(ctx context.Context, marks map[string]Mark, at time.Time) (raised int64, err error) {
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
