package tokenstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// A StoreHarness makes engines of one driver.
type StoreHarness struct {
	Engine func(t testing.TB) Engine

	// Timed says that the engine times leases itself. ShortLease is a lease that such an engine ends within ten seconds of silence.
	Timed      bool
	ShortLease time.Duration
}

// RunStore holds a driver's [fleet.Store] to its contract, sentence by sentence. Time is real.
func RunStore(t *testing.T, h StoreHarness) {
	for _, c := range storeCases {
		t.Run(c.name, func(t *testing.T) {
			s := &storeTest{t: t, h: h, engine: h.Engine(t)}
			s.a, s.b = s.open(), s.open()
			c.run(s)
		})
	}
}

// A storeTest has two instances with a lease that does not end by itself while the test runs.
type storeTest struct {
	t      *testing.T
	h      StoreHarness
	engine Engine
	a, b   *member
}

// A member is one incarnation and its way to the store.
type member struct {
	s *storeTest
	fleet.Store
	incarnation int64
}

const longLease = 2 * time.Minute

var bg = context.Background()

func (s *storeTest) open() *member {
	s.t.Helper()
	store := s.engine.Store(s.t)
	s.t.Cleanup(func() { _ = store.Close() })
	m := &member{s: s, Store: store}
	m.join(longLease)
	return m
}

func (m *member) join(lease time.Duration) {
	m.s.t.Helper()
	n, err := m.Join(bg, lease, m.s.engine.Mapping(m.s.t))
	if err != nil || n == 0 || n == m.incarnation {
		m.s.t.Fatalf("join: incarnation %d, %v", n, err)
	}
	m.incarnation = n
}

func (m *member) record(c tokens.Claim) fleet.Recorded {
	m.s.t.Helper()
	if c.Resource == "" {
		c.Resource = res
	}
	rec, err := m.Record(bg, m.incarnation, c)
	if err != nil {
		m.s.t.Fatalf("record %+v: %v", c, err)
	}
	if rec.Grant.ID == 0 || rec.Grant.Token != c.Token || rec.Grant.Holder != c.Holder || rec.Grant.Generation != c.Generation || rec.Grant.Settle < c.Settle {
		m.s.t.Fatalf("record %+v: grant %+v", c, rec.Grant)
	}
	return rec
}

func (m *member) token(t tokens.Token) fleet.Recorded {
	m.s.t.Helper()
	return m.record(tokens.Claim{Token: t, Settle: time.Minute})
}

func (m *member) beat() fleet.View {
	m.s.t.Helper()
	v, err := m.Beat(bg, m.incarnation)
	if err != nil {
		m.s.t.Fatalf("beat: %v", err)
	}
	return v
}

func (m *member) look() fleet.View {
	m.s.t.Helper()
	v, err := m.Look(bg)
	if err != nil {
		m.s.t.Fatalf("look: %v", err)
	}
	return v
}

// peer is how an incarnation looks to m.
func (m *member) peer(incarnation int64) (fleet.Peer, bool) {
	m.s.t.Helper()
	for _, p := range m.look().Alive {
		if p.Incarnation == incarnation {
			return p, true
		}
	}
	return fleet.Peer{}, false
}

// revoked are the ids in the member's view.
func (m *member) revoked() (ids []tokens.GrantID) {
	m.s.t.Helper()
	for _, rv := range m.beat().Revoked {
		ids = append(ids, rv.ID)
	}
	return ids
}

// mustWaitFor fails the test unless these grants are what is to be waited for.
func (s *storeTest) mustWaitFor(lower []fleet.GrantRef, want ...fleet.Recorded) {
	s.t.Helper()
	var got, ids []tokens.GrantID
	for _, ref := range lower {
		got = append(got, ref.ID)
	}
	for _, rec := range want {
		ids = append(ids, rec.Grant.ID)
	}
	slices.Sort(got)
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		s.t.Fatalf("grants to wait for: %v; want %v", got, ids)
	}
}

// mustStand fails the test unless of these grants the named ones stand.
func (s *storeTest) mustStand(asked []fleet.GrantRef, want ...fleet.Recorded) {
	s.t.Helper()
	standing, err := s.a.Standing(bg, asked)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mustWaitFor(standing, want...)
}

func ref(m *member, rec fleet.Recorded) fleet.GrantRef {
	return fleet.GrantRef{ID: rec.Grant.ID, Resource: res, Incarnation: m.incarnation}
}

// end ends a member's incarnation, as another one sees it.
func (s *storeTest) end(m *member) {
	s.t.Helper()
	if err := m.Leave(bg, m.incarnation); err != nil {
		s.t.Fatal(err)
	}
}

func (s *storeTest) mustHave(resource string, want tokens.Entry) tokens.Entry {
	s.t.Helper()
	e, err := s.b.Lookup(bg, resource)
	if err != nil || e.Resource != resource || e.Token != want.Token || e.Holder != want.Holder || e.AccessKey != want.AccessKey || e.Generation != want.Generation {
		s.t.Fatalf("lookup of %q: %+v, %v; want %+v", resource, e, err, want)
	}
	return e
}

var storeCases = []struct {
	name string
	run  func(*storeTest)
}{
	{"incarnations are alive from Join, and their numbers are never used twice", func(s *storeTest) {
		seen := map[int64]bool{s.a.incarnation: true, s.b.incarnation: true}
		for _, m := range []*member{s.a, s.b} {
			p, ok := s.a.peer(m.incarnation)
			if !ok || p.Lease != longLease || s.h.Timed != (p.Beat == 0) {
				s.t.Errorf("%+v, %v", p, ok)
			}
		}
		for range 3 {
			s.end(s.b)
			if _, ok := s.a.peer(s.b.incarnation); ok {
				s.t.Error("an incarnation that has left is alive")
			}
			s.b.join(longLease)
			if seen[s.b.incarnation] {
				s.t.Errorf("incarnation %d was there before", s.b.incarnation)
			}
			seen[s.b.incarnation] = true
		}
	}},
	{"a beat changes what others see, and looks around", func(s *storeTest) {
		before, _ := s.a.peer(s.b.incarnation)
		v := s.b.beat()
		if len(v.Alive) != 2 || v.Mapping != s.engine.Mapping(s.t) {
			s.t.Errorf("%+v", v)
		}
		if after, ok := s.a.peer(s.b.incarnation); !ok || after.Beat == before.Beat && !s.h.Timed {
			s.t.Errorf("%+v after %+v", after, before)
		}
	}},
	{"an ended incarnation neither beats nor records", func(s *storeTest) {
		s.end(s.b)
		if _, err := s.b.Beat(bg, s.b.incarnation); !errors.Is(err, fleet.ErrEnded) {
			s.t.Errorf("beat: %v", err)
		}
		if _, err := s.b.Record(bg, s.b.incarnation, tokens.Claim{Resource: res, Token: 34}); !errors.Is(err, fleet.ErrEnded) {
			s.t.Errorf("record: %v", err)
		}
		if _, _, err := s.b.RecordReset(bg, s.b.incarnation, res, 34); !errors.Is(err, fleet.ErrEnded) {
			s.t.Errorf("reset: %v", err)
		}
		s.mustHave(res, tokens.Entry{})
		if _, err := s.b.Beat(bg, s.a.incarnation+s.b.incarnation+1000); !errors.Is(err, fleet.ErrEnded) {
			s.t.Errorf("beat of one that never was: %v", err)
		}
	}},
	{"expel ends an incarnation with this last beat, and no other", func(s *storeTest) {
		if s.h.Timed {
			s.t.Skip("this engine times leases itself")
		}
		old, _ := s.a.peer(s.b.incarnation)
		s.b.beat()
		if err := s.a.Expel(bg, old); err != nil {
			s.t.Fatal(err)
		}
		s.b.token(34) // it is alive: it has beaten since
		now, _ := s.a.peer(s.b.incarnation)
		if err := s.a.Expel(bg, now); err != nil {
			s.t.Fatal(err)
		}
		if _, err := s.b.Record(bg, s.b.incarnation, tokens.Claim{Resource: res, Token: 35}); !errors.Is(err, fleet.ErrEnded) {
			s.t.Errorf("record after expel: %v", err)
		}
		if !slices.Contains(s.a.look().Ended, s.b.incarnation) {
			s.t.Error("it is not among the ended ones")
		}
		if err := s.a.Expel(bg, now); err != nil {
			s.t.Errorf("to expel it again: %v", err)
		}
	}},
	{"an engine that times leases ends one without beats, and goes on with one that beats", func(s *storeTest) {
		if !s.h.Timed {
			s.t.Skip("instances of this engine expel each other")
		}
		s.end(s.b)
		s.b.join(s.h.ShortLease)
		silent := s.b.incarnation
		s.b.token(34)
		s.b.join(s.h.ShortLease)
		deadline := time.Now().Add(s.h.ShortLease + 15*time.Second)
		for !slices.Contains(s.a.look().Ended, silent) {
			s.b.beat()
			if time.Now().After(deadline) {
				s.t.Fatal("it has not ended")
			}
			time.Sleep(s.h.ShortLease / 20)
		}
		s.b.beat()
		if _, err := s.b.Record(bg, silent, tokens.Claim{Resource: res, Token: 35}); !errors.Is(err, fleet.ErrEnded) {
			s.t.Errorf("record: %v", err)
		}
		lower := s.a.token(35).Lower
		if len(lower) != 1 || lower[0].Incarnation != silent {
			s.t.Errorf("its grant went with its lease: %+v", lower)
		}
	}},
	{"record judges generation, token and holder, and changes nothing where it refuses", func(s *storeTest) {
		first := s.a.record(tokens.Claim{Token: 34, Holder: "a", AccessKey: "AK", Settle: time.Minute})
		if !first.Grant.Raised {
			s.t.Error("it did not say that it raised")
		}
		e := s.mustHave(res, tokens.Entry{Token: 34, Holder: "a", AccessKey: "AK"})
		if d := time.Since(e.RaisedAt); d < -time.Minute || d > time.Minute {
			s.t.Errorf("raised at %v", e.RaisedAt)
		}
		_, err := s.b.Record(bg, s.b.incarnation, tokens.Claim{Resource: res, Token: 33})
		var stale *tokens.StaleError
		if !errors.As(err, &stale) || *stale != (tokens.StaleError{Resource: res, Token: 33, Highest: 34, Holder: "a"}) {
			s.t.Errorf("a lower token: %v", err)
		}
		for _, holder := range []string{"", "A", "b"} {
			_, err = s.b.Record(bg, s.b.incarnation, tokens.Claim{Resource: res, Token: 34, Holder: holder})
			var conflict *tokens.ConflictError
			if !errors.As(err, &conflict) || *conflict != (tokens.ConflictError{Resource: res, Token: 34, Holder: holder, Bound: "a"}) {
				s.t.Errorf("holder %q: %v", holder, err)
			}
		}
		_, err = s.b.Record(bg, s.b.incarnation, tokens.Claim{Resource: res, Token: 35, Generation: 1})
		var reset *tokens.ResetError
		if !errors.As(err, &reset) || *reset != (tokens.ResetError{Resource: res, Token: 35, Highest: 34, Holder: "a"}) {
			s.t.Errorf("another generation: %v", err)
		}
		s.mustHave(res, tokens.Entry{Token: 34, Holder: "a", AccessKey: "AK"})
		s.mustStand([]fleet.GrantRef{ref(s.a, first)}, first)
		s.mustWaitFor(s.a.token(35).Lower) // no refused claim has left a grant
		s.mustHave(res, tokens.Entry{Token: 35})
	}},
	{"a holder is bound to a token that has none, and to the next with it", func(s *storeTest) {
		s.a.token(34)
		if rec := s.b.record(tokens.Claim{Token: 34, Holder: "a"}); rec.Grant.Raised || rec.Own != 0 {
			s.t.Errorf("binding: %+v", rec)
		}
		s.mustHave(res, tokens.Entry{Token: 34, Holder: "a"})
		if rec := s.a.record(tokens.Claim{Token: 35, Holder: "b"}); !rec.Grant.Raised {
			s.t.Errorf("%+v", rec)
		}
		s.mustHave(res, tokens.Entry{Token: 35, Holder: "b"})
		s.a.record(tokens.Claim{Token: tokens.Max})
		s.mustHave(res, tokens.Entry{Token: tokens.Max})
	}},
	{"a grant without a holder is lower than one with the same token and one", unnamedGrants},
	{"an incarnation's own grant without a holder is not replaced by one with it", ownUnnamedGrant},
	{"lower grants are returned, whoever has them, and equal ones are not", func(s *storeTest) {
		c := s.open()
		of := s.a.token(0)
		s.mustWaitFor(of.Lower)
		also := c.token(0)
		s.mustWaitFor(also.Lower)
		first := s.b.token(1)
		s.mustWaitFor(first.Lower, of, also)
		equal := s.a.token(1) // in the place of its grant of 0
		s.mustWaitFor(equal.Lower, also)
		s.end(c)
		s.mustWaitFor(s.b.token(2).Lower, equal, also) // also of one that has ended
	}},
	{"a grant takes the place of the incarnation's one on the resource, with a new and higher id", func(s *storeTest) {
		first := s.a.token(34)
		second := s.a.token(34)
		other := s.b.token(34)
		third := s.a.token(35)
		if !(first.Grant.ID < second.Grant.ID && second.Grant.ID < other.Grant.ID && other.Grant.ID < third.Grant.ID) {
			s.t.Errorf("ids %d, %d, %d, %d do not rise", first.Grant.ID, second.Grant.ID, other.Grant.ID, third.Grant.ID)
		}
		s.mustWaitFor(third.Lower, other)
		s.mustStand([]fleet.GrantRef{ref(s.a, first), ref(s.a, second), ref(s.b, other), ref(s.a, third)}, other, third)
	}},
	{"an incarnation keeps its grants apart by resource", func(s *storeTest) {
		first := s.a.token(34)
		s.a.record(tokens.Claim{Resource: "bucket/jobs/70", Token: 99})
		s.a.record(tokens.Claim{Resource: "bucket/jobs/", Token: 99})
		s.mustWaitFor(s.b.token(35).Lower, first)
	}},
	{"the longer settle time of two equal tokens counts, and that of a lower one does not", func(s *storeTest) {
		s.a.record(tokens.Claim{Token: 34, Settle: time.Hour})
		if g := s.a.record(tokens.Claim{Token: 34, Settle: time.Minute}).Grant; g.Settle != time.Hour {
			s.t.Errorf("settle %v", g.Settle)
		}
		s.end(s.a)
		if next, err := s.b.Sweep(bg, s.a.incarnation, time.Hour-time.Second); err != nil || next != time.Hour {
			s.t.Errorf("%v, %v; want the hour", next, err)
		}
		s.a.join(longLease)
		s.a.record(tokens.Claim{Token: 35, Settle: time.Hour})
		if g := s.a.record(tokens.Claim{Token: 36, Settle: time.Minute}).Grant; g.Settle != time.Minute {
			s.t.Errorf("settle %v", g.Settle)
		}
	}},
	{"a grant that somebody waits for is in the view of who has it, until it is removed", func(s *storeTest) {
		mine := s.a.token(34)
		if ids := s.a.revoked(); len(ids) != 0 {
			s.t.Errorf("revoked: %v", ids)
		}
		s.b.record(tokens.Claim{Token: 36, Holder: "b"})
		for range 2 {
			v := s.a.beat()
			if len(v.Revoked) != 1 || v.Revoked[0].ID != mine.Grant.ID || v.Revoked[0].Resource != res || v.Revoked[0].Token != 36 || v.Revoked[0].Holder != "b" {
				s.t.Fatalf("%+v", v.Revoked)
			}
		}
		if ids := s.b.revoked(); len(ids) != 0 {
			s.t.Errorf("the other's view has %v", ids)
		}
		s.b.token(37)
		if v := s.a.beat(); len(v.Revoked) != 1 || v.Revoked[0].Token != 37 {
			s.t.Errorf("what is recorded now: %+v", v.Revoked)
		}
		if err := s.a.Remove(bg, mine.Grant.ID); err != nil {
			s.t.Fatal(err)
		}
		if ids := s.a.revoked(); len(ids) != 0 {
			s.t.Errorf("removed, and still %v", ids)
		}
	}},
	{"a grant that took the place of a revoked one is revoked anew by the next raise only", func(s *storeTest) {
		s.a.token(34)
		s.b.token(35)
		next := s.a.token(36)
		if ids := s.a.revoked(); len(ids) != 0 {
			s.t.Errorf("revoked: %v", ids)
		}
		s.b.token(37)
		if ids := s.a.revoked(); !slices.Equal(ids, []tokens.GrantID{next.Grant.ID}) {
			s.t.Errorf("revoked: %v; want %d", ids, next.Grant.ID)
		}
	}},
	{"remove goes by ids: one that is gone or was replaced is no error, and takes nothing else", func(s *storeTest) {
		first := s.a.token(34)
		second := s.a.token(34)
		if err := s.a.Remove(bg, first.Grant.ID, 1<<40); err != nil {
			s.t.Fatal(err)
		}
		s.mustStand([]fleet.GrantRef{ref(s.a, second)}, second)
		if err := s.a.Remove(bg); err != nil {
			s.t.Errorf("nothing to remove: %v", err)
		}
		if err := s.a.Remove(bg, second.Grant.ID); err != nil {
			s.t.Fatal(err)
		}
		s.mustStand([]fleet.GrantRef{ref(s.a, second)})
		s.mustWaitFor(s.b.token(35).Lower)
	}},
	{"a grant whose id nobody was told, is removed by the id in the view", func(s *storeTest) {
		s.a.token(34) // as after an answer that was lost
		fresh := s.engine.Store(s.t)
		defer fresh.Close()
		raise := s.b.token(35)
		v, err := fresh.Beat(bg, s.a.incarnation)
		if err != nil || len(v.Revoked) != 1 {
			s.t.Fatalf("%+v, %v", v, err)
		}
		if err := fresh.Remove(bg, v.Revoked[0].ID); err != nil {
			s.t.Fatal(err)
		}
		s.mustStand(raise.Lower)
	}},
	{"sweep removes what has settled, and forgets the incarnation with the last of it", func(s *storeTest) {
		short := s.a.record(tokens.Claim{Resource: "bucket/a", Token: 1, Settle: time.Minute})
		long := s.a.record(tokens.Claim{Resource: "bucket/b", Token: 1, Settle: 10 * time.Minute})
		longest := s.a.record(tokens.Claim{Resource: "bucket/c", Token: 1, Settle: time.Hour})
		refs := []fleet.GrantRef{
			{ID: short.Grant.ID, Resource: "bucket/a", Incarnation: s.a.incarnation},
			{ID: long.Grant.ID, Resource: "bucket/b", Incarnation: s.a.incarnation},
			{ID: longest.Grant.ID, Resource: "bucket/c", Incarnation: s.a.incarnation},
		}
		other := s.b.token(34)
		if _, err := s.b.Sweep(bg, s.a.incarnation, 24*time.Hour); err != nil {
			s.t.Fatal(err)
		}
		s.mustStand(refs, short, long, longest) // it is alive
		s.end(s.a)
		for _, step := range []struct {
			settled, next time.Duration
			left          []fleet.Recorded
		}{
			{0, time.Minute, []fleet.Recorded{short, long, longest}},
			{time.Minute - time.Millisecond, time.Minute, []fleet.Recorded{short, long, longest}},
			{time.Minute, 10 * time.Minute, []fleet.Recorded{long, longest}},
			{time.Minute, 10 * time.Minute, []fleet.Recorded{long, longest}},
			{30 * time.Minute, time.Hour, []fleet.Recorded{longest}},
		} {
			next, err := s.b.Sweep(bg, s.a.incarnation, step.settled)
			if err != nil || next != step.next {
				s.t.Errorf("settled %v: next %v, %v; want %v", step.settled, next, err, step.next)
			}
			s.mustStand(refs, step.left...)
			if !slices.Contains(s.b.look().Ended, s.a.incarnation) {
				s.t.Fatalf("settled %v: the incarnation is forgotten", step.settled)
			}
		}
		if next, err := s.b.Sweep(bg, s.a.incarnation, time.Hour); err != nil || next != 0 {
			s.t.Errorf("%v, %v", next, err)
		}
		s.mustStand(refs)
		if slices.Contains(s.b.look().Ended, s.a.incarnation) {
			s.t.Error("the incarnation is not forgotten")
		}
		if next, err := s.b.Sweep(bg, s.a.incarnation, time.Hour); err != nil || next != 0 {
			s.t.Errorf("again: %v, %v", next, err)
		}
		s.mustStand([]fleet.GrantRef{ref(s.b, other)}, other)
	}},
	{"a settle time that is no whole unit is never cut short", func(s *storeTest) {
		const odd = time.Minute + 1
		s.a.record(tokens.Claim{Token: 34, Settle: odd})
		s.end(s.a)
		if next, err := s.b.Sweep(bg, s.a.incarnation, time.Minute); err != nil || next < odd {
			s.t.Errorf("%v, %v", next, err)
		}
	}},
	{"an incarnation without grants is ended until it is swept", func(s *storeTest) {
		s.end(s.a)
		if !slices.Contains(s.b.look().Ended, s.a.incarnation) {
			s.t.Error("it is not among the ended ones")
		}
		if next, err := s.b.Sweep(bg, s.a.incarnation, 0); err != nil || next != 0 || slices.Contains(s.b.look().Ended, s.a.incarnation) {
			s.t.Errorf("%v, %v, %+v", next, err, s.b.look())
		}
	}},
	{"a reset takes the token down, starts a generation and leaves all grants to be given back", resetStoreCase},
	{"an incarnation joins with the version of the mappings on record, when those by others are over", func(s *storeTest) {
		old := s.engine.Mapping(s.t)
		s.a.record(tokens.Claim{Token: 34, Settle: time.Minute})
		version := s.engine.Remap(s.t)
		if version == old || s.a.look().Mapping != version {
			s.t.Fatalf("version %d, %d in the view, after %d", version, s.a.look().Mapping, old)
		}
		joins := func(mapping int64, want error) {
			s.t.Helper()
			if _, err := s.b.Join(bg, longLease, mapping); !errors.Is(err, want) {
				s.t.Fatalf("join by %d: %v; want %v", mapping, err, want)
			}
		}
		joins(old, fleet.ErrRemapped)
		joins(version+1000, fleet.ErrRemapped)
		joins(version, fleet.ErrDraining)
		s.end(s.b)
		joins(version, fleet.ErrDraining)
		if _, err := s.a.Sweep(bg, s.b.incarnation, 0); err != nil {
			s.t.Fatal(err)
		}
		joins(version, fleet.ErrDraining)
		s.a.beat() // goes on; that its mapping is an old one is in its view
		s.end(s.a)
		joins(version, fleet.ErrDraining)
		if next, err := s.b.Sweep(bg, s.a.incarnation, 0); err != nil || next != time.Minute {
			s.t.Fatalf("%v, %v", next, err)
		}
		joins(version, fleet.ErrDraining)
		if _, err := s.b.Sweep(bg, s.a.incarnation, time.Minute); err != nil {
			s.t.Fatal(err)
		}
		joins(version, nil)
		joins(version, nil)
	}},
	{"names may hold what a key can", func(s *storeTest) {
		names := []string{
			"b/", "b/ ", "b/%", "b/'", "b/\"; DROP TABLE fences --", "b/\\", "b/_", "b/a/", "b/a//b", "b/\u00e9", "b/e\u0301", "b/\U0010ffff", "b/\xff\xfe", "b/\x00\x01", "b/\n",
			"B/", "b/*", "b/..", fmt.Sprintf("b/%01024d", 7),
		}
		for i, name := range names {
			s.a.record(tokens.Claim{Resource: name, Token: tokens.Token(i + 1)})
			if err := s.a.TouchUpload(bg, name, tokens.Token(i+1)); err != nil {
				s.t.Errorf("upload %q: %v", name, err)
			}
		}
		for i, name := range names {
			s.mustHave(name, tokens.Entry{Token: tokens.Token(i + 1)})
			if got, err := s.b.UploadToken(bg, name); err != nil || got != tokens.Token(i+1) {
				s.t.Errorf("upload %q: %d, %v", name, got, err)
			}
			rec := s.b.record(tokens.Claim{Resource: name, Token: 100})
			if len(rec.Lower) != 1 || rec.Lower[0].Resource != name || rec.Lower[0].Incarnation != s.a.incarnation {
				s.t.Errorf("%q: %+v", name, rec.Lower)
			}
		}
		v := s.a.beat()
		if len(v.Revoked) != len(names) {
			s.t.Fatalf("%d are revoked, of %d", len(v.Revoked), len(names))
		}
		for _, rv := range v.Revoked {
			if !slices.Contains(names, rv.Resource) || rv.Token != 100 {
				s.t.Errorf("revoked: %+v", rv)
			}
			if err := s.a.Remove(bg, rv.ID); err != nil {
				s.t.Error(err)
			}
		}
	}},
	{"a list is in byte order, by prefix, in pages", listStoreCase},
	{"an upload has the highest token that touched it, until it is forgotten", func(s *storeTest) {
		has := func(want tokens.Token) {
			s.t.Helper()
			if got, err := s.b.UploadToken(bg, "u"); err != nil || got != want {
				s.t.Errorf("%d, %v; want %d", got, err, want)
			}
		}
		has(0)
		for _, t := range []tokens.Token{33, 34, 33} {
			if err := s.a.TouchUpload(bg, "u", t); err != nil {
				s.t.Fatal(err)
			}
		}
		has(34)
		for range 2 {
			if err := s.a.ForgetUpload(bg, "u"); err != nil {
				s.t.Fatal(err)
			}
			has(0)
		}
	}},
	{"a hint comes when a grant is revoked and when it is removed", func(s *storeTest) {
		hinted := func(m *member, after func()) {
			s.t.Helper()
			after()
			select {
			case <-m.Hints():
			case <-time.After(10 * time.Second):
				s.t.Error("no hint") // that is no promise; but nothing here is lost
			}
		}
		mine := s.a.token(34)
		hinted(s.a, func() { s.b.token(35) })
		for len(s.b.Hints()) > 0 {
			<-s.b.Hints()
		}
		hinted(s.b, func() {
			if err := s.a.Remove(bg, mine.Grant.ID); err != nil {
				s.t.Fatal(err)
			}
		})
	}},
	{"raises at the same time: each sees every lower grant that was there before it", racingRecords},
	{"two incarnations that record at the same time as they are ended leave nothing behind", recordsAgainstEnd},
}

// unnamedGrants: a token is bound through one instance when others have grants for writers that do not name themselves.
func unnamedGrants(s *storeTest) {
	c := s.open()
	lower := c.token(33)
	unnamed := s.a.token(34)
	s.mustWaitFor(unnamed.Lower, lower)
	if ids := s.a.revoked(); len(ids) != 0 {
		s.t.Errorf("revoked: %v", ids)
	}
	x := tokens.Claim{Token: 34, Holder: "x", Settle: time.Minute}
	first := s.b.record(x)
	s.mustWaitFor(first.Lower, lower, unnamed)
	for range 2 {
		v := s.a.beat()
		if len(v.Revoked) != 1 || v.Revoked[0].ID != unnamed.Grant.ID || v.Revoked[0].Token != 34 || v.Revoked[0].Holder != "x" {
			s.t.Fatalf("%+v", v.Revoked)
		}
	}
	again := s.b.record(x) // in the place of the first, which is of the same holder
	s.mustWaitFor(again.Lower, lower, unnamed)
	if err := s.a.Remove(bg, unnamed.Grant.ID); err != nil {
		s.t.Fatal(err)
	}
	if ids := s.a.revoked(); len(ids) != 0 {
		s.t.Errorf("removed, and still %v", ids)
	}
	other := s.a.record(x)
	s.mustWaitFor(other.Lower, lower) // one with the holder is not lower
	s.mustWaitFor(c.record(x).Lower)
	if ids := s.b.revoked(); len(ids) != 0 {
		s.t.Errorf("the holder's are revoked: %v", ids)
	}
	next := s.b.token(35)
	if len(next.Lower) != 2 {
		s.t.Errorf("a higher token waits for %+v", next.Lower)
	}
}

// ownUnnamedGrant: what was handed out for writers that do not name themselves stands until it is given back, and is asked for like any other.
func ownUnnamedGrant(s *storeTest) {
	own := s.a.token(34)
	other := s.b.token(34)
	x := tokens.Claim{Resource: res, Token: 34, Holder: "x", Settle: time.Minute}
	for range 2 {
		rec, err := s.a.Record(bg, s.a.incarnation, x)
		if err != nil || rec.Own != own.Grant.ID || rec.Grant.ID != 0 || len(rec.Lower) != 0 {
			s.t.Fatalf("%+v, %v; want our own grant %d", rec, err, own.Grant.ID)
		}
		s.mustStand([]fleet.GrantRef{ref(s.a, own), ref(s.b, other)}, own, other)
		s.mustHave(res, tokens.Entry{Token: 34, Holder: "x"})
	}
	for m, rec := range map[*member]fleet.Recorded{s.a: own, s.b: other} {
		if v := m.beat(); len(v.Revoked) != 1 || v.Revoked[0].ID != rec.Grant.ID || v.Revoked[0].Holder != "x" {
			s.t.Errorf("revoked: %+v", v.Revoked)
		}
	}
	_, err := s.a.Record(bg, s.a.incarnation, tokens.Claim{Resource: res, Token: 34})
	var conflict *tokens.ConflictError
	if !errors.As(err, &conflict) || conflict.Bound != "x" {
		s.t.Errorf("without a name: %v", err)
	}
	if err := s.a.Remove(bg, own.Grant.ID); err != nil {
		s.t.Fatal(err)
	}
	bound := s.a.record(x)
	if bound.Own != 0 {
		s.t.Errorf("%+v", bound)
	}
	s.mustWaitFor(bound.Lower, other)

	// A grant without a holder is replaced by a higher token, whatever its holder, and by one of a new generation.
	lower := s.a.record(tokens.Claim{Resource: "bucket/b", Token: 1})
	higher := s.a.record(tokens.Claim{Resource: "bucket/b", Token: 2, Holder: "x"})
	if higher.Own != 0 || higher.Grant.ID <= lower.Grant.ID {
		s.t.Errorf("%+v", higher)
	}
	s.a.record(tokens.Claim{Resource: "bucket/c", Token: 1})
	if _, _, err := s.b.RecordReset(bg, s.b.incarnation, "bucket/c", 1); err != nil {
		s.t.Fatal(err)
	}
	if rec := s.a.record(tokens.Claim{Resource: "bucket/c", Token: 1, Holder: "x", Generation: 1}); rec.Own != 0 {
		s.t.Errorf("%+v", rec)
	}
}

func resetStoreCase(s *storeTest) {
	mine := s.a.record(tokens.Claim{Token: 34, Holder: "a", AccessKey: "AK", Settle: time.Minute})
	other := s.b.record(tokens.Claim{Token: 34, Holder: "a", Settle: time.Minute})
	e, rec, err := s.a.RecordReset(bg, s.a.incarnation, res, 10)
	if err != nil || e.Resource != res || e.Token != 10 || e.Holder != "" || e.Generation != 1 || rec.Grant.ID != mine.Grant.ID {
		s.t.Fatalf("%+v, %+v, %v", e, rec, err)
	}
	s.mustWaitFor(rec.Lower, other)
	s.mustStand([]fleet.GrantRef{ref(s.a, mine), ref(s.b, other)}, mine, other)
	s.mustHave(res, tokens.Entry{Token: 10, Generation: 1})
	for _, m := range []*member{s.a, s.b} {
		if v := m.beat(); len(v.Revoked) != 1 || v.Revoked[0].Generation != 1 || v.Revoked[0].Token != 10 {
			s.t.Errorf("revoked: %+v", v.Revoked)
		}
	}
	for generation, want := range map[int64]bool{0: false, 1: true, 2: false} {
		_, err := s.b.Record(bg, s.b.incarnation, tokens.Claim{Resource: res, Token: 99, Generation: generation})
		var reset *tokens.ResetError
		if want && err != nil || !want && (!errors.As(err, &reset) || reset.Generation != 1) {
			s.t.Errorf("generation %d: %v", generation, err)
		}
	}
	e, rec, err = s.b.RecordReset(bg, s.b.incarnation, res, 0)
	if err != nil || e.Generation != 2 || rec.Grant.ID == 0 {
		s.t.Fatalf("%+v, %+v, %v", e, rec, err)
	}
	s.mustWaitFor(rec.Lower, mine)
	// A grant of an earlier generation is lower, whatever its token.
	low := s.b.record(tokens.Claim{Token: 1, Generation: 2})
	s.mustWaitFor(low.Lower, mine)
	s.mustWaitFor(s.a.record(tokens.Claim{Token: 1, Generation: 2}).Lower)
	if _, rec, err = s.a.RecordReset(bg, s.a.incarnation, "bucket/unknown", 7); err != nil || rec.Grant.ID != 0 || len(rec.Lower) != 0 {
		s.t.Errorf("of one that nobody knew: %+v, %v", rec, err)
	}
	s.mustHave("bucket/unknown", tokens.Entry{Token: 7, Generation: 1})
}

func listStoreCase(s *storeTest) {
	names := []string{"a/1", "a/10", "a/2", "a/\u00e9", "a/\xff", "a0", "b/~", "b/\U0010ffff"}
	for _, n := range []int{3, 6, 0, 2, 5, 7, 1, 4} {
		s.a.record(tokens.Claim{Resource: names[n], Token: tokens.Token(n + 1)})
	}
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          []string
	}{
		{"", "", 100, names},
		{"", "", 3, names[:3]},
		{"a/", "", 100, names[:5]},
		{"a/", "a/10", 1, names[2:3]},
		{"a/\xff", "", 5, names[4:5]},
		{"", "a0", 100, names[6:]},
		{"b/", "a/2", 100, names[6:]},
		{"c", "", 100, nil},
		{"a/", "z", 100, nil},
	} {
		entries, err := s.b.List(bg, c.prefix, c.after, c.limit)
		if err != nil {
			s.t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Resource)
			if i := slices.Index(names, e.Resource); e.Token != tokens.Token(i+1) {
				s.t.Errorf("%+v", e)
			}
		}
		if !slices.Equal(got, c.want) {
			s.t.Errorf("%q after %q: %q; want %q", c.prefix, c.after, got, c.want)
		}
	}
}

// racingRecords has two instances raise at the same time. Whichever comes second must be refused, or told of the other's grant.
func racingRecords(s *storeTest) {
	for round := range 40 {
		resource := fmt.Sprintf("bucket/race/%d", round)
		var recs [2]fleet.Recorded
		var errs [2]error
		var race sync.WaitGroup
		for i, m := range []*member{s.a, s.b} {
			race.Go(func() {
				recs[i], errs[i] = m.Record(bg, m.incarnation, tokens.Claim{Resource: resource, Token: tokens.Token(i + 1), Settle: time.Minute})
			})
		}
		race.Wait()
		if errs[1] != nil {
			s.t.Fatalf("the higher token: %v", errs[1])
		}
		var stale *tokens.StaleError
		switch told := len(recs[1].Lower) == 1 && recs[1].Lower[0].ID == recs[0].Grant.ID; {
		case errs[0] == nil && told && recs[0].Grant.ID < recs[1].Grant.ID:
		case errors.As(errs[0], &stale) && len(recs[1].Lower) == 0:
		default:
			s.t.Fatalf("both may write, and neither knows: %+v, %v; %+v", recs[0], errs[0], recs[1])
		}
	}
}

// recordsAgainstEnd ends an incarnation while it records. When that has returned, every grant of it is there to be seen, and none comes.
func recordsAgainstEnd(s *storeTest) {
	for range 10 {
		m := s.open()
		var recorded []fleet.Recorded
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 1000 {
				rec, err := m.Record(bg, m.incarnation, tokens.Claim{Resource: fmt.Sprintf("bucket/end/%d/%d", m.incarnation, i), Token: 1})
				if err != nil {
					if !errors.Is(err, fleet.ErrEnded) {
						s.t.Errorf("record: %v", err)
					}
					return
				}
				recorded = append(recorded, rec)
			}
		}()
		time.Sleep(5 * time.Millisecond)
		s.end(m)
		entries, err := s.a.List(bg, fmt.Sprintf("bucket/end/%d/", m.incarnation), "", 2000)
		if err != nil {
			s.t.Fatal(err)
		}
		<-done
		if len(entries) < len(recorded) {
			s.t.Fatalf("%d records were there when it had ended, %d afterwards", len(entries), len(recorded))
		}
		if _, err := s.a.Sweep(bg, m.incarnation, time.Hour); err != nil {
			s.t.Fatal(err)
		}
		var refs []fleet.GrantRef
		for i, rec := range recorded {
			refs = append(refs, fleet.GrantRef{ID: rec.Grant.ID, Resource: fmt.Sprintf("bucket/end/%d/%d", m.incarnation, i), Incarnation: m.incarnation})
		}
		if len(refs) > 0 {
			s.mustStand(refs[max(0, len(refs)-50):])
		}
	}
}
