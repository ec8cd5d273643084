package postgres

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logTo writes a registry's log to the test's.
func logTo(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// open opens a registry, closes it with the test, and does not begin.
func open(t testing.TB, o Options) *Registry {
	t.Helper()
	if o.Log == nil {
		o.Log = logTo(t)
	}
	r, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

// begun opens a registry and begins.
func begun(t testing.TB, o Options) *Registry {
	t.Helper()
	r := open(t, o)
	if err := r.Begin(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	return r
}

func raise(t testing.TB, r *Registry, resource string, token tokens.Token) tokens.Grant {
	t.Helper()
	g, err := r.Raise(context.Background(), tokens.Claim{Resource: resource, Token: token, Settle: time.Second})
	if err != nil {
		t.Fatalf("raise %s to %d: %v", resource, token, err)
	}
	return g
}

func TestSmoke(t *testing.T) {
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	a := begun(t, Options{DSN: dsn, Create: true, Lease: 2 * time.Second})
	b := begun(t, Options{DSN: dsn, Lease: 2 * time.Second})
	raise(t, a, "b/x", 1)
	start := time.Now()
	raise(t, b, "b/x", 2)
	t.Log(time.Since(start))
}
