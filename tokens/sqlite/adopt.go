package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
)

// registryID is the form of a registry's id: [rand.Text], which may grow longer.
var registryID = regexp.MustCompile(`^[A-Z2-7]{26,40}$`)

// Adopted implements [tokens.Maintained].
func (r *Registry) Adopted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.adopted)
}

// Adopt implements [tokens.Maintained].
func (r *Registry) Adopt(ctx context.Context, id string) error {
	if !registryID.MatchString(id) {
		return fmt.Errorf("%q is not the id of a token registry: it has 26 to 40 characters, A to Z and 2 to 7", id)
	}
	if id == r.id || slices.Contains(r.Adopted(), id) {
		return nil
	}
	err := r.write(ctx, func(tx *sqlitedb.Tx) error {
		_, err := tx.Exec("INSERT OR IGNORE INTO adopted (id, adopted_at) VALUES (?, ?)", id, time.Now().UnixMilli())
		return err
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, found := slices.BinarySearch(r.adopted, id); !found {
		r.adopted = slices.Insert(r.adopted, i, id)
	}
	return nil
}

// LastAdopted implements [tokens.Maintained].
func (r *Registry) LastAdopted(ctx context.Context) (t time.Time, err error) {
	var ms sql.NullInt64
	if err := r.db.Reader().QueryRowContext(ctx, "SELECT max(adopted_at) FROM adopted").Scan(&ms); err != nil || !ms.Valid {
		return t, err
	}
	return time.UnixMilli(ms.Int64), nil
}

// Hold implements [tokens.Maintained].
func (r *Registry) Hold(until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = until
}

// waitHeld waits until writes under other registries can take effect no more.
func (r *Registry) waitHeld(ctx context.Context) error {
	r.mu.Lock()
	until := r.held
	r.mu.Unlock()
	return r.waitUntil(ctx, until)
}

func (r *Registry) loadAdopted(tx *sqlitedb.Tx) error {
	rows, err := tx.Query("SELECT id FROM adopted WHERE id <> '' ORDER BY id")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		r.adopted = append(r.adopted, id)
	}
	return rows.Err()
}
