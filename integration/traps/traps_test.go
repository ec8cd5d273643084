// Package traps holds docs/traps.md to the tests that it names, and the tests to it.
package traps

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// How many traps there are, and stories.
const (
	numberOfTraps   = 13
	numberOfStories = 12
)

const root = "../.."

// A row of a table names what went wrong in its first cell, and its tests in its last one.
type row struct {
	what  string
	tests []string // "package TestName", of a subtest with its path
}

// A page is docs/traps.md.
type page struct {
	traps   map[int][]row
	stories []row
	stores  []row
}

var (
	trapHeading = regexp.MustCompile(`^## Trap (\d+): \S`)
	namedTest   = regexp.MustCompile("`([a-z0-9/]+ Test[^` ]+)`")
)

func readPage(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile(root + "/docs/traps.md")
	if err != nil {
		t.Fatal(err)
	}
	p := page{traps: map[int][]row{}}
	keep := func(row) {}
	for line := range strings.Lines(string(text)) {
		switch heading := trapHeading.FindStringSubmatch(line); {
		case heading != nil:
			n, _ := strconv.Atoi(heading[1])
			if p.traps[n] != nil || n != len(p.traps)+1 {
				t.Errorf("%q is not the next trap", strings.TrimSpace(line))
			}
			keep = func(r row) { p.traps[n] = append(p.traps[n], r) }
		case strings.HasPrefix(line, "## Stories"):
			keep = func(r row) { p.stories = append(p.stories, r) }
		case strings.HasPrefix(line, "## What stores do"):
			keep = func(r row) { p.stores = append(p.stores, r) }
		case strings.HasPrefix(line, "## "):
			t.Errorf("%q is no section that this test knows", strings.TrimSpace(line))
		case isRow(line):
			keep(readRow(line))
		}
	}
	return p
}

// isRow says whether a line is of a table, and neither its head nor the rule below that.
func isRow(line string) bool {
	return strings.HasPrefix(line, "| ") && !strings.HasSuffix(strings.TrimSpace(line), "| tests |")
}

func readRow(line string) row {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	r := row{what: strings.TrimSpace(cells[0])}
	for _, found := range namedTest.FindAllStringSubmatch(cells[len(cells)-1], -1) {
		r.tests = append(r.tests, found[1])
	}
	return r
}

// all are the rows of every table.
func (p page) all() []row {
	return slices.Concat(slices.Concat(slices.Collect(maps.Values(p.traps))...), p.stories, p.stores)
}

// comments are the doc comments of all tests of the repository, by "package TestName".
func comments(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "data"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				found[filepath.ToSlash(pkg)+" "+f.Name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// function is the test that a subtest belongs to.
func function(test string) string {
	pkg, name, _ := strings.Cut(test, " ")
	name, _, _ = strings.Cut(name, "/")
	return pkg + " " + name
}

// TestPage: every trap and every story is on the page, each row has tests, and each of them exists.
func TestPage(t *testing.T) {
	p, there := readPage(t), comments(t)
	if len(p.traps) != numberOfTraps || len(p.stories) != numberOfStories || len(p.stores) == 0 {
		t.Errorf("the page has %d traps, %d stories and %d rows about stores; want %d and %d, and some", len(p.traps), len(p.stories), len(p.stores), numberOfTraps, numberOfStories)
	}
	for n := range p.traps {
		if len(p.traps[n]) == 0 {
			t.Errorf("trap %d has no row", n)
		}
	}
	suite, err := os.ReadFile(root + "/backends/backendtest/suite.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range p.all() {
		if len(r.tests) == 0 {
			t.Errorf("%q names no test", r.what)
		}
		for _, test := range r.tests {
			if _, ok := there[function(test)]; !ok {
				t.Errorf("%q names %s, which does not exist", r.what, test)
			}
			if _, sub, ok := strings.Cut(test, " TestBackend/"); ok && !strings.Contains(string(suite), fmt.Sprintf("name: %q", sub)) {
				t.Errorf("%q names %s, and the suite of backends has no %s", r.what, test, sub)
			}
		}
	}
}

// inComment finds the traps that a comment names: "trap 3", "traps 8 and 9".
var inComment = regexp.MustCompile(`(?i)\btraps? (\d+)(?: and (\d+))?`)

func trapsNamedIn(comment string) (numbers []int) {
	for _, found := range inComment.FindAllStringSubmatch(comment, -1) {
		for _, digits := range found[1:] {
			if n, err := strconv.Atoi(digits); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	return numbers
}

// TestCommentsNameTheTraps: of each trap at least one test says in its comment which it is, and whatever test says so is on the page there.
func TestCommentsNameTheTraps(t *testing.T) {
	p, there := readPage(t), comments(t)
	saying := map[int]int{}
	for test, comment := range there {
		for _, n := range trapsNamedIn(comment) {
			saying[n]++
			onPage := func(r row) bool {
				return slices.ContainsFunc(r.tests, func(named string) bool { return function(named) == test })
			}
			if !strings.HasPrefix(test, "integration/traps ") && !slices.ContainsFunc(p.traps[n], onPage) {
				t.Errorf("%s says that it is about trap %d, and the page does not name it there", test, n)
			}
		}
	}
	for n := 1; n <= numberOfTraps; n++ {
		if saying[n] == 0 {
			t.Errorf("no test says that it is about trap %d", n)
		}
	}
}

// TestCommentsNameTheStories: of each story at least one test names in its comment where it was told.
func TestCommentsNameTheStories(t *testing.T) {
	p, there := readPage(t), comments(t)
	for _, r := range p.stories {
		where, _, _ := strings.Cut(r.what, ",")
		if !slices.ContainsFunc(r.tests, func(test string) bool { return strings.Contains(there[function(test)], where) }) {
			t.Errorf("none of %q names %q", r.tests, where)
		}
	}
}

// TestManualHasTheNumbers: the manual says of each lock service which number is a token (etcd #11788: the lease id is none).
func TestManualHasTheNumbers(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/tokens.md")
	if err != nil {
		t.Fatal(err)
	}
	for service, number := range map[string]string{
		"etcd": "revision", "Consul": "ModifyIndex", "ZooKeeper": "czxid", "Redis": "counter", "PostgreSQL": "epoch", "Kubernetes Lease": "leaseTransitions",
	} {
		line := regexp.MustCompile(`(?m)^\| ` + service + ` \|.*$`).FindString(string(text))
		if !strings.Contains(line, number) || service == "etcd" && !strings.Contains(line, "not the lease id") {
			t.Errorf("of %s the manual says %q", service, line)
		}
	}
}
