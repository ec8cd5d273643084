package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// maintain runs f in one transaction that may take its time.
func (r *Registry) maintain(ctx context.Context, what string, f func(pgx.Tx) error) error {
	err := r.store.calls.AcquireFunc(ctx, func(c conn) error { return long(ctx, c.Conn(), f) })
	var over *tokens.OverflowError
	if err == nil || errors.Is(err, tokens.ErrUnavailable) || errors.Is(err, errOthers) || errors.As(err, &over) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", tokens.ErrUnavailable, what, err)
}

// A version of the mappings has two counters. The upper half counts remaps: an instance that goes by an older one is over. The lower half counts
// the changes since the last of them that led no bucket elsewhere.
const epochShift = 32

// Begin implements [tokens.Maintained].
func (r *Registry) Begin(ctx context.Context, mapping int64) error {
	return r.Registry.Begin(ctx, mapping>>epochShift)
}

// Mappings implements [tokens.Maintained].
func (r *Registry) Mappings(ctx context.Context) (all []tokens.Mapping, version int64, err error) {
	err = r.maintain(ctx, "look up the mappings", func(tx pgx.Tx) error {
		// Nobody changes them between the two: who does locks this row first.
		var epoch, list int64
		if err := tx.QueryRow(ctx, "SELECT map_epoch, map_list FROM fenceproxy.counters FOR SHARE").Scan(&epoch, &list); err != nil {
			return err
		}
		version = epoch<<epochShift | list
		rows, err := tx.Query(ctx, "SELECT name, digest, text FROM fenceproxy.mappings ORDER BY position")
		if err != nil {
			return err
		}
		var name, digest, text []byte
		_, err = pgx.ForEachRow(rows, []any{&name, &digest, &text}, func() error {
			all = append(all, tokens.Mapping{Name: string(name), Digest: string(digest), Text: string(text)})
			return nil
		})
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return all, version, nil
}

// RecordMappings implements [tokens.Maintained].
//
// If we crash before the commit, nothing has changed. If we crash after it, instances that went by an older epoch are over with their next beat,
// and whoever begins waits for them.
func (r *Registry) RecordMappings(ctx context.Context, all []tokens.Mapping, version int64, remapped bool) (int64, error) {
	var epoch, list int64
	err := r.maintain(ctx, "record the mappings", func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT map_epoch, map_list FROM fenceproxy.counters FOR UPDATE").Scan(&epoch, &list); err != nil {
			return err
		}
		if epoch<<epochShift|list != version {
			return tokens.ErrRemapped
		}
		if list++; remapped {
			epoch, list = epoch+1, 0
		}
		if _, err := tx.Exec(ctx, "UPDATE fenceproxy.counters SET map_epoch = $1, map_list = $2", epoch, list); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "DELETE FROM fenceproxy.mappings"); err != nil {
			return err
		}
		for i, m := range all {
			if _, err := tx.Exec(ctx, "INSERT INTO fenceproxy.mappings VALUES ($1, $2, $3, $4)", i, []byte(m.Name), []byte(m.Digest), []byte(m.Text)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return epoch<<epochShift | list, nil
}

// idForm is the form of a registry's id: [rand.Text], which may grow longer.
var idForm = regexp.MustCompile(`^[A-Z2-7]{26,40}$`)

// Adopted implements [tokens.Maintained]. What another instance adopts is seen with the next beat.
func (r *Registry) Adopted() []string {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return slices.Clone(r.store.adopted)
}

// Adopt implements [tokens.Maintained].
func (r *Registry) Adopt(ctx context.Context, id string) error {
	if !idForm.MatchString(id) {
		return fmt.Errorf("%q is not the id of a token registry: it has 26 to 40 characters, A to Z and 2 to 7", id)
	}
	if id == r.start.ID {
		return nil
	}
	return r.maintain(ctx, "adopt a registry", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO fenceproxy.adopted VALUES ($1, fenceproxy.now_ms()) ON CONFLICT DO NOTHING", id); err != nil {
			return err
		}
		return r.store.readAdopted(ctx, tx)
	})
}

func (s *store) readAdopted(ctx context.Context, q querier) error {
	rows, err := q.Query(ctx, adoptedSQL)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil {
		s.setAdopted(ids)
	}
	return err
}

// recordReplaced says that another registry, or another state of this one, was here until now.
func recordReplaced(ctx context.Context, q querier) error {
	_, err := q.Exec(ctx, "INSERT INTO fenceproxy.adopted VALUES ('', fenceproxy.now_ms()) ON CONFLICT (id) DO UPDATE SET adopted_at = excluded.adopted_at")
	return err
}

// LastAdopted implements [tokens.Maintained]. The database says how long ago that was, by its own clock; it is given by ours.
func (r *Registry) LastAdopted(ctx context.Context) (t time.Time, err error) {
	err = r.maintain(ctx, "look up the adopted registries", func(tx pgx.Tx) error {
		var ago *int64
		if err := tx.QueryRow(ctx, "SELECT fenceproxy.now_ms() - max(adopted_at) FROM fenceproxy.adopted").Scan(&ago); err != nil || ago == nil {
			return err
		}
		t = time.Now().Add(-time.Duration(*ago) * time.Millisecond) // no earlier than it was: now is after the answer
		return nil
	})
	return t, err
}
