package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// maxGroup is the largest number of writes that one transaction carries. A larger one makes the first of them wait longer, and
// gains little: one sync is already shared by 256.
const maxGroup = 256

// Write runs f inside a transaction that it shares with other writes, in a goroutine that is not the caller's. When Write
// returns nil, what f wrote is on disk and Reader sees it.
//
// If any f of the transaction returns an error or panics, or the commit fails, all of it is rolled back and every caller gets an
// error: so f returns errors for failures only, and hands an outcome that is merely unwelcome out through its closure. An f that
// comes after one that failed is not run.
//
// If ctx ends first, Write returns ctx's error, the outcome is unknown, and f may still be running: what it writes to must not be
// looked at then. An error of the commit leaves the outcome unknown, too: the log may hold it after a crash.
func (d *DB) Write(ctx context.Context, f func(*Tx) error) error {
	return d.writer.do(ctx, f)
}

// A Tx is a transaction as one f of Write sees it, and of no use after f returned. Query texts are prepared once and kept, so they
// are constants with parameters.
type Tx struct {
	w *writer
}

// Exec runs a statement that returns no rows.
func (t *Tx) Exec(query string, args ...any) (sql.Result, error) {
	st, err := t.w.prepare(query)
	if err != nil {
		return nil, err
	}
	return st.Exec(args...)
}

// QueryRow runs a query that returns at most one row. Errors are deferred until Scan.
func (t *Tx) QueryRow(query string, args ...any) *sql.Row {
	st, err := t.w.prepare(query)
	if err != nil {
		// The one way to an sql.Row with an error in it: let the connection meet the same one.
		return t.w.conn.QueryRowContext(context.Background(), query, args...)
	}
	return st.QueryRow(args...)
}

// Query runs a query that returns rows. They have to be closed before f returns.
func (t *Tx) Query(query string, args ...any) (*sql.Rows, error) {
	st, err := t.w.prepare(query)
	if err != nil {
		return nil, err
	}
	return st.Query(args...)
}

// A write is one call of Write on its way.
type write struct {
	ctx  context.Context
	f    func(*Tx) error
	done chan error // has room for the one answer: the writer never waits for a caller
}

// A writer owns the one connection that writes.
type writer struct {
	conn       *sql.Conn            // used by run only, until it has ended
	statements map[string]*sql.Stmt // by text; used by run only
	commits    atomic.Int64

	wake  chan struct{} // holds one token while run has something to look for
	ended chan struct{} // closed when run has returned

	mu       sync.Mutex
	queue    []*write // guarded by mu; as long as there are callers that wait
	stopping bool     // guarded by mu
}

func startWriter(conn *sql.Conn) *writer {
	w := &writer{conn: conn, statements: map[string]*sql.Stmt{}, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w
}

func (w *writer) do(ctx context.Context, f func(*Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := &write{ctx: ctx, f: f, done: make(chan error, 1)}
	if !w.enqueue(r) {
		return ErrClosed
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *writer) enqueue(r *write) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping {
		return false
	}
	w.queue = append(w.queue, r)
	w.signal()
	return true
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // run has not seen the last signal yet and will find this one's reason with it
	}
}

// run commits what waits, at once and together: a lone write waits for nobody, and the writes that come during its sync are the
// next group.
func (w *writer) run() {
	defer close(w.ended)
	for {
		group, stopping := w.next()
		if len(group) > 0 {
			w.commit(group)
			continue
		}
		if stopping {
			return
		}
		<-w.wake
	}
}

// next takes the group that is next off the queue. Writes whose callers have gone are left out: nobody was told anything of them.
func (w *writer) next() (group []*write, stopping bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 && len(group) < maxGroup {
		if r := w.queue[0]; r.ctx.Err() == nil {
			group = append(group, r)
		}
		w.queue[0] = nil
		w.queue = w.queue[1:]
	}
	if len(w.queue) == 0 {
		w.queue = nil
	}
	return group, w.stopping && w.queue == nil
}

func (w *writer) commit(group []*write) {
	err := w.transact(group)
	for _, r := range group {
		r.done <- err
	}
}

// transact answers nil only when SQLite has synced the log. Until then a crash loses the whole group and nobody was told.
func (w *writer) transact(group []*write) error {
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	for _, r := range group {
		if err := call(r.f, &Tx{w}); err != nil {
			return errors.Join(err, w.rollback())
		}
	}
	if err := w.exec("COMMIT"); err != nil {
		return errors.Join(fmt.Errorf("commit: %w", err), w.rollback())
	}
	w.commits.Add(1)
	return nil
}

// rollback leaves no transaction open. SQLite may have ended it by itself (a full disk, an I/O error), which is what the failed
// ROLLBACK says then; if it has not, the next BEGIN fails, and every write from there on.
func (w *writer) rollback() error {
	err := w.exec("ROLLBACK")
	if err == nil {
		return nil
	}
	if beginErr := w.exec("BEGIN"); beginErr == nil {
		return w.exec("ROLLBACK")
	}
	return fmt.Errorf("roll back: %w", err)
}

// call makes a panic in f an error of its transaction: the writer goes on, and everybody in the group hears of it.
func call(f func(*Tx) error, t *Tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a write: %v\n%s", p, debug.Stack())
		}
	}()
	return f(t)
}

func (w *writer) exec(query string) error {
	_, err := (&Tx{w}).Exec(query)
	return err
}

func (w *writer) prepare(query string) (*sql.Stmt, error) {
	if st, ok := w.statements[query]; ok {
		return st, nil
	}
	st, err := w.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	w.statements[query] = st
	return st, nil
}

// stop waits for the queue to empty and brings the log into the file, so that what is left is one file to copy.
func (w *writer) stop() error {
	w.mu.Lock()
	w.stopping = true
	w.signal()
	w.mu.Unlock()
	<-w.ended
	var errs []error
	for _, st := range w.statements {
		errs = append(errs, st.Close())
	}
	_, err := w.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)")
	return errors.Join(append(errs, err, w.conn.Close())...)
}
