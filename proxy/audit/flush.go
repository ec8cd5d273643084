package audit

import (
	"context"
	"time"
)

// background writes what gathers, and removes what is old at the start and every hour.
func (l *Log) background() {
	defer close(l.ended)
	retain := time.NewTicker(retainEvery)
	defer retain.Stop()
	l.retain()
	for {
		select {
		case <-l.gathered:
			if !l.sleep(flushDelay) {
				return
			}
			if err := l.flush(); err != nil {
				// What could not be written is still there: try again, and go on counting meanwhile.
				l.complain.say("the audit log cannot be written; its records wait in memory", "error", err)
				l.signal()
			}
		case <-retain.C:
			l.retain()
		case <-l.stop:
			return
		}
	}
}

// sleep says whether the log is still open after d.
func (l *Log) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.stop:
		return false
	}
}

// An update brings the record of a run up to the count in memory.
type update struct {
	run *run
	Count
}

// flush writes the counts and notes that have gathered. After a crash before it, at most a second of repeats and raises is not in
// the log.
//
// It cannot be cancelled: what a [Store] was not seen to have written is written again, until it was.
func (l *Log) flush() error {
	l.flushing.Lock()
	defer l.flushing.Unlock()
	for {
		updates, notes, more := l.gather()
		if len(updates)+len(notes) == 0 {
			return nil
		}
		counts := make([]Count, len(updates))
		for i, u := range updates {
			counts[i] = u.Count
		}
		err := l.store.Write(context.Background(), counts, notes)
		l.settle(updates, len(notes), err)
		if err != nil || !more {
			return err
		}
	}
}

func (l *Log) gather() (updates []update, notes []Record, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for u := range l.dirty {
		if u.id != 0 { // else its first one is on its way to the disk
			updates = append(updates, update{u, Count{u.id, u.count, u.last}})
		}
	}
	n := min(len(l.notes), notesBatch)
	return updates, l.notes[:n:n], n < len(l.notes)
}

// settle takes what was written out of what has gathered. What was not stays, within bounds.
func (l *Log) settle(updates []update, notes int, err error) {
	l.mu.Lock()
	if err == nil {
		for _, u := range updates {
			u.run.flushed = u.Count.Count
			if u.run.count == u.Count.Count {
				delete(l.dirty, u.run)
			}
		}
		l.notes = append([]Record(nil), l.notes[notes:]...)
	}
	var lost int64
	for u := range l.dirty {
		if len(l.dirty) <= l.options.maxRuns {
			break
		}
		if u.id != 0 {
			lost += u.count - u.flushed
			delete(l.dirty, u)
		}
	}
	l.mu.Unlock()
	if lost > 0 {
		l.failed(lost, err)
	}
}

// unwritten counts the events that are in memory only.
func (l *Log) unwritten() (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for u := range l.dirty {
		n += u.count - u.flushed
	}
	return n + int64(len(l.notes))
}

const retainBatch = 1_000

// retain removes the records whose last time is older than Keep, in batches, so that refusals do not wait for it.
func (l *Log) retain() {
	if l.options.Keep <= 0 {
		return
	}
	if err := l.flush(); err != nil {
		return // the disk may have older last times than memory
	}
	before := time.Now().Add(-l.options.Keep)
	for removed := int64(retainBatch); removed == retainBatch && l.sleep(0); {
		var err error
		if removed, err = l.store.Remove(context.Background(), before, retainBatch); err != nil {
			l.complain.say("old records cannot be removed from the audit log", "error", err)
			return
		}
	}
}
