package tokens

import (
	"context"
	"fmt"
	"time"
)

// A Maintained registry is what a proxy starts over and an operator repairs: a [Registry], with what is recorded beside the fences.
type Maintained interface {
	Registry
	LockStore

	// Start tells what was found when the registry was opened.
	Start() Start

	// Begin asks for the right to raise, and returns when this instance has it. mapping is the version that Mappings returned with the
	// mappings that the caller goes by. A registry that one process has to itself gives the right with Open, and does nothing here.
	Begin(ctx context.Context, mapping int64) error

	// Failure is why this instance raises no token any more, until it is restarted; nil if it does.
	Failure() error

	// Adopt lets the stamps of another registry count as this one's from now on, for ever: that one is gone, and this one has taken its
	// place. To adopt one twice, or itself, is no error and changes nothing.
	Adopt(ctx context.Context, id string) error

	// Adopted returns the ids of the other registries whose stamps count as this one's.
	Adopted() []string

	// LastAdopted is when a registry was adopted last, or replaced by this one; the zero time if none ever was.
	LastAdopted(ctx context.Context) (time.Time, error)

	// Hold lets no raise on a store with a settle time return before then: writes that another registry has let through may still take
	// effect, and this one knows nothing of them. Call it before the first raise.
	Hold(until time.Time)

	// Mappings returns the mappings on record, none if there never were any, and their version.
	Mappings(ctx context.Context) (all []Mapping, version int64, err error)

	// RecordMappings puts these mappings in the place of those on record, in one step, if their version is still this one, and fails with
	// [ErrRemapped] if it is not. It returns the new version. remapped says that some bucket is mapped otherwise than before: every
	// instance that goes by an older version loses its right to raise then, and Begin waits for the last of their writes.
	RecordMappings(ctx context.Context, all []Mapping, version int64, remapped bool) (int64, error)

	// Count says how many resources are recorded whose names begin with prefix.
	Count(ctx context.Context, prefix string) (int64, error)

	// Unsettled says how many resources, or, in a fleet, ended instances, have writes that may still take effect, and for how long at most.
	Unsettled() (n int, wait time.Duration)

	// WaitSettled waits until no write of an earlier run can take effect any more.
	WaitSettled(ctx context.Context) error

	// Repair says how far a rebuild has come, and SetRepair records it.
	Repair(ctx context.Context) (Repair, error)
	SetRepair(ctx context.Context, state Repair) error

	// RaiseTo records at least these marks, by resource, and says how many tokens it raised. at is when the repair began, to the
	// millisecond: a resource that was raised by an earlier call with the same at is not counted again.
	//
	// A token that is there and not lower stays, with its holder. A higher generation is recorded and takes no token down: whether the
	// token is from before the reset or from after it is not known here. If we crash, what earlier calls have recorded is there, and the
	// same calls can be made again.
	RaiseTo(ctx context.Context, marks map[string]Mark, at time.Time) (raised int64, err error)

	// RaiseAll raises every recorded token by the same number, at least 1, all of them or none, and says how many there were. Nobody
	// holds the new tokens: they are bound to no holder. A resource that has seen no token yet stays as it is. It fails with an
	// [*OverflowError]. If we crash before the commit, nothing is raised, and after it all are.
	//
	// The tokens that the proxy's own locks have issued go up, too, and their leases are over. What was issued counts as seen: where no token,
	// or a lower one, was recorded of the resource, its fence is raised from there. Whoever had a token that was forgotten since is below.
	RaiseAll(ctx context.Context, by Token) (raised int64, err error)
}

// ErrRemapped says that the mappings on record are no longer those that the caller has seen.
var ErrRemapped = fmt.Errorf("%w: another instance has changed the mappings on record", ErrUnavailable)

// Start tells what was found when a registry was opened.
type Start struct {
	ID        string // of the registry
	Run       int64
	Created   bool             // the registry is new
	Unclean   bool             // the run before did not stop by itself
	Inherited []InheritedGrant // may still have writes under way
}

// An InheritedGrant is told to the operator: until Settle is over, a raise above Token waits.
type InheritedGrant struct {
	Resource string
	Token    Token
	Settle   time.Duration
}

// A Mapping says what leads the keys of some buckets to their resources. Tokens are recorded by the names of resources: under
// another mapping they would not be found again. A registry keeps mappings in their order and does not look into them.
type Mapping struct {
	Name   string // a pattern for names of buckets; the first one that matches counts
	Digest string // of Text
	Text   string
}

// An OverflowError refuses a raise beyond [Max]. Nothing was changed.
type OverflowError struct {
	Resource string
	Token    Token // recorded
	By       Token
}

func (e *OverflowError) Error() string {
	return fmt.Sprintf("no token was raised: %s is at %d, and %d more would be beyond the highest token there is, %d", e.Resource, e.Token, e.By, Max)
}

// A Repair is how far a rebuild has come. While there is one, the registry knows too little for a proxy to run over it.
type Repair string

const (
	RepairNone   Repair = ""       // there is none
	RepairNew    Repair = "new"    // a registry that was empty is being filled
	RepairKnown  Repair = "known"  // one that knew something is being filled up
	RepairMargin Repair = "margin" // it has come to its end; what it knows are lower bounds, until [Maintained.RaiseAll]
)

// A Mark is what is known of a resource from elsewhere, as a lower bound.
type Mark struct {
	Token      Token
	Generation int64
}
