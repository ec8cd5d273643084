package audit_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/audit/audittest"
)

func TestFileStore(t *testing.T) {
	audittest.Run(t, func(t *testing.T) func() audit.Store {
		path := filepath.Join(t.TempDir(), "audit.db")
		return func() audit.Store {
			s, err := audit.OpenFile(context.Background(), path)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	})
}
