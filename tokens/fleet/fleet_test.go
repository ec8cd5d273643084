package fleet_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fenceproxy/fenceproxy/tokens/tokenstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var memories = map[string]bool{"Expelling": false, "Timed": true}

// TestMemoryIsAStore: the store that all the other tests here stand on keeps the contract that engines have to keep.
func TestMemoryIsAStore(t *testing.T) {
	for name, timed := range memories {
		t.Run(name, func(t *testing.T) {
			tokenstest.RunStore(t, tokenstest.StoreHarness{Engine: memory(timed), Timed: timed, ShortLease: time.Second / 2})
		})
	}
}

func TestFleet(t *testing.T) {
	for name, timed := range memories {
		t.Run(name, func(t *testing.T) {
			tokenstest.RunFleet(t, tokenstest.FleetHarness{Engine: memory(timed), Timed: timed})
		})
	}
}

// TestConformance: an instance alone is a registry like any other.
func TestConformance(t *testing.T) { tokenstest.RunOver(t, memory(false)) }

func memory(timed bool) func(testing.TB) tokenstest.Engine {
	return func(testing.TB) tokenstest.Engine { return tokenstest.NewMemory(timed) }
}

// TestSimulation: half of the seeds are of an engine that times leases itself.
func TestSimulation(t *testing.T) {
	tokenstest.SimulateFleet(t, func(_ testing.TB, seed uint64) tokenstest.Engine { return tokenstest.NewMemory(seed%2 == 0) })
}
