package s3

import (
	"net/http"
	"sync/atomic"
	"time"
)

// maxSend is the longest that a write may take from the gate until the kernel has all of it.
const maxSend = 20 * time.Second

// sendTime is how long a write with this settle time may take from the gate until the kernel has all of it. The kernel has as long again
// to bring it over (TCP_USER_TIMEOUT), and what is left is the store's.
func sendTime(settle time.Duration) time.Duration { return min(maxSend, settle/3) }

// A deadline is when a write that has passed the gate must have been sent. What was not sent by then never will be.
type deadline struct {
	boot  func() time.Duration
	limit time.Duration

	// until is on the boot clock, 0 before the gate. A timer does not run while the machine sleeps, so both are needed: the timer ends
	// a wait, the clock is asked before anything goes out.
	until atomic.Int64
	timer *time.Timer
}

func newDeadline(boot func() time.Duration, limit time.Duration, cut func()) *deadline {
	d := &deadline{boot: boot, limit: limit, timer: time.AfterFunc(time.Hour, cut)}
	d.timer.Stop()
	return d
}

// start is called when the gate has been passed, at once.
func (d *deadline) start() {
	d.until.Store(int64(d.boot() + d.limit))
	d.timer.Reset(d.limit)
}

// left is how much time there is; bounded is false before the gate, and for reads.
func (d *deadline) left() (left time.Duration, bounded bool) {
	until := d.until.Load()
	if until == 0 {
		return 0, false
	}
	return time.Duration(until) - d.boot(), true
}

func (d *deadline) over() bool {
	left, bounded := d.left()
	return bounded && left <= 0
}

// settle is the settle time of a write.
func (s *Store) settle(r *http.Request) time.Duration {
	if takesLong(r) {
		return s.o.SettleLong
	}
	return s.o.Settle
}

// takesLong says whether a write is CopyObject, CompleteMultipartUpload or DeleteObjects.
func takesLong(r *http.Request) bool {
	names := parameters(r.URL.RawQuery)
	switch r.Method {
	case http.MethodPost:
		return names["uploadId"] || names["delete"]
	case http.MethodPut:
		return r.Header.Get("X-Amz-Copy-Source") != "" && !names["partNumber"]
	}
	return false
}
