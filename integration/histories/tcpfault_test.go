package histories

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A target answers each line with "got" and the line, and tells the test of it.
type target struct {
	net.Listener
	lines chan string
}

func newRelayed(t *testing.T, longest time.Duration) (*Relay, *target) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := &target{l, make(chan string, 100)}
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go to.serve(c)
		}
	}()
	r, err := NewRelay(longest)
	if err != nil {
		t.Fatal(err)
	}
	r.ConnectTo(l.Addr().String())
	t.Cleanup(func() {
		l.Close()
		r.Close()
		goleak.VerifyNone(t, leaks)
	})
	return r, to
}

func (to *target) serve(c net.Conn) {
	defer c.Close()
	for in := bufio.NewReader(c); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		to.lines <- line
		if _, err := io.WriteString(c, "got "+line); err != nil {
			return
		}
	}
}

// gets waits for the next line that comes to the target.
func (to *target) gets(t *testing.T, want string) {
	t.Helper()
	select {
	case line := <-to.lines:
		if line != want {
			t.Errorf("the target got %q, want %q", line, want)
		}
	case <-time.After(Patience):
		t.Fatalf("%q never came", want)
	}
}

func (to *target) gotNothing(t *testing.T) {
	t.Helper()
	select {
	case line := <-to.lines:
		t.Errorf("the target got %q", line)
	default:
	}
}

type dialled struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, r *Relay) *dialled {
	t.Helper()
	c, err := net.Dial("tcp", r.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		t.Fatal(err)
	}
	return &dialled{c, bufio.NewReader(c)}
}

func (c *dialled) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line); err != nil {
		t.Fatal(err)
	}
}

func (c *dialled) hear(t *testing.T, want string) {
	t.Helper()
	if line, err := c.in.ReadString('\n'); line != want {
		t.Fatalf("%q, %v came back, want %q", line, err, want)
	}
}

// ends wants the connection to end, with an error or with EOF.
func (c *dialled) ends(t *testing.T, want error) {
	t.Helper()
	if line, err := c.in.ReadString('\n'); !errors.Is(err, want) {
		t.Errorf("%q, %v, want %v", line, err, want)
	}
}

// until waits for a count of the relay.
func until(t *testing.T, r *Relay, f func(RelayCounts) bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !f(r.Stats()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came to that: %+v", r.Stats())
		}
	}
}

func isHeld(c RelayCounts) bool { return c.Held > 0 }

func TestRelayPassesOn(t *testing.T) {
	r, to := newRelayed(t, Patience)
	c := dial(t, r)
	for range 3 {
		c.say(t, "hello\n")
		to.gets(t, "hello\n")
		c.hear(t, "got hello\n")
	}
	long := strings.Repeat("x", 1<<20) + "\n"
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c, long)
		sent <- err
	}()
	c.hear(t, "got "+long)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.ends(t, io.EOF)
}

func TestRelayHolds(t *testing.T) {
	r, to := newRelayed(t, Patience)
	first := dial(t, r)
	first.say(t, "a\n")
	first.hear(t, "got a\n")
	to.gets(t, "a\n")
	release := r.Hold(Requests)
	first.say(t, "late\n")
	until(t, r, isHeld)
	second := dial(t, r) // overtakes
	second.say(t, "early\n")
	to.gets(t, "early\n")
	second.hear(t, "got early\n")
	to.gotNothing(t)
	release()
	to.gets(t, "late\n")
	first.hear(t, "got late\n")

	release = r.Hold(Answers)
	second.say(t, "b\n")
	to.gets(t, "b\n")
	until(t, r, func(c RelayCounts) bool { return c.Held == 2 })
	release()
	second.hear(t, "got b\n")
}

// TestRelayParts: nothing comes through, on new connections neither, until it heals.
func TestRelayParts(t *testing.T) {
	r, to := newRelayed(t, Patience)
	first := dial(t, r)
	first.say(t, "a\n")
	first.hear(t, "got a\n")
	to.gets(t, "a\n")
	heal := r.Part(Requests)
	second := dial(t, r)
	first.say(t, "b\n")
	until(t, r, func(c RelayCounts) bool { return c.Held == 1 })
	second.say(t, "b\n")
	until(t, r, func(c RelayCounts) bool { return c.Held == 2 })
	to.gotNothing(t)
	heal()
	first.hear(t, "got b\n")
	second.hear(t, "got b\n")

	heal = r.Part(Answers) // what is asked is done, and nobody is told
	third := dial(t, r)
	third.say(t, "c\n")
	to.gets(t, "b\n")
	to.gets(t, "b\n")
	to.gets(t, "c\n")
	until(t, r, func(c RelayCounts) bool { return c.Held == 3 })
	heal()
	third.hear(t, "got c\n")
	third.say(t, "d\n")
	third.hear(t, "got d\n")
}

// TestRelayIsLate: what was sent is delivered although its sender saw the connection fail, or has gone.
func TestRelayIsLate(t *testing.T) {
	for name, leave := range map[string]func(*Relay, *dialled){
		"cut":  func(r *Relay, _ *dialled) { r.Abandon() },
		"left": func(r *Relay, c *dialled) { c.Close(); r.Orphan() },
	} {
		t.Run(name, func(t *testing.T) {
			r, to := newRelayed(t, Patience)
			c := dial(t, r)
			c.say(t, "a\n")
			c.hear(t, "got a\n")
			to.gets(t, "a\n")
			release := r.Hold(Requests)
			c.say(t, "late\n")
			until(t, r, isHeld)
			leave(r, c)
			if name == "cut" {
				c.ends(t, syscall.ECONNRESET)
			}
			to.gotNothing(t)
			release()
			to.gets(t, "late\n")
			if got := r.Stats().Late; got != 1 {
				t.Errorf("%d pieces were late, want 1", got)
			}
		})
	}
}

func TestRelayIsNeverTooLate(t *testing.T) {
	r, to := newRelayed(t, time.Millisecond)
	c := dial(t, r)
	until(t, r, func(RelayCounts) bool { return r.Connections() == 1 })
	release := r.Hold(Requests)
	c.say(t, "too late\n")
	until(t, r, isHeld)
	time.Sleep(2 * time.Millisecond)
	release()
	c.ends(t, syscall.ECONNRESET)
	to.gotNothing(t)
}

func TestRelayCuts(t *testing.T) {
	for rst, want := range map[bool]error{true: syscall.ECONNRESET, false: io.EOF} {
		r, to := newRelayed(t, Patience)
		c := dial(t, r)
		c.say(t, "a\n")
		to.gets(t, "a\n")
		c.hear(t, "got a\n")
		r.Cut(rst)
		c.ends(t, want)
		if got := r.Stats().Cut; got != 1 {
			t.Errorf("%d connections were cut, want 1", got)
		}
	}
}

func TestRelayDropsAnswers(t *testing.T) {
	r, to := newRelayed(t, Patience)
	r.DropAnswers(1)
	c := dial(t, r)
	c.say(t, "a\n")
	to.gets(t, "a\n")
	c.ends(t, syscall.ECONNRESET)
	c = dial(t, r)
	c.say(t, "b\n")
	c.hear(t, "got b\n")
}

func TestRelayDelays(t *testing.T) {
	r, to := newRelayed(t, Patience)
	const delay = 50 * time.Millisecond
	r.Slow(Requests, delay)
	start := time.Now()
	c := dial(t, r)
	c.say(t, "a\n")
	to.gets(t, "a\n")
	c.hear(t, "got a\n")
	if took := time.Since(start); took < delay {
		t.Errorf("it took %v", took)
	}
	if got := r.Stats(); got.Delayed == 0 || got.Slowest < delay {
		t.Errorf("%+v", got)
	}
}
