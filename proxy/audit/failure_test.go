package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
)

func TestSlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
		release := stall(t, l)
		defer release()
		began := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { l.Add(t.Context(), refusal()) })
		}
		wg.Wait()
		if d := time.Since(began); d != addWait {
			t.Errorf("Add waited %v, want %v", d, addWait)
		}
		if n := l.Failures(); n != 3 {
			t.Errorf("%d failures, want 3", n)
		}
		release()
		l.Add(t.Context(), refusal())
		if got := stored(t, l); len(got) != 1 {
			t.Errorf("the next refusal left %d records, want its own", len(got))
		}
	})
}

func TestCanceledClientLeavesATrace(t *testing.T) {
	l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Add(ctx, refusal())
	if got := stored(t, l); len(got) != 1 {
		t.Errorf("%d records, want 1", len(got))
	}
}

// pages bounds the file, as a full disk does; it stays as large as it is if that is more.
func pages(t *testing.T, l *Log, n int) {
	t.Helper()
	err := fileOf(l).Write(context.Background(), func(tx *sqlitedb.Tx) error {
		return tx.QueryRow(fmt.Sprintf("PRAGMA max_page_count = %d", n)).Scan(new(int))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{Log: slog.New(slog.NewTextHandler(&told, nil)), maxNotes: 50})
		l.Add(t.Context(), refusal())
		pages(t, l, 1)
		big := refusal()
		big.Detail = strings.Repeat("x", maxDetail)
		for i := range 100 {
			big.Token = int64(i + 100)
			l.Add(t.Context(), big)
		}
		lost := l.Failures()
		if lost < 50 {
			t.Fatalf("%d failures on a full disk", lost)
		}
		synctest.Wait()
		if n := strings.Count(told.String(), "\n"); n != 1 {
			t.Errorf("%d lines within 10 s, want 1:\n%s", n, told.String())
		}
		big.Kind = KindRaise
		for range 60 {
			l.Note(big)
		}
		l.Add(t.Context(), refusal())
		time.Sleep(11 * time.Second)
		if n := l.Failures(); n != lost+10 {
			t.Errorf("%d failures, want %d: 50 notes wait, 10 have no room", n, lost+10)
		}
		synctest.Wait()
		if n := strings.Count(told.String(), "level=ERROR"); n < 2 {
			t.Errorf("told once only in 11 s:\n%s", told.String())
		}

		pages(t, l, 1_000_000)
		time.Sleep(time.Second)
		raises := 0
		for _, r := range stored(t, l) {
			if r.Kind == KindRaise {
				raises++
			}
			if r.Token == 33 && r.Count != 2 {
				t.Errorf("the run from before counts %d, want 2", r.Count)
			}
		}
		if raises != 50 {
			t.Errorf("%d notes were written when there was room again, want the 50 that waited", raises)
		}
	})
}

func TestClosed(t *testing.T) {
	l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
	l.Note(Record{Kind: KindStart})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l.Add(t.Context(), refusal())
	l.Note(Record{Kind: KindStart})
	if n := l.Failures(); n != 2 {
		t.Errorf("%d failures, want 2", n)
	}
	if _, _, err := l.Query(t.Context(), Filter{}); err == nil {
		t.Error("a closed log answered a query")
	}
	if err := l.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

func TestLostOnClose(t *testing.T) {
	l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
	l.Add(t.Context(), refusal())
	if err := fileOf(l).Close(); err != nil {
		t.Fatal(err)
	}
	l.Add(t.Context(), refusal())
	l.Note(Record{Kind: KindStart})
	if err := l.Close(); !errors.Is(err, sqlitedb.ErrClosed) || l.Failures() != 2 {
		t.Errorf("Close: %v, %d failures; want ErrClosed, 2", err, l.Failures())
	}
}

func TestForeignFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(path, []byte("shopping list"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, sqlitedb.ErrForeign) {
		t.Errorf("got %v, want ErrForeign", err)
	}
}
