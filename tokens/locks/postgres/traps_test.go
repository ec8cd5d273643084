package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// TestCrash is the trap of sequences: a number of nextval that was seen before its transaction was committed is given again after a crash. An epoch
// that we have seen is not.
func TestCrash(t *testing.T) {
	t.Parallel()
	// The server's habit of writing down at leisure what nobody waits for is made a slow one, so that the crash comes before it.
	p := servers.StartPostgres(t, servers.PostgresOptions{Settings: []string{"wal_writer_delay=10s"}})
	name, dsn := p.Database()
	s := open(t, at(dsn, "jobs"))
	must(t, acquire(t, s, "a").Release)
	p.Execute(name, "CREATE SEQUENCE numbers; GRANT ALL ON SEQUENCE numbers TO fenceproxy; CHECKPOINT")
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var before int64
	if err := tx.QueryRow(t.Context(), "SELECT nextval('numbers')").Scan(&before); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	p.Start()
	after := p.Value(name, "SELECT nextval('numbers')")
	t.Logf("nextval gave %d, and after the crash %s", before, after)
	if after != strconv.FormatInt(before, 10) {
		t.Errorf("no trap is shown")
	}

	var last tokens.Token
	for i := range 3 {
		var h locks.Hold
		eventually(t, "the lock is had", func() bool {
			h, err = s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: long})
			return err == nil
		})
		p.Kill()
		p.Start()
		if err := h.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
			t.Errorf("the server was restarted, and the hold with it: %v", err)
		}
		if h.Token() <= last || h.TakenOver() != (i > 0) {
			t.Errorf("token %d after %d, taken over: %v", h.Token(), last, h.TakenOver())
		}
		last = h.Token()
		if err := h.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
			t.Errorf("released: %v", err)
		}
	}
	t.Run("AnOlderStateOfTheFiles", func(t *testing.T) { testAnOlderStateOfTheFiles(t, p) })
}

// TestPromotedAsynchronous is the trap of standbys: one that is promoted does not know the last epochs, and would give them again. The row says on which
// timeline it was written, so that the next epoch leaps over what is missing.
func TestPromotedAsynchronous(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	must(t, acquire(t, open(t, at(dsn, "jobs")), "a").Release)
	s := p.Standby("s1")
	p.WaitReplicated("s1")
	alone := open(t, at(s.URL("fenceproxy", name), "jobs"))
	refused(t, alone, "read only")
	checked(t, alone, "is a standby")
	both := open(t, strings.Replace(servers.Hosts("fenceproxy", name, s, p), "/"+name, "/"+name+"/jobs", 1))
	checked(t, both, "pg_read_all_stats") // of the primary

	// What comes from now on does not reach it.
	s.Execute("postgres", "ALTER SYSTEM SET primary_conninfo = ''")
	s.Execute("postgres", "SELECT pg_reload_conf()")
	eventually(t, "nobody replicates", func() bool { return p.Value("postgres", "SELECT count(*) FROM pg_stat_replication") == "0" })
	var last locks.Hold
	for range 3 {
		last = acquire(t, both, "a")
		must(t, last.Release)
	}
	p.Kill()
	s.Promote()
	next := s.Value(name, "SELECT epoch + 1 FROM public.fenceproxy_locks")
	t.Logf("the last token was %d, and the promoted standby would go on with %s", last.Token(), next)
	if n, _ := strconv.Atoi(next); tokens.Token(n) > last.Token() {
		t.Error("no trap is shown")
	}
	h := acquire(t, both, "b")
	t.Logf("the token after it is %d", h.Token())
	if h.Token() <= last.Token() {
		t.Errorf("token %d after %d", h.Token(), last.Token())
	}
	must(t, h.Release)
	if again := acquire(t, both, "b"); again.Token() != h.Token()+1 {
		t.Errorf("token %d after %d, on one timeline", again.Token(), h.Token())
	}
}

// testAnOlderStateOfTheFiles is the trap that is left: it has nothing in it that tells. Fences tell: they refuse the tokens.
func testAnOlderStateOfTheFiles(t *testing.T, p *servers.Postgres) {
	_, dsn := p.Database()
	s := open(t, at(dsn, "jobs"))
	must(t, acquire(t, s, "a").Release)
	p.Stop()
	saved := p.Dir + ".saved"
	if out, err := exec.Command("cp", "-a", p.Dir, saved).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	p.Start()
	must(t, acquire(t, s, "a").Release)
	last := acquire(t, s, "a")
	p.Stop()
	if err := errors.Join(os.RemoveAll(p.Dir), os.Rename(saved, p.Dir)); err != nil {
		t.Fatal(err)
	}
	p.Start()
	h := acquire(t, s, "a")
	t.Logf("the last token was %d, and the one after the restore is %d", last.Token(), h.Token())
	if h.Token() > last.Token() {
		t.Error("no trap is shown: say in the documentation why")
	}
}

// testUnsure: a commit that was kept from waiting for its standby is no commit.
func testUnsure(t *testing.T, p *servers.Postgres) {
	name, dsn := p.Database()
	s := open(t, at(dsn, "jobs"))
	must(t, acquire(t, s, "a").Release)
	standby := func(names string) {
		t.Helper()
		p.Execute("postgres", "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
		p.Execute("postgres", "SELECT pg_reload_conf()")
		eventually(t, "the setting holds", func() bool {
			return p.Value("postgres", "SELECT current_setting('synchronous_standby_names')") == names
		})
	}
	standby("nobody")
	refused(t, s, "synchronous standby", "try anew") // when its TTL is over the driver itself cancels it
	checked(t, open(t, at(p.URL("postgres", name), "jobs")), "no such standby is there")
	standby("")
	if h := acquire(t, s, "a"); h.Token() != 3 {
		t.Errorf("token %d; want 3: nobody has got 2", h.Token())
	}
}

// testPooler: a pooler gives its own number for the session, by which it is known.
func testPooler(t *testing.T, p *servers.Postgres) {
	_, dsn := p.Database()
	pooler := newPooler(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port)))
	refused(t, open(t, at(strings.Replace(dsn, strconv.Itoa(p.Port), pooler, 1), "jobs")), "pooler", "PgBouncer")
}

// newPooler is as much of a pooler as is seen before the first query: it hands out process numbers of its own. It returns its port.
func newPooler(t *testing.T, server string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); tasks.Wait() })
	serve := func(client net.Conn) {
		defer client.Close()
		to, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		tasks.Go(func() {
			_, _ = io.Copy(to, client)
			_ = to.Close()
		})
		header := make([]byte, 5) // one byte of type, four of length
		for {
			if _, err := io.ReadFull(to, header); err != nil {
				return
			}
			body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
			if _, err := io.ReadFull(to, body); err != nil {
				return
			}
			if header[0] == 'K' { // BackendKeyData
				binary.BigEndian.PutUint32(body, binary.BigEndian.Uint32(body)+1)
			}
			if _, err := client.Write(append(header, body...)); err != nil {
				return
			}
		}
	}
	tasks.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() { serve(client) })
		}
	})
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// checked fails the test unless Check finds just this: one sentence for each word, "" for any.
func checked(t *testing.T, s *Service, words ...string) {
	t.Helper()
	found, err := s.Check(t.Context())
	if err != nil || len(found) != len(words) {
		t.Errorf("%q, %v; want %q", found, err, words)
		return
	}
	for i, w := range words {
		t.Log(found[i])
		if !strings.Contains(found[i], w) {
			t.Errorf("%q does not say %q", found[i], w)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := p.Database()
	s := open(t, at(dsn, "jobs"))
	checked(t, s)
	set := func(setting, value string) {
		t.Helper()
		p.Execute("postgres", fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", setting, value))
		p.Execute("postgres", "SELECT pg_reload_conf()")
		eventually(t, setting, func() bool { return p.Value("postgres", "SELECT current_setting('"+setting+"')") == value })
	}
	for _, setting := range []string{"fsync", "full_page_writes"} {
		set(setting, "off")
		checked(t, s, setting+" = off")
		set(setting, "on")
	}
	t.Run("Unsure", func(t *testing.T) { testUnsure(t, p) })
	p.Standby("s1")
	p.WaitReplicated("s1")
	checked(t, s, "pg_read_all_stats")
	admin := open(t, at(p.URL("postgres", name), "jobs"))
	checked(t, admin, "None of the server's 1 standbys is a synchronous one")
	set("synchronous_standby_names", "s1")
	eventually(t, "it is a synchronous one", func() bool {
		return p.Value("postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"
	})
	checked(t, admin)
	if _, err := open(t, "postgres://u@127.0.0.1:1/d/jobs").Check(t.Context()); err == nil {
		t.Error("nobody there, and nothing said")
	}
}
