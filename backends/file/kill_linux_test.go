package file

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const killedRoot = "FENCEPROXY_TEST_KILLED_ROOT"

// TestKilled kills a process with SIGKILL while it uploads, completes and aborts, and opens its root: what it was answered is there, and
// what it was not is there whole or not at all.
func TestKilled(t *testing.T) {
	if root := os.Getenv(killedRoot); root != "" {
		untilKilled(t, root)
		return
	}
	for round := range 8 {
		b := newBench(t, Options{})
		_ = b.Close()
		said := runAndKill(t, b.dir, time.Duration(20+30*round)*time.Millisecond)
		b.reopen(Options{})
		var last *up
		for _, line := range said { // "create ID", "part 1", "completed", "aborted"
			what, of, _ := strings.Cut(line, " ")
			switch what {
			case "create":
				last = &up{b: b, key: "d/key", id: of, parts: map[int]string{}}
			case "part":
				last.parts[1] = of
			case "completed", "aborted":
				if w := last.send(2, "late"); w.Code != 404 {
					t.Errorf("an upload that was %s takes parts: %d", what, w.Code)
				}
				last = nil
			}
		}
		b.state("d/key") // whole: its metadata is its content
		if last != nil && last.parts[1] != "" && last.send(2, "x").Code == 200 {
			b.want(last.complete(1), 200)
			b.holds("d/key", last.parts[1])
		}
		b.reopen(Options{})
		for _, dir := range []string{tempDir, sideDir} {
			if left := b.files(dir); len(left) > 0 {
				t.Errorf("%s: %q are left", dir, left)
			}
		}
		_ = b.Close()
	}
}

// runAndKill returns what the process said before it was killed.
func runAndKill(t *testing.T, root string, after time.Duration) (said []string) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	child.Env = append(os.Environ(), killedRoot+"="+root)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if said = append(said, lines.Text()); len(said) == 1 { // it has begun
			time.AfterFunc(after, func() { _ = child.Process.Kill() })
		}
	}
	_ = child.Wait() // its state says more
	if state, ok := child.ProcessState.Sys().(syscall.WaitStatus); !ok || state.Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended by itself: %q", said)
	}
	return said
}

// untilKilled says what it was answered, one line at a time.
func untilKilled(t *testing.T, root string) {
	b := &bench{T: t, dir: root}
	b.reopen(Options{})
	for i := 0; i < 100_000; i++ {
		content := strings.Repeat(fmt.Sprint(i%10), 1500) + fmt.Sprint(i)
		u := b.create("d/key", content)
		fmt.Println("create", u.id)
		u.part(1, content)
		fmt.Println("part", content)
		if i%3 == 2 {
			b.want(u.abort(), 204)
			fmt.Println("aborted")
			continue
		}
		b.want(u.complete(1), 200)
		fmt.Println("completed")
	}
}
