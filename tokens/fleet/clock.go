package fleet

import "time"

// A Clock tells how much time has passed. A lease ends by whichever of the two comes first: Boot goes on while the machine sleeps, but not
// while a virtual machine is paused or moved, after which its host sets Wall right; and Wall can be set back.
type Clock interface {
	Boot() time.Duration // since the machine was started, the time it slept included; never goes back
	Wall() time.Time
}

// systemClock is this machine's.
type systemClock struct{}

func (systemClock) Wall() time.Time { return time.Now().Round(0) } // without the monotonic reading
