package fleet_test

import (
	"testing"

	"github.com/fenceproxy/fenceproxy/tokens/fleet"
	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

// TestLocks: the proxy's own locks over the store in memory.
func TestLocks(t *testing.T) {
	tokenstest.RunLocks(t, tokenstest.LockHarness{Seeds: 200, New: func(t testing.TB) tokenstest.LockEngine {
		m := tokenstest.NewMemory(false)
		return tokenstest.LockEngine{Open: func(t testing.TB) tokenstest.LockRegistry {
			r := fleet.New(m.Store(t), fleet.Options{})
			if err := r.Begin(t.Context(), m.Mapping(t)); err != nil {
				t.Fatal(err)
			}
			return r
		}}
	}})
}
