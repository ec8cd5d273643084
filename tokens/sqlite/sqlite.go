// Package sqlite is the embedded token registry: one SQLite file, one process at a time.
//
// # Runs
//
// Each start is a numbered run. A grant's row carries the number of the run that got it and the settle time of what may be
// written under it. A process that was killed leaves its rows; whatever it had sent to a store may still take effect for as
// long as they say. So a run inherits the rows of every earlier run, and a raise waits for those with lower tokens until their
// settle time, counted from the moment this run got the lock on the data directory, is over. A fence that stops cleanly gives
// its grants back first, all but those with a write still open or in doubt.
//
// Grants with a settle time of 0 need no row: the writes of a killed process end with it.
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// FileName is the name of the registry in the data directory.
const FileName = "registry.db"

var schema = sqlitedb.Schema{
	ApplicationID: 0x46_4e_43_52, // FNCR
	Name:          "token registry",
	Versions: []string{`
CREATE TABLE registry (
	id         TEXT NOT NULL,    -- names this registry; a store that is fenced by it remembers the name
	created_at INTEGER NOT NULL  -- ms since 1970
) STRICT;
CREATE TABLE fences (
	resource   TEXT PRIMARY KEY,
	generation INTEGER NOT NULL, -- counts the resets
	token      INTEGER NOT NULL, -- the highest recorded; only Reset takes it down
	holder     TEXT NOT NULL,    -- that the token is bound to, '' if none
	access_key TEXT NOT NULL,
	raised_at  INTEGER NOT NULL  -- ms since 1970
) STRICT, WITHOUT ROWID;
CREATE TABLE runs (
	run        INTEGER PRIMARY KEY AUTOINCREMENT,
	started_at INTEGER NOT NULL, -- ms since 1970
	stopped_at INTEGER           -- null while it runs, and for ever if it was killed
) STRICT;
CREATE TABLE grants (
	id        INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice: a late give-back must not hit a newer grant
	run       INTEGER NOT NULL,
	resource  TEXT NOT NULL,
	token     INTEGER NOT NULL,
	settle_ms INTEGER NOT NULL,
	UNIQUE (run, resource)
) STRICT;
CREATE TABLE uploads (
	upload TEXT PRIMARY KEY,
	token  INTEGER NOT NULL      -- the highest that touched it
) STRICT, WITHOUT ROWID;
`, `
CREATE TABLE mappings (
	position INTEGER PRIMARY KEY, -- of the entries whose names match a bucket, the first one counts
	name     TEXT NOT NULL,
	digest   TEXT NOT NULL,       -- of text
	text     TEXT NOT NULL        -- says what leads a key to its resource
) STRICT;
CREATE TABLE adopted (
	id         TEXT PRIMARY KEY, -- of another registry, whose stamps count as our own; '' is one that this one has replaced, and nobody knows its id
	adopted_at INTEGER NOT NULL  -- ms since 1970
) STRICT, WITHOUT ROWID;
CREATE TABLE repair (
	state TEXT NOT NULL           -- of a rebuild that has not come to its end; no row: there is none
) STRICT;
`, `
CREATE TABLE locks (
	resource   TEXT PRIMARY KEY,
	version    INTEGER NOT NULL, -- counts the changes of the row, which is never removed
	issued     INTEGER NOT NULL, -- the highest token that was ever issued: that of the lease
	lease      TEXT NOT NULL,    -- id of the last one; '' after all tokens were raised
	released   INTEGER NOT NULL, -- 1: it was given back
	taken_over INTEGER NOT NULL, -- 1: the lease before it was not
	holder     TEXT NOT NULL,
	access_key TEXT NOT NULL,
	ttl_ms     INTEGER NOT NULL,
	since      INTEGER NOT NULL, -- ms since 1970, for people; nothing goes by it
	renewed    INTEGER NOT NULL  -- the same
) STRICT, WITHOUT ROWID;
`},
}

// Options of Open.
type Options struct {
	// Create makes a new registry where the file is missing. Without it a missing file is an error (sqlitedb.ErrMissing): an
	// empty registry would let every token in, the old ones too.
	Create bool

	// Replaces says that another registry was in the place of one that is created now, and is lost: see [Registry.LastAdopted].
	Replaces bool

	// Repair is how far the rebuild has come that creates it: see [Registry.SetRepair].
	Repair tokens.Repair
}

// A Registry is one run over one file. It implements [Registry].
type Registry struct {
	db    *sqlitedb.DB
	id    string
	run   int64
	start tokens.Start

	ctx    context.Context // of the goroutine that removes settled grants
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	failed atomic.Pointer[error] // the first failure to write; no raise after it

	mu        sync.Mutex
	inherited map[string][]inherited // grants of earlier runs that have not settled, by resource; guarded by mu
	adopted   []string               // ids of other registries, sorted; guarded by mu
	held      time.Time              // no raise on a store with a settle time returns before; guarded by mu
}

// An inherited grant is one of an earlier run.
type inherited struct {
	id      tokens.GrantID
	token   tokens.Token
	settled time.Time // its writes take effect before this moment or never
}

// Open begins a run over the registry in a locked data directory. Its errors are those of [sqlitedb.Open]. The lock has to be held until
// the registry is closed.
func Open(ctx context.Context, lock *DirLock, o Options) (_ *Registry, err error) {
	r := &Registry{inherited: make(map[string][]inherited)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.release())
		}
	}()
	if r.db, r.start.Created, err = sqlitedb.Open(ctx, filepath.Join(lock.path, FileName), schema, o.Create); err != nil {
		return nil, err
	}
	if err := r.begin(ctx, lock.got, o); err != nil {
		return nil, fmt.Errorf("begin a run of the token registry: %w", err)
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.tasks.Go(r.removeSettled)
	return r, nil
}

// begin numbers the run and takes over what earlier ones have left.
func (r *Registry) begin(ctx context.Context, gotLock time.Time, o Options) error {
	return r.db.Write(ctx, func(tx *sqlitedb.Tx) error {
		if err := r.identify(tx, gotLock, o); err != nil {
			return err
		}
		var unclean int
		if err := tx.QueryRow("SELECT count(*) FROM runs WHERE run = (SELECT max(run) FROM runs) AND stopped_at IS NULL").Scan(&unclean); err != nil {
			return err
		}
		res, err := tx.Exec("INSERT INTO runs (started_at) VALUES (?)", gotLock.UnixMilli())
		if err != nil {
			return err
		}
		if r.run, err = res.LastInsertId(); err != nil {
			return err
		}
		r.start.ID, r.start.Run, r.start.Unclean = r.id, r.run, unclean > 0
		if _, err := tx.Exec("DELETE FROM runs WHERE run < ? - 1000", r.run); err != nil {
			return err
		}
		if err := r.loadAdopted(tx); err != nil {
			return err
		}
		return r.inherit(tx, gotLock)
	})
}

// identify finds the id, or gives one to a new file. A file without an id and without a run is one whose making was ended by a crash:
// nothing was ever recorded in it, and it counts as missing.
func (r *Registry) identify(tx *sqlitedb.Tx, gotLock time.Time, o Options) error {
	err := tx.QueryRow("SELECT id FROM registry").Scan(&r.id)
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	var runs int
	if err := tx.QueryRow("SELECT count(*) FROM runs").Scan(&runs); err != nil {
		return err
	}
	switch {
	case runs > 0:
		return errors.New("it is damaged: it has lost its id. Restore it from a backup")
	case !o.Create:
		return fmt.Errorf("it was never finished, so that %w", sqlitedb.ErrMissing)
	}
	r.id, r.start.Created = rand.Text(), true
	_, err = tx.Exec("INSERT INTO registry (id, created_at) VALUES (?, ?)", r.id, gotLock.UnixMilli())
	if err == nil && o.Replaces {
		_, err = tx.Exec("INSERT INTO adopted (id, adopted_at) VALUES ('', ?)", gotLock.UnixMilli())
	}
	if err == nil && o.Repair != tokens.RepairNone {
		_, err = tx.Exec("INSERT INTO repair (state) VALUES (?)", string(o.Repair))
	}
	return err
}

// inherit reads the grants of every earlier run, not of the last one only: a run may have been too short for the ones before it
// to settle.
func (r *Registry) inherit(tx *sqlitedb.Tx, gotLock time.Time) error {
	rows, err := tx.Query("SELECT id, resource, token, settle_ms FROM grants WHERE run < ? ORDER BY id", r.run)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var g inherited
		var resource string
		var ms int64
		if err := rows.Scan(&g.id, &resource, &g.token, &ms); err != nil {
			return err
		}
		settle := time.Duration(ms) * time.Millisecond
		g.settled = gotLock.Add(settle)
		r.inherited[resource] = append(r.inherited[resource], g)
		r.start.Inherited = append(r.start.Inherited, tokens.InheritedGrant{Resource: resource, Token: g.token, Settle: settle})
	}
	return rows.Err()
}

// Start tells what this run found when it began.
func (r *Registry) Start() tokens.Start { return r.start }

// Begin implements [tokens.Maintained]: the lock on the directory is the right.
func (r *Registry) Begin(context.Context, int64) error { return nil }

// Incarnation is the number of the run: a process has its lease, the lock on the directory, until it ends.
func (r *Registry) Incarnation() uint64 { return uint64(r.run) }

// Close ends the run. Grants that were not given back stay for the next one.
func (r *Registry) Close() error {
	err := r.db.Write(context.Background(), func(tx *sqlitedb.Tx) error {
		_, err := tx.Exec("UPDATE runs SET stopped_at = ? WHERE run = ?", time.Now().UnixMilli(), r.run)
		return err
	})
	return errors.Join(err, r.release())
}

// release lets everything go as the end of the process would.
func (r *Registry) release() error {
	if r.cancel != nil {
		r.cancel()
		r.tasks.Wait()
	}
	if r.db == nil {
		return nil
	}
	return r.db.Close()
}

// write runs f durably. After a failure nothing can be said of what is on the disk, so no raise follows until a new run has
// read it again.
func (r *Registry) write(ctx context.Context, f func(*sqlitedb.Tx) error) error {
	if err := r.Failure(); err != nil {
		return err
	}
	// Not cut short by ctx: the outcome has to be known, and it is a local disk.
	err := r.db.Write(context.WithoutCancel(ctx), f)
	switch {
	case err == nil, errors.Is(err, sqlitedb.ErrClosed):
		return err
	case errors.Is(err, sqlitedb.ErrNotBegun): // another program has the file locked: nothing was written, and that is known
		return fmt.Errorf("%w: %w", tokens.ErrUnavailable, err)
	}
	return r.fail(err)
}

func (r *Registry) fail(err error) error {
	err = fmt.Errorf("%w: it failed to write and raises no token until the proxy is restarted: %w", tokens.ErrUnavailable, err)
	r.failed.CompareAndSwap(nil, &err)
	return err
}

// Failure is why this run raises no token any more, nil if it does.
func (r *Registry) Failure() error {
	if err := r.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// removeSettled forgets inherited grants when their time is over.
func (r *Registry) removeSettled() {
	for {
		next, ids := r.settledGrants(time.Now())
		if len(ids) > 0 && r.GiveBack(r.ctx, ids...) != nil {
			return // they hold nobody up in this run; the next one will wait for them once more
		}
		if next.IsZero() {
			return
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-r.ctx.Done():
			timer.Stop()
			return
		}
	}
}

// settledGrants takes what has settled out of memory and says when the next one does.
func (r *Registry) settledGrants(now time.Time) (next time.Time, ids []tokens.GrantID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for resource, grants := range r.inherited {
		var left []inherited
		for _, g := range grants {
			if g.settled.After(now) {
				left = append(left, g)
				if next.IsZero() || g.settled.Before(next) {
					next = g.settled
				}
			} else {
				ids = append(ids, g.id)
			}
		}
		if len(left) == 0 {
			delete(r.inherited, resource)
		} else {
			r.inherited[resource] = left
		}
	}
	return next, ids
}

// waitSettled waits until no earlier run can bring a write into effect on the resource with a token that concerns says yes to.
func (r *Registry) waitSettled(ctx context.Context, resource string, concerns func(tokens.Token) bool) error {
	return r.waitUntil(ctx, r.settles(resource, concerns))
}

func (r *Registry) waitUntil(ctx context.Context, t time.Time) error {
	wait := time.Until(t)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-r.ctx.Done():
		return fmt.Errorf("%w: the registry is closed", tokens.ErrUnavailable)
	}
}

// settles says when the last of these inherited grants has settled; the zero time if there is none.
func (r *Registry) settles(resource string, concerns func(tokens.Token) bool) (last time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.inherited[resource] {
		if concerns(g.token) && g.settled.After(last) {
			last = g.settled
		}
	}
	return last
}

// Unsettled says how many resources have writes of earlier runs that may still take effect, and for how long at most.
func (r *Registry) Unsettled() (resources int, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, grants := range r.inherited {
		for _, g := range grants {
			wait = max(wait, time.Until(g.settled))
		}
	}
	return len(r.inherited), wait
}

// WaitSettled waits until no write of an earlier run can take effect any more.
func (r *Registry) WaitSettled(ctx context.Context) error {
	_, wait := r.Unsettled()
	return r.waitUntil(ctx, time.Now().Add(wait))
}
