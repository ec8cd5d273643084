package integration

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// slowClients is how many clients of each kind there are.
const slowClients = 250

// maxSlowGrowth bounds what all of them cost, in bytes of resident memory. Measured: 31 MiB, without the race detector in the program.
const maxSlowGrowth = 256 << 20

// slowKinds are clients that begin something and leave it.
var slowKinds = map[string]func(*conn){
	"headers that drip": func(c *conn) { c.say("GET /bkt/big HTTP/1.1\r\nHost: localhost\r\nX-Drip: ") },
	"idle": func(c *conn) {
		c.say("HEAD /bkt HTTP/1.1\r\nHost: localhost\r\n\r\n")
		_, _, _ = c.answer("HEAD")
	},
	"bodies that stall": func(c *conn) {
		c.say("PUT /bkt/slow/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n%s", strings.Repeat("x", 10<<10))
	},
	"readers that do not read": func(c *conn) { c.say("GET /bkt/big HTTP/1.1\r\nHost: localhost\r\n\r\n") },
}

// TestSlowClients: a thousand of them cost a bounded amount, others are served meanwhile, and each is cut off at its limit.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	config := strings.Replace(plainConfig, "limits: {raise_wait: 1m}", "limits: {raise_wait: 1m, header_wait: 5s, body_wait: 5s, idle_wait: 5s}", 1)
	p := newProxy(t, config)
	p.start(t)
	p.do(t, "PUT", "/bkt", "").want(t, 200)
	p.do(t, "PUT", "/bkt/big", string(bytes.Repeat([]byte("0123456789abcdef"), 1<<20))).want(t, 200)
	p.put(t, "/bkt/jobs/7/a", 34, "of 34").want(t, 200)
	before := p.resident(t)

	var conns []*slowConn
	for kind, begin := range slowKinds {
		for range slowClients {
			c := p.dialSlow(t)
			begin(c)
			conns = append(conns, &slowConn{c, kind})
		}
	}
	for range 20 {
		p.put(t, "/bkt/jobs/7/a", 34, "of 34").want(t, 200)
		p.put(t, "/bkt/jobs/7/a", 33, "stale").stale(t, 34)
		p.holds(t, "/bkt/jobs/7/a", "of 34")
	}
	grown := p.resident(t) - before
	t.Logf("%d slow clients cost %.1f MiB, from %.1f MiB", len(conns), float64(grown)/(1<<20), float64(before)/(1<<20))
	if grown > maxSlowGrowth {
		t.Errorf("%d slow clients cost %d bytes", len(conns), grown)
	}

	var all sync.WaitGroup
	for _, c := range conns {
		all.Go(func() {
			if err := c.end(); err != nil {
				t.Errorf("a client with %s is not cut off: %v", c.kind, err)
			}
		})
	}
	all.Wait()
	p.put(t, "/bkt/jobs/7/a", 35, "of 35").want(t, 200)
	p.absent(t, "/bkt/slow/k")
	eventually(t, "all connections are gone", func() bool { return p.metric(t, "fenceproxy_connections") <= 1 })
}

// dialSlow opens a connection that takes little into its own buffers, so that what is not read stays with the proxy.
func (p *proxy) dialSlow(t *testing.T) *conn {
	t.Helper()
	c := p.dial(t)
	must(t, "make the buffer small", c.Conn.(*net.TCPConn).SetReadBuffer(4<<10))
	return c
}

type slowConn struct {
	*conn
	kind string
}

// end waits until the proxy has had enough. A reader that does not read hears of it only when it looks, at last: what was on its way comes, and then no more.
func (c *slowConn) end() error {
	if c.kind == "readers that do not read" {
		return nil // what it would read now would keep it alive; that it is gone is seen in the metrics
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	buf := make([]byte, 4<<10)
	for {
		if _, err := c.r.Read(buf); err != nil {
			if cut(err) {
				return nil
			}
			return err
		}
	}
}

// resident is the memory that the process has now (VmRSS, proc(5)), in bytes.
func (p *proxy) resident(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(t, "look at the process", err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kilobytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	must(t, "read VmRSS", err)
	return kilobytes << 10
}

// metric is a value without labels.
func (p *proxy) metric(t *testing.T, name string) float64 {
	t.Helper()
	a, err := send(fresh, p.admin, "GET", "/metrics", nil)
	must(t, "ask for the metrics", err)
	for line := range strings.Lines(string(a.want(t, 200).body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			must(t, "read "+name, err)
			return f
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
