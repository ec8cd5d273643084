// Package locks takes a lock from a lock service and hands its holder a fencing token: a number that is higher than that of every holder
// before it. Most clients of lock services have that number and throw it away.
//
//	service, err := redis.Open("redis://localhost/compactor")
//	lock := locks.New(service, locks.Options{TTL: 30 * time.Second})
//	grant, err := lock.Acquire(ctx)
//	defer grant.Release(ctx)
//	// write with grant.Token(); stop when grant.Lost() is closed
//
// The lock keeps two holders from working at once as long as nobody is paused; no lock with a timeout can do more. The token does the rest:
// storage that compares tokens takes no write of a holder that has lost its lock without knowing. So a lost lock is no emergency, and
// nothing here hurries to stop the work: [Grant.Lost] says that it will be refused from now on, or soon.
//
// A lock service is a [Service]; there is a package for each below this one.
package locks

import (
	"context"
	"errors"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A Service is one lock of one lock service, and keeps this promise:
//
//	The tokens that it gives, to whomever and from whatever process, are different from each other and grow from holder to holder, for
//	as long as the service keeps what it has acknowledged; they survive release, and restarts of the service.
//
// Beyond that it keeps a hold from everybody else for its TTL after the last Renew, by the service's clock. Methods may be called from many
// goroutines at once.
type Service interface {
	// Acquire waits until it has the lock, and takes it for r.TTL. It waits as the service has it: in the service's own queue, or by
	// asking again. When ctx ends it stops waiting, leaves no place in a queue, and returns ctx's cause. What it cannot take back, for want
	// of an answer, runs out with the TTL.
	//
	// An error that comes at once and would come again (a bad name, no permission, no service at this address) is returned; Acquire does
	// not wait for a service that is not there.
	Acquire(ctx context.Context, r Request) (Hold, error)

	// Close lets go of the connections. A hold that was not released runs out.
	Close() error
}

// A Request says who wants the lock, and for how long.
type Request struct {
	Holder string        // as others shall see it; see tokens.ParseHolder
	TTL    time.Duration // after which a holder that is not heard of loses the lock

	// Waiting is told who has the lock when it is found taken, and again when it has changed hands. It must not block. May be nil.
	Waiting func(Other)
}

// An Other is who has the lock while we wait for it: what the service tells of it.
type Other struct {
	Holder string       // "" where the service does not say
	Token  tokens.Token // 0 where it does not
	Since  time.Time    // the zero time where it does not; by the service's clock, or the holder's
}

// A Hold is a lock that was taken.
type Hold interface {
	// Token is this hold's fencing token. It never changes: a holder that lost the lock must never come by a newer one.
	Token() tokens.Token

	// TakenOver says that the holder before had not released the lock, where the service lets one know; else false.
	TakenOver() bool

	// Renew asks the service whether the hold still stands, and keeps it for another TTL. nil says that nobody else has had the lock up to
	// some moment after the call began. It fails with [ErrLost] when the hold is over. After any other error nothing is known; it may be
	// called again.
	Renew(ctx context.Context) error

	// Release ends the hold, and nobody else's. It fails with [ErrLost] when it was over already: somebody else may have the lock. To
	// release twice is no error.
	Release(ctx context.Context) error
}

// A Checker is a Service that can tell whether it is set up to keep its promise.
type Checker interface {
	// Check returns, one sentence each, how this service, as it is set up now, could give a token twice or a lower one, and what to change;
	// nothing where no such thing was found. What cannot be found out (no permission to read the settings) is a sentence, too.
	Check(ctx context.Context) ([]string, error)
}

// ErrLost says that a lock is no longer ours: the hold has run out, or somebody has removed it.
var ErrLost = errors.New("the lock is lost")
