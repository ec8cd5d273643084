package locks

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/clock"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// Options of a Lock. A zero field takes its default.
type Options struct {
	TTL     time.Duration // after which a holder that is not heard of loses the lock; 30 s
	Holder  string        // as others see it; the name of this machine, the process and a random part
	Waiting func(Other)   // told who has the lock while it is waited for; must not block
	Clock   clock.Clock   // this machine's
}

// A Lock takes a Service's lock and keeps it alive.
type Lock struct {
	service Service
	options Options
}

// New returns a Lock of a Service, which it does not close.
func New(s Service, o Options) *Lock {
	if o.TTL == 0 {
		o.TTL = 30 * time.Second
	}
	if o.Holder == "" {
		o.Holder = NewHolder()
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	return &Lock{service: s, options: o}
}

// NewHolder makes a name for a holder that no other has: two that share one would pass for the same holder, even where their lock service
// has given both the same token.
func NewHolder() string {
	host, err := os.Hostname()
	if err != nil || !isHolder(host) {
		host = "unknown-host"
	}
	return fmt.Sprintf("%.60s.%d.%s", host, os.Getpid(), rand.Text()[:8])
}

func isHolder(s string) bool {
	_, err := tokens.ParseHolder(s)
	return err == nil
}

// A Grant is a lock that is ours, until [Grant.Lost] is closed or it is released. It is kept alive in the background.
type Grant struct {
	hold    Hold
	options Options

	stop    context.CancelFunc // ends the heartbeat
	stopped chan struct{}      // closed when the heartbeat has ended
	lost    chan struct{}      // closed when the lock is lost; err is set before

	releasing chan struct{} // has room for the one call of hold.Release

	mu  sync.Mutex // guards err
	err error
}

// Acquire waits until it has the lock, or until ctx ends, and then fails with ctx's cause. The heartbeat of the grant goes on until it is
// released, whatever becomes of ctx.
func (l *Lock) Acquire(ctx context.Context) (*Grant, error) {
	o := l.options
	if _, err := tokens.ParseHolder(o.Holder); err != nil {
		return nil, err
	}
	hold, err := l.service.Acquire(ctx, Request{Holder: o.Holder, TTL: o.TTL, Waiting: o.Waiting})
	if err != nil {
		return nil, err
	}
	g := &Grant{hold: hold, options: o, stopped: make(chan struct{}), lost: make(chan struct{}), releasing: make(chan struct{}, 1)}
	until, err := g.first(ctx)
	if err != nil {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.TTL/3)
		defer cancel()
		_ = hold.Release(release) // if that fails it runs out
		return nil, err
	}
	beating, stop := context.WithCancel(context.Background())
	g.stop = stop
	go g.beat(beating, until)
	return g, nil
}

// first renews a hold that was just taken. The answer may have been long on its way, and the TTL began before it: only a renewal that we
// have timed says how much is left.
func (g *Grant) first(ctx context.Context) (deadline, error) {
	until := g.deadline()
	call, cancel := context.WithTimeout(ctx, g.left(until))
	defer cancel()
	err := g.hold.Renew(call)
	switch {
	case ctx.Err() != nil:
		return until, context.Cause(ctx)
	case err == nil && g.over(until):
		err = fmt.Errorf("%w: its first renewal took longer than the TTL of %s", ErrLost, g.options.TTL)
	}
	if err != nil {
		err = fmt.Errorf("the lock was taken, but could not be kept: %w", err)
	}
	return until, err
}

// A deadline is when a hold is over by our own clocks, whichever comes first.
type deadline struct {
	boot time.Duration
	wall time.Time
}

// deadline is that of a renewal which is sent now. It comes a tenth before the service's: the rates of two clocks may differ.
func (g *Grant) deadline() deadline {
	own := g.options.TTL - g.options.TTL/10
	return deadline{g.options.Clock.Boot() + own, g.options.Clock.Wall().Add(own)}
}

func (g *Grant) over(d deadline) bool {
	return g.options.Clock.Boot() >= d.boot || !g.options.Clock.Wall().Before(d.wall)
}

// left is how long it is until then by the boot clock: at least a little, for who waits for it.
func (g *Grant) left(until deadline) time.Duration {
	return max(until.boot-g.options.Clock.Boot(), time.Millisecond)
}

// beat renews the hold every third of its TTL, and three times as often after a failure, until it is lost or beating ends.
func (g *Grant) beat(beating context.Context, until deadline) {
	defer close(g.stopped)
	every := g.options.TTL / 3
	timer := time.NewTimer(every)
	defer timer.Stop()
	var failed error
	for {
		select {
		case <-beating.Done():
			return
		case <-timer.C:
		}
		if g.over(until) { // we were paused, or could not renew it: whether it could still be renewed does not matter, somebody may have had it
			g.lose(overdue(failed))
			return
		}
		next := g.deadline()
		ctx, cancel := context.WithTimeout(beating, min(every, g.left(until)))
		err := g.hold.Renew(ctx)
		cancel()
		switch {
		case err == nil:
			until, failed = next, nil
			timer.Reset(min(every, g.left(until))) // at once where we were paused in the middle of it
		case errors.Is(err, ErrLost):
			g.lose(err)
			return
		default:
			failed = err
			timer.Reset(min(every/3, g.left(until)))
		}
	}
}

func overdue(failed error) error {
	if failed == nil {
		return fmt.Errorf("%w: this process or its machine stood still for longer than the TTL", ErrLost)
	}
	return fmt.Errorf("%w: it could not be renewed in time: %w", ErrLost, failed)
}

func (g *Grant) lose(err error) {
	g.mu.Lock()
	g.err = err
	g.mu.Unlock()
	close(g.lost)
}

// Token is the fencing token to write with. It never changes.
func (g *Grant) Token() tokens.Token { return g.hold.Token() }

// Holder is the name under which the lock is held.
func (g *Grant) Holder() string { return g.options.Holder }

// Resource is what the token fences, where the lock service knows it, as a proxy's own lock does; else "".
func (g *Grant) Resource() string {
	if h, ok := g.hold.(interface{ Resource() string }); ok {
		return h.Resource()
	}
	return ""
}

// TakenOver says that the holder before had not released the lock, where the service lets one know; else false.
func (g *Grant) TakenOver() bool { return g.hold.TakenOver() }

// Lost is closed when the lock is no longer ours, or cannot be known to be. It is not closed by Release.
func (g *Grant) Lost() <-chan struct{} { return g.lost }

// Err is why the lock was lost, which wraps [ErrLost]; nil while it is not.
func (g *Grant) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Release ends the heartbeat and gives the lock back. It fails with [ErrLost] where the lock was lost before. If ctx ends first, or the
// service cannot be reached, the hold runs out with its TTL, and to release it may be tried again. To release twice is no error.
func (g *Grant) Release(ctx context.Context) error {
	g.stop()
	<-g.stopped
	select {
	case g.releasing <- struct{}{}:
		defer func() { <-g.releasing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := g.hold.Release(ctx)
	if lost := g.Err(); lost != nil {
		return lost
	}
	return err
}
