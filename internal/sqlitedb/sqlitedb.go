// Package sqlitedb keeps one SQLite file of ours: one goroutine writes and commits the writes that wait for it together,
// others read beside it.
//
// A file is ours if its header has our application_id; nothing else is ever opened for writing, created over or upgraded. The
// caller holds a lock that keeps other processes away from the file's directory.
package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"

	"modernc.org/sqlite"
)

// A Schema says what is in a file and how it came to be so.
type Schema struct {
	ApplicationID int32    // SQLite's application_id: tells our file from another program's; not 0
	Name          string   // what the file is, for errors: "token registry"
	Versions      []string // Versions[i] brings a file of version i to i+1; PRAGMA user_version counts
}

// What Open may find instead of a file it can use. Each comes wrapped in a sentence that names the file and says what to do.
var (
	// ErrMissing says that there is no file, or an empty one, and that none was to be created.
	ErrMissing = errors.New("it does not exist")

	// ErrForeign says that another program made the file. Not a byte of it was changed.
	ErrForeign = errors.New("it was not made by this program")

	// ErrNewer says that a later version of this program made or upgraded the file. Nothing in it was changed.
	ErrNewer = errors.New("it was made by a newer version of this program")
)

// ErrClosed says that a write came after Close.
var ErrClosed = errors.New("the database is closed")

// ErrNotBegun says that a transaction could not begin, as while another program has the file locked: nothing of it was written, and
// a later one may.
var ErrNotBegun = errors.New("no transaction could begin")

// readers is the number of connections that read beside the writer. Reads are for operators and for cold resources.
const readers = 4

// A DB is one open file. Its methods may be called from many goroutines at once.
type DB struct {
	writer *writer
	pool   *sql.DB // of the writer's one connection
	reader *sql.DB

	closeOnce sync.Once
	closeErr  error
}

// Open opens the file at path, upgraded to the newest version of s. Where there is none it makes one if create says so, and
// created tells. It fails with [ErrMissing], [ErrForeign] or [ErrNewer], or with an error of the disk.
//
// A crash at any moment leaves no file or a whole one, in its old version or in the new one.
func Open(ctx context.Context, path string, s Schema, create bool) (db *DB, created bool, err error) {
	setUp()
	path, err = filepath.Abs(path) // a later chdir must not move a database whose second file is still to be opened
	if err != nil {
		return nil, false, fmt.Errorf("open the %s: %w", s.Name, err)
	}
	if err := removeLeftovers(path); err != nil {
		return nil, false, fmt.Errorf("clear away what an interrupted start left beside the %s: %w", s.Name, err)
	}
	err = inspect(path, s)
	if errors.Is(err, ErrMissing) && create && !errors.Is(err, errOrphanedLog) {
		created = true
		err = build(ctx, path, s)
	}
	if err != nil {
		return nil, false, err
	}
	db, err = open(ctx, path, s)
	if err != nil {
		return nil, false, err
	}
	return db, created, nil
}

// setUp makes the two choices that the SQLite library has for the whole process, once and before the first file is open.
//
// OFD locks: POSIX locks would fall when anything in this process, inspect included, closes a descriptor of the file
// (cznic/sqlite#255). fdatasync: as durable as fsync for a commit and about twice as fast. Where the system has neither, SQLite
// does without, and the caller's lock on the directory still keeps other processes out.
var setUp = sync.OnceFunc(func() {
	_, _ = sqlite.OFDLocking(true)
	_, _ = sqlite.Fdatasync(true)
})

func open(ctx context.Context, path string, s Schema) (_ *DB, err error) {
	d := &DB{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open the %s %s: %w", s.Name, path, err), d.closePools())
		}
	}()
	if d.pool, err = openPool(path, 1, writing); err != nil {
		return nil, err
	}
	conn, err := d.pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := mustBeWAL(ctx, conn); err != nil {
		return nil, err
	}
	if err := upgrade(ctx, conn, path, s); err != nil {
		return nil, err
	}
	if d.reader, err = openPool(path, readers, "mode=ro&_query_only=1"); err != nil {
		return nil, err
	}
	if err := d.reader.PingContext(ctx); err != nil {
		return nil, err
	}
	d.writer = startWriter(conn)
	return d, nil
}

// writing opens a file for writes that are durable when they are committed.
const writing = "mode=rw&_txlock=immediate&_journal_mode=WAL&_synchronous=FULL&_defensive=1"

// openPool opens path with SQLite's URI parameters and the driver's. They stand in the name and not in statements, for the
// pool makes connections as it likes and each has to have them.
func openPool(path string, conns int, params string) (*sql.DB, error) {
	name := "file:" + (&url.URL{Path: path}).EscapedPath() + "?_busy_timeout=5000&_dqs=0&_error_rc=1&" + params
	connector, err := sqlite.NewConnector(name)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	return pool, nil
}

// mustBeWAL asks for what PRAGMA journal_mode=WAL does not promise: SQLite stays with its old journal, and says no error, where
// the file system has no shared memory.
func mustBeWAL(ctx context.Context, conn *sql.Conn) error {
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file system cannot keep SQLite's write-ahead log (journal mode %q): use a local disk", mode)
	}
	return nil
}

// Reader returns connections that only read. They see every write that Write has returned for.
func (d *DB) Reader() *sql.DB { return d.reader }

// Close waits for the writes that are queued, moves the write-ahead log into the file and closes it. Later writes fail with
// [ErrClosed].
func (d *DB) Close() error {
	d.closeOnce.Do(func() {
		stopped := d.writer.stop()
		d.closeErr = errors.Join(stopped, d.closePools())
	})
	return d.closeErr
}

// closePools closes the writer's connection last: the last one of a file to close is the one that removes its log.
func (d *DB) closePools() error {
	var errs []error
	for _, p := range []*sql.DB{d.reader, d.pool} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}
