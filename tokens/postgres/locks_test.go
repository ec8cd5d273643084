package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

// TestLocks: the proxy's own locks, of two proxies.
func TestLocks(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	tokenstest.RunLocks(t, tokenstest.LockHarness{Seeds: 2, New: func(t testing.TB) tokenstest.LockEngine {
		_, dsn := p.Database()
		const lease = 30 * time.Second // nobody is to lose it on a busy machine
		return tokenstest.LockEngine{
			Open: func(t testing.TB) tokenstest.LockRegistry {
				r, err := Open(context.Background(), Options{DSN: dsn, Create: true, Lease: lease})
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Begin(context.Background(), 0); err != nil {
					t.Fatal(err)
				}
				return r
			},
			RaiseAll: func(t testing.TB, by tokens.Token) (int64, error) {
				return open(t, Options{DSN: dsn, Lease: lease}).RaiseAll(context.Background(), by)
			},
		}
	}})
}

// TestLocksOfAnEndedInstance: it changes none.
func TestLocksOfAnEndedInstance(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: time.Minute})
	v, err := r.LoadLock(t.Context(), "b/a")
	if err != nil {
		t.Fatal(err)
	}
	row := tokens.LockRow{Issued: 1, Lease: "x", Holder: "a", TTL: time.Second}
	if version, err := r.store.SwapLock(t.Context(), int64(r.Incarnation())+1, v, row); version != 0 || !errors.Is(err, fleet.ErrEnded) {
		t.Errorf("%d, %v; want it refused", version, err)
	}
	if version, err := r.SwapLock(t.Context(), v, row); version != 1 || err != nil {
		t.Errorf("%d, %v", version, err)
	}
}
