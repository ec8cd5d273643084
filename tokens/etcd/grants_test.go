package etcd

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

var withPrefix = clientv3.WithPrefix()

// keysUnder says how many keys there are.
func keysUnder(t testing.TB, r *Registry, prefix string) int64 {
	t.Helper()
	found, err := r.store.get(t.Context(), string(r.store.keys)+prefix, withPrefix, clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return found.Count
}

// TestMany: more grants than one transaction or one page takes are given back, waited for, revoked and swept.
func TestMany(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	a, b := mustOpen(t, o).store, mustOpen(t, o)
	ctx := t.Context()
	const n = 260
	join := func(s *store) int64 {
		incarnation, err := s.Join(ctx, time.Minute, 0)
		if err != nil {
			t.Fatal(err)
		}
		return incarnation
	}
	record := func(s *store, incarnation int64, token tokens.Token) (recs []fleet.Recorded) {
		for i := range n {
			rec, err := s.Record(ctx, incarnation, tokens.Claim{Resource: fmt.Sprint("b/", i), Token: token, Settle: time.Duration(i%3+1) * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			recs = append(recs, rec)
		}
		return recs
	}
	first, second := join(a), join(b.store)
	record(a, first, 1)
	var ids []tokens.GrantID
	var lower []fleet.GrantRef
	for _, rec := range record(b.store, second, 2) {
		ids = append(ids, rec.Grant.ID)
		lower = append(lower, rec.Lower...)
	}
	if standing, err := b.store.Standing(ctx, lower); len(standing) != n || err != nil {
		t.Errorf("%d stand, %v", len(standing), err)
	}
	view, err := a.Beat(ctx, first)
	if err != nil || len(view.Revoked) != n {
		t.Fatalf("%d are revoked, %v", len(view.Revoked), err)
	}
	var revoked []tokens.GrantID
	for _, rv := range view.Revoked[:n/2] {
		revoked = append(revoked, rv.ID, rv.ID)
	}
	if err := a.Remove(ctx, revoked...); err != nil {
		t.Fatal(err)
	}
	if standing, err := b.store.Standing(ctx, lower); len(standing) != n-n/2 || err != nil {
		t.Errorf("%d stand, %v", len(standing), err)
	}
	if err := a.Leave(ctx, first); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ settled, want time.Duration }{
		{0, time.Minute}, {time.Minute, 2 * time.Minute}, {2 * time.Minute, 3 * time.Minute}, {3 * time.Minute, 0},
	} {
		if next, err := b.store.Sweep(ctx, first, step.settled); next != step.want || err != nil {
			t.Errorf("swept after %v: %v, %v; want %v", step.settled, next, err, step.want)
		}
	}
	if err := b.store.Remove(ctx, ids...); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"grants/", "held/", "revoke/"} {
		if left := keysUnder(t, b, prefix); left != 0 {
			t.Errorf("%d keys are left under %s", left, prefix)
		}
	}
	if left := keysUnder(t, b, "members/"); left != 1 {
		t.Errorf("%d members, want the one that is alive", left)
	}
	if _, err := a.Look(ctx); err != nil { // by now another has swept its grants
		t.Fatal(err)
	}
	if n := len(b.store.granted) + len(b.store.current) + len(a.granted) + len(a.current); n > 0 {
		t.Errorf("%d grants are still in memory", n)
	}
	if _, found, err := a.find(ctx, view.Revoked[n-1].ID); found || err != nil {
		t.Errorf("a swept grant is found, %v", err)
	}
}

// TestForeignID: an id that this process never heard of is found, and one that never was is no error.
func TestForeignID(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	a, b := mustBegin(t, o), mustBegin(t, o)
	g := mustRaise(t, a, "b/a\x00/7", 1, time.Hour)
	if err := b.GiveBack(t.Context(), g.ID, 1<<60, 0); err != nil {
		t.Fatal(err)
	}
	if left := keysUnder(t, a, "grants/") + keysUnder(t, a, "held/"); left != 0 {
		t.Errorf("%d keys are left", left)
	}
}

// TestSpent: late give-backs of what was replaced ask nobody, however many there were.
func TestSpent(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	r := mustBegin(t, o)
	s := r.store
	var last tokens.Grant
	for i := range tokens.Token(20) {
		last = mustRaise(t, r, "b/a", i, time.Minute)
	}
	s.mu.Lock()
	if len(s.granted) != 1 || len(s.current) != 1 || len(s.spent.known) != 19 {
		t.Errorf("%d, %d, %d in memory", len(s.granted), len(s.current), len(s.spent.known))
	}
	for i := range 3 * len(s.spent.last) {
		s.spent.add(tokens.GrantID(1<<40 + i))
	}
	if len(s.spent.known) != len(s.spent.last) {
		t.Errorf("%d spent ones in memory", len(s.spent.known))
	}
	s.mu.Unlock()
	s.remember(fleetGrant{id: last.ID - 1, resource: "b/a", incarnation: int64(last.Incarnation)}) // an answer that comes late
	if _, found, err := s.find(t.Context(), last.ID); !found || err != nil {
		t.Errorf("the one that counts is forgotten, %v", err)
	}
}

// TestGrantsOutliveTheirInstance: whatever becomes of an instance, its grants stay until they have settled, and raises wait for them.
func TestGrantsOutliveTheirInstance(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	o.Lease = time.Second
	a, b := mustOpen(t, o).store, mustOpen(t, o).store
	ctx := t.Context()
	silent, err := a.Join(ctx, o.Lease, 0)
	if err != nil {
		t.Fatal(err)
	}
	alive, err := b.Join(ctx, o.Lease, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Record(ctx, silent, tokens.Claim{Resource: "b/a", Token: 1, Settle: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if err := b.Expel(ctx, fleet.Peer{Incarnation: silent, Beat: 1, Lease: o.Lease}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * time.Second) // etcd itself lets no lease end before 2 s
	rec, err := b.Record(ctx, alive, tokens.Claim{Resource: "b/a", Token: 2, Settle: time.Minute})
	if err != nil || len(rec.Lower) != 1 || rec.Lower[0].Incarnation != silent {
		t.Errorf("to wait for: %+v, %v; want the grant of the one that has ended", rec.Lower, err)
	}
}

// TestGiveBackNamesOneGrant: one that was replaced by a raise whose answer was lost, so that this process takes it for the one that stands.
func TestGiveBackNamesOneGrant(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	a, lost := mustBegin(t, o), mustOpen(t, o)
	g := mustRaise(t, a, "b/a", 1, time.Minute)
	if _, err := lost.store.Record(t.Context(), int64(g.Incarnation), tokens.Claim{Resource: "b/a", Token: 1, Settle: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := a.GiveBack(t.Context(), g.ID); err != nil {
		t.Fatal(err)
	}
	if grants, held := keysUnder(t, a, "grants/"), keysUnder(t, a, "held/"); grants != 1 || held != 1 {
		t.Errorf("%d and %d keys are left; want the grant that took its place", grants, held)
	}
}
