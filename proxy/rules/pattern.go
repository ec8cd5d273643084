package rules

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxPattern is the longest match, resource or bucket name of a table, in bytes.
const MaxPattern = 512

// A pattern is a compiled match. The regexp answers whether a key matches and what the variables take; the nfa answers what
// a regexp cannot be asked: whether any key with a given beginning might match.
type pattern struct {
	text     string
	head     string         // what the text begins with before its first sign: every match begins with it
	re       *regexp.Regexp // without a last **, which takes whatever is left
	nfa      nfa
	literals string   // the characters that stand for themselves, one after the other
	vars     []string // names of the groups of re, from group 1 on
	tail     bool     // ends in **: whatever begins with a match is a match
	loose    bool     // has a ** before its end: what a variable takes may depend on how the key goes on
}

// match says whether the whole key matches. Where the pattern has variables, groups holds the offsets of what they take, as
// [regexp.Regexp.FindStringSubmatchIndex] does.
func (p *pattern) match(key string) (groups []int, ok bool) {
	if !strings.HasPrefix(key, p.head) {
		return nil, false
	}
	if len(p.vars) == 0 {
		return nil, p.re.MatchString(key)
	}
	groups = p.re.FindStringSubmatchIndex(key)
	return groups, groups != nil
}

// reaches says whether any key that begins with prefix could match.
func (p *pattern) reaches(prefix string) bool {
	at := p.nfa.start()
	for i := range len(prefix) {
		at = p.nfa.step(&at, prefix[i])
		if at.empty() {
			return false
		}
	}
	return true // every position of an nfa has a way to its end
}

// A compiler builds the two forms of a pattern side by side.
type compiler struct {
	expr strings.Builder
	pattern
}

func compile(text string) (*pattern, error) {
	if err := checkText("match", text); err != nil {
		return nil, err
	}
	c := &compiler{pattern: pattern{text: text}}
	segments := strings.Split(text, "/")
	for i, segment := range segments {
		if i > 0 {
			c.literal("/")
		}
		last := i == len(segments)-1
		if segment == "**" {
			c.anything(last)
			continue
		}
		if err := c.segment(segment); err != nil {
			return nil, err
		}
	}
	return c.finish()
}

func (c *compiler) finish() (*pattern, error) {
	end := "$"
	if c.tail {
		end = "" // what is left need not be looked at
	}
	re, err := regexp.Compile("(?s)^" + c.expr.String() + end)
	if err != nil {
		return nil, fmt.Errorf("%q cannot be compiled: %w", c.text, err) // not reached: the text is checked
	}
	c.re = re
	c.head = c.text
	if i := strings.IndexAny(c.text, "*{"); i >= 0 {
		c.head = c.text[:i]
	}
	p := c.pattern
	return &p, nil
}

func (c *compiler) literal(s string) {
	c.expr.WriteString(regexp.QuoteMeta(s))
	c.literals += s
	for i := range len(s) {
		c.nfa = append(c.nfa, op{kind: literal, char: s[i]})
	}
}

func (c *compiler) anything(last bool) {
	c.nfa = append(c.nfa, op{kind: anything})
	if last {
		c.tail = true
		return
	}
	c.loose = true
	c.expr.WriteString(".*")
}

// stars adds text in which * is the only sign.
func (c *compiler) stars(s string) {
	for i, text := range strings.Split(s, "*") {
		if i > 0 {
			c.expr.WriteString("[^/]*")
			c.nfa = append(c.nfa, op{kind: star})
		}
		c.literal(text)
	}
}

func (c *compiler) variable(name string) {
	c.expr.WriteString("([^/]+)")
	c.nfa = append(c.nfa, op{kind: notSlash}, op{kind: star})
	c.vars = append(c.vars, name)
}

// segment adds what stands between two slashes, ** excepted.
func (c *compiler) segment(s string) error {
	switch {
	case strings.Contains(s, "**"):
		return fmt.Errorf("%q: ** stands alone between slashes, as in jobs/**; within a segment write one *", s)
	case strings.Contains(s, "?"):
		return fmt.Errorf("%q: there is no ? here; * takes any number of characters up to the next slash", s)
	case strings.ContainsAny(s, "[]"):
		return fmt.Errorf("%q: there are no [sets] of characters here; write * for them, or one rule for each case", s)
	case strings.Contains(s, `\`):
		return fmt.Errorf(`%q: \ does not escape anything here; every character but * ? [ ] { } \ stands for itself, `+
			`and * takes those, too`, s)
	case strings.ContainsAny(s, "{}"):
		return c.braces(s)
	}
	c.stars(s)
	return nil
}

func (c *compiler) braces(s string) error {
	name, opened := strings.CutPrefix(s, "{")
	name, closed := strings.CutSuffix(name, "}")
	switch {
	case strings.Count(s, "{") != strings.Count(s, "}"):
		return fmt.Errorf("%q: the braces do not pair; a variable is a whole segment, as in jobs/{job}/**", s)
	case strings.Contains(s, ","):
		return fmt.Errorf("%q: there are no {alternatives,} here; write one rule for each", s)
	case !opened || !closed || strings.ContainsAny(name, "{}"):
		return fmt.Errorf("%q: a variable stands alone between slashes, as in jobs/{job}/**; within a segment write *", s)
	case !isName(name):
		return fmt.Errorf("%q: a variable's name is a lower-case letter, then lower-case letters, digits and _", s)
	case name == "key":
		return errors.New("{key} is the whole key in resource; give the variable another name")
	case slices.Contains(c.vars, name):
		return fmt.Errorf("%s stands twice; give the second one another name", s)
	}
	c.variable(name)
	return nil
}

// compileBucket compiles the name of a bucket entry. No bucket's name has a slash, so that one * takes any of them.
func compileBucket(text string) (*pattern, error) {
	if err := checkText("name", text); err != nil {
		return nil, err
	}
	if strings.Contains(text, "**") {
		return nil, fmt.Errorf("%q: write one *; it takes any number of characters", text)
	}
	for _, r := range text {
		if !isBucketRune(r) && r != '*' {
			return nil, fmt.Errorf("%q: a bucket's name has letters, digits, . _ and - only, and * for any number of them; "+
				"%q is none of these", text, r)
		}
	}
	c := &compiler{pattern: pattern{text: text}}
	c.stars(text)
	return c.finish()
}

func checkText(field, text string) error {
	switch {
	case text == "":
		return fmt.Errorf("%s is missing", field)
	case len(text) > MaxPattern:
		return fmt.Errorf("%s has %d bytes; %d is the most", field, len(text), MaxPattern)
	case !utf8.ValidString(text), strings.ContainsRune(text, utf8.RuneError):
		// A regexp takes U+FFFD for any byte that is no UTF-8.
		return fmt.Errorf("%s is not valid UTF-8, or has the character U+FFFD that stands for what is not", field)
	}
	return nil
}

func isName(s string) bool {
	for i, r := range s {
		if !('a' <= r && r <= 'z' || i > 0 && ('0' <= r && r <= '9' || r == '_')) {
			return false
		}
	}
	return s != ""
}

func isBucketRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '.' || r == '-' || r == '_'
}
