package sqlitedb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestGroupCommit(t *testing.T) {
	d, _ := mustOpen(t, filepath.Join(t.TempDir(), "x.db"), schema, true)
	const goroutines, each = 64, 20
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range each {
				if err := d.Write(t.Context(), insert(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := count(t, d); n != goroutines*each {
		t.Errorf("%d rows, want %d", n, goroutines*each)
	}
	if commits := d.writer.commits.Load(); commits > goroutines*each/4 {
		t.Errorf("%d commits for %d writes of %d goroutines: they do not group", commits, goroutines*each, goroutines)
	}
}

// hold keeps the writer busy until release is called, so that what comes meanwhile is one group.
func hold(t *testing.T, d *DB) (release func()) {
	t.Helper()
	busy, let := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = d.Write(context.WithoutCancel(t.Context()), func(*Tx) error { close(busy); <-let; return nil })
	})
	<-busy
	return func() { close(let); wg.Wait() }
}

// together runs the writes as one group, in their order, and returns their errors.
func together(t *testing.T, d *DB, fs ...func(*Tx) error) []error {
	t.Helper()
	release := hold(t, d)
	errs := make([]error, len(fs))
	var wg sync.WaitGroup
	for i, f := range fs {
		wg.Go(func() { errs[i] = d.Write(t.Context(), f) })
		for queued(d) != i+1 {
			runtime.Gosched()
		}
	}
	release()
	wg.Wait()
	return errs
}

func queued(d *DB) int {
	d.writer.mu.Lock()
	defer d.writer.mu.Unlock()
	return len(d.writer.queue)
}

func TestFailureReachesTheWholeGroup(t *testing.T) {
	d, _ := mustOpen(t, filepath.Join(t.TempDir(), "x.db"), schema, true)
	failure := errors.New("out of luck")
	for name, bad := range map[string]func(*Tx) error{
		"error":  func(*Tx) error { return failure },
		"panic":  func(*Tx) error { panic(failure.Error()) },
		"SQL":    func(tx *Tx) error { _, err := tx.Exec(`INSERT INTO out_of_luck VALUES (1)`); return err },
		"SQLRow": func(tx *Tx) error { return tx.QueryRow(`SELECT "out of luck"`).Scan(new(string)) },
	} {
		for i, err := range together(t, d, insert(1), bad, insert(2)) {
			if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "_", " "), failure.Error()) {
				t.Errorf("%s: write %d: %v, want the failure", name, i, err)
			}
		}
	}
	if n := count(t, d); n != 0 {
		t.Errorf("%d rows of groups that were rolled back", n)
	}
	if err := d.Write(t.Context(), insert(3)); err != nil || count(t, d) != 1 {
		t.Errorf("after the failures: %v, %d rows; want 1", err, count(t, d))
	}
}

// SQLite ends a transaction by itself when the disk is full: the writer has to find its way back.
func TestFullDisk(t *testing.T) {
	d, _ := mustOpen(t, filepath.Join(t.TempDir(), "x.db"), schema, true)
	limit := func(pages int) {
		t.Helper()
		err := d.Write(t.Context(), func(tx *Tx) error {
			return tx.QueryRow(fmt.Sprintf("PRAGMA max_page_count = %d", pages)).Scan(new(int))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	limit(1) // SQLite takes the present size for it
	fill := func(tx *Tx) error {
		for i := range 10_000 {
			if err := insert(i)(tx); err != nil {
				return err
			}
		}
		return nil
	}
	for i, err := range together(t, d, insert(1), fill) {
		if err == nil || !strings.Contains(err.Error(), "full") {
			t.Errorf("write %d: %v, want a full disk", i, err)
		}
	}
	limit(1_000_000)
	if err := d.Write(t.Context(), fill); err != nil || count(t, d) != 10_000 {
		t.Errorf("with room again: %v, %d rows, want 10000", err, count(t, d))
	}
}

func TestCanceledWriteIsNotRun(t *testing.T) {
	d, _ := mustOpen(t, filepath.Join(t.TempDir(), "x.db"), schema, true)
	release := hold(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { got <- d.Write(ctx, insert(1)) }()
	for queued(d) != 1 {
		runtime.Gosched()
	}
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	release()
	if err := d.Write(t.Context(), insert(2)); err != nil || count(t, d) != 1 {
		t.Errorf("next write: %v, %d rows, want 1", err, count(t, d))
	}
}

func TestClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	d, _ := mustOpen(t, path, schema, true)
	release := hold(t, d)
	var wg sync.WaitGroup
	for i := range 2 * maxGroup {
		wg.Go(func() {
			if err := d.Write(t.Context(), insert(i)); err != nil {
				t.Errorf("queued before Close: %v", err)
			}
		})
	}
	for queued(d) != 2*maxGroup {
		runtime.Gosched()
	}
	wg.Go(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	release()
	wg.Wait()
	if err := d.Write(t.Context(), insert(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
	d, _ = mustOpen(t, path, schema, false)
	if n := count(t, d); n != 2*maxGroup {
		t.Errorf("%d rows, want %d", n, 2*maxGroup)
	}
}

// TestKill9 kills a process that creates a file and writes to it: what it was told is durable is there afterwards.
func TestKill9(t *testing.T) {
	if path := os.Getenv("SQLITEDB_VICTIM"); path != "" {
		victim(path)
	}
	for range 5 {
		path := filepath.Join(t.TempDir(), "x.db")
		cmd, out := startVictim(t, path)
		var told int
		for told < 100 {
			if _, err := fmt.Fscanln(out, &told); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		d, _ := mustOpen(t, path, schema, false)
		if n := count(t, d); n < told {
			t.Errorf("%d rows after kill -9, but %d were reported durable", n, told)
		}
	}
}

// TestKill9WhileCreating kills at every stage of the first start: there is no file afterwards, or a whole one.
func TestKill9WhileCreating(t *testing.T) {
	var none, whole int
	for i := range 30 {
		dir := t.TempDir()
		path := filepath.Join(dir, "x.db")
		cmd, out := startVictim(t, path)
		if _, err := fmt.Fscanln(out, new(string)); err != nil { // it is about to open
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i*i) * 100 * time.Microsecond) // dense where a fast machine creates, and up to 84 ms
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_, err := os.Stat(path)
		d, created := mustOpen(t, path, schema, true)
		if created != (err != nil) {
			t.Errorf("created = %v over %v", created, err)
		}
		if created {
			none++
		} else {
			whole++
		}
		_ = count(t, d)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if got := names(t, dir); got != "x.db" {
			t.Errorf("left %q", got)
		}
	}
	t.Logf("killed before there was a file %d times, after it %d times", none, whole)
}

func startVictim(t *testing.T, path string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill9$")
	cmd.Env = append(os.Environ(), "SQLITEDB_VICTIM="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

func victim(path string) {
	fmt.Println(0)
	d, _, err := Open(context.Background(), path, schema, true)
	for i := 1; err == nil; i++ {
		if err = d.Write(context.Background(), insert(i)); err == nil {
			fmt.Println(i)
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

func BenchmarkWrite(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			d, _ := mustOpen(b, filepath.Join(b.TempDir(), "x.db"), schema, true)
			work := make(chan int)
			var wg sync.WaitGroup
			b.ResetTimer()
			for range goroutines {
				wg.Go(func() {
					for i := range work {
						if err := d.Write(b.Context(), insert(i)); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for i := range b.N {
				work <- i
			}
			close(work)
			wg.Wait()
			b.ReportMetric(float64(b.N)/float64(d.writer.commits.Load()), "writes/commit")
		})
	}
}
