// Package lockstest holds every lock service, as its driver shows it, to what package locks promises. A driver's test is: start a server,
// say how one of its locks is opened, run the suite.
//
//	lockstest.Run(t, lockstest.Engine{
//		TTL: 2 * time.Second,
//		New: func(t testing.TB) lockstest.Lock {
//			name := lockstest.Name(t)
//			return lockstest.Lock{Open: func(t testing.TB, via func(string) string) locks.Service {
//				s, err := redis.Open("redis://" + via(server.Address) + "/" + name)
//				…
//			}}
//		},
//	})
//
// Servers and time are real. A paused holder is one whose connections deliver nothing, in either direction, until they are woken; then they
// deliver what was late.
package lockstest

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// An Engine is one lock service, as its driver shows it.
type Engine struct {
	// New makes a lock that nobody has had yet. It is called from several tests at once.
	New func(t testing.TB) Lock

	// TTL is the shortest that the service takes, and that a holder can be expected to keep on a loaded machine. The suite also asks for
	// [Long] times as much, and needs it granted.
	TTL time.Duration

	// Late is how much later than its TTL a lock that nobody renews may come free: how often the service looks.
	Late time.Duration

	// TellsTakeover says that a hold after a holder who had not released is known to be one. The others always say no.
	TellsTakeover bool

	// Restart ends the service, as a crash would, and starts it again over what it had acknowledged. nil where it keeps nothing.
	Restart func(t testing.TB)
}

// A Lock is one lock of an Engine.
type Lock struct {
	// Open makes a client of its own, as another process would have it. It dials via(address) wherever it would dial an address
	// (host:port) of the service. The suite closes it.
	Open func(t testing.TB, via func(address string) string) locks.Service

	// Delete removes what the service keeps of the lock while nobody has it, as an operator who tidies up might. nil where that is not
	// possible, or takes the tokens back: then it is the service's trap, and has a test of its own.
	Delete func(t testing.TB)
}

// Long is how many TTLs a lock is taken for where it must not run out.
const Long = 5

// soon is how long something takes at most that takes no time, on a loaded machine.
const soon = 20 * time.Second

// Name makes a name for a lock that is like no other: letters and digits.
func Name(testing.TB) string { return "lock" + strings.ToLower(rand.Text()[:12]) }

// Run runs the suite. With FENCEPROXY_LONG in the environment there are many more crashes in it.
func Run(t *testing.T, e Engine) {
	t.Run("Cases", func(t *testing.T) {
		for _, c := range []struct {
			name string
			run  func(*bench)
		}{
			{"Tokens", testTokens},
			{"OneClient", testOneClient},
			{"Storm", testStorm},
			{"PausedHolder", func(b *bench) { testPaused(b, "one", "other") }},
			{"PausedHolderOfThatName", func(b *bench) { testPaused(b, "same", "same") }},
			{"PausedWhileRenewing", testPausedRenewal},
			{"Renewed", testRenewed},
			{"Released", testReleased},
			{"GivenUp", testGivenUp},
			{"GivenUpAtAnyMoment", testGivenUpAtAnyMoment},
			{"Waiting", testWaiting},
			{"Crash", testCrash},
			{"Stalled", testStalled},
			{"HandOvers", testHandOvers},
			{"Deleted", testDeleted},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(&bench{T: t, Engine: e, lock: e.New(t)})
			})
		}
	})
	if e.Restart != nil {
		t.Run("Restart", func(t *testing.T) { testRestart(&bench{T: t, Engine: e, lock: e.New(t)}) })
	}
}

func long() bool { return os.Getenv("FENCEPROXY_LONG") != "" }

// A bench is one test's lock.
type bench struct {
	*testing.T
	Engine
	lock Lock
}

func (b *bench) long() time.Duration { return Long * b.TTL }

// A client is a process that wants the lock.
type client struct {
	locks.Service
	b      *bench
	relays map[string]*relay
	closed bool
}

// client opens one that can be paused.
func (b *bench) client() *client {
	b.Helper()
	c := &client{b: b, relays: make(map[string]*relay)}
	c.Service = b.lock.Open(b.T, func(address string) string {
		r := c.relays[address]
		if r == nil {
			r = newRelay(b.T, address)
			c.relays[address] = r
		}
		return r.address()
	})
	b.Cleanup(func() { c.wake(); c.crash() })
	return c
}

// crash ends a client, which releases nothing.
func (c *client) crash() {
	if c.closed {
		return
	}
	c.closed = true
	if err := c.Close(); err != nil {
		c.b.Logf("a client was closed: %v", err) // it may have lost its connection before
	}
}

func (c *client) pause() {
	for _, r := range c.relays {
		r.stall()
	}
}

func (c *client) wake() {
	for _, r := range c.relays {
		r.wake()
	}
}

// acquire takes the lock, which must be won within some time.
func (c *client) acquire(holder string, ttl, within time.Duration) locks.Hold {
	c.b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	hold, err := c.Acquire(ctx, locks.Request{Holder: holder, TTL: ttl})
	if err != nil {
		c.b.Fatalf("%s did not get the lock within %s: %v", holder, within, err)
	}
	if hold.Token() < 1 || hold.Token() > tokens.Max {
		c.b.Fatalf("%s got the token %d, which is none", holder, hold.Token())
	}
	return hold
}

// cannot holds that somebody else has the lock.
func (c *client) cannot(holder string, within time.Duration) {
	c.b.Helper()
	cause := errors.New("the test has waited enough")
	ctx, cancel := context.WithTimeoutCause(context.Background(), within, cause)
	defer cancel()
	hold, err := c.Acquire(ctx, locks.Request{Holder: holder, TTL: c.b.TTL})
	if err == nil {
		c.b.Fatalf("%s got the lock, with token %d, while it was held", holder, hold.Token())
	}
	if !errors.Is(err, cause) {
		c.b.Fatalf("%s waited for a lock that was held, and its time was over: %v; want the cause of its context", holder, err)
	}
}

func (b *bench) renew(h locks.Hold) {
	b.Helper()
	if err := settled(h.Renew); err != nil {
		b.Fatalf("the hold with token %d was not renewed: %v", h.Token(), err)
	}
}

func (b *bench) release(h locks.Hold) {
	b.Helper()
	if err := settled(h.Release); err != nil {
		b.Fatalf("the hold with token %d was not released: %v", h.Token(), err)
	}
}

// settled calls until it is known what became of it: a call may fail for reasons that pass.
func settled(call func(context.Context) error) (err error) {
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		err = call(ctx)
		cancel()
		if err == nil || errors.Is(err, locks.ErrLost) {
			return err
		}
	}
	return err
}

// lost holds that a hold is over, and that it says so: sooner or later, for its connection may have to be made anew. It must never be renewed.
func (b *bench) lost(what string, call func(context.Context) error) {
	b.Helper()
	var err error
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		err = call(ctx)
		cancel()
		if err == nil {
			b.Fatalf("%s: it was done, for a hold that is over", what)
		}
		if errors.Is(err, locks.ErrLost) {
			return
		}
	}
	b.Fatalf("%s: %v; want ErrLost, for the hold is over", what, err)
}

func (b *bench) higher(t, than tokens.Token) {
	b.Helper()
	if t <= than {
		b.Fatalf("the token %d came after %d", t, than)
	}
}
