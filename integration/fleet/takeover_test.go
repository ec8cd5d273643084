package fleet

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/histories"
)

// TestKilledProxy: what a killed proxy had is taken over when its lease and the settle time are over, not before, and soon after; a raise
// of what it had no lower grant of does not wait. That this is so at every moment is for tests in virtual time to say (tokens/fleet).
func TestKilledProxy(t *testing.T) {
	forEachEngine(t, "postgres", testKilledProxy)
}

func testKilledProxy(t *testing.T, kind engineKind) {
	const (
		each   = 8 // resources of a kind
		margin = 10 * time.Second
	)
	// Who waits for the killed proxy waits longer than the raise does for its client, and is told so. Who waits for one that is alive does not.
	f := newFleet(t, kind, options{lease: 5 * time.Second, settle: 5 * time.Second, raiseWait: 6 * time.Second})
	victim, second, third := f.members[0], f.members[1], f.members[2]
	key := func(kind string, i int) string { return fmt.Sprintf("/own/%s%d", kind, i) }
	for i := range each {
		must(t, f.expect(victim.address, http.MethodPut, key("victim", i), 1, "v", http.StatusOK))
		must(t, f.expect(second.address, http.MethodPut, key("second", i), 1, "v", http.StatusOK))
	}

	// Under load: the victim is killed while writes go through it.
	var load sync.WaitGroup
	killed := make(chan struct{})
	for i := range each {
		load.Go(func() {
			for {
				select {
				case <-killed:
					return
				default:
					f.ask(victim.address, http.MethodPut, key("victim", i), 1, "again", time.Second)
				}
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	victim.Kill()
	at := time.Now()
	close(killed)

	var mu sync.Mutex
	var took, others []time.Duration
	for i := range each {
		load.Go(func() {
			// The wait goes on without the client, which comes back.
			err := histories.Eventually(t.Context(), "take over", func() error {
				return f.expect(third.address, http.MethodPut, key("victim", i), 2, "taken over", http.StatusOK)
			})
			mu.Lock()
			defer mu.Unlock()
			if took = append(took, time.Since(at)); err != nil {
				t.Error(err)
			}
		})
		for _, path := range []string{key("second", i), key("new", i)} {
			load.Go(func() {
				begun := time.Now()
				err := histories.Eventually(t.Context(), "raise "+path, func() error {
					a := f.ask(third.address, http.MethodPut, path, 2, "raised", histories.Patience)
					switch {
					case a.name == "WaitingForOlderWrite":
						t.Errorf("%s, of which the killed proxy had no lower grant: %v", path, a)
					case a.err == nil && a.status != http.StatusOK:
						return errors.New(a.String())
					}
					return a.err
				})
				mu.Lock()
				defer mu.Unlock()
				if others = append(others, time.Since(begun)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	load.Wait()
	t.Logf("%s, lease %v, settle %v: taken over after %v to %v; raises of other resources took %v at most", kind.name, f.lease, f.settle,
		slices.Min(took).Round(time.Millisecond), slices.Max(took).Round(time.Millisecond), slices.Max(others).Round(time.Millisecond))
	if within := f.lease + f.settle + 2*time.Second; slices.Max(took) > within+margin {
		t.Errorf("taken over after %v, want %v", slices.Max(took), within)
	}
	if soonest := f.lease/2 + f.settle; slices.Min(took) < soonest { // what others have seen of it last is half a lease old at most
		t.Errorf("taken over after %v: the writes of the killed proxy may take effect until %v", slices.Min(took), soonest)
	}
	// Whoever waits for the killed proxy waits as long as those above. Everything else is a matter of how busy the machine is.
	if slices.Max(others) >= slices.Min(took) {
		t.Errorf("a raise of a resource of which the killed proxy had no lower grant took %v", slices.Max(others))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRegistryAway: while the registry is away, what was granted goes on until the lease is over, and from then on nothing is let through;
// when it is back, all is well.
func TestRegistryAway(t *testing.T) {
	forEachEngine(t, "etcd", testRegistryAway)
}

func testRegistryAway(t *testing.T, kind engineKind) {
	f := newFleet(t, kind, options{lease: 8 * time.Second})
	for _, m := range f.members {
		must(t, f.expect(m.address, http.MethodPut, "/own/held", 1, "v", http.StatusOK)) // all of them have a grant
		must(t, f.expect(m.address, http.MethodPut, "/own/raised", 1, "v", http.StatusOK))
	}
	f.engine.stop()
	away := time.Now()
	served := 0
	for _, m := range f.members {
		if a := f.ask(m.address, http.MethodPut, "/own/held", 1, "without the registry", histories.Patience); a.status == http.StatusOK {
			served++
		} else if time.Since(away) < f.lease/2 {
			t.Errorf("proxy %d, %v after the registry went away: %v", m.number, time.Since(away), a)
		}
		refusedByRegistry(t, f.ask(m.address, http.MethodPut, "/own/never-seen", 1, "v", histories.Patience))
		refusedByRegistry(t, f.ask(m.address, http.MethodPut, "/own/raised", 2, "v", histories.Patience))
	}
	if served == 0 {
		t.Error("no cached grant served while the registry was away")
	}
	for _, m := range f.members {
		must(t, histories.Eventually(t.Context(), "the lease ends", func() error {
			return f.expect(m.address, http.MethodPut, "/own/held", 1, "v", http.StatusServiceUnavailable)
		}))
		if over := time.Since(away); over > f.lease+histories.Patience/2 {
			t.Errorf("proxy %d let writes through for %v without the registry", m.number, over)
		}
	}
	must(t, histories.Eventually(t.Context(), "no proxy is ready", func() error {
		if n := f.balancer.readyOnes(); n > 0 {
			return fmt.Errorf("%d proxies say they are ready", n)
		}
		return nil
	}))
	var asked sync.WaitGroup
	for range 5 {
		for _, m := range f.members {
			asked.Go(func() {
				refusedByRegistry(t, f.ask(m.address, http.MethodPut, "/own/held", 1, "v", histories.Patience))
			})
		}
	}
	asked.Wait()
	a := f.ask(f.members[0].address, http.MethodGet, "/own/held", 0, "", histories.Patience)
	if a.status != http.StatusOK {
		t.Errorf("a read that needs no registry: %v", a)
	}

	f.engine.start()
	for i, m := range f.members {
		for _, path := range []string{"/own/held", "/own/raised", "/own/never-seen"} {
			must(t, histories.Eventually(t.Context(), "all is well again", func() error {
				return f.expect(m.address, http.MethodPut, path, int64(10+i), "back", http.StatusOK)
			}))
			must(t, f.expect(m.address, http.MethodPut, path, 1, "stale", http.StatusPreconditionFailed))
		}
	}
	must(t, histories.Eventually(t.Context(), "all are ready again", func() error {
		if n := f.balancer.readyOnes(); n < len(f.members) {
			return fmt.Errorf("%d are", n)
		}
		return nil
	}))
}

func refusedByRegistry(t *testing.T, a answer) {
	t.Helper()
	if a.status != http.StatusServiceUnavailable || a.name != "RegistryUnavailable" {
		t.Errorf("without the registry: %v", a)
	}
}

// TestRollingRestart: all proxies are restarted, one after the other, under load through the balancer. Nobody is refused, and nothing that was
// answered is lost.
func TestRollingRestart(t *testing.T) {
	forEachEngine(t, "postgres", testRollingRestart)
}

func testRollingRestart(t *testing.T, kind engineKind) {
	f := newFleet(t, kind, options{lease: 30 * time.Second, settle: time.Minute})
	stop := make(chan struct{})
	var writers sync.WaitGroup
	var mu sync.Mutex
	last := map[string]string{}
	written := 0
	for i := range 8 {
		writers.Go(func() {
			path := fmt.Sprintf("/own/w%d", i)
			token := int64(1)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				if n%5 == 4 && i%2 == 0 {
					token++ // another holder comes; the others go on with one token, so that grants of it are everywhere
				}
				body := fmt.Sprintf("write %d with token %d", n, token)
				a := f.ask(f.balancer.address, http.MethodPut, path, token, body, histories.Patience)
				mu.Lock()
				if a.status == http.StatusOK {
					last[path] = body
					written++
				} else {
					t.Errorf("%s, %s: %v", path, body, a)
				}
				mu.Unlock()
			}
		})
	}
	goOn := func() { // until everybody has got somewhere, on whatever machine
		mu.Lock()
		want := written + 40
		mu.Unlock()
		must(t, histories.Eventually(t.Context(), "writes go on", func() error {
			mu.Lock()
			defer mu.Unlock()
			if written < want && !t.Failed() {
				return fmt.Errorf("%d of %d", written, want)
			}
			return nil
		}))
	}
	goOn()
	for _, m := range f.members {
		must(t, m.terminate())
		must(t, f.restart(m))
		must(t, histories.Eventually(t.Context(), "it is ready", func() error {
			if !f.balancer.isReady(m.number) {
				return errors.New("it is not")
			}
			return nil
		}))
		goOn()
	}
	close(stop)
	writers.Wait()
	for path, body := range last {
		if a := f.ask(f.balancer.address, http.MethodGet, path, 0, "", histories.Patience); a.body != body {
			t.Errorf("%s: %v, and %q was answered last", path, a, body)
		}
	}
	t.Logf("%s: %d writes, none refused, none lost", kind.name, written)
}

// TestTwoRuleSets: a proxy whose rules lead keys to other resources than those of the others does not come up beside them. With --remap it
// does, and they let nothing through any more.
func TestTwoRuleSets(t *testing.T) {
	forEachEngine(t, "etcd", testTwoRuleSets)
}

func testTwoRuleSets(t *testing.T, kind engineKind) {
	f := newFleet(t, kind, options{proxies: 2, lease: 10 * time.Second, settle: 5 * time.Second})
	before := f.members
	for _, m := range before {
		must(t, f.expect(m.address, http.MethodPut, "/jobs/7/a", 5, "v", http.StatusOK))
	}
	other := f.addMember(t, 2, `      - {match: "jobs/**", resource: "jobs"}`)
	if err := other.start(); err == nil {
		t.Fatal("two rule sets at once")
	}
	text := other.Logs.Since(0)
	t.Logf("it says: %s", text)
	if !containsAll(text, "resources", "--remap") {
		t.Errorf("it does not say why, and what to do")
	}
	for _, m := range before {
		must(t, f.expect(m.address, http.MethodPut, "/jobs/7/a", 5, "as before", http.StatusOK))
	}

	other.Args = append(other.Args, "--remap")
	must(t, other.start())
	for _, m := range before {
		refusedByRegistry(t, f.ask(m.address, http.MethodPut, "/jobs/7/a", 6, "by the old rules", histories.Patience))
		if m.Running() {
			must(t, histories.Eventually(t.Context(), "it is not ready any more", func() error {
				if f.balancer.isReady(m.number) {
					return errors.New("it is")
				}
				return nil
			}))
		}
	}
	must(t, f.expect(other.address, http.MethodPut, "/jobs/7/a", 6, "by the new rules", http.StatusOK))
}

func containsAll(text string, words ...string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}
