package resp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEncode: lengths are of bytes, and nothing in a word ends it.
func TestEncode(t *testing.T) {
	if got, want := string(encode([]string{"SET", "ä\r\n", ""})), "*3\r\n$3\r\nSET\r\n$4\r\nä\r\n\r\n$0\r\n\r\n"; got != want {
		t.Errorf("%q", got)
	}
}

func TestRead(t *testing.T) {
	for text, want := range map[string]any{
		"+OK\r\n":                        "OK",
		":34\r\n":                        int64(34),
		":9223372036854775807\r\n":       int64(9223372036854775807),
		"$-1\r\n":                        nil,
		"*-1\r\n":                        nil,
		"$0\r\n\r\n":                     "",
		"$4\r\na\r\nb\r\n":               "a\r\nb",
		"*0\r\n":                         []any{},
		"*3\r\n:1\r\n$1\r\nx\r\n*-1\r\n": []any{int64(1), "x", nil},
	} {
		got, err := newConn(pretend(text)).read(maxDepth)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %#v, %v", text, got, err)
		}
	}
	if _, err := newConn(pretend("-ERR no\r\n")).read(maxDepth); err != Error("ERR no") {
		t.Error(err)
	}
	// The one that follows an error in an array is not taken for the answer to the next command.
	c := newConn(pretend("*2\r\n-ERR no\r\n:1\r\n+next\r\n"))
	if _, err := c.read(maxDepth); err != Error("ERR no") {
		t.Error(err)
	}
	if next, err := c.read(maxDepth); next != "next" || err != nil {
		t.Error(next, err)
	}
}

// TestReadRefused: what is not of the protocol, or larger than anything that is asked for.
func TestReadRefused(t *testing.T) {
	for _, text := range []string{
		"\r\n", "\n", "x\r\n", "OK\n", ":\r\n", ":x\r\n", ":9223372036854775808\r\n", "$-2\r\n", "$1048577\r\n", "*1025\r\n", "$1\r\nxyz", "HTTP/1.1 400 Bad Request\r\n",
		strings.Repeat("*1\r\n", maxDepth+1) + ":1\r\n", "+" + strings.Repeat("x", 5000) + "\r\n",
	} {
		if v, err := newConn(pretend(text)).read(maxDepth); err != errAnswer {
			t.Errorf("%.40q: %v, %v", text, v, err)
		}
	}
	for _, text := range []string{"", "+OK", "$5\r\nab", "*2\r\n:1\r\n"} {
		if v, err := newConn(pretend(text)).read(maxDepth); err == nil || err == errAnswer {
			t.Errorf("%q: %v, %v", text, v, err)
		}
	}
}

// TestSaysNoArguments: what a server says of a command that it does not know has its arguments in it, and those of AUTH are secret.
func TestSaysNoArguments(t *testing.T) {
	for _, text := range []string{
		"-ERR unknown command 'AUTH', with args beginning with: 'hunter2' \r\n",  // Redis 7
		"-ERR unknown command `AUTH`, with args beginning with: `hunter2`, \r\n", // Redis 6
	} {
		_, err := newConn(pretend(text)).read(maxDepth)
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "AUTH") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("*3\r\n:1\r\n$1\r\nx\r\n*-1\r\n")
	f.Add("-ERR no\r\n")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = newConn(pretend(text)).read(maxDepth) })
}

// pretend is a connection over which a text comes.
func pretend(text string) net.Conn { return textConn{Reader: strings.NewReader(text)} }

type textConn struct {
	net.Conn
	io.Reader
}

func (c textConn) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// A server answers each command with a line of its own; "" is no answer, "hang up" the end of the connection.
type server struct {
	net.Listener
	answer func(command string) string
	tasks  sync.WaitGroup

	mu       sync.Mutex // guards the rest
	commands []string
	opened   []net.Conn
}

func start(t *testing.T, answer func(string) string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Listener: l, answer: answer}
	s.tasks.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.opened = append(s.opened, c)
			s.mu.Unlock()
			s.tasks.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); s.hangUp(); s.tasks.Wait() })
	return s
}

func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.opened {
		_ = c.Close()
	}
}

func (s *server) serve(c net.Conn) {
	defer c.Close()
	in := newConn(c)
	for {
		v, err := in.read(maxDepth)
		if err != nil {
			return
		}
		var words []string
		for _, w := range v.([]any) {
			words = append(words, w.(string))
		}
		command := strings.Join(words, " ")
		s.mu.Lock()
		s.commands = append(s.commands, command)
		s.mu.Unlock()
		answer := s.answer(command)
		if answer == "hang up" {
			return
		}
		_, _ = io.WriteString(c, answer)
	}
}

func (s *server) seen() (commands []string, connections int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.commands...), len(s.opened)
}

func open(t *testing.T, s *server, o Options) *Client {
	o.Address = s.Addr().String()
	c := New(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestGreeting: who asks says who he is, on every connection, and his password is in no error.
func TestGreeting(t *testing.T) {
	s := start(t, func(command string) string {
		if strings.HasPrefix(command, "AUTH a wrong") {
			return "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
		}
		return "+OK\r\n"
	})
	if _, err := open(t, s, Options{User: "a", Password: "right", DB: 3}).Do(t.Context(), "TIME"); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, s, Options{Password: "alone"}).Do(t.Context(), "TIME"); err != nil {
		t.Fatal(err)
	}
	_, err := open(t, s, Options{User: "a", Password: "wrong"}).Do(t.Context(), "TIME")
	if e := Error(""); !errors.As(err, &e) || !strings.HasPrefix(string(e), "WRONGPASS") || strings.Contains(err.Error(), "AUTH") {
		t.Error(err)
	}
	want := []string{"AUTH a right", "SELECT 3", "TIME", "AUTH alone", "TIME", "AUTH a wrong"}
	if got, _ := s.seen(); !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

// TestReused: connections are kept, also after the server has refused a command; one that has ended is not trusted with a command after a while.
func TestReused(t *testing.T) {
	s := start(t, func(command string) string {
		if command == "WRONG" {
			return "-ERR unknown command\r\n"
		}
		return ":1\r\n"
	})
	c := open(t, s, Options{})
	for _, command := range []string{"INCR", "WRONG", "INCR"} {
		_, _ = c.Do(t.Context(), command)
	}
	if got, n := s.seen(); n != 1 || len(got) != 3 {
		t.Errorf("%q over %d connections", got, n)
	}
	s.hangUp()
	c.idle[0].used = time.Now().Add(-checkAfter)
	if v, err := c.Do(t.Context(), "INCR"); v != int64(1) || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if got, n := s.seen(); n != 2 || len(got) != 4 {
		t.Errorf("%q over %d connections", got, n)
	}
}

// TestSentOnce: a command without an answer is not sent again, and the connection is given up.
func TestSentOnce(t *testing.T) {
	s := start(t, func(command string) string {
		if command == "DIE" {
			return "hang up"
		}
		return ":1\r\n"
	})
	c := open(t, s, Options{})
	if _, err := c.Do(t.Context(), "DIE"); err == nil || !strings.Contains(err.Error(), s.Addr().String()) {
		t.Error(err)
	}
	if _, err := c.Do(t.Context(), "INCR"); err != nil {
		t.Error(err)
	}
	if got, n := s.seen(); !reflect.DeepEqual(got, []string{"DIE", "INCR"}) || n != 2 {
		t.Errorf("%q over %d connections", got, n)
	}
}

// TestGivenUp: a call ends with its context, with the cause; the answer that comes late is nobody's.
func TestGivenUp(t *testing.T) {
	cause := errors.New("no longer wanted")
	asked := make(chan struct{}, 10)
	s := start(t, func(command string) string {
		asked <- struct{}{}
		if command == "SLOW" {
			return ""
		}
		return "+" + command + "\r\n"
	})
	c := open(t, s, Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-asked; cancel(cause) }()
	if _, err := c.Do(ctx, "SLOW"); !errors.Is(err, cause) {
		t.Error(err)
	}
	if _, err := c.Do(ctx, "LATER"); !errors.Is(err, cause) {
		t.Error(err)
	}
	if v, err := c.Do(t.Context(), "NEXT"); v != "NEXT" || err != nil {
		t.Error(v, err)
	}
	if got, n := s.seen(); !reflect.DeepEqual(got, []string{"SLOW", "NEXT"}) || n != 2 {
		t.Errorf("%q over %d connections", got, n)
	}
}

// TestClosed: Close ends what is under way, and nothing can be asked after it.
func TestClosed(t *testing.T) {
	asked := make(chan struct{}, 10)
	s := start(t, func(string) string { asked <- struct{}{}; return "" })
	c := open(t, s, Options{})
	go func() { <-asked; _ = c.Close() }()
	if _, err := c.Do(t.Context(), "SLOW"); err == nil {
		t.Error("it was answered")
	}
	if _, err := c.Do(t.Context(), "NEXT"); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestManyAtOnce: answers go to those who asked.
func TestManyAtOnce(t *testing.T) {
	s := start(t, func(command string) string { return "+" + command + "\r\n" })
	c := open(t, s, Options{})
	var tasks sync.WaitGroup
	for i := range 20 {
		tasks.Go(func() {
			for j := range 50 {
				command := fmt.Sprintf("C%d.%d", i, j)
				if v, err := c.Do(t.Context(), command); v != command || err != nil {
					t.Errorf("%s: %v, %v", command, v, err)
					return
				}
			}
		})
	}
	tasks.Wait()
}

func TestNotRedis(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = bufio.NewReader(c).ReadString('\n')
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
	}()
	c := New(Options{Address: l.Addr().String()})
	if _, err := c.Do(t.Context(), "PING"); !errors.Is(err, errAnswer) {
		t.Error(err)
	}
	_ = c.Close()
	<-done
	_ = l.Close()
}
