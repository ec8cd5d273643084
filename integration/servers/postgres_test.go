package servers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPostgresTemplate has four servers that begin at once where no template is there yet, and one that comes later. The system identifier, which is
// drawn by initdb, tells who has run it.
func TestPostgresTemplate(t *testing.T) {
	template := filepath.Join(t.TempDir(), "cache", "template.tar")
	ids := make([]string, 5)
	initialize := func(i int, o PostgresOptions) func(*testing.T) {
		return func(t *testing.T) {
			if i < 4 {
				t.Parallel()
			}
			p := newPostgres(t, o)
			p.initialize(template)
			ids[i] = systemIdentifier(t, p)
		}
	}
	t.Run("Together", func(t *testing.T) {
		for i, name := range []string{"A", "B", "C"} {
			t.Run(name, initialize(i, PostgresOptions{}))
		}
		t.Run("Fresh", initialize(3, PostgresOptions{Fresh: true}))
	})
	t.Run("Later", initialize(4, PostgresOptions{}))
	if t.Failed() || ids[0] == "" { // or skipped
		return
	}
	if ids[1] != ids[0] || ids[2] != ids[0] || ids[4] != ids[0] {
		t.Errorf("system identifiers %q: initdb was run more than once", ids)
	}
	if ids[3] == ids[0] {
		t.Errorf("system identifiers %q: the fourth is no cluster of its own", ids)
	}
	if files, err := os.ReadDir(filepath.Dir(template)); err != nil || len(files) != 1 {
		t.Errorf("%v, %v; want the template alone", files, err)
	}
}

// TestPostgresNoTemplate: where nothing can be kept, initdb runs for each.
func TestPostgresNoTemplate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPostgres(t, PostgresOptions{})
	p.initialize(filepath.Join(file, "template.tar"))
	systemIdentifier(t, p)
}

func systemIdentifier(t *testing.T, p *Postgres) string {
	t.Helper()
	for line := range strings.Lines(p.Run("pg_controldata", "-D", p.Dir)) {
		if id, ok := strings.CutPrefix(line, "Database system identifier:"); ok {
			return strings.TrimSpace(id)
		}
	}
	t.Fatal("pg_controldata tells no system identifier")
	return ""
}
