package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// spent remembers the last grants of ours that were given back or replaced, so that a late give-back of one of them asks nobody.
type spent struct {
	known map[tokens.GrantID]struct{}
	last  []tokens.GrantID // the oldest one is at next
	next  int
}

func newSpent() spent {
	return spent{map[tokens.GrantID]struct{}{}, make([]tokens.GrantID, 4096), 0}
}

func (s *spent) add(id tokens.GrantID) {
	delete(s.known, s.last[s.next])
	s.last[s.next] = id
	s.next = (s.next + 1) % len(s.last)
	s.known[id] = struct{}{}
}

// remember takes note of a grant of ours, for it is given back by its id alone.
func (s *store) remember(g fleetGrant) {
	key := s.keys.grant(g.resource, g.incarnation)
	s.mu.Lock()
	defer s.mu.Unlock()
	was, known := s.current[key]
	if known && was >= g.id {
		if was > g.id {
			s.spent.add(g.id) // its answer came late: it was replaced in between
		}
		return
	}
	if known {
		delete(s.granted, was)
		s.spent.add(was)
	}
	s.current[key], s.granted[g.id] = g.id, g
}

// forget takes note that a grant is gone.
func (s *store) forget(g fleetGrant) {
	key := s.keys.grant(g.resource, g.incarnation)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.granted, g.id)
	s.spent.add(g.id)
	if s.current[key] == g.id {
		delete(s.current, key)
	}
}

// forgetAll takes note that an incarnation, maybe an earlier one of ours, has no grants any more.
func (s *store) forgetAll(incarnation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.beats, incarnation)
	for id, g := range s.granted {
		if g.incarnation == incarnation {
			s.gone = max(s.gone, id)
			delete(s.granted, id)
			delete(s.current, s.keys.grant(g.resource, g.incarnation))
		}
	}
}

// tell posts to the instances that are alive that their grants have to be given back. It may fail: Standing does it again.
func (s *store) tell(ctx context.Context, grants []fleetGrant) {
	for len(grants) > 0 {
		page := grants[:min(len(grants), pageSize)]
		grants = grants[len(page):]
		var posts []clientv3.Op
		for _, g := range page {
			posts = append(posts, clientv3.OpTxn([]clientv3.Cmp{
				unchanged(s.keys.grant(g.resource, g.incarnation), int64(g.id)), exists(s.keys.instance(g.incarnation)), absent(s.keys.revocation(g)),
			}, []clientv3.Op{clientv3.OpPut(s.keys.revocation(g), g.resource)}, nil))
		}
		if _, err := s.txn(ctx, nil, posts, nil); err != nil {
			return
		}
	}
}

// await takes note of whose removal is worth a hint. all says that these are all.
func (s *store) await(grants []fleetGrant, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all {
		clear(s.awaited)
	}
	for _, g := range grants {
		s.awaited[s.keys.revocation(g)] = struct{}{}
	}
}

// revoked returns those of the revocations that were posted to an incarnation of which the grant still stands, with what is recorded now; that
// is asked of the grant and the fence themselves. The others are forgotten.
func (s *store) revoked(ctx context.Context, incarnation int64, posted []*mvccpb.KeyValue) (all []tokens.Revocation, err error) {
	if len(posted) == mostRevoked {
		s.hint() // there may be more
	}
	for len(posted) > 0 {
		page := posted[:min(len(posted), pageSize/2)]
		posted = posted[len(page):]
		var questions, over []clientv3.Op
		for _, kv := range page {
			resource := string(kv.Value)
			questions = append(questions, clientv3.OpGet(s.keys.grant(resource, incarnation)), clientv3.OpGet(s.keys.fence(resource)))
		}
		found, _, err := s.ask(ctx, questions...)
		if err != nil {
			return nil, err
		}
		for i, kv := range page {
			id, resource := tokens.GrantID(number(kv.Key, s.keys.revocationsOf(incarnation))), string(kv.Value)
			grants := rangeOf(found[2*i])
			if revisionOf(grants) != int64(id) {
				over = append(over, clientv3.OpDelete(string(kv.Key))) // an id does not come again
				continue
			}
			g, err := parseGrant(grants[0], resource, incarnation)
			if err != nil {
				return nil, err
			}
			e, err := entryOf(resource, rangeOf(found[2*i+1]))
			if err != nil {
				return nil, err
			}
			s.remember(g)
			if g.before(e) {
				all = append(all, tokens.Revocation{ID: id, Entry: e})
			}
		}
		if len(over) > 0 {
			if _, err := s.txn(ctx, nil, over, nil); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// Standing implements [fleet.Store].
func (s *store) Standing(ctx context.Context, grants []fleet.GrantRef) (standing []fleet.GrantRef, err error) {
	var untold, all []fleetGrant
	for len(grants) > 0 {
		page := grants[:min(len(grants), pageSize/2)]
		grants = grants[len(page):]
		var questions []clientv3.Op
		for _, ref := range page {
			g := fleetGrant{id: ref.ID, resource: ref.Resource, incarnation: ref.Incarnation}
			questions = append(questions,
				clientv3.OpGet(s.keys.grant(g.resource, g.incarnation), clientv3.WithKeysOnly()),
				clientv3.OpGet(s.keys.revocation(g), clientv3.WithKeysOnly()))
		}
		found, _, err := s.ask(ctx, questions...)
		if err != nil {
			return nil, err
		}
		for i, ref := range page {
			if revisionOf(rangeOf(found[2*i])) != int64(ref.ID) {
				continue
			}
			standing = append(standing, ref)
			g := fleetGrant{id: ref.ID, resource: ref.Resource, incarnation: ref.Incarnation}
			all = append(all, g)
			if len(rangeOf(found[2*i+1])) == 0 {
				untold = append(untold, g)
			}
		}
	}
	s.await(all, true)
	s.tell(ctx, untold)
	return standing, nil
}

// Remove implements [fleet.Store].
func (s *store) Remove(ctx context.Context, ids ...tokens.GrantID) error {
	var grants []fleetGrant
	twice := map[tokens.GrantID]bool{}
	for _, id := range ids {
		if twice[id] || id == 0 {
			continue
		}
		twice[id] = true
		g, found, err := s.find(ctx, id)
		if err != nil {
			return err
		}
		if found {
			grants = append(grants, g)
		}
	}
	for len(grants) > 0 {
		page := grants[:min(len(grants), pageSize)]
		grants = grants[len(page):]
		var removals []clientv3.Op
		for _, g := range page {
			removals = append(removals, clientv3.OpTxn(
				[]clientv3.Cmp{unchanged(s.keys.grant(g.resource, g.incarnation), int64(g.id))},
				append(s.deleteGrant(g.resource, g.incarnation), clientv3.OpDelete(s.keys.revocation(g))), nil))
		}
		if _, err := s.txn(ctx, nil, removals, nil); err != nil {
			return err
		}
		for _, g := range page {
			s.forget(g)
		}
	}
	return nil
}

// find tells what an id is of. One that this process has never heard of is looked for among all: nobody gives such a one back in the ordinary
// course.
func (s *store) find(ctx context.Context, id tokens.GrantID) (g fleetGrant, found bool, err error) {
	s.mu.Lock()
	g, found = s.granted[id]
	_, over := s.spent.known[id]
	over = over || id <= s.gone
	s.mu.Unlock()
	if found || over {
		return g, found, nil
	}
	prefix := string(s.keys) + "held/"
	resp, err := s.get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithMinModRev(int64(id)), clientv3.WithMaxModRev(int64(id)))
	if err != nil {
		return g, false, err
	}
	for _, kv := range resp.Kvs {
		incarnation, resource, ok := s.keys.parseHeld(string(kv.Key))
		if ok {
			return fleetGrant{id: id, resource: resource, incarnation: incarnation}, true, nil
		}
	}
	return g, false, nil
}

// Sweep implements [fleet.Store]. It goes page by page: an incarnation that has ended gets no new grant. If we crash in between, who comes next
// finds the rest.
func (s *store) Sweep(ctx context.Context, incarnation int64, settled time.Duration) (next time.Duration, err error) {
	instance := s.keys.instance(incarnation)
	begin, end := s.keys.allHeld(incarnation), clientv3.GetPrefixRangeEnd(s.keys.allHeld(incarnation))
	left := false
	for more := true; more; {
		found, _, err := s.ask(ctx, clientv3.OpGet(instance, clientv3.WithKeysOnly()), clientv3.OpGet(begin, clientv3.WithRange(end), clientv3.WithLimit(pageSize/2)))
		if err != nil {
			return 0, err
		}
		if len(rangeOf(found[0])) > 0 {
			return 0, nil // alive
		}
		var over []clientv3.Op
		for _, kv := range rangeOf(found[1]) {
			begin = string(kv.Key) + "\x00"
			resource := string(kv.Key[len(s.keys.allHeld(incarnation)):])
			g, err := parseGrant(kv, resource, incarnation)
			switch {
			case err != nil:
				return 0, err
			case g.settle <= settled:
				over = append(over, s.deleteGrant(resource, incarnation)...)
			case !left || g.settle < next:
				next, left = g.settle, true
			}
		}
		if len(over) > 0 {
			if _, err := s.txn(ctx, []clientv3.Cmp{absent(instance)}, over, nil); err != nil {
				return 0, err
			}
		}
		more = found[1].GetResponseRange().More
	}
	if left {
		return next, nil
	}
	_, err = s.txn(ctx, []clientv3.Cmp{absent(instance)}, []clientv3.Op{
		clientv3.OpDelete(s.keys.member(incarnation)), clientv3.OpDelete(s.keys.revocationsOf(incarnation), clientv3.WithPrefix()),
	}, nil)
	if err == nil {
		s.forgetAll(incarnation)
	}
	return 0, err
}
