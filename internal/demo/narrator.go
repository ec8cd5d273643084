package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Colours of a terminal (ECMA-48), by what they are for. Nothing is said by a colour alone.
const (
	plain = ""
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	good  = "\x1b[1;32m"
	bad   = "\x1b[1;31m"
	reset = "\x1b[0m"
)

// actors have their colours in the order in which they come on.
var actors = []string{"\x1b[36m", "\x1b[35m", "\x1b[33m", "\x1b[34m", "\x1b[32m", "\x1b[31m"}

const (
	widest      = 100 // columns
	narrowest   = 60
	actorColumn = 9 // widest name of an actor
	textColumn  = 7 + 2 + actorColumn + 1
)

// A Narrator tells a story line by line: when, who, what, and in a dimmer voice why that matters.
type Narrator struct {
	width  int
	colour bool
	began  time.Time

	mu      sync.Mutex // guards the rest; one line at a time
	out     io.Writer
	failed  context.CancelCauseFunc // told when out takes no more
	colours map[string]string       // by actor
	said    map[string]bool         // by Why
}

// newNarrator tells a terminal from a file or pipe, which gets no colours and 100 columns.
func newNarrator(out io.Writer, failed context.CancelCauseFunc) *Narrator {
	n := &Narrator{out: out, width: widest, began: time.Now(), failed: failed, colours: map[string]string{}, said: map[string]bool{}}
	if f, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			n.colour = os.Getenv("NO_COLOR") == ""
			if size.Col > 0 {
				n.width = min(max(int(size.Col), narrowest), widest)
			}
		}
	}
	return n
}

// Title begins a story.
func (n *Narrator) Title(text string) { n.block(bold, 0, text); n.print("\n") }

// Act begins a part of it.
func (n *Narrator) Act(text string) { n.print("\n"); n.block(bold, 0, text) }

// Text is a paragraph.
func (n *Narrator) Text(format string, args ...any) { n.block(plain, 2, fmt.Sprintf(format, args...)) }

// Say tells what an actor does, now.
func (n *Narrator) Say(actor, format string, args ...any) {
	n.line(plain, actor, fmt.Sprintf(format, args...))
}

// Alarm is Say of what should not be. Without an actor it is a remark, by nobody and at no time.
func (n *Narrator) Alarm(actor, format string, args ...any) {
	n.line(bad, actor, fmt.Sprintf(format, args...))
}

// Relief is Say of what should be; without an actor as Alarm.
func (n *Narrator) Relief(actor, format string, args ...any) {
	n.line(good, actor, fmt.Sprintf(format, args...))
}

// Why says why what was told last matters. What it has said before it does not say again.
func (n *Narrator) Why(text string) {
	n.mu.Lock()
	said := n.said[text]
	n.said[text] = true
	n.mu.Unlock()
	if !said {
		n.block(dim, textColumn, "("+text+")")
	}
}

// Quote shows the output of a program as it is, but for what goes beyond the right margin.
func (n *Narrator) Quote(text string) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if runes := []rune(line); len(runes) > n.width-2 {
			line = string(runes[:n.width-3]) + "…"
		}
		n.print("  " + n.paint(dim, line) + "\n")
	}
}

// Verdict ends a story that came out as it says.
func (n *Narrator) Verdict(text string) {
	n.print("\n")
	n.block(good, 0, text)
}

func (n *Narrator) line(colour, actor, text string) {
	since := n.paint(dim, fmt.Sprintf("%6.1fs", time.Since(n.began).Seconds()))
	lead := since + "  " + n.paint(n.colourOf(actor), fmt.Sprintf("%-*s", actorColumn, actor)) + " "
	var b strings.Builder
	for i, line := range wrap(text, n.width-textColumn) {
		if i > 0 || actor == "" {
			lead = strings.Repeat(" ", textColumn)
		}
		b.WriteString(lead + n.paint(colour, line) + "\n")
	}
	n.print(b.String()) // at once: others may tell something, too
}

func (n *Narrator) block(colour string, indent int, text string) {
	for _, line := range wrap(text, n.width-indent) {
		n.print(strings.Repeat(" ", indent) + n.paint(colour, line) + "\n")
	}
}

func (n *Narrator) colourOf(actor string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.colours[actor]; !ok && actor != "" {
		n.colours[actor] = actors[len(n.colours)%len(actors)]
	}
	return n.colours[actor]
}

func (n *Narrator) paint(colour, text string) string {
	if !n.colour || colour == plain {
		return text
	}
	return colour + text + reset
}

func (n *Narrator) print(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := io.WriteString(n.out, text); err != nil {
		n.failed(fmt.Errorf("nobody reads on: %w", err))
	}
}

// wrap breaks a text between its words, and words that are longer than a line. Columns that are made of spaces stay.
func wrap(text string, width int) (lines []string) {
	var line []rune
	for i, field := range strings.Split(text, " ") {
		word := []rune(field)
		if i > 0 && len(line)+1+len(word) <= width {
			line = append(append(line, ' '), word...)
			continue
		}
		if i > 0 {
			lines = append(lines, strings.TrimRight(string(line), " "))
		}
		for ; len(word) > width; word = word[width:] {
			lines = append(lines, string(word[:width]))
		}
		line = word
	}
	return append(lines, string(line))
}
