package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/consul/consultest"
	"github.com/fenceproxy/fenceproxy/tokens/locks/lockstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// realConsul names a Consul (host:port) whose keys below fenceproxy-test/ the tests may use.
const realConsul = "FENCEPROXY_CONSUL"

func TestConformance(t *testing.T) {
	address, ttl, restart := os.Getenv(realConsul), 10*time.Second, func(testing.TB) {}
	if address == "" {
		double := consultest.Start(t)
		double.Min = time.Second
		address, ttl, restart = double.Address(), time.Second, func(testing.TB) { double.Restart() }
	}
	lockstest.Run(t, lockstest.Engine{
		TTL: ttl, Late: ttl, TellsTakeover: true, Restart: restart,
		New: func(t testing.TB) lockstest.Lock {
			key := "fenceproxy-test/" + lockstest.Name(t)
			t.Cleanup(func() { ask(t, http.MethodDelete, address, key, "", nil) })
			return lockstest.Lock{
				Open:   func(t testing.TB, via func(string) string) locks.Service { return open(t, via(address), key) },
				Delete: func(t testing.TB) { ask(t, http.MethodDelete, address, key, "", nil) },
			}
		},
	})
}

// open opens a lock that is closed with the test.
func open(t testing.TB, address, key string) locks.Service {
	t.Helper()
	s, err := Open("consul://" + address + "/" + key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// ask sends a request that is about a key, as another program would.
func ask(t testing.TB, method, address, key, body string, answer any) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	r, err := http.NewRequest(method, "http://"+address+"/v1/"+prefixed(key), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s %v", method, key, response.Status, text, err)
	}
	if answer != nil {
		if err := json.Unmarshal(text, answer); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

func prefixed(path string) string {
	if strings.HasPrefix(path, "session/") {
		return path
	}
	return "kv/" + path
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
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestLockIndexRepeats is the trap: it begins anew when the key was deleted, as `consul lock` does at its end. The ModifyIndex does not.
func TestLockIndexRepeats(t *testing.T) {
	double := consultest.Start(t)
	s := open(t, double.Address(), "compactor")
	use := func() (lockIndex uint64, token tokens.Token) {
		h := take(t, s, 10*time.Second)
		var found []entry
		ask(t, http.MethodGet, double.Address(), "compactor", "", &found)
		release(t, h)
		return found[0].LockIndex, h.Token()
	}
	use()
	index, token := use()
	ask(t, http.MethodDelete, double.Address(), "compactor", "", nil)
	index2, token2 := use()
	t.Logf("before the key was deleted: LockIndex %d, token %d; after: %d, %d", index, token, index2, token2)
	if index2 >= index {
		t.Error("the LockIndex does not begin anew: there is no trap here")
	}
	if token2 <= token {
		t.Errorf("the token %d came after %d", token2, token)
	}
}

// TestNewCluster: one that has lost its data counts anew. Nothing in Consul tells: it is for the fence, which refuses the lower token.
func TestNewCluster(t *testing.T) {
	double := consultest.Start(t)
	s := open(t, double.Address(), "compactor")
	release(t, take(t, s, 10*time.Second))
	h := take(t, s, 10*time.Second)
	before := h.Token()
	release(t, h)
	double.Replace()
	h = take(t, s, 10*time.Second)
	if t.Logf("before: %d; from the new cluster: %d", before, h.Token()); h.Token() >= before {
		t.Errorf("the token %d came after %d, from a cluster that knows nothing of it", h.Token(), before)
	}
	release(t, h)
}

// TestWrittenByOthers: anybody may write to the key; tokens grow all the same, and the hold stands.
func TestWrittenByOthers(t *testing.T) {
	double := consultest.Start(t)
	s := open(t, double.Address(), "compactor")
	var last tokens.Token
	for range 5 {
		ask(t, http.MethodPut, double.Address(), "compactor", "before", nil)
		h := take(t, s, 10*time.Second)
		if h.Token() <= last {
			t.Fatalf("the token %d came after %d", h.Token(), last)
		}
		last = h.Token()
		ask(t, http.MethodPut, double.Address(), "compactor", "while it is held", nil)
		if err := h.Renew(t.Context()); err != nil || h.Token() != last {
			t.Fatalf("%v; the token was %d, and is %d", err, last, h.Token())
		}
		release(t, h)
	}
}

// TestHealthAndDelay: the agent's machine may fail its health check, the hold stands for its TTL; and nobody waits for a lock delay.
func TestHealthAndDelay(t *testing.T) {
	double := consultest.Start(t)
	s := open(t, double.Address(), "compactor")
	h := take(t, s, 10*time.Second)
	double.FailNode()
	if err := h.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	ask(t, http.MethodPut, double.Address(), "session/destroy/"+h.(*hold).session, "", nil) // an operator ends it: no lock delay
	began := time.Now()
	next := take(t, s, 10*time.Second)
	defer release(t, next)
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the lock was free after %s", took)
	}
	if !next.TakenOver() {
		t.Error("it is not told that the holder before has not released")
	}
	for _, call := range []func(context.Context) error{h.Renew, h.Release} {
		if err := call(t.Context()); !errors.Is(err, locks.ErrLost) {
			t.Errorf("%v; want ErrLost", err)
		}
	}
	if err := next.Renew(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestOtherClients: a lock that is held as Consul's own clients hold it, and the lock delay that they leave behind.
func TestOtherClients(t *testing.T) {
	double := consultest.Start(t)
	var theirs struct{ ID string }
	ask(t, http.MethodPut, double.Address(), "session/create", `{"Name":"Consul API Lock","TTL":"15s","LockDelay":"1s"}`, &theirs)
	var met bool
	ask(t, http.MethodPut, double.Address(), "jobs/.lock?acquire="+theirs.ID+"&flags="+lockFlags, "", &met)
	if !met {
		t.Fatal("the key was not acquired")
	}
	s := open(t, double.Address(), "jobs/.lock")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	h, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: 10 * time.Second, Waiting: func(o locks.Other) {
		t.Logf("told of %+v", o)
		ask(t, http.MethodPut, double.Address(), "session/destroy/"+theirs.ID, "", nil) // it crashes
	}})
	if err != nil {
		t.Fatal(err)
	}
	if h.TakenOver() {
		t.Error("what another client has written is taken for ours")
	}
	var found []struct{ Flags uint64 }
	ask(t, http.MethodGet, double.Address(), "jobs/.lock", "", &found)
	if fmt.Sprint(found[0].Flags) != lockFlags || found[0].Flags != 0x2ddccbc058a50c18 {
		t.Errorf("the key's flags are %x: Consul's clients would refuse it", found[0].Flags)
	}
	release(t, h)
}

// TestDeletedKey: whoever deletes or releases the key lets the next one in, and the holder learns it.
func TestDeletedKey(t *testing.T) {
	double := consultest.Start(t)
	s := open(t, double.Address(), "compactor")
	h := take(t, s, 10*time.Second)
	ask(t, http.MethodDelete, double.Address(), "compactor", "", nil)
	if err := h.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	next := take(t, s, 10*time.Second)
	if next.Token() <= h.Token() {
		t.Errorf("the token %d came after %d", next.Token(), h.Token())
	}
	if err := h.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	if err := next.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	release(t, next)

	h = take(t, s, 10*time.Second)
	ask(t, http.MethodPut, double.Address(), "compactor?release="+h.(*hold).session, "", nil) // somebody releases it for us: our session goes on
	next = take(t, s, 10*time.Second)
	if err := h.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Renew of a key that is another session's: %v", err)
	}
	if err := h.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	release(t, next)
	if n := double.Sessions(); n != 0 {
		t.Errorf("%d sessions were left behind", n)
	}
}

// TestSomebodyInBetween: a takeover is told of the holder just before. Where somebody came in between our look and our turn it is not known.
func TestSomebodyInBetween(t *testing.T) {
	double := consultest.Start(t)
	s := open(t, double.Address(), "compactor")
	ask(t, http.MethodPut, double.Address(), "session/destroy/"+take(t, s, 10*time.Second).(*hold).session, "", nil) // not released
	var theirs struct{ ID string }
	ask(t, http.MethodPut, double.Address(), "session/create", `{"TTL":"15s","LockDelay":"0s"}`, &theirs)
	double.Before(func(r *http.Request) bool { return strings.Contains(r.URL.RawQuery, "acquire=") }, func() {
		ask(t, http.MethodPut, double.Address(), "compactor?acquire="+theirs.ID, "", nil)
		ask(t, http.MethodPut, double.Address(), "compactor?release="+theirs.ID, "", nil)
	})
	h := take(t, s, 10*time.Second)
	if h.TakenOver() {
		t.Error("the holder before has released, and is said not to have")
	}
	release(t, h)
}

// TestLongWait: the session of who waits is kept alive meanwhile.
func TestLongWait(t *testing.T) {
	double := consultest.Start(t)
	double.Min = 200 * time.Millisecond
	holder, waiter := open(t, double.Address(), "compactor"), open(t, double.Address(), "compactor")
	h := take(t, holder, time.Minute)
	time.AfterFunc(time.Second, func() { _ = h.Release(context.Background()) })
	release(t, take(t, waiter, 200*time.Millisecond))
}

// TestLostAnswers: Consul did it, and its answer does not come.
func TestLostAnswers(t *testing.T) {
	double := consultest.Start(t)
	s := open(t, double.Address(), "compactor")
	lose := func(part string) {
		double.Lose(func(r *http.Request) bool { return strings.Contains(r.URL.String(), part) })
	}

	lose("acquire=")
	if h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: 10 * time.Second}); err == nil || errors.Is(err, locks.ErrLost) {
		t.Fatalf("%v, %v", h, err)
	}
	began := time.Now()
	h := take(t, s, 10*time.Second) // it was given back
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the lock was free after %s", took)
	}

	lose("renew/")
	if err := h.Renew(t.Context()); err == nil || errors.Is(err, locks.ErrLost) {
		t.Errorf("Renew without an answer: %v", err)
	}
	if err := h.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	lose("release=")
	if err := h.Release(t.Context()); err == nil || errors.Is(err, locks.ErrLost) {
		t.Errorf("Release without an answer: %v", err)
	}
	release(t, take(t, s, 10*time.Second))
	if n := double.Sessions(); n != 0 {
		t.Errorf("%d sessions were left behind", n)
	}
}

func TestRefusals(t *testing.T) {
	double := consultest.Start(t)
	double.Token = "s3cret"
	acquire := func(url string, ttl time.Duration, want string) {
		t.Helper()
		s, err := Open(url)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: ttl})
		if want == "" {
			if err != nil {
				t.Fatal(err)
			}
			release(t, h)
			return
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the token is told: %v", err)
		}
	}
	acquire("consul://"+double.Address()+"/a", 10*time.Second, "Permission denied")
	acquire("consul://:wrong@"+double.Address()+"/a", 10*time.Second, "does its token allow")
	acquire("consul://:s3cret@"+double.Address()+"/a", 9*time.Second, "session_ttl_min (10s by default)")
	acquire("consul://:s3cret@127.0.0.1:1/a", 10*time.Second, "connection refused")
	acquire("consul://:s3cret@"+double.Address()+"/a", 10*time.Second, "")
	t.Setenv("CONSUL_HTTP_TOKEN", "s3cret")
	acquire("consul://"+double.Address()+"/a", 10*time.Second, "")
}

func TestCheck(t *testing.T) {
	double := consultest.Start(t)
	said, err := open(t, double.Address(), "a").(locks.Checker).Check(t.Context())
	if err != nil || len(said) != 1 || !strings.Contains(said[0], "run three") {
		t.Errorf("%q, %v", said, err)
	}
}

func TestOpen(t *testing.T) {
	lockstest.URLs(t, Open, map[string]string{
		"consul://h/locks/compactor":                 "",
		"consul://[::1]:8500/compactor":              "",
		"consul://:s3cret@h:8500/compactor?tls=true": "",
		"consul://h/compactor?tls=true&ca=/nowhere":  "no such file",
		"consul://h/compactor?ca=/nowhere":           "say tls=true",
		"consul://h/compactor?dc=3":                  "?dc= is not known",
		"consul:///compactor":                        "the URL of a Consul lock is",
		"http://h/compactor":                         "the URL of a Consul lock is",
		"consul://h":                                 "must stand the key",
		"consul://h/":                                "must stand the key",
		"consul://h/a/":                              "must stand the key",
		"consul://h/a/../b":                          "must stand the key",
		"consul://s3cret@h/a":                        "behind a colon",
		"consul://user:s3cret@h/a":                   "behind a colon",
		"consul://:s3cret@h 1/a":                     "cannot be read",
	})
}
