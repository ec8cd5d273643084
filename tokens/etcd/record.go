package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// A branch of a transaction is taken if when holds and that of no branch before it does.
type branch struct {
	when []clientv3.Cmp
	then []clientv3.Op
}

// branches nests them: etcd knows If, Then and Else, and each may hold a whole transaction.
func branches(all []branch, otherwise ...clientv3.Op) []clientv3.Op {
	for _, b := range slices.Backward(all) {
		otherwise = []clientv3.Op{clientv3.OpTxn(b.when, b.then, otherwise)}
	}
	return otherwise
}

// taken says which of n branches was taken, n if none, and what it answered.
func taken(answers []*pb.ResponseOp, n int) (int, []*pb.ResponseOp) {
	for i := range n {
		b := answers[0].GetResponseTxn()
		answers = b.Responses
		if b.Succeeded {
			return i, answers
		}
	}
	return n, answers
}

// Record implements [fleet.Store], in one transaction. Then those who have to give back are told, if there are any; if we crash before that,
// nobody waits for them, and if it fails, Standing tells them.
func (s *store) Record(ctx context.Context, incarnation int64, c tokens.Claim) (rec fleet.Recorded, err error) {
	fence := s.keys.fence(c.Resource)
	e := tokens.Entry{
		Resource: c.Resource, Token: c.Token, Holder: c.Holder, AccessKey: c.AccessKey,
		RaisedAt: time.Now(), Generation: c.Generation,
	}
	put := clientv3.OpPut(fence, fenceValue(e))
	grant, ours := grantValue(c), s.keys.grant(c.Resource, incarnation)
	anew := s.putGrant(c.Resource, incarnation, grant)
	// What is open under the same token may need the longer settle time. A write that leaves the value as it is gives it a new id.
	longer := []clientv3.Op{clientv3.OpTxn(within(ours, grant, afterSame(c)), s.putGrant(c.Resource, incarnation, ""), anew)}
	if c.Holder != "" { // one of ours for writers that do not name themselves stands until it is given back
		begin := order(c.Generation, c.Token) + unnamed
		longer = []clientv3.Op{clientv3.OpTxn(within(ours, begin, order(c.Generation, c.Token)+"0"), nil, longer)}
	}
	others := clientv3.OpGet(s.keys.grants(c.Resource), clientv3.WithPrefix())
	boundBegin, boundEnd := bound(c.Generation, c.Token, c.Holder)
	freeBegin, freeEnd := bound(c.Generation, c.Token, "")

	const lower, first, equal, binding, refused = 0, 1, 2, 3, 4
	all := []branch{
		lower:   {within(fence, order(c.Generation, 0), order(c.Generation, c.Token)), slices.Concat([]clientv3.Op{put}, anew, []clientv3.Op{others})},
		first:   {[]clientv3.Cmp{absent(fence)}, slices.Concat([]clientv3.Op{put}, longer, []clientv3.Op{others})},
		equal:   {within(fence, boundBegin, boundEnd), slices.Concat(longer, []clientv3.Op{others})},
		binding: {within(fence, freeBegin, freeEnd), slices.Concat([]clientv3.Op{put}, longer, []clientv3.Op{others})},
	}
	if c.Generation != 0 { // nothing recorded is generation 0
		all[first].when = []clientv3.Cmp{absent(fence), exists(fence)}
	}
	if c.Token == 0 && c.Holder == "" { // nothing to record
		all[first].then = slices.Concat(longer, []clientv3.Op{others})
	}
	resp, err := s.txn(ctx, s.mayRecord(incarnation), branches(all, clientv3.OpGet(fence)), s.whyNot())
	if err != nil {
		return rec, err
	}
	if !resp.Succeeded {
		return rec, notRecorded(resp)
	}
	which, answers := taken(resp.Responses, refused)
	if which == refused {
		return rec, refusal(c, rangeOf(answers[0]))
	}
	own, below, err := s.split(incarnation, rangeOf(answers[len(answers)-1]), e)
	if err != nil {
		return rec, err
	}
	s.remember(own)
	if own.before(e) {
		s.tell(ctx, append(below, own))
		return fleet.Recorded{Own: own.id}, nil
	}
	rec = fleet.Recorded{
		Grant: tokens.Grant{
			ID: own.id, Token: c.Token, Holder: c.Holder, Settle: own.settle, Generation: c.Generation,
			Raised: which == lower || which == first && c.Token > 0,
		},
		Lower: refs(below),
	}
	s.await(below, false)
	s.tell(ctx, below)
	return rec, nil
}

// mayRecord holds as long as the incarnation is alive and nobody repairs the registry.
func (s *store) mayRecord(incarnation int64) []clientv3.Cmp {
	return []clientv3.Cmp{exists(s.keys.instance(incarnation)), absent(s.keys.halt())}
}

func (s *store) whyNot() []clientv3.Op { return []clientv3.Op{clientv3.OpGet(s.keys.halt())} }

func notRecorded(resp *pb.TxnResponse) error {
	if h, err := parseHalt(rangeOf(resp.Responses[0])); err != nil || h != nil {
		return errors.Join(err, h.err())
	}
	return fleet.ErrEnded
}

// putGrant writes the two keys of a grant; without a value they keep theirs.
func (s *store) putGrant(resource string, incarnation int64, value string) []clientv3.Op {
	var keep []clientv3.OpOption
	if value == "" {
		keep = append(keep, clientv3.WithIgnoreValue())
	}
	return []clientv3.Op{
		clientv3.OpPut(s.keys.grant(resource, incarnation), value, keep...),
		clientv3.OpPut(s.keys.held(incarnation, resource), value, keep...),
	}
}

func (s *store) deleteGrant(resource string, incarnation int64) []clientv3.Op {
	return []clientv3.Op{clientv3.OpDelete(s.keys.grant(resource, incarnation)), clientv3.OpDelete(s.keys.held(incarnation, resource))}
}

// refusal says why a claim was not recorded over what is.
func refusal(c tokens.Claim, kvs []*mvccpb.KeyValue) error {
	e, err := entryOf(c.Resource, kvs)
	switch {
	case err != nil:
		return err
	case e.Generation != c.Generation:
		return &tokens.ResetError{Resource: c.Resource, Token: c.Token, Highest: e.Token, Holder: e.Holder, Generation: e.Generation}
	case c.Token < e.Token:
		return &tokens.StaleError{Resource: c.Resource, Token: c.Token, Highest: e.Token, Holder: e.Holder}
	case c.Token == e.Token && e.Holder != "":
		return &tokens.ConflictError{Resource: c.Resource, Token: c.Token, Holder: c.Holder, Bound: e.Holder}
	}
	return fmt.Errorf("the fence of %s is damaged", c.Resource)
}

// split tells our own grant on a resource from those that come before what is recorded, which it sorts.
func (s *store) split(incarnation int64, kvs []*mvccpb.KeyValue, e tokens.Entry) (own fleetGrant, below []fleetGrant, err error) {
	for _, kv := range kvs {
		g, err := parseGrant(kv, e.Resource, number(kv.Key, s.keys.grants(e.Resource)))
		switch {
		case err != nil:
			return own, nil, err
		case g.incarnation == incarnation:
			own = g
		case g.before(e):
			below = append(below, g)
		}
	}
	slices.SortFunc(below, func(a, b fleetGrant) int {
		return cmp.Or(cmp.Compare(a.generation, b.generation), cmp.Compare(a.token, b.token), cmp.Compare(a.id, b.id))
	})
	return own, below, nil
}

func refs(grants []fleetGrant) (all []fleet.GrantRef) {
	for _, g := range grants {
		all = append(all, fleet.GrantRef{ID: g.id, Resource: g.resource, Incarnation: g.incarnation})
	}
	return all
}

// RecordReset implements [fleet.Store].
func (s *store) RecordReset(ctx context.Context, incarnation int64, resource string, t tokens.Token) (e tokens.Entry, rec fleet.Recorded, err error) {
	fence := s.keys.fence(resource)
	for {
		found, err := s.get(ctx, fence)
		if err != nil {
			return e, rec, err
		}
		was, err := entryOf(resource, found.Kvs)
		if err != nil {
			return e, rec, err
		}
		e = tokens.Entry{Resource: resource, Token: t, Generation: was.Generation + 1, RaisedAt: time.UnixMilli(time.Now().UnixMilli())}
		do := []clientv3.Op{clientv3.OpPut(fence, fenceValue(e)), clientv3.OpGet(s.keys.grants(resource), clientv3.WithPrefix())}
		resp, err := s.txn(ctx, s.mayRecord(incarnation), branches([]branch{{[]clientv3.Cmp{unchanged(fence, revisionOf(found.Kvs))}, do}}), s.whyNot())
		if err != nil {
			return e, rec, err
		}
		if !resp.Succeeded {
			return e, rec, notRecorded(resp)
		}
		which, answers := taken(resp.Responses, 1)
		if which == 1 {
			continue // somebody has raised it in between; nothing was changed
		}
		own, below, err := s.split(incarnation, rangeOf(answers[len(answers)-1]), e)
		if err != nil {
			return e, rec, err
		}
		rec.Grant.ID, rec.Lower = own.id, refs(below)
		s.await(below, false)
		if own.id != 0 {
			s.remember(own)
			below = append(below, own)
		}
		s.tell(ctx, below)
		return e, rec, nil
	}
}

// revisionOf is when a key that was asked for was written; 0 where it is not there.
func revisionOf(kvs []*mvccpb.KeyValue) int64 {
	if len(kvs) == 0 {
		return 0
	}
	return kvs[0].ModRevision
}
