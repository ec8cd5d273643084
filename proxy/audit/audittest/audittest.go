// Package audittest holds every store of the audit log to its contract, and a log over it to what it promises.
package audittest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
)

// Run runs all cases. Each call of place makes an empty audit log somewhere, and what it returns opens it, as often as it is called.
func Run(t *testing.T, place func(t *testing.T) (open func() audit.Store)) {
	t.Run("Filters", func(t *testing.T) { testFilters(t, place(t)()) })
	for name, test := range map[string]func(*testing.T, func() audit.Store){
		"Restart": testRestart, "Remove": testRemove, "OddText": testOddText,
	} {
		t.Run(name, func(t *testing.T) { test(t, place(t)) })
	}
	for name, test := range map[string]func(*testing.T, func() audit.Store){
		"FirstRefusal": testFirstRefusal, "Runs": testRuns, "ConcurrentRefusals": testConcurrentRefusals, "RepeatDuringFlush": testRepeatDuringFlush,
		"LostAnswer": testLostAnswer, "CloseWaitsForAdds": testCloseWaitsForAdds, "Away": testAway, "Retention": testRetention,
	} {
		t.Run(name, func(t *testing.T) {
			open := place(t)
			synctest.Test(t, func(t *testing.T) { test(t, open) })
		})
	}
}

// A log with its store, which can be looked at behind the log's back, held up, and made to fail.
type harness struct {
	*audit.Log
	*tamperedStore
}

func start(t *testing.T, open func() audit.Store, o audit.Options) harness {
	t.Helper()
	s := &tamperedStore{Store: open()}
	l := audit.New(s, o)
	t.Cleanup(func() { _ = l.Close() })
	return harness{l, s}
}

// tamperedStore is a store in trouble.
type tamperedStore struct {
	audit.Store

	mu   sync.Mutex
	gate chan struct{} // where it is not nil, writes wait until it is closed; guarded by mu
	err  error         // where it is not nil, writes fail; guarded by mu
	late bool          // they fail after they took effect; guarded by mu
}

// stall holds every write up until release is called.
func (s *tamperedStore) stall() (release func()) {
	gate := make(chan struct{})
	s.set(gate, nil, false)
	return sync.OnceFunc(func() {
		s.set(nil, nil, false)
		close(gate)
	})
}

func (s *tamperedStore) set(gate chan struct{}, err error, late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate, s.err, s.late = gate, err, late
}

func (s *tamperedStore) write(ctx context.Context, f func() error) error {
	s.mu.Lock()
	gate, failure, late := s.gate, s.err, s.late
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if failure != nil && !late {
		return failure
	}
	if err := f(); err != nil {
		return err
	}
	return failure
}

func (s *tamperedStore) Insert(ctx context.Context, r audit.Record) (id int64, err error) {
	err = s.write(ctx, func() error {
		id, err = s.Store.Insert(ctx, r)
		return err
	})
	return id, err
}

func (s *tamperedStore) Write(ctx context.Context, counts []audit.Count, records []audit.Record) error {
	return s.write(ctx, func() error { return s.Store.Write(ctx, counts, records) })
}

// stored returns what the store has, the newest first, without what the log has not written yet.
func (h harness) stored(t *testing.T) []audit.Record {
	t.Helper()
	all, err := h.Store.Search(context.Background(), audit.Search{Limit: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func refusal() audit.Record {
	return audit.Record{
		Kind: audit.KindRefusal, Code: "StaleToken", Bucket: "b", Key: "jobs/42/out", Operation: "PutObject", Resource: "b/jobs/42",
		Token: 33, Highest: 34, Holder: "a", AccessKey: "AK", Client: "10.0.0.1:5000", UserAgent: "Boto3/1.40", RequestID: "R1",
	}
}

func testFirstRefusal(t *testing.T, open func() audit.Store) {
	h := start(t, open, audit.Options{Instance: "one:9000"})
	began := time.Now().UTC()
	h.Add(t.Context(), refusal())
	want := refusal()
	want.ID, want.Time, want.Last, want.Count = 1, began, began, 1
	if h.Shared() {
		want.Instance = "one:9000"
	}
	if got := h.stored(t); len(got) != 1 || got[0] != want {
		t.Fatalf("when Add returned there was %+v, want %+v", got, want)
	}

	time.Sleep(time.Minute)
	for port := range 1000 { // a client has a port for every connection
		r := refusal()
		r.Client = fmt.Sprintf("10.0.0.1:%d", 1024+port)
		h.Add(t.Context(), r)
	}
	last := time.Now().UTC()
	time.Sleep(time.Second)
	want.Count, want.Last = 1001, last
	if got := h.stored(t); len(got) != 1 || got[0] != want {
		t.Fatalf("a second after the repeats there was %+v, want %+v", got, want)
	}
	want.Instance = "one:9000"
	if got, _, err := h.Query(t.Context(), audit.Filter{}); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("a query says %+v (%v), want %+v", got, err, want)
	}
}

func testRuns(t *testing.T, open func() audit.Store) {
	const gap = 10 * time.Minute
	h := start(t, open, audit.Options{})
	h.Add(t.Context(), refusal())
	for _, change := range []func(*audit.Record){
		func(r *audit.Record) { r.Resource = "b/jobs/43" },
		func(r *audit.Record) { r.Token = 32 },
		func(r *audit.Record) { r.AccessKey = "BK" },
		func(r *audit.Record) { r.Client = "10.0.0.2:5000" },
		func(r *audit.Record) { r.Code = "TokenConflict" },
	} {
		r := refusal()
		change(&r)
		h.Add(t.Context(), r)
	}
	if got := len(h.stored(t)); got != 6 {
		t.Errorf("%d records of 6 different refusals", got)
	}

	time.Sleep(gap - time.Millisecond)
	h.Add(t.Context(), refusal())
	time.Sleep(gap)
	h.Add(t.Context(), refusal())
	if got := len(h.stored(t)); got != 7 {
		t.Errorf("%d records, want 7: a refusal within 10 minutes joins its run, one after it begins another", got)
	}

	for range 24 * 60 / 9 {
		time.Sleep(9 * time.Minute)
		h.Add(t.Context(), refusal())
	}
	time.Sleep(9 * time.Minute)
	h.Add(t.Context(), refusal())
	if got := len(h.stored(t)); got != 8 {
		t.Errorf("%d records, want 8: a run ends after a day", got)
	}
}

func testConcurrentRefusals(t *testing.T, open func() audit.Store) {
	h := start(t, open, audit.Options{})
	release := h.stall()
	var returned sync.WaitGroup
	for range 50 {
		returned.Go(func() {
			h.Add(t.Context(), refusal())
			if len(h.stored(t)) != 1 {
				t.Error("Add returned before the run had its record")
			}
		})
	}
	time.Sleep(time.Second) // a flush comes by and finds the run without an id
	release()
	returned.Wait()
	time.Sleep(time.Second)
	if got := h.stored(t); len(got) != 1 || got[0].Count != 50 {
		t.Errorf("got %+v, want one record that counts 50", got)
	}
	if n := h.Failures(); n != 0 {
		t.Errorf("%d failures", n)
	}
}

// A repeat that comes while the count before it is being written must not be taken for written.
func testRepeatDuringFlush(t *testing.T, open func() audit.Store) {
	h := start(t, open, audit.Options{})
	h.Add(t.Context(), refusal())
	release := h.stall()
	h.Add(t.Context(), refusal())
	time.Sleep(time.Second) // the flush waits, with a count of 2
	h.Add(t.Context(), refusal())
	release()
	time.Sleep(time.Second)
	if got := h.stored(t); len(got) != 1 || got[0].Count != 3 {
		t.Errorf("got %+v, want one record that counts 3", got)
	}
}

// What was written, and not seen to have been, is written again and is there once.
func testLostAnswer(t *testing.T, open func() audit.Store) {
	h := start(t, open, audit.Options{})
	if !h.Shared() {
		t.Skip("the answer of a store in this process cannot be lost")
	}
	h.Add(t.Context(), refusal())
	h.set(nil, fmt.Errorf("the answer was lost"), true)
	h.Add(t.Context(), refusal())
	for i := range 3 {
		h.Note(audit.Record{Kind: audit.KindRaise, Resource: "b/jobs/42", Token: int64(i)})
	}
	time.Sleep(3 * time.Second) // several tries
	h.set(nil, nil, false)
	h.Note(audit.Record{Kind: audit.KindRaise, Resource: "b/jobs/42", Token: 3})
	time.Sleep(time.Second)
	got := h.stored(t)
	if len(got) != 5 {
		t.Errorf("%d records, want a refusal and 4 raises, each once: %+v", len(got), got)
	}
	for _, r := range got {
		if r.Kind == audit.KindRefusal && r.Count != 2 {
			t.Errorf("the refusal counts %d, want 2", r.Count)
		}
	}
}

func testCloseWaitsForAdds(t *testing.T, open func() audit.Store) {
	h := start(t, open, audit.Options{})
	release := h.stall()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { h.Add(t.Context(), refusal()) })
	}
	time.Sleep(100 * time.Millisecond)
	wg.Go(func() {
		if err := h.Log.Close(); err != nil {
			t.Error(err)
		}
	})
	time.Sleep(100 * time.Millisecond)
	release()
	wg.Wait()
	if got := start(t, open, audit.Options{}).stored(t); len(got) != 1 || got[0].Count != 3 {
		t.Errorf("got %+v, want one record that counts 3", got)
	}
}

// A store that does not answer costs a refusal two seconds, and is counted; when it is back, what could wait is written.
func testAway(t *testing.T, open func() audit.Store) {
	h := start(t, open, audit.Options{})
	release := h.stall()
	began := time.Now()
	h.Add(t.Context(), refusal())
	if d := time.Since(began); d != 2*time.Second || h.Failures() != 1 {
		t.Errorf("Add took %v, and there are %d failures; want 2s and 1", d, h.Failures())
	}
	h.Note(audit.Record{Kind: audit.KindRaise})
	release()
	h.Add(t.Context(), refusal())
	time.Sleep(11 * time.Second)
	if got := h.stored(t); len(got) != 2 || h.Failures() != 1 {
		t.Errorf("%d failures, and there are %+v; want 1, a raise and the second refusal", h.Failures(), got)
	}
}

func testRestart(t *testing.T, open func() audit.Store) {
	for range 3 {
		h := start(t, open, audit.Options{})
		for range 5 {
			h.Add(t.Context(), refusal())
		}
		h.Note(audit.Record{Kind: audit.KindRaise, Resource: "b/jobs/42", Token: 35})
		if err := h.Log.Close(); err != nil {
			t.Fatal(err)
		}
	}
	h := start(t, open, audit.Options{})
	refused, err := h.Refusals(t.Context(), []string{"b/jobs/42", "b/other"})
	if err != nil || len(refused) != 1 || refused["b/jobs/42"] != 15 {
		t.Errorf("refusals %v (%v), want 15 of b/jobs/42 alone", refused, err)
	}
	if all := h.stored(t); len(all) != 6 {
		t.Errorf("%d records, want 3 runs and 3 raises", len(all))
	}
}

// Refusals counts a resource once, however often it is asked for, and Log.Query shows the longest name that is kept.
func testOddText(t *testing.T, open func() audit.Store) {
	h := start(t, open, audit.Options{})
	long := "b/" + strings.Repeat("é", 4000)
	for _, resource := range []string{long, "b/\x00\xff'\"\\%_", "b/ \t\n$1"} {
		r := refusal()
		r.Resource, r.Key, r.UserAgent = resource, resource, resource
		h.Add(t.Context(), r)
		got, _, err := h.Query(t.Context(), audit.Filter{Resource: resource})
		if err != nil || len(got) != 1 {
			t.Errorf("%.20q: %d records (%v), want 1", resource, len(got), err)
		}
		sums, err := h.Refusals(t.Context(), []string{resource, resource})
		if err != nil || sums[resource] != 1 {
			t.Errorf("%.20q was refused %v times (%v), want 1", resource, sums, err)
		}
	}
	if n := h.Failures(); n != 0 {
		t.Errorf("%d failures", n)
	}
}

func testRemove(t *testing.T, open func() audit.Store) {
	s := open()
	defer s.Close()
	now := time.Now().UTC().Truncate(time.Millisecond)
	for i := range 5 {
		r := refusal()
		r.Time, r.Count = now.Add(-time.Duration(i)*time.Hour), 1
		r.Last = r.Time
		if i == 4 {
			r.Last = now // a run that goes on
		}
		if _, err := s.Insert(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int64{2, 1, 0} {
		if got, err := s.Remove(t.Context(), now, 2); err != nil || got != want {
			t.Errorf("removed %d (%v), want %d", got, err, want)
		}
	}
	left, err := s.Search(t.Context(), audit.Search{Limit: 9})
	if err != nil || len(left) != 2 || left[0].Time != now || left[1].Last != now {
		t.Errorf("left are %+v (%v), want the newest and the one that went on", left, err)
	}
}

func testRetention(t *testing.T, open func() audit.Store) {
	const keep = 90 * 24 * time.Hour
	s := open()
	old := make([]audit.Record, 2001)
	add := func(r audit.Record) audit.Record {
		r.Count = 1
		if r.Last.IsZero() {
			r.Last = r.Time
		}
		return r
	}
	now := time.Now()
	for i := range old {
		old[i] = add(audit.Record{Kind: audit.KindRaise, Time: now.Add(-keep - time.Duration(i+1)*time.Second), Detail: "old"})
	}
	old = append(old, add(audit.Record{Kind: audit.KindRefusal, Time: now.Add(-keep - time.Hour), Last: now, Detail: "went on"}),
		add(audit.Record{Kind: audit.KindReset, Time: now.Add(-keep + 30*time.Minute), Detail: "soon"}))
	if err := s.Write(t.Context(), nil, old); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h := start(t, open, audit.Options{Keep: keep})
	details := func() (all string) {
		for _, r := range h.stored(t) {
			all += r.Detail + ","
		}
		return all
	}
	time.Sleep(time.Minute)
	if got := details(); got != "soon,went on," {
		t.Errorf("after the start: %.100s", got)
	}
	time.Sleep(time.Hour)
	if got := details(); got != "went on," {
		t.Errorf("an hour later: %s", got)
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// testFilters holds filters and paging to what a filter means, whatever is in the log.
func testFilters(t *testing.T, s audit.Store) {
	l := audit.New(s, audit.Options{})
	defer l.Close()
	rapid.Check(t, func(t *rapid.T) {
		all := drawRecords(t, s)
		f := drawFilter(t)
		var want []audit.Record
		for _, r := range all {
			if matches(f, r) {
				want = append(want, r)
			}
		}
		slices.SortFunc(want, func(a, b audit.Record) int {
			if c := b.Time.Compare(a.Time); c != 0 {
				return c
			}
			return int(b.ID - a.ID)
		})
		f.Limit = rapid.IntRange(1, 5).Draw(t, "limit")
		var got []audit.Record
		for {
			page, next, err := l.Query(context.Background(), f)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, page...)
			if f.After = next; next == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v: got\n%+v, want\n%+v", f, got, want)
		}
	})
}

// drawRecords puts records in the place of all that are there, and returns them with their ids.
func drawRecords(t *rapid.T, s audit.Store) []audit.Record {
	ctx := context.Background()
	if _, err := s.Remove(ctx, epoch.AddDate(10, 0, 0), 1000); err != nil {
		t.Fatal(err)
	}
	var drawn []audit.Record
	for range rapid.IntRange(0, 12).Draw(t, "records") {
		drawn = append(drawn, drawRecord(t))
	}
	if err := s.Write(ctx, nil, drawn); err != nil {
		t.Fatal(err)
	}
	all, err := s.Search(ctx, audit.Search{Limit: 1000})
	if err != nil || len(all) != len(drawn) {
		t.Fatalf("%d records are there (%v), and %d were written", len(all), err, len(drawn))
	}
	slices.SortFunc(all, func(a, b audit.Record) int { return int(a.ID - b.ID) })
	for i, r := range all {
		if r.ID = 0; r != drawn[i] {
			t.Fatalf("there is %+v, and %+v was written", all[i], drawn[i])
		}
	}
	return all
}

func matches(f audit.Filter, r audit.Record) bool {
	is := func(want, got string) bool { return want == "" || want == got }
	return is(f.Kind, r.Kind) && is(f.Code, r.Code) && is(f.Bucket, r.Bucket) && is(f.Resource, r.Resource) && is(f.AccessKey, r.AccessKey) &&
		(f.Since.IsZero() || !r.Last.Before(f.Since)) && (f.Until.IsZero() || r.Time.Before(f.Until))
}

func drawTime(t *rapid.T, label string) time.Time {
	return epoch.Add(time.Duration(rapid.Int64Range(0, 40).Draw(t, label)) * time.Hour)
}

func drawRecord(t *rapid.T) audit.Record {
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	r := audit.Record{
		Time: drawTime(t, "time"), Count: rapid.Int64Range(1, 3).Draw(t, "count"),
		Kind: one("kind", audit.KindRefusal, audit.KindRaise), Code: one("code", "", "StaleToken"), Bucket: one("bucket", "a", "b"),
		Resource: one("resource", "a/x", "a/y", "b/x"), AccessKey: one("access key", "", "K"),
	}
	r.Last = r.Time.Add(time.Duration(rapid.IntRange(0, 23).Draw(t, "length")) * time.Hour)
	return r
}

func drawFilter(t *rapid.T) (f audit.Filter) {
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	f.Kind, f.Code, f.Bucket = one("kind", "", audit.KindRefusal), one("code", "", "StaleToken"), one("bucket", "", "a")
	f.Resource, f.AccessKey = one("resource", "", "", "a/x"), one("access key", "", "K")
	if rapid.Bool().Draw(t, "has since") {
		f.Since = drawTime(t, "since").Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "off")))
	}
	if rapid.Bool().Draw(t, "has until") {
		f.Until = drawTime(t, "until").Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "off")))
	}
	return f
}
