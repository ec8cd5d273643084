package kubernetes

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/kubernetes/kubetest"
	"github.com/fenceproxy/fenceproxy/tokens/locks/lockstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// realKubernetes names a `kubectl proxy` (host:port), in whose namespace "default" the tests may make Leases. They stay there.
const realKubernetes = "FENCEPROXY_KUBERNETES"

func TestConformance(t *testing.T) {
	address, restart := os.Getenv(realKubernetes), func(testing.TB) {}
	if address == "" {
		double := kubetest.Start(t)
		address, restart = double.Address(), func(testing.TB) { double.Restart() }
	}
	lockstest.Run(t, lockstest.Engine{
		TTL: time.Second, Late: 1500 * time.Millisecond, // who comes late watches for a whole TTL
		TellsTakeover: true, Restart: restart,
		New: func(t testing.TB) lockstest.Lock {
			name := lockstest.Name(t)
			return lockstest.Lock{Open: func(t testing.TB, via func(string) string) locks.Service { return open(t, via(address), name) }}
		},
	})
}

// open opens a lock that is closed with the test.
func open(t testing.TB, address, name string) locks.Service {
	t.Helper()
	s, err := Open("kubernetes://default/" + name + "?server=http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func take(t testing.TB, s locks.Service, holder string, ttl time.Duration) locks.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	h, err := s.Acquire(ctx, locks.Request{Holder: holder, TTL: ttl})
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

// TestDeletedLease is the trap: the count goes with the Lease. Nothing in Kubernetes tells: it is for the fence, which refuses the lower token.
// A holder learns it, and does not make the Lease anew.
func TestDeletedLease(t *testing.T) {
	double := kubetest.Start(t)
	s := open(t, double.Address(), "compactor")
	for range 3 {
		release(t, take(t, s, "a", 10*time.Second))
	}
	h := take(t, s, "a", 10*time.Second)
	double.Delete("default", "compactor")
	for what, call := range map[string]func(context.Context) error{"Renew": h.Renew, "Release": h.Release} {
		if err := call(t.Context()); !errors.Is(err, locks.ErrLost) {
			t.Errorf("%s: %v; want ErrLost", what, err)
		}
	}
	if o := double.Get("default", "compactor"); o != nil {
		t.Errorf("the Lease was made anew: %+v", o)
	}
	next := take(t, s, "a", 10*time.Second)
	defer release(t, next)
	t.Logf("before the Lease was deleted: %d; after: %d", h.Token(), next.Token())
	if next.Token() >= h.Token() {
		t.Error("the count does not begin anew: there is no trap here")
	}
}

// TestDeletedAndTakenLease: the Lease that is there is another one.
func TestDeletedAndTakenLease(t *testing.T) {
	double := kubetest.Start(t)
	s := open(t, double.Address(), "compactor")
	h := take(t, s, "a", 10*time.Second)
	double.Delete("default", "compactor")
	next := take(t, s, "a", 10*time.Second)
	if err := h.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	if err := h.Release(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	if err := next.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	release(t, next)
}

// TestSameName is client-go's trap, in which we do not fall: who comes back under its old name gets a number of its own.
func TestSameName(t *testing.T) {
	double := kubetest.Start(t)
	s := open(t, double.Address(), "compactor")
	first := take(t, s, "compactor-0", time.Second) // and is killed
	again := take(t, s, "compactor-0", time.Second)
	defer release(t, again)
	if again.Token() <= first.Token() {
		t.Errorf("the token %d came after %d", again.Token(), first.Token())
	}
	if err := first.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("the earlier life renews: %v", err)
	}
}

// TestWithClientGo: a Lease as client-go's leader election writes it, held, released and taken over, in turn with ours.
func TestWithClientGo(t *testing.T) {
	double := kubetest.Start(t)
	s := open(t, double.Address(), "compactor")
	theirs := func(identity string, seconds, transitions int) {
		double.Change("default", "compactor", func(o *kubetest.Object) {
			now := time.Now().UTC().Add(-time.Hour).Format("2006-01-02T15:04:05.000000Z") // its clock is an hour slow
			o.Spec = map[string]any{
				"holderIdentity": identity, "leaseDurationSeconds": seconds, "acquireTime": now, "renewTime": now, "leaseTransitions": transitions,
			}
		})
	}
	theirs("pod-a_5d0e", 15, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var told locks.Other
	h, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: 2 * time.Second, Waiting: func(o locks.Other) {
		told = o
		theirs("", 1, 0) // it is released
	}})
	if err != nil {
		t.Fatal(err)
	}
	if told.Holder != "pod-a_5d0e" || told.Token != 1 {
		t.Errorf("told of %+v", told)
	}
	if h.Token() != 2 || h.TakenOver() {
		t.Errorf("token %d, taken over: %v; want 2, and released", h.Token(), h.TakenOver())
	}
	o := double.Get("default", "compactor")
	if o.Spec["leaseDurationSeconds"] != 2.0 || o.Spec["leaseTransitions"] != 1.0 || !strings.HasPrefix(o.Spec["holderIdentity"].(string), "a_") {
		t.Errorf("the Lease has %v", o.Spec)
	}
	release(t, h)
	o = double.Get("default", "compactor")
	if o.Spec["holderIdentity"] != "" || o.Spec["leaseDurationSeconds"] != 1.0 || o.Spec["leaseTransitions"] != 1.0 {
		t.Errorf("client-go would not find the Lease free, or counted: %v", o.Spec)
	}
	theirs("pod-a_5d0e", 1, 2) // and is killed
	began := time.Now()
	h = take(t, s, "a", 2*time.Second)
	defer release(t, h)
	if took := time.Since(began); h.Token() != 4 || !h.TakenOver() || took < time.Second {
		t.Errorf("token %d, taken over: %v, after %s; want 4, true, and not before their second is over", h.Token(), h.TakenOver(), took)
	}
}

// TestKeepsTheRest: what others have put into the Lease stays there, and their writes between ours do no harm.
func TestKeepsTheRest(t *testing.T) {
	double := kubetest.Start(t)
	owners := []any{map[string]any{"kind": "Deployment", "name": "compactor"}}
	double.Change("default", "compactor", func(o *kubetest.Object) {
		o.Metadata["labels"] = map[string]any{"app": "compactor"}
		o.Metadata["ownerReferences"] = owners
		o.Spec["strategy"] = nil
		o.Spec["later"] = "a field that is not known here"
	})
	s := open(t, double.Address(), "compactor")
	h := take(t, s, "a", 10*time.Second)
	double.Change("default", "compactor", func(o *kubetest.Object) { o.Metadata["annotations"] = map[string]any{"seen": "true"} })
	if err := h.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	release(t, h)
	o := double.Get("default", "compactor")
	if !reflect.DeepEqual(o.Metadata["ownerReferences"], any(owners)) || !reflect.DeepEqual(o.Metadata["labels"], any(map[string]any{"app": "compactor"})) ||
		!reflect.DeepEqual(o.Metadata["annotations"], any(map[string]any{"seen": "true"})) || o.Spec["later"] != "a field that is not known here" {
		t.Errorf("what was not ours is gone: %v %v", o.Metadata, o.Spec)
	}
}

// TestLostAnswers: the API server did it, and its answer does not come.
func TestLostAnswers(t *testing.T) {
	double := kubetest.Start(t)
	s := open(t, double.Address(), "compactor")
	lose := func(method string) { double.Lose(func(r *http.Request) bool { return r.Method == method }) }

	lose(http.MethodPost)
	h := take(t, s, "a", 10*time.Second) // our name is found in it
	if h.Token() != 1 {
		t.Errorf("token %d; want 1: it was taken once", h.Token())
	}
	lose(http.MethodPut)
	if err := h.Renew(t.Context()); err == nil || errors.Is(err, locks.ErrLost) {
		t.Errorf("Renew without an answer: %v", err)
	}
	if err := h.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	release(t, h)
	if err := h.Renew(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("Renew after a release: %v", err)
	}

	lose(http.MethodPut)
	h = take(t, s, "a", 10*time.Second)
	if h.Token() != 2 {
		t.Errorf("token %d; want 2: it was taken once more", h.Token())
	}
	release(t, h)

	// Whoever gives up without knowing leaves nothing behind.
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no longer wanted")
	double.After(func(r *http.Request) bool { return r.Method == http.MethodPut }, func() { cancel(cause); time.Sleep(50 * time.Millisecond) })
	if h, err := s.Acquire(ctx, locks.Request{Holder: "a", TTL: 10 * time.Second}); !errors.Is(err, cause) {
		t.Fatalf("%v, %v", h, err)
	}
	if o := double.Get("default", "compactor"); o.Spec["holderIdentity"] != "" || o.Spec["leaseTransitions"] != 2.0 {
		t.Errorf("the Lease has %v", o.Spec)
	}
}

// TestInPod: what a pod has, as it is found there; the token is replaced while we run.
func TestInPod(t *testing.T) {
	double := kubetest.StartTLS(t)
	double.Token = "first-s3cret"
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first-s3cret")
	host, port, _ := strings.Cut(double.Address(), ":")
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	s, err := Open("kubernetes://default/compactor?token-file=" + file + "&ca=" + double.CA)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h := take(t, s, "a", 10*time.Second)
	double.Token = "second-s3cret"
	err = h.Renew(t.Context())
	if err == nil || errors.Is(err, locks.ErrLost) || !strings.Contains(err.Error(), "does not know the token") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("with a token that is over: %v", err)
	}
	write("second-s3cret")
	if err := h.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	release(t, h)

	without, err := Open("kubernetes://default/compactor?server=https://" + double.Address() + "&token-file=" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer without.Close()
	if h, err := without.Acquire(t.Context(), locks.Request{Holder: "a", TTL: 10 * time.Second}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server whose certificate nobody vouches for: %v, %v", h, err)
	}
}

func TestRefusals(t *testing.T) {
	double := kubetest.Start(t)
	for _, c := range []struct {
		url  string
		ttl  time.Duration
		want string
	}{
		{"kubernetes://kube-system/a?server=http://" + double.Address(), 10 * time.Second, "get, create and update leases (coordination.k8s.io) of the namespace kube-system"},
		{"kubernetes://default/a?server=http://127.0.0.1:1", 10 * time.Second, "connection refused"},
		{"kubernetes://default/a?server=http://" + double.Address() + "&token-file=/nowhere", 10 * time.Second, "the token of the service account"},
		{"kubernetes://default/a?server=http://" + double.Address(), 0, "at least a second"},
	} {
		s, err := Open(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: c.ttl}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want %q", c.url, h, err, c.want)
		}
		_ = s.Close()
	}
	double.Change("default", "a", func(o *kubetest.Object) { o.Spec["leaseTransitions"] = 1<<31 - 1 })
	s := open(t, double.Address(), "a")
	if h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: time.Second}); err == nil || !strings.Contains(err.Error(), "no room for more") {
		t.Errorf("%v, %v", h, err)
	}
}

// TestTTLRoundedUp: a duration has whole seconds, and who counts on its TTL must not lose the lock before.
func TestTTLRoundedUp(t *testing.T) {
	double := kubetest.Start(t)
	s := open(t, double.Address(), "compactor")
	release(t, take(t, s, "a", 10*time.Second))
	h := take(t, s, "a", 1100*time.Millisecond)
	defer release(t, h)
	if o := double.Get("default", "compactor"); o.Spec["leaseDurationSeconds"] != 2.0 {
		t.Errorf("1.1 s have become %v s", o.Spec["leaseDurationSeconds"])
	}
}

func TestHolderOf(t *testing.T) {
	for identity, want := range map[string]string{
		"":                          "",
		"a_ABCDEFGHIJKL":            "a",
		"a_b_ABCDEFGHIJ27":          "a_b",
		"a_ABCDEFGHIJ01":            "a_ABCDEFGHIJ01",
		"_ABCDEFGHIJKL":             "_ABCDEFGHIJKL",
		"a-ABCDEFGHIJKL":            "a-ABCDEFGHIJKL",
		"host_5d0e1f2a-0000-0000-0": "host_5d0e1f2a-0000-0000-0",
	} {
		if got := holderOf(identity); got != want {
			t.Errorf("%q is said to be %q's; want %q", identity, got, want)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	lockstest.URLs(t, Open, map[string]string{
		"kubernetes://default/compactor?server=http://127.0.0.1:8001":   "",
		"kubernetes://default/compactor?server=https://[::1]:6443/":     "",
		"kubernetes://default/compactor":                                "this is no pod",
		"kubernetes://default/compactor?server=https://h&ca=/nowhere":   "no such file",
		"kubernetes://default/compactor?server=https://h&cert=/nowhere": "belong together",
		"kubernetes://default/compactor?server=h:6443":                  "server must be a URL",
		"kubernetes://default/compactor?server=https://u:p@h":           "server must be a URL",
		"kubernetes://default/compactor?server=https://h/k8s":           "server must be a URL",
		"kubernetes://default/compactor?kubeconfig=/etc/kube/config":    "?kubeconfig= is not known",
		"kubernetes://default":                                          "is kubernetes://namespace/lease",
		"kubernetes:///compactor":                                       "is kubernetes://namespace/lease",
		"kubernetes://default/a/b":                                      "is kubernetes://namespace/lease",
		"kubernetes://default/Compactor":                                "is kubernetes://namespace/lease",
		"kubernetes://u:s3cret@default/a":                               "is kubernetes://namespace/lease",
		"http://default/a":                                              "is kubernetes://namespace/lease",
		"kubernetes://de fault/a":                                       "cannot be read",
	})
}
