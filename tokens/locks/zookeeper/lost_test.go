package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// Kinds of requests, as the protocol numbers them (ZooDefs.OpCode).
const (
	opCreate  = 1
	opDelete  = 2
	opSetData = 5
)

// A cutter stands between a client and the server. It cuts the connection when the server has done the first request of some kind, so that
// the client never learns that it was done.
type cutter struct {
	listener net.Listener
	target   string
	op       uint32
	tasks    sync.WaitGroup

	mu     sync.Mutex // guards the rest
	xid    uint32     // of that request
	state  string     // "" before it was sent, "sent", "cut"
	opened []net.Conn
}

func newCutter(t testing.TB, target string, op uint32) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: l, target: target, op: op}
	c.tasks.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			c.tasks.Go(func() { c.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.mu.Lock()
		for _, conn := range c.opened {
			_ = conn.Close()
		}
		c.mu.Unlock()
		c.tasks.Wait()
	})
	return c
}

func (c *cutter) serve(client net.Conn) {
	server, err := net.Dial("tcp", c.target)
	if err != nil {
		_ = client.Close()
		return
	}
	c.mu.Lock()
	c.opened = append(c.opened, client, server)
	c.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { c.copy(server, client, c.request) })
	both.Go(func() { c.copy(client, server, c.answer) })
	both.Wait()
}

// copy delivers frame by frame what may pass, and closes both ends at the first that may not.
func (c *cutter) copy(to, from net.Conn, pass func(frame []byte) bool) {
	defer to.Close()
	defer from.Close()
	for {
		frame := make([]byte, 4)
		if _, err := io.ReadFull(from, frame); err != nil {
			return
		}
		frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
		if _, err := io.ReadFull(from, frame[4:]); err != nil || !pass(frame[4:]) {
			return
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

func (c *cutter) request(frame []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A connection's first frame has no such header: it begins with the protocol's version and the last transaction seen.
	if c.state == "" && len(frame) >= 8 && binary.BigEndian.Uint32(frame) != 0 && binary.BigEndian.Uint32(frame[4:]) == c.op {
		c.state, c.xid = "sent", binary.BigEndian.Uint32(frame)
	}
	return true
}

func (c *cutter) answer(frame []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == "sent" && binary.BigEndian.Uint32(frame) == c.xid {
		c.state = "cut"
		return false
	}
	return true
}

func (c *cutter) wasCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == "cut"
}

// testLostAnswers: the answer to a request that was done does not come.
func testLostAnswers(t *testing.T, server *servers.ZooKeeper) {
	begin := func(t *testing.T, op uint32) (s locks.Service, c *cutter, path string) {
		path = "/lost/" + t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		release(t, take(t, open(t, "zookeeper://"+server.Address+path), 10*time.Second))
		c = newCutter(t, server.Address, op)
		return open(t, "zookeeper://"+c.listener.Addr().String()+path), c, path
	}

	t.Run("Create", func(t *testing.T) { // found again by its name: it is not made twice
		s, c, path := begin(t, opCreate)
		h := take(t, s, 10*time.Second)
		if !c.wasCut() {
			t.Fatal("no answer was lost")
		}
		names, _, err := client(t, server).Children(path)
		if err != nil || len(names) != 1 || path+"/"+names[0] != h.(*hold).node {
			t.Errorf("below the lock's node are %q (%v); want ours alone, %s", names, err, h.(*hold).node)
		}
		release(t, h)
		release(t, take(t, s, 10*time.Second))
	})
	t.Run("LastWrite", func(t *testing.T) { // an Acquire that cannot be sure fails, and leaves the lock free
		s, c, _ := begin(t, opSetData)
		began := time.Now()
		h, err := s.Acquire(t.Context(), locks.Request{Holder: "a", TTL: 20 * time.Second})
		if err == nil || errors.Is(err, locks.ErrLost) || !c.wasCut() {
			t.Fatalf("%v, %v", h, err)
		}
		t.Log(err)
		release(t, take(t, s, 20*time.Second))
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("the lock was free after %s", took)
		}
	})
	t.Run("Release", func(t *testing.T) { // it is not known to be released, and is
		s, c, _ := begin(t, opDelete)
		h := take(t, s, 20*time.Second)
		if err := h.Release(t.Context()); err == nil || errors.Is(err, locks.ErrLost) || !c.wasCut() {
			t.Fatalf("an answer that did not come: %v", err)
		} else {
			t.Log(err)
		}
		for what, call := range map[string]func(context.Context) error{"Release": h.Release, "Renew": h.Renew} {
			if err := call(t.Context()); !errors.Is(err, errUnanswered) || errors.Is(err, locks.ErrLost) {
				t.Errorf("%s after a release that was not answered: %v", what, err)
			}
		}
		release(t, take(t, s, 10*time.Second))
	})
}
