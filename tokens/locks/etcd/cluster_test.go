package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// An etcdctl is a running `etcdctl lock`, whose command prints the number that it was given, and then waits to be told to end.
type etcdctl struct {
	t    testing.TB
	cmd  *exec.Cmd
	stay string // the command ends when this file is gone
	rev  chan tokens.Token
}

// etcdctlLock begins one. Its command has begun when rev has a number; it is closed when etcdctl ends.
func etcdctlLock(t testing.TB, cluster *servers.Etcd, name string) *etcdctl {
	t.Helper()
	if _, err := exec.LookPath("etcdctl"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no etcdctl here: install etcd-client")
		}
		t.Skip("SKIPPED, and not shown: there is no etcdctl here: install etcd-client")
	}
	e := &etcdctl{t: t, stay: filepath.Join(t.TempDir(), "stay"), rev: make(chan tokens.Token, 1)}
	if err := os.WriteFile(e.stay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e.cmd = exec.Command("etcdctl", "--endpoints", strings.Join(cluster.Endpoints(), ","), "lock", "--ttl", "2", name, "--",
		"sh", "-c", "echo $ETCD_LOCK_REV; while [ -e '"+e.stay+"' ]; do sleep 0.02; done")
	e.cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := e.cmd.StdoutPipe()
	if err == nil {
		err = e.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(e.rev)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if token, err := tokens.ParseToken(lines.Text()); err == nil {
				e.rev <- token
			}
		}
	}()
	t.Cleanup(func() {
		_ = e.cmd.Process.Kill()
		_ = os.Remove(e.stay)
		_ = e.cmd.Wait()
	})
	return e
}

// number waits for it to have the lock; 0 if it has given up.
func (e *etcdctl) number() tokens.Token {
	e.t.Helper()
	select {
	case rev := <-e.rev:
		return rev
	case <-time.After(patience):
		e.t.Fatal("etcdctl does not get the lock")
		return 0
	}
}

// end has the command end, and etcdctl with it, which releases the lock.
func (e *etcdctl) end() {
	e.t.Helper()
	if err := os.Remove(e.stay); err != nil {
		e.t.Fatal(err)
	}
}

// TestBesideEtcdctl: we and `etcdctl lock` keep each other out, in one queue, and the numbers grow from one to the other.
func TestBesideEtcdctl(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	client := cluster.Client()
	first := etcdctlLock(t, cluster, "jobs/7")
	last := first.number()
	if last == 0 {
		t.Fatal("etcdctl does not get a free lock")
	}
	s := open(t, urlOf(cluster, "jobs/7"))
	for range 3 {
		got := make(chan locks.Hold)
		told := make(chan locks.Other, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			defer cancel()
			h, err := s.Acquire(ctx, locks.Request{Holder: "we", TTL: patience, Waiting: func(o locks.Other) { told <- o }})
			if err != nil {
				t.Error(err)
			}
			got <- h
		}()
		if o := <-told; o != (locks.Other{}) {
			t.Errorf("of a holder of etcdctl's is told %+v", o)
		}
		eventually(t, "we wait", func() bool { return len(keys(t, client, "jobs/7")) == 2 })
		second := etcdctlLock(t, cluster, "jobs/7")
		eventually(t, "etcdctl waits behind us", func() bool { return len(keys(t, client, "jobs/7")) == 3 })
		first.end()
		h := <-got
		if h == nil {
			return
		}
		t.Logf("etcdctl had %d, we have %d", last, h.Token())
		if h.Token() <= last {
			t.Fatalf("token %d after etcdctl's %d", h.Token(), last)
		}
		must(t, h.Renew)
		select {
		case rev := <-second.rev:
			t.Fatalf("etcdctl got in beside us: %d", rev)
		case <-time.After(100 * time.Millisecond):
		}
		must(t, h.Release)
		if last = second.number(); last <= h.Token() {
			t.Fatalf("etcdctl has %d after our %d", last, h.Token())
		}
		first = second
	}
	first.end()
}

// TestBesideMutex: the same with the Mutex of etcd's client, many at once.
func TestBesideMutex(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	const rounds = 20
	var (
		mu     sync.Mutex // guards given
		given  []tokens.Token
		inside int // guarded by the lock that is tested
		tasks  sync.WaitGroup
	)
	have := func(token tokens.Token) {
		inside++
		if inside != 1 {
			t.Errorf("%d holders at once", inside)
		}
		mu.Lock()
		given = append(given, token)
		mu.Unlock()
		inside--
	}
	for i := range 3 {
		s := open(t, urlOf(cluster, "jobs"))
		tasks.Go(func() {
			for range rounds {
				h := acquire(t, s, fmt.Sprint("we", i))
				have(h.Token())
				must(t, h.Release)
			}
		})
		client := cluster.Client()
		tasks.Go(func() {
			for range rounds {
				session, err := concurrency.NewSession(client, concurrency.WithTTL(int(patience/time.Second)))
				if err != nil {
					t.Error(err)
					return
				}
				m := concurrency.NewMutex(session, "jobs")
				if err := m.Lock(context.Background()); err != nil {
					t.Error(err)
					return
				}
				have(tokens.Token(m.Header().Revision))
				if err := errors.Join(m.Unlock(context.Background()), session.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	tasks.Wait()
	if len(given) != 6*rounds || !slices.IsSorted(given) || len(slices.Compact(slices.Clone(given))) != len(given) {
		t.Errorf("in the order of the holders: %d", given)
	}
}

// TestPausedEtcdctl is the trap of `etcdctl lock` before 3.5: one that was paused while it waited has lost its place, and does not look. It goes
// on with a number that is as high as the holder's, or higher. Ours looks (TestPausedWaiter).
func TestPausedEtcdctl(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	client := cluster.Client()
	s := open(t, urlOf(cluster, "jobs"))
	first := acquire(t, s, "first")
	paused := etcdctlLock(t, cluster, "jobs")
	eventually(t, "etcdctl waits", func() bool { return len(keys(t, client, "jobs")) == 2 })
	_ = paused.cmd.Process.Signal(syscall.SIGSTOP)
	eventually(t, "its place is gone", func() bool { return len(keys(t, client, "jobs")) == 1 })
	must(t, first.Release)
	h := acquire(t, s, "second")
	_ = paused.cmd.Process.Signal(syscall.SIGCONT)
	rev := paused.number()
	must(t, h.Renew) // the lock is ours
	out, err := exec.Command("etcdctl", "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	old := strings.Contains(string(out), "etcdctl version: 3.4.")
	t.Logf("we have the lock with token %d; the waiter that was paused went on with %d (0: it did not)", h.Token(), rev)
	if old && rev < h.Token() || !old && rev != 0 {
		t.Errorf("etcdctl was seen to do otherwise; say so in the documentation: %s", out)
	}
	must(t, h.Release)
}

// TestRestored is the trap: after a restore from a snapshot tokens are given for a second time. Who has seen the cluster before notices, and is given none.
func TestRestored(t *testing.T) {
	t.Parallel()
	for name, sameID := range map[string]bool{"as another cluster": false, "under its old id": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := servers.StartEtcd(t, servers.EtcdOptions{})
			s := open(t, urlOf(cluster, "jobs"))
			must(t, acquire(t, s, "a").Release)
			snapshot := cluster.Snapshot()
			for range 5 {
				must(t, acquire(t, s, "a").Release)
			}
			h := acquire(t, s, "a")
			cluster.Restore(snapshot, sameID)

			var err error
			eventually(t, "the holder is told", func() bool {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				err = h.Renew(ctx)
				return errors.Is(err, locks.ErrLost)
			})
			t.Logf("the holder is told: %v", err)
			if _, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: ttl}); !errors.Is(err, ErrRestored) || !strings.Contains(err.Error(), "--bump-revision") {
				t.Errorf("who has seen the cluster before gets: %v", err)
			}
			again := acquire(t, open(t, urlOf(cluster, "jobs")), "b")
			if again.Token() > h.Token() {
				t.Errorf("token %d after %d: no trap is shown", again.Token(), h.Token())
			}
			t.Logf("before the restore the token was %d, after it %d", h.Token(), again.Token())
			must(t, again.Release)
		})
	}
}

// TestLeaders: the lock stands over the death of the leader, for the holder and for who waits.
func TestLeaders(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{Members: 3})
	one, other := open(t, urlOf(cluster, "jobs")), open(t, urlOf(cluster, "jobs"))
	const long = 4 * patience // elections take long where others work, too
	h, err := one.Acquire(t.Context(), locks.Request{Holder: "a", TTL: long})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan locks.Hold, 1)
	waits := make(chan locks.Other, 100)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*long)
		defer cancel()
		next, err := other.Acquire(ctx, locks.Request{Holder: "b", TTL: long, Waiting: func(o locks.Other) { waits <- o }})
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	<-waits
	leader := cluster.Leader()
	leader.Kill()
	for deadline := time.Now().Add(3 * patience); ; {
		err := h.Renew(t.Context())
		if err == nil {
			break
		} else if errors.Is(err, locks.ErrLost) || time.Now().After(deadline) {
			t.Fatalf("the holder does not keep it: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	leader.Start()
	cluster.WaitReady()
	select {
	case <-got:
		t.Fatal("the waiter got in")
	default:
	}
	eventually(t, "it is released", func() bool { return h.Release(t.Context()) == nil })
	if next := <-got; next == nil {
		t.Fatal("the waiter did not get the lock")
	} else if next.Token() <= h.Token() {
		t.Errorf("token %d after %d", next.Token(), h.Token())
	}
}

// TestWithoutMajority: a leader that is alone keeps a lease alive on its word. The hold is not renewed by that.
func TestWithoutMajority(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{Members: 3})
	leader := cluster.Leader()
	s := open(t, "etcd://"+strings.TrimPrefix(leader.Endpoint, "http://")+"/jobs")
	h := acquire(t, s, "a")
	for _, m := range cluster.Members {
		if m != leader {
			m.Pause()
		}
	}
	within := func(d time.Duration, call func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return call(ctx)
	}
	eventually(t, "there is no majority", func() bool { // they stop when they are scheduled next
		return within(100*time.Millisecond, func(ctx context.Context) error { _, err := s.txn(ctx, nil, clientv3.OpPut("x", "")); return err }) != nil
	})
	alone := within(100*time.Millisecond, func(ctx context.Context) error { _, err := s.keepAlive(ctx, h.(*hold).lease); return err })
	if err := within(200*time.Millisecond, h.Renew); err == nil || errors.Is(err, locks.ErrLost) {
		t.Errorf("without a majority: %v; want it unknown", err)
	} else {
		t.Logf("a leader that is alone says of the lease: %v (nil: it is kept); of the hold: %v", alone, err)
	}
	for _, m := range cluster.Members {
		if m != leader {
			m.Resume()
		}
	}
	eventually(t, "it goes on", func() bool { return h.Renew(t.Context()) == nil })
	must(t, h.Release)
}

// TestLeaderMovesWhileRenewing: where another leader was elected since the lease was kept alive, who kept it is not known, and it is kept again.
func TestLeaderMovesWhileRenewing(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{Members: 3})
	var kept, moved atomic.Int32
	move := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == "/etcdserverpb.KV/Txn" && kept.Load() == 1 && moved.CompareAndSwap(0, 1) {
			leader := cluster.Leader()
			to := cluster.Members[0]
			if to == leader {
				to = cluster.Members[1]
			}
			status, err := cluster.Client().Status(ctx, to.Endpoint)
			if err == nil {
				_, err = cluster.Client(leader.Endpoint).MoveLeader(ctx, status.Header.MemberId)
			}
			if err != nil {
				t.Error(err)
			}
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	count := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if method == "/etcdserverpb.Lease/LeaseKeepAlive" {
			kept.Add(1)
		}
		return stream(ctx, desc, cc, method, opts...)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: cluster.Endpoints(), DialTimeout: callTime, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(move), grpc.WithChainStreamInterceptor(count)},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{client: client, at: "the cluster", prefix: "jobs/"}
	defer s.Close()
	h := acquire(t, s, "a")
	must(t, h.Renew)
	if kept.Load() != 2 || moved.Load() != 1 {
		t.Errorf("kept alive %d times, and the leader moved %d times; want it once more after the leader has moved", kept.Load(), moved.Load())
	}
	must(t, h.Renew)
	if kept.Load() != 3 {
		t.Errorf("a renewal under one leader kept the lease alive %d times", kept.Load()-2)
	}
	must(t, h.Release)
}

// TestPatientWaiter: who waits for longer than its TTL keeps its place before those who come later.
func TestPatientWaiter(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	client := cluster.Client()
	s := open(t, urlOf(cluster, "jobs"))
	h := acquire(t, s, "first")
	order := make(chan string, 2)
	var tasks sync.WaitGroup
	wait := func(holder string, ttl time.Duration) {
		tasks.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			h, err := s.Acquire(ctx, locks.Request{Holder: holder, TTL: ttl})
			if err != nil {
				t.Error(err)
				return
			}
			order <- holder
			must(t, h.Release)
		})
	}
	wait("patient", ttl)
	eventually(t, "the patient one waits", func() bool { return len(keys(t, client, "jobs")) == 2 })
	place := keys(t, client, "jobs")
	time.Sleep(5 * ttl / 2) // it would have run out, and somebody else waited behind
	wait("late", patience)
	eventually(t, "the late one waits", func() bool { return len(keys(t, client, "jobs")) == 3 })
	if now := keys(t, client, "jobs"); !slices.Contains(now, place[0]) || !slices.Contains(now, place[1]) {
		t.Errorf("in the queue were %q, and are %q", place, now)
	}
	must(t, h.Release)
	tasks.Wait()
	if first := <-order; first != "patient" {
		t.Errorf("%s came first", first)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	check := func(cluster *servers.Etcd, want ...string) {
		t.Helper()
		found, err := open(t, urlOf(cluster, "jobs")).Check(t.Context())
		if err != nil || len(found) != len(want) {
			t.Errorf("%q, %v; want %q", found, err, want)
			return
		}
		for i, w := range want {
			if !strings.Contains(found[i], w) {
				t.Errorf("%q; want it to say %q", found[i], w)
			}
		}
	}
	check(servers.StartEtcd(t, servers.EtcdOptions{}), "one voting member")
	three := servers.StartEtcd(t, servers.EtcdOptions{Members: 3})
	check(three)
	three.Members[0].Kill()
	check(three, "Which version member m0")
	for _, c := range []struct {
		version string
		voters  int
		flaw    string
	}{
		{"3.4.20", 1, "before they are on disk"},
		{"3.4.20", 3, ""},
		{"3.4.21", 1, ""},
		{"3.5.2", 3, "one member"},
		{"3.5.0-rc.1", 3, "one member"},
		{"3.5.4", 1, "on disk"},
		{"3.5.4", 3, ""},
		{"3.5.5", 1, ""},
		{"3.6.0", 1, ""},
		{"3.3.27", 3, "not tried"},
		{"4.0.0", 1, ""},
	} {
		if got := flawOf(c.version, c.voters); (got == "") != (c.flaw == "") || !strings.Contains(got, c.flaw) {
			t.Errorf("%s with %d: %q", c.version, c.voters, got)
		}
	}
}
