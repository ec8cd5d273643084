// Package etcd takes a lock of an etcd cluster of version 3.4 or newer: the lock that `etcdctl lock NAME` and the Mutex of etcd's Go client
// (client/v3/concurrency) take, with the same keys, so that all three keep each other out.
//
//	etcd://[user:password@]host[:2379][,host…]/name[?tls=true][&ca=FILE][&cert=FILE&key=FILE]
//
// # The lock
//
// Who wants it makes a key below name/, called by the id of its lease, which the lease takes away when it runs out. The oldest of these keys,
// by the revision that made it, has the lock; each of the others waits for the one before it to go. So one lock must not be named below
// another: who wants jobs also waits for the holders of jobs/7.
//
// `etcdctl lock` of 3.4, and the Mutex of that client, do not look whether their own key is still there when the others before it have gone: one
// that was paused while it waited goes on beside the holder, with a number that is as high or higher. That of 3.5 looks, as we do.
//
// # The token
//
// It is a revision of etcd, the number of all changes so far: one at which our key was seen to be the oldest, read in one transaction with that
// revision. At no revision are two keys the oldest, so no two holders have the same number. A key that is older than ours cannot come after we
// have seen ours to be the oldest, for keys are made at growing revisions; so whoever is the oldest next is it at revisions that are all
// later than the one that took our key away, and that one is later than our token. It is not the revision that made the key, which a waiter
// gets early and uses late; that would do, too, but `etcdctl lock` exports the former as ETCD_LOCK_REV, and the two must compare.
//
// What etcd promises of a revision it promises for one life of a cluster. A new cluster begins at 1, and one restored from a snapshot goes
// on from there, and gives the numbers since for a second time. See [ErrRestored].
package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// ErrRestored says that the cluster has forgotten what it had acknowledged: tokens that it gives from now on may be lower than those before.
var ErrRestored = errors.New("etcd is not what it was: it was restored from a snapshot, or made anew, and may give tokens that it has given before. " +
	"Restore it with `etcdutl snapshot restore --bump-revision`, or reset the fences of what this lock protects")

// callTime is how long one call may take where nobody says less.
const callTime = 5 * time.Second

// A Service is one lock of a cluster. It implements [locks.Service] and [locks.Checker].
type Service struct {
	client *clientv3.Client
	at     string // the endpoints, for errors
	prefix string // of the keys

	cluster  atomic.Uint64 // its id; 0 until it has answered first
	revision atomic.Int64  // the highest one seen
}

var (
	_ locks.Service = (*Service)(nil)
	_ locks.Checker = (*Service)(nil)
)

// Open makes a client of the lock that a URL names; see the package's words for its form. It connects with the first call, but with a user in
// the URL, who is let in by the cluster first, or not.
func Open(url string) (*Service, error) {
	a, err := parse(url)
	if err != nil {
		return nil, err
	}
	s := &Service{at: strings.Join(a.endpoints, ", "), prefix: a.name + "/"}
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints: a.endpoints, TLS: a.tls, Username: a.user, Password: a.password, DialTimeout: callTime,
		// A member that has gone without a word is noticed: at once while it owes an answer, for the timeout is the kernel's, too.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(keepCause)},
		Logger:      zap.NewNop(), // what matters comes as errors
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return s, nil
}

// Close implements [locks.Service].
func (s *Service) Close() error { return s.client.Close() }

// A callError is a call that was given up. Why the server could not be reached is in the text alone, and the client drops the text.
type callError struct {
	text  string
	cause error // of its context; nil where the member or the network has broken off
}

func (e *callError) Error() string { return e.text }
func (e *callError) Unwrap() error { return e.cause }

func keepCause(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled {
		return &callError{status.Convert(err).Message(), ctx.Err()}
	}
	return err
}

func (s *Service) explain(err error) error {
	if errors.Is(err, ErrRestored) {
		return err
	}
	return fmt.Errorf("etcd (%s): %w", s.at, err)
}

// txn asks for one transaction. All of ours are linearizable, so that the revision never goes back.
func (s *Service) txn(ctx context.Context, when []clientv3.Cmp, then ...clientv3.Op) (*clientv3.TxnResponse, error) {
	before := s.revision.Load()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	// A member that is cut off from the others says so at once, and does not wait for them.
	resp, err := s.client.Txn(clientv3.WithRequireLeader(ctx)).If(when...).Then(then...).Commit()
	if err != nil {
		return nil, s.explain(err)
	}
	h := resp.Header
	if !s.cluster.CompareAndSwap(0, h.ClusterId) && s.cluster.Load() != h.ClusterId {
		return nil, fmt.Errorf("%w (it answers as cluster %x, and was cluster %x)", ErrRestored, h.ClusterId, s.cluster.Load())
	}
	if h.Revision < before {
		return nil, fmt.Errorf("%w (it stands at revision %d, and was at %d)", ErrRestored, h.Revision, before)
	}
	for {
		seen := s.revision.Load()
		if h.Revision <= seen || s.revision.CompareAndSwap(seen, h.Revision) {
			return resp, nil
		}
	}
}

// detached is for what has to be done although ctx may have ended: a short time of its own.
func detached(ctx context.Context, ttl time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), min(ttl/3, 2*time.Second))
}
