package proxy

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// doubts are the writes whose outcome the store did not tell, as far as it can still be found out: by the id in the stamp of the object that
// they were to make. What is never seen again settles when its time is over.
type doubts struct {
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu     sync.Mutex
	open   map[string]func() // proven, by write id; guarded by mu
	closed bool              // guarded by mu
}

func newDoubts() *doubts {
	d := &doubts{open: make(map[string]func())}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// maxDoubts is how many writes are looked for at a time. Those beyond wait for their settle time.
const maxDoubts = 256

// add has look asked, less and less often, whether it sees the write. proven is called when it does, or when anybody else sees it.
func (d *doubts) add(writeID string, settle time.Duration, look func(context.Context) string, proven func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.open) >= maxDoubts {
		return
	}
	d.open[writeID] = proven
	d.tasks.Go(func() {
		defer func() { d.remove(writeID) }()
		ctx, cancel := context.WithTimeout(d.ctx, settle)
		defer cancel()
		for wait := time.Second; sleep(ctx, wait); wait = min(2*wait, 30*time.Second) {
			if d.seen(look(ctx)); !d.has(writeID) {
				return
			}
		}
	})
}

// seen tells that an object has the stamp of this write: it has taken effect.
func (d *doubts) seen(writeID string) {
	if proven := d.remove(writeID); proven != nil {
		proven()
	}
}

func (d *doubts) remove(writeID string) (proven func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	proven = d.open[writeID]
	delete(d.open, writeID)
	return proven
}

func (d *doubts) has(writeID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.open[writeID]
	return ok
}

// close ends the search.
func (d *doubts) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	d.tasks.Wait()
}

// sleep says false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// prove looks for a write in doubt on the object that it was to make.
//
// Nothing else is proof. An object that is what it was may still be written by it; and one that is something else, so that the write's condition
// does not hold, may become again what it was.
func (x *exchange) prove(writeID string, proven func()) {
	if writeID == "" || x.op.name == "CreateMultipartUpload" {
		return
	}
	x.h.doubts.add(writeID, x.backend().settle(x.op.name), func(ctx context.Context) string {
		rec := x.head(ctx)
		if s, ok := ParseStamp(rec.header.Get(headerStamp)); ok && rec.status == http.StatusOK {
			return s.WriteID
		}
		return ""
	}, func() {
		x.h.Log.Info("a write in doubt has taken effect", "object", x.name(), "token", int64(x.who.token), "request", x.id)
		x.h.metrics.proven.Inc()
		proven()
	})
}
