package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A halt is why nobody may join, raise or reset: the value of the key halt. While it is there, no fence changes but by RaiseAll.
type halt struct {
	Restored string       `json:"restored,omitempty"` // how it was noticed that the cluster has lost what it had acknowledged; "" if it has not
	By       tokens.Token `json:"by,omitempty"`       // a raise of all tokens is under way, by so many
	Began    bool         `json:"began,omitempty"`    // it has raised some
	After    []byte       `json:"after,omitempty"`    // the last resource that it has raised; names may be no UTF-8
	Raised   int64        `json:"raised,omitempty"`   // so many so far

	LocksBegan bool   `json:"locks_began,omitempty"` // it has raised what some of the proxy's own locks have issued, which comes before the fences
	LocksAfter []byte `json:"locks_after,omitempty"` // the last of them
}

func parseHalt(kvs []*mvccpb.KeyValue) (*halt, error) {
	if len(kvs) == 0 {
		return nil, nil
	}
	h := new(halt)
	if err := json.Unmarshal(kvs[0].Value, h); err != nil {
		return nil, fmt.Errorf("the key %s is damaged: %w", kvs[0].Key, err)
	}
	return h, nil
}

func (h halt) value() string {
	text, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

// err says it to the operator; nil for no halt.
func (h *halt) err() error {
	switch {
	case h == nil:
		return nil
	case h.By > 0:
		return fmt.Errorf("%w: a raise of all tokens by %d has not come to its end: if it is not under way any more, run `fenceproxy raise --all-by %d` again",
			tokens.ErrUnavailable, h.By, h.By)
	}
	return fmt.Errorf("%w: %s. %s", ErrRestored, h.Restored, whatToDo)
}

// halting returns why this process is done with the registry, if it is, and sees to it that everybody else knows, too: a cluster that was restored
// under its old id does not tell those who come later. Where the marks were raised in the meantime, nobody else needs to know.
func (s *store) halting(ctx context.Context) error {
	err := s.restored.Load()
	if err == nil {
		return nil
	}
	h := halt{Restored: "a proxy has found that it has lost what it had acknowledged"}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, unchecked{}, true), s.callTime)
	defer cancel()
	_, putErr := s.client.Txn(ctx).If(absent(s.keys.halt()), clientv3.Compare(clientv3.Value(s.keys.registry()), "=", string(s.identity))).
		Then(clientv3.OpPut(s.keys.halt(), h.value())).Commit()
	if putErr != nil {
		return fmt.Errorf("%w (the other proxies could not be told: %w)", *err, putErr)
	}
	return *err
}

// RaiseAll implements [tokens.Maintained]. One transaction of etcd cannot hold it, so it halts the registry first: from there on nobody raises,
// and every lease is let run out, so that nothing is admitted any more by what was recorded before. Then it goes page by page, and its last step
// ends the halt. If we crash in between, the registry stays halted, and the same call goes on where this one was.
//
// Where the registry was restored, the last step also puts the cluster on record as the one that counts, and that another registry was in
// the place of this one: what it let through may still take effect.
func (r *Registry) RaiseAll(ctx context.Context, by tokens.Token) (raised int64, err error) {
	if by < 1 {
		return 0, fmt.Errorf("tokens are raised by 1 or more, not by %d", by)
	}
	defer func() {
		if err != nil && !errors.As(err, new(*tokens.OverflowError)) {
			err = fmt.Errorf("raise all tokens by %d: %w", by, unavailable(err))
		}
	}()
	s := r.store
	h, revision, before, err := s.beginRaise(ctx, by)
	if err != nil {
		return 0, err
	}
	if !h.Began && !h.LocksBegan {
		if err := s.checkOverflow(ctx, by); err != nil {
			return 0, errors.Join(err, s.endHalt(ctx, revision, before))
		}
	}
	if err := s.endInstances(ctx, h); err != nil {
		return 0, err
	}
	if !h.Began {
		if err := s.raiseLocks(ctx, &h, &revision); err != nil {
			return 0, err
		}
	}
	for {
		done, err := s.raisePage(ctx, &h, &revision)
		if err != nil || done {
			return h.Raised, err
		}
	}
}

// beginRaise halts the registry, or goes on with a raise that was broken off. before is the halt that was there, nil if none.
func (s *store) beginRaise(ctx context.Context, by tokens.Token) (h halt, revision int64, before *halt, err error) {
	found, header, err := s.ask(ctx, clientv3.OpGet(s.keys.halt()), clientv3.OpGet(s.keys.registry()))
	if err != nil {
		return h, 0, nil, err
	}
	kvs := rangeOf(found[0])
	if before, err = parseHalt(kvs); err != nil {
		return h, 0, nil, err
	}
	if len(rangeOf(found[1])) == 0 {
		return h, 0, nil, ErrMissing
	}
	if before != nil && before.By > 0 {
		if before.By != by {
			return h, 0, nil, fmt.Errorf("one by %d was broken off, and some tokens are raised already: run `fenceproxy raise --all-by %d` first", before.By, before.By)
		}
		return *before, kvs[0].ModRevision, before, nil
	}
	if before != nil {
		h.Restored = before.Restored
	} else if h.Restored, err = s.restoredSince(ctx, rangeOf(found[1])[0].Value, header.ClusterId); err != nil {
		return h, 0, nil, err
	}
	if h.Restored != "" && !s.accepts {
		return h, 0, nil, (&halt{Restored: h.Restored}).err()
	}
	h.By = by
	resp, err := s.txn(ctx, []clientv3.Cmp{unchanged(s.keys.halt(), revisionOf(kvs))}, []clientv3.Op{clientv3.OpPut(s.keys.halt(), h.value())}, nil)
	switch {
	case err != nil:
		return h, 0, nil, err
	case !resp.Succeeded:
		return h, 0, nil, errors.New("another one has begun at this moment")
	}
	return h, resp.Header.Revision, before, nil
}

// endHalt puts the halt back to what it was before.
func (s *store) endHalt(ctx context.Context, revision int64, before *halt) error {
	do := clientv3.OpDelete(s.keys.halt())
	if before != nil {
		b := *before
		b.By = 0
		if b.Restored != "" {
			do = clientv3.OpPut(s.keys.halt(), b.value())
		}
	}
	_, err := s.txn(ctx, []clientv3.Cmp{unchanged(s.keys.halt(), revision)}, []clientv3.Op{do}, nil)
	return err
}

// fencesInPages calls f for all fences, from first on, while nobody changes them.
func (s *store) fencesInPages(ctx context.Context, first string, f func(tokens.Entry) error) error {
	for more := true; more; {
		kvs, left, err := s.page(ctx, "", first, pageSize*10)
		if err != nil {
			return err
		}
		for _, kv := range kvs {
			e, err := parseFence(string(kv.Key[len(s.keys.fences()):]), kv.Value)
			if err == nil {
				err = f(e)
			}
			if err != nil {
				return err
			}
			first = e.Resource + "\x00"
		}
		more = left
	}
	return nil
}

// checkOverflow fails if a token cannot be raised so far, and names the highest.
func (s *store) checkOverflow(ctx context.Context, by tokens.Token) error {
	over := &tokens.OverflowError{By: by}
	err := s.fencesInPages(ctx, "", func(e tokens.Entry) error {
		if e.Token > tokens.Max-by && e.Token > over.Token {
			over.Resource, over.Token = e.Resource, e.Token
		}
		return nil
	})
	if err != nil {
		return err
	}
	resource, issued, err := s.highestIssued(ctx, max(over.Token, tokens.Max-by))
	if err == nil && resource != "" {
		over.Resource, over.Token = resource, issued
	}
	if err == nil && over.Token > 0 {
		return over
	}
	return err
}

// endInstances ends all incarnations: whoever runs asks for every right anew. They cannot beat since the halt, so after a lease none of them admits
// anything; only then does the time begin in which what they have admitted settles. In a cluster that was restored there may be some that it
// does not know of.
func (s *store) endInstances(ctx context.Context, h halt) error {
	found, err := s.get(ctx, s.keys.instances(), clientv3.WithPrefix())
	if err != nil {
		return err
	}
	var wait time.Duration
	if h.Restored != "" {
		wait = s.lease
	}
	for _, kv := range found.Kvs {
		m, err := parseMember(kv)
		if err != nil {
			return err
		}
		wait = max(wait, time.Duration(m.LeaseMS)*time.Millisecond)
	}
	if wait == 0 {
		return nil
	}
	s.log.Info("waiting until no proxy goes by the tokens from before", "wait", wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	_, err = s.txn(ctx, []clientv3.Cmp{exists(s.keys.halt())}, []clientv3.Op{clientv3.OpDelete(s.keys.instances(), clientv3.WithPrefix())}, nil)
	return err
}

// raisePage raises the next fences and takes note of it in the same step; after the last one it ends the halt.
func (s *store) raisePage(ctx context.Context, h *halt, revision *int64) (done bool, err error) {
	first := ""
	if h.Began {
		first = string(h.After) + "\x00"
	}
	kvs, _, err := s.page(ctx, "", first, pageSize)
	if err != nil {
		return false, err
	}
	next := *h
	next.Began = true
	var do []clientv3.Op
	now := time.Now()
	for _, kv := range kvs {
		e, err := parseFence(string(kv.Key[len(s.keys.fences()):]), kv.Value)
		if err != nil {
			return false, err
		}
		next.After = []byte(e.Resource)
		if e.Token == 0 {
			continue // has seen none yet
		}
		next.Raised++
		raised := tokens.Entry{Resource: e.Resource, Token: e.Token + h.By, Generation: e.Generation, RaisedAt: now}
		do = append(do, clientv3.OpPut(s.keys.fence(e.Resource), fenceValue(raised)))
	}
	done = len(kvs) == 0
	if !done {
		do = append(do, clientv3.OpPut(s.keys.halt(), next.value()))
	} else if do, err = s.lastOfRaise(ctx, h); err != nil {
		return false, err
	}
	resp, err := s.txn(ctx, []clientv3.Cmp{unchanged(s.keys.halt(), *revision)}, do, nil)
	switch {
	case err != nil:
		return false, err
	case !resp.Succeeded:
		return false, errors.New("another one goes on with it at this moment")
	}
	*h, *revision = next, resp.Header.Revision
	return done, nil
}

func (s *store) lastOfRaise(ctx context.Context, h *halt) ([]clientv3.Op, error) {
	do := []clientv3.Op{clientv3.OpDelete(s.keys.halt()), clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.Value(s.keys.repair()), "=", string(tokens.RepairMargin))},
		[]clientv3.Op{clientv3.OpDelete(s.keys.repair())}, nil)}
	if h.Restored == "" {
		return do, nil
	}
	found, err := s.get(ctx, s.keys.registry())
	if err != nil {
		return nil, err
	}
	var i identity
	if len(found.Kvs) == 0 {
		return nil, ErrMissing
	} else if err := json.Unmarshal(found.Kvs[0].Value, &i); err != nil {
		return nil, err
	}
	i.Cluster, i.Accepted, i.Distance = hexCluster(s.cluster.Load()), i.Accepted+1, nil
	if d, known := s.distance(ctx); known {
		i.Distance = &d
	}
	value, err := json.Marshal(i)
	if err != nil {
		return nil, err
	}
	adopting, err := s.adopting(ctx, "")
	return append(append(do, clientv3.OpPut(s.keys.registry(), string(value))), adopting...), err
}
