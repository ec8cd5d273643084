package file_test

import (
	"net/http"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/backends/backendtest"
	"github.com/fenceproxy/fenceproxy/backends/file"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBackend(t *testing.T) {
	for name, options := range map[string]file.Options{
		"attributes": {},
		"side files": {ForceSideFiles: true},
	} {
		if options.ForceSideFiles && os.Getenv("FENCEPROXY_LONG") == "" {
			continue // what depends on where metadata is has tests of its own
		}
		t.Run(name, func(t *testing.T) {
			open := func(t *testing.T) http.Handler {
				s, err := file.Open(t.TempDir(), options)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			}
			backendtest.Harness{Open: open, TreeKeys: true, NoDirectoryObjects: options.ForceSideFiles}.Run(t)
		})
	}
}
