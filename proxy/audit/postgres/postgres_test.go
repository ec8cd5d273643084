package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/audit/audittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustOpen(t *testing.T, dsn string) *Store {
	t.Helper()
	s, err := Open(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// One server does for all: it takes seconds to make one.
func TestPostgres(t *testing.T) {
	server := servers.StartPostgres(t, servers.PostgresOptions{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *servers.Postgres)
	}{
		{"Store", testStore},
		{"SeveralProxies", testSeveralProxies},
		{"NewerSchema", testNewerSchema},
		{"Encoding", testEncoding},
		{"ErrorsHaveNoPassword", testErrorsHaveNoPassword},
		{"ServerAway", testServerAway},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, server) })
	}
}

func testStore(t *testing.T, server *servers.Postgres) {
	audittest.Run(t, func(t *testing.T) func() audit.Store {
		_, dsn := server.Database()
		return func() audit.Store { return mustOpen(t, dsn) }
	})
}

// Several proxies that start at once make one log, and each shows the records of all.
func testSeveralProxies(t *testing.T, server *servers.Postgres) {
	_, dsn := server.Database()
	var logs [3]*audit.Log
	var made sync.WaitGroup
	for i, name := range []string{"one:9000", "two:9000", "three:9000"} {
		made.Go(func() {
			s, err := Open(t.Context(), dsn)
			if err != nil {
				t.Error(err)
				return
			}
			logs[i] = audit.New(s, audit.Options{Instance: name})
			logs[i].Add(t.Context(), audit.Record{Kind: audit.KindRefusal, Resource: "b/x", Client: "10.0.0.1:5000"})
		})
	}
	made.Wait()
	for _, l := range logs {
		if l == nil {
			t.FailNow()
		}
		defer l.Close()
	}
	for _, l := range logs {
		records, _, err := l.Query(t.Context(), audit.Filter{Kind: audit.KindRefusal})
		seen := map[string]bool{}
		for _, r := range records {
			seen[r.Instance] = true
		}
		if err != nil || len(records) != 3 || len(seen) != 3 {
			t.Errorf("a log shows %+v (%v), want a record of each", records, err)
		}
		if sums, err := l.Refusals(t.Context(), []string{"b/x"}); err != nil || sums["b/x"] != 3 {
			t.Errorf("a log counts %v refusals (%v), want 3", sums, err)
		}
	}
}

func testNewerSchema(t *testing.T, server *servers.Postgres) {
	name, dsn := server.Database()
	mustOpen(t, dsn).Close()
	server.Execute(name, "UPDATE fenceproxy.audit_version SET version = 99")
	if _, err := Open(t.Context(), dsn); !errors.Is(err, ErrNewer) {
		t.Errorf("got %v, want ErrNewer", err)
	}
}

// A database that cannot hold every key is refused, and not one that has room for the log only where it was made for it.
func testEncoding(t *testing.T, server *servers.Postgres) {
	name, dsn := server.Database()
	server.Execute("postgres", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 OWNER fenceproxy")
	if _, err := Open(t.Context(), strings.Replace(dsn, "/"+name, "/latin", 1)); err == nil || !strings.Contains(err.Error(), "encoding LATIN1") {
		t.Errorf("got %v", err)
	}
}

func testServerAway(t *testing.T, server *servers.Postgres) {
	_, dsn := server.Database()
	l := audit.New(mustOpen(t, dsn), audit.Options{})
	defer l.Close()
	server.Stop()
	began := time.Now()
	l.Add(t.Context(), audit.Record{Kind: audit.KindRefusal, Resource: "b/x"})
	l.Note(audit.Record{Kind: audit.KindRaise, Resource: "b/x"})
	if n, d := l.Failures(), time.Since(began); n != 1 || d > 10*time.Second {
		t.Errorf("%d failures in %v, want 1 within 2 s", n, d)
	}
	server.Start()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		records, _, err := l.Query(t.Context(), audit.Filter{})
		if err == nil && len(records) == 1 && records[0].Kind == audit.KindRaise {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the raise was not written when the server was back: %+v (%v)", records, err)
		}
	}
	l.Add(t.Context(), audit.Record{Kind: audit.KindRefusal, Resource: "b/x"})
	if n := l.Failures(); n != 1 {
		t.Errorf("%d failures when the server was back, want 1", n)
	}
}

// What goes wrong is told without the password.
func testErrorsHaveNoPassword(t *testing.T, server *servers.Postgres) {
	_, dsn := server.Database()
	escaped := "se%2Fcr%40et%3A%25"
	if !strings.Contains(dsn, escaped) {
		t.Fatalf("the password is written otherwise: %s", dsn)
	}
	for _, dsn := range []string{
		strings.Replace(dsn, escaped, "hunter2", 1), "postgres://u:hunter2@127.0.0.1:1/d", "postgres://u:hunt%er2@127.0.0.1/d", "host=h password='hunter2", dsn + "x",
	} {
		_, err := Open(t.Context(), dsn)
		if err == nil || strings.Contains(err.Error(), "hunt") || strings.Contains(err.Error(), escaped) || strings.Contains(err.Error(), servers.PostgresPassword) {
			t.Errorf("the error is %v", err)
		}
	}
}
