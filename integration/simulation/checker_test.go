package simulation

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// A checker is the model that everything is held to: for each resource the highest token that was answered with success, and for each
// write what its client was told and whether it has taken effect.
type checker struct {
	t *testing.T
	k kind

	mu     sync.Mutex
	acked  map[string]int64   // by resource; guarded by mu
	writes map[string]*aWrite // by id; guarded by mu
	last   map[string]*aWrite // that a key was made by, in TestLate; guarded by mu
	counts counts             // guarded by mu
	told   []string           // guarded by mu
}

// An aWrite is one request that may change something.
type aWrite struct {
	id      string
	token   int64
	run     int // of the proxy, when it was sent
	keys    []string
	what    string
	applied map[string]bool // by key
	refused map[string]bool // by key
	past    bool            // the gate, as the file store saw it
	over    time.Time       // when the file store was done with it; zero before
}

// about says whether the write is about one of the resources of another.
func (w *aWrite) about(other *aWrite) bool {
	for _, a := range w.keys {
		for _, b := range other.keys {
			if resource(a) == resource(b) {
				return true
			}
		}
	}
	return false
}

// effect is one in the store, at the moment when it happens.
func (c *checker) effect(id, key string, conditional, isLate bool, run int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes[id]
	if w == nil {
		c.fail("%s was changed by %q, which nobody sent", key, id)
		return
	}
	w.applied[key] = true
	c.tell("%s takes effect on %s (token %d, acked %d, late %v)", id, key, w.token, c.acked[resource(key)], isLate)
	if isLate || run != w.run {
		c.counts[late]++
	}
	if w.refused[key] {
		c.fail("dishonest: %s was refused, and took effect on %s (%s)", id, key, w.what)
	}
	if c.k == lateKind {
		if before := c.last[key]; before != nil && w.token < before.token && conditional {
			c.fail("broken promise: %s with token %d has overwritten %s, which %s wrote with token %d", id, w.token, key, before.id, before.token)
		}
		c.last[key] = w
		return
	}
	if acked := c.acked[resource(key)]; w.token < acked {
		c.fail("broken promise: %s with token %d took effect on %s after token %d was answered (%s)", id, w.token, key, acked, w.what)
	}
}

// send notes a request before it is sent.
func (c *checker) send(id, what string, keys []string, token int64, run int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes[id] = &aWrite{id: id, token: token, run: run, keys: keys, what: what, applied: map[string]bool{}, refused: map[string]bool{}}
	c.tell("%s: %s with token %d", id, what, token)
}

// done is a client that is told that its write was carried out on a key. mustShow says that it must have been seen in the store.
func (c *checker) done(id, key string, mustShow bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes[id]
	c.counts[written]++
	if mustShow && !w.applied[key] {
		c.fail("dishonest: %s was answered with success, and has not taken effect on %s (%s)", id, key, w.what)
	}
	c.ack(key, w.token)
}

// refuse is a client that is told that its write was not carried out.
func (c *checker) refuse(id, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes[id]
	w.refused[key] = true
	if w.applied[key] {
		c.fail("dishonest: %s has taken effect on %s, and was refused (%s)", id, key, w.what)
	}
}

// announce is a client that is told that its token was seen.
func (c *checker) announce(key string, token int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[announced]++
	c.ack(key, token)
}

// ack is called with the lock held.
func (c *checker) ack(key string, token int64) {
	r := resource(key)
	c.acked[r] = max(c.acked[r], token)
	c.tell("acked %s %d", r, c.acked[r])
}

// pastGate and over are told by the file store, which is in the proxy's process and does nothing late.
func (c *checker) pastGate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes[id].past, c.writes[id].over = true, time.Time{} // a batch comes again, without the keys that were refused
}

func (c *checker) over(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes[id].over = time.Now()
}

// waited is a client that is told to wait for older writes: one must have been past the gate meanwhile. An upload before it is never
// waited for, however slow.
func (c *checker) waited(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes[id]
	for _, other := range c.writes {
		if other.past && other.token < w.token && other.about(w) && (other.over.IsZero() || time.Since(other.over) <= raiseWait) {
			return
		}
	}
	c.fail("no liveness: %s with token %d has waited for older writes, and none was past the gate (%s)", id, w.token, w.what)
}

func (c *checker) count(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[e]++
}

// fail is called with the lock held.
func (c *checker) fail(format string, args ...any) {
	c.tell("FAILED: "+format, args...)
	c.t.Errorf(format, args...)
}

// tell keeps a line of what happened. Called with the lock held.
func (c *checker) tell(format string, args ...any) {
	c.told = append(c.told, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (c *checker) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tell(format, args...)
}

// Write is for the proxy's own log.
func (c *checker) Write(p []byte) (int, error) {
	c.note("    proxy: %s", p)
	return len(p), nil
}
