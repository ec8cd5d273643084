// Package tokenstest holds every token registry, and the fence over it, to what package tokens promises. A driver's test is:
// open me, kill me, run the suite.
package tokenstest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A Harness makes runs of one driver.
type Harness struct {
	// Open begins a run over the state in dir, which an earlier run may have left.
	Open func(t testing.TB, dir string) tokens.Registry

	// Kill ends a run as kill -9 would: nothing is given back, nothing is marked.
	Kill func(t testing.TB, r tokens.Registry)

	// Silence is how long it takes at most until a run that was killed is known to be over; 0 where the next one knows it. A driver with one
	// is shared by several instances: there a reset is recorded before its wait.
	Silence time.Duration
}

// Run runs the whole suite. Time is virtual in all of it: a settle time of a minute costs nothing.
func Run(t *testing.T, h Harness) {
	for _, suite := range []struct {
		name  string
		cases []testCase
	}{
		{"Registry", registryCases},
		{"Story", storyCases},
		{"Promise", promiseCases},
	} {
		t.Run(suite.name, func(t *testing.T) {
			for _, c := range suite.cases {
				t.Run(c.name, func(t *testing.T) { h.inBubble(t, c.run) })
			}
		})
	}
	t.Run("Simulation", h.simulate)
}

// A testCase runs in a bubble of virtual time, in a world of its own.
type testCase struct {
	name string
	run  func(*world)
}

func (h Harness) inBubble(t *testing.T, run func(*world)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, h: h, dir: dir, acked: make(map[string]tokens.Token), resets: make(map[string]int64)}
		w.start()
		defer func() {
			if w.reg != nil {
				w.kill()
			}
		}()
		run(w)
	})
}

const res = "bucket/jobs/7"

func (w *world) raise(t tokens.Token, holder string, settle time.Duration) (tokens.Grant, error) {
	return w.reg.Raise(context.Background(), tokens.Claim{Resource: res, Token: t, Holder: holder, Settle: settle, Generation: w.generation})
}

func (w *world) mustRaise(t tokens.Token, settle time.Duration) tokens.Grant {
	w.t.Helper()
	g, err := w.raise(t, "", settle)
	if err != nil {
		w.t.Fatalf("raise to %d: %v", t, err)
	}
	if g.Token != t || g.Settle < settle || g.Incarnation == 0 || g.Incarnation != w.reg.Incarnation() {
		w.t.Fatalf("raise to %d for %v: grant %+v under incarnation %d", t, settle, g, w.reg.Incarnation())
	}
	return g
}

func (w *world) mustBeStale(t, highest tokens.Token) {
	w.t.Helper()
	_, err := w.raise(t, "", 0)
	var stale *tokens.StaleError
	if !errors.As(err, &stale) || stale.Token != t || stale.Highest != highest || stale.Resource != res {
		w.t.Fatalf("raise to %d: %v; want it refused, %d being the highest", t, err, highest)
	}
}

// took fails the test unless f takes at least low and less than high of virtual time.
func (w *world) took(low, high time.Duration, f func()) {
	w.t.Helper()
	start := time.Now()
	f()
	if d := time.Since(start); d < low || d >= high {
		w.t.Fatalf("it took %v; want %v to %v", d, low, high)
	}
}

// registryCases hold the registry alone to its contract.
var registryCases = []testCase{
	{"a token is recorded and a lower one refused", func(w *world) {
		if g := w.mustRaise(34, 0); !g.Raised {
			w.t.Error("the first raise did not say that it raised")
		}
		w.mustBeStale(33, 34)
		w.mustBeStale(0, 34)
		if g := w.mustRaise(34, 0); g.Raised {
			w.t.Error("an equal raise said that it raised")
		}
		w.mustRaise(35, 0)
		w.mustBeStale(34, 35)
		w.mustRaise(tokens.Max, 0)
		w.mustBeStale(tokens.Max-1, tokens.Max)
	}},
	{"token 0 may write until a token is seen", func(w *world) {
		w.mustRaise(0, 0)
		w.mustRaise(0, time.Minute)
		if e, err := w.reg.Lookup(context.Background(), res); err != nil || e.Token != 0 {
			w.t.Fatalf("lookup: %+v, %v", e, err)
		}
		w.mustRaise(1, 0)
		w.mustBeStale(0, 1)
	}},
	{"resources do not know each other", func(w *world) {
		w.mustRaise(34, 0)
		for _, other := range []string{"bucket/jobs/70", "bucket/jobs/", "bucket", res + "/x", "bucket/Jobs/7", ""} {
			if _, err := w.reg.Raise(context.Background(), tokens.Claim{Resource: other, Token: 1}); err != nil {
				w.t.Errorf("%q: %v", other, err)
			}
		}
	}},
	{"what was raised survives a kill and a clean stop", func(w *world) {
		w.mustRaise(34, 0)
		w.kill()
		w.start()
		w.mustBeStale(33, 34)
		w.mustRaise(35, 0)
		w.stop(time.Second)
		w.start()
		w.mustBeStale(34, 35)
	}},
	{"a holder is bound with its token", func(w *world) {
		if _, err := w.raise(34, "", 0); err != nil {
			w.t.Fatal(err)
		}
		g, err := w.raise(34, "a", 0)
		if err != nil || g.Holder != "a" || g.Raised {
			w.t.Fatalf("binding: %+v, %v", g, err)
		}
		w.kill()
		w.start()
		for _, other := range []string{"b", "", "A"} {
			_, err := w.raise(34, other, 0)
			var conflict *tokens.ConflictError
			if !errors.As(err, &conflict) || conflict.Bound != "a" || conflict.Holder != other || conflict.Token != 34 {
				w.t.Errorf("holder %q: %v; want a conflict with a", other, err)
			}
		}
		if _, err := w.raise(34, "a", 0); err != nil {
			w.t.Error(err)
		}
		if g, err := w.raise(35, "b", 0); err != nil || g.Holder != "b" {
			w.t.Errorf("a new token takes a new holder: %+v, %v", g, err)
		}
	}},
	{"a lookup tells what is recorded", func(w *world) {
		before := time.Now().Truncate(time.Millisecond)
		if _, err := w.reg.Raise(context.Background(), tokens.Claim{Resource: res, Token: 34, Holder: "a", AccessKey: "AK"}); err != nil {
			w.t.Fatal(err)
		}
		e, err := w.reg.Lookup(context.Background(), res)
		if err != nil || e.Resource != res || e.Token != 34 || e.Holder != "a" || e.AccessKey != "AK" || e.RaisedAt.Before(before) || e.Generation != 0 {
			w.t.Fatalf("%+v, %v", e, err)
		}
	}},
	{"a list is in byte order, by prefix, in pages", listCase},
	{"reset is the only way down, and starts a generation", func(w *world) {
		w.mustRaise(34, 0)
		e, err := w.reg.Reset(context.Background(), res, 10)
		if err != nil || e.Token != 10 || e.Generation != 1 {
			w.t.Fatalf("%+v, %v", e, err)
		}
		w.generation = e.Generation
		w.mustBeStale(9, 10)
		w.mustRaise(10, 0)
		w.kill()
		w.start()
		w.mustBeStale(9, 10)
		if e, err := w.reg.Lookup(context.Background(), res); err != nil || e.Generation != 1 {
			w.t.Fatalf("%+v, %v", e, err)
		}
	}},
	{"an upload has the highest token that touched it, until it is forgotten", func(w *world) {
		ctx := context.Background()
		has := func(want tokens.Token) {
			w.t.Helper()
			if got, err := w.reg.UploadToken(ctx, "u"); err != nil || got != want {
				w.t.Errorf("upload token %d, %v; want %d", got, err, want)
			}
		}
		has(0)
		for _, t := range []tokens.Token{33, 34, 33, 34} {
			if err := w.reg.TouchUpload(ctx, "u", t); err != nil {
				w.t.Fatal(err)
			}
		}
		has(34)
		w.kill()
		w.start()
		has(34)
		if err := w.reg.ForgetUpload(ctx, "u"); err != nil {
			w.t.Fatal(err)
		}
		has(0)
	}},
	{"a raise waits for the grants of a killed run, equal tokens do not", func(w *world) {
		w.mustRaise(34, time.Minute)
		w.kill()
		time.Sleep(time.Hour) // counts from the lock, not from the grant: this process may have been the one that slept
		w.start()
		w.took(0, time.Second, func() { w.mustRaise(34, time.Minute) })
		w.took(59*time.Second, 61*time.Second+w.h.Silence, func() { w.mustRaise(35, time.Minute) })
		w.took(0, time.Second, func() { w.mustRaise(36, time.Minute) })
	}},
	{"each grant has its own settle time", func(w *world) {
		w.mustRaise(34, time.Second)
		w.mustRaise(34, 10*time.Minute)
		w.mustRaise(34, time.Second)
		w.kill()
		w.start()
		w.took(10*time.Minute, 10*time.Minute+time.Second+w.h.Silence, func() { w.mustRaise(35, 0) })
	}},
	{"a grant that was given back is not waited for", func(w *world) {
		g := w.mustRaise(34, time.Minute)
		w.giveBack(g.ID)
		w.kill()
		w.start()
		w.took(0, time.Second, func() { w.mustRaise(35, time.Minute) })
	}},
	{"giving back names one grant, not what stands in its place", func(w *world) {
		first := w.mustRaise(34, time.Minute)
		second := w.mustRaise(34, time.Minute)
		if second.ID <= first.ID {
			w.t.Fatalf("grant %d came after grant %d", second.ID, first.ID)
		}
		w.giveBack(first.ID) // late
		w.kill()
		w.start()
		w.took(59*time.Second, 61*time.Second+w.h.Silence, func() { w.mustRaise(35, time.Minute) })
	}},
	{"a raise that is left waiting has recorded its token and holds nobody up", func(w *world) {
		w.mustRaise(34, time.Minute)
		w.kill()
		w.start()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := w.reg.Raise(ctx, tokens.Claim{Resource: res, Token: 35, Settle: time.Hour})
		if !errors.Is(err, context.DeadlineExceeded) {
			w.t.Fatalf("%v; want the deadline", err)
		}
		w.mustBeStale(34, 35)
		w.kill()
		w.start()
		w.took(59*time.Second, 61*time.Second+2*w.h.Silence, func() { w.mustRaise(36, 0) })
	}},
	{"a reset waits for killed runs, whatever their tokens", func(w *world) {
		w.mustRaise(tokens.Max, time.Minute)
		w.kill()
		w.start()
		w.took(59*time.Second, 61*time.Second+w.h.Silence, func() {
			if _, err := w.reg.Reset(context.Background(), res, 10); err != nil {
				w.t.Error(err)
			}
		})
	}},
}

func (w *world) giveBack(ids ...tokens.GrantID) {
	w.t.Helper()
	if err := w.reg.GiveBack(context.Background(), ids...); err != nil {
		w.t.Fatal(err)
	}
}

func listCase(w *world) {
	names := []string{"a/1", "a/10", "a/2", "a/é", "a0", "b/\U0010ffff", "b/~"}
	for _, n := range []int{3, 6, 0, 2, 5, 1, 4} {
		if _, err := w.reg.Raise(context.Background(), tokens.Claim{Resource: names[n], Token: tokens.Token(n + 1)}); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          []string
	}{
		{"", "", 100, []string{"a/1", "a/10", "a/2", "a/é", "a0", "b/~", "b/\U0010ffff"}},
		{"a/", "", 100, names[:4]},
		{"a/", "a/10", 1, names[2:3]},
		{"", "a0", 100, []string{"b/~", "b/\U0010ffff"}},
		{"b/\U0010ffff", "", 100, []string{"b/\U0010ffff"}},
		{"c", "", 100, nil},
	} {
		entries, err := w.reg.List(context.Background(), c.prefix, c.after, c.limit)
		if err != nil {
			w.t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Resource)
		}
		if len(got) != len(c.want) {
			w.t.Errorf("%q after %q: %q; want %q", c.prefix, c.after, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				w.t.Errorf("%q after %q: %q; want %q", c.prefix, c.after, got, c.want)
				break
			}
		}
	}
}
