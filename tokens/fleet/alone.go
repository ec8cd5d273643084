package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNotAlone says that an instance goes on.
var ErrNotAlone = errors.New("a proxy runs with this registry")

// Alone returns when no instance is alive, for what may be done only then: those that have fallen silent it expels. It fails with [ErrNotAlone] when one
// is seen to go on. What was let through before may still take effect, and raises wait for it. Only a registry that was not begun is asked.
func (r *Registry) Alone(ctx context.Context) error {
	began := r.clock.Boot()
	beats := map[int64]int64{}
	for {
		view, err := call(ctx, r, r.store.Look)
		if err != nil {
			return err
		}
		if len(view.Alive) == 0 {
			return nil
		}
		now := r.clock.Boot()
		for _, p := range view.Alive {
			beat, seen := beats[p.Incarnation]
			// A store that times leases itself has let a silent one go after one lease, or a little more.
			if seen && beat != p.Beat || now-began > 2*p.Lease+time.Second {
				return fmt.Errorf("%w: it is the one with incarnation %d", ErrNotAlone, p.Incarnation)
			}
			beats[p.Incarnation] = p.Beat
		}
		for _, p := range r.silent(&view, now) {
			if err := r.store.Expel(ctx, p); err != nil {
				return unavailable(err)
			}
		}
		select {
		case <-time.After(r.pause()):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
