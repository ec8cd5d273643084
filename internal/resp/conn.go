package resp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// What an answer may be at most: what comes from outside is bounded. INFO is about 6 KiB.
const (
	maxBulk  = 1 << 20
	maxArray = 1 << 10
	maxDepth = 2
)

var errAnswer = errors.New("the answer is not of Redis's protocol; is it a Redis server that listens there?")

// A conn is one connection, of one goroutine at a time.
type conn struct {
	net    net.Conn
	in     *bufio.Reader
	used   time.Time // when it was put back last
	broken bool      // an answer may still be on its way: it cannot be used again
}

func newConn(n net.Conn) *conn { return &conn{net: n, in: bufio.NewReader(n)} }

// call sends a command and reads the answer.
func (c *conn) call(ctx context.Context, command []string) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.broken = true // until the answer is there
	if err := c.net.SetDeadline(time.Now().Add(CallTime)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.net.SetDeadline(time.Unix(1, 0)) })
	answer, err := c.exchange(command)
	kept := stop() // else the deadline may be set at any moment
	refused := Error("")
	if kept && (err == nil || errors.As(err, &refused)) {
		c.broken = false
	}
	return answer, err
}

func (c *conn) exchange(command []string) (any, error) {
	if _, err := c.net.Write(encode(command)); err != nil {
		return nil, err
	}
	answer, err := c.read(maxDepth)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errors.New("the connection ended before the answer came")
	}
	return answer, err
}

func encode(command []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(command))
	for _, word := range command {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(word), word)
	}
	return b
}

// read reads one value. See https://redis.io/docs/latest/develop/reference/protocol-spec/
func (c *conn) read(depth int) (any, error) {
	line, err := c.line()
	if err != nil {
		return nil, err
	}
	kind, text := line[0], line[1:]
	switch kind {
	case '+':
		return text, nil
	case '-':
		// Who does not know a command, such as an AUTH that was renamed, says its arguments: a password, or the id of a lock.
		text, _, _ = strings.Cut(text, ", with args")
		return nil, Error(text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return nil, errAnswer
	case kind == ':':
		return n, nil
	case n == -1 && (kind == '$' || kind == '*'):
		return nil, nil
	case kind == '$' && n >= 0 && n <= maxBulk:
		return c.bulk(int(n))
	case kind == '*' && n >= 0 && n <= maxArray && depth > 0:
		return c.array(int(n), depth-1)
	}
	return nil, errAnswer
}

// line is one of at least one character, without its end.
func (c *conn) line() (string, error) {
	line, err := c.in.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		return "", errAnswer
	}
	if err != nil {
		return "", err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return "", errAnswer
	}
	return string(line[:len(line)-2]), nil
}

func (c *conn) bulk(n int) (any, error) {
	text := make([]byte, n+2)
	if _, err := io.ReadFull(c.in, text); err != nil {
		return nil, err
	}
	if string(text[n:]) != "\r\n" {
		return nil, errAnswer
	}
	return string(text[:n]), nil
}

func (c *conn) array(n, depth int) (any, error) {
	all := make([]any, n)
	var refused error // in an element; what follows is still read
	for i := range all {
		v, err := c.read(depth)
		if e := Error(""); errors.As(err, &e) {
			refused, err = err, nil
		}
		if err != nil {
			return nil, err
		}
		all[i] = v
	}
	if refused != nil {
		return nil, refused
	}
	return all, nil
}
