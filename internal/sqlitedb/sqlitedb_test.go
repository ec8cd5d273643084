package sqlitedb

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var schema = Schema{
	ApplicationID: 0x66705478,
	Name:          "test file",
	Versions: []string{
		`CREATE TABLE n (id INTEGER PRIMARY KEY, v INTEGER NOT NULL) STRICT; CREATE INDEX n_v ON n (v)`,
	},
}

// mustOpen opens path and closes it with the test.
func mustOpen(t testing.TB, path string, s Schema, create bool) (*DB, bool) {
	t.Helper()
	d, created, err := Open(t.Context(), path, s, create)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, created
}

func insert(v int) func(*Tx) error {
	return func(tx *Tx) error {
		_, err := tx.Exec(`INSERT INTO n (v) VALUES (?)`, v)
		return err
	}
}

func count(t testing.TB, d *DB) (n int) {
	t.Helper()
	if err := d.Reader().QueryRowContext(t.Context(), `SELECT count(*) FROM n`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestCreateWriteReopen(t *testing.T) {
	// A name that SQLite's URI would trip over if it were not escaped.
	path := filepath.Join(t.TempDir(), "a b?c#d%41.db")
	d, created := mustOpen(t, path, schema, true)
	if !created {
		t.Error("created = false for a new file")
	}
	if err := d.Write(t.Context(), insert(7)); err != nil {
		t.Fatal(err)
	}
	if n := count(t, d); n != 1 {
		t.Errorf("the reader sees %d rows after Write returned, want 1", n)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, filepath.Dir(path)), filepath.Base(path); got != want {
		t.Errorf("a clean stop leaves %q, want %q alone", got, want)
	}
	d, created = mustOpen(t, path, schema, true)
	if created || count(t, d) != 1 {
		t.Errorf("reopened: created = %v, %d rows; want false, 1", created, count(t, d))
	}
}

func TestFileMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	d, _ := mustOpen(t, path, schema, true)
	if err := d.Write(t.Context(), insert(1)); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		st, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", st.Name(), st.Mode())
		}
	}
}

func TestPragmas(t *testing.T) {
	d, _ := mustOpen(t, filepath.Join(t.TempDir(), "x.db"), schema, true)
	ask := func(row func(string) *sql.Row, pragma, want string) {
		t.Helper()
		var got string
		if err := row("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %q (%v), want %q", pragma, got, err, want)
		}
	}
	err := d.Write(t.Context(), func(tx *Tx) error {
		row := func(q string) *sql.Row { return tx.QueryRow(q) }
		ask(row, "journal_mode", "wal")
		ask(row, "synchronous", "2")
		ask(row, "busy_timeout", "5000")
		ask(row, "user_version", "1")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	row := func(q string) *sql.Row { return d.Reader().QueryRowContext(t.Context(), q) }
	ask(row, "query_only", "1")
	ask(row, "busy_timeout", "5000")
	if _, err := d.Reader().ExecContext(t.Context(), `INSERT INTO n (v) VALUES (1)`); err == nil {
		t.Error("the reader wrote")
	}
}

func TestMissing(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string][]byte{"absent.db": nil, "empty.db": {}} {
		path := filepath.Join(dir, name)
		if content != nil {
			writeFile(t, path, content)
		}
		_, _, err := Open(t.Context(), path, schema, false)
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want ErrMissing with the path", name, err)
		}
		if _, created := mustOpen(t, path, schema, true); !created {
			t.Errorf("%s: not created", name)
		}
	}
}

func TestMissingDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "typo", "x.db")
	if _, _, err := Open(t.Context(), path, schema, false); !errors.Is(err, ErrMissing) {
		t.Errorf("got %v, want ErrMissing", err)
	}
	if _, _, err := Open(t.Context(), path, schema, true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("to be created: %v, want that the directory does not exist", err)
	}
}

// A log without its database would be replayed into the new one.
func TestOrphanedLogIsNotReplayed(t *testing.T) {
	for _, suffix := range []string{"-wal", "-journal"} {
		path := filepath.Join(t.TempDir(), "x.db")
		writeFile(t, path+suffix, []byte("old commits"))
		_, _, err := Open(t.Context(), path, schema, true)
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), path+suffix) {
			t.Errorf("%s: %v, want ErrMissing that names the log", suffix, err)
		}
		if got, want := names(t, filepath.Dir(path)), "x.db"+suffix; got != want {
			t.Errorf("left %q, want %q", got, want)
		}
	}
}

func TestForeignIsUntouched(t *testing.T) {
	other := schema
	other.ApplicationID++
	foreign := filepath.Join(t.TempDir(), "other.db")
	d, _ := mustOpen(t, foreign, other, true)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"another application's": readFile(t, foreign),
		"text":                  []byte("listen: 127.0.0.1:9000\n"),
		"long text":             bytes.Repeat([]byte("not a database\n"), 100),
		"a header cut short":    []byte(magic),
	} {
		untouched(t, name, content, ErrForeign)
	}
}

func TestNewerIsUntouched(t *testing.T) {
	newer := schema
	newer.Versions = append(newer.Versions[:1:1], `CREATE TABLE later (x INTEGER) STRICT`)
	path := filepath.Join(t.TempDir(), "newer.db")
	d, _ := mustOpen(t, path, newer, true)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	untouched(t, "newer", readFile(t, path), ErrNewer)
}

// A newer version that crashed right after its upgrade has its version in the log only.
func TestNewerInLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	d, _ := mustOpen(t, path, schema, true)
	err := d.Write(t.Context(), func(tx *Tx) error {
		_, err := tx.Exec("PRAGMA user_version = 2")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(t.TempDir(), "dead.db") // what a kill leaves: the file and its log
	writeFile(t, dead, readFile(t, path))
	writeFile(t, dead+"-wal", readFile(t, path+"-wal"))
	if _, _, err := Open(t.Context(), dead, schema, true); !errors.Is(err, ErrNewer) {
		t.Errorf("got %v, want ErrNewer", err)
	}
}

func untouched(t *testing.T, name string, content []byte, want error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.db")
	writeFile(t, path, content)
	_, _, err := Open(t.Context(), path, schema, true)
	if !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
		t.Errorf("%s: %v, want %q with the path", name, err, want)
	}
	if !bytes.Equal(readFile(t, path), content) {
		t.Errorf("%s: the file was changed", name)
	}
	if got := names(t, filepath.Dir(path)); got != "x.db" {
		t.Errorf("%s: left %q beside it", name, got)
	}
}

func TestUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	d, _ := mustOpen(t, path, schema, true)
	if err := errors.Join(d.Write(t.Context(), insert(3)), d.Close()); err != nil {
		t.Fatal(err)
	}
	broken := schema
	broken.Versions = append(schema.Versions[:1:1], `ALTER TABLE n ADD COLUMN w INTEGER; SELECT nonsense`)
	if _, _, err := Open(t.Context(), path, broken, true); err == nil {
		t.Fatal("a broken upgrade went through")
	}
	better := schema
	better.Versions = append(schema.Versions[:1:1], `ALTER TABLE n ADD COLUMN w INTEGER`, `UPDATE n SET w = v + 1`)
	d, created := mustOpen(t, path, better, true)
	var w int
	if err := d.Reader().QueryRowContext(t.Context(), `SELECT w FROM n`).Scan(&w); err != nil || w != 4 || created {
		t.Errorf("w = %d (%v), created = %v; want 4, false", w, err, created)
	}
	header, err := readHeader(path)
	if err != nil || header[atUserVersion+3] != 3 {
		t.Errorf("the header has version %d (%v) while the file is open, want 3", header[atUserVersion+3], err)
	}
}

func TestLeftoversAreRemoved(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, ".x.db.new-1"), []byte("half a database"))
	writeFile(t, filepath.Join(dir, ".x.db.new-1-journal"), []byte("and its journal"))
	writeFile(t, filepath.Join(dir, ".y.db.new-1"), []byte("another's"))
	d, _ := mustOpen(t, filepath.Join(dir, "x.db"), schema, true)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, dir), ".y.db.new-1 x.db"; got != want {
		t.Errorf("left %q, want %q", got, want)
	}
}

func TestFailedCreationLeavesNothing(t *testing.T) {
	broken := schema
	broken.Versions = []string{`CREATE TABLE n (v INTEGER) STRICT`, `CREATE nonsense`}
	dir := t.TempDir()
	if _, _, err := Open(t.Context(), filepath.Join(dir, "x.db"), broken, true); err == nil {
		t.Fatal("a broken schema went through")
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Open(canceled, filepath.Join(dir, "x.db"), schema, true); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if got := names(t, dir); got != "" {
		t.Errorf("left %q", got)
	}
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
