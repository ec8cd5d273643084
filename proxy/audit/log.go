// Package audit keeps the audit log: who was refused, who raised a fence, what an operator did, what a store left open.
//
// Refusals are on disk before they are answered. A writer that was refused comes back, though, often thousands of times, so equal
// refusals make a run, which is one record: the first one is written at once, the others raise its count and last time within a
// second.
package audit

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	addWait     = 2 * time.Second        // how long Add waits for the disk before the record counts as failed
	flushDelay  = 500 * time.Millisecond // how long repeats and notes gather before they are written together
	retainEvery = time.Hour
	maxRuns     = 10_000 // runs whose repeats are recognised, the ones that were quiet longest go first
	maxNotes    = 10_000 // notes that may wait for the disk
	notesBatch  = 1_000  // notes in one transaction: refusals wait behind it
)

// Options of Open.
type Options struct {
	Keep time.Duration // how long records are kept after their last time; 0: for ever
	Log  *slog.Logger  // told of records that could not be written; nil: nobody is told

	Instance string // what this process is called in its records

	maxRuns, maxNotes int // 0: the constants
}

// A Log is an open audit log. Its methods may be called from many goroutines at once.
type Log struct {
	store    Store
	options  Options
	failures atomic.Int64
	complain complainer

	gathered chan struct{} // holds one token while there is something to flush
	stop     chan struct{}
	ended    chan struct{}  // closed when the background goroutine has returned
	adds     sync.WaitGroup // calls of Add; it is added to under mu while closed is false
	flushing sync.Mutex     // one flush at a time; held while it writes, taken before mu

	mu     sync.Mutex
	closed bool              // guarded by mu
	runs   *runs             // guarded by mu, as are the fields of each run
	dirty  map[*run]struct{} // guarded by mu: the disk does not have all of their counts
	notes  []Record          // guarded by mu: not yet written, oldest first
}

// New returns a log over a store, which it owns from then on.
func New(s Store, o Options) *Log {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.maxRuns == 0 {
		o.maxRuns = maxRuns
	}
	if o.maxNotes == 0 {
		o.maxNotes = maxNotes
	}
	l := &Log{
		store:    s,
		options:  o,
		complain: complainer{log: o.Log},
		gathered: make(chan struct{}, 1),
		stop:     make(chan struct{}),
		ended:    make(chan struct{}),
		runs:     newRuns(o.maxRuns),
		dirty:    map[*run]struct{}{},
	}
	go l.background()
	return l
}

// Add writes r; it is on disk when Add returns. A refusal that repeats an earlier one is only counted, and is on disk within a
// second.
//
// Add never fails. What cannot be written within two seconds is counted in [Log.Failures] and told to the log: an audit log
// that is full neither opens the fence nor answers a client. The end of ctx does not end it, for a client that hangs up when it
// is refused would leave no trace.
func (l *Log) Add(ctx context.Context, r Record) {
	r = l.complete(r)
	if !l.enter() {
		l.failed(1, errClosed)
		return
	}
	defer l.adds.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), addWait)
	defer cancel()
	var err error
	if r.Kind == KindRefusal {
		err = l.addRefusal(ctx, r)
	} else {
		_, err = l.store.Insert(ctx, r)
	}
	if err != nil {
		l.failed(1, err)
	}
}

// addRefusal writes the first refusal of a run and counts the others. Whoever comes while the first is being written waits for
// it: a repeat is answered only once its run has a record.
func (l *Log) addRefusal(ctx context.Context, r Record) error {
	l.mu.Lock()
	u, first := l.runs.join(r)
	if !first {
		l.markDirty(u)
	}
	l.mu.Unlock()
	if !first {
		<-u.written // soon: who writes it waits for addWait at most
		return u.err
	}

	id, err := l.store.Insert(ctx, r)
	l.mu.Lock()
	u.id, u.err = id, err
	if err != nil {
		l.runs.remove(u) // the next refusal tries again; the repeats so far each count themselves as failed
		delete(l.dirty, u)
	} else if u.count > u.flushed {
		l.signal() // a flush in the meantime has passed them over
	}
	l.mu.Unlock()
	close(u.written)
	return err
}

// enter begins an Add, unless the log is closed.
func (l *Log) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.adds.Add(1)
	return true
}

// Note has r written within a second, and does not wait for it.
func (l *Log) Note(r Record) {
	r = l.complete(r)
	r.Event = rand.Text() // it may be written twice: see [Store]
	if err := l.note(r); err != nil {
		l.failed(1, err)
	}
}

// Shared says that other processes write to the log, too, and that a query shows what they have written.
func (l *Log) Shared() bool { return l.store.Shared() }

// complete is r as it is stored.
func (l *Log) complete(r Record) Record {
	r.Instance = l.options.Instance
	return r.normal(time.Now())
}

var (
	errClosed       = errors.New("the audit log is closed")
	errTooManyNotes = errors.New("too many records wait for the disk")
)

func (l *Log) note(r Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return errClosed
	case len(l.notes) >= l.options.maxNotes:
		return errTooManyNotes
	}
	l.notes = append(l.notes, r)
	l.signal()
	return nil
}

// markDirty is called with mu held.
func (l *Log) markDirty(u *run) {
	l.dirty[u] = struct{}{}
	l.signal()
}

func (l *Log) signal() {
	select {
	case l.gathered <- struct{}{}:
	default: // the background goroutine has not seen the last one yet
	}
}

// Failures returns how many events could not be written since the log was opened. One whose write timed out counts, though it may
// be there.
func (l *Log) Failures() int64 { return l.failures.Load() }

func (l *Log) failed(n int64, err error) {
	l.complain.say("an event could not be written to the audit log", "error", err, "failures", l.failures.Add(n))
}

// Close writes what has gathered and closes the store. An Add or a Note that comes later counts as failed.
func (l *Log) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return nil
	}
	l.adds.Wait()
	close(l.stop)
	<-l.ended

	err := l.flush()
	if lost := l.unwritten(); lost > 0 {
		l.failed(lost, err)
	}
	return errors.Join(err, l.store.Close())
}

// A complainer keeps a disk that fails every request from filling the log, too.
type complainer struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time // guarded by mu
}

const complainEvery = 10 * time.Second

func (c *complainer) say(what string, args ...any) {
	c.mu.Lock()
	silent := !c.last.IsZero() && time.Since(c.last) < complainEvery
	if !silent {
		c.last = time.Now()
	}
	c.mu.Unlock()
	if !silent {
		c.log.Error(what, args...)
	}
}
