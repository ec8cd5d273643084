package demo

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// needFile is need of a program that is not where others are.
func needFile(t *testing.T, pattern string) {
	t.Helper()
	if found, _ := filepath.Glob(pattern); len(found) == 0 {
		need(t, pattern) // which is no program
	}
}

const postgresBinary = "/usr/lib/postgresql/*/bin/postgres"

func TestQueue(t *testing.T) {
	t.Parallel()
	needFile(t, postgresBinary)
	d := start(t, "queue")
	d.end(t, 0)
	d.tells(t,
		`A BEGIN, takes job 1, attempt 1, .*demo breaks A's connection.* B BEGIN, takes job 1, attempt 1 One number, two workers`,
		`workers hold 10 jobs at once, each another one .* workers have done 40 jobs`,
		`worker \d+ takes job 41, attempt \d+, and works .*kill -9 of worker \d+, .*worker \d+ takes job 41, attempt \d+, [012]\.\d\d s after that`,
		`worker \d+ writes the result with token \d+, and commits`,
		`worker \d+ takes job 42, attempt \d+, and works .*SIGSTOP to worker \d+, .*worker \d+ takes job 42, attempt \d+, \d+\.\d\d s after that`,
		`worker \d+ writes the result with token \d+, and commits .*SIGCONT to worker \d+`,
		`worker \d+ is refused.*PreconditionFailed: token \d+ is below \d+, the highest one seen for demo/results/42`,
		`fenceproxy audit --code StaleToken TIME .* StaleToken demo/results/42 \d+ \d+ worker-\d+ 127.0.0`,
		`postgres 42 jobs, 42 done; \d+ attempts; 42 entries in the table of processed jobs`, `store 42 results, each written once`, `Shown: no job was processed twice`,
	)
}

// TestQueueInterrupted: ten workers, the server and its children are gone, also where one of them stands still.
func TestQueueInterrupted(t *testing.T) {
	t.Parallel()
	needFile(t, postgresBinary)
	d := start(t, "queue")
	d.until(t, "SIGSTOP to worker")
	if left := d.left(t); len(left) < 12 {
		t.Errorf("these run: %q", left)
	}
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	d.end(t, 1)
	if !strings.Contains(d.errs.String(), "the demo was cut short") {
		t.Errorf("it says %q", d.errs.String())
	}
}
