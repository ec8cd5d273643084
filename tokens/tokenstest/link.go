package tokenstest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// A link is one instance's way to its store, on which everything can happen that happens on a network and in an engine: a call is lost, or takes
// effect and its answer is lost, or takes effect long after its caller has given up.
type link struct {
	fleet.Store
	hints chan struct{}
	ended chan struct{} // closed with the link

	mu        sync.Mutex
	cut       chan struct{}           // closed when the link is whole again; nil while it is; guarded by mu
	paused    chan struct{}           // closed when the process goes on; nil while it does; guarded by mu
	faults    func(call string) fault // guarded by mu
	dropHints bool                    // guarded by mu
	calls     map[string]int          // guarded by mu
	late      map[string]int          // calls that took effect when their caller had given up; guarded by mu
}

// A fault is what happens to one call.
type fault struct {
	before, after time.Duration // until it takes effect, and from then to the answer
	lost          bool          // it never takes effect, and fails when its time is over
	unanswered    bool          // it takes effect, and fails when its time is over
}

var errBroken = errors.New("broken on purpose")

func newLink(s fleet.Store) *link {
	l := &link{Store: s, hints: make(chan struct{}, 1), ended: make(chan struct{}), calls: map[string]int{}, late: map[string]int{}}
	go l.passHints()
	return l
}

func (l *link) passHints() {
	for {
		select {
		case <-l.Store.Hints():
		case <-l.ended:
			return
		}
		l.mu.Lock()
		drop := l.dropHints || l.cut != nil || l.paused != nil
		l.mu.Unlock()
		if !drop {
			select {
			case l.hints <- struct{}{}:
			default:
			}
		}
	}
}

// set changes the link.
func (l *link) set(f func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

// partition cuts the link: calls are lost until it is mended.
func (l *link) partition() {
	l.set(func(l *link) {
		if l.cut == nil {
			l.cut = make(chan struct{})
		}
	})
}

func (l *link) mend() {
	l.set(func(l *link) {
		if l.cut != nil {
			close(l.cut)
			l.cut = nil
		}
		l.faults, l.dropHints = nil, false
	})
}

// fail has these calls meet a fault, and all others none.
func (l *link) fail(f fault, calls ...string) {
	l.set(func(l *link) {
		l.faults = func(call string) fault {
			for _, c := range calls {
				if c == call {
					return f
				}
			}
			return fault{}
		}
	})
}

// count says how often a raise or a write has asked the store.
func (l *link) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls["Record"] + l.calls["RecordReset"] + l.calls["Lookup"] + l.calls["Remove"]
}

func (l *link) lateCalls() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.late {
		n += k
	}
	return n
}

type answer[T any] struct {
	value T
	err   error
}

// through takes a call through the link.
func through[T any](ctx context.Context, l *link, call string, do func(context.Context) (T, error)) (T, error) {
	l.mu.Lock()
	l.calls[call]++
	var f fault
	if l.faults != nil {
		f = l.faults(call)
	}
	cut := l.cut
	l.mu.Unlock()
	var none T
	select {
	case <-l.ended:
		return none, errBroken
	default:
	}
	if cut != nil {
		select {
		case <-cut:
		case <-ctx.Done():
			return none, ctx.Err()
		case <-l.ended:
			return none, errBroken
		}
	}
	if f == (fault{}) {
		return do(ctx)
	}
	answers := make(chan answer[T], 1)
	go func() { // in a goroutine of its own: it goes on when the caller has given up
		time.Sleep(f.before)
		var a answer[T]
		if f.lost {
			a.err = errBroken
		} else {
			if ctx.Err() != nil {
				l.set(func(l *link) { l.late[call]++ })
			}
			effectCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			a.value, a.err = do(effectCtx)
			cancel()
		}
		time.Sleep(f.after)
		if f.unanswered {
			a.value, a.err = none, errBroken
		}
		answers <- a
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// thaw waits until the process is not paused: nothing of it goes on before.
func (l *link) thaw() {
	for {
		l.mu.Lock()
		paused := l.paused
		l.mu.Unlock()
		if paused == nil {
			return
		}
		<-paused
	}
}

// pass is a call of a process that may be paused before it sends, and before it sees the answer.
func pass[T any](ctx context.Context, l *link, call string, do func(context.Context) (T, error)) (T, error) {
	l.thaw()
	v, err := through(ctx, l, call, do)
	l.thaw()
	return v, err
}

func pass0(ctx context.Context, l *link, call string, do func(context.Context) error) error {
	_, err := pass(ctx, l, call, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

func (l *link) Join(ctx context.Context, lease time.Duration, mapping int64) (int64, error) {
	return pass(ctx, l, "Join", func(ctx context.Context) (int64, error) { return l.Store.Join(ctx, lease, mapping) })
}

func (l *link) Beat(ctx context.Context, incarnation int64) (fleet.View, error) {
	return pass(ctx, l, "Beat", func(ctx context.Context) (fleet.View, error) { return l.Store.Beat(ctx, incarnation) })
}

func (l *link) Look(ctx context.Context) (fleet.View, error) {
	return pass(ctx, l, "Look", l.Store.Look)
}

func (l *link) Expel(ctx context.Context, p fleet.Peer) error {
	return pass0(ctx, l, "Expel", func(ctx context.Context) error { return l.Store.Expel(ctx, p) })
}

func (l *link) Leave(ctx context.Context, incarnation int64) error {
	return pass0(ctx, l, "Leave", func(ctx context.Context) error { return l.Store.Leave(ctx, incarnation) })
}

func (l *link) Record(ctx context.Context, incarnation int64, c tokens.Claim) (fleet.Recorded, error) {
	return pass(ctx, l, "Record", func(ctx context.Context) (fleet.Recorded, error) { return l.Store.Record(ctx, incarnation, c) })
}

func (l *link) RecordReset(ctx context.Context, incarnation int64, resource string, t tokens.Token) (tokens.Entry, fleet.Recorded, error) {
	type both struct {
		e   tokens.Entry
		rec fleet.Recorded
	}
	b, err := pass(ctx, l, "RecordReset", func(ctx context.Context) (b both, err error) {
		b.e, b.rec, err = l.Store.RecordReset(ctx, incarnation, resource, t)
		return b, err
	})
	return b.e, b.rec, err
}

func (l *link) Standing(ctx context.Context, grants []fleet.GrantRef) ([]fleet.GrantRef, error) {
	return pass(ctx, l, "Standing", func(ctx context.Context) ([]fleet.GrantRef, error) { return l.Store.Standing(ctx, grants) })
}

func (l *link) Remove(ctx context.Context, ids ...tokens.GrantID) error {
	return pass0(ctx, l, "Remove", func(ctx context.Context) error { return l.Store.Remove(ctx, ids...) })
}

func (l *link) Sweep(ctx context.Context, incarnation int64, settled time.Duration) (time.Duration, error) {
	return pass(ctx, l, "Sweep", func(ctx context.Context) (time.Duration, error) { return l.Store.Sweep(ctx, incarnation, settled) })
}

func (l *link) Hints() <-chan struct{} { return l.hints }

func (l *link) Lookup(ctx context.Context, resource string) (tokens.Entry, error) {
	return pass(ctx, l, "Lookup", func(ctx context.Context) (tokens.Entry, error) { return l.Store.Lookup(ctx, resource) })
}

func (l *link) LoadLock(ctx context.Context, resource string) (tokens.LockView, error) {
	return pass(ctx, l, "LoadLock", func(ctx context.Context) (tokens.LockView, error) { return l.Store.LoadLock(ctx, resource) })
}

func (l *link) SwapLock(ctx context.Context, incarnation int64, was tokens.LockView, now tokens.LockRow) (int64, error) {
	return pass(ctx, l, "SwapLock", func(ctx context.Context) (int64, error) { return l.Store.SwapLock(ctx, incarnation, was, now) })
}

// Close lets go of the link, not of what is still on it.
func (l *link) Close() error {
	close(l.ended)
	return l.Store.Close()
}
