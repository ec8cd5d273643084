package etcd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/lockstest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "12") // most of the time is spent waiting for leases
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait for something that takes milliseconds on an idle machine.
const patience = 30 * time.Second

// ttl is the shortest that etcd grants.
const ttl = 2 * time.Second

func TestSuite(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	lockstest.Run(t, lockstest.Engine{
		TTL: ttl, Late: 2 * time.Second,
		New: func(t testing.TB) lockstest.Lock {
			name := lockstest.Name(t)
			return lockstest.Lock{
				Open: func(t testing.TB, via func(string) string) locks.Service {
					return open(t, "etcd://"+via(strings.TrimPrefix(cluster.Endpoints()[0], "http://"))+"/"+name)
				},
				Delete: func(t testing.TB) { // nothing is left of it but its history
					client := cluster.Client()
					resp, err := client.Delete(context.Background(), name, clientv3.WithPrefix())
					if err == nil {
						_, err = client.Compact(context.Background(), resp.Header.Revision, clientv3.WithCompactPhysical())
					}
					if err != nil {
						t.Fatal(err)
					}
				},
			}
		},
		Restart: func(testing.TB) {
			cluster.Members[0].Kill()
			cluster.Members[0].Start()
			cluster.WaitReady()
		},
	})
}

func open(t testing.TB, url string) *Service {
	t.Helper()
	s, err := Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// urlOf names a lock of a cluster, at all of its members.
func urlOf(cluster *servers.Etcd, name string) string {
	return "etcd://" + strings.ReplaceAll(strings.Join(cluster.Endpoints(), ","), "http://", "") + "/" + name
}

func acquire(t testing.TB, s *Service, holder string) locks.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h, err := s.Acquire(ctx, locks.Request{Holder: holder, TTL: patience})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func must(t testing.TB, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := call(ctx); err != nil {
		t.Fatal(err)
	}
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

// keys are the lock's, as they are in the cluster.
func keys(t testing.TB, client *clientv3.Client, name string) []string {
	t.Helper()
	resp, err := client.Get(context.Background(), name+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, kv := range resp.Kvs {
		all = append(all, fmt.Sprintf("%s=%s", kv.Key, kv.Value))
	}
	return all
}

// TestNobodyThere: who asks where nobody is is told so after a few seconds, and why.
func TestNobodyThere(t *testing.T) {
	t.Parallel()
	s := open(t, "etcd://127.0.0.1:1/name")
	began := time.Now()
	_, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: ttl})
	if err == nil || !strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("%v; want it to say who does not answer, and why", err)
	}
	if took := time.Since(began); took > 2*callTime {
		t.Errorf("it took %s", took)
	}
}

// TestLeavesNothing: a waiter that gives up has left the queue when it comes back.
func TestLeavesNothing(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	client := cluster.Client()
	s, other := open(t, urlOf(cluster, "jobs/7")), open(t, urlOf(cluster, "jobs/7"))
	h := acquire(t, s, "a")
	cause := errors.New("no longer wanted")
	ctx, cancel := context.WithCancelCause(t.Context())
	if _, err := other.Acquire(ctx, locks.Request{Holder: "b", TTL: time.Minute, Waiting: func(locks.Other) { cancel(cause) }}); !errors.Is(err, cause) {
		t.Error(err)
	}
	if all := keys(t, client, "jobs/7"); len(all) != 1 {
		t.Errorf("in the queue are %q; want the holder alone", all)
	}
	must(t, h.Release)
	if all := keys(t, client, "jobs/7"); len(all) != 0 {
		t.Errorf("in the queue are %q; want nobody", all)
	}
	if leases, err := client.Leases(t.Context()); err != nil || len(leases.Leases) != 0 {
		t.Errorf("leases are left: %v, %v", leases, err)
	}
}

// TestPausedWaiter: a waiter that was paused for longer than its TTL has lost its place, and takes a new one; it never has the lock by the old one.
func TestPausedWaiter(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	client := cluster.Client()
	s := open(t, urlOf(cluster, "jobs"))
	first := acquire(t, s, "first")
	got := make(chan locks.Hold, 1)
	waits := make(chan struct{}, 100)
	go func() {
		h, err := s.Acquire(context.Background(), locks.Request{Holder: "second", TTL: 30 * time.Second, Waiting: func(locks.Other) { waits <- struct{}{} }})
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	<-waits
	// What its pause would come to: its lease is gone, and it has not noticed.
	leases, err := client.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases.Leases {
		if l.ID != first.(*hold).lease {
			if _, err := client.Revoke(t.Context(), l.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	third := make(chan locks.Hold, 1)
	go func() { third <- acquire(t, s, "third") }()
	eventually(t, "the third waits", func() bool { return len(keys(t, client, "jobs")) == 2 })
	must(t, first.Release)
	h := <-third
	select {
	case second := <-got:
		t.Fatalf("the second has the lock beside the third: tokens %d and %d", second.Token(), h.Token())
	case <-time.After(time.Second / 2):
	}
	must(t, h.Renew)
	must(t, h.Release)
	second := <-got
	if second.Token() <= h.Token() {
		t.Errorf("token %d after %d", second.Token(), h.Token())
	}
	must(t, second.Release)
}

// TestPassword: with a user in the URL, who may do no more than read and write below the lock's name; and over a restart of the server, which
// forgets who was let in.
func TestPassword(t *testing.T) { // before the others begin: a server takes its time over a password
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	cluster.RequirePassword("jobs/")
	host := strings.TrimPrefix(cluster.Endpoints()[0], "http://")
	s := open(t, "etcd://fenceproxy:"+escaped+"@"+host+"/jobs")
	h := acquire(t, s, "a")
	must(t, h.Renew)
	cluster.Members[0].Kill()
	cluster.Members[0].Start()
	cluster.WaitReady()
	eventually(t, "the server lets us in anew", func() bool { return h.Renew(t.Context()) == nil })
	must(t, h.Release)
	must(t, acquire(t, s, "b").Release)

	_, err := Open("etcd://fenceproxy:x" + escaped + "@" + host + "/jobs")
	if err == nil || !strings.Contains(err.Error(), "authentication failed") {
		t.Errorf("a wrong password: %v", err)
	}
	_, err = open(t, "etcd://fenceproxy:"+escaped+"@"+host+"/elsewhere").Acquire(t.Context(), locks.Request{Holder: "a", TTL: ttl})
	if err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a lock that is not for this user: %v", err)
	}
	_, err = open(t, "etcd://"+host+"/jobs").Acquire(t.Context(), locks.Request{Holder: "a", TTL: ttl})
	if err == nil || !strings.Contains(err.Error(), "user name is empty") {
		t.Errorf("without a user: %v", err)
	}
}

const escaped = "se%2Fcr%40et%3A%25" // servers.EtcdPassword

func TestTLS(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{TLS: true})
	host := strings.TrimPrefix(cluster.Endpoints()[0], "https://")
	s := open(t, "etcd://"+host+"/jobs?ca="+cluster.CA())
	h := acquire(t, s, "a")
	must(t, h.Renew)
	must(t, h.Release)
	_, err := open(t, "etcd://"+host+"/jobs?tls=true").Acquire(t.Context(), locks.Request{Holder: "a", TTL: ttl})
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: %v", err)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	a, err := parse("etcd://me:" + escaped + "@one:1,[::1]:2,two/jobs/7%3f?tls=true")
	if err != nil {
		t.Fatal(err)
	}
	if a.user != "me" || a.password != servers.EtcdPassword || a.name != "jobs/7?" || fmt.Sprint(a.endpoints) != "[https://one:1 https://[::1]:2 https://two:2379]" {
		t.Errorf("%+v", a)
	}
	if a, err := parse("etcd://one//jobs"); err != nil || a.name != "/jobs" || a.tls != nil {
		t.Errorf("%+v, %v", a, err)
	}
	for _, bad := range []string{
		"", "http://h/n", "etcd://h", "etcd://h/", "etcd://h/n/", "etcd:///n", "etcd://h:0/n", "etcd://h:x/n", "etcd://h,/n", "etcd://me@h/n", "etcd://me:@h/n",
		"etcd://h/n?tls=yes", "etcd://h/n?tsl=true", "etcd://h/n?tls=true&tls=true", "etcd://h/n?tls=false&ca=x", "etcd://h/n?ca=/nowhere", "etcd://h/n?cert=/nowhere",
		"etcd://h/n#x", "etcd://h/%zz", "etcd://me:secret%zz@h/n", "etcd://me:se/cret@h/n", "etcd://me:se#cret@h/n", "etcd://me:secret@h:port/n", "etcd://me:sec ret\x00@h/n",
	} {
		if a, err := parse(bad); err == nil {
			t.Errorf("%q was read: %+v", bad, a)
		} else if strings.Contains(err.Error(), "cret") {
			t.Errorf("%q: the password is in %q", bad, err)
		}
	}
}
