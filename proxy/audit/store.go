package audit

import (
	"context"
	"database/sql"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
)

// schema: times are Unix milliseconds. Every index ends in the time (and SQLite adds the id), so that a filter walks one of them
// backwards and stops at its limit.
var schema = sqlitedb.Schema{
	ApplicationID: 0x66704175, // "fpAu"
	Name:          "audit log",
	Versions: []string{`
		CREATE TABLE record (
			id         INTEGER PRIMARY KEY AUTOINCREMENT,
			time       INTEGER NOT NULL,
			last       INTEGER NOT NULL,
			count      INTEGER NOT NULL,
			kind       TEXT NOT NULL,
			code       TEXT NOT NULL,
			bucket     TEXT NOT NULL,
			key        TEXT NOT NULL,
			operation  TEXT NOT NULL,
			resource   TEXT NOT NULL,
			token      INTEGER NOT NULL,
			highest    INTEGER NOT NULL,
			holder     TEXT NOT NULL,
			access_key TEXT NOT NULL,
			client     TEXT NOT NULL,
			user_agent TEXT NOT NULL,
			request_id TEXT NOT NULL,
			detail     TEXT NOT NULL
		) STRICT;
		CREATE INDEX record_time ON record (time);
		CREATE INDEX record_kind ON record (kind, time);
		CREATE INDEX record_code ON record (code, time);
		CREATE INDEX record_bucket ON record (bucket, time);
		CREATE INDEX record_resource ON record (resource, time);
		CREATE INDEX record_access_key ON record (access_key, time);
		CREATE INDEX record_refusals ON record (resource, count) WHERE kind = 'refusal';`},
}

const columns = `time, last, count, kind, code, bucket, key, operation, resource, token, highest, holder, access_key, client,
	user_agent, request_id, detail`

const insertRecord = `INSERT INTO record (` + columns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// insert writes one record and returns its id.
func (l *Log) insert(ctx context.Context, r Record) (int64, error) {
	var id int64
	err := l.db.Write(ctx, func(tx *sqlitedb.Tx) (err error) {
		id, err = insertTx(tx, r)
		return err
	})
	if err != nil {
		return 0, err // and id may still be written to
	}
	return id, nil
}

func insertTx(tx *sqlitedb.Tx, r Record) (int64, error) {
	res, err := tx.Exec(insertRecord, r.Time.UnixMilli(), r.Last.UnixMilli(), r.Count, r.Kind, r.Code, r.Bucket, r.Key, r.Operation,
		r.Resource, r.Token, r.Highest, r.Holder, r.AccessKey, r.Client, r.UserAgent, r.RequestID, r.Detail)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

func scan(rows *sql.Rows) (r Record, err error) {
	var first, last int64
	err = rows.Scan(&r.ID, &first, &last, &r.Count, &r.Kind, &r.Code, &r.Bucket, &r.Key, &r.Operation, &r.Resource, &r.Token,
		&r.Highest, &r.Holder, &r.AccessKey, &r.Client, &r.UserAgent, &r.RequestID, &r.Detail)
	r.Time, r.Last = time.UnixMilli(first).UTC(), time.UnixMilli(last).UTC()
	return r, err
}

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

// An update brings the record of a run up to the count in memory. It names the count and not the difference: one that is written
// twice, for the first try seemed to fail, does no harm.
type update struct {
	run   *run
	id    int64
	last  time.Time
	count int64
}

// flush writes the counts and notes that have gathered. After a crash before it, at most a second of repeats and raises is not in
// the log.
//
// It cannot be cancelled: a write whose outcome is unknown would have to be repeated, and would double the notes.
func (l *Log) flush() error {
	l.flushing.Lock()
	defer l.flushing.Unlock()
	for {
		updates, notes, more := l.gather()
		if len(updates)+len(notes) == 0 {
			return nil
		}
		err := l.db.Write(context.Background(), func(tx *sqlitedb.Tx) error { return writeGathered(tx, updates, notes) })
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
			updates = append(updates, update{u, u.id, u.last, u.count})
		}
	}
	n := min(len(l.notes), notesBatch)
	return updates, l.notes[:n:n], n < len(l.notes)
}

func writeGathered(tx *sqlitedb.Tx, updates []update, notes []Record) error {
	for _, u := range updates {
		_, err := tx.Exec(`UPDATE record SET count = ?, last = ? WHERE id = ?`, u.count, u.last.UnixMilli(), u.id)
		if err != nil {
			return err
		}
	}
	for _, r := range notes {
		if _, err := insertTx(tx, r); err != nil {
			return err
		}
	}
	return nil
}

// settle takes what was written out of what has gathered. What was not stays, within bounds.
func (l *Log) settle(updates []update, notes int, err error) {
	l.mu.Lock()
	if err == nil {
		for _, u := range updates {
			u.run.flushed = u.count
			if u.run.count == u.count {
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
	before := time.Now().Add(-l.options.Keep).UnixMilli()
	for removed := int64(retainBatch); removed == retainBatch && l.sleep(0); {
		err := l.db.Write(context.Background(), func(tx *sqlitedb.Tx) error {
			res, err := tx.Exec(`DELETE FROM record WHERE id IN
				(SELECT id FROM record WHERE time < ?1 AND last < ?1 ORDER BY time LIMIT ?2)`, before, retainBatch)
			if err != nil {
				return err
			}
			removed, err = res.RowsAffected()
			return err
		})
		if err != nil {
			l.complain.say("old records cannot be removed from the audit log", "error", err)
			return
		}
	}
}
