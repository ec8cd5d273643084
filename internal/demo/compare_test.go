package demo

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// of tells what a function tells of a comparison in which PostgreSQL's lock came free at once, Redis was missing and etcd failed.
func of(tell func(s *Stage, all []*compared)) string {
	var out bytes.Buffer
	s := &Stage{Narrator: newNarrator(&out, func(error) {})}
	slow := round{4294967298, 4294967301, 3900 * time.Millisecond}
	tell(s, []*compared{
		{contender: contender{name: "Redis"}, install: "apt-get install redis-server"},
		{contender: contender{name: "etcd"}, err: errors.New("the late write was to be refused")},
		{contender: contender{name: "ZooKeeper"}, killed: slow, straight: slow, fenced: slow},
		{contender: contender{name: "PostgreSQL"}, killed: round{1, 2, 20 * time.Millisecond}, straight: slow, fenced: round{5, 6, 4 * time.Second}},
	})
	return out.String()
}

func TestTable(t *testing.T) {
	got := of(func(s *Stage, all []*compared) { s.table(all) })
	want := `  LOCK        KILLED  TOKENS                   PAUSED  TOKENS                   LATE WRITE  FENCED
  Redis       not here: apt-get install redis-server
  etcd        failed
  ZooKeeper   3.90 s  4294967298 → 4294967301  3.90 s  4294967298 → 4294967301  overwrote   refused
  PostgreSQL  0.02 s  1 → 2                    4.00 s  5 → 6                    overwrote   refused
`
	if got != want {
		t.Errorf("the table is\n%s\nnot\n%s", got, want)
	}
}

// TestFootnotes: only what was seen is explained.
func TestFootnotes(t *testing.T) {
	fast := of(func(s *Stage, all []*compared) { s.footnotes(all, 4*time.Second) })
	if !strings.Contains(fast, "Sooner after a kill: PostgreSQL.") || !strings.Contains(fast, "ZooKeeper sees the connection break") {
		t.Errorf("it says\n%s", fast)
	}
	slow := of(func(s *Stage, all []*compared) { s.footnotes(all[:2], 4*time.Second) })
	if strings.Contains(slow, "Sooner") || strings.Contains(slow, "ZooKeeper") {
		t.Errorf("it says\n%s", slow)
	}
}

// TestJudge: what is missing is no failure, and what failed is.
func TestJudge(t *testing.T) {
	var err error
	said := of(func(s *Stage, all []*compared) { err = s.judge(all) })
	if err == nil || err.Error() != "etcd: the late write was to be refused" || strings.Contains(said, "Shown") {
		t.Errorf("it says %q and fails with %v", said, err)
	}
	said = of(func(s *Stage, all []*compared) { err = s.judge(slices.Delete(all, 1, 2)) })
	if err != nil || !strings.Contains(said, "Shown on 2 of 3") {
		t.Errorf("it says %q and fails with %v", said, err)
	}
}

func TestCompareTTL(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Second, 2500 * time.Millisecond, 21 * time.Second} {
		if err := Compare(context.Background(), Options{Out: &bytes.Buffer{}}, ttl); err == nil || !strings.Contains(err.Error(), "from 2s to 20s") {
			t.Errorf("%s: %v", ttl, err)
		}
	}
}
