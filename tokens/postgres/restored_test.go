package postgres

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// mustBeShut fails the test unless a running instance comes to raise nothing, and says why.
func mustBeShut(t *testing.T, r *Registry, words string) {
	t.Helper()
	var err error
	eventually(t, func() bool {
		_, err = r.Raise(context.Background(), tokens.Claim{Resource: "b/new", Token: 1})
		if err == nil {
			t.Fatal("it raised a token")
		}
		return strings.Contains(err.Error(), words)
	})
	if !errors.Is(err, tokens.ErrUnavailable) {
		t.Errorf("%v; want it unavailable", err)
	}
	mustNotTell(t, err.Error())
}

// acceptAndRaise is what `fenceproxy raise --all-by` does.
func acceptAndRaise(t *testing.T, dsn string, by tokens.Token) {
	t.Helper()
	r := open(t, Options{DSN: dsn, Lease: lease / 2, AcceptRestored: true})
	if _, err := r.RaiseAll(context.Background(), by); err != nil {
		t.Fatal(err)
	}
}

// TestADump: the registry comes to another database of the same cluster, and to another cluster.
func TestADump(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: lease})
	raise(t, r, "b/x", 5)
	if _, err := r.store.Beat(t.Context(), int64(r.Incarnation())); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(p.Dir), "dump.sql")
	p.Run("pg_dump", "-d", p.URL("postgres", name), "-f", file)
	raise(t, r, "b/x", 34)

	copied, copiedDSN := p.Database()
	p.Run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", p.URL("postgres", copied), "-f", file)
	refused(t, Options{DSN: copiedDSN, Create: true, Failover: true}, ErrRestored, "copy", "raise --all-by")

	// In the place of the database that it was taken of, under the eyes of the running instance.
	p.Execute("postgres", "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false")
	p.Execute("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"'")
	p.Execute("postgres", "DROP DATABASE "+name+" WITH (FORCE)")
	p.Execute("postgres", "ALTER DATABASE "+copied+" RENAME TO "+name)
	mustBeShut(t, r, "copy")

	acceptAndRaise(t, dsn, 100)
	mustBeShut(t, r, "start this proxy anew") // its grants were forgotten, and its mark of 34, too
	again := begun(t, Options{DSN: dsn, Lease: lease})
	if e, err := again.Lookup(t.Context(), "b/x"); err != nil || e.Token != 105 {
		t.Errorf("%+v, %v", e, err)
	}
	if at, err := again.LastAdopted(t.Context()); err != nil || time.Since(at) > time.Minute || time.Until(at) > 0 {
		t.Errorf("restored at %v, %v", at, err)
	}
	if len(again.Adopted()) != 0 {
		t.Errorf("adopted: %q", again.Adopted())
	}
	raise(t, again, "b/x", 200)

	other := servers.StartPostgres(t, servers.PostgresOptions{Fresh: true})
	moved, movedDSN := other.Database()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	there := filepath.Join(filepath.Dir(other.Dir), "dump.sql")
	if err := os.WriteFile(there, text, 0o644); err != nil {
		t.Fatal(err)
	}
	other.Run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", other.URL("postgres", moved), "-f", there)
	refused(t, Options{DSN: movedDSN, Failover: true}, ErrRestored, "database cluster", "raise --all-by")
}

// TestHousekeepingIsNoRestore: what rewrites tables leaves the mark by which a copy shows.
func TestHousekeepingIsNoRestore(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: lease})
	raise(t, r, "b/x", 1)
	for _, statement := range []string{"VACUUM FREEZE", "VACUUM FULL", "VACUUM (FULL, FREEZE)", "REINDEX DATABASE " + name, "ANALYZE", "CHECKPOINT", "CREATE INDEX i ON fenceproxy.registry (id)", "CLUSTER fenceproxy.registry USING i"} {
		p.Execute(name, statement)
		open(t, Options{DSN: dsn})
	}
	p.Stop()
	p.Start()
	open(t, Options{DSN: dsn})
	p.Kill()
	p.Start()
	open(t, Options{DSN: dsn})
}

// TestAnOlderStateOfTheFiles has nothing in it that tells. The instance that goes on remembers what was acknowledged to it.
func TestAnOlderStateOfTheFiles(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: 30 * time.Second})
	p.Stop()
	saved := p.Dir + ".saved"
	if out, err := exec.Command("cp", "-a", p.Dir, saved).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	p.Start()
	incarnation := int64(r.Incarnation())
	eventually(t, func() bool { _, err := r.store.Beat(t.Context(), incarnation); return err == nil })
	raise(t, r, "b/x", 34)
	p.Stop()
	if err := errors.Join(os.RemoveAll(p.Dir), os.Rename(saved, p.Dir)); err != nil {
		t.Fatal(err)
	}
	p.Start()
	mustBeShut(t, r, "does not know what it has acknowledged")
}

// TestPromotedAsynchronous: a standby that was promoted is not trusted, whether or not it was behind.
func TestPromotedAsynchronous(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: lease})
	raise(t, r, "b/x", 1)
	s := p.Standby("s1")
	p.WaitReplicated("s1")
	both := servers.Hosts("fenceproxy", "d1", p, s)
	watching := begun(t, Options{DSN: both, Lease: lease})
	refused(t, Options{DSN: servers.Hosts("fenceproxy", "d1", s)}, nil, "read only")
	p.Kill()
	s.Promote()
	refused(t, Options{DSN: both}, ErrRestored, "timeline", "failover: synchronous", "raise --all-by")
	mustBeShut(t, watching, "timeline")

	acceptAndRaise(t, both, 10)
	again := begun(t, Options{DSN: both, Lease: lease})
	raise(t, again, "b/x", 12)
	mustBeShut(t, watching, "start this proxy anew")
}

// TestPromotedSynchronous: where the operator vouches for it, a failover costs no more than the time it takes.
func TestPromotedSynchronous(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	p.Database()
	s := p.Standby("s1")
	p.Execute("postgres", "ALTER SYSTEM SET synchronous_standby_names = 's1'")
	p.Execute("postgres", "SELECT pg_reload_conf()")
	eventually(t, func() bool {
		return p.Value("postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"
	})
	both := servers.Hosts("fenceproxy", "d1", p, s)
	o := Options{DSN: both, Create: true, Failover: true, Lease: 30 * time.Second}
	r := begun(t, o)
	raise(t, r, "b/x", 34)
	incarnation := r.Incarnation()
	p.Kill()
	s.Promote()
	s.Execute("postgres", "ALTER SYSTEM RESET synchronous_standby_names")
	s.Execute("postgres", "SELECT pg_reload_conf()")
	eventually(t, func() bool {
		_, err := r.Raise(context.Background(), tokens.Claim{Resource: "b/x", Token: 35, Settle: time.Second})
		return err == nil
	})
	if r.Incarnation() != incarnation {
		t.Errorf("incarnation %d, then %d: the lease was lost", incarnation, r.Incarnation())
	}
	var stale *tokens.StaleError
	if _, err := r.Raise(context.Background(), tokens.Claim{Resource: "b/x", Token: 34}); !errors.As(err, &stale) || stale.Highest != 35 {
		t.Errorf("%v", err)
	}
	open(t, Options{DSN: both, Lease: lease}) // the new timeline is on record

	// The old primary comes back, and takes itself for the primary still. Who has seen the newer one does not follow it.
	s.Stop()
	p.Start()
	mustBeShut(t, r, "has left behind")
}

// TestUnsure: a commit that was kept from waiting for its standby is no commit.
func TestUnsure(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: time.Minute})
	raise(t, r, "b/x", 1)
	p.Execute("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	p.Execute("postgres", "SELECT pg_reload_conf()")
	eventually(t, func() bool {
		return p.Value("postgres", "SELECT current_setting('synchronous_standby_names')") == "nobody"
	})
	done := make(chan error, 1)
	go func() {
		_, err := r.Raise(context.Background(), tokens.Claim{Resource: "b/x", Token: 2})
		done <- err
	}()
	eventually(t, func() bool {
		select {
		case err := <-done:
			if !errors.Is(err, errUnsure) || !errors.Is(err, tokens.ErrUnavailable) {
				t.Errorf("%v; want it unsure", err)
			}
			return true
		default:
			p.Execute("postgres", "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%fenceproxy.record%'")
			return false
		}
	})
	p.Execute("postgres", "ALTER SYSTEM RESET synchronous_standby_names")
	p.Execute("postgres", "SELECT pg_reload_conf()")
}
