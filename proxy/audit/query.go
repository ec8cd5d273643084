package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	s, err := f.search()
	if err != nil {
		return nil, "", err
	}
	l.flushForReader()
	records, err = l.store.Search(ctx, s)
	if err != nil {
		return nil, "", fmt.Errorf("read the audit log: %w", err)
	}
	if len(records) > f.Limit {
		records = records[:f.Limit]
		next = cursorOf(records[f.Limit-1])
	}
	if records == nil {
		records = []Record{}
	}
	if !l.store.Shared() {
		for i := range records {
			records[i].Instance = l.options.Instance
		}
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
	l.flushForReader()
	stored, err := l.store.Refusals(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	sums := make(map[string]int64, len(stored))
	for name, sum := range stored {
		sums[asked[name]] = sum
	}
	return sums, nil
}

// flushForReader lets a reader see what has gathered. If the disk is full it sees what is there, which is what it is needed for
// most then.
func (l *Log) flushForReader() {
	if err := l.flush(); err != nil {
		l.complain.say("the audit log cannot be written; its records wait in memory", "error", err)
	}
}

// search asks for one record more than the limit: whether there is another page.
func (f Filter) search() (Search, error) {
	s := Search{
		Kind: bounded(f.Kind, maxName), Code: bounded(f.Code, maxName), Bucket: bounded(f.Bucket, maxText),
		Resource: bounded(f.Resource, maxResource), AccessKey: bounded(f.AccessKey, maxText), Limit: f.Limit + 1,
	}
	if !f.Since.IsZero() {
		s.BeganFrom, s.LastFrom = f.Since.Add(-runLength), time.UnixMilli(ceilMilli(f.Since)) // see runLength
	}
	if !f.Until.IsZero() {
		s.BeganBefore = time.UnixMilli(ceilMilli(f.Until))
	}
	if f.After != "" {
		ms, id, err := parseCursor(f.After)
		if err != nil {
			return s, err
		}
		s.Behind = &Place{time.UnixMilli(ms), id}
	}
	return s, nil
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
