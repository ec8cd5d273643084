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

// A lockValue is the value of the keys locks/.
type lockValue struct {
	Issued    tokens.Token `json:"issued"` // the highest token that was ever issued: that of the lease
	Lease     string       `json:"lease"`  // id of the last one; "" after all tokens were raised
	Released  bool         `json:"released,omitempty"`
	TakenOver bool         `json:"taken_over,omitempty"` // the lease before it was not released
	Holder    string       `json:"holder"`
	AccessKey string       `json:"access_key,omitempty"`
	TTL       int64        `json:"ttl_ms"`
	Since     int64        `json:"since"`   // ms since 1970, by the clock of a proxy, for people; nothing goes by it
	Renewed   int64        `json:"renewed"` // the same
}

func putLock(key string, row tokens.LockRow) clientv3.Op {
	text, err := json.Marshal(lockValue{
		row.Issued, row.Lease, row.Released, row.TakenOver, row.Holder, row.AccessKey, row.TTL.Milliseconds(), row.Since.UnixMilli(), row.Renewed.UnixMilli(),
	})
	if err != nil {
		panic(err) // strings and numbers
	}
	return clientv3.OpPut(key, string(text))
}

func parseLock(kv *mvccpb.KeyValue) (row tokens.LockRow, err error) {
	var v lockValue
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		return row, fmt.Errorf("the key %s is damaged: %w", kv.Key, err)
	}
	return tokens.LockRow{
		Version: kv.ModRevision, Issued: v.Issued, Lease: v.Lease, Released: v.Released, TakenOver: v.TakenOver, Holder: v.Holder, AccessKey: v.AccessKey,
		TTL: time.Duration(v.TTL) * time.Millisecond, Since: time.UnixMilli(v.Since), Renewed: time.UnixMilli(v.Renewed),
	}, nil
}

// LoadLock implements [fleet.Store].
func (s *store) LoadLock(ctx context.Context, resource string) (v tokens.LockView, err error) {
	found, _, err := s.ask(ctx, clientv3.OpGet(s.keys.fence(resource)), clientv3.OpGet(s.keys.lock(resource)))
	if err != nil {
		return v, err
	}
	if v.Fence, err = entryOf(resource, rangeOf(found[0])); err != nil {
		return v, err
	}
	if kvs := rangeOf(found[1]); len(kvs) > 0 {
		v.Row, err = parseLock(kvs[0])
	}
	return v, err
}

// SwapLock implements [fleet.Store], in one transaction.
func (s *store) SwapLock(ctx context.Context, incarnation int64, was tokens.LockView, now tokens.LockRow) (int64, error) {
	key := s.keys.lock(was.Fence.Resource)
	when := []clientv3.Cmp{unchanged(key, was.Row.Version)}
	if now.Issued > was.Row.Issued {
		when = append(when, s.fenceAt(was.Fence)...)
	}
	resp, err := s.txn(ctx, s.mayRecord(incarnation), []clientv3.Op{clientv3.OpTxn(when, []clientv3.Op{putLock(key, now)}, nil)}, s.whyNot())
	switch {
	case err != nil:
		return 0, err
	case !resp.Succeeded:
		return 0, notRecorded(resp)
	case !resp.Responses[0].GetResponseTxn().Succeeded:
		return 0, nil
	}
	return resp.Header.Revision, nil
}

// fenceAt holds as long as a fence has the generation and token of this entry. An entry of zeros may be one that there is no key of.
func (s *store) fenceAt(e tokens.Entry) []clientv3.Cmp {
	key := s.keys.fence(e.Resource)
	if e.RaisedAt.IsZero() {
		return []clientv3.Cmp{absent(key)}
	}
	// Values are bytes, and what follows the order is a holder or the end of one: never 0xff.
	return within(key, order(e.Generation, e.Token), order(e.Generation, e.Token)+"\xff")
}

// raiseLocks is the part of RaiseAll that is about the proxy's own locks, page by page: what was issued counts as seen, and is not issued again; all
// leases are over. The fences are raised after it. If it is broken off, what the halt has taken note of is not raised again.
func (s *store) raiseLocks(ctx context.Context, h *halt, revision *int64) error {
	for {
		first := s.keys.locks()
		if h.LocksBegan {
			first = s.keys.lock(string(h.LocksAfter)) + "\x00"
		}
		page, err := s.get(ctx, first, clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.keys.locks())), clientv3.WithLimit(pageSize/2))
		if err != nil || len(page.Kvs) == 0 {
			return err
		}
		next := *h
		next.LocksBegan = true
		var do []clientv3.Op
		for _, kv := range page.Kvs {
			resource := string(kv.Key[len(s.keys.locks()):])
			next.LocksAfter = []byte(resource)
			row, err := parseLock(kv)
			if err != nil {
				return err
			}
			e, err := s.Lookup(ctx, resource)
			if err != nil {
				return err
			}
			if row.Issued > e.Token {
				do = append(do, clientv3.OpPut(s.keys.fence(resource), fenceValue(tokens.Entry{Resource: resource, Token: row.Issued, Generation: e.Generation, RaisedAt: time.Now()})))
			}
			row.Issued, row.Lease = row.Issued+h.By, ""
			do = append(do, putLock(string(kv.Key), row))
		}
		resp, err := s.txn(ctx, []clientv3.Cmp{unchanged(s.keys.halt(), *revision)}, append(do, clientv3.OpPut(s.keys.halt(), next.value())), nil)
		switch {
		case err != nil:
			return err
		case !resp.Succeeded:
			return errors.New("another one goes on with it at this moment")
		}
		*h, *revision = next, resp.Header.Revision
	}
}

// highestIssued returns the lock with the highest token issued, if that is above least.
func (s *store) highestIssued(ctx context.Context, least tokens.Token) (resource string, highest tokens.Token, err error) {
	highest = least
	end := clientv3.GetPrefixRangeEnd(s.keys.locks())
	for first, more := s.keys.locks(), true; more; {
		page, err := s.get(ctx, first, clientv3.WithRange(end), clientv3.WithLimit(pageSize*10))
		if err != nil {
			return "", 0, err
		}
		for _, kv := range page.Kvs {
			row, err := parseLock(kv)
			if err != nil {
				return "", 0, err
			}
			if row.Issued > highest {
				resource, highest = string(kv.Key[len(s.keys.locks()):]), row.Issued
			}
			first = string(kv.Key) + "\x00"
		}
		more = page.More
	}
	return resource, highest, nil
}
