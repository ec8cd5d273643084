package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// A Filter says which records are asked for. Its empty fields do not filter.
type Filter struct {
	Since time.Time // records that were still going on then, or came later
	Until time.Time // records that began before it

	Kind, Code, Bucket, Resource, AccessKey string

	After string // where the page before ended: the next that came with it
	Limit int    // of records: 1 to MaxLimit; 0 for DefaultLimit
}

// Limits of the number of records in one answer.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// ErrBadCursor says that Filter.After did not come from a query.
var ErrBadCursor = errors.New("not a place in the audit log: pass on what came as next")

// Query returns the records that f lets through, the ones that began last first, and where the next page begins: "" after the last
// one. Records that come between two pages shift nothing. The counts are the ones of now.
func (l *Log) Query(ctx context.Context, f Filter) (records []Record, next string, err error) {
	if f.Limit == 0 {
		f.Limit = DefaultLimit
	}
	f.Limit = min(max(f.Limit, 1), MaxLimit)
	query, args, err := f.sql()
	if err != nil {
		return nil, "", err
	}
	l.flushForReader()
	rows, err := l.db.Reader().QueryContext(ctx, query, args...)
	if err != nil {
		return nil, "", fmt.Errorf("read the audit log: %w", err)
	}
	defer rows.Close()
	records = make([]Record, 0, f.Limit)
	for rows.Next() {
		if len(records) == f.Limit {
			next = cursorOf(records[f.Limit-1])
			break
		}
		r, err := scan(rows)
		if err != nil {
			return nil, "", fmt.Errorf("read the audit log: %w", err)
		}
		records = append(records, r)
	}
	if err := rows.Err(); err != nil {
		return nil, "", fmt.Errorf("read the audit log: %w", err)
	}
	return records, next, nil
}

// Refusals returns how often requests on each of the resources were refused, as far back as records are kept. Resources without
// refusals are left out.
func (l *Log) Refusals(ctx context.Context, resources []string) (map[string]int64, error) {
	asked := make(map[string]string, len(resources)) // by the name they are stored under
	names := make([]string, 0, len(resources))
	for _, r := range resources {
		stored := bounded(r, maxResource)
		asked[stored] = r
		names = append(names, stored)
	}
	list, err := json.Marshal(names)
	if err != nil {
		return nil, err
	}
	l.flushForReader()
	rows, err := l.db.Reader().QueryContext(ctx, countRefusals, string(list))
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer rows.Close()
	sums := map[string]int64{}
	for rows.Next() {
		var resource string
		var sum int64
		if err := rows.Scan(&resource, &sum); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		sums[asked[resource]] = sum
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return sums, nil
}

const countRefusals = `SELECT resource, sum(count) FROM record INDEXED BY record_refusals
	WHERE kind = 'refusal' AND resource IN (SELECT value FROM json_each(?)) GROUP BY resource`

// flushForReader lets a reader see what has gathered. If the disk is full it sees what is there, which is what it is needed for
// most then.
func (l *Log) flushForReader() {
	if err := l.flush(); err != nil {
		l.complain.say("the audit log cannot be written; its records wait in memory", "error", err)
	}
}

// sql returns the query for one record more than the limit: whether there is another page.
func (f Filter) sql() (query string, args []any, err error) {
	var where []string
	add := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	for _, c := range []struct {
		column, value string
		limit         int
	}{
		{"kind", f.Kind, maxName},
		{"code", f.Code, maxName},
		{"bucket", f.Bucket, maxText},
		{"resource", f.Resource, maxResource},
		{"access_key", f.AccessKey, maxText},
	} {
		if c.value != "" {
			add(c.column+" = ?", bounded(c.value, c.limit))
		}
	}
	if !f.Since.IsZero() {
		// The first bound ends the walk along the index, the second one is the question; see runLength.
		add("time >= ? AND last >= ?", f.Since.Add(-runLength).UnixMilli(), ceilMilli(f.Since))
	}
	if !f.Until.IsZero() {
		add("time < ?", ceilMilli(f.Until))
	}
	if f.After != "" {
		t, id, err := parseCursor(f.After)
		if err != nil {
			return "", nil, err
		}
		add("(time, id) < (?, ?)", t, id)
	}
	query = "SELECT id, " + columns + " FROM record"
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	return query + " ORDER BY time DESC, id DESC LIMIT ?", append(args, f.Limit+1), nil
}

// ceilMilli is the first whole millisecond that is not before t, for the times in the log are cut to theirs.
func ceilMilli(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) && ms < math.MaxInt64 {
		ms++
	}
	return ms
}

// A cursor names the record that a page ended with by what it is sorted by, which never changes; the record itself may be gone
// when the next page is asked for.
func cursorOf(r Record) string { return fmt.Sprintf("%d.%d", r.Time.UnixMilli(), r.ID) }

func parseCursor(s string) (ms, id int64, err error) {
	if _, err := fmt.Sscanf(s, "%d.%d", &ms, &id); err != nil || s != fmt.Sprintf("%d.%d", ms, id) {
		return 0, 0, fmt.Errorf("%.40q is %w", s, ErrBadCursor)
	}
	return ms, id, nil
}
