package fleet

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A crossing is where all proxies reach the store: an endpoint is part of what the proxies of a fleet must have in common. It leads each
// connection over the relay of the proxy that made it.
type crossing struct {
	listener net.Listener
	fleet    *fleet
}

func newCrossing(t *testing.T, f *fleet) *crossing {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &crossing{l, f}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			c.lead(conn.(*net.TCPConn))
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return c
}

func (c *crossing) address() string { return c.listener.Addr().String() }

// lead gives a connection to the relay of whose it is. One that is nobody's, for whoever made it is dead, is closed.
func (c *crossing) lead(conn *net.TCPConn) {
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	inode, err := socketAt(conn.RemoteAddr().(*net.TCPAddr), c.listener.Addr().(*net.TCPAddr))
	if err == nil {
		for _, m := range c.fleet.members {
			if hasSocket(m.PID(), inode) {
				m.toStore.Take(conn)
				return
			}
		}
	}
	_ = conn.Close()
}

// socketAt is the number of the socket with this address that is connected to that one: proc_pid_net(5).
func socketAt(local, remote *net.TCPAddr) (inode string, err error) {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	defer f.Close()
	ports := [2]string{fmt.Sprintf(":%04X", local.Port), fmt.Sprintf(":%04X", remote.Port)}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && strings.HasSuffix(fields[1], ports[0]) && strings.HasSuffix(fields[2], ports[1]) {
			return fields[9], nil
		}
	}
	return "", os.ErrNotExist
}

func hasSocket(pid int, inode string) bool {
	dir := filepath.Join("/proc", fmt.Sprint(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if to, _ := os.Readlink(filepath.Join(dir, e.Name())); to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}
