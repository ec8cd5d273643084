package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A Store is an engine that all instances of a fleet reach, and on which every call below is one step: it takes effect whole and durably
// before it returns nil, or, after an error, whole or not at all, maybe later. No call waits for another instance.
//
// An incarnation is the time in which an instance has one lease without a gap. Its number is never used twice. It is alive from Join to
// Leave or Expel (or, in a store that times leases itself, to the end of the lease), and ended from then on, until Sweep has removed the
// last of its grants.
type Store interface {
	// Join begins an incarnation. lease is how long it may go on after a Beat; others read it. It fails with [ErrRemapped] where mapping is
	// not the version of the mappings on record, and with [ErrDraining] while an incarnation that went by an older version is alive, or
	// ended and not swept.
	Join(ctx context.Context, lease time.Duration, mapping int64) (incarnation int64, err error)

	// Beat says that an incarnation goes on and fails with [ErrEnded] if it does not, with nothing changed. It also looks around, as Look does.
	Beat(ctx context.Context, incarnation int64) (View, error)

	// Look looks around for an instance that has no incarnation.
	Look(ctx context.Context) (View, error)

	// Expel ends an incarnation if it is alive and its last beat is this one. When it has returned, no Record under it succeeds any more.
	// A store that times leases itself does nothing.
	Expel(ctx context.Context, p Peer) error

	// Leave ends the caller's incarnation, with the same effect.
	Leave(ctx context.Context, incarnation int64) error

	// Record is the durable part of Raise: if the incarnation is alive, if the resource has the claim's generation and no higher token, and
	// if the same token is not bound to another holder, it records token and holder, puts a new grant in the place of the incarnation's one on the
	// resource (with the longer settle time of the two where their tokens are equal), and returns the grants below it in the order of
	// (generation, token), of whatever incarnation, and sees to it that the living ones find theirs in View.Revoked until they are removed.
	//
	// Of two grants with one token that without a holder is the lower one. Where the incarnation's own grant is such a one and the claim has the same
	// token and a holder, it is not replaced: it may have been handed out, and our memory does not know yet that its time is over. Then token and
	// holder are recorded, it stands, revoked as the lower ones of others are, and Recorded has its id as Own and nothing else. The claim is
	// recorded again when it is removed.
	//
	// The lower grants are read when no other Record on the resource can come between. Ids of grants rise on each resource.
	//
	// It fails with [ErrEnded], a [*tokens.StaleError], a [*tokens.ConflictError] or a [*tokens.ResetError], and nothing is changed then.
	Record(ctx context.Context, incarnation int64, c tokens.Claim) (Recorded, error)

	// RecordReset starts a new generation of a resource with this token and no holder, and returns all grants on it: the one of this incarnation,
	// which it leaves standing, by the id of Recorded.Grant, 0 if there is none, and the others as lower ones. All of them are in
	// View.Revoked of their instances until they are removed. It fails with [ErrEnded].
	RecordReset(ctx context.Context, incarnation int64, resource string, t tokens.Token) (tokens.Entry, Recorded, error)

	// Standing returns those of the grants that have not been removed. It may see to it anew that they are in View.Revoked.
	Standing(ctx context.Context, grants []GrantRef) ([]GrantRef, error)

	// Remove removes grants by their ids. One that is gone, or was replaced, is no error.
	Remove(ctx context.Context, ids ...tokens.GrantID) error

	// Sweep removes the grants of an ended incarnation whose settle time is not longer than settled, and forgets the incarnation when
	// none is left. next is the shortest settle time of those that are left, 0 if there are none. It does nothing to one that is alive.
	Sweep(ctx context.Context, incarnation int64, settled time.Duration) (next time.Duration, err error)

	// Hints is sent to, at any time and without a promise, when View.Revoked may have grown or a grant may have been removed.
	Hints() <-chan struct{}

	// Lookup, List and the calls about uploads are those of [tokens.Registry].
	Lookup(ctx context.Context, resource string) (tokens.Entry, error)
	List(ctx context.Context, prefix, after string, limit int) ([]tokens.Entry, error)
	TouchUpload(ctx context.Context, upload string, t tokens.Token) error
	UploadToken(ctx context.Context, upload string) (tokens.Token, error)
	ForgetUpload(ctx context.Context, upload string) error

	// LoadLock and SwapLock are those of [tokens.LockStore]. SwapLock fails with [ErrEnded], and nothing is changed then.
	LoadLock(ctx context.Context, resource string) (tokens.LockView, error)
	SwapLock(ctx context.Context, incarnation int64, was tokens.LockView, now tokens.LockRow) (version int64, err error)

	Close() error
}

// A View is what a Store shows at one moment.
type View struct {
	Alive   []Peer
	Ended   []int64             // incarnations that are not swept
	Revoked []tokens.Revocation // the caller's grants that are lower than what is recorded: somebody waits for them
	Mapping int64               // version of the mappings on record
}

// A Peer is an incarnation that is alive, the caller's own included.
type Peer struct {
	Incarnation int64
	Beat        int64         // changes with each of its beats; 0 where the store times leases itself
	Lease       time.Duration // how long it may go on without one
}

// Recorded is what Record did.
type Recorded struct {
	Grant tokens.Grant   // its Incarnation is set by the caller
	Lower []GrantRef     // to be waited for
	Own   tokens.GrantID // our grant without a holder that has to be given back first; 0 if there is none
}

// A GrantRef names one grant on record.
type GrantRef struct {
	ID          tokens.GrantID
	Resource    string
	Incarnation int64
}

var (
	// ErrEnded says that an incarnation is not alive.
	ErrEnded = errors.New("this instance's lease has ended")

	// ErrRemapped says that the mappings on record are no longer those that the caller goes by.
	ErrRemapped = tokens.ErrRemapped

	// ErrDraining says that instances with the mappings from before are not over yet.
	ErrDraining = errors.New("writes by the mappings from before are not settled yet")
)
