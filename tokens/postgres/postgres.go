// Package postgres is a token registry that several proxies share: the schema fenceproxy of a PostgreSQL database. What such registries have
// in common is in package fleet; this is its [fleet.Store].
//
// # A raise
//
// A raise is one call of a function in the database, in one transaction: it holds the instance's row, so that nobody can end the
// instance meanwhile, locks the fence, judges, records token and grant, and only then, in a statement that begins when the fence is locked,
// looks for the lower grants and marks them as revoked. Two raises of one resource come one after the other, and the later sees the earlier's grant.
// Who has to give a grant back finds it marked with its next beat; a NOTIFY only makes that sooner.
//
// # What the database may not do
//
// Forget. A restored dump, an older state of the files and a standby that was promoted without all that was acknowledged have marks that are
// too low. So every connection is checked before it is used: the registry has on record on which cluster and timeline it was written, and in
// which transaction, and this process remembers its own last beat. See [ErrRestored].
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

var (
	// ErrMissing says that the database has no registry in it.
	ErrMissing = errors.New("the database has no token registry in it")

	// ErrNewer says that the registry was made by a newer version of this program.
	ErrNewer = errors.New("the token registry was made by a newer version of fenceproxy")

	// ErrRestored says that the database is not the one that the registry was written on, or an older state of it: tokens may be missing.
	ErrRestored = fmt.Errorf("%w: the database may have forgotten tokens", tokens.ErrUnavailable)
)

// Options of Open.
type Options struct {
	// DSN says where the database is and who we are: a URL or a list of keyword=value, as libpq reads them. Of several hosts the one is taken
	// that can be written. It is never in an error or in the log.
	DSN string

	// Create makes a new registry where there is none. Without it that is [ErrMissing].
	Create bool

	// Replaces says that another registry was in the place of one that is created now, and is lost: see [Registry.LastAdopted].
	Replaces bool

	// Repair is how far the rebuild has come that creates it: see [Registry.SetRepair].
	Repair tokens.Repair

	// Lease is how long an instance may go on without word from the database; 10 s if it is 0.
	Lease time.Duration

	// Failover says that what was acknowledged survives a failover, for the operator vouches that the standby that is promoted is a synchronous one.
	// A newer timeline of the same cluster is taken for such a failover then.
	Failover bool

	// AcceptRestored opens a registry that [ErrRestored] is about. [Registry.RaiseAll] takes it into use; nothing else should be called.
	AcceptRestored bool

	Log *slog.Logger // nil: nobody is told

	tracer pgx.QueryTracer // of tests
}

// A Registry is one instance's way to the registry in a database. It implements [tokens.Maintained] and [tokens.Shared].
type Registry struct {
	*fleet.Registry
	store *store
	start tokens.Start
}

// store implements [fleet.Store].
type store struct {
	options Options
	log     *slog.Logger

	calls *pgxpool.Pool // of raises and everything that clients wait for
	beats *pgxpool.Pool // one connection, for what keeps the lease: a pool full of raises must not cost it
	hints chan struct{}

	cancel context.CancelFunc // of the tasks
	tasks  sync.WaitGroup

	mu       sync.Mutex
	life     string   // of the registry when it was opened; guarded by mu
	timeline int64    // the newest that was seen; guarded by mu
	acked    lastBeat // guarded by mu
	adopted  []string // ids of other registries, sorted, as the last look showed them; guarded by mu
}

// lastBeat is what the database has acknowledged, and may not forget.
type lastBeat struct{ incarnation, beat int64 }

// Open opens the registry of a database, upgrades it or makes it. The instance has no right to raise before [Registry.Begin]. It fails with [ErrMissing],
// [ErrNewer] or [ErrRestored], or says what the database must be set to.
func Open(ctx context.Context, o Options) (_ *Registry, err error) {
	if o.Lease == 0 {
		o.Lease = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &store{options: o, log: o.Log, hints: make(chan struct{}, 1)}
	config, err := s.configure()
	if err != nil {
		return nil, err
	}
	start, err := s.setUp(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the token registry in PostgreSQL: %w", err)
	}
	if err := s.openPools(config); err != nil {
		return nil, err
	}
	// What connecting takes is no part of the time that the first beat and the first raise may take.
	_, err = s.Look(ctx)
	if err = errors.Join(err, s.calls.Ping(ctx)); err != nil {
		s.closePools()
		return nil, fmt.Errorf("open the token registry in PostgreSQL: %w", err)
	}
	background, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.tasks.Go(func() { s.listen(background, config.ConnConfig.Copy()) })
	return &Registry{fleet.New(s, fleet.Options{Lease: o.Lease, Log: o.Log}), s, start}, nil
}

// openPools connects to nothing yet.
func (s *store) openPools(config *pgxpool.Config) (err error) {
	ctx := context.Background() // of the making of connections in the background, not of the pool
	if s.calls, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	one := config.Copy()
	one.MinConns, one.MinIdleConns, one.MaxConns = 0, 0, 1
	if s.beats, err = pgxpool.NewWithConfig(ctx, one); err != nil {
		s.calls.Close()
	}
	return err
}

// Start implements [tokens.Maintained]. There is no run: an instance gets its number, the incarnation, with Begin. Nor does it inherit anything: which grants are
// waited for is seen with each look, and what one instance leaves any other removes.
func (r *Registry) Start() tokens.Start { return r.start }

// Close implements [fleet.Store].
func (s *store) Close() error {
	s.cancel()
	s.tasks.Wait()
	s.closePools()
	return nil
}

func (s *store) closePools() {
	s.calls.Close()
	s.beats.Close()
}

// Hints implements [fleet.Store].
func (s *store) Hints() <-chan struct{} { return s.hints }

// listen hears what others notify, over a connection of its own. Whatever is lost on the way, the next look finds.
func (s *store) listen(ctx context.Context, config *pgx.ConnConfig) {
	for ctx.Err() == nil {
		if err := s.listenOnce(ctx, config); err != nil && ctx.Err() == nil {
			s.log.Debug("no word from the database about revoked grants: they are looked for with each beat", "cause", err)
		}
		select {
		case <-time.After(s.options.Lease / 10):
		case <-ctx.Done():
		}
	}
}

func (s *store) listenOnce(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer s.hangUp(conn)
	if _, err := conn.Exec(ctx, "LISTEN fenceproxy"); err != nil {
		return err
	}
	for {
		s.hint() // also at first: what came while nobody listened is lost
		for heard := false; !heard; {
			waitCtx, cancel := context.WithTimeout(ctx, s.options.Lease)
			_, err := conn.WaitForNotification(waitCtx)
			cancel()
			switch {
			case err == nil:
				heard = true
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, context.DeadlineExceeded):
				if err := s.ping(ctx, conn); err != nil {
					return err
				}
			default:
				return err
			}
		}
	}
}

// ping finds out whether a silent connection still leads anywhere.
func (s *store) ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.Lease/2)
	defer cancel()
	return conn.Ping(ctx)
}

func (s *store) hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func (s *store) hint() {
	select {
	case s.hints <- struct{}{}:
	default:
	}
}

// setAdopted takes note of what a look showed.
func (s *store) setAdopted(ids []string) {
	slices.Sort(ids)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopted = ids
}
