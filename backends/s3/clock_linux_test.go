package s3

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestUserTimeout reads back what the kernel was told, on a connection as the transport makes it.
func TestUserTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, test := range []struct{ settle, long, want time.Duration }{
		{0, 0, 20 * time.Second},
		{30 * time.Second, 0, 10 * time.Second},
		{5 * time.Minute, time.Minute, 20 * time.Second},
	} {
		s := open(t, "http://"+l.Addr().String(), func(o *Options) { o.Settle, o.SettleLong = test.settle, test.long })
		c, err := s.transport.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := c.(*conn).Conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var got int
		failed := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
		if failed != nil || err != nil {
			t.Fatal(failed, err)
		}
		if time.Duration(got)*time.Millisecond != test.want {
			t.Errorf("settle time %s: %d ms, want %s", test.settle, got, test.want)
		}
		_ = c.Close()
	}
}
