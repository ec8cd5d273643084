package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

// TestLocks: the proxy's own locks, of two proxies.
func TestLocks(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	tokenstest.RunLocks(t, tokenstest.LockHarness{Seeds: 2, New: func(t testing.TB) tokenstest.LockEngine {
		o := optionsFor(t, cluster)
		o.Log, o.Lease = nil, 30*time.Second // nobody is to lose it on a busy machine
		return tokenstest.LockEngine{
			Open: func(t testing.TB) tokenstest.LockRegistry {
				r, err := tryOpen(o)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Begin(context.Background(), 0); err != nil {
					t.Fatal(err)
				}
				return r
			},
			RaiseAll: func(t testing.TB, by tokens.Token) (int64, error) {
				return mustOpen(t, o).RaiseAll(context.Background(), by)
			},
		}
	}})
}

// TestLocksWhileRaising: while all tokens are raised, and for an instance that has ended, no lock changes.
func TestLocksWhileRaising(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	o := optionsFor(t, cluster)
	r := mustBegin(t, o)
	take := func(incarnation int64) error {
		v, err := r.LoadLock(t.Context(), "b/a")
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.store.SwapLock(t.Context(), incarnation, v, tokens.LockRow{Issued: v.Row.Issued + 1, Lease: "x", Holder: "a", TTL: time.Second})
		return err
	}
	own := int64(r.Incarnation())
	if err := take(own + 1); err == nil {
		t.Error("an instance that there is not has changed a lock")
	}
	client := cluster.Client()
	if _, err := client.Put(t.Context(), r.store.keys.halt(), halt{By: 7}.value()); err != nil {
		t.Fatal(err)
	}
	if err := take(own); !errors.Is(err, tokens.ErrUnavailable) {
		t.Errorf("%v; want it unavailable", err)
	}
	if _, err := client.Delete(t.Context(), r.store.keys.halt()); err != nil {
		t.Fatal(err)
	}
	if err := take(own); err != nil {
		t.Error(err)
	}
}

// TestRaiseAllBrokenOffAmongLocks: wherever it stops, every lock and every fence is raised once.
func TestRaiseAllBrokenOffAmongLocks(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	const locked = 60 // more than fit into one step
	for stop, ended := 1, false; !ended; stop++ {
		o := optionsFor(t, cluster)
		r := mustOpen(t, o)
		many, _ := marks(3, func(i int) tokens.Token { return tokens.Token(i + 1) })
		if _, err := r.RaiseTo(t.Context(), many, time.Now()); err != nil {
			t.Fatal(err)
		}
		client := cluster.Client()
		for i := range locked {
			row := tokens.LockRow{Issued: tokens.Token(i + 1), Lease: "x", Holder: "a", TTL: time.Second}
			if _, err := client.Do(t.Context(), putLock(r.store.keys.lock(fmt.Sprintf("b/lock-%d\xff", i)), row)); err != nil {
				t.Fatal(err)
			}
		}
		o.AcceptRestored = true
		ctx, cancel := context.WithCancel(t.Context())
		calls, counting := 0, false
		broken, err := open(ctx, o, func(string) {
			if counting {
				if calls++; calls == stop {
					cancel()
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		counting = true
		n, err := broken.RaiseAll(ctx, 1000)
		counting = false
		cancel()
		if err := broken.Close(); err != nil {
			t.Error(err)
		}
		again := mustOpen(t, o)
		if ended = err == nil; !ended && recorded(t, again)["b/2\xff"] < 1000 {
			n, err = again.RaiseAll(t.Context(), 1000)
		}
		if err == nil && n != locked+3 {
			t.Errorf("after %d calls: %d were raised", stop, n)
		}
		for i := range locked {
			v, err := again.LoadLock(t.Context(), fmt.Sprintf("b/lock-%d\xff", i))
			if want := tokens.Token(i + 1001); err != nil || v.Row.Issued != want || v.Fence.Token != want || v.Row.Lease != "" {
				t.Fatalf("after %d calls: %+v, %v; want %d", stop, v, err, want)
			}
		}
	}
}
