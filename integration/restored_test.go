package integration

import (
	"path/filepath"
	"testing"
)

// TestRegistryRestoredFromAnOlderCopy: it was put back without raising the marks. What the file store's objects are stamped with keeps a
// holder out who has lost its lock since the copy was made, in a process that knows nothing of the newer one.
func TestRegistryRestoredFromAnOlderCopy(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/7/a", 30, "of 30").want(t, 200)
	p.stop(t)
	registry := filepath.Join(p.data, "registry.db")
	older := mustRead(t, registry) // after a clean stop it is all there is

	p.start(t)
	p.put(t, "/bkt/jobs/7/a", 40, "of 40").want(t, 200)
	p.put(t, "/bkt/new", 50, "of 50").want(t, 200)
	p.stop(t)
	p.loseRegistry(t)
	mustWrite(t, registry, older)

	p.start(t)
	p.marked(t, "/bkt/jobs/7/a", 30)
	p.marked(t, "/bkt/new", 0)
	p.put(t, "/bkt/jobs/7/a", 35, "stale").stale(t, 40)
	p.do(t, "DELETE", "/bkt/new", "", "X-Fence-Token", "49").stale(t, 50)
	p.holds(t, "/bkt/jobs/7/a", "of 40")
	p.holds(t, "/bkt/new", "of 50")

	p.crash(t) // what the stamps have told is on record
	p.marked(t, "/bkt/jobs/7/a", 40)
	p.marked(t, "/bkt/new", 50)
	p.put(t, "/bkt/jobs/7/other", 39, "stale").stale(t, 40)
	p.put(t, "/bkt/jobs/7/a", 40, "of 40 again").want(t, 200)
}
