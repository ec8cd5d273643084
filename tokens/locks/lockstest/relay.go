package lockstest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A relay stands between one client and a server. While it is stalled it delivers nothing, and what was sent meanwhile comes late: to the
// server as from a process that was stopped, or whose packets were long on their way.
type relay struct {
	listener net.Listener
	target   string
	tasks    sync.WaitGroup

	mu     sync.Mutex    // guards the rest
	awake  chan struct{} // closed while it is not stalled
	ended  bool
	opened map[net.Conn]bool
}

func newRelay(t testing.TB, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, target: target, awake: make(chan struct{}), opened: make(map[net.Conn]bool)}
	close(r.awake)
	r.tasks.Go(r.accept)
	t.Cleanup(r.end)
	return r
}

func (r *relay) address() string { return r.listener.Addr().String() }

func (r *relay) stall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.awake:
		r.awake = make(chan struct{})
	default:
	}
}

func (r *relay) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.awake:
	default:
		close(r.awake)
	}
}

// wait waits until it is not stalled.
func (r *relay) wait() {
	r.mu.Lock()
	awake := r.awake
	r.mu.Unlock()
	<-awake
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.tasks.Go(func() { r.serve(client) })
	}
}

func (r *relay) serve(client net.Conn) {
	defer client.Close()
	r.wait()
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer server.Close()
	if !r.open(client, server) {
		return
	}
	defer r.forget(client, server)
	var both sync.WaitGroup
	both.Go(func() { r.copy(server, client) })
	both.Go(func() { r.copy(client, server) })
	both.Wait()
}

// copy delivers what comes, and the end of it.
func (r *relay) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		r.wait()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err == io.EOF {
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
		if err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
}

func (r *relay) open(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		r.opened[c] = true
	}
	return !r.ended
}

func (r *relay) forget(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.opened, c)
	}
}

func (r *relay) end() {
	r.wake()
	_ = r.listener.Close()
	r.mu.Lock()
	r.ended = true
	for c := range r.opened {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.tasks.Wait()
}
