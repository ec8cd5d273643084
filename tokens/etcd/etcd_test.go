package etcd

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// prefixes are counted, so that the registries of one cluster do not know each other.
var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprintf("/test/%d/", prefixes.Add(1)) }

// patience bounds every wait for something that takes milliseconds on an idle machine.
const patience = 30 * time.Second

// An engine is one registry in a cluster, for the suites of tokenstest.
type engine struct {
	o     Options
	admin *Registry
}

func newEngine(t testing.TB, cluster *servers.Etcd) *engine {
	e := &engine{o: Options{Endpoints: cluster.Endpoints(), Prefix: newPrefix(), Create: true}}
	e.admin = mustOpen(t, e.o)
	return e
}

func mustOpen(t testing.TB, o Options) *Registry {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// Store implements [tokenstest.Engine].
func (e *engine) Store(t testing.TB) fleet.Store { return mustOpen(t, e.o).store }

// Mapping implements [tokenstest.Engine].
func (e *engine) Mapping(t testing.TB) int64 {
	t.Helper()
	_, version, err := e.admin.Mappings(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return epoch(version)
}

// Remap implements [tokenstest.Engine].
func (e *engine) Remap(t testing.TB) int64 {
	t.Helper()
	all, version, err := e.admin.Mappings(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	version, err = e.admin.RecordMappings(context.Background(), append(all, tokens.Mapping{Name: fmt.Sprint(len(all))}), version, true)
	if err != nil {
		t.Fatal(err)
	}
	return epoch(version)
}

func TestStore(t *testing.T) {
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	tokenstest.RunStore(t, tokenstest.StoreHarness{Engine: func(t testing.TB) tokenstest.Engine { return newEngine(t, cluster) }})
}
