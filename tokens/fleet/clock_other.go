//go:build !linux

package fleet

import "time"

var started = time.Now()

// Boot is good enough for a system on which no proxy runs.
func (systemClock) Boot() time.Duration { return time.Since(started) }
