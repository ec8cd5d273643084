package fence

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/lockstest"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// The credentials of who runs the tests are none of their business.
	for _, name := range os.Environ() {
		if name, _, _ := strings.Cut(name, "="); strings.HasPrefix(name, "AWS_") {
			os.Unsetenv(name)
		}
	}
	dir, err := os.MkdirTemp("", "fenceproxy-lock-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv("AWS_CONFIG_FILE", dir+"/none")
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", dir+"/none")
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
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

func acquire(t testing.TB, s *Service, holder string) (locks.Hold, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.Acquire(ctx, locks.Request{Holder: holder, TTL: 10 * time.Second})
}

func mustAcquire(t testing.TB, s *Service, holder string, token tokens.Token) locks.Hold {
	t.Helper()
	h, err := acquire(t, s, holder)
	if err != nil || h.Token() != token {
		t.Fatalf("%s: %+v, %v; want token %d", holder, h, err, token)
	}
	return h
}

// TestConformance: the lock of a proxy over a directory, with its own registry.
func TestConformance(t *testing.T) {
	p := startProxy(t, fileConfig)
	if status := p.send(t, "PUT", "/locks"); status != 200 {
		t.Fatalf("make a bucket: %d", status)
	}
	lockstest.Run(t, lockstest.Engine{
		TTL: 2 * time.Second, Late: time.Second, TellsTakeover: true,
		Restart: func(t testing.TB) { p.kill(); p.start(t) },
		New: func(t testing.TB) lockstest.Lock {
			key := "/locks/" + lockstest.Name(t)
			return lockstest.Lock{
				Open: func(t testing.TB, via func(string) string) locks.Service {
					return open(t, "fence://"+via(p.address)+key)
				},
				Delete: func(t testing.TB) { // of the object, which may be there or not
					if status := p.send(t, "DELETE", key, "X-Fence-Token", "1000000"); status != 204 {
						t.Errorf("delete: %d", status)
					}
				},
			}
		},
	})
}

// TestConformanceOfAFleet: two proxies, and clients at either, over each registry that can be shared.
func TestConformanceOfAFleet(t *testing.T) {
	if os.Getenv("FENCEPROXY_LONG") == "" {
		t.Skip("two proxies and a server are for the long form (FENCEPROXY_LONG); tokenstest.RunLocks is run over each of them always")
	}
	t.Run("postgres", func(t *testing.T) {
		p := servers.StartPostgres(t, servers.PostgresOptions{})
		_, dsn := p.Database()
		conformFleet(t, fmt.Sprintf("{driver: postgres, dsn: %q, lease: 5s}", dsn))
	})
	t.Run("etcd", func(t *testing.T) {
		e := servers.StartEtcd(t, servers.EtcdOptions{})
		conformFleet(t, fmt.Sprintf("{driver: etcd, endpoints: [%q], lease: 5s}", e.Endpoints()[0]))
	})
}

func conformFleet(t *testing.T, registry string) {
	config := "registry: " + registry + `
backends: {s3: {type: s3, endpoint: "http://127.0.0.1:1", region: us-east-1, path_style: true, access_key: a, secret_key: b}}
buckets: [{name: "*", backend: s3}]
`
	proxies := []*proxy{startProxy(t, config), startProxy(t, config)}
	var turn, restarts atomic.Int64
	lockstest.Run(t, lockstest.Engine{
		TTL: 2 * time.Second, Late: 3 * time.Second, TellsTakeover: true,
		Restart: func(t testing.TB) {
			p := proxies[restarts.Add(1)%2]
			p.kill()
			p.start(t)
		},
		New: func(t testing.TB) lockstest.Lock {
			key := "/locks/" + lockstest.Name(t)
			return lockstest.Lock{Open: func(t testing.TB, via func(string) string) locks.Service {
				return open(t, "fence://"+via(proxies[turn.Add(1)%2].address)+key)
			}}
		},
	})
}

func TestBadURLs(t *testing.T) {
	for text, says := range map[string]string{
		"fence://":                             "cannot be read",
		"http://localhost:9000/b/k":            "cannot be read",
		"fence:b/k":                            "cannot be read",
		"fence://localhost:9000":               "names no object",
		"fence://localhost:9000/b":             "names no object",
		"fence://localhost:9000/b/":            "names no object",
		"fence://localhost/b/k?tls=yes":        "true or false",
		"fence://localhost/b/k?tls=1":          "true or false",
		"fence://localhost/b/k?ttl=30s":        `"ttl"`,
		"fence://localhost/b/k?tls=true&ca=/x": "/x",
		"fence://localhost/b/k?ca=/x":          "tls=true",
		"fence://a:s3cr3t@localhost/b/k":       "AWS_ACCESS_KEY_ID",
		"fence://a:s3cr3t@local host/b/k":      "cannot be read",
	} {
		s, err := Open(text)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v, %v; want %q", text, s, err, says)
		}
	}
}

// TestKeys: a key is the one that is meant, however it is spelled, and its resource the rule's; signatures fit it.
func TestKeys(t *testing.T) {
	p := startProxy(t, keysConfig)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDWRITER")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "a secret of the test")
	t.Setenv("AWS_SESSION_TOKEN", "fence=77;holder=somebody") // as under `fenceproxy run`
	if h, err := acquire(t, open(t, "fence://"+p.address+"/b/jobs/7/a%20b"), "one"); err != nil || h.Token() != 1 {
		t.Fatalf("%+v, %v", h, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var told []locks.Other
	_, err := open(t, "fence://"+p.address+"/b/jobs/7/other").Acquire(ctx, locks.Request{
		Holder: "two", TTL: 10 * time.Second, Waiting: func(o locks.Other) { told = append(told, o) },
	})
	if err == nil || len(told) != 1 || told[0].Holder != "one" || told[0].Token != 1 || told[0].Since.IsZero() {
		t.Errorf("%v, %+v; want it held, for both keys have one resource", err, told)
	}
	for _, key := range []string{"/b/jobs/8/" + url.PathEscape("ü +&=~'()!*;:@,/?#[]"), "/b/a+b", "/b/a%2Bb;x"} {
		mustAcquire(t, open(t, "fence://"+p.address+key), "one", 1)
	}
}

// TestRefused: what would be refused again is returned at once, and says what the proxy said.
func TestRefused(t *testing.T) {
	p := startProxy(t, keysConfig)
	fails := func(url string, says ...string) {
		t.Helper()
		began := time.Now()
		_, err := acquire(t, open(t, url), "a")
		if err == nil || time.Since(began) > patience/2 {
			t.Fatalf("%v, after %v", err, time.Since(began))
		}
		for _, word := range append(says, p.address) {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v; want it to say %q", err, word)
			}
		}
	}
	fails("fence://"+p.address+"/b/k", "AccessDenied", "not signed") // and why
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDREADER")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "another of the test")
	fails("fence://"+p.address+"/b/k", "read_only")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDWRITER")
	fails("fence://"+p.address+"/b/k", "SignatureDoesNotMatch")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "a secret of the test")
	fails("fence://"+p.address+"/b/off/k", "token: off")
	s := open(t, "fence://"+p.address+"/b/k")
	if _, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Millisecond}); err == nil || !strings.Contains(err.Error(), "1s to 1h") {
		t.Errorf("a TTL of a millisecond: %v", err)
	}
	p.kill()
	fails("fence://"+p.address+"/b/k", "refused")
	p.start(t)
	mustAcquire(t, s, "a", 1)
}

// TestLostAnswers: whoever loses the answers has its own lock with the next one, and only one token.
func TestLostAnswers(t *testing.T) {
	p := startProxy(t, fileConfig)
	var lose atomic.Int64
	front := losing(t, p.address, &lose)
	s := open(t, "fence://"+front+"/b/k")
	lose.Store(3)
	h := mustAcquire(t, s, "a", 1)
	lose.Store(1)
	if err := h.Renew(t.Context()); err == nil || errors.Is(err, locks.ErrLost) || strings.Contains(err.Error(), "lease=") {
		t.Errorf("a renewal without an answer: %v", err)
	}
	if err := h.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	lose.Store(1)
	if err := h.Release(t.Context()); err == nil || errors.Is(err, locks.ErrLost) {
		t.Errorf("a release without an answer: %v", err)
	}
	for range 2 {
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	mustAcquire(t, s, "b", 2)
}
