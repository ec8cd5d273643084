package sqlite

import (
	"context"
	"fmt"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// Mappings implements [tokens.Maintained]. The version is 0: there is nobody else.
func (r *Registry) Mappings(ctx context.Context) (all []tokens.Mapping, version int64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: look up the mappings: %w", tokens.ErrUnavailable, err)
		}
	}()
	rows, err := r.db.Reader().QueryContext(ctx, "SELECT name, digest, text FROM mappings ORDER BY position")
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var m tokens.Mapping
		if err := rows.Scan(&m.Name, &m.Digest, &m.Text); err != nil {
			return nil, 0, err
		}
		all = append(all, m)
	}
	return all, 0, rows.Err()
}

// RecordMappings implements [tokens.Maintained].
func (r *Registry) RecordMappings(ctx context.Context, all []tokens.Mapping, _ int64, _ bool) (int64, error) {
	return 0, r.write(ctx, func(tx *sqlitedb.Tx) error {
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

// Count implements [tokens.Maintained].
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
