package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/fenceproxy/fenceproxy/proxy"
	"github.com/fenceproxy/fenceproxy/proxy/admin"
	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// Bounds of the listeners. Bodies have their own, in package proxy; what is more about the S3 API is in listener.go.
const (
	headerTime  = 10 * time.Second  // for the headers of a request to come; of the S3 API: limits.header_wait
	idleTime    = 120 * time.Second // of a connection between two requests; of the S3 API: limits.idle_wait
	headerBytes = 64 << 10
	drainTime   = 30 * time.Second // for the requests under way at a stop
	settleTime  = 5 * time.Second  // for the writes that are past the gate then
)

type serveFlags struct {
	config          string
	newRegistry     bool
	remap           bool
	adopt           []string
	unsafeNetworkFS bool
}

func newServeCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the proxy",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(f.config, os.LookupEnv)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			for _, warning := range c.Warnings {
				log.Warn("the configuration", "warning", warning)
			}
			return serve(cmd.Context(), c, f, log)
		},
	}
	addConfigFlag(cmd, &f.config)
	cmd.Flags().BoolVar(&f.newRegistry, "new-registry", false, "begin with an empty token registry although there are objects that another one fenced: their tokens are forgotten")
	cmd.Flags().BoolVar(&f.remap, "remap", false, "buckets lead keys to other resources than before, and that is meant: the tokens of the old ones are left behind")
	cmd.Flags().StringArrayVar(&f.adopt, "adopt", nil, "the token registry with this `ID` is gone, and its stamps on objects count as this one's from now on")
	cmd.Flags().BoolVar(&f.unsafeNetworkFS, "unsafe-network-fs", false, "serve directories on network file systems, which may not keep what they promise")
	return cmd
}

// serve runs the proxy until ctx ends. Ports are taken first, so that one in use costs nothing; they are served last, when
// everything behind them is there.
func serve(ctx context.Context, c *config, f serveFlags, log *slog.Logger) (err error) {
	certificate, err := certificateOf(c, log)
	if err != nil {
		return err
	}
	data, err := listen(ctx, dataListener(c.BodyWait), c.Listen, "listen")
	if err != nil {
		return err
	}
	defer data.Close()
	adm, err := listen(ctx, net.ListenConfig{}, c.Admin, "admin")
	if err != nil {
		return err
	}
	defer adm.Close()

	var health net.Listener
	if c.Health != "" {
		if health, err = listen(ctx, net.ListenConfig{}, c.Health, "health"); err != nil {
			return err
		}
		defer health.Close()
	}

	s, err := openState(ctx, c, f, log, "listening on "+data.Addr().String(), instanceOf(portOf(data)))
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.close(log))
		log.Info("stopped")
	}()

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler := proxy.New(proxy.Config{
		Fence: s.fence, Locks: tokens.NewLocks(s.registry, nil), Uploads: s.registry, Rules: c.Rules, Backends: s.backends, Audit: s.audit, Log: log, Metrics: metrics,
		Signatures: signatures(c), Access: c.accessOf, Anonymous: c.Anonymous, Domain: c.Domain, BodyIdle: c.BodyWait,
		RegistryID: s.registry.Start().ID, Adopted: s.registry.Adopted(), Buffer: c.BufferBytes, Memory: c.MemoryBytes, Spool: s.spool,
	})
	defer handler.Close()
	front := newFront(handler, c, log, metrics)
	dataServer := front.server(c, certificate)
	var ready atomic.Bool
	api := admin.Config{
		Fence: s.fence, Registry: s.registry, Audit: s.audit, AuditOf: s.auditOf(), Version: programVersion(),
		Metrics: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError)}),
		Ready: func() error {
			if !ready.Load() {
				return errors.New("the proxy is starting or stopping")
			}
			return s.ready()
		},
	}
	adminServers := []*http.Server{newServer(admin.New(api), log)}
	failed := make(chan error, 3)
	go func() { failed <- serveData(dataServer, data) }()
	listeners := []net.Listener{adm}
	if health != nil {
		adminServers, listeners = append(adminServers, newServer(admin.NewHealth(api), log)), append(listeners, health)
	}
	for i, server := range adminServers {
		go func() { failed <- server.Serve(listeners[i]) }()
	}
	ready.Store(true)
	dir, _ := filepath.Abs(c.Data) // for people
	log.Info("serving", "listen", data.Addr().String(), "admin", adm.Addr().String(), "health", addressOf(health), "data", dir, "tls", certificate != nil, "version", programVersion(), "pid", os.Getpid())

	select {
	case err = <-failed:
		err = fmt.Errorf("a listener failed: %w", err)
	case <-ctx.Done():
		ready.Store(false)
		err = front.drain(c.Drain, failed)
	}
	ready.Store(false)
	return errors.Join(err, stopServers(ctx, log, dataServer, adminServers))
}

// instanceOf is what this process is called beside others: by its machine, and what tells it from others there.
func instanceOf(what string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return host + ":" + what
}

func addressOf(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

func portOf(l net.Listener) string {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// ready is why no new token can be raised, nil if it can. A shared registry that was away for longer than the lease makes a proxy unready until it is back.
func (s *state) ready() error {
	if err := s.registry.Failure(); err != nil {
		return err
	}
	if s.registry.Incarnation() == 0 {
		return errors.New("the lease of the token registry is over: it has not answered in time")
	}
	return nil
}

// auditOf names the audit log where several proxies write to one; "" where this one has its own.
func (s *state) auditOf() string {
	if !s.audit.Shared() {
		return ""
	}
	return s.registry.Start().ID
}

// certificateOf is nil where the S3 API is plain HTTP.
func certificateOf(c *config, log *slog.Logger) (*certificateFile, error) {
	if c.TLS == (tlsFiles{}) {
		return nil, nil
	}
	return openCertificate(c.TLS, log)
}

// signatures verifies those who come in; nil where everybody may.
func signatures(c *config) *sigv4.Verifier {
	if len(c.AccessKeys) == 0 {
		return nil
	}
	return sigv4.New(c.secretOf, sigv4.Options{Region: c.Region})
}

func listen(ctx context.Context, how net.ListenConfig, address, key string) (net.Listener, error) {
	l, err := how.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: is another program, or another fenceproxy, on this port? Give it another one, or stop that", key, err)
	}
	return l, nil
}

func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// stopServers lets the requests under way end, within bounds. Those that do not are cut off; what was past the gate stays on
// record as in doubt.
func stopServers(ctx context.Context, log *slog.Logger, data *http.Server, others []*http.Server) error {
	log.Info("stopping: requests under way are ended first", "within", drainTime)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	err := data.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		log.Warn("requests were cut off: they took too long to end")
		err = data.Close()
	}
	errs := []error{err}
	for _, other := range others {
		errs = append(errs, other.Close())
	}
	return errors.Join(errs...)
}
