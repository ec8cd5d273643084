package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// TestRestored: tokens that were recorded after a snapshot are gone with its restore. Whoever ran notices, by the cluster's new id, or, where it
// was given the old one, by what etcd does not know any more; whoever comes later is told. Nobody gets a right to write until the marks are raised,
// and who went on running not even then.
func TestRestored(t *testing.T) {
	t.Parallel()
	for name, sameID := range map[string]bool{"as another cluster": false, "under its old id": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := servers.StartEtcd(t, servers.EtcdOptions{})
			o := optionsFor(t, cluster)
			running := mustBegin(t, o)
			ctx := t.Context()
			mustRaise(t, running, "b/a", 34, time.Minute)
			snapshot := cluster.Snapshot()
			mustRaise(t, running, "b/a", 36, time.Minute)
			time.Sleep(o.Lease) // some beats

			cluster.Restore(snapshot, sameID)
			eventually(t, "the lease is over", func() bool { return running.Incarnation() == 0 })
			_, err := running.Raise(ctx, tokens.Claim{Resource: "b/a", Token: 35})
			eventually(t, "the one that ran says why", func() bool {
				_, err = running.Raise(ctx, tokens.Claim{Resource: "b/a", Token: 35})
				return errors.Is(err, ErrRestored)
			})
			if !errors.Is(err, tokens.ErrUnavailable) || !strings.Contains(err.Error(), "--all-by") {
				t.Errorf("%v; want it to say what happened and what to do", err)
			}
			if _, err := running.Lookup(ctx, "b/a"); !errors.Is(err, ErrRestored) {
				t.Errorf("a lookup: %v", err)
			}
			var late *Registry
			eventually(t, "one that comes later is told", func() bool {
				late, err = tryOpen(o)
				return err != nil
			})
			if !errors.Is(err, ErrRestored) || !strings.Contains(err.Error(), "--all-by") {
				t.Errorf("one that comes later: %v, %v", late, err)
			}
			o.AcceptRestored = true
			admin := mustOpen(t, o)
			before := time.Now()
			if n, err := admin.RaiseAll(ctx, 1000); n != 1 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			if waited := time.Since(before); waited < o.Lease {
				t.Errorf("it waited %v; one that has not noticed goes on for %v", waited, o.Lease)
			}
			at, err := admin.LastAdopted(ctx)
			if err != nil || at.Before(before) {
				t.Errorf("another registry was here before %v, %v; want after %v", at, err, before)
			}
			o.AcceptRestored = false
			fresh := mustBegin(t, o)
			if diff := cmp.Diff(map[string]tokens.Token{"b/a": 1034}, recorded(t, fresh)); diff != "" {
				t.Error(diff)
			}
			if fresh.Start().ID != running.Start().ID {
				t.Error("it has another id")
			}
			if _, err := fresh.Raise(ctx, tokens.Claim{Resource: "b/a", Token: 36}); !errors.As(err, new(*tokens.StaleError)) {
				t.Errorf("the holder from before: %v", err)
			}
			time.Sleep(o.Lease)
			if _, err := running.Raise(ctx, tokens.Claim{Resource: "b/a", Token: 2000}); !errors.Is(err, ErrRestored) {
				t.Errorf("the one that went on running: %v", err)
			}
			if late, err := tryOpen(o); err != nil { // it has not halted the others once more
				t.Error(err)
			} else {
				_ = late.Close()
			}
		})
	}
}

// TestRestoredUnseen: one that was not running to see it, or whose own marks were in the snapshot, is told when it comes back, and where the marks were
// raised by then it must be started anew: it knows nothing of what was let through since.
func TestRestoredUnseen(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	o := optionsFor(t, cluster)
	o.Lease = time.Minute
	slept, err := tryOpen(o)
	if err != nil {
		t.Fatal(err)
	}
	defer slept.Close()
	ctx := t.Context()
	incarnation, err := slept.store.Join(ctx, o.Lease, 0)
	if err != nil {
		t.Fatal(err)
	}
	snapshot := cluster.Snapshot()
	cluster.Restore(snapshot, false)
	if _, err := tryOpen(o); !errors.Is(err, ErrRestored) {
		t.Errorf("by its id alone: %v", err)
	}
	admin := o
	admin.AcceptRestored, admin.Lease = true, time.Second
	r := mustOpen(t, admin)
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := r.RaiseAll(limited, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; want it to wait for the lease of the one that is in the snapshot, %v", err, o.Lease)
	}
	if _, err := slept.store.Beat(ctx, incarnation); err == nil {
		t.Error("it beats on")
	}
	if _, err := slept.store.Join(ctx, o.Lease, 0); !errors.Is(err, ErrRestored) {
		t.Errorf("it comes back: %v", err)
	}
}

// TestMadeAnew: a registry that was put in the place of the one that a proxy goes by is another one.
func TestMadeAnew(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	o := optionsFor(t, cluster)
	running := mustBegin(t, o)
	mustRaise(t, running, "b/a", 34, 0)
	if _, err := cluster.Client().Delete(t.Context(), o.Prefix, withPrefix); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, o)
	eventually(t, "it is noticed", func() bool {
		_, err := running.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 1})
		return errors.Is(err, ErrRestored)
	})
}

// TestRestoredWhileNobodyRan: also under its old id, and however many writes it took since.
func TestRestoredWhileNobodyRan(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 3} {
		cluster := servers.StartEtcd(t, servers.EtcdOptions{Members: members})
		o := optionsFor(t, cluster)
		first := mustOpen(t, o)
		many, _ := marks(100, func(i int) tokens.Token { return tokens.Token(i + 1) })
		for resource, m := range many {
			if _, err := first.RaiseTo(t.Context(), map[string]tokens.Mark{resource: m}, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a crash of all members is no restore
			for _, m := range cluster.Members {
				m.Kill()
			}
			for _, m := range cluster.Members {
				m.Start()
			}
			cluster.WaitReady()
			mustOpen(t, o)
		}
		restored := cluster.Restore(cluster.Snapshot(), true)
		client := restored.Client()
		for range 300 {
			if _, err := client.Put(t.Context(), "somebody else's", ""); err != nil {
				t.Fatal(err)
			}
		}
		if late, err := tryOpen(o); !errors.Is(err, ErrRestored) {
			t.Errorf("%d members: %v, %v", members, late, err)
		}
		o.AcceptRestored = true
		if _, err := mustOpen(t, o).RaiseAll(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		o.AcceptRestored = false
		mustBegin(t, o)
	}
}
