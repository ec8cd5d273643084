package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// The version of the mappings counts two things: in its high 32 bits the epoch, which a remap begins and which the instances compare, and in its low
// ones the changes of the list since. A mapping for buckets that nobody served before ends nobody's lease.
const epochShift = 32

func epoch(version int64) int64 { return version >> epochShift }

// Mappings implements [tokens.Maintained].
func (r *Registry) Mappings(ctx context.Context) (all []tokens.Mapping, version int64, err error) {
	all, version, _, err = r.store.mappings(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("look up the mappings: %w", unavailable(err))
	}
	return all, version, nil
}

// mappings also returns the revision of the version's key.
func (s *store) mappings(ctx context.Context) (all []tokens.Mapping, version, revision int64, err error) {
	found, _, err := s.ask(ctx, clientv3.OpGet(s.keys.mappings()), clientv3.OpGet(s.keys.version()))
	if err != nil {
		return nil, 0, 0, err
	}
	if kvs := rangeOf(found[0]); len(kvs) > 0 {
		if err := json.Unmarshal(kvs[0].Value, &all); err != nil {
			return nil, 0, 0, fmt.Errorf("they are damaged: %w", err)
		}
	}
	version, revision, err = readVersion(rangeOf(found[1]))
	return all, version, revision, err
}

// RecordMappings implements [tokens.Maintained].
func (r *Registry) RecordMappings(ctx context.Context, all []tokens.Mapping, version int64, remapped bool) (int64, error) {
	s := r.store
	_, now, revision, err := s.mappings(ctx)
	if err != nil {
		return 0, fmt.Errorf("record the mappings: %w", unavailable(err))
	}
	if now != version {
		return 0, tokens.ErrRemapped
	}
	next := version + 1
	if remapped || epoch(next) != epoch(version) {
		next = (epoch(version) + 1) << epochShift
	}
	list, err := json.Marshal(all)
	if err != nil {
		return 0, err
	}
	resp, err := s.txn(ctx, []clientv3.Cmp{unchanged(s.keys.version(), revision)}, []clientv3.Op{
		clientv3.OpPut(s.keys.mappings(), string(list)), clientv3.OpPut(s.keys.version(), strconv.FormatInt(next, 10)),
	}, nil)
	switch {
	case err != nil:
		return 0, fmt.Errorf("record the mappings: %w", unavailable(err))
	case !resp.Succeeded:
		return 0, tokens.ErrRemapped
	}
	return next, nil
}

// registryID is the form of a registry's id: [rand.Text], which may grow longer.
var registryID = regexp.MustCompile(`^[A-Z2-7]{26,40}$`)

// Adopt implements [tokens.Maintained]. The other instances know of it with their next beat.
func (r *Registry) Adopt(ctx context.Context, id string) error {
	if !registryID.MatchString(id) {
		return fmt.Errorf("%q is not the id of a token registry: it has 26 to 40 characters, A to Z and 2 to 7", id)
	}
	s := r.store
	if id == r.start.ID || slices.Contains(r.Adopted(), id) {
		return nil
	}
	puts, err := s.adopting(ctx, id)
	if err == nil {
		_, err = s.txn(ctx, []clientv3.Cmp{absent(s.keys.adopted() + id)}, puts, nil)
	}
	if err != nil {
		return fmt.Errorf("adopt registry %s: %w", id, unavailable(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, found := slices.BinarySearch(s.adopted, id); !found {
		s.adopted = slices.Insert(s.adopted, i, id)
	}
	return nil
}

// adoptedIn reads the ids of other registries, in order.
func (s *store) adoptedIn(kvs []*mvccpb.KeyValue) (ids []string) {
	for _, kv := range kvs {
		if id := strings.TrimPrefix(string(kv.Key), s.keys.adopted()); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// adoptionAge is how long etcd itself knows the age of the last adoption, in seconds: much longer than any settle time.
const adoptionAge = 24 * 60 * 60

// adopting returns the writes that adopt a registry now, ” being one that nobody knows the id of. How long ago that was, no two machines' clocks
// need to agree on: a key with a lease of etcd says it.
func (s *store) adopting(ctx context.Context, id string) ([]clientv3.Op, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTime)
	defer cancel()
	age, err := s.client.Grant(ctx, adoptionAge)
	if err != nil {
		return nil, explain(err)
	}
	return []clientv3.Op{
		clientv3.OpPut(s.keys.adopted()+id, milliseconds(time.Now())),
		clientv3.OpPut(s.keys.adoption(), "", clientv3.WithLease(age.ID)),
	}, nil
}

// LastAdopted implements [tokens.Maintained], by this machine's clock. After a new leader was elected it may be later than it was, never earlier.
func (r *Registry) LastAdopted(ctx context.Context) (last time.Time, err error) {
	s := r.store
	found, _, err := s.ask(ctx, clientv3.OpGet(s.keys.adopted(), clientv3.WithPrefix()), clientv3.OpGet(s.keys.adoption()))
	if err != nil {
		return last, fmt.Errorf("look up the adopted registries: %w", unavailable(err))
	}
	for _, kv := range rangeOf(found[0]) {
		ms, err := strconv.ParseInt(string(kv.Value), 10, 64)
		if err != nil {
			return last, fmt.Errorf("the key %s is damaged: %w", kv.Key, err)
		}
		if t := time.UnixMilli(ms); t.After(last) {
			last = t
		}
	}
	if kvs := rangeOf(found[1]); len(kvs) > 0 {
		ctx, cancel := context.WithTimeout(ctx, s.callTime)
		defer cancel()
		now := time.Now()
		left, err := s.client.TimeToLive(ctx, clientv3.LeaseID(kvs[0].Lease))
		if err != nil {
			return last, fmt.Errorf("look up the adopted registries: %w", unavailable(explain(err)))
		}
		if left.TTL > 0 {
			return now.Add(-time.Duration(max(left.GrantedTTL-left.TTL-1, 0)) * time.Second), nil
		}
	}
	if long := time.Now().Add(-adoptionAge * time.Second); last.After(long) {
		last = long
	}
	return last, nil
}

// Repair implements [tokens.Maintained].
func (r *Registry) Repair(ctx context.Context) (tokens.Repair, error) {
	found, err := r.store.get(ctx, r.store.keys.repair())
	if err != nil {
		return "", fmt.Errorf("look up how far a rebuild has come: %w", unavailable(err))
	}
	if len(found.Kvs) == 0 {
		return tokens.RepairNone, nil
	}
	return tokens.Repair(found.Kvs[0].Value), nil
}

// SetRepair implements [tokens.Maintained].
func (r *Registry) SetRepair(ctx context.Context, state tokens.Repair) error {
	do := clientv3.OpPut(r.store.keys.repair(), string(state))
	if state == tokens.RepairNone {
		do = clientv3.OpDelete(r.store.keys.repair())
	}
	if _, err := r.store.txn(ctx, nil, []clientv3.Op{do}, nil); err != nil {
		return fmt.Errorf("record how far a rebuild has come: %w", unavailable(err))
	}
	return nil
}

// RaiseTo implements [tokens.Maintained]. Its steps are of a hundred marks: if we crash between two, what they have recorded is there.
func (r *Registry) RaiseTo(ctx context.Context, marks map[string]tokens.Mark, at time.Time) (raised int64, err error) {
	for page := range slices.Chunk(slices.Sorted(maps.Keys(marks)), pageSize) {
		n, err := r.store.raiseTo(ctx, page, marks, at)
		raised += n
		if err != nil {
			return raised, fmt.Errorf("raise the marks: %w", unavailable(err))
		}
	}
	return raised, nil
}

func (s *store) raiseTo(ctx context.Context, resources []string, marks map[string]tokens.Mark, at time.Time) (int64, error) {
	for {
		var questions []clientv3.Op
		for _, resource := range resources {
			questions = append(questions, clientv3.OpGet(s.keys.fence(resource)))
		}
		found, _, err := s.ask(ctx, questions...)
		if err != nil {
			return 0, err
		}
		var raised int64
		var when []clientv3.Cmp
		var puts []clientv3.Op
		for i, resource := range resources {
			kvs := rangeOf(found[i])
			e, err := entryOf(resource, kvs)
			if err != nil {
				return 0, err
			}
			higher, counts := raiseEntry(e, marks[resource], at)
			if higher == e {
				continue
			}
			if counts {
				raised++
			}
			when = append(when, unchanged(s.keys.fence(resource), revisionOf(kvs)))
			puts = append(puts, clientv3.OpPut(s.keys.fence(resource), fenceValue(higher)))
		}
		if len(puts) == 0 {
			return 0, nil
		}
		resp, err := s.txn(ctx, append(when, absent(s.keys.halt())), puts, s.whyNot())
		if err != nil {
			return 0, err
		}
		if resp.Succeeded {
			return raised, nil
		}
		if h, err := parseHalt(rangeOf(resp.Responses[0])); err != nil {
			return 0, err
		} else if h != nil {
			return 0, h.err()
		}
		// else a writer has raised one of them in between; nothing was changed
	}
}

// raiseEntry returns what an entry becomes, and whether that counts as raised.
func raiseEntry(e tokens.Entry, m tokens.Mark, at time.Time) (tokens.Entry, bool) {
	switch generation := max(e.Generation, m.Generation); {
	case m.Token > e.Token:
		counts := e.Token == 0 || e.RaisedAt.UnixMilli() != at.UnixMilli()
		return tokens.Entry{Resource: e.Resource, Token: m.Token, Generation: generation, RaisedAt: at}, counts
	case generation > e.Generation:
		e.Generation = generation
		if e.RaisedAt.IsZero() {
			e.RaisedAt = at
		}
	}
	return e, false
}
