package fullflow

import (
	"context"
	"errors"
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

// A result is what the suite says of one test: nothing of one that has passed.
type result struct {
	passed bool
	said   string
}

// runSuite runs full-flow, or one test of it, against an endpoint, and returns what it prints. It runs in suiteDir: tests call
// ./versitygw themselves, for the admin API.
func runSuite(ctx context.Context, endpoint string, limit time.Duration, what ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := []string{"test", "--access", accessKey, "--secret", secretKey, "--endpoint", endpoint}
	cmd := exec.CommandContext(ctx, "./versitygw", append(args, what...)...)
	cmd.Dir, cmd.Env = suiteDir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + suiteDir}
	cmd.WaitDelay = patience // where it is killed, its children may hold its output
	out, err := cmd.CombinedOutput()
	text := colours.ReplaceAllString(string(out), "")
	if ctx.Err() != nil {
		return text, fmt.Errorf("versitygw test %v did not end within %v", what, limit)
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) { // it exits with 1 when a test fails
		return text, err
	}
	return text, nil
}

var (
	colours    = regexp.MustCompile("\x1b\\[[0-9;]*m")
	resultLine = regexp.MustCompile(`(?m)^(PASS|FAIL) (\w+)(?:: (.*))?$`)
	diedLine   = regexp.MustCompile(`(?m)^(panic|fatal error): .*$`)

	commandLine = regexp.MustCompile(`(?m)^\s+(\w+)\s+Runs \w+ integration test$`)
)

// parseResults reads what the suite prints: by the name that is printed.
func parseResults(out string) map[string][]result {
	results := map[string][]result{}
	for _, m := range resultLine.FindAllStringSubmatch(out, -1) {
		results[m[2]] = append(results[m[2]], result{m[1] == "PASS", m[3]})
	}
	return results
}

// A suite is the tests of full-flow in their order, and the names that they print: some print another's.
type suite struct {
	tests   []string
	printed map[string]string
}

// readSuite reads testdata/suite.txt: the test, and behind a tab the name that it prints if that is another one.
func readSuite(t *testing.T) suite {
	t.Helper()
	s := suite{printed: map[string]string{}}
	for _, fields := range readLines(t, "suite.txt") {
		name := fields[0]
		s.tests = append(s.tests, name)
		s.printed[name] = fields[len(fields)-1]
	}
	return s
}

// readLines reads a file of testdata, without its comments: lines of fields between tabs.
func readLines(t *testing.T, name string) (lines [][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.Split(line, "\t"))
		}
	}
	return lines
}

// byTest gives each test its result. Tests that print one name are told apart as well as can be: those that are expected to
// fail have the failures.
func (s suite) byTest(printed map[string][]result, expected exceptions) map[string]result {
	results := map[string]result{}
	for _, wantFailed := range []bool{true, false} {
		for _, name := range s.tests {
			if _, listed := expected[name]; listed != wantFailed {
				continue
			}
			left := printed[s.printed[name]]
			if len(left) == 0 {
				continue
			}
			at := max(0, slices.IndexFunc(left, func(r result) bool { return r.passed != wantFailed }))
			results[name] = left[at]
			printed[s.printed[name]] = slices.Delete(left, at, at+1)
		}
	}
	return results
}

// alone runs one test in a process of its own.
func alone(ctx context.Context, endpoint, name string) result {
	out, err := runSuite(ctx, endpoint, 3*time.Minute, name)
	if err != nil {
		return result{said: err.Error()}
	}
	if all := resultLine.FindAllStringSubmatch(out, -1); all != nil {
		last := all[len(all)-1]
		return result{last[1] == "PASS", last[3]}
	}
	return result{said: "the suite's process died: " + diedLine.FindString(out)}
}

// runnable are the tests that can be run alone; a few can not.
func runnable(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.Command(gateway, "test", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("versitygw test --help: %v\n%s", err, out)
	}
	names := map[string]bool{}
	for _, m := range commandLine.FindAllStringSubmatch(string(out), -1) {
		names[m[1]] = true
	}
	return names
}
