package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A hold is a lock that we have: a place at the head of the queue.
type hold struct {
	*place
	token  tokens.Token
	record string // the key's value from now on

	mu       sync.Mutex // guards the rest
	asked    bool       // a release was sent, which may have been carried out
	released bool
}

// Token implements [locks.Hold].
func (h *hold) Token() tokens.Token { return h.token }

// TakenOver implements [locks.Hold]. etcd keeps nothing of a key that is gone, so it cannot be known.
func (h *hold) TakenOver() bool { return false }

// Renew implements [locks.Hold]. What keeps a lease alive is one member's word, and the one that gives it may have been paused, and no longer be the
// leader, which it need not know up to etcd 3.4.30 and 3.5.12. So the key is written, too, which takes a majority: that proves that we had the lock
// when it was written. And if the term of the cluster is the same as before the lease was kept alive, nobody else was elected in between,
// and the word was the leader's.
func (h *hold) Renew(ctx context.Context) error {
	for range 2 {
		alive, err := h.service.keepAlive(ctx, h.lease)
		if err != nil {
			return h.over(err)
		}
		resp, err := h.service.txn(ctx, h.ours(), clientv3.OpPut(h.key, h.record, clientv3.WithLease(h.lease)))
		if err != nil {
			return h.over(err)
		}
		if !resp.Succeeded {
			return fmt.Errorf("%w: its key %s is gone, or was made anew", locks.ErrLost, h.key)
		}
		if resp.Header.RaftTerm == alive.Header.RaftTerm {
			return nil
		}
	}
	return errors.New("etcd elects one leader after the other, and which of them has kept the lock's lease is not known")
}

// over says whether an error is the end of the hold.
func (h *hold) over(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("%w: its lease %x has run out", locks.ErrLost, int64(h.lease))
	case errors.Is(err, ErrRestored):
		return fmt.Errorf("%w: %w", locks.ErrLost, err)
	}
	return err
}

func (h *hold) ours() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.created)}
}

// Release implements [locks.Hold].
func (h *hold) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return nil
	}
	again := h.asked
	h.asked = true
	resp, err := h.service.txn(ctx, h.ours(), clientv3.OpDelete(h.key))
	if err != nil {
		return h.over(err)
	}
	if !resp.Succeeded && !again {
		return fmt.Errorf("%w: its key %s is gone, or was made anew", locks.ErrLost, h.key)
	}
	h.released = true
	h.leave(ctx) // the lease has no key any more, and runs out if it stays
	return nil
}

// keepAlive asks once to keep a lease alive; the client's own KeepAliveOnce asks until its context ends. The answer's term is that from before the lease was
// kept.
func (s *Service) keepAlive(ctx context.Context, lease clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), callTime)
	defer cancel()
	stream, err := pb.NewLeaseClient(s.client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return nil, s.explain(rpctypes.Error(err))
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease)}); err != nil && err != io.EOF { // then Recv knows why
		return nil, s.explain(rpctypes.Error(err))
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, s.explain(rpctypes.Error(err))
	}
	if resp.TTL <= 0 {
		return nil, s.explain(rpctypes.ErrLeaseNotFound)
	}
	return resp, nil
}
