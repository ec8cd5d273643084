package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A LockStore keeps the proxy's own locks, a row for each resource, beside the fences of the same registry. What the rows mean is known to
// [Locks] alone.
type LockStore interface {
	// LoadLock returns the row of a resource, the zero LockRow where there is none, and what is recorded of its fence.
	LoadLock(ctx context.Context, resource string) (LockView, error)

	// SwapLock puts a row in the place of the one that was loaded, durably and in one step with what it asks: that the row has still its
	// version, and, where a token is issued (now.Issued is above was.Row.Issued), that the fence has still its generation and token. It
	// returns the version of the new row; 0 where something had changed, and nothing was done.
	//
	// After an error it may have been done, or may be yet.
	SwapLock(ctx context.Context, was LockView, now LockRow) (version int64, err error)
}

// A LockView is what is recorded at one moment. (Of two moments, where the store asks twice: the swap finds out.)
type LockView struct {
	Row   LockRow
	Fence Entry
}

// A LockRow is what is recorded of the lock on a resource. It is never removed: Issued has to outlive every lease, or a token would be
// issued twice.
type LockRow struct {
	Version   int64         // another one after each change; 0: there is no row. The store gives it
	Issued    Token         // the highest token that was ever issued: that of Lease
	Lease     string        // id of the last lease; "" where [Maintained.RaiseAll] has ended it
	Released  bool          // it was given back
	TakenOver bool          // the one before it was not
	Holder    string        // never ""
	AccessKey string        // of the request that took it
	TTL       time.Duration // without a renewal; in ms
	Since     time.Time     // when it was taken, and
	Renewed   time.Time     // renewed, in ms: for people, by the clock of the proxy that did it. Nothing goes by them
}

// stands says whether there is a lease that was not given back. It may have run out.
func (r LockRow) stands() bool { return r.Lease != "" && !r.Released }

// A Lease is the lock on a resource as its holder has it, or as others see it: then ID is "".
type Lease struct {
	Resource  string
	ID        string // whoever knows it may renew and release
	Token     Token
	Holder    string
	TTL       time.Duration
	Since     time.Time // for people, as all clocks of proxies
	Expires   time.Time // for people; if it is not renewed
	TakenOver bool      // the holder before had not released it
	From      string    // that holder, where Take has just taken it over
	Again     bool      // Take found it standing: its client had lost the answer
}

func (r LockRow) lease(resource string) Lease {
	return Lease{
		Resource: resource, ID: r.Lease, Token: r.Issued, Holder: r.Holder, TTL: r.TTL,
		Since: r.Since, Expires: r.Renewed.Add(r.TTL), TakenOver: r.TakenOver,
	}
}

// seen is the lease without what only its holder may know.
func (r LockRow) seen(resource string) Lease {
	l := r.lease(resource)
	l.ID = ""
	return l
}

// The bounds of a lease. A shorter one would be lost to one slow answer, and a longer one would keep everybody out for hours after a crash.
const (
	MinLeaseTTL = time.Second
	MaxLeaseTTL = time.Hour
)

// The bounds of the id of a lease that a client has made, in bytes: it must not be guessed, nor come twice. 22 characters of base64 have 128 bits.
const (
	MinLeaseID = 22
	MaxLeaseID = 64
)

// ParseLeaseID reads the id of a lease: letters, digits, - and _.
func ParseLeaseID(s string) (string, error) {
	if len(s) < MinLeaseID || len(s) > MaxLeaseID {
		return "", fmt.Errorf("the id of a lease has %d to %d characters, this one has %d: it must be random, such as `openssl rand -hex 16` makes it", MinLeaseID, MaxLeaseID, len(s))
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return "", errors.New("the id of a lease is made of letters, digits, - and _")
		}
	}
	return s, nil
}

// LockMargin is how far below [Max] the proxy's own locks stop: what was handed out must be able to be raised, after a restore.
const LockMargin Token = 1 << 32

// A HeldError says that somebody else has the lock.
type HeldError struct{ By Lease }

func (e *HeldError) Error() string {
	return fmt.Sprintf("the lock on %s is held by %q, with token %d, since %s", e.By.Resource, e.By.Holder, e.By.Token, e.By.Since.UTC().Format(time.RFC3339))
}

// A LeaseLostError says that a lease is over: it was released, or ran out and somebody else has taken the lock since, or an operator has raised
// all tokens.
type LeaseLostError struct {
	Resource string
	Now      Lease // who has the lock; the zero Lease where nobody has
}

func (e *LeaseLostError) Error() string {
	if e.Now.Token == 0 {
		return fmt.Sprintf("this lease of the lock on %s is over, and nobody has the lock now", e.Resource)
	}
	return fmt.Sprintf("this lease of the lock on %s is over: %q has the lock, with token %d", e.Resource, e.Now.Holder, e.Now.Token)
}

// A SpentError says that no token can be issued for a resource any more.
type SpentError struct {
	Resource string
	Highest  Token // issued or seen
	Issued   bool  // by this lock: a reset of the fence does not take that down
}

func (e *SpentError) Error() string {
	said := fmt.Sprintf("no token can be issued for %s: %d was issued or seen, and locks stop at %d", e.Resource, e.Highest, Max-LockMargin)
	if e.Issued {
		return said + ". This lock has issued it, after a writer that had made up a token as high: it issues none any more. Take the lock of another resource, " +
			"or another lock service, and reset the fence"
	}
	return said + ". If a writer has made that number up, `fenceproxy fences reset` takes the fence down"
}

// ErrLockContended says that others have changed the lock whenever we were about to. Nothing was done.
var ErrLockContended = errors.New("too many want this lock at once")
