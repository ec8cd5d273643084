package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A run is a registry with the lock that it lives under.
type run struct {
	*Registry
	lock *DirLock
}

func (r run) Close() error { return errors.Join(r.Registry.Close(), r.lock.Release()) }

func open(t testing.TB, dir string) run {
	t.Helper()
	lock, err := Lock(dir, "a test")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(context.Background(), lock, Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	return run{r, lock}
}

func TestConformance(t *testing.T) {
	tokenstest.Run(t, tokenstest.Harness{
		Open: func(t testing.TB, dir string) tokens.Registry { return open(t, dir) },
		Kill: func(t testing.TB, r tokens.Registry) {
			if err := errors.Join(r.(run).release(), r.(run).lock.Release()); err != nil {
				t.Fatal(err)
			}
		},
	})
}

func TestOneProcessPerDirectory(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	_, err := Lock(dir, "another")
	var locked *LockedError
	if !errors.As(err, &locked) || !strings.Contains(err.Error(), "a test") || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v; want to be told who has it", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).Close(); err != nil {
		t.Error(err)
	}
}

func TestStartTellsHowTheLastRunEnded(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	if s := first.Start(); !s.Created || s.Unclean || s.Run != 1 || s.ID == "" {
		t.Errorf("first: %+v", s)
	}
	if _, err := first.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 34, Settle: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.release(), first.lock.Release()); err != nil { // killed
		t.Fatal(err)
	}
	second := open(t, dir)
	if s := second.Start(); s.Created || !s.Unclean || s.Run != 2 || s.ID != first.Start().ID ||
		len(s.Inherited) != 1 || s.Inherited[0] != (tokens.InheritedGrant{Resource: "b/a", Token: 34, Settle: time.Hour}) {
		t.Errorf("second: %+v", s)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	third := open(t, dir)
	if s := third.Start(); s.Unclean || s.Run != 3 || len(s.Inherited) != 1 {
		t.Errorf("third: %+v", s)
	}
	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestKilledWhileItWasMade: a file that no run has begun on is no registry yet, and one that has lost its id is not taken for it.
func TestKilledWhileItWasMade(t *testing.T) {
	dir := t.TempDir()
	db, _, err := sqlitedb.Open(t.Context(), filepath.Join(dir, FileName), schema, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	refused := func(o Options) error {
		t.Helper()
		lock, err := Lock(dir, "a test")
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Release()
		if r, err := Open(t.Context(), lock, o); err != nil {
			return err
		} else if err := r.Close(); err != nil {
			t.Error(err)
		}
		return nil
	}
	if err := refused(Options{}); !errors.Is(err, sqlitedb.ErrMissing) {
		t.Errorf("%v; want it to count as missing", err)
	}
	r := open(t, dir)
	if s := r.Start(); !s.Created || s.Run != 1 || s.ID == "" {
		t.Errorf("it began as %+v", s)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	execute(t, filepath.Join(dir, FileName), "DELETE FROM registry")
	if err := refused(Options{Create: true}); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("%v; want it refused as damaged", err)
	}
}

// TestAnotherProgramsLock: a file that is locked for longer than we wait costs a raise, and not the run.
func TestAnotherProgramsLock(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	defer r.Close()
	other, err := sql.Open("sqlite", "file:"+filepath.Join(dir, FileName)+"?mode=rw")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	conn, err := other.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 34}); !errors.Is(err, tokens.ErrUnavailable) {
		t.Errorf("%v; want it unavailable", err)
	}
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 34}); err != nil || r.Failure() != nil {
		t.Errorf("afterwards: %v, %v", err, r.Failure())
	}
}

// TestAfterAFailedWriteNoRaise: what is on the disk is not known then, until a new run has read it.
func TestAfterAFailedWriteNoRaise(t *testing.T) {
	r := open(t, t.TempDir())
	defer r.lock.Release()
	defer r.release()
	if _, err := r.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 34}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: -1 << 62, Settle: -1}); err == nil {
		t.Fatal("nonsense was recorded")
	}
	if r.Failure() != nil {
		t.Fatal("a refusal counts as a failure")
	}
	r.fail(errors.New("input/output error"))
	if _, err := r.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 35}); !errors.Is(err, tokens.ErrUnavailable) || !strings.Contains(err.Error(), "restart") {
		t.Errorf("%v; want it unavailable until a restart", err)
	}
	if e, err := r.Lookup(t.Context(), "b/a"); err != nil || e.Token != 34 {
		t.Errorf("%+v, %v", e, err)
	}
}
