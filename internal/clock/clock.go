// Package clock tells how much time has passed, for leases that must be over here before anybody else may take them for over.
package clock

import "time"

// A Clock is a machine's. A lease ends by whichever of the two comes first: Boot goes on while the machine sleeps, but not
// while a virtual machine is paused or moved, after which its host sets Wall right; and Wall can be set back.
type Clock interface {
	Boot() time.Duration // since the machine was started, the time it slept included; never goes back
	Wall() time.Time
}

// System is this machine's clock.
type System struct{}

// Wall is the time of day, without the monotonic reading.
func (System) Wall() time.Time { return time.Now().Round(0) }
