package postgres

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

// lease is short, for tests in real time.
const lease = 3 * time.Second

// An engine is a database of a server.
type engine struct {
	dsn  string
	once *sync.Once
	own  *Registry // for its mappings; made by once
}

func engines(p *servers.Postgres) func(testing.TB) tokenstest.Engine {
	return func(testing.TB) tokenstest.Engine {
		_, dsn := p.Database()
		return &engine{dsn: dsn, once: new(sync.Once)}
	}
}

// Store implements [tokenstest.Engine].
func (e *engine) Store(t testing.TB) fleet.Store {
	r, err := Open(context.Background(), Options{DSN: e.dsn, Create: true, Lease: lease, Log: logTo(t)})
	if err != nil {
		t.Fatal(err)
	}
	return r.store
}

func (e *engine) version(t testing.TB, remap bool) int64 {
	t.Helper()
	e.once.Do(func() { e.own = open(t, Options{DSN: e.dsn, Create: true, Lease: time.Minute}) })
	all, version, err := e.own.Mappings(context.Background())
	if err == nil && remap {
		version, err = e.own.RecordMappings(context.Background(), append(all, tokens.Mapping{Name: "b"}), version, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	return version >> epochShift
}

// Mapping implements [tokenstest.Engine].
func (e *engine) Mapping(t testing.TB) int64 { return e.version(t, false) }

// Remap implements [tokenstest.Engine].
func (e *engine) Remap(t testing.TB) int64 { return e.version(t, true) }

func TestConformance(t *testing.T) {
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	t.Run("Store", func(t *testing.T) { tokenstest.RunStore(t, tokenstest.StoreHarness{Engine: engines(p)}) })
	t.Run("Fleet", func(t *testing.T) {
		tokenstest.RunFleet(t, tokenstest.FleetHarness{Engine: engines(p), Lease: lease, Slack: time.Second})
	})
}
