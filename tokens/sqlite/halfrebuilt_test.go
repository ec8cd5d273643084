package sqlite

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// TestRepair: how far a rebuild has come is known to later runs, and a margin ends it only once it has come to its end.
func TestRepair(t *testing.T) {
	dir := t.TempDir()
	raise := func(by tokens.Token) func(t *testing.T, r run) {
		return func(t *testing.T, r run) {
			var over *tokens.OverflowError
			if _, err := r.RaiseAll(t.Context(), by); err != nil && !errors.As(err, &over) {
				t.Error(err)
			}
		}
	}
	set := func(state tokens.Repair) func(t *testing.T, r run) {
		return func(t *testing.T, r run) {
			if err := r.SetRepair(t.Context(), state); err != nil {
				t.Error(err)
			}
		}
	}
	for i, step := range []struct {
		do   func(t *testing.T, r run)
		want tokens.Repair
	}{
		{func(t *testing.T, r run) { r.mustRaise(t, tokens.Claim{Resource: "b/a", Token: 34}) }, tokens.RepairNone},
		{raise(1), tokens.RepairNone},
		{set(tokens.RepairNew), tokens.RepairNew},
		{raise(1), tokens.RepairNew}, // tokens are missing, and a margin on the others is none for them
		{set(tokens.RepairKnown), tokens.RepairKnown},
		{raise(1), tokens.RepairKnown},
		{set(tokens.RepairMargin), tokens.RepairMargin},
		{raise(tokens.Max), tokens.RepairMargin}, // it was refused
		{set(tokens.RepairMargin), tokens.RepairMargin},
		{raise(1), tokens.RepairNone},
		{raise(1), tokens.RepairNone},
		{set(tokens.RepairNew), tokens.RepairNew},
		{set(tokens.RepairNone), tokens.RepairNone},
	} {
		r := open(t, dir)
		step.do(t, r)
		for range 2 { // the second time in a run of its own
			if got, err := r.Repair(t.Context()); got != step.want || err != nil {
				t.Errorf("step %d: %q, %v; want %q", i, got, err, step.want)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r = open(t, dir)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMarginOfNothing: a rebuild that has found no resource ends as well.
func TestMarginOfNothing(t *testing.T) {
	r := open(t, t.TempDir())
	defer r.Close()
	if err := r.SetRepair(t.Context(), tokens.RepairMargin); err != nil {
		t.Fatal(err)
	}
	if n, err := r.RaiseAll(t.Context(), 1); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if got, err := r.Repair(t.Context()); got != tokens.RepairNone || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestReplaces: that another registry was in the place of a new one is recorded when it is made, and known to every later run. Its id is not known, and
// so no stamps count for it.
func TestReplaces(t *testing.T) {
	for _, replaces := range []bool{true, false} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			made := time.Now()
			for i := range 3 {
				lock, err := Lock(dir, "a test")
				if err != nil {
					t.Fatal(err)
				}
				// A later run finds the registry, and no other one that it would replace: only the first one's word counts.
				r, err := Open(t.Context(), lock, Options{Create: true, Replaces: replaces == (i == 0)})
				if err != nil {
					t.Fatal(err)
				}
				at, err := r.LastAdopted(t.Context())
				if err != nil || at.IsZero() == replaces || replaces && at.UnixMilli() != made.UnixMilli() {
					t.Errorf("run %d: %v, %v; it was made at %v and replaces another: %v", i, at, err, made, replaces)
				}
				if got := r.Adopted(); len(got) != 0 {
					t.Errorf("adopted are %q", got)
				}
				if err := errors.Join(r.Close(), lock.Release()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Second)
			}
		})
	}
}

// TestRepairFromTheBeginning: that a new registry is to be filled is recorded with its making, and says nothing of one that is there.
func TestRepairFromTheBeginning(t *testing.T) {
	dir := t.TempDir()
	for _, o := range []Options{{Create: true, Repair: tokens.RepairNew}, {}, {Create: true, Repair: tokens.RepairKnown}} {
		lock, err := Lock(dir, "a test")
		if err != nil {
			t.Fatal(err)
		}
		r, err := Open(t.Context(), lock, o)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Repair(t.Context()); got != tokens.RepairNew || err != nil {
			t.Errorf("%+v: %q, %v", o, got, err)
		}
		if err := errors.Join(r.Close(), lock.Release()); err != nil {
			t.Fatal(err)
		}
	}
}
