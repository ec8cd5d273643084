package integration

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// runSection is a section of docs/run.md.
func runSection(t *testing.T, name string) string {
	t.Helper()
	_, after, ok := strings.Cut(mustRead(t, "../docs/run.md"), "\n## "+name+"\n")
	if !ok {
		t.Fatalf("docs/run.md has no section %q", name)
	}
	section, _, _ := strings.Cut(after, "\n## ")
	return section
}

// sameNames checks that a page and the program have the same.
func sameNames(t *testing.T, what string, page, program []string) {
	t.Helper()
	slices.Sort(page)
	slices.Sort(program)
	if !slices.Equal(page, program) {
		t.Errorf("%s: docs/run.md has\n%q\nand the program\n%q", what, page, program)
	}
}

// TestRunFlags: docs/run.md has every flag of `fenceproxy run`, with the default that it has.
func TestRunFlags(t *testing.T) {
	t.Parallel()
	out, _, _ := cli(t, "run", "--help")
	_, help, _ := strings.Cut(out, "\nFlags:\n")
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)[^|]*\\| *([^ |]*).*$").FindAllStringSubmatch(strings.ReplaceAll(runSection(t, "Flags"), `\|`, "/"), -1) {
		rows[row[1]] = row[2]
	}
	var program []string
	for _, flag := range regexp.MustCompile(`(?m)^ +(?:-h, )?--([a-z-]+) .*?(?:\(default "?([a-z0-9]+)"?\))?$`).FindAllStringSubmatch(help, -1) {
		if flag[1] == "help" {
			continue
		}
		program = append(program, flag[1])
		if is := strings.Replace(flag[2], "m0s", "m", 1); is != "" && rows[flag[1]] != is {
			t.Errorf("--%s: docs/run.md says that its default is %q; it is %s", flag[1], rows[flag[1]], is)
		}
	}
	sameNames(t, "flags", slices.Collect(maps.Keys(rows)), program)
}

// TestRunPage: a command has the environment, and a report the keys, that docs/run.md lists.
func TestRunPage(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	report := p.dir + "/report"
	out, said, code := cli(t, "run", "--lock", "fence://"+p.addr+"/bkt/jobs/7/state", "--announce", "bkt/jobs/7/state", "--holder", "node-1", "--report", report, "--", "env")
	if code != 0 || !strings.Contains(said, "fenceproxy run: token 1; waited ") {
		t.Fatalf("it ended with %d and said %s", code, said)
	}
	table := regexp.MustCompile("(?m)^\\| `([A-Z_]+)`").FindAllStringSubmatch(runSection(t, "Environment"), -1)
	if len(table) != 5 {
		t.Errorf("docs/run.md has the variables %q", table)
	}
	for _, row := range table {
		if !strings.Contains("\n"+out, "\n"+row[1]+"=") {
			t.Errorf("the command has no %s", row[1])
		}
	}
	if !strings.Contains(out, "AWS_ENDPOINT_URL=http://"+p.addr+"/~fence/1;holder=node-1\n") {
		t.Errorf("the command does not know where the proxy is: %s", out)
	}
	p.marked(t, "/bkt/jobs/7/state", 1)

	var has map[string]any
	if err := json.Unmarshal([]byte(mustRead(t, report)), &has); err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z_`, ]+) \\|").FindAllStringSubmatch(runSection(t, "The report"), -1) {
		for _, name := range strings.Split(row[1], ", ") {
			listed = append(listed, strings.Trim(name, "`"))
		}
	}
	sameNames(t, "keys of the report", listed, slices.Collect(maps.Keys(has)))
}

// TestLocksPage: docs/locks.md has a row and a section for each lock that `fenceproxy run` knows.
func TestLocksPage(t *testing.T) {
	t.Parallel()
	help, _, _ := cli(t, "run", "--help")
	page := mustRead(t, "../docs/locks.md")
	kinds := regexp.MustCompile(`(?m)^  ([a-z]+)://`).FindAllStringSubmatch(help, -1)
	if len(kinds) < 3 {
		t.Errorf("the program knows the locks %q", kinds)
	}
	for _, kind := range kinds {
		if !strings.Contains(page, "`"+kind[1]+"://") {
			t.Errorf("docs/locks.md does not have %s://", kind[1])
		}
		kind[1] = strings.Replace(kind[1], "rediss", "redis", 1) // with TLS
		row := regexp.MustCompile("(?m)^\\| \\[`" + kind[1] + "://.*$").FindString(page)
		if row == "" || !regexp.MustCompile("(?m)^`"+kind[1]+"://").MatchString(page) {
			t.Errorf("docs/locks.md has no row, or no section, for %s://", kind[1])
		}
	}
}
