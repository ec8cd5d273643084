package tokenstest

import (
	"testing"

	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// An Engine is a fresh and empty registry of one driver, on which any number of instances can be opened.
type Engine interface {
	// Store opens one instance's way to it. Who uses it closes it.
	Store(t testing.TB) fleet.Store

	// Mapping is the version of the mappings on record, as Join wants it.
	Mapping(t testing.TB) int64

	// Remap records other mappings, in which some bucket is mapped otherwise, and returns their version.
	Remap(t testing.TB) int64
}
