package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/lockstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{Durable: true, Password: true})
	lockstest.Run(t, lockstest.Engine{
		TTL: time.Second, TellsTakeover: true,
		New: func(t testing.TB) lockstest.Lock {
			name := lockstest.Name(t)
			return lockstest.Lock{
				Open: func(t testing.TB, via func(string) string) locks.Service {
					return open(t, "redis://:"+url.QueryEscape(servers.RedisPassword)+"@"+via(server.Address)+"/"+name)
				},
				Delete: func(testing.TB) { server.Do("DEL", name, "{"+name+"}:released") },
			}
		},
		Restart: func(testing.TB) { server.Kill(); server.Start() },
	})
}

func open(t testing.TB, url string) *Service {
	t.Helper()
	s, err := Open(url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func client(t testing.TB, server *servers.Redis) *Service {
	t.Helper()
	s := open(t, "redis://"+server.Address+"/jobs/7")
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func acquire(t testing.TB, s *Service, holder string, ttl time.Duration) locks.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	h, err := s.Acquire(ctx, locks.Request{Holder: holder, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func check(t testing.TB, s *Service) []string {
	t.Helper()
	found, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Log(f)
	}
	return found
}

func mustSay(t testing.TB, found []string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, w) }) {
			t.Errorf("Check does not say %q", w)
		}
	}
}

// TestWithoutPersistence: the trap. A server that keeps nothing gives the same tokens again after a crash. Check says so.
func TestWithoutPersistence(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := client(t, server)
	var before tokens.Token
	for range 3 {
		h := acquire(t, s, "before", time.Minute)
		before = h.Token()
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mustSay(t, check(t, s), "no append-only file")
	server.Kill()
	server.Start()
	if after := acquire(t, client(t, server), "after", time.Minute).Token(); after >= before {
		t.Errorf("the token before the crash was %d, the one after it is %d: then it is no trap", before, after)
	} else {
		t.Logf("the token before the crash was %d, the one after it is %d", before, after)
	}
}

// TestFailover: the trap. A replica is promoted that has not got the last INCR: its token is given a second time, to another holder.
func TestFailover(t *testing.T) {
	primary := servers.StartRedis(t, servers.RedisOptions{Durable: true})
	replica := servers.StartRedis(t, servers.RedisOptions{Durable: true, ReplicaOf: primary})
	replica.Replicated()
	s := client(t, primary)
	first := acquire(t, s, "first", time.Minute)
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustSay(t, check(t, s), "has replicas (1)")
	mustSay(t, check(t, client(t, replica)), "is a replica")
	if _, err := client(t, replica).Acquire(t.Context(), locks.Request{Holder: "lost", TTL: time.Second}); err == nil || !strings.Contains(err.Error(), "name the primary") {
		t.Errorf("a replica gave the lock: %v", err)
	}
	for end := time.Now().Add(10 * time.Second); replica.Do("EXISTS", "jobs/7", "{jobs/7}:released") != int64(1); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the replica does not follow")
		}
	}
	replica.Cut() // the network between them breaks, and then the primary dies
	second := acquire(t, s, "second", time.Minute)
	primary.Kill()
	replica.Promote()
	again := acquire(t, client(t, replica), "third", time.Minute)
	if again.Token() != second.Token() {
		t.Errorf("%d and %d: then it is no trap", second.Token(), again.Token())
	}
	t.Logf("%d was given to second by the primary, and to third by the replica that was promoted", again.Token())
	if err := second.Renew(t.Context()); err == nil {
		t.Error("a hold was renewed by a server that is dead")
	}
}

// TestDurable: with an append-only file that is synced always a crash takes nothing back, and Check has nothing to say.
func TestDurable(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{Durable: true})
	s := client(t, server)
	if found := check(t, s); len(found) != 0 {
		t.Errorf("%q", found)
	}
	var last tokens.Token
	for range 5 {
		h := acquire(t, client(t, server), "a", 200*time.Millisecond)
		if h.Token() <= last {
			t.Errorf("%d after %d", h.Token(), last)
		}
		last = h.Token()
		server.Kill()
		server.Start()
	}
}

func TestCheck(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{Durable: true})
	s := client(t, server)
	server.Do("CONFIG", "SET", "appendfsync", "everysec", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
	mustSay(t, check(t, s), `the rule "everysec"`, "removes any key")
	server.Do("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	mustSay(t, check(t, s), "Tokens stay right")

	// Somebody who may take the lock, and not read the settings.
	server.Do("ACL", "SETUSER", "worker", "on", ">pass", "~jobs/7", "~{jobs/7}:*", "+eval", "+get", "+set", "+incr", "+del", "+pttl", "+pexpire", "+info", "+ping")
	s = open(t, "redis://worker:pass@"+server.Address+"/jobs/7")
	defer s.Close()
	if err := acquire(t, s, "a", time.Second).Release(t.Context()); err != nil {
		t.Error(err)
	}
	mustSay(t, check(t, s), "does not tell how often it syncs")
	server.Do("ACL", "SETUSER", "worker", "-eval")
	if _, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Second}); err == nil || !strings.Contains(err.Error(), "must be allowed EVAL") {
		t.Error(err)
	}
}

// TestLargeTokens: Lua's numbers are not exact above 2^53, and tokens go up to 2^63-1. What is no token is not used as one, and the lock is
// not kept for it.
func TestLargeTokens(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := client(t, server)
	server.Do("SET", "{jobs/7}:token", "9223372036854775800")
	for i := range 7 {
		want := tokens.Max - 6 + tokens.Token(i)
		h := acquire(t, s, "a", time.Minute)
		if h.Token() != want {
			t.Errorf("%d, not %d", h.Token(), want)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Minute}); err == nil || !strings.Contains(err.Error(), "cannot be counted on") {
		t.Errorf("beyond the last: %v", err)
	}
	server.Do("SET", "{jobs/7}:token", "-5")
	if _, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Minute}); err == nil || !strings.Contains(err.Error(), "set it above all tokens") {
		t.Errorf("below the first: %v", err)
	}
	if server.Do("EXISTS", "jobs/7") != int64(0) {
		t.Error("the lock is kept, though nobody has it")
	}
}

// TestOtherClients: the lock of other libraries is this one. Who has it is not known then, and what it holds is not touched.
func TestOtherClients(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := client(t, server)
	server.Do("SET", "jobs/7", "their own words", "NX", "PX", "300")
	var told []locks.Other
	h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Minute, Waiting: func(o locks.Other) { told = append(told, o) }})
	if err != nil || len(told) != 1 || told[0] != (locks.Other{}) {
		t.Fatalf("%v, %+v", err, told)
	}
	if server.Do("SET", "jobs/7", "theirs", "NX", "PX", "300") != nil {
		t.Error("they got it while we have it")
	}
	server.Do("SET", "jobs/7", "theirs") // by force
	for what, call := range map[string]func(context.Context) error{"Renew": h.Renew, "Release": h.Release} {
		if err := call(t.Context()); !errors.Is(err, locks.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if server.Do("GET", "jobs/7") != "theirs" || server.Do("TTL", "jobs/7") != int64(-1) {
		t.Error("what is theirs was touched")
	}
}

// TestToldAgain: who waits is told when the lock changes hands.
func TestToldAgain(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := client(t, server)
	server.Do("SET", "jobs/7", "5 id 1700000000000 first")
	ctx, cancel := context.WithCancel(t.Context())
	var told []locks.Other
	_, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: time.Minute, Waiting: func(o locks.Other) {
		if told = append(told, o); len(told) == 2 {
			cancel()
		} else {
			server.Do("SET", "jobs/7", "6 id 1700000001000 second")
		}
	}})
	want := []locks.Other{{Holder: "first", Token: 5, Since: time.UnixMilli(1700000000000)}, {Holder: "second", Token: 6, Since: time.UnixMilli(1700000001000)}}
	if !errors.Is(err, context.Canceled) || !slices.Equal(told, want) {
		t.Errorf("%v, %+v", err, told)
	}
}

// A relay stands before the server. Connections that were open when it was told to deafen deliver commands, and no answers.
type relay struct {
	net.Listener
	target string
	tasks  sync.WaitGroup

	mu   sync.Mutex // guards the rest
	deaf map[net.Conn]bool
}

func startRelay(t testing.TB, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, target: target, deaf: make(map[net.Conn]bool)}
	r.tasks.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			r.tasks.Go(func() { r.serve(client) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); r.tasks.Wait() })
	return r
}

func (r *relay) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.deaf[client] = false
	r.mu.Unlock()
	r.tasks.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	buffer := make([]byte, 4096)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		r.mu.Lock()
		if !r.deaf[client] {
			_, _ = client.Write(buffer[:n])
		}
		r.mu.Unlock()
	}
}

func (r *relay) deafen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.deaf {
		r.deaf[c] = true
	}
}

// TestAnswerLost: the server has given the lock, and the answer is lost. It is given back, and not left to run out.
func TestAnswerLost(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	between := startRelay(t, server.Address)
	s := open(t, "redis://"+between.Addr().String()+"/jobs/7")
	defer s.Close()
	if err := acquire(t, s, "a", 5*time.Minute).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	between.deafen()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: 5 * time.Minute}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if counter := server.Do("GET", "{jobs/7}:token"); counter != "2" {
		t.Fatalf("the counter stands at %v: the lock was not given, and nothing is shown", counter)
	}
	if left := server.Do("GET", "jobs/7"); left != nil {
		t.Errorf("the lock is kept by somebody who does not know it: %v", left)
	}

	// Asked again under the same id, which is what a waiter does after a broken connection.
	w := waiter{s: s, r: locks.Request{Holder: "a", TTL: time.Minute}, id: "THEID"}
	first, err := w.ask(t.Context())
	second, err2 := w.ask(t.Context())
	if err != nil || err2 != nil || first[0] != "1" || second[0] != "1" || first[1] != second[1] {
		t.Errorf("%v, %v, then %v, %v", first, err, second, err2)
	}
}

// TestServerGoes: while it waits, a server that restarts is waited for; one that was never there is not.
func TestServerGoes(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{Durable: true})
	s := client(t, server)
	server.Do("SET", "jobs/7", "1 id 1 first")
	waits := make(chan struct{}, 1)
	won := make(chan error, 1)
	go func() {
		_, err := s.Acquire(context.Background(), locks.Request{Holder: "a", TTL: 30 * time.Second, Waiting: func(locks.Other) { waits <- struct{}{} }})
		won <- err
	}()
	<-waits
	server.Kill()
	server.Start()
	server.Do("DEL", "jobs/7")
	if err := <-won; err != nil {
		t.Error(err)
	}
	server.Kill()
	began := time.Now()
	if _, err := client(t, server).Acquire(context.Background(), locks.Request{Holder: "a", TTL: 30 * time.Second}); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("%v, after %s", err, time.Since(began))
	}
}

// TestGivesUpOnServer: a server that goes while it is waited for, and does not come back, is an error after the TTL.
func TestGivesUpOnServer(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := client(t, server)
	server.Do("SET", "jobs/7", "1 id 1 first")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	_, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: time.Second, Waiting: func(locks.Other) { server.Kill() }})
	if err == nil || ctx.Err() != nil || time.Since(began) < time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

func TestTLS(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{TLS: true, Password: true})
	login := "rediss://default:" + url.QueryEscape(servers.RedisPassword) + "@" + server.Address
	s := open(t, login+"/jobs/7?db=3&ca="+url.QueryEscape(server.CA))
	defer s.Close()
	if err := acquire(t, s, "a", time.Second).Release(t.Context()); err != nil {
		t.Error(err)
	}
	for url, want := range map[string]string{
		login + "/jobs/7": "certificate",
		"rediss://" + server.Address + "/jobs/7?ca=" + url.QueryEscape(server.CA):        "wants a password",
		"rediss://:wrong@" + server.Address + "/jobs/7?ca=" + url.QueryEscape(server.CA): "password is wrong",
	} {
		s := open(t, url)
		defer s.Close()
		_, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Second})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "cr@et") || strings.Contains(err.Error(), "wrong@") {
			t.Errorf("%v; want %q in it", err, want)
		}
	}
}

func TestOpen(t *testing.T) {
	for _, url := range []string{"redis://h/jobs", "rediss://:secret@h/jobs", "redis://h/jobs?tls=true"} {
		s, err := Open(url)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
	}
	for url, want := range map[string]string{
		"redis://:secret@h,i/jobs": "several hosts", "rediss://h/jobs?tls=false": "tls=false", "redis://:secret@h": "names no lock", "redlock://h/jobs": "begin with redis://",
	} {
		if _, err := Open(url); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Example is how a program takes the lock and writes with its token.
func Example() {
	service, err := Open("redis://localhost/compactor")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer service.Close()
	lock := locks.New(service, locks.Options{TTL: 30 * time.Second})
	grant, err := lock.Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer grant.Release(context.Background())
	fmt.Println("X-Fence-Token:", grant.Token())
}
