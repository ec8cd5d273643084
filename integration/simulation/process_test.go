package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fenceproxy/fenceproxy/backends/file"
	"github.com/fenceproxy/fenceproxy/backends/s3"
	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

// A proxyRun is one process, put together as cmd/fenceproxy does it.
type proxyRun struct {
	w      *world
	number int
	dir    string // its data directory

	lock     *sqlite.DirLock
	registry *sqlite.Registry
	audit    *audit.Log
	fence    *tokens.Fence
	handler  *proxy.Handler
	s3       *s3.Store
	files    *file.Store

	server *http.Server
	front  *misbehave.Network
	served chan error
	client *http.Transport // of everybody who talks to it

	dead atomic.Bool

	mu    sync.Mutex
	conns []net.Conn // to the store, and from clients; guarded by mu
}

// start begins a run over a data directory.
func (w *world) start(t *testing.T, dir string) *proxyRun {
	t.Helper()
	p := &proxyRun{w: w, number: int(w.runs.Add(1)), dir: dir, front: misbehave.NewNetwork(), served: make(chan error, 1)}
	if err := p.open(); err != nil {
		t.Fatal(err)
	}
	p.server = &http.Server{Handler: p.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	p.client = &http.Transport{DialContext: p.dialFront}
	go func() { p.served <- p.server.Serve(p.front) }()
	w.note("run %d begins", p.number)
	w.setUp(p)
	return p
}

func (p *proxyRun) open() (err error) {
	ctx := context.Background()
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return err
	}
	if p.lock, err = sqlite.Lock(p.dir, "a simulation"); err != nil {
		return err
	}
	if p.registry, err = sqlite.Open(ctx, p.lock, sqlite.Options{Create: true}); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(p.w.checker, nil))
	if p.audit, err = audit.Open(ctx, filepath.Join(p.dir, "audit.db"), audit.Options{Log: log}); err != nil {
		return err
	}
	backend, err := p.backend(ctx, log)
	if err != nil {
		return err
	}
	table, err := rules.New([]rules.Bucket{{Name: "*", Backend: "store", Rules: []rules.Rule{{Match: "jobs/{job}/**", Resource: "jobs/{job}"}}}})
	if err != nil {
		return err
	}
	spool := filepath.Join(p.dir, "spool")
	if err := os.MkdirAll(spool, 0o700); err != nil {
		return err
	}
	p.fence = tokens.NewFence(p.registry, tokens.Options{RaiseWait: raiseWait, Idle: 10 * time.Second, Resources: 2})
	p.handler = proxy.New(proxy.Config{
		Fence: p.fence, Uploads: p.registry, Rules: table, Backends: map[string]proxy.Backend{"store": backend}, Audit: p.audit, Log: log,
		Metrics: prometheus.NewRegistry(), RegistryID: p.registry.Start().ID, Adopted: p.registry.Adopted(),
		Buffer: bufferSize, Memory: 4 * bufferSize, Spool: spool,
	})
	return nil
}

// raiseWait is how long a client waits for a raise.
const raiseWait = 5 * time.Second

// bufferSize is the largest body that is read whole; larger ones stream.
const bufferSize = 2 << 10

func (p *proxyRun) backend(ctx context.Context, log *slog.Logger) (proxy.Backend, error) {
	if p.w.k == fileKind {
		if err := os.MkdirAll(filepath.Join(p.w.root, bucketName), 0o755); err != nil {
			return proxy.Backend{}, err
		}
		var err error
		p.files, err = file.Open(p.w.root, file.Options{})
		return proxy.Backend{Handler: &fileBackend{p.w, p, p.files}, Stamp: true}, err
	}
	began := time.Now()
	var err error
	p.s3, err = s3.Open(ctx, s3.Options{
		Region: "us-east-1", Endpoint: "http://store", PathStyle: true, AccessKey: "key", SecretKey: secret,
		Settle: settle, SettleLong: settleLong, DialContext: p.dialStore, Log: log,
		Boot: func() time.Duration { return time.Since(began) },
	})
	return proxy.Backend{
		Handler: p.s3, Settle: settle, SettleLong: settleLong, Stamp: true, Conditional: p.w.quirks.conditional, Probe: p.probe,
	}, err
}

// probe is what cmd/fenceproxy makes of the store's own. In most simulations it is left out, and what it would find is said: it takes
// longer than all the rest.
func (p *proxyRun) probe(ctx context.Context, bucket string) (proxy.Findings, error) {
	if !p.w.quirks.probed {
		return proxy.Findings{Conditions: p.w.quirks.honoured}, nil
	}
	found, err := probeStore(ctx, p.s3, bucket)
	p.w.note("probe: %+v %v", found, err)
	return found, err
}

func (p *proxyRun) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
}

var errDead = errors.New("the process is dead")

// dialStore connects to the store.
func (p *proxyRun) dialStore(ctx context.Context, network, address string) (net.Conn, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	c, err := p.w.net.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p.keep(c)
	return &pausingConn{c, p}, nil
}

// dialFront connects a client.
func (p *proxyRun) dialFront(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := p.front.Dial(ctx, network, address)
	if err == nil {
		p.keep(c)
	}
	return c, err
}

// A pausingConn stands still now and then, when all has been checked and before a write goes out: what no clock that is asked before can
// see. It stays within its part of the settle time.
type pausingConn struct {
	net.Conn
	p *proxyRun
}

func (c *pausingConn) Write(b []byte) (int, error) {
	if l, ok := c.p.w.pauses(b); ok {
		c.p.w.count(paused)
		l.sleep(settle / 4)
		if c.p.dead.Load() {
			return 0, errDead
		}
	}
	return c.Conn.Write(b)
}

// pauses says whether there is a pause before these bytes, which are the beginning of a write then. It depends on the write alone.
func (w *world) pauses(b []byte) (luck, bool) {
	_, rest, found := bytes.Cut(b, []byte(idHeader+": "))
	if w.calm || !found || b[0] != 'P' && b[0] != 'D' {
		return luck{}, false
	}
	id, _, _ := bytes.Cut(rest, []byte("\r\n"))
	l := newLuck(w.seed, hashOf("pause "+string(id)))
	return l, l.oneIn(8)
}

// stop ends a run as SIGTERM does.
func (w *world) stop(p *proxyRun) {
	w.note("run %d is stopped", p.number)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if p.server.Shutdown(ctx) != nil {
		_ = p.server.Close()
	}
	w.setUp(nil)
	p.handler.Close()
	ctx, cancel = context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = p.fence.Close(ctx) // that writes are left open is what the next run has to know
	p.close(w)
}

// kill ends a run as kill -9 does: what it has on disk is copied as it is at this moment, and the next run goes on with the copy. What is
// left of the old one is put to rest where nobody looks.
func (w *world) kill(t *testing.T, p *proxyRun, dir string) (data string) {
	synctest.Wait() // nobody is in the middle of a system call
	w.note("run %d is killed", p.number)
	data = fmt.Sprintf("%s/data-%d", dir, p.number+1)
	if err := os.CopyFS(data, os.DirFS(p.dir)); err != nil {
		t.Fatal(err)
	}
	p.dead.Store(true)
	w.setUp(nil)
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	_ = p.server.Close()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	p.handler.Close()
	_ = p.fence.Close(ended)
	p.close(w)
	return data
}

func (p *proxyRun) close(w *world) {
	p.dead.Store(true)
	_ = p.server.Close()
	<-p.served
	p.client.CloseIdleConnections()
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	err := errors.Join(p.audit.Close(), p.registry.Close())
	if p.s3 != nil {
		err = errors.Join(err, p.s3.Close())
	}
	if p.files != nil {
		err = errors.Join(err, p.files.Close())
	}
	if err = errors.Join(err, p.lock.Release()); err != nil {
		w.checker.mu.Lock()
		defer w.checker.mu.Unlock()
		w.fail("run %d ends: %v", p.number, err)
	}
	w.note("run %d has ended", p.number)
}
