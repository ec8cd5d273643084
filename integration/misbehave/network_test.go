package misbehave

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pair is a connection, both ends of it.
func pair(t *testing.T, n *Network) (ours, theirs net.Conn) {
	t.Helper()
	accepted := make(chan net.Conn)
	go func() {
		c, err := n.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	ours, err := n.Dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return ours, <-accepted
}

// TestNetworkDeliversAfterDeath is what kernels do with the last words of a process.
func TestNetworkDeliversAfterDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		ours, theirs := pair(t, n)
		if _, err := io.WriteString(ours, "last words"); err != nil {
			t.Fatal(err)
		}
		_ = ours.Close()
		time.Sleep(time.Hour)
		if got, err := io.ReadAll(theirs); err != nil || string(got) != "last words" {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := theirs.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("writing to who has gone: %v", err)
		}
		if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("reading from what is closed: %v", err)
		}
		_ = theirs.Close()
		_ = n.Close()
		if _, err := n.Dial(t.Context(), "", ""); err == nil {
			t.Error("a closed listener was dialled")
		}
	})
}

func TestNetworkDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		defer n.Close()
		ours, theirs := pair(t, n)
		defer ours.Close()
		defer theirs.Close()
		_ = ours.SetDeadline(time.Now().Add(time.Minute))
		start := time.Now()
		if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("read: %v after %v", err, time.Since(start))
		}
		_ = ours.SetDeadline(time.Now().Add(time.Minute))
		start = time.Now()
		written, err := io.Copy(ours, strings.NewReader(strings.Repeat("x", 2*window)))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute || written != window {
			t.Errorf("write: %d bytes, %v after %v", written, err, time.Since(start))
		}
		_ = ours.SetDeadline(time.Time{})
		go func() {
			time.Sleep(time.Hour)
			_, _ = io.CopyN(io.Discard, theirs, window)
		}()
		if _, err := ours.Write([]byte("y")); err != nil {
			t.Errorf("after the deadline was taken away: %v", err)
		}
	})
}
