package tokens_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/tokens"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A memory is a registry that forgets, and that a test can hold up. Whether drivers keep their promises is tokenstest's affair.
type memory struct {
	mu          sync.Mutex
	entries     map[string]tokens.Entry // guarded by mu
	incarnation uint64                  // guarded by mu
	raises      int                     // guarded by mu
	hold        chan struct{}           // where it is set, an answer of Raise waits for it
	holdFor     func(tokens.Claim) bool // which answers do; nil: all
	err         error                   // guarded by mu
}

func newMemory() *memory {
	return &memory{entries: make(map[string]tokens.Entry), incarnation: 1}
}

func (m *memory) Raise(ctx context.Context, c tokens.Claim) (tokens.Grant, error) {
	g, err := m.record(c)
	if m.hold != nil && err == nil && (m.holdFor == nil || m.holdFor(c)) {
		select {
		case <-m.hold:
		case <-ctx.Done():
			return g, ctx.Err()
		}
	}
	return g, err
}

func (m *memory) record(c tokens.Claim) (g tokens.Grant, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.raises++
	e := m.entries[c.Resource]
	switch {
	case m.err != nil:
		return g, m.err
	case c.Token < e.Token:
		return g, &tokens.StaleError{Resource: c.Resource, Token: c.Token, Highest: e.Token, Holder: e.Holder}
	case c.Token == e.Token && e.Holder != "" && c.Holder != e.Holder:
		return g, &tokens.ConflictError{Resource: c.Resource, Token: c.Token, Holder: c.Holder, Bound: e.Holder}
	}
	m.entries[c.Resource] = tokens.Entry{Resource: c.Resource, Token: c.Token, Holder: c.Holder}
	id := tokens.GrantID(m.raises)
	if c.Settle == 0 {
		id = 0
	}
	return tokens.Grant{ID: id, Token: c.Token, Holder: c.Holder, Settle: c.Settle, Incarnation: m.incarnation, Raised: c.Token > e.Token}, nil
}

func (m *memory) Lookup(_ context.Context, resource string) (tokens.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[resource]
	e.Resource = resource
	return e, m.err
}

func (m *memory) Reset(_ context.Context, resource string, t tokens.Token) (tokens.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := tokens.Entry{Resource: resource, Token: t, Generation: m.entries[resource].Generation + 1}
	m.entries[resource] = e
	return e, m.err
}

func (m *memory) Incarnation() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.incarnation
}

func (m *memory) TouchUpload(context.Context, string, tokens.Token) error   { return nil }
func (m *memory) UploadToken(context.Context, string) (tokens.Token, error) { return 0, nil }
func (m *memory) ForgetUpload(context.Context, string) error                { return nil }
func (m *memory) GiveBack(context.Context, ...tokens.GrantID) error         { return nil }
func (m *memory) Close() error                                              { return nil }
func (m *memory) List(context.Context, string, string, int) ([]tokens.Entry, error) {
	return nil, nil
}

func (m *memory) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *memory) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.raises
}

func claim(t tokens.Token) tokens.Claim {
	return tokens.Claim{Resource: "bucket/a", Token: t, Settle: time.Minute}
}

func admit(f *tokens.Fence, c tokens.Claim) (*tokens.Write, error) {
	w, err := f.Begin(context.Background(), c)
	if err != nil {
		return nil, err
	}
	if err := w.Admit(context.Background()); err != nil {
		w.End()
		return nil, err
	}
	return w, nil
}

func inBubble(t *testing.T, o tokens.Options, run func(t *testing.T, m *memory, f *tokens.Fence)) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		f := tokens.NewFence(m, o)
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = f.Close(ctx)
		}()
		run(t, m, f)
	})
}

func mustWrite(t *testing.T, f *tokens.Fence, n tokens.Token) {
	t.Helper()
	w, err := admit(f, claim(n))
	if err != nil {
		t.Fatalf("token %d: %v", n, err)
	}
	w.Done()
	w.End()
}

func mustBeStale(t *testing.T, err error, highest tokens.Token) {
	t.Helper()
	var stale *tokens.StaleError
	if !errors.As(err, &stale) || stale.Highest != highest {
		t.Fatalf("%v; want the refusal of a token below %d", err, highest)
	}
}

func TestStory(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		mustWrite(t, f, 34)
		_, err := admit(f, claim(33))
		mustBeStale(t, err, 34)
		mustWrite(t, f, 34)
		mustWrite(t, f, 35)
	})
}

func TestSteadyStateAsksNobody(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		for range 100 {
			mustWrite(t, f, 34)
		}
		if n := m.count(); n != 1 {
			t.Errorf("100 writes with one token raised %d times", n)
		}
	})
}

func TestEvictionSparesAPendingRaise(t *testing.T) {
	inBubble(t, tokens.Options{Idle: time.Second, RaiseWait: time.Hour}, func(t *testing.T, m *memory, f *tokens.Fence) {
		m.hold = make(chan struct{})
		old := make(chan *tokens.Write)
		go func() {
			w, err := admit(f, claim(1))
			if err != nil {
				t.Error(err)
			}
			old <- w
		}()
		time.Sleep(time.Minute) // sweeps pass while the raise is under way
		close(m.hold)
		w := <-old // past the gate, not settled

		start := time.Now()
		time.AfterFunc(30*time.Second, func() { w.Done(); w.End() })
		mustWrite(t, f, 2)
		if d := time.Since(start); d < 30*time.Second {
			t.Errorf("broken promise: token 2 was answered after %v, with a write of token 1 still past the gate", d)
		}
	})
}

func TestAGrantFromBeforeALostLeaseIsNone(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		m.hold = make(chan struct{})
		result := make(chan error)
		go func() {
			_, err := admit(f, claim(1))
			result <- err
		}()
		synctest.Wait()
		// Recorded, but the answer is late. Meanwhile the lease is lost, another instance raises and writes, and the lease comes back.
		m.set(func() {
			m.incarnation = 2
			m.entries["bucket/a"] = tokens.Entry{Resource: "bucket/a", Token: 2}
		})
		close(m.hold)
		err := <-result
		if err == nil {
			t.Fatal("broken promise: token 1 passed the gate after another instance had answered token 2")
		}
		mustBeStale(t, err, 2)
	})
}

func TestWithoutALeaseNobodyPasses(t *testing.T) {
	inBubble(t, tokens.Options{RaiseWait: time.Second}, func(t *testing.T, m *memory, f *tokens.Fence) {
		mustWrite(t, f, 34)
		m.set(func() { m.incarnation, m.err = 0, errors.New("lease lost") })
		if _, err := admit(f, claim(34)); !errors.Is(err, tokens.ErrUnavailable) {
			t.Errorf("%v; want it unavailable", err)
		}
	})
}

func TestRegistryOutOfReach(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		mustWrite(t, f, 34)
		m.set(func() { m.err = errors.New("no disk") })
		mustWrite(t, f, 34) // the right it has, it keeps
		if _, err := admit(f, claim(35)); !errors.Is(err, tokens.ErrUnavailable) {
			t.Errorf("%v; want it unavailable", err)
		}
		_, err := admit(f, claim(34))
		mustBeStale(t, err, 35) // 35 was seen
		m.set(func() { m.err = nil })
		mustWrite(t, f, 35)
	})
}

func TestHolders(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		as := func(n tokens.Token, holder string) error {
			c := claim(n)
			c.Holder = holder
			w, err := admit(f, c)
			if err == nil {
				w.Done()
				w.End()
			}
			return err
		}
		for _, step := range []struct {
			token  tokens.Token
			holder string
			bound  string // of the conflict, "" for none
		}{{34, "", ""}, {34, "a", ""}, {34, "a", ""}, {34, "b", "a"}, {34, "", "a"}, {35, "b", ""}, {35, "a", "b"}, {36, "", ""}, {36, "b", ""}} {
			err := as(step.token, step.holder)
			var conflict *tokens.ConflictError
			errors.As(err, &conflict)
			if (step.bound == "") != (err == nil) || (conflict != nil && conflict.Bound != step.bound) {
				t.Errorf("token %d of %q: %v", step.token, step.holder, err)
			}
		}
	})
}

// TestAnswersThatOvertake: the raise that bound the token to a holder is answered before the one that did not.
func TestAnswersThatOvertake(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		m.hold = make(chan struct{})
		m.holdFor = func(c tokens.Claim) bool { return c.Holder == "" }
		nameless := claim(5)
		nameless.Settle = 0
		bound := nameless
		bound.Holder = "a"
		result := make(chan error, 1)
		go func() {
			_, err := admit(f, nameless)
			result <- err
		}()
		synctest.Wait()
		w, err := admit(f, bound)
		if err != nil {
			t.Fatal(err)
		}
		w.Done()
		w.End()
		close(m.hold)
		var conflict *tokens.ConflictError
		if err := <-result; !errors.As(err, &conflict) || conflict.Bound != "a" {
			t.Errorf("the nameless writer: %v; want a conflict with a", err)
		}
		if _, err := admit(f, nameless); !errors.As(err, &conflict) {
			t.Errorf("another one: %v; want a conflict with a", err)
		}
	})
}

func TestMaxAdvance(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		within := func(n tokens.Token) error {
			c := claim(n)
			c.MaxAdvance = 10
			w, err := admit(f, c)
			if err == nil {
				w.Done()
				w.End()
			}
			return err
		}
		if err := within(1000); err != nil {
			t.Fatalf("the first token is free: %v", err)
		}
		var tooFar *tokens.TooFarError
		if err := within(1011); !errors.As(err, &tooFar) || tooFar.Highest != 1000 || tooFar.MaxAdvance != 10 {
			t.Fatal(err)
		}
		if err := within(tokens.Max); !errors.As(err, &tooFar) {
			t.Fatal(err)
		}
		if err := within(1000); err != nil {
			t.Fatalf("the mark moved: %v", err)
		}
		// Another instance has raised it meanwhile.
		m.set(func() { m.entries["bucket/a"] = tokens.Entry{Token: 1010} })
		if err := within(1020); err != nil {
			t.Fatal(err)
		}
		// A token that is only knocked with, and not recorded, does not open the way for a higher one.
		m.set(func() { m.err = errors.New("no disk") })
		if err := within(1030); !errors.Is(err, tokens.ErrUnavailable) {
			t.Fatal(err)
		}
		m.set(func() { m.err = nil })
		if err := within(1040); !errors.As(err, &tooFar) || tooFar.Highest != 1020 {
			t.Fatal(err)
		}
	})
}

// TestMaxAdvanceIsJudgedAtTheGate: when the upload began there was no token on record, and any first one was free.
func TestMaxAdvanceIsJudgedAtTheGate(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		far := claim(1 << 60)
		far.MaxAdvance = 10
		slow, err := f.Begin(context.Background(), far)
		if err != nil {
			t.Fatal(err)
		}
		defer slow.End()
		mustWrite(t, f, 5)
		var tooFar *tokens.TooFarError
		if err := slow.Admit(context.Background()); !errors.As(err, &tooFar) || tooFar.Highest != 5 {
			t.Errorf("%v; want it too far", err)
		}
		mustWrite(t, f, 5)
	})
}

func TestMisuseIsLoud(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		w, err := admit(f, claim(1))
		if err != nil {
			t.Fatal(err)
		}
		w.Done()
		for name, misuse := range map[string]func(){
			"settled twice": w.Done, "failed after done": w.Failed, "in doubt after done": func() { w.InDoubt() },
			"admitted twice": func() { _ = w.Admit(context.Background()) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: no panic", name)
					}
				}()
				misuse()
			}()
		}
		w.End()
		w.End()
		if s := f.Stats(); s.Open != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	inBubble(t, tokens.Options{Resources: 64 * 4}, func(t *testing.T, m *memory, f *tokens.Fence) {
		for i := range 10_000 {
			c := claim(1)
			c.Resource = "bucket/" + string(rune('a'+i%26)) + time.Duration(i).String()
			w, err := admit(f, c)
			if err != nil {
				t.Fatal(err)
			}
			w.Done()
			w.End()
		}
		if n := f.Stats().Resources; n > 64*5 {
			t.Errorf("%d resources in memory", n)
		}
	})
}

// TestModel runs 64 writers against one fence. At every effect it asks a model of one line: nothing below what was answered.
func TestModel(t *testing.T) {
	m := newMemory()
	f := tokens.NewFence(m, tokens.Options{Idle: time.Millisecond, RaiseWait: time.Minute})
	var mu sync.Mutex
	answered := map[string]tokens.Token{}
	var writers sync.WaitGroup
	for i := range 64 {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 0))
			for n := range 500 {
				c := tokens.Claim{Resource: string(rune('a' + rnd.IntN(8))), Token: tokens.Token(n/4 + rnd.IntN(5)), Settle: time.Nanosecond}
				w, err := f.Begin(context.Background(), c)
				if err != nil {
					continue
				}
				if w.Admit(context.Background()) == nil {
					mu.Lock()
					if c.Token < answered[c.Resource] {
						t.Errorf("token %d took effect on %s after %d was answered", c.Token, c.Resource, answered[c.Resource])
					}
					mu.Unlock()
					w.Done()
					mu.Lock()
					answered[c.Resource] = max(answered[c.Resource], c.Token)
					mu.Unlock()
				}
				w.End()
			}
		})
	}
	writers.Wait()
	if err := f.Close(context.Background()); err != nil {
		t.Error(err)
	}
	for resource, highest := range answered {
		if highest < 120 {
			t.Errorf("%s came to %d only: the writers were refused for no reason", resource, highest)
		}
	}
}

func BenchmarkSteadyWrite(b *testing.B) {
	f := tokens.NewFence(newMemory(), tokens.Options{})
	defer f.Close(context.Background())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			w, err := admit(f, claim(34))
			if err != nil {
				b.Fatal(err)
			}
			w.Done()
			w.End()
		}
	})
}

// TestBatchesDoNotDeadlock: 32 requests write to the same resources in opposite orders. Each passes whole or is refused whole, and
// while it is past the gate nobody with a higher token is told yes on any of its resources.
func TestBatchesDoNotDeadlock(t *testing.T) {
	m := newMemory()
	f := tokens.NewFence(m, tokens.Options{RaiseWait: time.Minute})
	var mu sync.Mutex
	answered := map[string]tokens.Token{}
	resources := []string{"a", "b", "c", "d"}
	var batches sync.WaitGroup
	passed := 0
	for i := range 32 {
		batches.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range 100 {
				c := tokens.Claim{Token: tokens.Token(n + rnd.IntN(5)), Settle: time.Nanosecond}
				var writes []*tokens.Write
				for _, k := range rnd.Perm(len(resources)) {
					c.Resource = resources[k]
					if w, err := f.Begin(context.Background(), c); err == nil {
						writes = append(writes, w)
					}
				}
				failed, err := tokens.AdmitAll(context.Background(), writes)
				if err == nil && failed == nil {
					mu.Lock()
					passed++
					for _, w := range writes {
						if c.Token < answered[w.Claim().Resource] {
							t.Errorf("token %d took effect on %s after %d was answered", c.Token, w.Claim().Resource, answered[w.Claim().Resource])
						}
					}
					mu.Unlock()
					for _, w := range writes {
						w.Done()
					}
					mu.Lock()
					for _, w := range writes {
						answered[w.Claim().Resource] = max(answered[w.Claim().Resource], c.Token)
					}
					mu.Unlock()
				}
				for _, w := range writes {
					w.End()
				}
			}
		})
	}
	batches.Wait()
	if err := f.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if passed < 100 || f.Stats().Open != 0 {
		t.Errorf("%d batches passed, %+v", passed, f.Stats())
	}
}
