package s3

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// A line is a connection on which one request goes out piece by piece. The transport cannot do that: it keeps up to 64 KiB of what it
// was given, and what it has not sent when a body breaks off, it never sends.
type line struct {
	net.Conn
	in    *bufio.Reader
	out   *http.Request
	rest  []byte          // what was not sent yet
	early *reply          // an answer that came before the body was sent
	ctx   context.Context // for all of it
	end   func()
}

// begin sends the head of a signed request, and once the store says that it wants the body, all of that but its last held bytes. A
// store that does not say so in a second gets it, too.
func (p *prober) begin(ctx context.Context, out *http.Request, held int) (*line, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	out.Header.Set("Expect", "100-continue")
	var whole bytes.Buffer
	if err := out.Write(&whole); err != nil {
		return nil, err
	}
	head, body, _ := bytes.Cut(whole.Bytes(), []byte(emptyLine))
	head = whole.Bytes()[:len(head)+len(emptyLine)]
	l, err := p.dial(ctx, out)
	if err != nil {
		return nil, err
	}
	l.rest = body
	if err = l.send(head); err == nil {
		err = l.await()
	}
	if err == nil && l.early == nil {
		err = l.sendBut(held)
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("the store did not take a request: %w", err)
	}
	return l, nil
}

func (p *prober) dial(ctx context.Context, out *http.Request) (*line, error) {
	dial, port := p.transport.DialContext, ":80"
	if out.URL.Scheme == "https" {
		dial, port = p.transport.DialTLSContext, ":443"
	}
	address := out.URL.Host
	if out.URL.Port() == "" {
		address += port
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	c, err := dial(ctx, "tcp", address)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("the store cannot be reached: %w", err)
	}
	l := &line{Conn: c, in: bufio.NewReader(c), out: out, ctx: ctx}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	l.end = func() {
		stop()
		cancel()
	}
	return l, nil
}

func (l *line) send(b []byte) error {
	_, err := l.Write(b)
	return err
}

func (l *line) sendBut(held int) error {
	now := max(len(l.rest)-held, 0)
	err := l.send(l.rest[:now])
	l.rest = l.rest[now:]
	return err
}

// await waits for the store to say that it wants the body, or anything else.
func (l *line) await() error {
	if err := l.SetReadDeadline(time.Now().Add(continueTimeout)); err != nil {
		return err
	}
	_, err := l.in.Peek(1)
	if isTimeout(err) {
		return l.SetReadDeadline(time.Time{})
	}
	if err == nil {
		err = l.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return err
	}
	resp, err := http.ReadResponse(l.in, l.out)
	if err != nil || resp.StatusCode == http.StatusContinue {
		return err
	}
	r, err := readReply(resp)
	l.early = &r
	return err
}

// finish sends the rest and reads the answer.
func (l *line) finish() (reply, error) {
	defer l.close()
	if l.early != nil {
		return *l.early, nil
	}
	if err := l.send(l.rest); err != nil {
		return reply{}, fmt.Errorf("the store did not take a request: %w", err)
	}
	for {
		resp, err := http.ReadResponse(l.in, l.out)
		if err != nil {
			return reply{}, fmt.Errorf("the store did not answer: %w", err)
		}
		if resp.StatusCode >= 200 {
			return readReply(resp)
		}
	}
}

// cut ends the request where it is, with FIN, as a kernel does for a process that died. What the store says to it is read, lest the
// connection end with a reset, and does not count.
func (l *line) cut() {
	defer l.close()
	inner := l.Conn
	if c, ok := inner.(*conn); ok {
		inner = c.Conn
	}
	half, ok := inner.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if l.SetReadDeadline(time.Now().Add(continueTimeout)) == nil {
		_, _ = io.Copy(io.Discard, l.in)
	}
}

// late says that the time was over, and we hung up.
func (l *line) late() bool { return errors.Is(l.ctx.Err(), context.DeadlineExceeded) }

func (l *line) close() {
	l.end()
	_ = l.Conn.Close()
}
