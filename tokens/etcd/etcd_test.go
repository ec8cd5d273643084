package etcd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

var (
	_ tokens.Maintained = (*Registry)(nil)
	_ tokens.Shared     = (*Registry)(nil)
	_ fleet.Store       = (*store)(nil)
)

func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "12") // most of the time is spent waiting for leases
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience bounds every wait for something that takes milliseconds on an idle machine.
const patience = 30 * time.Second

// prefixes are counted, so that the registries of one cluster do not know each other.
var prefixes atomic.Int64

// optionsFor is a new registry in a cluster.
func optionsFor(t testing.TB, cluster *servers.Etcd) Options {
	return Options{
		Endpoints: cluster.Endpoints(), TLS: cluster.Trust, Prefix: fmt.Sprintf("/test/%d/", prefixes.Add(1)), Create: true, Lease: 3 * time.Second,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

func tryOpen(o Options) (*Registry, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return Open(ctx, o)
}

// mustOpen opens a registry, closes it with the test, and does not begin.
func mustOpen(t testing.TB, o Options) *Registry {
	t.Helper()
	r, err := tryOpen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func mustBegin(t testing.TB, o Options) *Registry {
	t.Helper()
	r := mustOpen(t, o)
	_, version, err := r.Mappings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Begin(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	return r
}

func mustRaise(t testing.TB, r *Registry, resource string, token tokens.Token, settle time.Duration) tokens.Grant {
	t.Helper()
	g, err := r.Raise(t.Context(), tokens.Claim{Resource: resource, Token: token, Settle: settle})
	if err != nil {
		t.Fatalf("raise %s to %d: %v", resource, token, err)
	}
	return g
}

// eventually asks until it is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// An engine is one registry in a cluster, for the suites of tokenstest.
type engine struct {
	o     Options
	admin *Registry
}

func newEngine(t testing.TB, cluster *servers.Etcd) *engine {
	o := optionsFor(t, cluster)
	o.Log = nil // it may outlive the test that it is of
	return &engine{o, mustOpen(t, o)}
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
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	tokenstest.RunStore(t, tokenstest.StoreHarness{Engine: func(t testing.TB) tokenstest.Engine { return newEngine(t, cluster) }})
}

func TestFleet(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	tokenstest.RunFleet(t, tokenstest.FleetHarness{
		Engine: func(t testing.TB) tokenstest.Engine { return newEngine(t, cluster) },
		Lease:  3 * time.Second,
	})
}

// TestRoundTrips: a raise where nobody has to give back is one call, and one more tells those who have to. A beat is one.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	var calls []string
	a, err := open(t.Context(), o, func(method string) { calls = append(calls, method) })
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b := mustOpen(t, o)
	ctx, s := t.Context(), a.store
	join := func(s *store) int64 {
		incarnation, err := s.Join(ctx, time.Minute, 0)
		if err != nil {
			t.Fatal(err)
		}
		return incarnation
	}
	mine, theirs := join(s), join(b.store)
	count := func(want int, what string, f func() error) {
		t.Helper()
		calls = nil
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if len(calls) != want || want > 0 && calls[0] != "/etcdserverpb.KV/Txn" {
			t.Errorf("%s: %q; want %d", what, calls, want)
		}
	}
	record := func(token tokens.Token, holder string) func() error {
		return func() error {
			_, err := s.Record(ctx, mine, tokens.Claim{Resource: "b/a", Token: token, Holder: holder, Settle: time.Minute})
			return err
		}
	}
	count(1, "token 0", record(0, ""))
	count(1, "a first token", record(1, ""))
	count(1, "an equal one", record(1, ""))
	var own tokens.GrantID
	count(2, "a holder, where one of our own has to be given back", func() error {
		rec, err := s.Record(ctx, mine, tokens.Claim{Resource: "b/a", Token: 1, Holder: "h", Settle: time.Minute})
		own = rec.Own
		return err
	})
	count(1, "to give it back", func() error { return s.Remove(ctx, own) })
	count(1, "a holder", record(1, "h"))
	count(1, "a higher one", record(2, "h"))
	count(1, "a refused one", func() error {
		if err := record(1, "")(); !errors.As(err, new(*tokens.StaleError)) {
			return fmt.Errorf("%w; want it refused", err)
		}
		return nil
	})
	count(1, "a beat", func() error { _, err := s.Beat(ctx, mine); return err })
	if _, err := b.store.Record(ctx, theirs, tokens.Claim{Resource: "b/a", Token: 2, Holder: "h", Settle: time.Minute}); err != nil {
		t.Fatal(err)
	}
	count(2, "a higher one where another instance has to give back", record(3, ""))
}

// TestMissing: only who says so gets a new registry, and what is not whole is not taken for one.
func TestMissing(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	client := cluster.Client()
	o := optionsFor(t, cluster)
	put := func(key, value string) {
		t.Helper()
		if _, err := client.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	missing := o
	missing.Create = false
	if _, err := tryOpen(missing); !errors.Is(err, ErrMissing) {
		t.Errorf("%v; want it missing", err)
	}
	if found, err := client.Get(t.Context(), o.Prefix, clientv3.WithPrefix()); err != nil || len(found.Kvs) > 0 {
		t.Errorf("it was made all the same: %v, %v", found, err)
	}
	first := mustOpen(t, o)
	if s := first.Start(); !s.Created || s.ID == "" {
		t.Errorf("a new one: %+v", s)
	}
	if s := mustOpen(t, missing).Start(); s.Created || s.ID != first.Start().ID {
		t.Errorf("the one that is there: %+v; want %+v", s, first.Start())
	}
	put(string(first.store.keys.registry()), `{"format":2,"id":"x"}`)
	if _, err := tryOpen(o); !errors.Is(err, ErrNewer) {
		t.Errorf("%v; want it refused as newer", err)
	}
	put(first.store.keys.registry(), `{"format":1}`)
	if _, err := tryOpen(o); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("without an id: %v", err)
	}
	if _, err := client.Delete(t.Context(), first.store.keys.registry()); err != nil {
		t.Fatal(err)
	}
	put(first.store.keys.fence("b/a"), "x")
	if _, err := tryOpen(o); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("without its key: %v", err)
	}
}

// TestOneOfMany: those who make a registry at the same moment make one.
func TestOneOfMany(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	starts := make(chan tokens.Start, 8)
	for range cap(starts) {
		go func() {
			r, err := tryOpen(o)
			if err != nil {
				t.Error(err)
				starts <- tokens.Start{}
				return
			}
			defer r.Close()
			starts <- r.Start()
		}()
	}
	ids, created := map[string]bool{}, 0
	for range cap(starts) {
		s := <-starts
		ids[s.ID] = true
		if s.Created {
			created++
		}
	}
	if len(ids) != 1 || created != 1 {
		t.Errorf("%d ids, and %d made one", len(ids), created)
	}
}
