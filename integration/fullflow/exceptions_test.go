package fullflow

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A family is one reason why tests of the suite cannot pass.
type family struct {
	name   string
	says   *regexp.Regexp // what such a test says when it fails: one that fails by something else is not of the family
	reason string
}

// exceptions are the tests that are known to fail over a store, and why.
type exceptions map[string]family

// readExceptions reads a list of testdata: test, tab, family. Each family stands in families.txt: name, tab, what its tests say, tab,
// the reason.
func readExceptions(t *testing.T, list string, s suite) exceptions {
	t.Helper()
	families := map[string]family{}
	for _, fields := range readLines(t, "families.txt") {
		if len(fields) != 3 {
			t.Fatalf("families.txt: %q has not three fields", fields)
		}
		families[fields[0]] = family{fields[0], regexp.MustCompile(fields[1]), fields[2]}
	}
	e := exceptions{}
	for _, fields := range readLines(t, list) {
		if len(fields) != 2 {
			t.Fatalf("%s: %q has not two fields", list, fields)
		}
		f, ok := families[fields[1]]
		switch _, twice := e[fields[0]]; {
		case !ok:
			t.Fatalf("%s: %s is of family %q, which families.txt does not have", list, fields[0], fields[1])
		case twice:
			t.Fatalf("%s has %s twice", list, fields[0])
		case !slices.Contains(s.tests, fields[0]):
			t.Fatalf("%s has %s, which is no test of the suite", list, fields[0])
		}
		e[fields[0]] = f
	}
	return e
}

// secondLooks is how many unlisted failures of a run may be looked at once more.
const secondLooks = 8

// judge holds results against the list. A test that fails and is not listed is run once more, alone and over an empty store: listed ones
// leave buckets behind that others stumble over, and some of the suite set dates a few seconds ahead, which pass on a loaded machine.
func judge(t *testing.T, s suite, results map[string]result, expected exceptions, again func(name string) result) {
	t.Helper()
	var failed []string
	passed := 0
	for _, name := range s.tests {
		r, ran := results[name]
		f, listed := expected[name]
		switch {
		case !ran:
			t.Errorf("%s: it never ran", name)
		case listed && r.passed:
			t.Errorf("%s passes, and is listed (%s): take it out", name, f.name)
		case listed && !f.says.MatchString(r.said):
			t.Errorf("%s is listed (%s), and says something else: %s", name, f.name, r.said)
		case !listed && !r.passed:
			failed = append(failed, name)
		case r.passed:
			passed++
		}
	}
	for i, name := range failed {
		said := results[name].said
		if again == nil || i >= secondLooks {
			t.Errorf("%s: %s", name, said)
		} else if r := again(name); r.passed {
			passed++
			t.Logf("%s passes alone; in the flow it said: %s", name, said)
		} else {
			t.Errorf("%s: %s\nalone: %s", name, said, r.said)
		}
	}
	t.Logf("%d tests, %d pass, %d are listed", len(s.tests), passed, len(expected))
}

// aloneOverEmpty runs one test over a store of its own.
func aloneOverEmpty(ctx context.Context, make setup, name string) result {
	dir, err := os.MkdirTemp("", "fenceproxy-fullflow-")
	if err != nil {
		return result{said: err.Error()}
	}
	defer os.RemoveAll(dir)
	s, err := make(dir)
	if err != nil {
		return result{said: err.Error()}
	}
	r := alone(ctx, s.endpoint, name)
	if err := s.end(); err != nil {
		return result{said: err.Error()}
	}
	return r
}

// TestPage holds docs/compatibility.md to the lists: it has each family with its number of tests and its reason.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	s := readSuite(t)
	for _, list := range []string{gatewayList, pathList, fileList} {
		_, section, found := strings.Cut(string(text), "<!-- "+list+" -->\n")
		if !found {
			t.Errorf("the page has no section of %s", list)
			continue
		}
		section, _, _ = strings.Cut(section, "<!--")
		for _, line := range pageLines(s, readExceptions(t, list, s)) {
			if !strings.Contains(section, line+"\n") {
				t.Errorf("the page lacks, for %s: %s", list, line)
			}
		}
	}
}

// pageLines are the lines that the page has of a list: the families, and the sums.
func pageLines(s suite, e exceptions) (lines []string) {
	count := map[string]int{}
	reasons := map[string]string{}
	for _, f := range e {
		count[f.name]++
		reasons[f.name] = f.reason
	}
	for name, n := range count {
		lines = append(lines, fmt.Sprintf("| %s | %d | %s |", name, n, reasons[name]))
	}
	slices.Sort(lines)
	return append(lines, fmt.Sprintf("%d tests, %d pass, %d do not:", len(s.tests), len(s.tests)-len(e), len(e)))
}
