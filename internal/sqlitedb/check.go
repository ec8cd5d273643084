package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// maxProblems bounds how many problems of one kind [Check] tells: one damaged page may break every row.
const maxProblems = 100

// An Invariant is something that holds in every file of a schema, in each of its versions.
type Invariant struct {
	Broken string // what is wrong where it does not hold: "a token below 0"
	Rows   string // a query for the rows that break it, one column of text that names each
}

// A Problem is something that is wrong in a file.
type Problem struct {
	What string
	Row  string // "" if it is about the whole file
}

// A Checked is what [Check] has found.
type Checked struct {
	Version  int // of the file's schema; it may be older than the newest
	Problems []Problem
}

// Check looks through the file at path as it would be after the next Open, its log included: whether SQLite finds it whole, whether its
// schema is the one of its version, whether the invariants hold. read, if there is one, may read the file too, if it is good enough for
// that. The caller holds the lock that keeps other processes away.
//
// Nothing is written to the file or to its log. Where a log is left, as after a kill, SQLite makes its index anew
// (the file -shm), which holds nothing of its own.
//
// It fails with [ErrMissing], [ErrForeign] or [ErrNewer], or with why the file could not be checked. Damage is no failure but a Problem.
func Check(ctx context.Context, path string, s Schema, invariants []Invariant, read func(context.Context, *sql.DB) error) (c Checked, err error) {
	db, err := OpenUnchanged(path, s)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = c.check(ctx, db.DB, s, invariants, read)
	if damaged(err) {
		c.Problems = append(c.Problems, Problem{What: "damaged: SQLite says: " + err.Error()})
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("check the %s %s: %w", s.Name, path, err)
	}
	return c, err
}

// An Unchanged is a file that is open for reading as Check reads it.
type Unchanged struct {
	*sql.DB
	after func() error
}

// OpenUnchanged opens a file for reading as [Check] does, with its errors.
func OpenUnchanged(path string, s Schema) (*Unchanged, error) {
	setUp()
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	header, err := headerOf(path, os.O_RDONLY)
	if err == nil {
		err = judgeHeader(path, s, header)
	}
	if err != nil {
		return nil, err
	}
	path, params, after, err := unchanging(path)
	if err != nil {
		return nil, err
	}
	db, err := openPool(path, 1, params)
	if err != nil {
		return nil, errors.Join(err, after())
	}
	return &Unchanged{db, after}, nil
}

// Close closes the file.
func (u *Unchanged) Close() error { return errors.Join(u.DB.Close(), u.after()) }

// unchanging says how to open the file without changing it, and what to do after that. Without a log nothing but the file is looked at
// (immutable); with one SQLite has to read both. A rollback journal, as a kill leaves that came while a new file was given its log, it can
// only play back, which is done to a copy: such a file is a small one.
func unchanging(path string) (open, params string, after func() error, err error) {
	nothing := func() error { return nil }
	switch {
	case holds(path + journalSuffix):
		dir, err := os.MkdirTemp("", "fenceproxy-check-")
		if err != nil {
			return "", "", nil, err
		}
		after = func() error { return os.RemoveAll(dir) }
		for _, suffix := range []string{"", journalSuffix, walSuffix} {
			if err := copyIfThere(filepath.Join(dir, "copy"+suffix), path+suffix); err != nil {
				return "", "", nil, errors.Join(err, after())
			}
		}
		return filepath.Join(dir, "copy"), "mode=rw", after, nil
	case holds(path + walSuffix):
		return path, "mode=ro&_query_only=1", nothing, nil
	}
	return path, "mode=ro&immutable=1&_query_only=1", nothing, nil
}

func holds(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Size() > 0
}

func copyIfThere(to, from string) error {
	src, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

func damaged(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == sqlite3.SQLITE_CORRUPT || e.Code()&0xff == sqlite3.SQLITE_NOTADB)
}

func (c *Checked) check(ctx context.Context, db *sql.DB, s Schema, invariants []Invariant, read func(context.Context, *sql.DB) error) error {
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&c.Version); err != nil {
		return err
	}
	whole, err := texts(ctx, db, fmt.Sprintf("PRAGMA integrity_check(%d)", maxProblems))
	if err != nil {
		return err
	}
	for _, line := range whole {
		if line != "ok" {
			c.Problems = append(c.Problems, Problem{What: "damaged: SQLite says: " + line})
		}
	}
	same, err := c.sameSchema(ctx, db, s)
	if err != nil || !same {
		return err // the invariants speak of the tables that there should be
	}
	for _, i := range invariants {
		rows, err := texts(ctx, db, fmt.Sprintf("%s LIMIT %d", i.Rows, maxProblems))
		if err != nil {
			return err
		}
		for _, row := range rows {
			c.Problems = append(c.Problems, Problem{What: i.Broken, Row: row})
		}
	}
	if read == nil {
		return nil
	}
	return read(ctx, db)
}

// sameSchema compares the tables and indexes with those of a new file of that version.
func (c *Checked) sameSchema(ctx context.Context, db *sql.DB, s Schema) (bool, error) {
	if c.Version < 0 || c.Version > len(s.Versions) { // the header, which was judged, may be older than the log
		return false, judgeVersion("file", s, c.Version)
	}
	model, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return false, err
	}
	defer model.Close()
	model.SetMaxOpenConns(1)
	for _, step := range s.Versions[:c.Version] {
		if _, err := model.ExecContext(ctx, step); err != nil {
			return false, err
		}
	}
	// What ANALYZE leaves belongs to no schema.
	const schema = "SELECT type || ' ' || name || ': ' || coalesce(sql, 'made by SQLite') FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%' ORDER BY type, name"
	want, err := texts(ctx, model, schema)
	if err != nil {
		return false, err
	}
	have, err := texts(ctx, db, schema)
	if err != nil {
		return false, err
	}
	same := slices.Equal(have, want)
	if !same {
		c.Problems = append(c.Problems, Problem{What: fmt.Sprintf("its tables and indexes are not those of version %d, which it says it has", c.Version)})
	}
	return same, nil
}

func texts(ctx context.Context, db *sql.DB, query string) (all []string, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, rows.Err()
}

// Change runs f in one transaction on a file that is not open otherwise, durably, and upgrades nothing. The caller holds the lock that
// keeps other processes away. A crash leaves all of it or nothing.
func Change(ctx context.Context, path string, s Schema, f func(*sql.Tx) error) (err error) {
	setUp()
	defer func() {
		if err != nil {
			err = fmt.Errorf("change the %s %s: %w", s.Name, path, err)
		}
	}()
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	if err := inspect(path, s); err != nil {
		return err
	}
	db, err := openPool(path, 1, writing)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}
