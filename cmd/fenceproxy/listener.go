package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of HTTP/2, for each connection. A stream may hold back less than its connection does, so that an upload whose handler waits leaves room to those
// beside it.
const (
	streams          = 100 // requests at once (RFC 9113, 6.5.2 advises no fewer)
	streamBuffer     = 512 << 10
	connectionBuffer = 1 << 20
	pingAfter        = 30 * time.Second // of silence
	pingWait         = 15 * time.Second
)

// A front is what stands before the handler of the S3 API: it bounds what clients cost that are slow, or too many.
type front struct {
	next     http.Handler
	limit    int           // connections, and requests, at once
	bodyWait time.Duration // for a client to take more of its answer
	log      *slog.Logger

	refusedTotal prometheus.Counter
	leaving      atomic.Bool // answers tell their clients to open no request on the same connection any more

	mu       sync.Mutex
	open     map[net.Conn]struct{} // guarded by mu
	requests int                   // guarded by mu
	told     time.Time             // when the log was told last that there are too many; guarded by mu
}

// tellEvery is how often the log is told that there are too many clients.
const tellEvery = time.Minute

func newFront(next http.Handler, c *config, log *slog.Logger, metrics prometheus.Registerer) *front {
	f := &front{next: next, limit: boundedByFiles(int(c.Connections), log), bodyWait: c.BodyWait, log: log, open: map[net.Conn]struct{}{}}
	f.refusedTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fenceproxy_clients_refused_total", Help: "Connections and requests that were refused because there were limits.connections of them already.",
	})
	metrics.MustRegister(f.refusedTotal, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fenceproxy_connections", Help: "Connections of clients that are open on the data port.",
	}, func() float64 {
		f.mu.Lock()
		defer f.mu.Unlock()
		return float64(len(f.open))
	}))
	return f
}

// server returns the server of the data listener. It speaks HTTP/2, too, where there is TLS.
func (f *front) server(c *config, certificate *certificateFile) *http.Server {
	s := newServer(f, f.log)
	s.ReadHeaderTimeout, s.IdleTimeout = c.HeaderWait, c.IdleWait
	s.DisableGeneralOptionsHandler = true // OPTIONS is S3's affair, too
	s.ConnContext, s.ConnState = f.opened, f.changed
	s.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: streams, MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: connectionBuffer,
		SendPingTimeout: pingAfter, PingTimeout: pingWait, WriteByteTimeout: c.BodyWait,
	}
	if certificate != nil {
		s.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.get}
	}
	return s
}

// serveData serves until the server is shut down.
func serveData(s *http.Server, l net.Listener) error {
	if s.TLSConfig == nil {
		return s.Serve(l)
	}
	return s.ServeTLS(l, "", "")
}

// tooMany marks the context of a connection beyond the limit.
type tooMany struct{}

// opened counts a connection before the server reads from it. The first ones beyond the limit are told so when they ask for something; there are few of them, and those
// beyond them are cut off.
func (f *front) opened(ctx context.Context, c net.Conn) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[c] = struct{}{}
	if len(f.open) <= f.limit {
		return ctx
	}
	f.refusedTotal.Inc()
	f.tell("connections")
	if len(f.open) > f.limit+f.limit/8+8 {
		_ = c.Close() // the server finds it closed, and lets go of it
	}
	return context.WithValue(ctx, tooMany{}, true)
}

func (f *front) changed(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, c)
}

// tell tells the log of what there are too many. mu is held.
func (f *front) tell(what string) {
	if now := time.Now(); now.Sub(f.told) >= tellEvery {
		f.told = now
		f.log.Warn("there are too many clients: some are refused (limits.connections)", "too_many", what, "limit", f.limit)
	}
}

// enter lets a request in. On HTTP/2 one connection may have many.
func (f *front) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.requests >= f.limit {
		f.refusedTotal.Inc()
		f.tell("requests")
		return false
	}
	f.requests++
	return true
}

func (f *front) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests--
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Context().Value(tooMany{}) != nil || !f.enter() {
		f.refuse(w)
		return
	}
	defer f.leave()
	if f.leaving.Load() {
		w.Header().Set("Connection", "close") // on HTTP/2 the server sends GOAWAY
	}
	if r.ProtoMajor < 2 { // TCP sees to it: see dataListener
		f.next.ServeHTTP(w, r)
		return
	}
	p := &patientWriter{ResponseWriter: w, control: http.NewResponseController(w), wait: f.bodyWait}
	defer p.last()
	f.next.ServeHTTP(p, r)
}

// drain goes on serving for a while after /readyz has said no: load balancers look only now and then. Who comes in that time is served, and told to
// come on another connection next, so that none is closed under a request. It ends early when a listener fails.
func (f *front) drain(wait time.Duration, failed <-chan error) error {
	if wait == 0 {
		return nil
	}
	f.leaving.Store(true)
	f.log.Info("stopping: load balancers are given time to notice", "drain", wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case err := <-failed:
		return fmt.Errorf("a listener failed: %w", err)
	}
}

// refuse tells a client to come back, and ends its connection.
func (f *front) refuse(w http.ResponseWriter) {
	body := fmt.Sprintf("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>SlowDown</Code><Message>This proxy has %d clients, and lets no more in at once "+
		"(limits.connections). Come back later.</Message></Error>", f.limit)
	w.Header().Set("Connection", "close")
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write([]byte(body))
}

// A patientWriter gives the client of an HTTP/2 stream a bounded time to make room for the next bytes of its answer: a client that is there, and opens no window, would
// hold a request for ever. How long the store takes between two writes does not count.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	wait    time.Duration
}

func (p *patientWriter) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.wait))
	n, err := p.ResponseWriter.Write(b)
	_ = p.control.SetWriteDeadline(time.Time{})
	return n, err
}

// Flush is [http.Flusher]'s.
func (p *patientWriter) Flush() {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.wait))
	_ = p.control.Flush()
	_ = p.control.SetWriteDeadline(time.Time{})
}

// last bounds what the server writes when the handler has returned.
func (p *patientWriter) last() { _ = p.control.SetWriteDeadline(time.Now().Add(p.wait)) }

// Unwrap is for [http.ResponseController].
func (p *patientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }
