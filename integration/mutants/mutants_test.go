// Package mutants breaks the protocol on purpose. Each file *.mutant is a change of one place of the product that a careful
// person could make. The suite must catch every one: the mutant builds, passes the plain story, and a named promise fails.
// A suite that stays green against a broken protocol is broken itself.
package mutants

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A mutant is one change and where it must be noticed.
type mutant struct {
	what    string // is wrong with it
	model   string // the wrong variant of the design's models that it is, if it is one: file and flags
	file    string // that it changes, from the root of the repository
	pkg     string // whose tests tell
	story   string // test that must pass
	promise string // test that must fail
	old     string // stands in file exactly once
	new     string
}

// required are the variants of the design's models that must be here.
var required = []string{
	"restart.pml -DLASTRUN", "restart.pml -DCLEANDROP", "restart.pml -DCLEANDOUBT", "restart.pml -DTOKENLESS",
	"restart.pml -DCANCELPASS", "fleet.pml -DEVICT -DEVICT_ANY -DANN", "fleet.pml -DREJOIN -DNOINC",
}

func TestMutantsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the packages once for every mutant")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.mutant")
	if err != nil || len(files) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		m, err := parse(file)
		if err != nil {
			t.Error(err)
			continue
		}
		seen[m.model] = true
		t.Run(strings.TrimSuffix(file, ".mutant"), func(t *testing.T) { m.mustBeCaught(t, root) })
	}
	for _, model := range required {
		if !seen[model] {
			t.Errorf("no mutant for %s", model)
		}
	}
}

func (m mutant) mustBeCaught(t *testing.T, root string) {
	overlay := m.overlay(t, root)
	if out, err := m.test(t, root, m.promise, ""); err != nil {
		t.Fatalf("without the change, %s fails already:\n%s", m.promise, out)
	}
	if out, err := run(t, root, "go", "build", "-overlay", overlay, "./..."); err != nil {
		t.Fatalf("it does not build: the product was changed, change the mutant too\n%s", out)
	}
	if out, err := m.test(t, root, m.story, overlay); err != nil {
		t.Fatalf("it does not even pass the plain story, so its being caught proves little:\n%s", out)
	}
	out, err := m.test(t, root, m.promise, overlay)
	if err == nil {
		t.Fatalf("SURVIVED: %s\n%s is true of it", m.what, m.promise)
	}
	if !strings.Contains(out, "--- FAIL: "+m.promise) {
		t.Fatalf("it failed, but not in %s:\n%s", m.promise, out)
	}
	t.Logf("caught: %s\n%s", m.what, firstFault(out))
}

// test runs one test of the mutant's package and fails if no such test ran.
func (m mutant) test(t *testing.T, root, name, overlay string) (string, error) {
	pattern := "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	args := []string{"test", "-count=1", "-v", "-timeout=120s", "-run", pattern}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	out, err := run(t, root, "go", append(args, m.pkg)...)
	if !strings.Contains(out, "=== RUN   "+name+"\n") && !strings.Contains(out, "build failed") {
		t.Fatalf("there is no test %s in %s:\n%s", name, m.pkg, out)
	}
	return out, err
}

// overlay writes the changed file beside the product, where the go command finds it with -overlay.
func (m mutant) overlay(t *testing.T, root string) string {
	path := filepath.Join(root, m.file)
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("%s has the text to change %d times: the product was changed, change the mutant too\n%s", m.file, n, m.old)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	table, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, table, 0o644); err != nil {
		t.Fatal(err)
	}
	return overlay
}

func run(t *testing.T, dir, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// firstFault is the first line that says what went wrong.
func firstFault(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "_test.go:") || strings.Contains(line, "promise") || strings.Contains(line, ".go:") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func parse(file string) (m mutant, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return m, err
	}
	head, blocks, ok1 := strings.Cut(string(data), "--- old\n")
	before, after, ok2 := strings.Cut(blocks, "--- new\n")
	if !ok1 || !ok2 {
		return m, fmt.Errorf("%s: it needs a block after '--- old' and one after '--- new'", file)
	}
	m.old, m.new = before, after
	if !strings.HasSuffix(m.new, "\n") || !strings.HasSuffix(m.old, "\n") {
		return m, fmt.Errorf("%s: a block does not end with a newline", file)
	}
	m.old, m.new = strings.TrimSuffix(m.old, "\n"), strings.TrimSuffix(m.new, "\n")
	fields := map[string]*string{"What": &m.what, "Model": &m.model, "File": &m.file, "Package": &m.pkg, "Story": &m.story, "Promise": &m.promise}
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(line, ":")
		field, ok := fields[key]
		if !ok {
			return m, fmt.Errorf("%s: unknown line %q", file, line)
		}
		*field = strings.TrimSpace(value)
	}
	if m.what == "" || m.file == "" || m.pkg == "" || m.story == "" || m.promise == "" {
		return m, fmt.Errorf("%s: it needs What, File, Package, Story and Promise", file)
	}
	return m, nil
}
