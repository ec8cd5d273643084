package s3

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// A conn is a connection to the store. It counts what was sent, so that a failed request is known to have been sent in part only.
type conn struct {
	net.Conn
	stall time.Duration

	// written are the bytes of requests that the kernel took. They are counted above TLS: handshake and alerts are not among them,
	// and of a record that was not taken whole the store can read nothing.
	written atomic.Int64
}

// Write gives the store a bounded time to take the next bytes.
func (c *conn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// newTransport makes the transport. What it must never do is send a write twice. Go 1.26's does (net/http/transport.go,
// shouldRetryRequest):
//
//   - nothing on a connection that was not used before
//   - on one that was, after a failure before the first byte of the answer: GET, HEAD, OPTIONS and TRACE, and any method with
//     (X-)Idempotency-Key, if they have no body or a GetBody. We send no such header and set no GetBody.
//   - on one that was, and took not one byte of the request: any request without a body. That is no repetition.
func (s *Store) newTransport(tlsConfig *tls.Config) *http.Transport {
	tlsConfig.NextProtos = []string{"http/1.1"} // HTTP/2 retries by itself, and holds no end back
	tlsConfig.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	dialer := &net.Dialer{Timeout: s.o.DialTimeout, KeepAlive: 15 * time.Second}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, stall: s.o.StallTimeout}, nil
	}
	// TLS is laid below the counting conn, which the transport would put above it.
	dialTLS := func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		config := tlsConfig.Clone()
		if config.ServerName, _, err = net.SplitHostPort(addr); err != nil {
			_ = raw.Close()
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, s.o.DialTimeout)
		defer cancel()
		c := tls.Client(raw, config)
		if err := c.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return &conn{Conn: c, stall: s.o.StallTimeout}, nil
	}
	return &http.Transport{
		// No Proxy: one between here and the store may repeat what it forwards.
		DialContext:           dial,
		DialTLSContext:        dialTLS,
		DisableCompression:    true, // an object is what it is
		ExpectContinueTimeout: continueTimeout,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConnsPerHost:   256,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
}
