package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

// onEachDriver runs a test over every registry that is shared. Each call of place is one where there is none yet, as it is written under registry:.
func onEachDriver(t *testing.T, test func(t *testing.T, place func() string)) {
	t.Run("postgres", func(t *testing.T) {
		server := servers.StartPostgres(t, servers.PostgresOptions{})
		test(t, func() string {
			_, dsn := server.Database()
			return fmt.Sprintf("driver: postgres, dsn: %q, lease: 4s", dsn)
		})
	})
	t.Run("etcd", func(t *testing.T) {
		server := servers.StartEtcd(t, servers.EtcdOptions{})
		n := 0
		test(t, func() string {
			n++
			return fmt.Sprintf("driver: etcd, endpoints: [%q], prefix: /test%d/, lease: 4s", server.Endpoints()[0], n)
		})
	})
}

// writeShared writes the configuration of a proxy that shares its registry. Its store is asked nothing at the start.
func (p *site) writeShared(t *testing.T, registry, more string) {
	t.Helper()
	text := fmt.Sprintf("data: %s\nregistry: {%s}\nbackends: {far: {type: s3, endpoint: \"http://127.0.0.1:1\", path_style: true, settle: 1s, access_key: a, secret_key: b}}\n%s", p.data, registry, more)
	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newShared is a proxy's directory.
func newShared(t *testing.T, registry string) *site {
	t.Helper()
	dir := t.TempDir()
	p := &site{dir: dir, config: filepath.Join(dir, "config.yaml"), data: filepath.Join(dir, "data")}
	p.writeShared(t, registry, "")
	return p
}

// start opens what serve opens. It is closed with the test, or before.
func (p *site) start(t *testing.T, f serveFlags) (s *state, stop func(), err error) {
	t.Helper()
	c, err := loadConfig(p.config, noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	if s, err = openState(context.Background(), c, f, log, "a test", "machine:"+filepath.Base(p.dir)); err != nil {
		return nil, nil, err
	}
	stop = sync.OnceFunc(func() {
		s.mustClose(t)
		if strings.Contains(said.String(), servers.PostgresPassword) || strings.Contains(said.String(), "%2Fcr%40") {
			t.Errorf("the log has a password in it:\n%s", &said)
		}
	})
	t.Cleanup(stop)
	return s, stop, nil
}

func (p *site) mustStart(t *testing.T, f serveFlags) (s *state, stop func()) {
	t.Helper()
	s, stop, err := p.start(t, f)
	if err != nil {
		t.Fatal(err)
	}
	return s, stop
}

func (s *state) raiseForTest(t *testing.T, resource string, token tokens.Token) {
	t.Helper()
	if _, err := s.fence.Announce(t.Context(), tokens.Claim{Resource: resource, Token: token}); err != nil {
		t.Fatal(err)
	}
}

func TestSharedRegistry(t *testing.T) {
	onEachDriver(t, func(t *testing.T, place func() string) {
		for name, test := range map[string]func(t *testing.T, one, other string){
			"several proxies": testSeveralProxies, "the data directory remembers": testDataRemembers, "the configuration says which": testPinned,
			"after sqlite": testAfterSQLite, "another mapping": testSharedMapping, "raise": testSharedRaise, "rebuild": testSharedRebuild,
		} {
			one, other := place(), place()
			t.Run(name, func(t *testing.T) {
				t.Parallel() // they wait for leases
				test(t, one, other)
			})
		}
	})
}

// Several proxies may be started for the first time at once. Each has a number of its own, and what one raises is known to the others.
func testSeveralProxies(t *testing.T, registry, _ string) {
	var all [3]*state
	var started sync.WaitGroup
	for i := range all {
		p := newShared(t, registry)
		started.Go(func() {
			s, _, err := p.start(t, serveFlags{})
			if err != nil {
				t.Error(err)
			}
			all[i] = s
		})
	}
	started.Wait()
	if t.Failed() {
		return
	}
	numbers, created := map[uint64]bool{}, 0
	for _, s := range all {
		numbers[s.registry.Incarnation()] = true
		if s.registry.Start().Created {
			created++
		}
		if s.registry.Start().ID != all[0].registry.Start().ID || s.ready() != nil {
			t.Errorf("%+v, ready: %v", s.registry.Start(), s.ready())
		}
	}
	if len(numbers) != 3 || numbers[0] || created != 1 {
		t.Errorf("their numbers are %v, and %d have made the registry", numbers, created)
	}
	all[0].raiseForTest(t, "b/x", 7)
	if e, err := all[1].registry.Lookup(t.Context(), "b/x"); err != nil || e.Token != 7 {
		t.Errorf("another one knows %+v (%v)", e, err)
	}
	shown, _, err := all[2].audit.Query(t.Context(), audit.Filter{Kind: audit.KindStart})
	want := 1
	if all[2].audit.Shared() {
		want = 3
	}
	if err != nil || len(shown) != want {
		t.Errorf("the audit log of one shows %d starts (%v), want %d", len(shown), err, want)
	}
}

func testDataRemembers(t *testing.T, one, other string) {
	p := newShared(t, one)
	s, stop := p.mustStart(t, serveFlags{})
	first := s.registry.Start().ID
	stop()
	p.writeShared(t, other, "")
	_, _, err := p.start(t, serveFlags{})
	wantError(t, err, "the token registry is missing")
	wantError(t, err, "was served with registry "+first)

	s, stop = p.mustStart(t, serveFlags{newRegistry: true})
	second := s.registry.Start().ID
	if since, err := s.registry.LastAdopted(t.Context()); err != nil || since.IsZero() || second == first {
		t.Errorf("the new registry %s has taken the place of %s at %v (%v)", second, first, since, err)
	}
	stop()
	_, stop = p.mustStart(t, serveFlags{})
	stop()

	p.writeShared(t, one, "")
	_, _, err = p.start(t, serveFlags{})
	wantError(t, err, "was served with registry "+second)
	wantError(t, err, "is "+first)
	_, stop = p.mustStart(t, serveFlags{adopt: []string{second}})
	stop()
	if id, err := joinedRegistry(p.data); err != nil || id != first {
		t.Errorf("the data directory remembers %s (%v), want %s", id, err, first)
	}
	if err := os.WriteFile(filepath.Join(p.data, joinedFile), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = p.start(t, serveFlags{})
	wantError(t, err, "is damaged")
	found, _, err := p.run(t, t.Context(), "fsck", "--format", "jsonl")
	if exitCode(err) != exitFindings || !strings.Contains(found, "is damaged") {
		t.Errorf("fsck says %s (%v)", found, err)
	}
	if err := joinRegistry(p.data, first); err != nil {
		t.Fatal(err)
	}
	found, _, err = p.run(t, t.Context(), "fsck")
	if err != nil || !strings.Contains(found, "shared with other proxies") || strings.Contains(found, servers.PostgresPassword) {
		t.Errorf("fsck says %s (%v)", found, err)
	}
	p.writeShared(t, one+", id: "+second, "")
	found, _, err = p.run(t, t.Context(), "fsck")
	if exitCode(err) != exitFindings || !strings.Contains(found, "the configuration says "+second) {
		t.Errorf("fsck says %s (%v)", found, err)
	}
}

func testPinned(t *testing.T, one, other string) {
	s, stop := newShared(t, one).mustStart(t, serveFlags{})
	id := s.registry.Start().ID
	stop()
	p := newShared(t, one+", id: "+id)
	_, stop = p.mustStart(t, serveFlags{})
	stop()
	p = newShared(t, other+", id: "+id)
	_, _, err := p.start(t, serveFlags{})
	wantError(t, err, "the token registry is missing")
	wantError(t, err, "registry.id")
	p = newShared(t, one+", id: "+lostID)
	_, _, err = p.start(t, serveFlags{newRegistry: true})
	wantError(t, err, "the configuration says that the token registry is "+lostID)
}

// Who has tokens in a file does not lose them by naming a database.
func testAfterSQLite(t *testing.T, registry, _ string) {
	p := newShared(t, registry)
	p.writeShared(t, "driver: sqlite", "")
	_, stop := p.mustStart(t, serveFlags{})
	stop()
	p.writeShared(t, registry, "")
	_, _, err := p.start(t, serveFlags{})
	wantError(t, err, "has one of its own, "+sqlite.FileName)

	_, stop = newShared(t, registry).mustStart(t, serveFlags{}) // now there is one
	stop()
	_, _, err = p.start(t, serveFlags{})
	wantError(t, err, "was served with a registry of its own, "+sqlite.FileName)
	_, stop = p.mustStart(t, serveFlags{newRegistry: true})
	stop()
	_, stop = p.mustStart(t, serveFlags{})
	stop()

	p.writeShared(t, "driver: sqlite", "")
	_, _, err = p.start(t, serveFlags{})
	wantError(t, err, "was served with registry")
	_, stop = p.mustStart(t, serveFlags{newRegistry: true})
	stop()
	_, stop = p.mustStart(t, serveFlags{})
	stop()
}

// Other rules are refused beside proxies that run. With --remap they end those.
func testSharedMapping(t *testing.T, registry, _ string) {
	old, _ := newShared(t, registry).mustStart(t, serveFlags{})
	p := newShared(t, registry)
	const more = "buckets: [{name: extra, rules: [{match: \"a/**\", resource: a}]}, {name: \"*\"}]\n"
	p.writeShared(t, registry, more)
	_, _, err := p.start(t, serveFlags{})
	wantError(t, err, "lead keys to other resources than before")
	if old.registry.Incarnation() == 0 {
		t.Error("the refused one has ended the other")
	}
	s, stop := p.mustStart(t, serveFlags{remap: true})
	if s.registry.Incarnation() == 0 || old.registry.Incarnation() != 0 {
		t.Errorf("after --remap the new one has number %d, and the old one %d", s.registry.Incarnation(), old.registry.Incarnation())
	}
	stop()
	wantError(t, old.ready(), "")
}

func testSharedRaise(t *testing.T, registry, _ string) {
	p := newShared(t, registry)
	s, stop := p.mustStart(t, serveFlags{})
	s.raiseForTest(t, "b/x", 7)
	postgres := s.audit.Shared()
	if postgres {
		_, _, err := p.run(t, t.Context(), "raise", "--all-by", "100")
		wantError(t, err, "nothing was raised")
	}
	stop()
	said, _, err := p.run(t, t.Context(), "raise", "--all-by", "100")
	if err != nil || !strings.Contains(said, "The tokens of 1 resources were raised by 100") {
		t.Fatalf("%s (%v)", said, err)
	}
	s, _ = p.mustStart(t, serveFlags{})
	if e, err := s.registry.Lookup(t.Context(), "b/x"); err != nil || e.Token != 107 {
		t.Errorf("%+v (%v), want token 107", e, err)
	}
	shown, _, err := s.audit.Query(t.Context(), audit.Filter{Kind: audit.KindRaise, Limit: 1})
	if err != nil || len(shown) != 1 || shown[0].Operation != "raise --all-by" {
		t.Errorf("the audit log shows %+v (%v)", shown, err)
	}
}

// A rebuild is refused while any proxy runs, and leaves nothing behind then that would keep others from a start.
func testSharedRebuild(t *testing.T, registry, _ string) {
	_, stop := newShared(t, registry).mustStart(t, serveFlags{})
	p := newShared(t, registry)
	_, _, err := p.run(t, t.Context(), "rebuild", "--bucket", "b")
	wantError(t, err, "a proxy runs with this registry")
	s, stopOther := p.mustStart(t, serveFlags{})
	if state, err := s.registry.Repair(t.Context()); err != nil || state != tokens.RepairNone {
		t.Errorf("a repair is on record: %q (%v)", state, err)
	}
	stopOther()
	stop()
	_, _, err = p.run(t, t.Context(), "rebuild", "--bucket", "b")
	wantError(t, err, "could not be read") // there is no store
	_, _, err = p.start(t, serveFlags{})
	wantError(t, err, "a rebuild of the token registry has not come to its end")
}
