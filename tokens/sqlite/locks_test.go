package sqlite

import (
	"testing"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

func TestLocks(t *testing.T) {
	tokenstest.RunLocks(t, tokenstest.LockHarness{Alone: true, Seeds: 5, New: func(t testing.TB) tokenstest.LockEngine {
		dir := t.TempDir()
		return tokenstest.LockEngine{
			Open: func(t testing.TB) tokenstest.LockRegistry { return open(t, dir) },
			RaiseAll: func(t testing.TB, by tokens.Token) (int64, error) {
				r := open(t, dir)
				n, err := r.RaiseAll(t.Context(), by)
				if closeErr := r.Close(); closeErr != nil {
					t.Error(closeErr)
				}
				return n, err
			},
		}
	}})
}
