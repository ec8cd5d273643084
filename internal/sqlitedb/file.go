package sqlitedb

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Where the fields that inspect reads are in a file's first 100 bytes: https://www.sqlite.org/fileformat.html#the_database_header
const (
	magic           = "SQLite format 3\x00"
	headerSize      = 100
	atUserVersion   = 60
	atApplicationID = 68
)

const (
	fileMode       = 0o600
	temporaryInfix = ".new-"
	journalSuffix  = "-journal"
	walSuffix      = "-wal"
)

// errOrphanedLog comes with ErrMissing where a database's log outlived it. SQLite would replay it into any file put in its place.
var errOrphanedLog = errors.New("its log is still there")

// inspect judges the file by plain reads, for SQLite changes a file in the act of opening it (recovery, journal mode).
func inspect(path string, s Schema) error {
	header, err := readHeader(path)
	if err != nil {
		return fmt.Errorf("open the %s: %w", s.Name, err)
	}
	return judgeHeader(path, s, header)
}

func judgeHeader(path string, s Schema, header []byte) error {
	if len(header) == 0 {
		return missing(path, s)
	}
	if len(header) < headerSize || string(header[:len(magic)]) != magic {
		return fmt.Errorf("%s is no %s: %w; it is no SQLite file; nothing was changed: name another file, or move this one away",
			path, s.Name, ErrForeign)
	}
	if id := int32(binary.BigEndian.Uint32(header[atApplicationID:])); id != s.ApplicationID {
		return fmt.Errorf("%s is no %s: %w; its application id is %#x, not %#x; nothing was changed: name another file, or move this one away",
			path, s.Name, ErrForeign, uint32(id), uint32(s.ApplicationID))
	}
	return judgeVersion(path, s, int(int32(binary.BigEndian.Uint32(header[atUserVersion:]))))
}

// readHeader returns up to 100 bytes; none of a file that does not exist.
func readHeader(path string) ([]byte, error) {
	// For writing, too, though nothing is written: SQLite would take a file that it may only read, and leave others beside it that
	// are as hard to write.
	return headerOf(path, os.O_RDWR)
}

func headerOf(path string, flag int) ([]byte, error) {
	f, err := os.OpenFile(path, flag, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	header := make([]byte, headerSize)
	n, err := io.ReadFull(f, header)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	return header[:n], nil
}

func missing(path string, s Schema) error {
	for _, log := range []string{path + walSuffix, path + journalSuffix} {
		if st, err := os.Stat(log); err == nil && st.Size() > 0 {
			return fmt.Errorf("the %s %s cannot be opened: %w, but %w (%s): put the file back, or remove the log too if both are to be given up",
				s.Name, path, ErrMissing, errOrphanedLog, log)
		}
	}
	return fmt.Errorf("the %s %s cannot be opened: %w: check the path, or restore the file", s.Name, path, ErrMissing)
}

func judgeVersion(path string, s Schema, version int) error {
	if version >= 0 && version <= len(s.Versions) {
		return nil
	}
	return fmt.Errorf("the %s %s cannot be opened: %w; its schema has version %d and this one knows versions up to %d; "+
		"nothing was changed: start the newer version", s.Name, path, ErrNewer, version, len(s.Versions))
}

// build makes a new file under a temporary name and gives it its own when it is whole and on disk. A crash before the rename
// leaves a temporary file for the next Open to remove; one after it leaves a file that the next Open takes as it is.
//
// It is built with a rollback journal, which is gone once it is closed, so that the rename moves everything there is.
func build(ctx context.Context, path string, s Schema) error {
	if err := buildAt(ctx, path, s); err != nil {
		return fmt.Errorf("create the %s %s: %w", s.Name, path, err)
	}
	return nil
}

func buildAt(ctx context.Context, path string, s Schema) (err error) {
	temporary, err := reserve(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(temporary), removeIfThere(temporary+journalSuffix))
		}
	}()
	if err := fill(ctx, temporary, s); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// reserve makes the empty file that SQLite fills. Its mode is the one that SQLite gives the log and the shared memory, too.
func reserve(path string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), temporaryPrefix(path)+"*")
	if err != nil {
		return "", err
	}
	return f.Name(), errors.Join(f.Chmod(fileMode), f.Close())
}

func fill(ctx context.Context, path string, s Schema) (err error) {
	pool, err := openPool(path, 1, "mode=rw&_txlock=immediate&_journal_mode=DELETE&_synchronous=FULL")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", s.ApplicationID)); err != nil {
		return err
	}
	return migrate(ctx, conn, s, 0)
}

// upgrade brings the file to the newest version. It asks SQLite for the version again: after a crash the header may be older
// than the log.
func upgrade(ctx context.Context, conn *sql.Conn, path string, s Schema) error {
	var version int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if err := judgeVersion(path, s, version); err != nil {
		return err
	}
	if version == len(s.Versions) {
		return nil
	}
	if err := migrate(ctx, conn, s, version); err != nil {
		return err
	}
	// Into the header with it, where an older program looks before it opens the file.
	_, err := conn.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}

// migrate runs the steps from version on in one transaction: a crash leaves the old version or the new one.
func migrate(ctx context.Context, conn *sql.Conn, s Schema, version int) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	for i, step := range s.Versions[version:] {
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("bring the schema to version %d: %w", version+i+1, err)
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(s.Versions))); err != nil {
		return err
	}
	return tx.Commit()
}

// temporaryPrefix is what the names of path's temporary files begin with.
func temporaryPrefix(path string) string { return "." + filepath.Base(path) + temporaryInfix }

// Leftovers are the temporary files of a build of path that a crash ended, their journals included. The next Open removes them.
func Leftovers(path string) (left []string, err error) {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // then the file is missing, which is what has to be said
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), temporaryPrefix(path)) {
			left = append(left, filepath.Join(dir, e.Name()))
		}
	}
	return left, err
}

func removeLeftovers(path string) error {
	left, err := Leftovers(path)
	for _, file := range left {
		err = errors.Join(err, removeIfThere(file))
	}
	return err
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
