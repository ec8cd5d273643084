package fleet

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/histories"
)

// TestLedger: the ledger's judge finds what must never be, and nothing else.
func TestLedger(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	history := []histories.Op{
		{Kind: histories.Put, Resource: "jobs/0", Token: 2, Return: at(20), Outcome: histories.Success},
		{Kind: histories.Announce, Resource: "own/a", Token: 7, Return: at(20), Outcome: histories.Success},
		{Kind: histories.Get, Resource: "own/b", Token: 7, Highest: 9, Return: at(20), Outcome: histories.Success}, // stale: it promises nothing
		{Kind: histories.Put, Resource: "own/b", Token: 8, Return: at(20), Outcome: histories.Unknown},
	}
	for _, c := range []struct {
		effect
		wrong bool
	}{
		{effect{key: "jobs/0/k1", token: 1, at: start.Add(at(30))}, true},
		{effect{key: "jobs/0/k1", token: 1, at: start.Add(at(10))}, false},
		{effect{key: "jobs/0/k1", token: 2, at: start.Add(at(30))}, false},
		{effect{key: "jobs/1/k1", token: 1, at: start.Add(at(30))}, false},
		{effect{key: "own/a", token: 6, at: start.Add(at(30))}, true},
		{effect{key: "own/b", token: 6, at: start.Add(at(30))}, false},
	} {
		s := &store{ledger: []effect{c.effect}}
		if found, _ := s.judge(start, history); (len(found) > 0) != c.wrong {
			t.Errorf("%s with token %d at %v: %q", c.key, c.token, c.at.Sub(start), found)
		}
	}
}

// TestBalancer: requests go where somebody is ready, a write is sent once, and who is not sure does not say 503.
func TestBalancer(t *testing.T) {
	var ready [2]atomic.Bool
	var cuts atomic.Bool
	var came [2]atomic.Int64
	var members []*member
	for i := range ready {
		ready[i].Store(true)
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if came[i].Add(1); cuts.Load() {
				panic(http.ErrAbortHandler)
			}
		}))
		admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/readyz" || !ready[i].Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(proxy.Close)
		t.Cleanup(admin.Close)
		members = append(members, &member{number: i, address: proxy.Listener.Addr().String(), admin: admin.Listener.Addr().String()})
	}
	b := newBalancer(t, members)
	t.Cleanup(b.close)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	put := func() (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+b.address+"/b/k", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	seen := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(histories.Patience); b.readyOnes() != n; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d are ready, want %d", b.readyOnes(), n)
			}
		}
	}
	for range 100 {
		if status, err := put(); status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	if came[0].Load() == 0 || came[1].Load() == 0 || came[0].Load()+came[1].Load() != 100 {
		t.Errorf("they got %d and %d requests", came[0].Load(), came[1].Load())
	}
	ready[0].Store(false)
	seen(1)
	before := came[0].Load()
	for range 20 {
		if status, err := put(); status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	if came[0].Load() != before {
		t.Error("one that is not ready got requests")
	}
	cuts.Store(true)
	sent := came[1].Load()
	if status, err := put(); err == nil {
		t.Errorf("a request that was cut off was answered %d", status)
	}
	if came[1].Load() != sent+1 {
		t.Errorf("it was sent %d times", came[1].Load()-sent)
	}
	ready[1].Store(false)
	seen(0)
	if status, err := put(); status != http.StatusServiceUnavailable {
		t.Error("nobody is ready, and it says", status, err)
	}
}
