package proxy

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"
)

// TestSkippedIsOfOneBucket: a bucket in which the store could not be asked (its permissions, an object lock) says nothing of the others. It is
// remembered, and holds until one of them has told what the store does.
func TestSkippedIsOfOneBucket(t *testing.T) {
	t.Parallel()
	asked := map[string]int{}
	change := func(_ *Config, b *Backend) {
		b.Probe = func(_ context.Context, bucket string) (Findings, error) {
			if asked[bucket]++; bucket == "other" {
				return Findings{Skipped: "it is somebody else's"}, nil
			}
			return all, nil
		}
	}
	before(t, change, func(r *remote) {
		for range 2 {
			r.want(403, "ConditionsUnknown", "PUT", "/other/a", "content", "X-Fence-Token: 34")
		}
		r.quiet()
		for range 2 {
			r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		}
		r.want(204, "", "DELETE", "/b/a", "", "X-Fence-Token: 34")
		if want := map[string]int{"other": 1, "b": 1}; !maps.Equal(asked, want) {
			t.Errorf("asked %v, want %v", asked, want)
		}
		r.wantCondition(r.take("PutObject")[0], "If-None-Match: *")
		r.want(200, "", "PUT", "/other/a", "content", "X-Fence-Token: 34")
		r.wantCondition(r.takeOne("PutObject"), "If-None-Match: *")
		r.settled()
	})
}

// TestAFailedAskingIsShared: while a store is down, all who wait for one asking end with it. The next write asks again.
func TestAFailedAskingIsShared(t *testing.T) {
	t.Parallel()
	asked := map[string]int{}
	var mu sync.Mutex
	change := func(_ *Config, b *Backend) {
		b.Probe = func(_ context.Context, bucket string) (Findings, error) {
			mu.Lock()
			asked[bucket]++
			mu.Unlock()
			time.Sleep(10 * time.Second) // as a dial does that nobody answers
			return Findings{}, errors.New("no network")
		}
	}
	before(t, change, func(r *remote) {
		start := time.Now()
		var writes sync.WaitGroup
		for range 30 {
			for _, target := range []string{"/b/a", "/other/a"} {
				writes.Go(func() {
					if w := r.do("PUT", target, "content", "X-Fence-Token: 34"); w.Code != 503 {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
		}
		writes.Wait()
		if took := time.Since(start); took != 20*time.Second { // one asking for each bucket
			t.Errorf("the last one was answered after %v", took)
		}
		if want := map[string]int{"b": 1, "other": 1}; !maps.Equal(asked, want) {
			t.Errorf("asked %v, want %v", asked, want)
		}
		r.want(503, "ServiceUnavailable", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		if asked["b"] != 2 {
			t.Errorf("asked %v: an error was remembered", asked)
		}
		r.quiet()
		r.settled()
	})
}

// TestWhoLeavesDoesNotWait for a store that takes its time to say what it does.
func TestWhoLeavesDoesNotWait(t *testing.T) {
	t.Parallel()
	change := func(_ *Config, b *Backend) {
		b.Probe = func(context.Context, string) (Findings, error) {
			time.Sleep(time.Minute)
			return all, nil
		}
	}
	before(t, change, func(r *remote) {
		var first sync.WaitGroup
		first.Go(func() { r.do("PUT", "/b/a", "content", "X-Fence-Token: 34") })
		r.sleep(time.Second)
		start := time.Now()
		for _, target := range []string{"/b/b", "/other/b"} {
			ctx, leave := context.WithTimeout(r.Context(), time.Second)
			w := r.serve(r.request("DELETE", target, nil, 0, "X-Fence-Token: 34").WithContext(ctx))
			leave()
			if w.Code != 503 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("they were held for %v", took)
		}
		first.Wait()
		r.has("a", "content") // the asking itself depends on nobody
		r.settled()
	})
}
