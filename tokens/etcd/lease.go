package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// mostRevoked is how many revocations one beat shows. The next one shows the next.
const mostRevoked = 1000

// Join implements [fleet.Store]. The number is drawn: one from a counter would come again in a cluster that was restored from a snapshot, where
// a proxy that has slept through it still goes by the old one.
//
// If we crash after the transaction, there is an incarnation without anybody, which the others expel.
func (s *store) Join(ctx context.Context, lease time.Duration, mapping int64) (int64, error) {
	if err := s.halting(ctx); err != nil {
		return 0, err
	}
	for {
		found, _, err := s.ask(ctx, clientv3.OpGet(s.keys.version()), clientv3.OpGet(s.keys.halt()), clientv3.OpGet(s.keys.repair()),
			clientv3.OpGet(s.keys.members(), clientv3.WithPrefix()), clientv3.OpGet(s.keys.registry()))
		if err != nil {
			return 0, err
		}
		if kvs := rangeOf(found[4]); len(kvs) == 0 || !bytes.Equal(kvs[0].Value, s.identity) {
			return 0, s.end("the registry was made anew, or was restored and its marks were raised, while this proxy ran", "Restart this proxy")
		}
		version, revision, err := readVersion(rangeOf(found[0]))
		if err != nil {
			return 0, err
		}
		if h, err := parseHalt(rangeOf(found[1])); err != nil {
			return 0, err
		} else if h != nil {
			return 0, h.err()
		}
		if kvs := rangeOf(found[2]); len(kvs) > 0 {
			return 0, fmt.Errorf("%w: a rebuild has not come to its end, or its raise is missing: %s", tokens.ErrUnavailable, kvs[0].Value)
		}
		if mapping != epoch(version) {
			return 0, fleet.ErrRemapped
		}
		for _, kv := range rangeOf(found[3]) {
			if m, err := parseMember(kv); err != nil {
				return 0, err
			} else if m.Mapping != mapping {
				return 0, fleet.ErrDraining
			}
		}
		incarnation := 1 + rand.Int64N(1<<53-1) // a number that JSON has, too
		value, err := json.Marshal(member{(lease + time.Millisecond - 1).Milliseconds(), mapping})
		if err != nil {
			return 0, err
		}
		// Who goes by an older mapping cannot join any more: they were all seen.
		resp, err := s.txn(ctx, []clientv3.Cmp{
			unchanged(s.keys.version(), revision), clientv3.Compare(clientv3.Value(s.keys.registry()), "=", string(s.identity)),
			absent(s.keys.halt()), absent(s.keys.repair()), absent(s.keys.member(incarnation)),
		}, []clientv3.Op{
			clientv3.OpPut(s.keys.member(incarnation), string(value)), clientv3.OpPut(s.keys.instance(incarnation), string(value)),
		}, nil)
		if err != nil {
			return 0, err
		}
		if resp.Succeeded {
			s.mu.Lock()
			s.own, s.beats[incarnation] = incarnation, 1
			s.mu.Unlock()
			return incarnation, nil
		}
	}
}

// Beat implements [fleet.Store]: one transaction, and one more for the revocations, if there are any. The instance's key has to be at the
// version of our last beat that was acknowledged, or beyond; else the cluster has lost it.
func (s *store) Beat(ctx context.Context, incarnation int64) (v fleet.View, err error) {
	if s.restored.Load() != nil {
		return v, fleet.ErrEnded // at once, and not at the end of the lease; Join says why
	}
	key := s.keys.instance(incarnation)
	s.mu.Lock()
	last := s.beats[incarnation]
	s.mu.Unlock()
	resp, err := s.txn(ctx, []clientv3.Cmp{
		exists(key), clientv3.Compare(clientv3.Version(key), ">", last-1), absent(s.keys.halt()),
	}, append([]clientv3.Op{clientv3.OpPut(key, "", clientv3.WithIgnoreValue())}, s.look(incarnation)...),
		[]clientv3.Op{clientv3.OpGet(key)})
	if err != nil {
		return v, err
	}
	if !resp.Succeeded {
		if kvs := rangeOf(resp.Responses[0]); len(kvs) > 0 && kvs[0].Version < last {
			_ = s.noticed(fmt.Sprintf("beat %d of this proxy was acknowledged, and etcd knows of %d", last, kvs[0].Version))
		}
		return v, fleet.ErrEnded
	}
	v, revocations, err := s.view(resp.Responses[1:])
	if err != nil {
		return v, err
	}
	s.mu.Lock()
	for _, p := range v.Alive {
		if p.Incarnation == incarnation {
			s.beats[incarnation] = max(s.beats[incarnation], p.Beat)
		}
	}
	s.mu.Unlock()
	v.Revoked, err = s.revoked(ctx, incarnation, revocations)
	return v, err
}

// Look implements [fleet.Store].
func (s *store) Look(ctx context.Context) (v fleet.View, err error) {
	if err := s.halting(ctx); err != nil {
		return v, err
	}
	found, _, err := s.ask(ctx, s.look(0)...)
	if err != nil {
		return v, err
	}
	v, _, err = s.view(found)
	return v, err
}

// look is what a view is made of.
func (s *store) look(incarnation int64) []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpGet(s.keys.instances(), clientv3.WithPrefix()),
		clientv3.OpGet(s.keys.members(), clientv3.WithPrefix(), clientv3.WithKeysOnly()),
		clientv3.OpGet(s.keys.version()),
		clientv3.OpGet(s.keys.adopted(), clientv3.WithPrefix()),
		clientv3.OpGet(s.keys.revocationsOf(incarnation), clientv3.WithPrefix(), clientv3.WithLimit(mostRevoked)),
	}
}

func (s *store) view(found []*pb.ResponseOp) (v fleet.View, revocations []*mvccpb.KeyValue, err error) {
	alive := map[int64]bool{}
	for _, kv := range rangeOf(found[0]) {
		m, err := parseMember(kv)
		if err != nil {
			return v, nil, err
		}
		p := fleet.Peer{
			Incarnation: number(kv.Key, s.keys.instances()), Beat: kv.Version, Lease: time.Duration(m.LeaseMS) * time.Millisecond,
		}
		v.Alive, alive[p.Incarnation] = append(v.Alive, p), true
	}
	members := map[int64]bool{}
	for _, kv := range rangeOf(found[1]) {
		n := number(kv.Key, s.keys.members())
		if members[n] = true; !alive[n] {
			v.Ended = append(v.Ended, n)
		}
	}
	s.forgetSwept(members)
	version, _, err := readVersion(rangeOf(found[2]))
	if err != nil {
		return v, nil, err
	}
	v.Mapping = epoch(version)
	s.mu.Lock()
	s.adopted = s.adoptedIn(rangeOf(found[3])) // by another instance, maybe
	s.mu.Unlock()
	return v, rangeOf(found[4]), nil
}

// forgetSwept forgets the incarnations of ours that others have swept.
func (s *store) forgetSwept(members map[int64]bool) {
	var swept []int64
	s.mu.Lock()
	for incarnation := range s.beats {
		if !members[incarnation] {
			swept = append(swept, incarnation)
		}
	}
	s.mu.Unlock()
	for _, incarnation := range swept {
		s.forgetAll(incarnation)
	}
}

// Expel implements [fleet.Store].
func (s *store) Expel(ctx context.Context, p fleet.Peer) error {
	key := s.keys.instance(p.Incarnation)
	_, err := s.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.Version(key), "=", p.Beat)}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	return err
}

// Leave implements [fleet.Store].
func (s *store) Leave(ctx context.Context, incarnation int64) error {
	resp, err := s.txn(ctx, nil, []clientv3.Op{clientv3.OpDelete(s.keys.instance(incarnation))}, nil)
	if err != nil {
		return err
	}
	if resp.Responses[0].GetResponseDeleteRange().Deleted == 0 {
		return fleet.ErrEnded
	}
	return nil
}

func parseMember(kv *mvccpb.KeyValue) (m member, err error) {
	if err := json.Unmarshal(kv.Value, &m); err != nil {
		return m, fmt.Errorf("the key %s is damaged: %w", kv.Key, err)
	}
	return m, nil
}

// readVersion returns the version of the mappings, and the revision of its key; both 0 where there were none yet.
func readVersion(kvs []*mvccpb.KeyValue) (version, revision int64, err error) {
	if len(kvs) == 0 {
		return 0, 0, nil
	}
	if version, err = strconv.ParseInt(string(kvs[0].Value), 10, 64); err != nil {
		return 0, 0, fmt.Errorf("the version of the mappings is damaged: %w", err)
	}
	return version, kvs[0].ModRevision, nil
}

func rangeOf(r *pb.ResponseOp) []*mvccpb.KeyValue { return r.GetResponseRange().Kvs }
