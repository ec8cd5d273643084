package demo

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// row is a service's line in the table: name, takeover after a kill, tokens, takeover after a pause, tokens.
var row = regexp.MustCompile(`(?m)^  (\w+) +(\d+\.\d\d) s +(\d+) → (\d+) +(\d+\.\d\d) s +(\d+) → (\d+) +overwrote +refused$`)

func TestCompare(t *testing.T) {
	t.Parallel()
	need(t, "redis-server", "redis-cli", "etcd", "java")
	needFile(t, "/usr/share/java/zookeeper.jar")
	needFile(t, postgresBinary)
	const ttl = 3.0
	d := start(t, "compare", "--ttl", fmt.Sprintf("%.0fs", ttl))
	d.end(t, 0)
	rows := row.FindAllStringSubmatch(d.said.String(), -1)
	var names []string
	for _, r := range rows {
		names = append(names, r[1])
		killed, paused := number(t, r[2]), number(t, r[5])
		if soon := killed < ttl/4; soon != (r[1] == "PostgreSQL") {
			t.Errorf("%s had a new holder %.2f s after the kill", r[1], killed)
		}
		if paused < ttl/4 {
			t.Errorf("%s had a new holder %.2f s after the pause", r[1], paused)
		}
		tokens := []float64{number(t, r[3]), number(t, r[4]), number(t, r[6]), number(t, r[7])}
		if !slices.IsSorted(tokens) || len(slices.Compact(tokens)) < 4 {
			t.Errorf("the tokens of %s do not grow: %s", r[1], r[0])
		}
	}
	if got := strings.Join(names, " "); got != "Redis etcd ZooKeeper PostgreSQL fenceproxy" {
		t.Fatalf("the table has %q:\n%s", got, d.said.String())
	}
	d.tells(t, `Sooner after a kill: PostgreSQL\.`, `ZooKeeper sees the connection break, too`, `Shown on 5 of 5`)
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCompareMissing: a service that is not installed has its line, with what installs it, and the others are shown.
func TestCompareMissing(t *testing.T) {
	t.Parallel()
	d := startWith(t, []string{"PATH=/nowhere"}, "compare", "--ttl", "2s")
	d.end(t, 0)
	shown := 1
	if found, _ := filepath.Glob(postgresBinary); len(found) > 0 {
		shown = 2
	}
	d.tells(t, `LOCK KILLED`, `Redis not here: apt-get install -y --no-install-recommends redis-server redis-tools etcd not here: apt-get install -y --no-install-recommends etcd-server ZooKeeper not here: apt-get install -y --no-install-recommends .*default-jre-headless `,
		`fenceproxy \d+\.\d\d s `, fmt.Sprintf(`Shown on %d of 5`, shown))
}

func TestCompareInterrupted(t *testing.T) {
	t.Parallel()
	d := start(t, "compare", "--ttl", "20s")
	d.until(t, "The services run side by side")
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.end(t, 1)
	if !strings.Contains(d.errs.String(), "the demo was cut short") {
		t.Errorf("it says %q", d.errs.String())
	}
}
