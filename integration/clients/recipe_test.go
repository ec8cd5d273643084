package clients

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// A recipe is a section of docs/clients.md: its blocks by their language, in their order. Blocks of sh, yaml, ini, python, js are
// run by the tests; those of text are what a client with a stale token prints, but for "…", which stands for anything.
type recipe map[string][]string

const manual = "../../docs/clients.md"

var codeBlock = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

func readRecipe(t *testing.T, section string) recipe {
	t.Helper()
	text, err := os.ReadFile(manual)
	must(t, "read the manual", err)
	_, after, ok := strings.Cut(string(text), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", manual, section)
	}
	after, _, _ = strings.Cut(after, "\n## ")
	r := recipe{}
	for _, block := range codeBlock.FindAllStringSubmatch(after, -1) {
		r[block[1]] = append(r[block[1]], block[2])
	}
	return r
}

// told checks that a client said what the manual says it does.
func (r recipe) told(c *client, said string) {
	c.Helper()
	if len(r["text"]) == 0 {
		c.Error("the manual does not say what a client with a stale token prints")
	}
	for _, block := range r["text"] {
		for line := range strings.Lines(strings.TrimSpace(block)) {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(line)), "…", ".*")
			if !regexp.MustCompile(pattern).MatchString(said) {
				c.Errorf("%s says that the client prints\n%s\nIt printed\n%s", manual, line, said)
			}
		}
	}
}

// within checks that each line of the blocks of a language stands in a file: that of the test.
func (r recipe) within(t *testing.T, language, file string) {
	t.Helper()
	source, err := os.ReadFile(file)
	must(t, "read the test", err)
	for _, block := range r[language] {
		for line := range strings.Lines(block) {
			if line = strings.TrimSpace(line); !strings.Contains(string(source), line) {
				t.Errorf("%s has the line\n%s\nwhich %s does not have", manual, line, file)
			}
		}
	}
	if len(r[language]) == 0 {
		t.Errorf("%s has no %s for this client", manual, language)
	}
}

func TestResticRuleIsTheManuals(t *testing.T) {
	t.Parallel()
	if blocks := readRecipe(t, "restic")["yaml"]; len(blocks) != 1 || !strings.Contains(blocks[0], resticRule) {
		t.Errorf("the rule for restic is not %s in %s", resticRule, manual)
	}
}
