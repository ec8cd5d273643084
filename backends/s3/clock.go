package s3

import (
	"net/http"
	"sync"
	"time"
)

// A storeClock knows the store's time from the Date of its answers, so that what expires by the store's clock expires when it is
// meant to, whatever the clock of this machine says.
//
// A Date D is the store's time without its fraction, taken before the answer came in at the time b of the boot clock. So the
// store's clock is ahead of the boot clock by D - b or more: by up to a second more, and by what the answer was on its way. What
// is told from that is never later than the store's time, and so no signature lives longer than it was meant to. Of many answers
// the one that says most is nearest; but it counts for a minute only, for the store's clock may be set.
type storeClock struct {
	boot func() time.Duration

	mu    sync.Mutex // guards the rest
	known bool
	ahead time.Duration // of the boot clock, counted from 1970; no more than it truly is
	at    time.Duration // when that was learned, on the boot clock
}

// keep is how long the best of the answers counts. Clocks that drift apart by 100 ppm are 6 ms off by then.
const keep = time.Minute

// learn takes the Date of an answer that has just come in.
func (c *storeClock) learn(date string) {
	now := c.boot()
	d, err := http.ParseTime(date)
	if err != nil {
		return
	}
	ahead := time.Duration(d.UnixNano()) - now
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known || ahead >= c.ahead || now-c.at > keep {
		c.known, c.ahead, c.at = true, ahead, now
	}
}

// now is the store's time, or up to about a second earlier. ok is false before the first answer.
func (c *storeClock) now() (t time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(0, int64(c.ahead+c.boot())).UTC(), c.known
}
