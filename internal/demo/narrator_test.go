package demo

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// tell has a narrator tell one of everything.
func tell(n *Narrator) {
	n.Title("A title")
	n.Text("A paragraph of %d words, %s", 7, strings.Repeat("word ", 40))
	n.Act("1 · An act")
	n.Say("worker 1", "has the lock, token %d, %s", 34, strings.Repeat("and reads ", 20))
	n.Why("because")
	n.Why("because")
	n.Alarm("store", "lost")
	n.Relief("", "%s", strings.Repeat("x", 300))
	n.Quote("HEAD  " + strings.Repeat("é", 200) + "\nshort\n")
	n.Verdict("Shown.")
}

func TestNarratorPlain(t *testing.T) {
	var out bytes.Buffer
	tell(newNarrator(&out, nil))
	text := out.String()
	if strings.Contains(text, "\x1b") {
		t.Error("there are colours, and no terminal")
	}
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > widest {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	for _, want := range []string{
		"A title\n\n", "\n1 · An act\n", "s  worker 1  has the lock, token 34, and reads", "\n                   (because)\n   0", "s  store     lost\n", "…\n  short\n", "\n\nShown.\n",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is not once in\n%s", want, text)
		}
	}
}

func TestNarratorOnATerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal can be had here: %v", err)
	}
	defer terminal.Close()
	for _, c := range []struct {
		noColor string
		colour  bool
	}{{"", true}, {"1", false}} {
		t.Setenv("NO_COLOR", c.noColor)
		n := newNarrator(terminal, nil)
		var out bytes.Buffer
		n.out = &out
		tell(n)
		if got := strings.Contains(out.String(), "\x1b[1;31mlost\x1b[0m"); got != c.colour {
			t.Errorf("NO_COLOR=%q: colours: %v", c.noColor, got)
		}
		if n.colourOf("worker 1") == n.colourOf("store") {
			t.Error("two actors have one colour")
		}
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"", 5, ""},
		{"a b c", 5, "a b c"},
		{"aa bb cc", 5, "aa bb|cc"},
		{"a    b", 10, "a    b"},
		{"abcdefgh", 3, "abc|def|gh"},
		{"a bcdefgh", 3, "a|bcd|efg|h"},
		{"é é é", 3, "é é|é"},
	} {
		if got := strings.Join(wrap(c.text, c.width), "|"); got != c.want {
			t.Errorf("wrap(%q, %d) = %q, not %q", c.text, c.width, got, c.want)
		}
	}
}

func TestWithoutDetail(t *testing.T) {
	table := "TIME   TOKEN  DETAIL\n10:31  3      token 3 is below 4\n"
	if got, want := withoutDetail(table), "TIME   TOKEN  …\n10:31  3      …\n"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	if got := withoutDetail("No records match.\n"); got != "No records match.\n" {
		t.Errorf("%q", got)
	}
}

func TestGrowing(t *testing.T) {
	if a, b, err := growing("3", "4"); a != 3 || b != 4 || err != nil {
		t.Error(a, b, err)
	}
	for _, c := range [][2]string{{"4", "4"}, {"4", "3"}, {"", "3"}, {"3", "x"}, {"0x3", "4"}} {
		if _, _, err := growing(c[0], c[1]); err == nil {
			t.Errorf("%q, then %q passes", c[0], c[1])
		}
	}
}
