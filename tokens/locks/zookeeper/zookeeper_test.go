package zookeeper

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/lockstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	server := servers.StartZooKeeper(t)
	lockstest.Run(t, lockstest.Engine{
		TTL: 1500 * time.Millisecond, Late: 2 * servers.ZooKeeperTick, Restart: func(testing.TB) { server.Restart() },
		New: func(t testing.TB) lockstest.Lock {
			path := "/locks/" + lockstest.Name(t)
			return lockstest.Lock{
				Open: func(t testing.TB, via func(string) string) locks.Service {
					return open(t, "zookeeper://"+via(server.Address)+path)
				},
				Delete: func(t testing.TB) {
					if err := client(t, server).Delete(path, -1); err != nil {
						t.Fatal(err)
					}
				},
			}
		},
	})
}

// open opens a lock that is closed with the test.
func open(t testing.TB, url string) locks.Service {
	t.Helper()
	s, err := Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// client is one of the library, as other programs use it.
func client(t testing.TB, server *servers.ZooKeeper) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect([]string{server.Address}, 10*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		for range events {
		}
	})
	return c
}

func take(t testing.TB, s locks.Service, ttl time.Duration) locks.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	h, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func release(t testing.TB, h locks.Hold) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := h.Release(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestOneServer is what needs a real server, and none of its own.
func TestOneServer(t *testing.T) {
	server := servers.StartZooKeeper(t)
	for name, test := range map[string]func(*testing.T, *servers.ZooKeeper){
		"SequenceNumbersRepeat": testSequenceNumbersRepeat, "WithLibrarysLock": testWithLibrarysLock, "LongTTL": testLongTTL,
		"NotRenewed": testNotRenewed, "DeletedNode": testDeletedNode, "Expired": testExpired,
		"ForeignNode": testForeignNode, "LostAnswers": testLostAnswers,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server)
		})
	}
}

// testSequenceNumbersRepeat is the trap: they, and the cversion that they come from, begin anew when the lock's node was deleted, as ZooKeeper
// itself deletes Curator's. The czxid does not.
func testSequenceNumbersRepeat(t *testing.T, server *servers.ZooKeeper) {
	c := client(t, server)
	s := open(t, "zookeeper://"+server.Address+"/locks/compactor")
	type numbers struct {
		sequence string
		cversion int32
		token    tokens.Token
	}
	use := func() (n numbers) {
		h := take(t, s, 10*time.Second)
		n.token = h.Token()
		names, stat, err := c.Children("/locks/compactor")
		if err != nil || len(names) != 1 {
			t.Fatalf("the nodes below the lock's: %q, %v", names, err)
		}
		n.sequence, _ = sequenceOf(names[0])
		n.cversion = stat.Cversion
		release(t, h)
		return n
	}
	use()
	before := use()
	if err := c.Delete("/locks/compactor", -1); err != nil {
		t.Fatal(err)
	}
	after := use()
	t.Logf("before the lock's node was deleted: %+v; after: %+v", before, after)
	if after.sequence >= before.sequence || after.cversion >= before.cversion {
		t.Error("the sequence numbers do not begin anew: there is no trap here")
	}
	if after.token <= before.token {
		t.Errorf("the token %d came after %d", after.token, before.token)
	}
}

// TestNewEnsemble: one that has lost its data counts anew. Nothing in ZooKeeper tells: it is for the fence, which refuses the lower token.
func TestNewEnsemble(t *testing.T) {
	server := servers.StartZooKeeper(t)
	s := open(t, "zookeeper://"+server.Address+"/compactor")
	var before tokens.Token
	for range 3 {
		h := take(t, s, 10*time.Second)
		before = h.Token()
		release(t, h)
	}
	server.Kill()
	server.Forget()
	server.Start()
	h := take(t, s, 10*time.Second)
	defer release(t, h)
	t.Logf("before all data was lost: %d; after: %d", before, h.Token())
	if h.Token() >= before {
		t.Errorf("the token %d came after %d, from an ensemble that knows nothing of it", h.Token(), before)
	}
}

// testWithLibrarysLock: whoever follows ZooKeeper's recipe stands in one queue with us, and its node's czxid is a token of the same row.
func testWithLibrarysLock(t *testing.T, server *servers.ZooKeeper) {
	c := client(t, server)
	s := open(t, "zookeeper://"+server.Address+"/library/compactor")
	var last tokens.Token
	for range 5 {
		h := take(t, s, 10*time.Second)
		if h.Token() <= last {
			t.Fatalf("the token %d came after %d", h.Token(), last)
		}
		last = h.Token()

		theirs := zk.NewLock(c, "/library/compactor", zk.WorldACL(zk.PermAll))
		locked := make(chan error, 1)
		go func() { locked <- theirs.LockWithData([]byte("10.0.0.7")) }()
		for names := []string{}; len(names) < 2; {
			var err error
			if names, _, err = c.Children("/library/compactor"); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case err := <-locked:
			t.Fatalf("the library's lock was taken while we had it: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		release(t, h)
		if err := <-locked; err != nil {
			t.Fatal(err)
		}
		names, _, err := c.Children("/library/compactor")
		if err != nil || len(names) != 1 {
			t.Fatalf("%q, %v", names, err)
		}
		_, stat, err := c.Get("/library/compactor/" + names[0])
		if err != nil || tokens.Token(stat.Czxid) <= last {
			t.Fatalf("their token would be %d, after %d: %v", stat.Czxid, last, err)
		}
		last = tokens.Token(stat.Czxid)

		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		var told locks.Other
		waiting := func(o locks.Other) { told = o; cancel() }
		if _, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: 10 * time.Second, Waiting: waiting}); !errors.Is(err, context.Canceled) {
			t.Fatalf("their lock was taken, or nobody told whose it is: %v", err)
		}
		if told.Token != last || told.Holder != "10.0.0.7" {
			t.Errorf("told of %+v; want their token %d, and what they wrote", told, last)
		}
		if err := theirs.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
}

// testLongTTL: a session that ends before the TTL does would let another in while we are sure of the lock.
func testLongTTL(t *testing.T, server *servers.ZooKeeper) {
	s := open(t, "zookeeper://"+server.Address+"/long")
	h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: 2 * time.Minute})
	if err == nil || !strings.Contains(err.Error(), "for 1m0s at most, and the TTL is 2m0s") {
		t.Fatalf("%v, %v", h, err)
	}
	release(t, take(t, s, time.Minute))
	if n := len(s.(*lock).sessions); n > 0 {
		t.Errorf("%d sessions were left behind", n)
	}
}

// testNotRenewed: the library keeps the session alive by itself; a hold that nobody renews ends all the same.
func testNotRenewed(t *testing.T, server *servers.ZooKeeper) {
	one, other := open(t, "zookeeper://"+server.Address+"/idle"), open(t, "zookeeper://"+server.Address+"/idle")
	h := take(t, one, time.Second)
	began := time.Now()
	next := take(t, other, 10*time.Second)
	defer release(t, next)
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("it was free after %s", took)
	}
	if err := h.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	if err := h.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	if err := next.Renew(t.Context()); err != nil {
		t.Error(err)
	}
}

// testDeletedNode: whoever deletes the node of a holder lets the next one in, and the holder learns it.
func testDeletedNode(t *testing.T, server *servers.ZooKeeper) {
	c := client(t, server)
	s := open(t, "zookeeper://"+server.Address+"/deleted")
	h := take(t, s, 20*time.Second)
	if err := c.Delete(h.(*hold).node, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(h.(*hold).node, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if err := h.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Renew, of somebody else's node that has the name of ours: %v", err)
	}
	if err := c.Delete(h.(*hold).node, -1); err != nil {
		t.Fatal(err)
	}
	next := take(t, s, 20*time.Second)
	defer release(t, next)
	if next.Token() <= h.Token() {
		t.Errorf("the token %d came after %d", next.Token(), h.Token())
	}
	if err := h.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	if err := h.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	if err := next.Renew(t.Context()); err != nil {
		t.Error(err)
	}
}

// testExpired: where a session has expired the library would begin another one, and go on as if nothing were.
func testExpired(t *testing.T, server *servers.ZooKeeper) {
	s := open(t, "zookeeper://"+server.Address+"/expired")
	h := take(t, s, time.Second)
	h.(*hold).session.event(zk.Event{Type: zk.EventSession, State: zk.StateExpired})
	if err := h.Renew(t.Context()); !errors.Is(err, locks.ErrLost) || !errors.Is(err, errExpired) {
		t.Errorf("Renew: %v", err)
	}
	release(t, take(t, s, time.Second)) // nobody keeps it alive
	if err := h.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Release: %v", err)
	}
}

// testForeignNode: what is no contender below the lock's node would have to be guessed about.
func testForeignNode(t *testing.T, server *servers.ZooKeeper) {
	release(t, take(t, open(t, "zookeeper://"+server.Address+"/jobs/nightly"), 10*time.Second))
	s := open(t, "zookeeper://"+server.Address+"/jobs")
	h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: 10 * time.Second})
	if err == nil || !strings.Contains(err.Error(), `"nightly" below it is none of a lock`) {
		t.Fatalf("%v, %v", h, err)
	}
}

func TestUser(t *testing.T) {
	server := servers.StartZooKeeper(t)
	s := open(t, "zookeeper://fencer:s3cret@"+server.Address+"/locks/compactor")
	h := take(t, s, 10*time.Second)
	if err := h.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	nobody := open(t, "zookeeper://"+server.Address+"/locks/compactor")
	if h, err := nobody.Acquire(t.Context(), locks.Request{Holder: "a", TTL: 10 * time.Second}); !errors.Is(err, zk.ErrNoAuth) {
		t.Fatalf("without the user: %v, %v", h, err)
	}
	server.Restart() // the library has to show the user again
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := h.Renew(t.Context())
		if err == nil {
			break
		}
		if errors.Is(err, locks.ErrLost) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
	release(t, h)
}

func TestNobodyThere(t *testing.T) {
	server := servers.StartZooKeeper(t)
	server.Kill()
	s := open(t, "zookeeper://fencer:s3cret@"+server.Address+"/compactor")
	h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: 10 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "no ZooKeeper answers at "+server.Address) || !strings.Contains(err.Error(), "connection refused") {
		t.Fatalf("%v, %v", h, err)
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the password is told: %v", err)
	}
}
