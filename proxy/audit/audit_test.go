package audit

import (
	"context"
	"errors"
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

// fileOf is the file that a log is in.
func fileOf(l *Log) *sqlitedb.DB { return l.store.(fileStore).db }

func refusal() Record {
	return Record{
		Kind: KindRefusal, Code: "StaleToken", Bucket: "b", Key: "jobs/42/out", Operation: "PutObject", Resource: "b/jobs/42",
		Token: 33, Highest: 34, Holder: "a", AccessKey: "AK", Client: "10.0.0.1:5000", UserAgent: "Boto3/1.40", RequestID: "R1",
	}
}

// stored returns what is on disk, without flushing: newest first.
func stored(t testing.TB, l *Log) (all []Record) {
	t.Helper()
	rows, err := fileOf(l).Reader().QueryContext(context.Background(), "SELECT id, "+columns+" FROM record ORDER BY time DESC, id DESC")
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

// stall keeps the disk busy until release is called.
func stall(t *testing.T, l *Log) (release func()) {
	t.Helper()
	busy, let, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = fileOf(l).Write(context.Background(), func(*sqlitedb.Tx) error { close(busy); <-let; return nil })
	}()
	<-busy
	return sync.OnceFunc(func() { close(let); <-done })
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
		err := fileOf(l).Write(t.Context(), func(tx *sqlitedb.Tx) error {
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
