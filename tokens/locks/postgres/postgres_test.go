package postgres

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/lockstest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "12") // most of the time is spent waiting for TTLs
	}
	goleak.VerifyTestMain(m)
}

// soon bounds every wait for something that takes milliseconds on an idle machine.
const soon = 30 * time.Second

// long is a TTL that does not run out.
const long = time.Minute

func TestSuite(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	trust(t, p)
	lockstest.Run(t, lockstest.Engine{
		TTL: time.Second, Late: time.Second, TellsTakeover: true,
		New: func(t testing.TB) lockstest.Lock {
			lock := lockstest.Name(t)
			return lockstest.Lock{Open: func(t testing.TB, via func(string) string) locks.Service {
				address := net.JoinHostPort("127.0.0.1", fmt.Sprint(p.Port))
				return open(t, strings.Replace(at(dsn, lock), address, via(address), 1))
			}}
		},
		Restart: func(testing.TB) {
			p.Kill()
			p.Start()
		},
	})
	eventually(t, "no session is left", func() bool {
		return p.Value(name, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fenceproxy lock'") == "0"
	})
}

// trust lets everybody in without a password, which takes most of the time where there are thousands of connections.
func trust(t testing.TB, p *servers.Postgres) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.Dir, "pg_hba.conf"), []byte("host all all 127.0.0.1/32 trust\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Signal(syscall.SIGHUP)
	eventually(t, "it asks for no password", func() bool { return p.Value("postgres", "SELECT auth_method FROM pg_hba_file_rules") == "trust" })
}

// at names a lock of a database.
func at(dsn, name string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	u.Path += "/" + name
	return u.String()
}

func open(t testing.TB, text string) *Service {
	t.Helper()
	s, err := Open(text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func acquire(t testing.TB, s *Service, holder string) locks.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	h, err := s.Acquire(ctx, locks.Request{Holder: holder, TTL: long})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// acquiring acquires in the background; nil comes where that fails.
func acquiring(t testing.TB, s *Service, holder string) <-chan locks.Hold {
	got := make(chan locks.Hold, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		h, err := s.Acquire(ctx, locks.Request{Holder: holder, TTL: long})
		if err != nil {
			t.Error(err)
			close(got)
			return
		}
		got <- h
	}()
	return got
}

func must(t testing.TB, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if err := call(ctx); err != nil {
		t.Fatal(err)
	}
}

// refused fails the test unless the lock cannot be had, for a reason that has these words in it, and never the password.
func refused(t testing.TB, s *Service, words ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	h, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: 3 * time.Second})
	if err == nil {
		t.Fatalf("the lock was had, with token %d; want %q", h.Token(), words)
	}
	t.Log(err)
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	for _, secret := range []string{"cr@et", "cr%40et"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the password is in %q", err)
		}
	}
}

// eventually asks until it is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// TestCases are those that can share a server.
func TestCases(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	for name, run := range map[string]func(*testing.T, *servers.Postgres){
		"WhoMay": testWhoMay, "TableMadeByMany": testTableMadeByMany, "SettingsOfTheRole": testSettingsOfTheRole, "CommitThatFails": testCommitThatFails,
		"SomebodyUnlocks": testSomebodyUnlocks, "Close": testClose, "LeavesNothing": testLeavesNothing, "HeartbeatGivenUp": testHeartbeatGivenUp,
		"Pooler": testPooler,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, p)
		})
	}
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"postgres://u:p@h:1/db/jobs/7?sslmode=disable": {"postgres://u:p@h:1/db?sslmode=disable", "jobs/7"},
		"postgresql://h,g:2/db/a%2fb%20":               {"postgres://h,g:2/db?", "a/b "},
	} {
		if dsn, name, err := split(text); err != nil || dsn != want[0] || name != want[1] {
			t.Errorf("%s: %q, %q, %v", text, dsn, name, err)
		}
	}
	for _, bad := range []string{
		"", "postgres:", "mysql://h/db/n", "postgres:///db/n", "postgres://h", "postgres://h/db", "postgres://h/db/", "postgres://h//n", "postgres://h/db/n%zz", "postgres://h/db/%00",
		"postgres://h/db/n#x", "postgres://u:secret@h:port/db/n", "postgres://u:secret@h/db/n?sslmode=never", "postgres://u:se/cret@h/db/n", "postgres://u:secret%zz@h/db/n",
		"postgres://u:se#cret@h/db/n",
	} {
		if _, err := Open(bad); err == nil {
			t.Errorf("%q was read", bad)
		} else if strings.Contains(err.Error(), "cret") {
			t.Errorf("%q: the password is in %q", bad, err)
		}
	}
}

// testWhoMay: a user who may not make the table is told what to do, and goes on when it is done; the table needs no more than that.
func testWhoMay(t *testing.T, p *servers.Postgres) {
	p.Execute("postgres", "CREATE ROLE writer LOGIN PASSWORD '"+servers.PostgresPassword+"'")
	name, _ := p.Database()
	s := open(t, at(p.URL("writer", name), "jobs"))
	refused(t, s, "CREATE TABLE IF NOT EXISTS public.fenceproxy_locks", "GRANT SELECT, INSERT, UPDATE")
	p.Execute(name, table+"; GRANT SELECT, INSERT, UPDATE ON public.fenceproxy_locks TO writer")
	h := acquire(t, s, "a")
	must(t, h.Renew)
	must(t, h.Release)
	refused(t, open(t, at(strings.Replace(p.URL("writer", name), "writer:", "writer:x", 1), "jobs")), "password authentication failed")
	refused(t, open(t, at(p.URL("writer", "nowhere"), "jobs")), "nowhere")
	refused(t, open(t, "postgres://writer:se%2Fcr%40et%3A%25@127.0.0.1:1/d/jobs?sslmode=disable"), "127.0.0.1:1", "refused")
}

// testTableMadeByMany: who come first at the same moment make one table.
func testTableMadeByMany(t *testing.T, p *servers.Postgres) {
	_, dsn := p.Database()
	var all []<-chan locks.Hold
	for i := range 8 {
		all = append(all, acquiring(t, open(t, at(dsn, fmt.Sprint("jobs", i))), "a"))
	}
	for _, got := range all {
		if h := <-got; h != nil && h.Token() != 1 {
			t.Errorf("a first token of %d", h.Token())
		}
	}
}

// testSettingsOfTheRole: what a role's settings say of time limits and of durability does not hold for the session of a lock.
func testSettingsOfTheRole(t *testing.T, p *servers.Postgres) {
	name, dsn := p.Database()
	for _, setting := range []string{"statement_timeout = '50ms'", "lock_timeout = '10ms'", "idle_session_timeout = '2s'", "synchronous_commit = off", "search_path = nowhere"} {
		p.Execute("postgres", "ALTER ROLE fenceproxy IN DATABASE "+name+" SET "+setting)
	}
	one, other := open(t, at(dsn, "jobs")), open(t, at(dsn, "jobs"))
	h := acquire(t, one, "a")
	got := acquiring(t, other, "b")
	time.Sleep(5 * time.Second / 2) // longer than any of them
	must(t, h.Renew)
	var commit string
	if err := h.(*hold).conn.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&commit); err != nil || commit != "on" {
		t.Errorf("synchronous_commit is %q, %v", commit, err)
	}
	must(t, h.Release)
	if next := <-got; next != nil && next.Token() <= h.Token() {
		t.Errorf("token %d after %d", next.Token(), h.Token())
	}
}

// testCommitThatFails: the number of a transaction whose commit has failed is not used, although the server has shown it before.
func testCommitThatFails(t *testing.T, p *servers.Postgres) {
	name, dsn := p.Database()
	s := open(t, at(dsn, "jobs"))
	must(t, acquire(t, s, "a").Release)
	p.Execute(name, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'not at commit'; END$$;
		CREATE CONSTRAINT TRIGGER no AFTER INSERT OR UPDATE ON public.fenceproxy_locks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()`)
	refused(t, s, "not at commit")
	p.Execute(name, "DROP TRIGGER no ON public.fenceproxy_locks")
	if h := acquire(t, s, "a"); h.Token() != 2 || h.TakenOver() {
		t.Errorf("token %d, taken over: %v", h.Token(), h.TakenOver())
	}
}

// testSomebodyUnlocks: a hold notices where its lock was let go under it, or counted on.
func testSomebodyUnlocks(t *testing.T, p *servers.Postgres) {
	name, dsn := p.Database()
	for what, do := range map[string]func(*hold){
		"unlocked":   func(h *hold) { _, _ = h.conn.Exec(context.Background(), "SELECT pg_advisory_unlock_all()") },
		"counted on": func(*hold) { p.Execute(name, "UPDATE public.fenceproxy_locks SET epoch = epoch + 1") },
		"ended": func(*hold) {
			p.Execute(name, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		},
	} {
		for _, call := range []func(locks.Hold) error{
			func(h locks.Hold) error { return h.Renew(t.Context()) }, func(h locks.Hold) error { return h.Release(t.Context()) },
		} {
			s := open(t, at(dsn, "jobs"))
			h := acquire(t, s, "a")
			do(h.(*hold))
			err := call(h)
			if !errors.Is(err, locks.ErrLost) {
				t.Errorf("%s: %v", what, err)
			}
			t.Logf("%s: %v", what, err)
			_ = s.Close()
		}
	}
}

// testHeartbeatGivenUp: a heartbeat that is not answered in time costs nobody the lock. The server's process stands still, so that it does not even
// hear that the question is cancelled.
func testHeartbeatGivenUp(t *testing.T, p *servers.Postgres) {
	_, dsn := p.Database()
	h := acquire(t, open(t, at(dsn, "jobs")), "a")
	backend := int(h.(*hold).conn.PgConn().PID())
	if err := syscall.Kill(backend, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(backend, syscall.SIGCONT) }()
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		if err := h.Renew(ctx); err == nil || errors.Is(err, locks.ErrLost) {
			t.Errorf("without an answer: %v", err)
		}
		cancel()
	}
	if err := syscall.Kill(backend, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	must(t, h.Renew)
	must(t, h.Release)
}

// testLeavesNothing: no session is left of a hold that was released, nor of a waiter that gave up, though the service is open.
func testLeavesNothing(t *testing.T, p *servers.Postgres) {
	name, dsn := p.Database()
	s := open(t, at(dsn, "jobs"))
	sessions := func(n string) func() bool {
		return func() bool {
			return p.Value("postgres", "SELECT count(*) FROM pg_stat_activity WHERE datname = '"+name+"'") == n
		}
	}
	h := acquire(t, s, "a")
	cause := errors.New("no longer wanted")
	ctx, cancel := context.WithCancelCause(t.Context())
	if _, err := s.Acquire(ctx, locks.Request{Holder: "b", TTL: long, Waiting: func(locks.Other) { cancel(cause) }}); !errors.Is(err, cause) {
		t.Error(err)
	}
	eventually(t, "the holder's session is the only one", sessions("1"))
	must(t, h.Release)
	eventually(t, "no session is left", sessions("0"))
}

// testClose: a service that is closed while somebody waits lets nobody wait on.
func testClose(t *testing.T, p *servers.Postgres) {
	_, dsn := p.Database()
	one, other := open(t, at(dsn, "jobs")), open(t, at(dsn, "jobs"))
	h := acquire(t, one, "a")
	done := make(chan error)
	waits := make(chan struct{}, 100)
	go func() {
		_, err := other.Acquire(t.Context(), locks.Request{Holder: "b", TTL: long, Waiting: func(locks.Other) { waits <- struct{}{} }})
		done <- err
	}()
	<-waits
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, errClosed) {
		t.Errorf("%v; want it closed", err)
	}
	if _, err := other.Acquire(t.Context(), locks.Request{Holder: "b", TTL: long}); !errors.Is(err, errClosed) {
		t.Errorf("%v; want it closed", err)
	}
	must(t, h.Renew)
}

// TestTLS: the form in which it should be used.
func TestTLS(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{TLS: true})
	_, dsn := p.Database()
	one, other := open(t, at(dsn, "jobs")), open(t, at(dsn, "jobs"))
	h := acquire(t, one, "a")
	cause := errors.New("no longer wanted")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second/2, cause)
	defer cancel()
	if _, err := other.Acquire(ctx, locks.Request{Holder: "b", TTL: long}); !errors.Is(err, cause) {
		t.Error(err)
	}
	must(t, h.Renew)
	must(t, h.Release)
	if next := acquire(t, other, "b"); next.Token() != h.Token()+1 || next.TakenOver() {
		t.Errorf("token %d after %d, taken over: %v", next.Token(), h.Token(), next.TakenOver())
	}
}
