package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// pageSize is how many keys one transaction changes or one answer has. etcd takes 128 operations in one.
const pageSize = 100

// dial makes the client. It sends no write twice: what the client does by itself is to send one again that never reached a member, or that a
// member has refused because of an old authentication token; intercept takes from it what it would repeat besides.
func (s *store) dial(o Options) (*clientv3.Client, error) {
	for _, e := range o.Endpoints {
		if strings.Contains(e, "@") {
			return nil, errors.New("an endpoint of etcd has a user name in it: say `username` and `password` instead")
		}
		if o.TLS != nil && strings.HasPrefix(e, "http://") {
			return nil, fmt.Errorf("etcd's endpoint %s is one without TLS, and TLS is configured: write https://", e)
		}
	}
	if (o.Username == "") != (o.Password == "") {
		return nil, errors.New("etcd's user name and password go together, and one of them is missing")
	}
	c := clientv3.Config{
		Endpoints:   o.Endpoints,
		TLS:         o.TLS,
		DialTimeout: authTime + time.Second,
		// A member that has gone without a word is noticed: at once while it owes an answer, for the timeout is the kernel's, too.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: zap.NewNop(), // its lines have no place in ours; what matters comes as errors
	}
	if o.Username != "" {
		bare := c
		bare.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(keepCause)}
		var err error
		if s.bare, err = clientv3.New(bare); err != nil {
			return nil, err
		}
		s.password = func(ctx context.Context) (*clientv3.AuthenticateResponse, error) {
			return s.bare.Authenticate(ctx, o.Username, o.Password)
		}
		c.Username, c.Password = o.Username, o.Password
	}
	c.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.intercept)}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: etcd (%s): %w", tokens.ErrUnavailable, strings.Join(o.Endpoints, ", "), err), s.closeBare())
	}
	return client, nil
}

func (s *store) closeBare() error {
	if s.bare == nil {
		return nil
	}
	return s.bare.Close()
}

// A callError is a call whose outcome is not known.
type callError struct {
	text  string
	cause error // of its context; nil where the member or the network has broken off
}

func (e *callError) Error() string { return e.text }
func (e *callError) Unwrap() error { return e.cause }

// unchecked marks the one call that is made although the cluster has been restored.
type unchecked struct{}

// intercept sees every attempt of a call, inside the client's own loop of attempts.
func (s *store) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	check := strings.HasPrefix(method, "/etcdserverpb.KV/") && ctx.Value(unchecked{}) == nil
	if check {
		if err := s.restored.Load(); err != nil {
			return *err
		}
	}
	if s.onCall != nil {
		s.onCall(method)
	}
	if answer, ok := reply.(*pb.AuthenticateResponse); ok {
		return s.authenticate(ctx, answer)
	}
	before := s.revision.Load()
	// A member that is cut off from the others says so at once, and does not wait for them.
	err := keepCause(clientv3.WithRequireLeader(ctx), method, req, reply, cc, invoke, opts...)
	if err != nil || !check {
		return err
	}
	return s.checkHeader(before, reply.(interface{ GetHeader() *pb.ResponseHeader }).GetHeader())
}

// keepCause takes an attempt that has no answer out of the hands of the client: it would repeat it where the context goes on, and drop why no
// member could be reached where it has ended.
func keepCause(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled {
		return &callError{status.Convert(err).Message(), ctx.Err()}
	}
	return err
}

// authTime is how long a member may take to check a password, which is made to be slow.
const authTime = 10 * time.Second

// An authentication is one that is under way, for all calls that want one.
type authentication struct {
	done   chan struct{} // closed when the others may be read
	answer *clientv3.AuthenticateResponse
	err    error
}

// authenticate gets a new token, for all calls that were refused for theirs; it is kept where none of them has waited long enough. If each asked for
// its own, and gave up with its own short deadline, a member that was just restarted would check passwords for calls that are over, and nothing
// else. It is asked over a connection without a token: etcd 3.4 refuses this question, too, if it comes with one that is no longer good.
func (s *store) authenticate(ctx context.Context, answer *pb.AuthenticateResponse) error {
	s.authMu.Lock()
	a := s.auth
	if a == nil {
		a = &authentication{done: make(chan struct{})}
		s.auth = a
		go func() { // it ends with the connection, at the latest
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), authTime)
			defer cancel()
			a.answer, a.err = s.password(ctx)
			close(a.done)
		}()
	}
	s.authMu.Unlock()
	select {
	case <-a.done:
		s.authMu.Lock()
		if s.auth == a {
			s.auth = nil
		}
		s.authMu.Unlock()
		if a.err == nil {
			answer.Header, answer.Token = a.answer.Header, a.answer.Token
		}
		return a.err
	case <-ctx.Done():
		return &callError{"a new token of authentication was not given in time", ctx.Err()}
	}
}

// checkHeader says whether the answer comes from the cluster that we know, with all that it has acknowledged before the question. All our
// questions are linearizable, so the revision never goes back.
func (s *store) checkHeader(before int64, h *pb.ResponseHeader) error {
	switch known := s.cluster.Load(); {
	case known == 0:
	case h.ClusterId != known:
		return s.noticed(fmt.Sprintf("etcd answers as cluster %x, and was cluster %x: it was restored from a snapshot, or is another one", h.ClusterId, known))
	case h.Revision < before:
		return s.noticed(fmt.Sprintf("etcd stands at revision %d, and has been at %d before: it was restored from a snapshot", h.Revision, before))
	}
	for {
		seen := s.revision.Load()
		if h.Revision <= seen || s.revision.CompareAndSwap(seen, h.Revision) {
			return nil
		}
	}
}

// noticed ends the use of the registry by this process: what it remembers is of another past. Who comes after it reads everything anew.
func (s *store) noticed(what string) error { return s.end(what, whatToDo+", and restart this proxy") }

func (s *store) end(what, do string) error {
	err := fmt.Errorf("%w: %s. %s", ErrRestored, what, do)
	if s.restored.CompareAndSwap(nil, &err) {
		s.log.Error("the token registry has lost what it has acknowledged: this proxy gets no new right to write", "cause", what, "do", do)
	}
	return *s.restored.Load()
}

const whatToDo = "Tokens that were recorded since are lost, so that older holders could write again: run `fenceproxy raise --all-by N`, with N larger " +
	"than the number of tokens that were handed out for any one resource since the snapshot"

func (s *store) txn(ctx context.Context, when []clientv3.Cmp, then, otherwise []clientv3.Op) (*pb.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTime)
	defer cancel()
	resp, err := s.client.Txn(ctx).If(when...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return nil, explain(err)
	}
	return (*pb.TxnResponse)(resp), nil
}

// ask asks for several ranges as of one moment.
func (s *store) ask(ctx context.Context, ranges ...clientv3.Op) ([]*pb.ResponseOp, *pb.ResponseHeader, error) {
	resp, err := s.txn(ctx, nil, ranges, nil)
	if err != nil {
		return nil, nil, err
	}
	return resp.Responses, resp.Header, nil
}

func (s *store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*pb.RangeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTime)
	defer cancel()
	resp, err := s.client.Get(ctx, key, opts...)
	if err != nil {
		return nil, explain(err)
	}
	return (*pb.RangeResponse)(resp), nil
}

func explain(err error) error {
	if errors.Is(err, tokens.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("etcd: %w", err)
}

func exists(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), ">", 0) }

func absent(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), "=", 0) }

// unchanged holds as long as nobody has written the key since it was read with this ModRevision, or made it since it was not there (0).
func unchanged(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// within says that a value lies between the two.
func within(key, above, below string) []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.Value(key), ">", above), clientv3.Compare(clientv3.Value(key), "<", below)}
}
