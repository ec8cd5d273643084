package sqlite

import (
	"context"
	"fmt"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// A Mapping says what leads the keys of some buckets to their resources. Tokens are recorded by the names of resources: under
// another mapping they would not be found again. The registry keeps mappings in their order and does not look into them.
type Mapping struct {
	Name   string // a pattern for names of buckets; the first one that matches counts
	Digest string // of Text
	Text   string
}

// Mappings returns the mappings on record, none if there never were any.
func (r *Registry) Mappings(ctx context.Context) (all []Mapping, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: look up the mappings: %w", tokens.ErrUnavailable, err)
		}
	}()
	rows, err := r.db.Reader().QueryContext(ctx, "SELECT name, digest, text FROM mappings ORDER BY position")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var m Mapping
		if err := rows.Scan(&m.Name, &m.Digest, &m.Text); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, rows.Err()
}

// RecordMappings puts these mappings in the place of those on record, in one step.
func (r *Registry) RecordMappings(ctx context.Context, all []Mapping) error {
	return r.write(ctx, func(tx *sqlitedb.Tx) error {
		if _, err := tx.Exec("DELETE FROM mappings"); err != nil {
			return err
		}
		for i, m := range all {
			if _, err := tx.Exec("INSERT INTO mappings (position, name, digest, text) VALUES (?, ?, ?, ?)", i, m.Name, m.Digest, m.Text); err != nil {
				return err
			}
		}
		return nil
	})
}

// Count says how many resources are recorded whose names begin with prefix.
func (r *Registry) Count(ctx context.Context, prefix string) (n int64, err error) {
	query, args := "SELECT count(*) FROM fences WHERE resource >= ?", []any{prefix}
	if end := behind(prefix); end != "" {
		query, args = query+" AND resource < ?", append(args, end)
	}
	if err := r.db.Reader().QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("%w: count resources: %w", tokens.ErrUnavailable, err)
	}
	return n, nil
}
