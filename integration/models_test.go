package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// modelTime bounds an exploration of all models.
const modelTime = 15 * time.Minute

// TestModels explores the models of the protocol: the right ones hold in every state, every wrong variant fails. In the short form it takes a
// quarter of them, for they know nothing of the product: they change when somebody changes them.
func TestModels(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			skip(t, tool+" is not here, and explores the models of the protocol: "+err.Error())
		}
	}
	if testing.Short() {
		t.Skip("explores millions of states")
	}
	ctx, cancel := context.WithTimeout(t.Context(), modelTime)
	defer cancel()
	form, right, wrong := "sample", 3, 7
	if *longRun {
		form, right, wrong = "quick", 15, 39
	}
	out, err := exec.CommandContext(ctx, "bash", absolute(t, "../docs/model/check"), form).CombinedOutput()
	if err != nil {
		t.Fatalf("%v (within %v)\n%s", err, modelTime, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	did := map[string]int{}
	for _, line := range lines[1:] {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "ok" {
			did[f[3]]++
		}
	}
	if did["hold"] < right || did["fail"] < wrong {
		t.Errorf("%d variants held and %d failed: some were not explored\n%s", did["hold"], did["fail"], out)
	}
	t.Logf("%s", out)
}

// TestMutantsAreOfModels: a mutant that says it is a wrong variant of a model is one that the models' script explores.
func TestMutantsAreOfModels(t *testing.T) {
	script := mustRead(t, "../docs/model/check")
	files, err := filepath.Glob("mutants/*.mutant")
	if err != nil || len(files) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	for _, file := range files {
		for line := range strings.Lines(mustRead(t, file)) {
			variant, ok := strings.CutPrefix(line, "Model:")
			model, switches, _ := strings.Cut(strings.TrimSpace(variant), " ")
			if !ok {
				continue
			}
			if want := "\nfail " + strings.TrimSuffix(model, ".pml") + " " + switches + "\n"; !strings.Contains(script, want) {
				t.Errorf("%s is a variant that docs/model/check does not explore: %s", file, strings.TrimSpace(line))
			}
			if _, err := os.Stat(filepath.Join("../docs/model", model)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}
