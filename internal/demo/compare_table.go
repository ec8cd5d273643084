package demo

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// table shows what was seen.
func (s *Stage) table(all []*compared) {
	rows := [][]string{{"LOCK", "KILLED", "TOKENS", "PAUSED", "TOKENS", "LATE WRITE", "FENCED"}}
	for _, c := range all {
		switch {
		case c.err != nil:
			rows = append(rows, []string{c.name, "failed"})
		case c.install != "":
			rows = append(rows, []string{c.name, "not here: " + c.install})
		default:
			rows = append(rows, []string{c.name, seconds(c.killed.after), c.killed.tokens(), seconds(c.fenced.after), c.fenced.tokens(), "overwrote", "refused"})
		}
	}
	mark := strings.NewReplacer("overwrote", s.paint(bad, "overwrote"), "refused", s.paint(good, "refused"), "failed", s.paint(bad, "failed"))
	for _, line := range columns(rows) {
		s.print("  " + mark.Replace(line) + "\n")
	}
}

func (r round) tokens() string { return fmt.Sprintf("%d → %d", r.first, r.second) }

// soon says that it was no TTL that ran out. A holder that renews its lock every third of it leaves more than that, even when it is late.
func (r round) soon(ttl time.Duration) bool { return r.after < ttl/4 }

// columns sets rows below each other. The last cell of a row may be as long as it likes: it makes no column wider.
func columns(rows [][]string) (lines []string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row[:len(row)-1] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row[:len(row)-1] {
			fmt.Fprintf(&b, "%-*s  ", widths[i], cell)
		}
		lines = append(lines, b.String()+row[len(row)-1])
	}
	return lines
}

// footnotes say how to read the table, and why some locks came free sooner.
func (s *Stage) footnotes(all []*compared, ttl time.Duration) {
	s.Text("KILLED, PAUSED: how long until the next holder had the lock. Where a holder is known by its heartbeats, that is what is left of the TTL "+
		"since the last one (of %s, two thirds at least), and what the service needs to see it.", ttl)
	ran := map[string]*compared{}
	var soon []string
	for _, c := range all {
		if c.err != nil || c.install != "" {
			continue
		}
		ran[c.name] = c
		if c.killed.soon(ttl) {
			soon = append(soon, c.name)
		}
	}
	if len(soon) > 0 {
		s.Text("Sooner after a kill: %s. That lock lives by its connection, which the kernel closes when the process dies. A paused process keeps its "+
			"connection; the server ends it when it has asked nothing for the TTL.", strings.Join(soon, ", "))
	}
	if c := ran["ZooKeeper"]; c != nil && !c.killed.soon(ttl) {
		s.Text("ZooKeeper sees the connection break, too, but its session goes on until its timeout: the client may come back by another connection.")
	}
	s.Text("LATE WRITE: what the paused holder's did to a directory; FENCED: behind fenceproxy, which was told the token of each write.")
}
