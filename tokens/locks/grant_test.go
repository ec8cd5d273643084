package locks_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ttl gives whole milliseconds where it is divided.
const ttl = 27 * time.Second

// A fake is a service with one lock, which is always free, and its one hold. Renew and Release do as they are told.
type fake struct {
	renew   func(n int, ctx context.Context) error // the nth renewal; nil: done
	release func(ctx context.Context) error
	acquire func(ctx context.Context) error

	mu       sync.Mutex // guards the rest
	began    time.Time
	renewals []time.Duration // when they began, since the lock was taken
	releases int
}

func (f *fake) Close() error { return nil }

func (f *fake) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	if f.acquire != nil {
		if err := f.acquire(ctx); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.began = time.Now()
	return f, nil
}

func (f *fake) Token() tokens.Token { return 34 }
func (f *fake) TakenOver() bool     { return true }

func (f *fake) Renew(ctx context.Context) error {
	f.mu.Lock()
	f.renewals = append(f.renewals, time.Since(f.began))
	n := len(f.renewals)
	f.mu.Unlock()
	if f.renew == nil {
		return ctx.Err()
	}
	return f.renew(n, ctx)
}

func (f *fake) Release(ctx context.Context) error {
	f.mu.Lock()
	f.releases++
	f.mu.Unlock()
	if f.release == nil {
		return ctx.Err()
	}
	return f.release(ctx)
}

func (f *fake) calls() (renewals []time.Duration, releases int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Duration(nil), f.renewals...), f.releases
}

// A world has the virtual time of its bubble, and jumps: those of a machine that slept, and those of a clock that was set.
type world struct {
	start time.Time

	mu         sync.Mutex // guards the rest
	boot, wall time.Duration
}

func (w *world) Boot() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.start) + w.boot
}

func (w *world) Wall() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Round(0).Add(w.wall)
}

func (w *world) jump(boot, wall time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boot += boot
	w.wall += wall
}

// inBubble runs a test over a fake in virtual time. The bubble ends only when every goroutine in it has.
func inBubble(t *testing.T, f *fake, run func(t *testing.T, l *locks.Lock, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{start: time.Now()}
		run(t, locks.New(f, locks.Options{TTL: ttl, Holder: "me", Clock: w}), w)
	})
}

func acquire(t *testing.T, l *locks.Lock) *locks.Grant {
	t.Helper()
	g, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func isLost(g *locks.Grant) bool {
	synctest.Wait()
	select {
	case <-g.Lost():
		return true
	default:
		return false
	}
}

// mustBeLost holds that a grant was lost after so long, and why.
func mustBeLost(t *testing.T, g *locks.Grant, f *fake, after time.Duration, why ...error) {
	t.Helper()
	select {
	case <-g.Lost():
	case <-time.After(10 * ttl):
		t.Errorf("it was not lost")
		_ = g.Release(context.Background())
		return
	}
	if took := time.Since(f.began); took != after {
		t.Errorf("it was lost after %s, not after %s", took, after)
	}
	err := g.Err()
	for _, e := range append(why, locks.ErrLost) {
		if !errors.Is(err, e) {
			t.Errorf("it was lost for: %v; want %v in it", err, e)
		}
	}
	if err := g.Release(context.Background()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("released after it was lost: %v", err)
	}
	if _, n := f.calls(); n != 1 {
		t.Errorf("released %d times at the service: it may still be ours there", n)
	}
}

// TestHeartbeat: a renewal when it is taken, then one every third of the TTL, until it is released; none after that.
func TestHeartbeat(t *testing.T) {
	f := &fake{}
	inBubble(t, f, func(t *testing.T, l *locks.Lock, _ *world) {
		g := acquire(t, l)
		if g.Token() != 34 || g.Holder() != "me" || !g.TakenOver() {
			t.Errorf("token %d, holder %s, taken over %v", g.Token(), g.Holder(), g.TakenOver())
		}
		time.Sleep(10*ttl + time.Second)
		if isLost(g) || g.Err() != nil {
			t.Fatalf("lost: %v", g.Err())
		}
		if err := g.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl)
		renewals, releases := f.calls()
		if len(renewals) != 31 || releases != 1 {
			t.Fatalf("%d renewals in ten TTLs, %d releases", len(renewals), releases)
		}
		for i, at := range renewals {
			if at != time.Duration(i)*ttl/3 {
				t.Errorf("renewal %d after %s", i, at)
			}
		}
		if isLost(g) {
			t.Error("to release is not to lose")
		}
	})
}

// TestOutlivesItsContext: the context of Acquire is for the waiting alone.
func TestOutlivesItsContext(t *testing.T) {
	f := &fake{}
	inBubble(t, f, func(t *testing.T, l *locks.Lock, _ *world) {
		ctx, cancel := context.WithCancel(t.Context())
		g, err := l.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(3*ttl + time.Second)
		if renewals, _ := f.calls(); isLost(g) || len(renewals) != 10 {
			t.Errorf("renewed at %v: %v", renewals, g.Err())
		}
		if err := g.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFailedRenewals are tried again every ninth of the TTL, until our own deadline, a tenth of the TTL before the service's.
func TestFailedRenewals(t *testing.T) {
	down := errors.New("the service is down")
	f := &fake{renew: func(n int, _ context.Context) error {
		if n > 2 {
			return down
		}
		return nil
	}}
	inBubble(t, f, func(t *testing.T, l *locks.Lock, _ *world) {
		g := acquire(t, l)
		second := ttl / 3 // when the last one succeeded began
		mustBeLost(t, g, f, second+ttl-ttl/10, down)
		renewals, _ := f.calls()
		if len(renewals) < 4 {
			t.Fatalf("renewed at %v", renewals)
		}
		for i, at := range renewals[2:] {
			if want := 2*ttl/3 + time.Duration(i)*ttl/9; at != want {
				t.Errorf("after a failure it was renewed after %s, not after %s", at, want)
			}
		}
	})
}

// TestRecovered: failures that end before the deadline are forgotten, and it is renewed as before.
func TestRecovered(t *testing.T) {
	f := &fake{renew: func(n int, _ context.Context) error {
		if n == 2 || n == 3 {
			return errors.New("for a while")
		}
		return nil
	}}
	inBubble(t, f, func(t *testing.T, l *locks.Lock, w *world) {
		g := acquire(t, l)
		time.Sleep(5 * ttl)
		if isLost(g) {
			t.Fatal(g.Err())
		}
		renewals, _ := f.calls()
		for i, want := range []time.Duration{0, ttl / 3, ttl/3 + ttl/9, ttl/3 + 2*ttl/9, 2*ttl/3 + 2*ttl/9, ttl + 2*ttl/9} {
			if renewals[i] != want {
				t.Errorf("renewal %d after %s, not after %s", i, renewals[i], want)
			}
		}
		w.jump(ttl, ttl)
		<-g.Lost()
		if strings.Contains(g.Err().Error(), "for a while") {
			t.Errorf("an old failure is told as the reason: %v", g.Err())
		}
		_ = g.Release(t.Context())
	})
}

// TestNoAnswer: a renewal that is not answered is given up after a third of the TTL, and never goes on beyond the deadline.
func TestNoAnswer(t *testing.T) {
	f := &fake{renew: func(n int, ctx context.Context) error {
		if n == 1 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	inBubble(t, f, func(t *testing.T, l *locks.Lock, _ *world) {
		mustBeLost(t, acquire(t, l), f, ttl-ttl/10+time.Millisecond, context.DeadlineExceeded)
		if renewals, _ := f.calls(); len(renewals) != 3 || renewals[2] != 2*ttl/3+ttl/9 {
			t.Errorf("renewed at %v", renewals)
		}
	})
}

// TestTaken: a service that says that it is lost is believed at once.
func TestTaken(t *testing.T) {
	f := &fake{renew: func(n int, _ context.Context) error {
		if n == 3 {
			return locks.ErrLost
		}
		return nil
	}}
	inBubble(t, f, func(t *testing.T, l *locks.Lock, _ *world) {
		mustBeLost(t, acquire(t, l), f, 2*ttl/3)
	})
}

// TestPaused: who slept, or finds that the time of day has gone on without him, has lost it, whatever the service would say. A clock that was
// set back changes nothing.
func TestPaused(t *testing.T) {
	for name, jump := range map[string]struct {
		boot, wall time.Duration
		lost       bool
	}{
		"machine that slept":                 {boot: ttl, wall: ttl, lost: true},
		"virtual machine that was paused":    {wall: ttl, lost: true},
		"clock of the kernel alone":          {boot: ttl, lost: true},
		"slept for less":                     {boot: ttl / 2, wall: ttl / 2},
		"set back":                           {wall: -time.Hour},
		"slept, and was set back afterwards": {boot: ttl, wall: -time.Hour, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			inBubble(t, f, func(t *testing.T, l *locks.Lock, w *world) {
				g := acquire(t, l)
				time.Sleep(time.Second)
				w.jump(jump.boot, jump.wall)
				if jump.lost {
					mustBeLost(t, g, f, ttl/3)
					if !strings.Contains(g.Err().Error(), "stood still") {
						t.Errorf("it was lost for: %v", g.Err())
					}
					if renewals, _ := f.calls(); len(renewals) != 1 {
						t.Errorf("it was renewed after that: %v", renewals)
					}
					return
				}
				time.Sleep(2 * ttl)
				if isLost(g) {
					t.Error(g.Err())
				}
				if err := g.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestPausedInARenewal: the renewal was done, and its TTL was over before we saw the answer.
func TestPausedInARenewal(t *testing.T) {
	var at *world
	f := &fake{renew: func(n int, _ context.Context) error {
		if n == 2 {
			at.jump(ttl, ttl)
		}
		return nil
	}}
	inBubble(t, f, func(t *testing.T, l *locks.Lock, w *world) {
		at = w
		mustBeLost(t, acquire(t, l), f, ttl/3+time.Millisecond)
	})
}

// TestLateAnswer: a lock whose first renewal took longer than it lasts is given back.
func TestLateAnswer(t *testing.T) {
	var at *world
	for name, f := range map[string]*fake{
		"late":     {renew: func(int, context.Context) error { at.jump(ttl, 0); return nil }},
		"none":     {renew: func(_ int, ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
		"lost":     {renew: func(int, context.Context) error { return locks.ErrLost }},
		"an error": {renew: func(int, context.Context) error { return errors.New("down") }, release: func(context.Context) error { return errors.New("down") }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, f, func(t *testing.T, l *locks.Lock, w *world) {
				at = w
				g, err := l.Acquire(t.Context())
				if g != nil || err == nil || !strings.Contains(err.Error(), "could not be kept") {
					t.Errorf("%v, %v", g, err)
				}
				if name == "late" && !errors.Is(err, locks.ErrLost) {
					t.Errorf("%v is not ErrLost", err)
				}
				if took := time.Since(f.began); took > ttl {
					t.Errorf("it took %s", took)
				}
				if _, releases := f.calls(); releases != 1 {
					t.Errorf("%d releases", releases)
				}
			})
		})
	}
}

// TestGivenUp: who gives up gets the cause, whether the lock was won in the same moment or not; then it is given back.
func TestGivenUp(t *testing.T) {
	cause := errors.New("no longer wanted")
	var cancel context.CancelCauseFunc
	for name, c := range map[string]struct {
		f        *fake
		releases int
	}{
		"while it waits": {&fake{acquire: func(ctx context.Context) error { cancel(cause); return context.Cause(ctx) }}, 0},
		"when it is won": {&fake{renew: func(_ int, ctx context.Context) error { cancel(cause); return ctx.Err() }}, 1},
		"and renewed":    {&fake{renew: func(int, context.Context) error { cancel(cause); return nil }}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c.f.release = func(ctx context.Context) error {
				if err := ctx.Err(); err != nil {
					t.Errorf("it was given back with a context that had ended: %v", err)
				}
				return nil
			}
			inBubble(t, c.f, func(t *testing.T, l *locks.Lock, _ *world) {
				var ctx context.Context
				ctx, cancel = context.WithCancelCause(t.Context())
				if g, err := l.Acquire(ctx); g != nil || !errors.Is(err, cause) {
					t.Errorf("%v, %v", g, err)
				}
				if _, releases := c.f.calls(); releases != c.releases {
					t.Errorf("%d releases, not %d", releases, c.releases)
				}
			})
		})
	}
}

// TestRelease: it ends a renewal that is under way, may come twice, from two goroutines, and again after one that failed.
func TestRelease(t *testing.T) {
	down := errors.New("down")
	var running int
	f := &fake{
		renew: func(n int, ctx context.Context) error {
			if n == 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		},
	}
	f.release = func(ctx context.Context) error {
		running++
		defer func() { running-- }()
		if running > 1 {
			t.Error("two releases at once")
		}
		time.Sleep(time.Second)
		if _, n := f.calls(); n == 1 {
			return down
		}
		return nil
	}
	inBubble(t, f, func(t *testing.T, l *locks.Lock, _ *world) {
		g := acquire(t, l)
		time.Sleep(ttl/3 + time.Second)
		began := time.Now()
		if err := g.Release(t.Context()); !errors.Is(err, down) {
			t.Error(err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it waited %s for a renewal that nobody needs", took-time.Second)
		}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if err := g.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if isLost(g) || g.Err() != nil {
			t.Error("it was not lost")
		}
	})
}

// TestReleasedTooLate: the service says that it was over, which we had not noticed.
func TestReleasedTooLate(t *testing.T) {
	f := &fake{release: func(context.Context) error { return locks.ErrLost }}
	inBubble(t, f, func(t *testing.T, l *locks.Lock, _ *world) {
		if err := acquire(t, l).Release(t.Context()); !errors.Is(err, locks.ErrLost) {
			t.Error(err)
		}
	})
}

// TestBadHolder: a name that the proxy would refuse is refused before the lock is taken.
func TestBadHolder(t *testing.T) {
	f := &fake{acquire: func(context.Context) error { t.Error("it was asked for"); return nil }}
	if _, err := locks.New(f, locks.Options{Holder: "two words"}).Acquire(t.Context()); err == nil {
		t.Error("it was taken")
	}
}

func TestNewHolder(t *testing.T) {
	one, other := locks.NewHolder(), locks.NewHolder()
	if _, err := tokens.ParseHolder(one); err != nil || one == other {
		t.Errorf("%q, %q, %v", one, other, err)
	}
}
