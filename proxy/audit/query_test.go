package audit

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
)

// matches is what a filter means.
func (f Filter) matches(r Record) bool {
	is := func(want, got string) bool { return want == "" || want == got }
	return is(f.Kind, r.Kind) && is(f.Code, r.Code) && is(f.Bucket, r.Bucket) && is(f.Resource, r.Resource) &&
		is(f.AccessKey, r.AccessKey) && (f.Since.IsZero() || !r.Last.Before(f.Since)) && (f.Until.IsZero() || r.Time.Before(f.Until))
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func drawTime(t *rapid.T, label string) time.Time {
	return epoch.Add(time.Duration(rapid.Int64Range(0, 40).Draw(t, label)) * time.Hour)
}

func drawRecord(t *rapid.T) Record {
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	r := Record{
		Time: drawTime(t, "time"), Count: rapid.Int64Range(1, 3).Draw(t, "count"),
		Kind: one("kind", KindRefusal, KindRaise), Code: one("code", "", "StaleToken"), Bucket: one("bucket", "a", "b"),
		Resource: one("resource", "a/x", "a/y", "b/x"), AccessKey: one("access key", "", "K"),
	}
	r.Last = r.Time.Add(time.Duration(rapid.IntRange(0, 23).Draw(t, "length")) * time.Hour)
	return r
}

func drawFilter(t *rapid.T) (f Filter) {
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	f.Kind, f.Code, f.Bucket = one("kind", "", KindRefusal), one("code", "", "StaleToken"), one("bucket", "", "a")
	f.Resource, f.AccessKey = one("resource", "", "", "a/x"), one("access key", "", "K")
	if rapid.Bool().Draw(t, "has since") {
		f.Since = drawTime(t, "since").Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "off")))
	}
	if rapid.Bool().Draw(t, "has until") {
		f.Until = drawTime(t, "until").Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "off")))
	}
	return f
}

func TestFiltersAndPaging(t *testing.T) {
	l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
	rapid.Check(t, func(t *rapid.T) {
		var all []Record
		for range rapid.IntRange(0, 25).Draw(t, "records") {
			all = append(all, drawRecord(t))
		}
		replaceAll(t, l, all)
		f := drawFilter(t)
		var want []Record
		for _, r := range all {
			if f.matches(r) {
				want = append(want, r)
			}
		}
		slices.SortFunc(want, func(a, b Record) int {
			if c := b.Time.Compare(a.Time); c != 0 {
				return c
			}
			return int(b.ID - a.ID)
		})
		f.Limit = rapid.IntRange(1, 5).Draw(t, "limit")
		if got := walk(t, l, f); !slices.Equal(got, want) {
			t.Fatalf("%+v: got\n%+v, want\n%+v", f, got, want)
		}

		sums := map[string]int64{}
		for _, r := range all {
			if r.Kind == KindRefusal && r.Resource != "b/x" {
				sums[r.Resource] += r.Count
			}
		}
		got, err := l.Refusals(context.Background(), []string{"a/x", "a/y", "nobody's"})
		if err != nil || len(got) != len(sums) || got["a/x"] != sums["a/x"] || got["a/y"] != sums["a/y"] {
			t.Fatalf("Refusals = %v (%v), want %v", got, err, sums)
		}
	})
}

// replaceAll makes records the whole log, and gives them their ids.
func replaceAll(t *rapid.T, l *Log, records []Record) {
	err := fileOf(l).Write(context.Background(), func(tx *sqlitedb.Tx) error {
		_, err := tx.Exec(`DELETE FROM record`)
		for i := range records {
			if err == nil {
				records[i].ID, err = insertTx(tx, records[i])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// walk reads page by page, and writes a newer record between two pages: it must not shift anything.
func walk(t *rapid.T, l *Log, f Filter) (all []Record) {
	for {
		page, next, err := l.Query(context.Background(), f)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) > f.Limit || next != "" && len(page) < f.Limit {
			t.Fatalf("a page of %d with limit %d, next %q", len(page), f.Limit, next)
		}
		all = append(all, page...)
		if next == "" {
			return all
		}
		f.After = next
		newer := Record{Time: epoch.Add(100 * time.Hour), Last: epoch.Add(100 * time.Hour), Count: 1, Kind: KindReset, Bucket: "z"}
		if _, err := l.store.Insert(context.Background(), newer); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryFilterWalksAnIndex(t *testing.T) {
	l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
	window := Filter{Since: epoch, Until: epoch.Add(time.Hour), After: "1.1"}
	for index, f := range map[string]Filter{
		"record_time":       {},
		"record_kind":       {Kind: KindRaise},
		"record_code":       {Code: "StaleToken"},
		"record_bucket":     {Bucket: "b"},
		"record_resource":   {Resource: "b/x"},
		"record_access_key": {AccessKey: "AK"},
	} {
		windowed := f
		windowed.Since, windowed.Until, windowed.After = window.Since, window.Until, window.After
		for _, f := range []Filter{f, windowed} {
			q, err := f.search()
			if err != nil {
				t.Fatal(err)
			}
			query, args := searchSQL(q)
			plan := explain(t, l, query, args...)
			if !strings.Contains(plan, "INDEX "+index) || strings.Contains(plan, "TEMP B-TREE") {
				t.Errorf("%s: %s", index, plan)
			}
			if f.After != "" && !strings.Contains(plan, "SEARCH") {
				t.Errorf("%s in a window: %s", index, plan)
			}
		}
	}
	if plan := explain(t, l, countRefusals, `["b/x"]`); !strings.Contains(plan, "COVERING INDEX record_refusals") {
		t.Errorf("refusals: %s", plan)
	}
}

func explain(t *testing.T, l *Log, query string, args ...any) string {
	t.Helper()
	rows, err := fileOf(l).Reader().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	return strings.Join(plan, "; ")
}

func TestQueryCountsWhatIsNotOnDiskYet(t *testing.T) {
	l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
	for range 3 {
		l.Add(t.Context(), refusal())
	}
	l.Note(Record{Kind: KindRaise})
	records, _, err := l.Query(t.Context(), Filter{})
	if err != nil || len(records) != 2 || records[0].Count+records[1].Count != 4 {
		t.Errorf("got %+v (%v), want the raise and a run of 3", records, err)
	}
}

func TestBadCursor(t *testing.T) {
	l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
	for _, after := range []string{"x", "1", "1.", "1.2.3", "1.2 ", "+1.2", "99999999999999999999.1"} {
		if _, _, err := l.Query(t.Context(), Filter{After: after}); !errors.Is(err, ErrBadCursor) {
			t.Errorf("after=%q: %v, want ErrBadCursor", after, err)
		}
	}
}
