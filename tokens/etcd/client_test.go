package etcd

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A failing server takes transactions, and does not tell what became of them.
type failing struct {
	pb.UnimplementedKVServer
	code  codes.Code
	calls atomic.Int64
}

func (f *failing) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	f.calls.Add(1)
	return nil, status.Error(f.code, "etcdserver: request timed out")
}

// TestNoWriteIsRepeated: a transaction of which the outcome is not known is sent once.
func TestNoWriteIsRepeated(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Unknown, codes.Internal, codes.ResourceExhausted} {
		t.Run(code.String(), func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server, f := grpc.NewServer(), &failing{code: code}
			pb.RegisterKVServer(server, f)
			ended := make(chan struct{})
			go func() { _ = server.Serve(l); close(ended) }()
			defer func() { server.Stop(); <-ended }()
			if _, err := tryOpen(Options{Endpoints: []string{l.Addr().String()}, Lease: 10 * time.Second}); err == nil {
				t.Error("it was opened")
			}
			if n := f.calls.Load(); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
}
