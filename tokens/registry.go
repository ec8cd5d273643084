package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Registry remembers, durably and for ever, the highest token of every resource, and who may still bring a write into
// effect. Its promise is the one that a [Fence] builds on:
//
//	When Raise(t) has returned, no write with a token below t can take effect any more through an earlier run of this
//	instance or through any other instance, and none ever will.
//
// What this instance itself has under way is the Fence's affair: it drains that before it calls Raise.
//
// Methods may be called from many goroutines at once.
type Registry interface {
	// Raise records c.Token as the highest token of c.Resource and returns the right to admit writes with it.
	//
	// It fails with a [*StaleError] where a higher token is recorded, and with a [*ConflictError] where the same token is
	// bound to another holder; nothing is changed then. An equal token with a holder where none was bound yet binds it.
	// Any other error says that the registry could not be asked or could not write: the token may or may not be recorded,
	// and the caller has no right to write.
	//
	// It waits for every grant with a lower token to be given back, or for the run that had it to have been dead longer than
	// the grant's settle time. The token is recorded before that wait. If ctx ends during it, Raise gives its own grant back
	// and returns ctx's error.
	Raise(ctx context.Context, c Claim) (Grant, error)

	// GiveBack ends the grants with these ids. An id that is unknown, or that a later Raise has replaced, is no error. The
	// caller vouches that no write admitted under them can still take effect.
	GiveBack(ctx context.Context, ids ...GrantID) error

	// Incarnation numbers the time in which this instance may use its grants; it is 0 while it may use none. A grant is good
	// only while the number is the one it was given under. It is asked for every write and does no I/O.
	Incarnation() uint64

	// Lookup returns what is recorded of a resource: an Entry with token 0 where nothing is.
	Lookup(ctx context.Context, resource string) (Entry, error)

	// List returns the recorded resources whose names begin with prefix and come after after, in byte order, at most limit.
	List(ctx context.Context, prefix, after string, limit int) ([]Entry, error)

	// Reset sets the token of a resource, lower ones included, and starts a new generation of it: the only way down. It waits
	// for the grants of other runs and instances as Raise does, whatever their tokens. The caller has drained its own.
	Reset(ctx context.Context, resource string, t Token) (Entry, error)

	// TouchUpload records that a writer with token t works on a multipart upload. An upload's token is the highest that ever
	// did; it says who may abort it. Names are the caller's, one per upload.
	TouchUpload(ctx context.Context, upload string, t Token) error

	// UploadToken returns an upload's token; 0 where it has none.
	UploadToken(ctx context.Context, upload string) (Token, error)

	// ForgetUpload ends the record of an upload that is completed or aborted.
	ForgetUpload(ctx context.Context, upload string) error

	// Close lets the registry go. Grants that were not given back stay, and hold the next run up until they have settled.
	Close() error
}

// A Claim is what a writer says of itself: with this token, on this resource.
type Claim struct {
	Resource  string
	Token     Token
	Holder    string // "" where the client does not name itself
	AccessKey string // recorded for the operator; not judged
	Audited   bool   // who makes the claim puts it on record; Options.Raised is not told

	// MaxAdvance, where it is not 0, is how far Token may go beyond what the registry has recorded; a resource's first token is
	// free. The Fence judges it before anything moves; a registry does not.
	MaxAdvance Token

	// Settle is the longest time from the gate to the effect in the store of what will be written under the grant. The registry
	// keeps it with the grant: should this process die, a later run waits so long. 0 where the death of the process ends
	// its writes, too (a store in the same process).
	Settle time.Duration

	// Generation of the resource when the claim was first judged; the Fence sets it. A registry that several instances share refuses
	// a claim from before a reset with a [*ResetError].
	Generation int64
}

// A GrantID names one grant of one registry and is never used twice; 0 names none.
type GrantID int64

// A Grant is an instance's right to admit writes with Token on a resource without asking the registry again.
type Grant struct {
	ID          GrantID // rises with every grant; 0 where there is nothing to give back
	Token       Token
	Holder      string        // the holder that the token is bound to, "" if none
	Settle      time.Duration // what may be admitted under it settles within this time
	Incarnation uint64        // of the instance's lease, when the grant was recorded
	Raised      bool          // the call raised the recorded token; false where it was recorded before
	Generation  int64         // of the resource, where the registry is a [Shared] one
}

// A Shared registry is one that several instances ask. It tells when another instance needs a grant back.
//
// Where its Raise binds a token that is recorded already to a holder, or the token is bound to it, a grant with that token and without a
// holder counts as a lower one: no write with the token and without that name takes effect any more when Raise has returned.
type Shared interface {
	Registry

	// OnRevoke names who is asked for a grant that has to be given back, before the first Raise. yield returns nil when no write that
	// was admitted under the grant, or on the resource with a lower token than the revocation's, can take effect any more, and none will be
	// admitted; nor, where the revocation names a holder, with the same token and without one. The registry then gives the grant back. yield is asked
	// again after an error, and may be asked twice. Raise asks it, too, for a grant of this instance's own.
	OnRevoke(yield func(context.Context, Revocation) error)
}

// A Revocation says that a higher token than a grant's has been recorded, that the token of one without a holder was bound to one, or that its
// resource was reset.
type Revocation struct {
	ID    GrantID // as the registry has it on record, whether or not its instance ever heard of it
	Entry         // what is recorded now
}

// An Entry is what a registry records of a resource.
type Entry struct {
	Resource   string
	Token      Token
	Holder     string
	AccessKey  string // of the request that raised it
	RaisedAt   time.Time
	Generation int64 // counts the resets
}

// A TooFarError refuses a token that goes further beyond the recorded one than the rule's max_advance lets it.
type TooFarError struct {
	Resource   string
	Token      Token // the refused one
	Highest    Token // the recorded one
	MaxAdvance Token
}

func (e *TooFarError) Error() string {
	return fmt.Sprintf("token %d is more than %d beyond %d, the highest one recorded for %s", e.Token, e.MaxAdvance, e.Highest, e.Resource)
}

// A ResetError refuses a write that began before the token of its resource was reset: it belongs to the holders from before.
type ResetError struct {
	Resource   string
	Token      Token // the refused one
	Highest    Token // the highest one seen since
	Holder     string
	Generation int64 // of the resource now
}

func (e *ResetError) Error() string {
	return fmt.Sprintf("the fence of %s was reset while a write with token %d was under way; it stands at %d now", e.Resource, e.Token, e.Highest)
}

// A WaitingError says that a raise still waits for older writes that are past the gate. The token is seen, so that older
// writers are refused from now on; the wait goes on without the client, which may come back.
type WaitingError struct {
	Resource string
	Token    Token
	Waited   time.Duration
}

func (e *WaitingError) Error() string {
	return fmt.Sprintf("token %d waited %v for older writes to %s to be settled", e.Token, e.Waited, e.Resource)
}

// ErrResetting says that a resource is being reset by somebody else at the moment. Nothing was changed.
var ErrResetting = errors.New("the resource is being reset already")

// ErrUnavailable says that the registry cannot be asked, or that this instance has no right to use what it knows: no new
// right to write until that is mended.
var ErrUnavailable = errors.New("the token registry is out of reach")

// A StaleError refuses a token that is below the highest one seen.
type StaleError struct {
	Resource string
	Token    Token  // the refused one
	Highest  Token  // the highest one seen
	Holder   string // who has Highest, "" if unknown
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("token %d is below %d, the highest one seen for %s", e.Token, e.Highest, e.Resource)
}

// A ConflictError refuses a token that is bound to another holder. Two holders with one token is what a lock service that
// lost its counter does.
type ConflictError struct {
	Resource string
	Token    Token
	Holder   string // the refused one, "" if it did not name itself
	Bound    string // the one that has the token
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("token %d of %s belongs to holder %q, not to %q", e.Token, e.Resource, e.Bound, e.Holder)
}
