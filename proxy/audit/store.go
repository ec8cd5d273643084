package audit

import (
	"context"
	"time"
)

// A Store keeps the records of a [Log]. Each call is one step: it takes effect whole, and durably before it returns nil. After an error it
// may have taken effect, or still may. Calls come from many goroutines at once; a store bounds in time what it does beyond this process.
//
// Records come bounded, and in UTF-8 without NUL. Times are kept to the millisecond.
type Store interface {
	// Insert writes one record and returns its id. Ids rise.
	Insert(ctx context.Context, r Record) (id int64, err error)

	// Write sets the counts of records that were inserted, and inserts others, all of it or nothing. One that is repeated after an error does no harm: a
	// count is not added, and a record whose Event is there already is not inserted again.
	Write(ctx context.Context, counts []Count, records []Record) error

	// Search returns the records that were asked for, the ones that began last first, and of those that began at once the one with the highest id.
	Search(ctx context.Context, q Search) ([]Record, error)

	// Refusals sums the counts of the refusals on each of the resources. Those that have none are left out.
	Refusals(ctx context.Context, resources []string) (map[string]int64, error)

	// Remove removes at most limit records that began and ended before a time, the oldest first, and says how many.
	Remove(ctx context.Context, before time.Time, limit int) (removed int64, err error)

	// Shared says that other processes write there, too, and that it shows what they have written.
	Shared() bool

	Close() error
}

// A Count is how often the event of a record has happened by now, and when last.
type Count struct {
	ID    int64
	Count int64
	Last  time.Time
}

// A Search is what a [Filter] asks of a [Store]. Empty fields ask nothing.
type Search struct {
	Kind, Code, Bucket, Resource, AccessKey string

	BeganFrom, LastFrom time.Time // began and ended no earlier; both or none. The first follows from the second, and bounds the walk along an index
	BeganBefore         time.Time
	Behind              *Place // in the order of the answer
	Limit               int    // of records, from 1 on
}

// A Place is that of one record in the order of an answer.
type Place struct {
	Time time.Time
	ID   int64
}
