// Package etcd is a token registry that several proxies share, kept by an etcd cluster of version 3.4 or newer.
//
// The protocol is that of package fleet; here is how etcd keeps it. Every step is one transaction of etcd, so nothing comes between what it
// compares, writes and reads. A raise is one: it compares that the instance is alive and that the recorded token is not higher, writes
// token and grant, and reads the other grants of the resource. All questions are linearizable.
//
// Keys: see keys.go.
package etcd

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// Options of Open.
type Options struct {
	Endpoints []string    // of the cluster's members, as https://host:2379
	Prefix    string      // of all keys; "/fenceproxy/" if empty
	TLS       *tls.Config // nil: without

	// Username and Password, or the name in the certificate of TLS, stand for a user who may read and write under Prefix.
	Username, Password string

	// Create makes a new registry where there is none under the prefix. Without it that is [ErrMissing]: an empty registry would let every
	// token in, the old ones too.
	Create bool

	// Replaces says that another registry was in the place of one that is created now, and is lost: see [Registry.LastAdopted].
	Replaces bool

	// Repair is how far the rebuild has come that creates it: see [Registry.SetRepair].
	Repair tokens.Repair

	Lease time.Duration // 10 s if 0: see [fleet.Options]
	Log   *slog.Logger  // nil: nobody is told

	// AcceptRestored opens a registry also where it was restored from a snapshot, or where a raise of all tokens was broken off, for
	// [Registry.RaiseAll].
	AcceptRestored bool
}

var (
	// ErrMissing says that there is no registry under the prefix.
	ErrMissing = errors.New("there is no token registry")

	// ErrNewer says that what is under the prefix was written by a newer program.
	ErrNewer = errors.New("it was written by a newer version of fenceproxy: use that one")

	// ErrRestored says that the cluster has lost what it had acknowledged.
	ErrRestored = fmt.Errorf("%w: the cluster is not what it was", tokens.ErrUnavailable)
)

// A Registry is one proxy's part in a registry. It implements [tokens.Maintained] and [tokens.Shared].
type Registry struct {
	*fleet.Registry
	store *store
	start tokens.Start
}

// A store implements [fleet.Store].
type store struct {
	client   *clientv3.Client
	keys     keys
	log      *slog.Logger
	callTime time.Duration // of one round trip, at most; a call that a leader took with it is not waited for longer
	lease    time.Duration // of this instance
	hints    chan struct{}
	onCall   func(method string) // told of every round trip: for tests

	cluster  atomic.Uint64         // id of the etcd cluster; 0 until it has answered first
	revision atomic.Int64          // the highest one seen
	restored atomic.Pointer[error] // why this process is done with it; nil if it is not
	identity []byte                // value of the key registry when it was opened; not changed afterwards
	accepts  bool                  // see Options.AcceptRestored

	bare     *clientv3.Client                                              // only asks for tokens; nil without a password
	password func(context.Context) (*clientv3.AuthenticateResponse, error) // asks for one with the password
	authMu   sync.Mutex
	auth     *authentication // under way, or not yet taken by anybody; nil if there is none; guarded by authMu

	ctx    context.Context // of the watch
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	own     int64                         // incarnation whose revocations are watched; guarded by mu
	beats   map[int64]int64               // incarnations of ours, and their last beat that was acknowledged; guarded by mu
	granted map[tokens.GrantID]fleetGrant // grants of ours, as far as we know; guarded by mu
	current map[string]tokens.GrantID     // by key, the one of granted that was recorded last; guarded by mu
	spent   spent                         // guarded by mu
	gone    tokens.GrantID                // grants of ours up to this one, which are not in granted, were swept with their incarnation; guarded by mu
	awaited map[string]struct{}           // keys of the revocations that raises here wait for; guarded by mu
	adopted []string                      // ids of other registries, sorted; guarded by mu
}

// Open connects to the registry. It does not join the fleet: see [fleet.Registry.Begin].
func Open(ctx context.Context, o Options) (*Registry, error) { return open(ctx, o, nil) }

func open(ctx context.Context, o Options, onCall func(string)) (_ *Registry, err error) {
	if o.Lease == 0 {
		o.Lease = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Prefix == "" {
		o.Prefix = "/fenceproxy/"
	}
	if !strings.HasSuffix(o.Prefix, "/") {
		o.Prefix += "/"
	}
	s := &store{
		keys: keys(o.Prefix), log: o.Log, callTime: min(max(o.Lease/5, time.Second), 5*time.Second), lease: o.Lease, onCall: onCall, accepts: o.AcceptRestored,
		hints: make(chan struct{}, 1),
		beats: map[int64]int64{}, granted: map[tokens.GrantID]fleetGrant{}, current: map[string]tokens.GrantID{},
		spent: newSpent(), awaited: map[string]struct{}{},
	}
	if s.client, err = s.dial(o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.client.Close(), s.closeBare())
		}
	}()
	r := &Registry{store: s}
	if r.start, err = s.identify(ctx, o); err != nil {
		return nil, fmt.Errorf("open the token registry under %s in etcd: %w", o.Prefix, err)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tasks.Go(s.watch)
	r.Registry = fleet.New(s, fleet.Options{Lease: o.Lease, Log: o.Log})
	return r, nil
}

// identify finds the id, or gives one to a new registry.
func (s *store) identify(ctx context.Context, o Options) (start tokens.Start, err error) {
	found, header, err := s.ask(ctx, clientv3.OpGet(s.keys.registry()), clientv3.OpGet(s.keys.halt()),
		clientv3.OpGet(s.keys.adopted(), clientv3.WithPrefix()),
		clientv3.OpGet(string(s.keys), clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly()))
	if err != nil {
		return start, unavailable(err)
	}
	s.cluster.Store(header.ClusterId)
	if len(rangeOf(found[0])) == 0 {
		switch {
		case len(rangeOf(found[3])) > 0:
			return start, errors.New("it is damaged: it has lost its id. Restore it from a snapshot")
		case !o.Create:
			return start, ErrMissing
		}
		if found, err = s.create(ctx, o); err != nil {
			return start, unavailable(err)
		}
		start.Created = len(found) == 0
		if start.Created {
			return start, s.known(&start, s.identity)
		}
	}
	identity, halted := rangeOf(found[0]), rangeOf(found[1])
	s.adopted = s.adoptedIn(rangeOf(found[2]))
	if err := s.known(&start, identity[0].Value); err != nil {
		return start, err
	}
	if o.AcceptRestored {
		return start, nil
	}
	if h, err := parseHalt(halted); err != nil || h != nil {
		return start, errors.Join(err, h.err())
	}
	why, err := s.restoredSince(ctx, s.identity, header.ClusterId)
	if err == nil && why != "" {
		err = (&halt{Restored: why}).err()
	}
	return start, err
}

// known takes over what the key registry says.
func (s *store) known(start *tokens.Start, value []byte) error {
	var i identity
	if err := json.Unmarshal(value, &i); err != nil {
		return fmt.Errorf("it is damaged: its key %s cannot be read: %w", s.keys.registry(), err)
	}
	switch {
	case i.Format > format:
		return ErrNewer
	case i.ID == "" || i.Format < 1:
		return fmt.Errorf("it is damaged: its key %s has no id", s.keys.registry())
	}
	s.identity, start.ID = value, i.ID
	return nil
}

// create makes a new one, and returns what is there where somebody else was faster. If we crash here, there is a whole registry or none.
func (s *store) create(ctx context.Context, o Options) (found []*pb.ResponseOp, err error) {
	now := time.Now()
	i := identity{Format: format, ID: rand.Text(), Cluster: hexCluster(s.cluster.Load()), CreatedAt: now.UnixMilli()}
	if d, known := s.distance(ctx); known {
		i.Distance = &d
	}
	value, err := json.Marshal(i)
	if err != nil {
		return nil, err
	}
	puts := []clientv3.Op{clientv3.OpPut(s.keys.registry(), string(value))}
	if o.Replaces {
		adopting, err := s.adopting(ctx, "")
		if err != nil {
			return nil, err
		}
		puts = append(puts, adopting...)
	}
	if o.Repair != tokens.RepairNone {
		puts = append(puts, clientv3.OpPut(s.keys.repair(), string(o.Repair)))
	}
	resp, err := s.txn(ctx, []clientv3.Cmp{absent(s.keys.registry())}, puts,
		[]clientv3.Op{clientv3.OpGet(s.keys.registry()), clientv3.OpGet(s.keys.halt()), clientv3.OpGet(s.keys.adopted(), clientv3.WithPrefix())})
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		return resp.Responses, nil
	}
	s.identity = value
	return nil, nil
}

func hexCluster(id uint64) string { return fmt.Sprintf("%x", id) }

// Start implements [tokens.Maintained].
func (r *Registry) Start() tokens.Start { return r.start }

// Begin implements [tokens.Maintained].
func (r *Registry) Begin(ctx context.Context, mapping int64) error {
	return r.Registry.Begin(ctx, epoch(mapping))
}

// Adopted implements [tokens.Maintained].
func (r *Registry) Adopted() []string {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return slices.Clone(r.store.adopted)
}

// Close implements [fleet.Store].
func (s *store) Close() error {
	s.cancel()
	s.tasks.Wait()
	return errors.Join(s.client.Close(), s.closeBare())
}

// Hints implements [fleet.Store].
func (s *store) Hints() <-chan struct{} { return s.hints }

func unavailable(err error) error {
	if errors.Is(err, tokens.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", tokens.ErrUnavailable, err)
}
