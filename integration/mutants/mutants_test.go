// Package mutants breaks the protocol on purpose. Each file *.mutant is a change of one place of the product that a careful
// person could make. The suite must catch every one: the mutant builds, passes the plain story, and a named promise fails.
// A suite that stays green against a broken protocol is broken itself.
package mutants

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// which of the mutants are built. Each builds in seconds where its packages are compiled already, but they are many.
var which = flag.String("mutants", "sample", "sample: some of those of tokens/fleet, which need no other package; all: all")

// A mutant is one change and where it must be noticed.
type mutant struct {
	name    string // of its file, without .mutant
	what    string // is wrong with it
	model   string // the wrong variant of a model in docs/model that it is, if it is one: file and flags
	file    string // that it changes, from the root of the repository
	pkg     string // whose tests tell
	story   string // test that must pass
	promise string // test that must fail
	old     string // stands in file exactly once
	new     string
}

// required are mutants that must be here: those of wrong variants of the models, by the variant, and others by name.
var required = []string{
	"fence.pml -DNODRAIN", "fence.pml -DMARKLATE", "fence.pml -DEVICT -DEVICT_ANY", "fence.pml -DEVICT -DEVICT_OPEN",
	"fence.pml -DRESET -DNOGENERATION", "fence.pml -DRESET -DRESETNOW",
	"restart.pml -DLASTRUN", "restart.pml -DCLEANDROP", "restart.pml -DCLEANDOUBT", "restart.pml -DTOKENLESS", "restart.pml -DCANCELPASS",
	"restart.pml -DNODOUBT", "restart.pml -DEQUAL -DGIVEBACK", "restart.pml -DRESET -DRESETNOW",
	"condition.pml -DKEYS -DLATE -DUNCONDITIONAL", "condition.pml -DKEYS -DLATE -DGATEFIRST", "condition.pml -DKEYS -DLATE -DRETRYINSIDE",
	"condition.pml -DORDER -DEQUAL -DRECURS -DBYETAG", "condition.pml -DORDER -DDELETES -DREPLAY",
	"fleet.pml -DREJOIN -DNOINC", "fleet.pml -DREJOIN -DKEEPROWS", "fleet.pml -DNOSETTLE", "fleet.pml -DEVICT -DGB_UNCOND", "fleet.pml -DEVICT -DGB_TOKEN",
	"fleet.pml -DEVICT -DEVICT_ANY", "fleet.pml -DEVICT -DLATE -DAGAIN -DEVICT_MARK", "fleet.pml -DLATE -DMEMONLY", "fleet.pml -DGATEAFTER",
	"fleet.pml -DNOYIELD", "fleet.pml -DRESET -DLATE -DRESETTAKES",
	"fleet.pml -DHOLDER -DEQUALSTAND", "fleet.pml -DHOLDER -DOWNTAKEN", "fleet.pml -DHOLDER -DNOBIND",
	"nowall", "noboot", "leasefromanswer", "expelblind", "hintsonly", "equalgiveback", "resetyields", // what several instances promise
	"markearly", // what a claim says is judged before any mark moves
	"lategrant", // a grant is installed only if the mark is still the same
	"clientcancels", "bare", "nosendtime", "merged",
}

// root is that of the repository.
const root = "../.."

// TestPromisesHold: what the mutants must break, holds without them, and is there to run. One call of go test for each package.
func TestPromisesHold(t *testing.T) {
	tests := map[string][]string{}
	for _, m := range choose(all(t)) {
		for _, test := range []string{m.story, m.promise} {
			if !slices.Contains(tests[m.pkg], test) {
				tests[m.pkg] = append(tests[m.pkg], test)
			}
		}
	}
	for pkg, names := range tests {
		out, err := goTest(t, pkg, "", names...)
		if err != nil {
			t.Errorf("%s: %v\n%s", pkg, err, out)
			continue
		}
		for _, name := range names {
			if !strings.Contains(out, "--- PASS: "+name+" (") {
				t.Errorf("there is no test %s in %s, or it was skipped", name, pkg)
			}
		}
	}
}

// TestMutantsApply: each mutant changes text that stands in the product once. When the product changes under it, that is noticed without building it.
func TestMutantsApply(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range all(t) {
		seen[m.name], seen[m.model] = true, true
		if _, _, err := m.change(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	for _, name := range required {
		if !seen[name] {
			t.Errorf("no mutant for %s", name)
		}
	}
}

func TestMutantsAreCaught(t *testing.T) {
	mutants := all(t)
	chosen := choose(mutants)
	caught := 0
	for _, m := range chosen {
		t.Run(m.name, func(t *testing.T) { // which is not run at all where -run leaves it out
			m.mustBeCaught(t)
			caught++
		})
	}
	t.Logf("%d of %d mutants were caught", caught, len(chosen))
	if n := len(mutants) - len(chosen); n > 0 {
		t.Logf("%d others were left out: -args -mutants=all builds them, too", n)
	}
}

// choose takes all mutants, or a sample: that the others are caught is for the long form.
func choose(mutants []mutant) (chosen []mutant) {
	if *which == "all" {
		return mutants
	}
	n := 0
	for _, m := range mutants {
		if m.pkg != "./tokens/fleet" {
			continue
		}
		if n%6 == 0 {
			chosen = append(chosen, m)
		}
		n++
	}
	return chosen
}

// all reads the mutants.
func all(t *testing.T) []mutant {
	if testing.Short() {
		t.Skip("builds a package once for every mutant")
	}
	files, err := filepath.Glob("*.mutant")
	if err != nil || len(files) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	var mutants []mutant
	for _, file := range files {
		m, err := parse(file)
		if err != nil {
			t.Error(err)
			continue
		}
		mutants = append(mutants, m)
	}
	return mutants
}

func (m mutant) mustBeCaught(t *testing.T) {
	out, err := goTest(t, m.pkg, m.overlay(t), m.story, m.promise)
	switch {
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		t.Fatalf("it does not build: the product was changed, change the mutant too\n%s", out)
	case !strings.Contains(out, "=== RUN   "+m.promise+"\n"):
		t.Fatalf("there is no test %s in %s, or it did not come to it:\n%s", m.promise, m.pkg, out)
	case !strings.Contains(out, "--- PASS: "+m.story+" ("):
		t.Fatalf("it does not even pass the plain story, %s, so its being caught proves little:\n%s", m.story, out)
	case err == nil:
		t.Fatalf("SURVIVED: %s\n%s is true of it", m.what, m.promise)
	case !strings.Contains(out, "--- FAIL: "+m.promise+" ("):
		t.Fatalf("it failed, but not in %s:\n%s", m.promise, out)
	}
	t.Logf("caught: %s\n%s", m.what, firstFault(out))
}

// goTest runs these tests of a package. Without vet, which has nothing to say of a mutant, and without debug information, which takes the linker
// longer than the rest.
func goTest(t *testing.T, pkg, overlay string, tests ...string) (string, error) {
	var patterns []string
	for _, name := range tests {
		patterns = append(patterns, "^"+strings.ReplaceAll(regexp.QuoteMeta(name), "/", "$/^")+"$")
	}
	args := []string{"test", "-vet=off", "-ldflags=-s -w", "-count=1", "-v", "-timeout=4m", "-run", strings.Join(patterns, "|")}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as everything is compiled that does not need the race detector
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// change is what the changed file holds, and where it stands.
func (m mutant) change() (path, text string, err error) {
	path, err = filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		return "", "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", "", fmt.Errorf("%s has the text to change %d times: the product was changed, change the mutant too\n%s", m.file, n, m.old)
	}
	return path, strings.Replace(string(source), m.old, m.new, 1), nil
}

// overlay writes the changed file beside the product, where the go command finds it with -overlay.
func (m mutant) overlay(t *testing.T) string {
	path, text, err := m.change()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, []byte(text), 0o644); err != nil {
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
	m.name, m.old, m.new = strings.TrimSuffix(file, ".mutant"), before, after
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
