package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// joined opens a registry whose store is used directly, and joins.
func joined(t testing.TB, dsn string) (*store, int64) {
	t.Helper()
	r := open(t, Options{DSN: dsn, Create: true, Lease: 20 * time.Second})
	incarnation, err := r.store.Join(context.Background(), time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r.store, incarnation
}

// TestAGrantThatIsRecordedBeforeTheFenceIsLocked is seen. A raise that is not committed holds the fence; the one that waits for it began before the grant was
// there, and must find it.
func TestAGrantThatIsRecordedBeforeTheFenceIsLocked(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	_, first := joined(t, dsn)
	s, second := joined(t, dsn)
	for _, known := range []bool{false, true} { // whether the resource has a row before
		resource := fmt.Sprintf("b/%v", known)
		if known {
			if _, err := s.Record(t.Context(), second, tokens.Claim{Resource: resource, Token: 0}); err != nil {
				t.Fatal(err)
			}
		}
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, p.URL("fenceproxy", name))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var outcome string
		var id int64
		if err := tx.QueryRow(ctx, "SELECT outcome, id FROM fenceproxy.record($1, $2, 0, 1, '', '', 60000)", first, []byte(resource)).Scan(&outcome, &id); err != nil || outcome != "recorded" {
			t.Fatalf("%s, %v", outcome, err)
		}
		var rec fleet.Recorded
		done := make(chan error, 1)
		go func() {
			var err error
			rec, err = s.Record(ctx, second, tokens.Claim{Resource: resource, Token: 2, Settle: time.Minute})
			done <- err
		}()
		eventually(t, func() bool {
			return p.Value("postgres", "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fenceproxy.record%'") == "1"
		})
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if len(rec.Lower) != 1 || rec.Lower[0].ID != tokens.GrantID(id) || rec.Lower[0].Incarnation != first {
			t.Errorf("known %v: lower %+v; want grant %d of %d", known, rec.Lower, id, first)
		}
	}
}

// TestNoDeadlocks: raises, give-backs, beats, sweeps, resets and ends on a few resources, all at once.
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	began := time.Now()
	ctx := context.Background()
	var calls, lost atomic.Int64
	enough := func() bool { return calls.Load() >= 500 && lost.Load() > 0 }
	goesOn := func() bool { // eight seconds, or for as long as a loaded machine takes to do something
		passed := time.Since(began)
		return passed < 8*time.Second || !enough() && passed < time.Minute
	}
	var wait sync.WaitGroup
	var tokensGiven atomic.Int64
	for n := range 3 {
		s, first := joined(t, dsn)
		var incarnation atomic.Int64
		incarnation.Store(first)
		var mu sync.Mutex
		var mine []tokens.GrantID
		note := func(what string, err error) {
			calls.Add(1)
			var stale *tokens.StaleError
			var reset *tokens.ResetError
			switch {
			case err == nil, errors.As(err, &stale), errors.As(err, &reset):
			case errors.Is(err, fleet.ErrEnded):
				lost.Add(1)
			default:
				t.Errorf("%s: %v", what, err)
			}
		}
		for range 3 {
			wait.Go(func() { // raises, and gives many back at once
				for goesOn() {
					resource := fmt.Sprintf("b/%d", rand.IntN(4))
					e, err := s.Lookup(ctx, resource)
					note("lookup", err)
					rec, err := s.Record(ctx, incarnation.Load(), tokens.Claim{Resource: resource, Token: tokens.Token(tokensGiven.Add(1)), Generation: e.Generation, Settle: time.Millisecond})
					note("record", err)
					mu.Lock()
					if mine = append(mine, rec.Grant.ID); len(mine) > 6 {
						rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
						ids := slices.Clone(mine)
						mine = mine[:0]
						mu.Unlock()
						note("remove", s.Remove(ctx, ids...))
						continue
					}
					mu.Unlock()
				}
			})
		}
		wait.Go(func() { // beats, answers revocations, sweeps, expels, and is expelled
			for goesOn() {
				v, err := s.Beat(ctx, incarnation.Load())
				note("beat", err)
				if errors.Is(err, fleet.ErrEnded) {
					again, err := s.Join(ctx, time.Hour, 0)
					note("join", err)
					incarnation.Store(again)
					continue
				}
				var ids []tokens.GrantID
				for _, rv := range v.Revoked {
					ids = append(ids, rv.ID)
				}
				note("give back", s.Remove(ctx, ids...))
				for _, ended := range v.Ended {
					_, err := s.Sweep(ctx, ended, time.Second)
					note("sweep", err)
				}
				if peer := v.Alive[rand.IntN(len(v.Alive))]; rand.IntN(20) == 0 {
					note("expel", s.Expel(ctx, peer))
				}
				if n == 0 && rand.IntN(10) == 0 {
					_, _, err := s.RecordReset(ctx, incarnation.Load(), fmt.Sprintf("b/%d", rand.IntN(4)), 0)
					note("reset", err)
				}
			}
		})
	}
	wait.Wait()
	t.Logf("%d calls, %d of them under an incarnation that had ended", calls.Load(), lost.Load())
	if !enough() {
		t.Error("too little happened to show anything")
	}
	if n := p.Value("postgres", "SELECT deadlocks FROM pg_stat_database WHERE datname = '"+name+"'"); n != "0" {
		t.Errorf("%s deadlocks", n)
	}
	if n := p.Value(name, "SELECT count(*) FROM fenceproxy.grants g JOIN fenceproxy.fences f USING (resource) WHERE (g.generation, g.token) < (f.generation, f.token) AND NOT g.revoked"); n != "0" {
		t.Errorf("%s lower grants are not asked for", n)
	}
}

// TestRestartDuringRaises: what was answered is there afterwards, and nobody is let through by what was not.
func TestRestartDuringRaises(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	var all []*Registry
	for range 3 {
		all = append(all, begun(t, Options{DSN: dsn, Create: true, Lease: lease}))
	}
	const resources = 4
	var recorded [resources]atomic.Int64
	var next, done, failed atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	for _, r := range all {
		for i := range resources {
			wait.Go(func() {
				for ctx.Err() == nil {
					token := next.Add(1)
					before := recorded[i].Load()
					_, err := r.Raise(ctx, tokens.Claim{Resource: fmt.Sprintf("b/%d", i), Token: tokens.Token(token), Settle: 10 * time.Millisecond})
					var stale *tokens.StaleError
					switch {
					case err == nil:
						if token < before {
							t.Errorf("token %d was raised to after %d was answered", token, before)
						}
						done.Add(1)
						for seen := recorded[i].Load(); token > seen && !recorded[i].CompareAndSwap(seen, token); seen = recorded[i].Load() {
						}
					case errors.As(err, &stale):
					default:
						failed.Add(1)
						time.Sleep(5 * time.Millisecond)
					}
				}
			})
		}
	}
	for _, end := range []func(){p.Kill, p.Stop, p.Kill} {
		was := done.Load()
		eventually(t, func() bool { return done.Load() > was+20 })
		end()
		p.Start()
	}
	was := done.Load()
	eventually(t, func() bool { return done.Load() > was+20 })
	stop()
	wait.Wait()
	t.Logf("%d raises, %d failed for the restarts", done.Load(), failed.Load())
	if failed.Load() == 0 {
		t.Error("no raise was hit by a restart")
	}
	for i := range resources {
		e, err := all[0].Lookup(t.Context(), fmt.Sprintf("b/%d", i))
		if err != nil || int64(e.Token) < recorded[i].Load() {
			t.Errorf("resource %d: %+v, %v; %d was answered", i, e, err, recorded[i].Load())
		}
	}
}

// TestAPoolFullOfRaises does not cost the lease, which has a connection of its own.
func TestAPoolFullOfRaises(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: 2 * lease})
	raise(t, r, "b/x", 1)
	incarnation := r.Incarnation()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, p.URL("postgres", name))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "SELECT FROM fenceproxy.fences FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	end := time.Now().Add(4 * lease)
	for range 2 * maxConns {
		wait.Go(func() {
			for time.Now().Before(end) {
				if _, err := r.Raise(ctx, tokens.Claim{Resource: "b/x", Token: 2}); !errors.Is(err, tokens.ErrUnavailable) {
					t.Errorf("%v", err)
				}
			}
		})
	}
	wait.Wait()
	if err := tx.Rollback(ctx); err != nil {
		t.Error(err)
	}
	if now := r.Incarnation(); now != incarnation {
		t.Errorf("incarnation %d, then %d", incarnation, now)
	}
	raise(t, r, "b/x", 2)
}

// TestWithoutWordFromTheDatabase: notifications that are lost cost a beat, and no more.
func TestWithoutWordFromTheDatabase(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	a := begun(t, Options{DSN: dsn, Create: true, Lease: 2 * lease})
	b := begun(t, Options{DSN: dsn, Lease: 2 * lease})
	stop := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				p.Execute("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN fenceproxy'")
			}
		}
	})
	for token := range tokens.Token(3) {
		raise(t, a, "b/x", 2*token+1)
		raise(t, b, "b/x", 2*token+2)
	}
	close(stop)
	wait.Wait()
	eventually(t, func() bool { // it listens again
		return p.Value("postgres", "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN fenceproxy'") == "2"
	})
}

func TestMaintained(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	ctx := t.Context()
	a := open(t, Options{DSN: dsn, Create: true, Replaces: true, Repair: tokens.RepairNew, Lease: lease})
	if at, err := a.LastAdopted(ctx); err != nil || time.Since(at) > time.Minute {
		t.Errorf("replaced at %v, %v", at, err)
	}
	for _, want := range []tokens.Repair{tokens.RepairNew, tokens.RepairKnown, tokens.RepairMargin} {
		if want != tokens.RepairNew {
			if err := a.SetRepair(ctx, want); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := a.Repair(ctx); got != want || err != nil {
			t.Errorf("repair %q, %v; want %q", got, err, want)
		}
	}

	at := time.UnixMilli(1700000000001)
	for _, step := range []struct {
		marks  map[string]tokens.Mark
		raised int64
	}{
		{map[string]tokens.Mark{"b/x": {Token: 5}, "b/y": {Token: 6, Generation: 2}, "b/\xff\x00": {Token: 1}, "c/z": {Generation: 1}}, 3},
		{map[string]tokens.Mark{"b/x": {Token: 7}, "b/y": {Token: 5, Generation: 1}, "b/n": {}}, 0},
	} {
		if n, err := a.RaiseTo(ctx, step.marks, at); n != step.raised || err != nil {
			t.Errorf("raised %d, %v; want %d", n, err, step.raised)
		}
	}
	entries, err := a.List(ctx, "", "", 10)
	want := []string{"b/x 7 0", "b/y 6 2", "b/\xff\x00 1 0", "c/z 0 1"}
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprintf("%s %d %d", e.Resource, e.Token, e.Generation))
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if n, err := a.Count(ctx, "b/"); n != 3 || err != nil {
		t.Errorf("%d of b, %v", n, err)
	}
	var over *tokens.OverflowError
	if _, err := a.RaiseAll(ctx, tokens.Max-6); !errors.As(err, &over) || over.Resource != "b/x" || over.Token != 7 {
		t.Errorf("%v", err)
	}
	if n, err := a.RaiseAll(ctx, 10); n != 3 || err != nil {
		t.Errorf("raised %d, %v", n, err)
	}
	if state, err := a.Repair(ctx); state != tokens.RepairNone || err != nil {
		t.Errorf("repair %q, %v", state, err)
	}

	// Mappings: additions end nobody's lease, a remap does, and what was not seen is not overwritten.
	all, version, err := a.Mappings(ctx)
	if len(all) != 0 || version != 0 || err != nil {
		t.Errorf("%v, %d, %v", all, version, err)
	}
	list := []tokens.Mapping{{Name: "b", Digest: "1", Text: "é\x00"}, {Name: "a", Digest: "2", Text: "{}"}}
	if version, err = a.RecordMappings(ctx, list, version, false); err != nil || version != 1 {
		t.Fatalf("%d, %v", version, err)
	}
	if err := a.Begin(ctx, version); err != nil {
		t.Fatal(err)
	}
	b := open(t, Options{DSN: dsn, Lease: lease})
	all, version, err = b.Mappings(ctx)
	if err != nil || !slices.Equal(all, list) {
		t.Errorf("%v, %v", all, err)
	}
	longer := append(list, tokens.Mapping{Name: "c"})
	if _, err := b.RecordMappings(ctx, longer, version-1, false); !errors.Is(err, tokens.ErrRemapped) {
		t.Errorf("%v", err)
	}
	if version, err = b.RecordMappings(ctx, longer, version, false); err != nil {
		t.Fatal(err)
	}
	if err := b.Begin(ctx, version); err != nil {
		t.Fatal(err)
	}
	raise(t, a, "b/x", 20) // goes on

	// An instance that is alive is not raised away from under its writes; one that is silent is ended.
	if _, err := open(t, Options{DSN: dsn, Lease: lease}).RaiseAll(ctx, 1); err == nil || !strings.Contains(err.Error(), "Stop them first") {
		t.Errorf("%v", err)
	}
	const other = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	if err := errors.Join(b.Adopt(ctx, other), b.Adopt(ctx, other), b.Adopt(ctx, b.Start().ID)); err != nil {
		t.Error(err)
	}
	if err := b.Adopt(ctx, "x"); err == nil {
		t.Error("adopted x")
	}
	eventually(t, func() bool { return slices.Equal(a.Adopted(), []string{other}) })

	c := open(t, Options{DSN: dsn, Lease: lease})
	if version, err = c.RecordMappings(ctx, list, version, true); err != nil || version>>epochShift != 1 {
		t.Fatalf("%d, %v", version, err)
	}
	eventually(t, func() bool { return a.Failure() != nil && b.Failure() != nil })
	if err := c.Begin(ctx, version); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Raise(ctx, tokens.Claim{Resource: "b/x", Token: 21, Settle: time.Hour}); err != nil {
		t.Error(err)
	}
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	d := open(t, Options{DSN: dsn, Lease: lease})
	if n, err := d.RaiseAll(ctx, 100); err != nil || n != 3 {
		t.Errorf("raised %d, %v, over silent instances", n, err)
	}
	if err := d.Begin(ctx, version); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := d.Raise(short, tokens.Claim{Resource: "b/x", Token: 200}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; want it to wait for the grant of the one that was killed", err)
	}
	raise(t, d, "b/other", 200)
}
