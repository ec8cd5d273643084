package etcd

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// watch gives hints: that something was posted to us, and that a grant was removed for which a raise here waits. Nothing rests on it: each beat
// and each look at the grants asks what stands. So it begins at what is now, also where it broke off or where etcd has compacted what it
// wanted to see, and gives a hint for what it may have missed.
func (s *store) watch() {
	for s.ctx.Err() == nil {
		cause := s.watchOnce()
		if s.ctx.Err() == nil {
			s.log.Debug("the watch of etcd's registry has broken off, and begins anew", "cause", cause)
		}
		s.hint()
		select {
		case <-time.After(s.lease / 10):
		case <-s.ctx.Done():
		}
	}
}

func (s *store) watchOnce() (cause error) {
	// One that was cut off from the others must not go on in silence.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	defer cancel()
	for resp := range s.client.Watch(ctx, s.keys.revocations(), clientv3.WithPrefix()) {
		cause = resp.Err()
		for _, ev := range resp.Events {
			if s.concerns(string(ev.Kv.Key), ev.Type == clientv3.EventTypeDelete) {
				s.hint()
				break
			}
		}
	}
	return cause
}

// concerns says whether somebody here has something to do because of a revocation.
func (s *store) concerns(key string, deleted bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !deleted {
		return strings.HasPrefix(key, s.keys.revocationsOf(s.own))
	}
	_, awaited := s.awaited[key]
	delete(s.awaited, key)
	return awaited
}

func (s *store) hint() {
	select {
	case s.hints <- struct{}{}:
	default:
	}
}
