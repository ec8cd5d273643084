package postgres

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "4") // most of the time is spent waiting: for leases, settle times and the disk
	}
	goleak.VerifyTestMain(m)
}

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
		var gone *pgconn.ConnectError
		if err := r.Close(); err != nil && !errors.As(err, &gone) && !errors.Is(err, tokens.ErrUnavailable) {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

// begun opens a registry and begins. A busy machine may need longer for it than the lease lets it.
func begun(t testing.TB, o Options) *Registry {
	t.Helper()
	r := open(t, o)
	err := r.Begin(context.Background(), 0)
	for range 10 {
		if errors.Is(err, context.DeadlineExceeded) {
			err = r.Begin(context.Background(), 0)
		}
	}
	if err != nil {
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

// refused fails the test unless Open fails with this error, and never tells the password.
func refused(t *testing.T, o Options, want error, words ...string) {
	t.Helper()
	r, err := Open(context.Background(), o)
	if err == nil {
		_ = r.Close()
		t.Fatalf("it was opened; want %v %q", want, words)
	}
	if want != nil && !errors.Is(err, want) {
		t.Errorf("%v; want %v", err, want)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	mustNotTell(t, err.Error())
}

// mustNotTell fails the test if a text holds the password, in whatever form.
func mustNotTell(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{servers.PostgresPassword, url.QueryEscape(servers.PostgresPassword), url.PathEscape(servers.PostgresPassword), "cr@et", "cr%40et"} {
		if strings.Contains(text, secret) {
			t.Errorf("the password is in %q", text)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	refused(t, Options{DSN: dsn}, ErrMissing)
	p.Execute(name, "CREATE SCHEMA fenceproxy AUTHORIZATION fenceproxy") // for the audit log, it may be
	refused(t, Options{DSN: dsn}, ErrMissing)

	r := open(t, Options{DSN: dsn, Create: true})
	if s := r.Start(); !s.Created || s.ID == "" || !idForm.MatchString(s.ID) {
		t.Errorf("%+v", s)
	}
	if s := open(t, Options{DSN: dsn, Create: true}).Start(); s.Created || s.ID != r.Start().ID {
		t.Errorf("the second time: %+v", s)
	}

	wrong := strings.Replace(dsn, "fenceproxy:", "fenceproxy:x", 1)
	refused(t, Options{DSN: wrong}, nil, "password authentication failed")
	for _, dsn := range []string{
		"postgres://u:se/cr@et:%@h:5432/d", "postgres://u:se%2Fcr%40et@h:port/d", "postgres://u:" + url.QueryEscape(servers.PostgresPassword) + "@h/d?sslmode=bad",
		"host=h password='" + servers.PostgresPassword + "' port=x", "host=h password='" + servers.PostgresPassword,
	} {
		refused(t, Options{DSN: dsn}, nil, "DSN")
	}
	refused(t, Options{DSN: p.URL("fenceproxy", "nowhere")}, nil, "nowhere")

	other, dsn := p.Database()
	p.Execute("postgres", "ALTER DATABASE "+other+" OWNER TO postgres")
	refused(t, Options{DSN: dsn, Create: true}, nil, "GRANT CREATE")

	p.Execute(name, "UPDATE fenceproxy.registry_version SET version = 99")
	refused(t, Options{DSN: r.store.options.DSN, Create: true}, ErrNewer, "version 99", "nothing was changed")
	p.Execute(name, fmt.Sprintf("UPDATE fenceproxy.registry_version SET version = %d", len(versions)))
	p.Execute(name, "DELETE FROM fenceproxy.registry; UPDATE fenceproxy.counters SET incarnation = 1")
	refused(t, Options{DSN: r.store.options.DSN, Create: true}, nil, "damaged")
}

func TestServersThatForgetAreRefused(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: lease})
	raise(t, r, "b/x", 1)
	for _, setting := range []string{"fsync", "full_page_writes"} {
		p.Execute("postgres", "ALTER SYSTEM SET "+setting+" = off")
		p.Execute("postgres", "SELECT pg_reload_conf()")
		eventually(t, func() bool { return p.Value("postgres", "SELECT current_setting('"+setting+"')") == "off" })
		refused(t, Options{DSN: dsn}, nil, setting+" = off", "reload")
		p.Execute("postgres", "ALTER SYSTEM RESET "+setting)
		p.Execute("postgres", "SELECT pg_reload_conf()")
		eventually(t, func() bool { return p.Value("postgres", "SELECT current_setting('"+setting+"')") == "on" })
	}
	open(t, Options{DSN: dsn})
	p.Execute("postgres", "ALTER ROLE fenceproxy SET synchronous_commit = off")
	open(t, Options{DSN: dsn}) // what the connection asks for counts
}

// eventually waits until a condition holds.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come to hold")
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{TLS: true})
	_, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: lease})
	for token := range tokens.Token(5) {
		raise(t, r, "b/x", token)
	}
	plain := strings.Replace(dsn, "sslmode=verify-full", "sslmode=disable", 1)
	refused(t, Options{DSN: plain}, nil, "no encryption")
	untrusted, _, _ := strings.Cut(dsn, "?")
	refused(t, Options{DSN: untrusted + "?sslmode=verify-full"}, nil, "certificate")
}

// counting counts round trips.
type counting struct{ queries, batches, prepared atomic.Int64 }

func (c *counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.queries.Add(1)
	return ctx
}
func (c *counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counting) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.batches.Add(1)
	return ctx
}
func (c *counting) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *counting) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (c *counting) TracePrepareStart(ctx context.Context, _ *pgx.Conn, _ pgx.TracePrepareStartData) context.Context {
	c.prepared.Add(1)
	return ctx
}
func (c *counting) TracePrepareEnd(context.Context, *pgx.Conn, pgx.TracePrepareEndData) {}

func (c *counting) take() (trips int64) {
	return c.queries.Swap(0) + c.batches.Swap(0) + c.prepared.Swap(0)
}

// TestRoundTrips: a raise that nobody holds up takes one, also after a pause in which a pool would look whether its connection is alive, and so
// does a beat.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	var c counting
	r := open(t, Options{DSN: dsn, Create: true, Lease: time.Hour, tracer: &c})
	incarnation, err := r.store.Join(t.Context(), time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	record := func(token tokens.Token) {
		t.Helper()
		if _, err := r.store.Record(t.Context(), incarnation, tokens.Claim{Resource: "b/x", Token: token, Settle: time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	beat := func() {
		t.Helper()
		if _, err := r.store.Beat(t.Context(), incarnation); err != nil {
			t.Fatal(err)
		}
	}
	record(1) // connects
	beat()
	eventually(t, func() bool { // or the third connection, which is made beside them, is counted below
		return p.Value("postgres", "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN fenceproxy'") == "1"
	})
	for _, pause := range []time.Duration{0, 1100 * time.Millisecond} {
		time.Sleep(pause)
		c.take()
		record(2)
		if n := c.take(); n != 1 {
			t.Errorf("a raise after %v took %d round trips", pause, n)
		}
		beat()
		if n := c.take(); n != 1 {
			t.Errorf("a beat after %v took %d round trips", pause, n)
		}
	}
	if got := p.Value("postgres", "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fenceproxy'"); got != "3" {
		t.Errorf("%s connections; want one for raises, one for beats, one that listens", got)
	}
}

// TestStaleConnections: connections that the server has closed meanwhile are not used for a raise.
func TestStaleConnections(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	_, dsn := p.Database()
	r := begun(t, Options{DSN: dsn, Create: true, Lease: 30 * time.Second})
	raise(t, r, "b/x", 1)
	const ours = "FROM pg_stat_activity WHERE application_name = 'fenceproxy'"
	before := p.Value("postgres", "SELECT string_agg(pid::text, ',') "+ours)
	p.Execute("postgres", "SELECT pg_terminate_backend(pid) "+ours)
	eventually(t, func() bool { // a beat may have opened another one meanwhile
		return p.Value("postgres", "SELECT count(*) "+ours+" AND pid IN ("+before+")") == "0"
	})
	raise(t, r, "b/x", 2)
	if r.Incarnation() == 0 {
		t.Error("the lease was lost")
	}
}

// TestUpgrade: several instances start at once on a registry of an older version, and on none.
func TestUpgrade(t *testing.T) {
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	was := versions
	defer func() { versions = was }()
	openFour := func() (all []*Registry) {
		var mu sync.Mutex
		var wait sync.WaitGroup
		for range 4 {
			wait.Go(func() {
				r, err := Open(context.Background(), Options{DSN: dsn, Create: true})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, r)
			})
		}
		wait.Wait()
		return all
	}
	closeAll := func(all []*Registry) (created int, ids map[string]bool) {
		ids = map[string]bool{}
		for _, r := range all {
			ids[r.Start().ID] = true
			if r.Start().Created {
				created++
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		return created, ids
	}
	created, ids := closeAll(openFour())
	if created != 1 || len(ids) != 1 {
		t.Errorf("%d made it, %d ids", created, len(ids))
	}
	r := begun(t, Options{DSN: dsn, Lease: lease})
	raise(t, r, "b/x", 34)

	versions = append(slices.Clone(was), "CREATE TABLE fenceproxy.later (x int); INSERT INTO fenceproxy.later VALUES (1)")
	if created, again := closeAll(openFour()); created != 0 || !maps.Equal(ids, again) {
		t.Errorf("after the upgrade: %d made it, ids %v, then %v", created, ids, again)
	}
	if n := p.Value(name, "SELECT count(*) FROM fenceproxy.later"); n != "1" {
		t.Errorf("the step was taken %s times", n)
	}
	raise(t, r, "b/x", 35) // the one that was running goes on
	versions = was
	refused(t, Options{DSN: dsn}, ErrNewer)

	versions = append(slices.Clone(was), "", "CREATE TABLE fenceproxy.broken (x int); SELECT 1/0")
	refused(t, Options{DSN: dsn}, nil, fmt.Sprintf("upgrade the schema to version %d", len(was)+2))
	if v := p.Value(name, "SELECT version FROM fenceproxy.registry_version"); v != fmt.Sprint(len(was)+1) {
		t.Errorf("a step failed, and the version is %s", v)
	}
}

// TestHungUpBesideAReader: pgx may have left a reader on the connection, which must not be waited for.
func TestHungUpBesideAReader(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		_, _ = conn.Read(make([]byte, 1))
		close(read)
	}()
	if hungUp(conn) {
		t.Error("it is up")
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	<-read
	eventually(t, func() bool { return hungUp(conn) })
}
