package clients

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// longTool is the path of one that takes minutes to build, "" where it was not built and this is the short form.
func longTool(t *testing.T, name string) string {
	t.Helper()
	if os.Getenv("FENCEPROXY_LONG") == "" {
		if built, _ := filepath.Glob(filepath.Join(cache(t), name+"-*", name)); len(built) == 0 {
			t.Logf("NOT SHOWN: %s takes minutes to build, and is tried in the long form (FENCEPROXY_LONG)", name)
			return ""
		}
	}
	return tool(t, name)
}

// tool is the path of a client that testdata/tools names.
func tool(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/tools")
	must(t, "read the list of tools", err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == name {
			path := filepath.Join(cache(t), f[0]+"-"+f[1], f[0])
			if _, err := os.Stat(path); err != nil {
				missing(t, name+" "+f[1])
			}
			return path
		}
	}
	t.Fatalf("testdata/tools does not name %s", name)
	return ""
}
