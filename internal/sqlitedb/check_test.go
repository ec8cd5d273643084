package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var positive = []Invariant{{"a number below 0", "SELECT 'n ' || id FROM n WHERE v < 0"}}

func mustCheck(t *testing.T, path string, s Schema) Checked {
	t.Helper()
	before := tree(t, filepath.Dir(path))
	c, err := Check(t.Context(), path, s, positive, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range tree(t, filepath.Dir(path)) {
		if was, ok := before[name]; strings.HasSuffix(name, "-shm") {
			continue
		} else if !ok || was != content {
			t.Errorf("the check has changed %s", name)
		}
	}
	return c
}

// tree is what the files of a directory hold.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for name := range strings.FieldsSeq(names(t, dir)) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(content)
	}
	return files
}

// killed copies a database that is open, as a kill would leave it.
func killed(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range tree(t, filepath.Dir(path)) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, filepath.Base(path))
}

// TestCheck: a whole file has no problems, be it closed or killed, and what its log alone has counts.
func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	d, _ := mustOpen(t, path, schema, true)
	if err := d.Write(t.Context(), insert(7)); err != nil {
		t.Fatal(err)
	}
	dead := killed(t, path)
	if c := mustCheck(t, dead, schema); c.Version != 1 || len(c.Problems) > 0 {
		t.Errorf("a killed file: %+v", c)
	}
	if err := d.Write(t.Context(), insert(-7)); err != nil {
		t.Fatal(err)
	}
	dead = killed(t, path)
	if err := os.Remove(dead + "-shm"); err != nil {
		t.Fatal(err)
	}
	want := Problem{"a number below 0", "n 2"}
	if c := mustCheck(t, dead, schema); len(c.Problems) != 1 || c.Problems[0] != want {
		t.Errorf("what is in the log only: %+v", c)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if c := mustCheck(t, path, schema); len(c.Problems) != 1 || c.Problems[0] != want {
		t.Errorf("after a stop: %+v", c)
	}
	if all := names(t, filepath.Dir(path)); all != "n.db" {
		t.Errorf("there is %q now", all)
	}
}

// TestCheckPlaysAJournalBack to a copy: a transaction that was killed did not happen, and the journal stays for the next Open.
func TestCheckPlaysAJournalBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	if err := build(t.Context(), path, schema); err != nil {
		t.Fatal(err)
	}
	db, err := openPool(path, 1, "mode=rw&_journal_mode=DELETE&_pragma=cache_spill(1)&_pragma=cache_size(1)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for range 5000 { // so many that some are in the file before the commit
		if _, err := tx.Exec("INSERT INTO n (v) VALUES (-1)"); err != nil {
			t.Fatal(err)
		}
	}
	dead := killed(t, path)
	if !holds(dead + journalSuffix) {
		t.Fatal("there is no journal to play back")
	}
	if c := mustCheck(t, dead, schema); c.Version != 1 || len(c.Problems) > 0 {
		t.Errorf("%+v", c)
	}
	if d, _ := mustOpen(t, dead, schema, false); count(t, d) != 0 {
		t.Error("the next Open has it")
	}
}

func TestCheckAFileThatMayOnlyBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	d, _ := mustOpen(t, path, schema, true)
	if err := errors.Join(d.Close(), os.Chmod(path, 0o400)); err != nil {
		t.Fatal(err)
	}
	if c := mustCheck(t, path, schema); len(c.Problems) > 0 {
		t.Errorf("%+v", c)
	}
}

// TestCheckFindsDamage: a page that was overwritten, an index that lacks a row, a table that is not the schema's.
func TestCheckFindsDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	d, _ := mustOpen(t, path, schema, true)
	for v := range 2000 {
		if err := d.Write(t.Context(), insert(v)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for name, harm := range map[string]func(t *testing.T, path string){
		"damaged": func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte(strings.Repeat("x", 4096)), 3*4096); err != nil {
				t.Fatal(err)
			}
		},
		"its tables and indexes": func(t *testing.T, path string) {
			err := Change(t.Context(), path, schema, func(tx *sql.Tx) error {
				_, err := tx.Exec("CREATE TABLE more (x)")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := killed(t, path)
			harm(t, path)
			c := mustCheck(t, path, schema)
			if len(c.Problems) == 0 || !strings.HasPrefix(c.Problems[0].What, name) {
				t.Errorf("found %+v", c)
			}
		})
	}
}

// TestCheckRefuses what Open refuses, by the same names.
func TestCheckRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	d, _ := mustOpen(t, path, schema, true)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	other, newer := schema, schema
	other.ApplicationID++
	newer.Versions = nil
	for _, c := range []struct {
		path   string
		schema Schema
		want   error
	}{
		{filepath.Join(t.TempDir(), "n.db"), schema, ErrMissing}, {path, other, ErrForeign}, {path, newer, ErrNewer},
	} {
		if _, err := Check(t.Context(), c.path, c.schema, nil, nil); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Check(ctx, path, schema, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a check that was broken off says %v", err)
	}
}

// TestCheckOfAnOlderVersion upgrades nothing, and neither does Change.
func TestCheckOfAnOlderVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.db")
	d, _ := mustOpen(t, path, schema, true)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	second := schema
	second.Versions = append(second.Versions[:1:1], "CREATE TABLE m (x) STRICT")
	err := Change(t.Context(), path, second, func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO n (v) VALUES (-1)")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := mustCheck(t, path, second); c.Version != 1 || len(c.Problems) != 1 || c.Problems[0].Row != "n 1" {
		t.Errorf("%+v", c)
	}
}
