package audit

import (
	"container/list"
	"time"
)

const (
	runGap = 10 * time.Minute // a refusal joins a run whose last one is younger than this

	// runLength bounds a run, so that a query for the last hour finds a run that began long before it without walking through
	// everything. A writer that is refused all week makes a record a day.
	runLength = 24 * time.Hour
)

// A runKey is what equal refusals have in common.
type runKey struct {
	resource  string
	token     int64
	accessKey string
	host      string
	code      string
}

func keyOf(r Record) runKey {
	return runKey{r.Resource, r.Token, r.AccessKey, host(r.Client), r.Code}
}

// A run is a run of equal refusals: one record.
type run struct {
	key     runKey
	element *list.Element
	written chan struct{} // closed when the first one has been written or has failed
	err     error         // why it failed; set before written is closed

	id      int64 // of the record, 0 until it is written
	first   time.Time
	last    time.Time
	count   int64
	flushed int64 // the count that is on disk
}

// runs are the runs that may go on. They are forgotten in the order in which they went quiet; a repeat of a forgotten one begins
// a new record, as one after a restart does.
type runs struct {
	limit int
	byKey map[runKey]*run
	order *list.List // of *run, the most recent first
}

func newRuns(limit int) *runs {
	return &runs{limit: limit, byKey: map[runKey]*run{}, order: list.New()}
}

// join counts r in its run. It says whether r is the first one of it, and then is to be written.
func (s *runs) join(r Record) (u *run, first bool) {
	key := keyOf(r)
	if u := s.byKey[key]; u != nil {
		if r.Time.Sub(u.last) < runGap && r.Last.Sub(u.first) < runLength {
			u.count += r.Count
			u.last = later(u.last, r.Last)
			s.order.MoveToFront(u.element)
			return u, false
		}
		s.remove(u)
	}
	u = &run{key: key, written: make(chan struct{}), first: r.Time, last: r.Last, count: r.Count, flushed: r.Count}
	u.element = s.order.PushFront(u)
	s.byKey[key] = u
	if s.order.Len() > s.limit {
		s.remove(s.order.Back().Value.(*run))
	}
	return u, true
}

// remove forgets a run, unless that has been done. What of it is not on disk yet stays dirty.
func (s *runs) remove(u *run) {
	if s.byKey[u.key] == u {
		delete(s.byKey, u.key)
		s.order.Remove(u.element)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
