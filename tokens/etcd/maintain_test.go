package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// recorded are the tokens of all resources.
func recorded(t testing.TB, r *Registry) map[string]tokens.Token {
	t.Helper()
	all, err := r.List(t.Context(), "", "", 100_000)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]tokens.Token{}
	for _, e := range all {
		got[e.Resource] = e.Token
	}
	return got
}

func marks(n int, token func(i int) tokens.Token) (marks map[string]tokens.Mark, want map[string]tokens.Token) {
	marks, want = map[string]tokens.Mark{}, map[string]tokens.Token{}
	for i := range n {
		name := fmt.Sprintf("b/%d\xff", i) // names of objects may be no UTF-8
		marks[name], want[name] = tokens.Mark{Token: token(i)}, token(i)
	}
	return marks, want
}

func TestMappings(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	a := mustBegin(t, o)
	ctx := t.Context()
	all, version, err := a.Mappings(ctx)
	if len(all) != 0 || version != 0 || err != nil {
		t.Fatalf("at first: %v, %d, %v", all, version, err)
	}
	first := []tokens.Mapping{{Name: "logs-*", Digest: "d1", Text: "first"}, {Name: "*", Digest: "d2", Text: "it's\x00all"}}
	added, err := a.RecordMappings(ctx, first, version, false)
	if err != nil || added == version {
		t.Fatalf("%d, %v", added, err)
	}
	if _, err := a.RecordMappings(ctx, nil, version, false); !errors.Is(err, tokens.ErrRemapped) {
		t.Errorf("over an older version: %v", err)
	}
	if all, got, err := a.Mappings(ctx); !slices.Equal(all, first) || got != added || err != nil {
		t.Errorf("%v, %d, %v", all, got, err)
	}
	incarnation := a.Incarnation()
	b := mustBegin(t, o) // by the new list; an addition ends nobody's lease
	time.Sleep(o.Lease)
	if a.Incarnation() != incarnation {
		t.Error("an addition has ended a lease")
	}
	second := []tokens.Mapping{{Name: "c"}, {Name: "b"}, {Name: "a"}}
	remapped, err := b.RecordMappings(ctx, second, added, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Registry{a, b} {
		eventually(t, "an instance by other mappings has ended", func() bool { return r.Failure() != nil && r.Incarnation() == 0 })
	}
	c := mustOpen(t, o)
	if err := c.Begin(ctx, added); !errors.Is(err, tokens.ErrRemapped) {
		t.Errorf("by the mappings from before: %v", err)
	}
	c = mustOpen(t, o)
	if err := c.Begin(ctx, remapped); err != nil {
		t.Error(err)
	}
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	a, b := mustBegin(t, o), mustBegin(t, o)
	const other, third = "5MP4GMTXTDWWVKZQIUBK5IN35A", "ABCDGMTXTDWWVKZQIUBK5IN35A"
	if at, err := a.LastAdopted(t.Context()); !at.IsZero() || err != nil {
		t.Errorf("at first: %v, %v", at, err)
	}
	for _, bad := range []string{"", "x", strings.ToLower(other), other + "/", other[:25], strings.Repeat("A", 41)} {
		if err := a.Adopt(t.Context(), bad); err == nil {
			t.Errorf("%q was adopted", bad)
		}
	}
	before := time.Now()
	for _, id := range []string{third, other, third, a.Start().ID} {
		if err := a.Adopt(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	want := []string{other, third}
	if got := a.Adopted(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	eventually(t, "another instance knows of it", func() bool { return slices.Equal(b.Adopted(), want) })
	at, err := b.LastAdopted(t.Context())
	if err != nil || at.Before(before) || at.After(time.Now()) {
		t.Errorf("adopted at %v, %v; want it since %v", at, err, before)
	}
	replaces := o
	replaces.Prefix, replaces.Replaces = o.Prefix+"replaces/", true
	c := mustOpen(t, replaces)
	if at, err := c.LastAdopted(t.Context()); err != nil || at.Before(before) || len(c.Adopted()) > 0 {
		t.Errorf("one that replaces another: %v, %v, %q", at, err, c.Adopted())
	}
}

func TestRaiseTo(t *testing.T) {
	t.Parallel()
	r := mustBegin(t, optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{})))
	ctx := t.Context()
	for resource, token := range map[string]tokens.Token{"b/above": 50, "b/equal": 34, "b/below": 33} {
		if _, err := r.Raise(ctx, tokens.Claim{Resource: resource, Token: token, Holder: "h/ü\n", AccessKey: "AKID"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Reset(ctx, "b/reset", 3); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-time.Minute)
	for _, step := range []struct {
		marks map[string]tokens.Mark
		want  int64
	}{
		{map[string]tokens.Mark{
			"b/above": {Token: 34, Generation: 2}, "b/equal": {Token: 34}, "b/below": {Token: 34}, "b/reset": {Token: 34}, "b/new": {Token: 34}, "b/none": {},
		}, 3},
		{map[string]tokens.Mark{"b/new": {Token: 36, Generation: 1}, "b/newer": {Token: 36}}, 1},
		{map[string]tokens.Mark{"b/new": {Token: 35, Generation: 3}, "b/newer": {Token: 36}, "b/equal": {Token: 34, Generation: 1}}, 0},
		{nil, 0},
	} {
		if n, err := r.RaiseTo(ctx, step.marks, at); n != step.want || err != nil {
			t.Errorf("%v: %d, %v; want %d", step.marks, n, err, step.want)
		}
	}
	for _, want := range []tokens.Entry{
		{Resource: "b/above", Token: 50, Generation: 2, Holder: "h/ü\n", AccessKey: "AKID"},
		{Resource: "b/equal", Token: 34, Generation: 1, Holder: "h/ü\n", AccessKey: "AKID"},
		{Resource: "b/below", Token: 34},
		{Resource: "b/reset", Token: 34, Generation: 1},
		{Resource: "b/new", Token: 36, Generation: 3},
		{Resource: "b/newer", Token: 36},
	} {
		e, err := r.Lookup(ctx, want.Resource)
		if e.RaisedAt.IsZero() {
			t.Errorf("%s was never raised", want.Resource)
		}
		e.RaisedAt = time.Time{}
		if diff := cmp.Diff(want, e); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
	}
	many, want := marks(250, func(i int) tokens.Token { return tokens.Token(i) })
	if n, err := r.RaiseTo(ctx, many, at); n != 249 || err != nil { // one of them is 0
		t.Errorf("%d, %v", n, err)
	}
	delete(want, "b/0\xff")
	got := recorded(t, r)
	for name := range got {
		if !strings.HasSuffix(name, "\xff") {
			delete(got, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for prefix, want := range map[string]int64{"": 255, "b/1": 111, "b/newer": 1, "c": 0} {
		if n, err := r.Count(ctx, prefix); n != want || err != nil {
			t.Errorf("%q: %d, %v; want %d", prefix, n, err, want)
		}
	}
}

func TestRepair(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	o.Repair = tokens.RepairNew
	r := mustOpen(t, o)
	if state, err := r.Repair(t.Context()); state != tokens.RepairNew || err != nil {
		t.Errorf("%q, %v", state, err)
	}
	if err := r.Begin(t.Context(), 0); !errors.Is(err, tokens.ErrUnavailable) {
		t.Errorf("%v; want nobody to begin over half a registry", err)
	}
	if err := r.SetRepair(t.Context(), tokens.RepairMargin); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RaiseAll(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if state, err := r.Repair(t.Context()); state != tokens.RepairNone || err != nil {
		t.Errorf("after the raise: %q, %v", state, err)
	}
	if err := r.Begin(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// TestRaiseAll: all or none, bound to nobody; and what runs asks for every right anew.
func TestRaiseAll(t *testing.T) {
	t.Parallel()
	o := optionsFor(t, servers.StartEtcd(t, servers.EtcdOptions{}))
	running := mustBegin(t, o)
	ctx := t.Context()
	if _, err := running.Raise(ctx, tokens.Claim{Resource: "b/a", Token: 34, Holder: "h", AccessKey: "AKID"}); err != nil {
		t.Fatal(err)
	}
	mustRaise(t, running, "b/b", tokens.Max-10, 0)
	mustRaise(t, running, "b/unseen", 0, 0)
	admin := mustOpen(t, o)
	var over *tokens.OverflowError
	if n, err := admin.RaiseAll(ctx, 11); !errors.As(err, &over) || *over != (tokens.OverflowError{Resource: "b/b", Token: tokens.Max - 10, By: 11}) || n != 0 {
		t.Errorf("%d, %v; want it refused for b/b", n, err)
	}
	if n, err := admin.RaiseAll(ctx, 0); err == nil {
		t.Errorf("%d raised by nothing", n)
	}
	eventually(t, "an instance that was halted goes on", func() bool {
		_, err := running.Raise(ctx, tokens.Claim{Resource: "b/c", Token: 1})
		return err == nil
	})
	if diff := cmp.Diff(map[string]tokens.Token{"b/a": 34, "b/b": tokens.Max - 10, "b/c": 1}, recorded(t, running)); diff != "" {
		t.Error(diff)
	}
	old := running.Incarnation()
	raised := make(chan error, 1)
	go func() {
		n, err := admin.RaiseAll(ctx, 10)
		if n != 3 && err == nil {
			err = fmt.Errorf("raised %d; want 3", n)
		}
		raised <- err
	}()
	eventually(t, "everybody is halted", func() bool { return keysUnder(t, running, "halt") == 1 })
	// It is alive for a lease from then on, as far as etcd knows.
	if _, err := running.store.Record(ctx, int64(old), tokens.Claim{Resource: "b/a", Token: 34, Holder: "h"}); !errors.Is(err, tokens.ErrUnavailable) ||
		!strings.Contains(err.Error(), "--all-by 10") || keysUnder(t, running, "instances/") != 1 {
		t.Errorf("a raise meanwhile: %v", err)
	}
	if err := <-raised; err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]tokens.Token{"b/a": 44, "b/b": tokens.Max, "b/c": 11}, recorded(t, running)); diff != "" {
		t.Error(diff)
	}
	if e, err := running.Lookup(ctx, "b/a"); e.Holder != "" || e.AccessKey != "" || err != nil {
		t.Errorf("%+v, %v; want it bound to nobody", e, err)
	}
	eventually(t, "it has a new incarnation", func() bool { return running.Incarnation() != old && running.Incarnation() != 0 })
	if _, err := running.Raise(ctx, tokens.Claim{Resource: "b/a", Token: 43}); !errors.As(err, new(*tokens.StaleError)) {
		t.Errorf("%v; want 43 refused", err)
	}
	mustRaise(t, running, "b/a", 44, 0)
	if at, err := admin.LastAdopted(ctx); !at.IsZero() || err != nil {
		t.Errorf("a raise without a restore has written down one: %v, %v", at, err)
	}
}

// TestRaiseAllBrokenOff: wherever it stops, nobody raises until it has come to its end, and every token is raised once.
func TestRaiseAllBrokenOff(t *testing.T) {
	t.Parallel()
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	for stop := 1; ; stop++ {
		o := optionsFor(t, cluster)
		many, want := marks(250, func(i int) tokens.Token { return tokens.Token(i + 1) })
		if _, err := mustOpen(t, o).RaiseTo(t.Context(), many, time.Now()); err != nil {
			t.Fatal(err)
		}
		accept := o
		accept.AcceptRestored = true
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		var counting bool
		r, err := open(ctx, accept, func(string) {
			if counting {
				if calls++; calls == stop {
					cancel()
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		counting = true
		n, err := r.RaiseAll(ctx, 1000)
		counting = false
		cancel()
		if closeErr := r.Close(); closeErr != nil {
			t.Error(closeErr)
		}
		if err == nil {
			if n != 250 || stop < 5 {
				t.Errorf("with %d calls: %d", calls, n)
			}
			return
		}
		// What the last call did is not known: nobody may be halted yet, or no more, or everybody is.
		r, err = tryOpen(o)
		halted := err != nil
		if !halted {
			_ = r.Close()
		} else if !errors.Is(err, tokens.ErrUnavailable) || !strings.Contains(err.Error(), "--all-by 1000") {
			t.Errorf("after %d calls: %v", stop, err)
		} else if _, err := mustOpen(t, accept).RaiseAll(t.Context(), 7); err == nil || !strings.Contains(err.Error(), "--all-by 1000") {
			t.Errorf("another number over one that was broken off: %v", err)
		}
		done := mustOpen(t, accept)
		if halted || recorded(t, done)["b/99\xff"] == 100 {
			if n, err := done.RaiseAll(t.Context(), 1000); n != 250 || err != nil {
				t.Errorf("after %d calls, again: %d, %v", stop, n, err)
			}
		}
		for name := range want {
			want[name] += 1000
		}
		if diff := cmp.Diff(want, recorded(t, done)); diff != "" {
			t.Errorf("after %d calls: %s", stop, diff)
		}
		mustBegin(t, o)
	}
}
