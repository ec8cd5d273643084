package redlock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/lockstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t testing.TB, o servers.RedisOptions) (all []*servers.Redis) {
	for range 3 {
		all = append(all, servers.StartRedis(t, o))
	}
	return all
}

func TestConformance(t *testing.T) {
	all := start(t, servers.RedisOptions{Durable: true, Password: true})
	lockstest.Run(t, lockstest.Engine{
		TTL: 2 * time.Second, Late: time.Second,
		New: func(t testing.TB) lockstest.Lock {
			name := lockstest.Name(t)
			return lockstest.Lock{
				Open: func(t testing.TB, via func(string) string) locks.Service {
					var hosts []string
					for _, r := range all {
						hosts = append(hosts, via(r.Address))
					}
					return open(t, "redlock://:"+url.QueryEscape(servers.RedisPassword)+"@"+strings.Join(hosts, ",")+"/"+name)
				},
				Delete: func(testing.TB) {
					for _, r := range all {
						r.Do("DEL", name)
					}
				},
			}
		},
		Restart: func(testing.TB) {
			for _, r := range all {
				r.Kill()
			}
			for _, r := range all {
				r.Start()
			}
		},
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

func client(t testing.TB, all []*servers.Redis) *Service {
	t.Helper()
	var hosts []string
	for _, r := range all {
		hosts = append(hosts, r.Address)
	}
	s := open(t, "redlock://"+strings.Join(hosts, ",")+"/jobs/7")
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

// TestServersDown: one of three may be away, at any time; with two away there is no lock, and an error that says why.
func TestServersDown(t *testing.T) {
	all := start(t, servers.RedisOptions{Durable: true})
	s := client(t, all)
	var last tokens.Token
	for i := range 6 {
		down := all[i%3]
		down.Kill()
		h := acquire(t, s, "a", 10*time.Second)
		if h.Token() <= last {
			t.Errorf("%d after %d", h.Token(), last)
		}
		last = h.Token()
		if err := h.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
		down.Start()
	}
	h := acquire(t, s, "a", 10*time.Second)
	all[0].Kill()
	all[1].Kill()
	if err := h.Renew(t.Context()); err == nil || errors.Is(err, locks.ErrLost) {
		t.Errorf("renewed with one server of three: %v", err)
	}
	began := time.Now()
	_, err := client(t, all).Acquire(t.Context(), locks.Request{Holder: "b", TTL: 10 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "a majority is needed") || !strings.Contains(err.Error(), all[1].Address) || time.Since(began) > 10*time.Second {
		t.Errorf("acquired with one server of three: %v, after %s", err, time.Since(began))
	}
	if err := h.Release(t.Context()); err == nil || errors.Is(err, locks.ErrLost) {
		t.Errorf("released with one server of three: %v", err)
	}
	all[0].Start()
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("released again, with two: %v", err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("and again: %v", err)
	}
}

// TestServerHangs: one that does not answer costs a fifth of the TTL, and not the lock.
func TestServerHangs(t *testing.T) {
	all := start(t, servers.RedisOptions{})
	s := client(t, all)
	all[1].Pause()
	defer all[1].Resume()
	began := time.Now()
	h := acquire(t, s, "a", 5*time.Second)
	if err := h.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestForgetful: the trap. A majority that has forgotten what it answered gives the same token again. Check says so before.
func TestForgetful(t *testing.T) {
	all := start(t, servers.RedisOptions{})
	found, err := client(t, all).Check(t.Context())
	if err != nil || len(found) != 3 || !strings.Contains(found[2], "no append-only file") {
		t.Errorf("%q, %v", found, err)
	}
	all[2].Kill() // it knows nothing of what follows
	s := client(t, all)
	first := acquire(t, s, "first", time.Minute)
	all[0].Kill() // and forgets it
	all[0].Start()
	all[2].Start()
	all[1].Kill()
	second := acquire(t, client(t, all), "second", time.Minute)
	if second.Token() != first.Token() {
		t.Errorf("%d and %d: then it is no trap", first.Token(), second.Token())
	}
	t.Logf("%d was given to first, and, after one server forgot it and another was away, to second", first.Token())
}

// TestDurable: the same with servers that forget nothing.
func TestDurable(t *testing.T) {
	all := start(t, servers.RedisOptions{Durable: true})
	s := client(t, all)
	if found, err := s.Check(t.Context()); len(found) != 0 || err != nil {
		t.Errorf("%q, %v", found, err)
	}
	all[2].Kill()
	first := acquire(t, s, "first", 500*time.Millisecond)
	all[0].Kill()
	all[0].Start()
	all[2].Start()
	all[1].Kill()
	s = client(t, all)
	if found, err := s.Check(t.Context()); len(found) != 1 || !strings.Contains(found[0], all[1].Address+" cannot be asked") || err != nil {
		t.Errorf("%q, %v", found, err)
	}
	second := acquire(t, s, "second", time.Minute)
	if second.Token() <= first.Token() {
		t.Errorf("%d after %d", second.Token(), first.Token())
	}
	time.Sleep(100 * time.Millisecond) // of the connections of first two have ended: they are asked whether they stand
	if err := first.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("the one before: %v", err)
	}
}

// TestLateMessage: a message of ours that set the lock on a server long after somebody else had it makes no majority of two old locks.
func TestLateMessage(t *testing.T) {
	all := start(t, servers.RedisOptions{Durable: true})
	s := client(t, all)
	first := acquire(t, s, "first", time.Minute).(*hold)
	all[1].Do("DEL", "jobs/7") // as if they had run out there
	all[2].Do("DEL", "jobs/7")
	second := acquire(t, s, "second", time.Minute)
	if second.Token() <= first.Token() {
		t.Fatalf("%d after %d", second.Token(), first.Token())
	}
	if err := second.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	all[2].Do("SET", "jobs/7", "0 "+first.id+" 1 first", "PX", "60000")
	if err := first.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("it has two locks of three, and was overtaken: %v", err)
	}
}

// TestLargeTokens: Lua's numbers are not exact above 2^53, and tokens go up to 2^63-1.
func TestLargeTokens(t *testing.T) {
	all := start(t, servers.RedisOptions{})
	s := client(t, all)
	all[1].Do("SET", "{jobs/7}:token", "9223372036854775800")
	for i := range 7 {
		h := acquire(t, s, "a", time.Minute)
		if want := tokens.Max - 6 + tokens.Token(i); h.Token() != want {
			t.Errorf("%d, not %d", h.Token(), want)
		}
		if err := h.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, counter := range []string{"9223372036854775807", "9223372036854775808", "-1", "01", "x"} {
		for _, r := range all {
			r.Do("SET", "{jobs/7}:token", counter)
		}
		if _, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Minute}); err == nil || !strings.Contains(err.Error(), "no token follows") {
			t.Errorf("%s: %v", counter, err)
		}
		for _, r := range all {
			if r.Do("EXISTS", "jobs/7") != int64(0) {
				t.Errorf("%s: the lock is kept, though nobody has it", counter)
			}
		}
	}
}

// TestOnlyUpwards: a counter is never taken down, and one that is not below the token is not ours.
func TestOnlyUpwards(t *testing.T) {
	all := start(t, servers.RedisOptions{})
	s := client(t, all)
	run := func(r *servers.Redis, script string, n int, args ...string) string {
		a := ask(t.Context(), s.nodes[slices.Index(all, r)], n, append([]string{"EVAL", script, "2"}, append(slices.Clone(s.keys), args...)...))
		if a.err != nil {
			t.Fatal(a.err)
		}
		return a.texts[0]
	}
	r := all[0]
	if run(r, lockScript, 2, "ID", "a", "60000", "1") != "1" || run(r, lockScript, 2, "OTHER", "b", "60000", "1") != "0" {
		t.Fatal("the lock is not one")
	}
	for _, c := range []struct{ counter, token, raised string }{
		{"5", "6", "1"},
		{"5", "5", "0"},
		{"6", "5", "0"},
		{"9", "10", "1"},
		{"10", "9", "0"},
		{"99", "100", "1"},
		{"100", "99", "0"},
		{"9007199254740992", "9007199254740993", "1"},
		{"9007199254740993", "9007199254740992", "0"},
	} {
		r.Do("SET", s.keys[1], c.counter)
		if got := run(r, raiseScript, 1, "ID", c.token); got != c.raised {
			t.Errorf("from %s to %s: %s", c.counter, c.token, got)
		}
		want := c.counter
		if c.raised == "1" {
			want = c.token
		}
		if got := r.Do("GET", s.keys[1]); got != want {
			t.Errorf("from %s to %s: now %v", c.counter, c.token, got)
		}
		// Renewed with that token: only while the counter is not above it.
		renewed := "1"
		if c.raised == "0" && c.counter != c.token {
			renewed = "0"
		}
		if got := run(r, renewScript, 1, "ID", c.token, "60000"); got != renewed {
			t.Errorf("renewed with %s at %v: %s", c.token, r.Do("GET", s.keys[1]), got)
		}
	}
	if run(r, raiseScript, 1, "OTHER", "9007199254740999") != "0" {
		t.Error("raised by somebody who has no lock")
	}
}

// TestOtherClients: the lock of other libraries is this one, and is not touched; a few of their locks are no reason to say who has it.
func TestOtherClients(t *testing.T) {
	all := start(t, servers.RedisOptions{})
	s := client(t, all)
	for _, r := range all {
		r.Do("SET", "jobs/7", "theirs", "NX", "PX", "400")
	}
	var told []locks.Other
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	h, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: time.Minute, Waiting: func(o locks.Other) { told = append(told, o) }})
	if err != nil || len(told) != 1 || told[0] != (locks.Other{}) {
		t.Fatalf("%v, %+v", err, told)
	}
	for _, r := range all[:2] {
		r.Do("SET", "jobs/7", "theirs")
	}
	if err := h.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Error(err)
	}
	if all[0].Do("GET", "jobs/7") != "theirs" {
		t.Error("what is theirs was touched")
	}
}

func TestOpen(t *testing.T) {
	s := open(t, "redlock://:secret@a,b:7000,[::1]/jobs/7?tls=true")
	if len(s.nodes) != 3 || s.majority != 2 || s.keys[1] != "{jobs/7}:token" {
		t.Errorf("%+v", s)
	}
	_ = s.Close()
	if five := open(t, "redlock://a,b,c,d,e/jobs"); five.majority != 3 {
		t.Errorf("%+v", five)
	}
	for url, want := range map[string]string{
		"redlock://:secret@a,b/jobs": "three servers or more", "redlock://:secret@a,b,a/jobs": "twice", "redlock://a,b,/jobs": "a host of it is none",
		"redis://a,b,c/jobs": "begin with redlock://", "redlock://:secret@a,b,c": "names no lock",
	} {
		if _, err := Open(url); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
	s = open(t, "redlock://a,b,c/jobs")
	defer s.Close()
	if _, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Millisecond}); err == nil || !strings.Contains(err.Error(), "at least") {
		t.Error(err)
	}
}

// Example is how a program takes the lock and writes with its token.
func Example() {
	service, err := Open("redlock://redis1,redis2,redis3/compactor")
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
