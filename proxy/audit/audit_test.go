package audit

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openLog(t testing.TB, path string, o Options) *Log {
	t.Helper()
	l, err := Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func refusal() Record {
	return Record{
		Kind: KindRefusal, Code: "StaleToken", Bucket: "b", Key: "jobs/42/out", Operation: "PutObject", Resource: "b/jobs/42",
		Token: 33, Highest: 34, Holder: "a", AccessKey: "AK", Client: "10.0.0.1:5000", UserAgent: "Boto3/1.40", RequestID: "R1",
	}
}

// stored returns what is on disk, without flushing: newest first.
func stored(t testing.TB, l *Log) (all []Record) {
	t.Helper()
	rows, err := l.db.Reader().QueryContext(context.Background(), "SELECT id, "+columns+" FROM record ORDER BY time DESC, id DESC")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		r, err := scan(rows)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func TestFirstRefusalIsOnDiskAndRepeatsAreWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
		began := time.Now().UTC()
		l.Add(t.Context(), refusal())
		want := refusal()
		want.ID, want.Time, want.Last, want.Count = 1, began, began, 1
		if got := stored(t, l); len(got) != 1 || got[0] != want {
			t.Fatalf("when Add returned the disk had %+v, want %+v", got, want)
		}

		time.Sleep(time.Minute)
		for port := range 1000 { // a client has a port for every connection
			r := refusal()
			r.Client = fmt.Sprintf("10.0.0.1:%d", 1024+port)
			l.Add(t.Context(), r)
		}
		last := time.Now().UTC()
		time.Sleep(time.Second)
		want.Count, want.Last = 1001, last
		if got := stored(t, l); len(got) != 1 || got[0] != want {
			t.Fatalf("a second after the repeats the disk had %+v, want %+v", got, want)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatARunIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
		l.Add(t.Context(), refusal())
		for _, change := range []func(*Record){
			func(r *Record) { r.Resource = "b/jobs/43" },
			func(r *Record) { r.Token = 32 },
			func(r *Record) { r.AccessKey = "BK" },
			func(r *Record) { r.Client = "10.0.0.2:5000" },
			func(r *Record) { r.Code = "TokenConflict" },
		} {
			r := refusal()
			change(&r)
			l.Add(t.Context(), r)
		}
		if got := len(stored(t, l)); got != 6 {
			t.Errorf("%d records of 6 different refusals", got)
		}

		time.Sleep(runGap - time.Millisecond)
		l.Add(t.Context(), refusal())
		time.Sleep(runGap)
		l.Add(t.Context(), refusal())
		if got := len(stored(t, l)); got != 7 {
			t.Errorf("%d records, want 7: a refusal within 10 minutes joins its run, one after it begins another", got)
		}

		for range 24 * 60 / 9 {
			time.Sleep(9 * time.Minute)
			l.Add(t.Context(), refusal())
		}
		time.Sleep(9 * time.Minute)
		l.Add(t.Context(), refusal())
		if got := len(stored(t, l)); got != 8 {
			t.Errorf("%d records, want 8: a run ends after a day", got)
		}
	})
}

func TestConcurrentFirstRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
		release := stall(t, l)
		var returned sync.WaitGroup
		for range 50 {
			returned.Go(func() {
				l.Add(t.Context(), refusal())
				if len(stored(t, l)) != 1 {
					t.Error("Add returned before the run had its record")
				}
			})
		}
		time.Sleep(time.Second) // a flush comes by and finds the run without an id
		release()
		returned.Wait()
		time.Sleep(time.Second)
		if got := stored(t, l); len(got) != 1 || got[0].Count != 50 {
			t.Errorf("got %+v, want one record that counts 50", got)
		}
		if n := l.Failures(); n != 0 {
			t.Errorf("%d failures", n)
		}
	})
}

// A repeat that comes while the count before it is being written must not be taken for written.
func TestRepeatDuringFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
		l.Add(t.Context(), refusal())
		release := stall(t, l)
		l.Add(t.Context(), refusal())
		time.Sleep(time.Second) // the flush waits for the disk, with a count of 2
		l.Add(t.Context(), refusal())
		release()
		time.Sleep(time.Second)
		if got := stored(t, l); len(got) != 1 || got[0].Count != 3 {
			t.Errorf("got %+v, want one record that counts 3", got)
		}
	})
}

func TestCloseWaitsForAdds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.db")
		l := openLog(t, path, Options{})
		release := stall(t, l)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { l.Add(t.Context(), refusal()) })
		}
		synctest.Wait()
		wg.Go(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		release()
		wg.Wait()
		if got := stored(t, openLog(t, path, Options{})); len(got) != 1 || got[0].Count != 3 {
			t.Errorf("got %+v, want one record that counts 3", got)
		}
	})
}

// stall keeps the disk busy until release is called.
func stall(t *testing.T, l *Log) (release func()) {
	t.Helper()
	busy, let, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = l.db.Write(context.Background(), func(*sqlitedb.Tx) error { close(busy); <-let; return nil })
	}()
	<-busy
	return sync.OnceFunc(func() { close(let); <-done })
}

func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.db")
	for range 3 {
		l := openLog(t, path, Options{})
		for range 5 {
			l.Add(t.Context(), refusal())
		}
		l.Note(Record{Kind: KindRaise, Resource: "b/jobs/42", Token: 35})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l := openLog(t, path, Options{})
	refused, err := l.Refusals(t.Context(), []string{"b/jobs/42", "b/other"})
	if err != nil || len(refused) != 1 || refused["b/jobs/42"] != 15 {
		t.Errorf("refusals %v (%v), want 15 of b/jobs/42 alone", refused, err)
	}
	if all := stored(t, l); len(all) != 6 {
		t.Errorf("%d records, want 3 runs and 3 raises", len(all))
	}
}

func TestForgottenRunsKeepTheirCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{maxRuns: 4})
		for token := range int64(20) {
			for range 3 {
				r := refusal()
				r.Token = token + 1
				l.Add(t.Context(), r)
			}
		}
		if n := len(l.runs.byKey); n != 4 || l.runs.order.Len() != 4 {
			t.Errorf("%d runs in memory, want 4", n)
		}
		time.Sleep(time.Second)
		for _, r := range stored(t, l) {
			if r.Count != 3 {
				t.Errorf("token %d counts %d, want 3", r.Token, r.Count)
			}
		}
	})
}

func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.db")
		const keep = 90 * 24 * time.Hour
		l := openLog(t, path, Options{})
		err := l.db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
			for i := range 2*retainBatch + 1 {
				r := Record{Kind: KindRaise, Time: time.Now().Add(-keep - time.Duration(i+1)*time.Second), Detail: "old"}
				if _, err := insertTx(tx, r.normal(time.Now())); err != nil {
					return err
				}
			}
			long := Record{Kind: KindRefusal, Time: time.Now().Add(-keep - time.Hour), Last: time.Now(), Detail: "went on"}
			soon := Record{Kind: KindReset, Time: time.Now().Add(-keep + 30*time.Minute), Detail: "soon"}
			_, err := insertTx(tx, long.normal(time.Now()))
			_, err2 := insertTx(tx, soon.normal(time.Now()))
			return errors.Join(err, err2)
		})
		if err := errors.Join(err, l.Close()); err != nil {
			t.Fatal(err)
		}
		l = openLog(t, path, Options{Keep: keep})
		time.Sleep(time.Minute)
		if got := details(stored(t, l)); got != "soon, went on" {
			t.Errorf("after the start: %s", got)
		}
		time.Sleep(time.Hour)
		if got := details(stored(t, l)); got != "went on" {
			t.Errorf("an hour later: %s", got)
		}
	})
}

func details(all []Record) string {
	var s []string
	for _, r := range all {
		s = append(s, r.Detail)
	}
	return strings.Join(s, ", ")
}

func BenchmarkAddRepeat(b *testing.B) {
	l := openLog(b, filepath.Join(b.TempDir(), "audit.db"), Options{})
	for b.Loop() {
		l.Add(b.Context(), refusal())
	}
}
