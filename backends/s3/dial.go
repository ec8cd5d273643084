package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A conn is a connection to the store. It counts what was sent, so that a failed request is known to have been sent in part only, and
// it lets no byte of a write out whose time is over.
type conn struct {
	net.Conn
	stall  time.Duration
	closed chan struct{}
	once   sync.Once

	// user is the request that the connection is given to: one at a time, and its first byte goes out after it was set.
	user atomic.Pointer[exchange]

	mu   sync.Mutex
	sent progress // of user; guarded by mu
}

func newConn(c net.Conn, stall time.Duration) *conn {
	return &conn{Conn: c, stall: stall, closed: make(chan struct{})}
}

// progress is how much of a request the kernel took. It is counted above TLS: handshake and alerts are not among it, and of a
// record that was not taken whole the store can read nothing.
type progress struct {
	head int   // how many bytes of the empty line that ends the head have gone out last: the head is out when all have
	body int64 // bytes behind it
}

const emptyLine = "\r\n\r\n"

// add counts bytes that went out.
func (p *progress) add(b []byte) {
	for i, c := range b {
		switch {
		case p.head == len(emptyLine):
			p.body += int64(len(b) - i)
			return
		case c == emptyLine[p.head]:
			p.head++
		case c == '\r':
			p.head = 1
		default:
			p.head = 0
		}
	}
}

// whole says whether head and body of a request are out.
func (p progress) whole(body int64) bool { return p.head == len(emptyLine) && p.body >= body }

// giveTo gives the connection to a request.
func (c *conn) giveTo(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = progress{}
	c.user.Store(x)
}

func (c *conn) progress() progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// Write gives the store a bounded time to take the next bytes. Past the gate that is what is left of the write's time: a machine that
// slept between the gate and here sends nothing any more.
func (c *conn) Write(p []byte) (int, error) {
	wait, last := c.stall, false
	x := c.user.Load()
	if x != nil {
		if left, bounded := x.time.left(); bounded && left < wait {
			wait, last = left, true
		}
	}
	if wait <= 0 {
		x.cancel(errLate) // or the transport would look for another connection
		return 0, errLate
	}
	if err := c.SetWriteDeadline(time.Now().Add(wait)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	c.sent.add(p[:n])
	c.mu.Unlock()
	if last && errors.Is(err, os.ErrDeadlineExceeded) {
		err = errLate
	}
	return n, err
}

// Close is the transport's, and tells who waits for an answer on this connection that none comes.
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
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
	return &http.Transport{
		// No Proxy: one between here and the store may repeat what it forwards.
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := s.dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return newConn(c, s.o.StallTimeout), nil
		},
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := s.dialTLS(ctx, network, addr, tlsConfig)
			if err != nil {
				return nil, err
			}
			return newConn(c, s.o.StallTimeout), nil
		},
		DisableCompression:    true, // an object is what it is
		ExpectContinueTimeout: continueTimeout,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConnsPerHost:   256,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
}

// dial connects, in a bounded time. What the kernel has taken it gives up when the store has not acknowledged it for as long as a write
// may be on its way: a connection serves writes of every settle time, so the shorter one counts.
func (s *Store) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if s.o.DialContext != nil {
		ctx, cancel := context.WithTimeout(ctx, s.o.DialTimeout)
		defer cancel()
		return s.o.DialContext(ctx, network, addr)
	}
	d := net.Dialer{Timeout: s.o.DialTimeout, KeepAlive: 15 * time.Second, Control: userTimeout(sendTime(min(s.o.Settle, s.o.SettleLong)))}
	return d.DialContext(ctx, network, addr)
}

// dialTLS lays TLS below the counting conn; the transport would put it above.
func (s *Store) dialTLS(ctx context.Context, network, addr string, config *tls.Config) (net.Conn, error) {
	raw, err := s.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	config = config.Clone()
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
	return c, nil
}
