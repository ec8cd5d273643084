package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A record is the value of a key of ours. The keys of others have none.
type record struct {
	Holder string       `json:"holder"`
	Token  tokens.Token `json:"token,omitempty"` // none while it waits
	Since  time.Time    `json:"since,omitzero"`  // by the holder's clock
}

func (r record) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic("etcd: a record that is no JSON: " + err.Error()) // it has nothing in it that could not be
	}
	return string(text)
}

// A place is one in the queue: a key, and the lease that it lives by.
type place struct {
	service *Service
	request locks.Request
	lease   clientv3.LeaseID
	key     string
	created int64     // the revision that made the key: the rank in the queue
	until   time.Time // when the lease may have run out, by our clock
}

// errGone says that a place in the queue has been lost.
var errGone = errors.New("the place in the queue is lost")

// Acquire implements [locks.Service]. The service's queue is first come, first served. A waiter that is paused for longer than its TTL loses its
// place, and takes another one when it wakes.
func (s *Service) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	if context.Cause(ctx) != nil {
		return nil, context.Cause(ctx)
	}
	w := &waiter{tell: r.Waiting}
	for {
		h, err := s.queue(ctx, r, w)
		if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
			<-ctx.Done() // a call's own timer may go first
		}
		switch {
		case err == nil:
			return h, nil
		case context.Cause(ctx) != nil:
			return nil, context.Cause(ctx)
		case !errors.Is(err, errGone):
			return nil, err
		}
	}
}

// queue waits in one place.
func (s *Service) queue(ctx context.Context, r locks.Request, w *waiter) (_ *hold, err error) {
	p, err := s.place(ctx, r)
	if p != nil {
		defer func() {
			if err != nil {
				p.leave(ctx)
			}
		}()
	}
	if err != nil {
		return nil, err
	}
	for {
		v, err := p.look(ctx)
		switch {
		case err != nil && (errors.Is(err, ErrRestored) || time.Now().After(p.until)):
			return nil, err
		case err != nil: // our place stands for as long as the lease does, and the server may be back by then
			p.pause(ctx, 100*time.Millisecond)
		case v.mine == nil:
			return nil, errGone
		case v.oldest.CreateRevision == p.created:
			return p.hold(v.revision), nil
		default:
			w.found(v.oldest)
			p.wait(ctx, string(v.before.Key), v.revision)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := p.keep(ctx); err != nil {
			return nil, err
		}
	}
}

// place takes one, at the end of the queue. It is not nil where there may be one in spite of an error. If we crash here, the lease takes it away.
func (s *Service) place(ctx context.Context, r locks.Request) (*place, error) {
	seconds := int64((r.TTL + time.Second - 1) / time.Second) // etcd makes two of one
	p := &place{service: s, request: r, until: time.Now().Add(r.TTL)}
	calling, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	lease, err := s.client.Grant(clientv3.WithRequireLeader(calling), seconds)
	if err != nil {
		return nil, s.explain(err) // a lease without a key is in nobody's way
	}
	p.lease = lease.ID
	p.key = fmt.Sprintf("%s%x", s.prefix, int64(p.lease))
	_, err = s.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(p.key), "=", 0)},
		clientv3.OpPut(p.key, record{Holder: r.Holder}.String(), clientv3.WithLease(p.lease)))
	if err != nil {
		return p, err
	}
	// Not from the answer: the client may have sent it twice.
	v, err := p.look(ctx)
	if err != nil {
		return p, err
	}
	if v.mine == nil {
		return p, errGone
	}
	p.created = v.mine.CreateRevision
	return p, nil
}

// A view is what there is of the queue at one revision.
type view struct {
	revision int64
	mine     *mvccpb.KeyValue // nil: gone
	oldest   *mvccpb.KeyValue // who has the lock
	before   *mvccpb.KeyValue // who is before us
}

func (p *place) look(ctx context.Context) (v view, err error) {
	before := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(p.created-1))
	resp, err := p.service.txn(ctx, nil, clientv3.OpGet(p.key), clientv3.OpGet(p.service.prefix, clientv3.WithFirstCreate()...),
		clientv3.OpGet(p.service.prefix, before...))
	if err != nil {
		return v, err
	}
	v.revision = resp.Header.Revision
	for i, kv := range []**mvccpb.KeyValue{&v.mine, &v.oldest, &v.before} {
		if kvs := resp.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			*kv = kvs[0]
		}
	}
	return v, nil
}

// keep keeps our place. It fails when it is lost, and no earlier.
func (p *place) keep(ctx context.Context) error {
	if p.request.TTL-time.Until(p.until) < p.request.TTL/4 {
		return nil
	}
	until := time.Now().Add(p.request.TTL)
	calling, cancel := context.WithTimeout(ctx, min(p.request.TTL/3, callTime))
	defer cancel()
	_, err := p.service.keepAlive(calling, p.lease)
	switch {
	case err == nil:
		p.until = until
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return errGone
	}
	return nil // look decides
}

// wait waits until a key is gone, or it is time to keep our place. A watch may end without a word, which does no harm: we look again.
func (p *place) wait(ctx context.Context, key string, revision int64) {
	every := p.request.TTL / 3
	watching, cancel := context.WithTimeout(ctx, every)
	defer cancel()
	gone := p.service.client.Watch(clientv3.WithRequireLeader(watching), key, clientv3.WithRev(revision+1), clientv3.WithFilterPut())
	for resp := range gone {
		if len(resp.Events) > 0 {
			return
		}
	}
	p.pause(watching, min(every, time.Second))
}

func (p *place) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// leave gives the place back. Where that fails it runs out.
func (p *place) leave(ctx context.Context) {
	ctx, cancel := detached(ctx, p.request.TTL)
	defer cancel()
	_, _ = p.service.client.Revoke(ctx, p.lease)
}

func (p *place) hold(revision int64) *hold {
	r := record{Holder: p.request.Holder, Token: tokens.Token(revision), Since: time.Now().UTC().Round(time.Millisecond)}
	return &hold{place: p, token: r.Token, record: r.String()}
}

// A waiter tells who has the lock, once of each.
type waiter struct {
	tell func(locks.Other)
	told int64 // revision that made the key of the one that was told of last
}

func (w *waiter) found(oldest *mvccpb.KeyValue) {
	if w.tell == nil || oldest.CreateRevision == w.told {
		return
	}
	w.told = oldest.CreateRevision
	var r record
	if json.Unmarshal(oldest.Value, &r) != nil {
		r = record{} // a holder of etcdctl's, who writes nothing
	}
	w.tell(locks.Other{Holder: r.Holder, Token: r.Token, Since: r.Since})
}
