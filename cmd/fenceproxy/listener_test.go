package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// A frontTest is a data listener with a handler of the test behind it.
type frontTest struct {
	*testing.T
	front   *front
	metrics *prometheus.Registry
	addr    string
	pool    *x509.CertPool // nil: plain HTTP
}

func startFront(t *testing.T, c *config, secure bool, handler http.HandlerFunc) *frontTest {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	ft := &frontTest{T: t, metrics: prometheus.NewRegistry()}
	ft.front = newFront(handler, c, log, ft.metrics)
	var certificate *certificateFile
	if secure {
		pair := newTestPair(t, 1, nil, "localhost")
		certificate = newCertificateTest(t, pair).c
		ft.pool = x509.NewCertPool()
		ft.pool.AppendCertsFromPEM([]byte(pair.cert))
	}
	l, err := listen(t.Context(), dataListener(c.BodyWait), "127.0.0.1:0", "listen")
	if err != nil {
		t.Fatal(err)
	}
	server := ft.front.server(c, certificate)
	done := make(chan error, 1)
	go func() { done <- serveData(server, l) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	ft.addr = l.Addr().String()
	return ft
}

// client speaks HTTP/2 where there is TLS.
func (ft *frontTest) client() *http.Client {
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: ft.pool, ServerName: "localhost"}}
	ft.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

func (ft *frontTest) url() string {
	if ft.pool == nil {
		return "http://" + ft.addr + "/"
	}
	return "https://" + ft.addr + "/"
}

func (ft *frontTest) dial() net.Conn {
	ft.Helper()
	c, err := net.Dial("tcp", ft.addr)
	if err != nil {
		ft.Fatal(err)
	}
	ft.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // a test that hangs fails
	return c
}

// ask sends a request on a connection that is open.
func (ft *frontTest) ask(c net.Conn) *http.Response {
	ft.Helper()
	resp, err := tryToAsk(c)
	if err != nil {
		ft.Fatal(err)
	}
	return resp
}

func tryToAsk(c net.Conn) (*http.Response, error) {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(c), nil)
}

func frontConfig(connections int64, bodyWait time.Duration) *config {
	c := defaultConfig()
	c.Connections, c.BodyWait = connections, bodyWait
	return &c
}

// TestTooManyConnections: those beyond the limit are told, those far beyond it are cut off, and those within it notice nothing.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	ft := startFront(t, frontConfig(2, time.Minute), false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	var within []net.Conn
	for range 2 {
		c := ft.dial()
		within = append(within, c)
		if resp := ft.ask(c); resp.StatusCode != 204 {
			t.Fatalf("within the limit: %v", resp)
		}
	}
	c := ft.dial()
	resp := ft.ask(c)
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != 503 || !resp.Close || !strings.Contains(string(body), "<Code>SlowDown</Code>") || err != nil {
		t.Errorf("beyond the limit: %v %s %v", resp, body, err)
	}
	_ = c.Close()
	if resp := ft.ask(within[0]); resp.StatusCode != 204 {
		t.Errorf("a connection from before: %v", resp)
	}
	_ = within[1].Close()
	ft.reaches(204)
	families, err := ft.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "fenceproxy_clients_refused_total" && f.Metric[0].GetCounter().GetValue() >= 1 {
			return
		}
	}
	t.Errorf("nobody was refused, say the metrics: %v", families)
}

// reaches waits until a new connection gets this status: the server hears of closed ones when it does.
func (ft *frontTest) reaches(status int) {
	ft.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c := ft.dial()
		resp, err := tryToAsk(c)
		_ = c.Close()
		if err == nil && resp.StatusCode == status {
			return
		}
		if time.Now().After(deadline) {
			ft.Fatalf("%v, %v; want %d", resp, err, status)
		}
	}
}

func TestFarTooManyConnections(t *testing.T) {
	t.Parallel()
	ft := startFront(t, frontConfig(1, time.Minute), false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	var open []net.Conn
	for range 9 { // the one, and eight that are told to come back
		open = append(open, ft.dial())
	}
	if _, err := ft.dial().Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("far beyond the limit: %v, want the end", err)
	}
	for _, c := range open {
		_ = c.Close()
	}
	ft.reaches(204)
}

// TestTooManyStreams: one connection of HTTP/2 may have no more requests than many connections have.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	begun, end := make(chan string, 2), make(chan bool)
	ft := startFront(t, frontConfig(2, time.Minute), true, func(_ http.ResponseWriter, r *http.Request) {
		begun <- r.Proto
		<-end
	})
	client := ft.client()
	answers := make(chan int, 2)
	for range 2 {
		go func() {
			resp, err := client.Get(ft.url())
			if err != nil {
				t.Error(err)
				answers <- 0
				return
			}
			_ = resp.Body.Close()
			answers <- resp.StatusCode
		}()
		if proto := <-begun; proto != "HTTP/2.0" {
			t.Errorf("it came by %s", proto)
		}
	}
	resp, err := client.Get(ft.url())
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 503 {
		t.Errorf("one too many: %v", resp)
	}
	close(end)
	for range 2 {
		if status := <-answers; status != 200 {
			t.Errorf("a request from before: %d", status)
		}
	}
}

// TestReaderThatDoesNotRead: a client that takes nothing of its answer holds its request for body_wait, and not longer.
func TestReaderThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			t.Parallel()
			failed := make(chan error, 1)
			ft := startFront(t, frontConfig(10, 300*time.Millisecond), secure, func(w http.ResponseWriter, _ *http.Request) {
				for {
					if _, err := w.Write(make([]byte, 64<<10)); err != nil {
						failed <- err
						return
					}
				}
			})
			if secure {
				resp, err := ft.client().Get(ft.url())
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.ProtoMajor != 2 {
					t.Errorf("%v", resp.Proto)
				}
			} else {
				c := ft.dial()
				ft.ask(c)
			}
			select {
			case <-failed:
			case <-time.After(time.Minute):
				t.Error("the answer is still being written")
			}
		})
	}
}

// A deadlineWriter notes in which order it is written to and given deadlines.
type deadlineWriter struct {
	http.ResponseWriter
	calls []string
}

func (d *deadlineWriter) Write(b []byte) (int, error) {
	d.calls = append(d.calls, "write")
	return len(b), nil
}

func (d *deadlineWriter) Flush() { d.calls = append(d.calls, "flush") }

func (d *deadlineWriter) SetWriteDeadline(t time.Time) error {
	switch wait := time.Until(t).Round(time.Hour); {
	case t.IsZero():
		d.calls = append(d.calls, "none")
	default:
		d.calls = append(d.calls, wait.String())
	}
	return nil
}

// TestPatience: the client's time runs while something is written, and not while the store takes its time.
func TestPatience(t *testing.T) {
	d := &deadlineWriter{}
	p := &patientWriter{ResponseWriter: d, control: http.NewResponseController(d), wait: time.Hour}
	_, _ = p.Write([]byte("x"))
	p.Flush()
	p.last()
	want := []string{"1h0m0s", "write", "none", "1h0m0s", "flush", "none", "1h0m0s"}
	if diff := cmp.Diff(want, d.calls); diff != "" {
		t.Error(diff)
	}
}

// TestTLSVersions: what is older than TLS 1.2 is refused (RFC 8996), and a client without HTTP/2 is served.
func TestTLSVersions(t *testing.T) {
	t.Parallel()
	ft := startFront(t, frontConfig(10, time.Minute), true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	for version, good := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		for _, proto := range []string{"", "http/1.1", "h2"} {
			config := &tls.Config{RootCAs: ft.pool, ServerName: "localhost", MinVersion: version, MaxVersion: version}
			if proto != "" {
				config.NextProtos = []string{proto}
			}
			d := tls.Dialer{Config: config}
			c, err := d.DialContext(context.Background(), "tcp", ft.addr)
			if (err == nil) != good {
				t.Errorf("%s %q: %v", tls.VersionName(version), proto, err)
			}
			if err != nil {
				continue
			}
			if got := c.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != proto {
				t.Errorf("%s: %q, want %q", tls.VersionName(version), got, proto)
			}
			_ = c.Close()
		}
	}
}
