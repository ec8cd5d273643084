package fleet_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMemoryIsAStore: the store that all the other tests here stand on keeps the contract that engines have to keep.
func TestMemoryIsAStore(t *testing.T) {
	for name, timed := range map[string]bool{"Expelling": false, "Timed": true} {
		t.Run(name, func(t *testing.T) {
			tokenstest.RunStore(t, tokenstest.StoreHarness{
				Engine: func(testing.TB) tokenstest.Engine { return tokenstest.NewMemory(timed) },
				Timed:  timed, ShortLease: 500 * 1e6,
			})
		})
	}
}
