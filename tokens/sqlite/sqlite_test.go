package sqlite

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	tokenstest.Run(t, tokenstest.Harness{
		Open: func(t testing.TB, dir string) tokens.Registry {
			r, err := Open(t.Context(), dir, Options{Create: true})
			if err != nil {
				t.Fatal(err)
			}
			return r
		},
		Kill: func(t testing.TB, r tokens.Registry) {
			if err := r.(*Registry).release(); err != nil {
				t.Fatal(err)
			}
		},
	})
}
