package proxy

import (
	"context"
	"net/http"
	"slices"
	"time"
)

// A Backend is a store; package backends says what it promises.
type Backend struct {
	http.Handler

	// Settle is the longest time from the gate to the effect of a write in the store; 0 for a store in this process.
	Settle time.Duration

	// SettleLong is that of the operations for which a store takes longer: Copy, Complete and DeleteObjects. Settle if 0.
	SettleLong time.Duration

	// Stamp says that writes are stamped; see [Stamp].
	Stamp bool

	// Probe finds out what a store elsewhere does with writes. It is asked until it answers, and then no more. Where it is nil, the
	// store is in this process: it does nothing late, and its writes need no condition.
	Probe func(ctx context.Context, bucket string) (Findings, error)

	// Conditional says whether conditions are put on writes.
	Conditional Conditional
}

// Conditional is what an operator says of a store's conditions (If-Match, If-None-Match).
type Conditional string

const (
	ConditionalAuto Conditional = "auto" // where the probe has seen that the store honours them
	ConditionalOn   Conditional = "on"   // a write that the store would carry out without regard to its condition is refused
	ConditionalOff  Conditional = "off"  // never
)

// Findings are what a store was seen to do with writes. The zero Findings are those of a store that can do nothing.
type Findings struct {
	Conditions []string // the operations on which it honours conditions, as S3 names them
	Spool      bool     // it may make a body that is cut off the object: large ones are sent from a file, with a SHA-256
	Unhashed   bool     // it does not look at the SHA-256 either
	Trailers   bool     // it compares a checksum that stands behind a body; where it does not, such a body is sent from a file, too
	Merges     []string // which spellings of a key it takes for one: "slashes", "dots", "case"
	Skipped    string   // why it was not asked; "" if it was
	Blind      bool     // it could not be asked in this bucket, and perhaps in another one
	Detail     []string // one sentence for each question
}

// A StoreRefusal is what Probe fails with where the store takes no writes to the bucket at all, which has another name or is missing, for example. The
// client is told what it would have been told without a probe.
type StoreRefusal struct {
	Status  int    // 4xx
	Code    string // S3's
	Message string // the store's: its clients know it; "" if it gave none
}

func (e *StoreRefusal) Error() string { return "the store refuses all writes to the bucket: " + e.Code }

// settle is the settle time of an operation.
func (b Backend) settle(operation string) time.Duration {
	switch operation {
	case "CopyObject", "CompleteMultipartUpload", deleteObjects:
		return max(b.Settle, b.SettleLong)
	}
	return b.Settle
}

// remote says that the store is elsewhere: its writes may be late, and are prepared before the gate.
func (b Backend) remote() bool { return b.Probe != nil }

// conditional says whether an operation of S3 gets a condition from us. DeleteObjects has one for each of its keys.
func (b Backend) conditional(f Findings, operation string) bool {
	switch {
	case !b.remote() || b.Conditional == ConditionalOff:
		return false
	case f.Skipped != "":
		return b.Conditional == ConditionalOn && (slices.Contains(conditionable, operation) || operation == deleteObjects)
	}
	return f.honours(operation)
}

func (f Findings) honours(operation string) bool { return slices.Contains(f.Conditions, operation) }

// conditionable are the operations that S3 lets a client put a condition on.
var conditionable = []string{"PutObject", "CopyObject", "CompleteMultipartUpload", "DeleteObject"}

// creating are those of them that can be told not to overwrite.
var creating = conditionable[:3]

// deleteObjects carries a condition for each of its keys.
const deleteObjects = "DeleteObjects"
