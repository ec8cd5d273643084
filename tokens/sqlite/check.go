package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// invariants hold in every registry, whatever killed the process that wrote it.
var invariants = []sqlitedb.Invariant{
	// A first start that was killed right away has made the file, and has not begun.
	{Broken: "the registry has no id, or several", Rows: `
		SELECT count(*) || ' ids' FROM registry HAVING count(*) > 1 OR min(id) = '' OR count(*) = 0 AND EXISTS (SELECT 1 FROM runs)`},
	{Broken: "a token below 0", Rows: "SELECT 'fence of ' || resource FROM fences WHERE token < 0 OR generation < 0"},
	{Broken: "a token below 0", Rows: "SELECT 'upload ' || upload FROM uploads WHERE token < 0"},
	{Broken: "a grant with a token or a settle time below 0", Rows: "SELECT 'grant ' || id || ' of ' || resource FROM grants WHERE token < 0 OR settle_ms < 0"},
	// A mark comes down by a reset only, and that takes the resource's grants away in the same transaction.
	{Broken: "a grant above the highest token of its resource, so that has come down", Rows: `
		SELECT 'grant ' || id || ' of ' || g.resource || ', token ' || g.token
		FROM grants g LEFT JOIN fences f ON f.resource = g.resource WHERE g.token > coalesce(f.token, 0)`},
	// Only the oldest runs are forgotten.
	{Broken: "a grant of a run that there never was", Rows: `
		SELECT 'grant ' || id || ' of ' || resource || ', run ' || run FROM grants
		WHERE run NOT IN (SELECT run FROM runs) AND run >= coalesce((SELECT min(run) FROM runs), 0)`},
	{Broken: "a rebuild that has not come to its end, or has no margin yet, so that serve does not start", Rows: "SELECT 'rebuild, ' || state FROM repair"},
}

// A Checked is what [Check] has found of a registry.
type Checked struct {
	sqlitedb.Checked
	ID      string   // of the registry; "" if it could not be read
	Fences  int64    // how many resources it knows
	Uploads []string // the uploads in parts that it knows, as TouchUpload was told them
}

// Check looks through the registry in a data directory that is locked by [Lock], and changes nothing. Its errors are those of
// [sqlitedb.Check].
func Check(ctx context.Context, dir string) (c Checked, err error) {
	c.Checked, err = sqlitedb.Check(ctx, filepath.Join(dir, FileName), schema, invariants, func(ctx context.Context, db *sql.DB) error {
		if err := db.QueryRowContext(ctx, "SELECT coalesce(min(id), ''), (SELECT count(*) FROM fences) FROM registry").Scan(&c.ID, &c.Fences); err != nil {
			return err
		}
		return c.readUploads(ctx, db)
	})
	return c, err
}

func (c *Checked) readUploads(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "SELECT upload FROM uploads ORDER BY upload")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var upload string
		if err := rows.Scan(&upload); err != nil {
			return err
		}
		c.Uploads = append(c.Uploads, upload)
	}
	return rows.Err()
}

// Marks are the recorded tokens of a registry that no proxy uses.
type Marks struct{ db *sqlitedb.Unchanged }

// OpenMarks opens the registry in a data directory that is locked by [Lock], and changes nothing. Its errors are those of
// [sqlitedb.Check].
func OpenMarks(dir string) (*Marks, error) {
	db, err := sqlitedb.OpenUnchanged(filepath.Join(dir, FileName), schema)
	if err != nil {
		return nil, err
	}
	return &Marks{db}, nil
}

// Lookup returns what is recorded of a resource, token 0 if nothing is.
func (m *Marks) Lookup(ctx context.Context, resource string) (tokens.Entry, error) {
	return entry(func(query string, args ...any) *sql.Row { return m.db.QueryRowContext(ctx, query, args...) }, resource)
}

// Close closes the registry.
func (m *Marks) Close() error { return m.db.Close() }

// ForgetUploads removes the rows of uploads that no store has any more, of the registry in a data directory that is locked by
// [Lock]. It begins no run and upgrades nothing.
func ForgetUploads(ctx context.Context, dir string, uploads ...string) error {
	return sqlitedb.Change(ctx, filepath.Join(dir, FileName), schema, func(tx *sql.Tx) error {
		for _, u := range uploads {
			if _, err := tx.ExecContext(ctx, "DELETE FROM uploads WHERE upload = ?", u); err != nil {
				return err
			}
		}
		return nil
	})
}
