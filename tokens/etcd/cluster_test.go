package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/integration/histories"
	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// raisers raise one resource each, by one, until stop is called, which returns the highest token of each that was answered.
func raisers(t testing.TB, registries ...*Registry) (stop func() []tokens.Token) {
	ctx, cancel := context.WithCancel(context.Background())
	answered := make([]tokens.Token, len(registries))
	var tasks sync.WaitGroup
	for i, r := range registries {
		tasks.Go(func() {
			for token := tokens.Token(1); ctx.Err() == nil; token++ {
				_, err := r.Raise(ctx, tokens.Claim{Resource: fmt.Sprint("b/", i), Token: token})
				switch {
				case err == nil:
					answered[i] = token
				case !errors.Is(err, tokens.ErrUnavailable) && ctx.Err() == nil:
					t.Errorf("raise to %d: %v", token, err)
				}
			}
		})
	}
	return func() []tokens.Token {
		cancel()
		tasks.Wait()
		return answered
	}
}

// mustHaveKept fails the test if what was answered is not on record.
func mustHaveKept(t testing.TB, r *Registry, answered []tokens.Token) {
	t.Helper()
	for i, token := range answered {
		if e, err := r.Lookup(t.Context(), fmt.Sprint("b/", i)); err != nil || e.Token < token {
			t.Errorf("token %d was answered, and %+v is on record, %v", token, e, err)
		}
		if token < 2 {
			t.Errorf("raised to %d: nothing was shown", token)
		}
	}
}

// TestServerRestarted: a crash of etcd loses nothing, and its clients come back by themselves.
func TestServerRestarted(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	o := optionsFor(t, cluster)
	a, b := mustBegin(t, o), mustBegin(t, o)
	stop := raisers(t, a, b)
	defer stop()
	for range 2 {
		time.Sleep(300 * time.Millisecond)
		cluster.Members[0].Kill()
		time.Sleep(o.Lease / 3)
		cluster.Members[0].Start()
		cluster.WaitReady()
		before := time.Now()
		eventually(t, "a raise after the restart", func() bool {
			_, err := a.Raise(t.Context(), tokens.Claim{Resource: "b/again", Token: 1})
			return err == nil
		})
		t.Logf("raised again after %v", time.Since(before))
	}
	time.Sleep(300 * time.Millisecond)
	mustHaveKept(t, a, stop())
}

// TestAway: while etcd is away longer than the lease there is no right to raise, and an error that says so; then all is well.
func TestAway(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	r := mustBegin(t, optionsFor(t, cluster))
	g := mustRaise(t, r, "b/a", 1, 0)
	cluster.Members[0].Kill()
	if r.Incarnation() != g.Incarnation {
		t.Error("the lease ended before its time")
	}
	eventually(t, "the lease is over", func() bool { return r.Incarnation() == 0 })
	_, err := r.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 2})
	if !errors.Is(err, tokens.ErrUnavailable) || !strings.Contains(err.Error(), "lease") {
		t.Errorf("%v", err)
	}
	cluster.Members[0].Start()
	eventually(t, "a raise when it is back", func() bool {
		_, err := r.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 2})
		return err == nil
	})
}

// TestLeaderKilled: of three members one may go, the leader, too, and come back.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{Members: 3})
	o := optionsFor(t, cluster)
	o.Lease = 10 * time.Second
	a, b, c := mustBegin(t, o), mustBegin(t, o), mustBegin(t, o)
	incarnation := a.Incarnation()
	stop := raisers(t, a, b, c)
	defer stop()
	again := func(what string) {
		t.Helper()
		before := time.Now()
		eventually(t, what, func() bool {
			_, err := a.Raise(t.Context(), tokens.Claim{Resource: "b/again", Token: 1})
			return err == nil
		})
		t.Logf("%s after %v", what, time.Since(before))
	}
	for range 2 {
		time.Sleep(300 * time.Millisecond)
		leader := cluster.Leader()
		leader.Kill()
		again("a raise without the leader")
		leader.Start()
		cluster.Leader()
	}
	leader := cluster.Leader()
	leader.Pause()
	again("a raise with the leader paused")
	leader.Resume()
	time.Sleep(300 * time.Millisecond)
	mustHaveKept(t, a, stop())
	if a.Incarnation() != incarnation {
		t.Error("the lease was lost")
	}
}

// TestEndpoints: those that nobody answers at cost nothing.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	o := optionsFor(t, cluster)
	o.Endpoints = append([]string{"http://127.0.0.1:1", "http://" + silent.Addr().String()}, o.Endpoints...)
	r := mustBegin(t, o)
	for i := range tokens.Token(20) {
		mustRaise(t, r, "b/a", i, 0)
	}
}

// TestTLSAndPassword: and what is wrong is said without the password.
func TestTLSAndPassword(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{TLS: true})
	o := optionsFor(t, cluster)
	o.Username, o.Password = cluster.RequirePassword(o.Prefix)
	r := mustBegin(t, o)
	mustRaise(t, r, "b/a", 1, 0)
	cluster.Members[0].Kill() // it forgets who has shown a password
	cluster.Members[0].Start()
	eventually(t, "a raise after that", func() bool {
		_, err := r.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 2})
		return err == nil
	})
	if err := r.Adopt(t.Context(), "5MP4GMTXTDWWVKZQIUBK5IN35A"); err != nil { // it takes an etcd lease
		t.Error(err)
	}
	if at, err := r.LastAdopted(t.Context()); err != nil || time.Since(at) > time.Minute {
		t.Errorf("adopted at %v, %v", at, err)
	}
	for _, c := range []struct {
		what  string
		wrong func(*Options)
		want  string
	}{
		{"another password", func(o *Options) { o.Password += "x" }, "authentication failed"},
		{"no user", func(o *Options) { o.Username, o.Password = "", "" }, "user name is empty"},
		{"no password", func(o *Options) { o.Password = "" }, "go together"},
		{"another prefix", func(o *Options) { o.Prefix = "/theirs/" }, "permission denied"},
		{"a certificate that nobody trusts", func(o *Options) { o.TLS = o.TLS.Clone(); o.TLS.RootCAs = nil }, "certificate"},
		{"no TLS where it is needed", func(o *Options) {
			o.TLS, o.Endpoints = nil, []string{strings.Replace(o.Endpoints[0], "https", "http", 1)}
		}, "etcd"},
		{"no TLS where it is configured", func(o *Options) { o.Endpoints = []string{"http://127.0.0.1:1"} }, "https://"},
		{"a password in an endpoint", func(o *Options) { o.Endpoints = []string{"https://u:" + o.Password + "@127.0.0.1:1"} }, "username"},
	} {
		bad := o
		bad.Lease = 2 * time.Second
		c.wrong(&bad)
		r, err := tryOpen(bad)
		if err == nil {
			t.Errorf("%s: it was opened", c.what)
			_ = r.Close()
			continue
		}
		if text := err.Error(); !strings.Contains(text, c.want) || strings.Contains(text, servers.EtcdPassword) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// TestWatchGap: what was posted while the watch was cut off, and was compacted since, is found all the same; and the watch goes on.
func TestWatchGap(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	relay, err := histories.NewRelay(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	relay.ConnectTo(strings.TrimPrefix(cluster.Members[0].Endpoint, "http://"))
	o := optionsFor(t, cluster)
	o.Lease = 10 * time.Second
	far := o
	far.Endpoints = []string{"http://" + relay.Address()}
	var seen logged
	far.Log = slog.New(slog.NewTextHandler(&seen, &slog.HandlerOptions{Level: slog.LevelDebug}))
	a, b := mustBegin(t, far), mustBegin(t, o)
	old := mustRaise(t, a, "b/a", 1, time.Minute)
	client := cluster.Client()

	heal := relay.Part(histories.Requests, histories.Answers)
	raised := make(chan error, 1)
	go func() {
		_, err := b.Raise(context.Background(), tokens.Claim{Resource: "b/a", Token: 2, Settle: time.Minute})
		raised <- err
	}()
	var posted *clientv3.GetResponse
	eventually(t, "the revocation is posted", func() bool {
		posted, err = client.Get(t.Context(), o.Prefix+"revoke/", clientv3.WithPrefix())
		return err == nil && len(posted.Kvs) == 1
	})
	if _, err := client.Compact(t.Context(), posted.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-raised:
		t.Fatalf("the raise did not wait: %v", err)
	default:
	}
	relay.Cut(true)
	heal()
	select {
	case err := <-raised:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("the grant was not given back")
	}
	if a.Incarnation() != old.Incarnation {
		t.Error("the lease was lost: it was about a watch that missed something")
	}
	eventually(t, "the watch meets what was compacted", func() bool { return strings.Contains(seen.String(), "compacted") })
	mustRaise(t, a, "b/a", 3, time.Minute)
	mustRaise(t, b, "b/a", 4, time.Minute)
}

// logged is what was logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
