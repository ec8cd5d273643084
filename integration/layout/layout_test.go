// Package layout holds the repository to its table of imports: who may know whom is what keeps the way of a write straight.
package layout

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/fenceproxy/fenceproxy/"

// allowed says which packages of ours each package may import, tests aside. One that is missing here is not allowed to be.
// docs/life-of-a-write.md draws it.
var allowed = map[string][]string{
	"cmd/fenceproxy": {
		"backends/file", "backends/s3", "internal/demo", "internal/sqlitedb", "proxy", "proxy/admin", "proxy/audit", "proxy/audit/postgres", "proxy/rules", "proxy/sigv4",
		"tokens", "tokens/etcd", "tokens/postgres", "tokens/sqlite",
		"tokens/locks", "tokens/locks/consul", "tokens/locks/etcd", "tokens/locks/fence", "tokens/locks/kubernetes", "tokens/locks/postgres", "tokens/locks/redis",
		"tokens/locks/redlock", "tokens/locks/zookeeper",
	},
	"proxy":                            {"internal/checksum", "internal/localname", "proxy/audit", "proxy/rules", "proxy/sigv4", "tokens"},
	"proxy/sigv4":                      {},
	"proxy/rules":                      {},
	"proxy/audit":                      {"internal/sqlitedb"},
	"proxy/audit/audittest":            {"proxy/audit"},
	"proxy/audit/postgres":             {"proxy/audit"},
	"proxy/admin":                      {"internal/localname", "proxy/audit", "tokens"},
	"backends":                         {},
	"backends/file":                    {"internal/checksum"},
	"backends/s3":                      {"internal/checksum", "internal/clock"},
	"backends/backendtest":             {"internal/checksum"},
	"tokens":                           {"internal/clock"},
	"tokens/etcd":                      {"tokens", "tokens/fleet"},
	"tokens/fleet":                     {"internal/clock", "tokens"},
	"tokens/locks":                     {"internal/clock", "tokens"},
	"tokens/locks/zookeeper":           {"internal/trust", "tokens", "tokens/locks"},
	"tokens/locks/consul":              {"internal/trust", "tokens", "tokens/locks"},
	"tokens/locks/consul/consultest":   {},
	"tokens/locks/kubernetes":          {"internal/trust", "tokens", "tokens/locks"},
	"tokens/locks/kubernetes/kubetest": {},
	"tokens/postgres":                  {"tokens", "tokens/fleet"},
	"tokens/sqlite":                    {"internal/sqlitedb", "tokens"},
	"tokens/tokenstest":                {"tokens", "tokens/fleet"},
	"internal/sqlitedb":                {},
	"internal/localname":               {},
	"internal/checksum":                {},
	"internal/clock":                   {},
	"internal/trust":                   {},

	"tokens/locks/fence":     {"internal/trust", "tokens", "tokens/locks"},
	"tokens/locks/etcd":      {"internal/trust", "tokens", "tokens/locks"},
	"tokens/locks/lockstest": {"tokens", "tokens/locks"},
	"tokens/locks/postgres":  {"tokens", "tokens/locks"},
	"tokens/locks/redis":     {"internal/resp", "tokens", "tokens/locks", "tokens/locks/internal/node"},
	"tokens/locks/redlock":   {"internal/resp", "tokens", "tokens/locks", "tokens/locks/internal/node"},
	"internal/resp":          {},

	"tokens/locks/internal/node": {"internal/resp", "internal/trust", "tokens", "tokens/locks"},
	"internal/demo":              {"tokens", "tokens/locks"},
}

func TestImports(t *testing.T) {
	found := imports(t, "../..")
	for pkg, imported := range found {
		may, ok := allowed[pkg]
		if !ok {
			t.Errorf("package %s is not in the table", pkg)
			continue
		}
		for name := range imported {
			if !slices.Contains(may, name) {
				t.Errorf("%s imports %s, which the table does not allow", pkg, name)
			}
		}
		for _, name := range may {
			if !imported[name] {
				t.Errorf("the table lets %s import %s, which it does not: take it out", pkg, name)
			}
		}
	}
	for pkg := range allowed {
		if _, ok := found[pkg]; !ok {
			t.Errorf("the table has %s, which does not exist", pkg)
		}
	}
}

// imports reads what every package imports of ours.
func imports(t *testing.T, root string) map[string]map[string]bool {
	found := map[string]map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name != ".." && (strings.HasPrefix(name, ".") || name == "integration" || name == "testdata" || name == "data") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		if found[pkg] == nil {
			found[pkg] = map[string]bool{}
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if ours, ok := strings.CutPrefix(name, module); ok {
				found[pkg][ours] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestTopLevel: what stands at the top is what a visitor sees first.
func TestTopLevel(t *testing.T) {
	may := []string{
		".ci", ".git", ".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "backends", "cmd", "config.yaml", "data", "deploy", "dist",
		"docs", "go.mod", "go.sum", "integration", "internal", "proxy", "tokens",
	}
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(may, e.Name()) {
			t.Errorf("%s stands at the top of the repository", e.Name())
		}
	}
}
