package fleet

import (
	"context"
	"errors"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/histories"
)

// A balancer sends each request to any proxy that says it is ready, as the ones do that people have: it asks each for /readyz all the time,
// repeats nothing, and answers 503 where it is sure that nobody has got the request.
type balancer struct {
	server    *httptest.Server
	address   string
	transport *http.Transport
	health    *http.Client
	ctx       context.Context // of those who ask
	cancel    context.CancelFunc
	askers    sync.WaitGroup

	mu   sync.Mutex
	ways []*way      // guarded by mu
	sent map[int]int // requests, by proxy; guarded by mu
}

// A way leads to one proxy. Its fields are guarded by the balancer's mu.
type way struct {
	number         int
	address, admin string
	ready          bool
}

const (
	lookEvery  = 100 * time.Millisecond
	lookWithin = time.Second // a proxy that does not answer for so long is not ready
)

func newBalancer(t *testing.T, members []*member) *balancer {
	t.Helper()
	b := &balancer{
		transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true},
		health:    &http.Client{Transport: &http.Transport{}, Timeout: lookWithin},
		sent:      map[int]int{},
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	for _, m := range members {
		w := &way{number: m.number, address: m.address, admin: m.admin}
		b.ways = append(b.ways, w)
		b.askers.Go(func() { b.watch(w) })
	}
	b.server = httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: b.choose, Transport: b, ErrorHandler: failed, FlushInterval: -1, ErrorLog: log.New(discard{}, "", 0),
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set(histories.ServedBy, r.Request.URL.Host)
			return nil
		},
	})
	b.address = b.server.Listener.Addr().String()
	if err := histories.Eventually(t.Context(), "all proxies are ready", func() error {
		if n := b.readyOnes(); n < len(members) {
			return errors.New("some are not")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	return b
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// moved says where a proxy that was started again is now.
func (b *balancer) moved(m *member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.ways {
		if w.number == m.number {
			w.address, w.admin = m.address, m.admin
		}
	}
}

func (b *balancer) readyOnes() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.ways {
		if w.ready {
			n++
		}
	}
	return n
}

// isReady says what was seen of a proxy last.
func (b *balancer) isReady(number int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.ways {
		if w.number == number {
			return w.ready
		}
	}
	return false
}

// watch asks one proxy.
func (b *balancer) watch(w *way) {
	for b.ctx.Err() == nil {
		b.mu.Lock()
		admin := w.admin
		b.mu.Unlock()
		err := b.lookAt(admin)
		b.mu.Lock()
		if w.admin == admin {
			w.ready = err == nil
		}
		b.mu.Unlock()
		select {
		case <-time.After(lookEvery):
		case <-b.ctx.Done():
		}
	}
}

func (b *balancer) lookAt(admin string) error {
	r, err := http.NewRequestWithContext(b.ctx, http.MethodGet, "http://"+admin+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := b.health.Do(r)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

var errNobody = errors.New("no proxy is ready")

// choose sends a request to nowhere if no proxy is ready, and RoundTrip says so.
func (b *balancer) choose(r *httputil.ProxyRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ready []*way
	for _, w := range b.ways {
		if w.ready {
			ready = append(ready, w)
		}
	}
	r.Out.Host = r.In.Host
	r.Out.URL.Host = ""
	if len(ready) > 0 {
		w := ready[rand.IntN(len(ready))]
		b.sent[w.number]++
		r.SetURL(&url.URL{Scheme: "http", Host: w.address})
	}
}

func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == "" {
		return nil, errNobody
	}
	return b.transport.RoundTrip(r)
}

// failed answers where nothing was sent, and cuts the client's connection where something may have been.
func failed(w http.ResponseWriter, _ *http.Request, err error) {
	var op *net.OpError
	if errors.Is(err, errNobody) || errors.As(err, &op) && op.Op == "dial" {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	panic(http.ErrAbortHandler)
}

// sentTo is how many requests each proxy has got.
func (b *balancer) sentTo(number int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent[number]
}

func (b *balancer) close() {
	b.cancel()
	b.askers.Wait()
	b.server.CloseClientConnections()
	b.server.Close()
	b.transport.CloseIdleConnections()
	b.health.CloseIdleConnections()
}
