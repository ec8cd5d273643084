// Package resp asks a Redis server: the Redis serialization protocol, version 2, over connections that are kept. It sends nothing twice, gives
// a call up when its context ends, whatever the server does, and writes no log.
package resp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// CallTime is how long one call may take where its context says nothing less.
const CallTime = 5 * time.Second

// After checkAfter without use a connection is asked whether it still stands, before anything that counts is sent over it.
const checkAfter = 100 * time.Millisecond

// Options say which server, and who asks.
type Options struct {
	Address        string      // host:port
	User, Password string      // without a user it is the password of the user "default"; both empty: nobody is asked
	DB             int         // which of its databases
	TLS            *tls.Config // nil: without
}

// An Error is what a server answers instead of doing what it was told: it was not done.
type Error string

func (e Error) Error() string { return string(e) }

// A Client is one server. Its methods may be called from many goroutines at once.
type Client struct {
	options Options

	mu     sync.Mutex // guards the rest
	idle   []*conn
	all    map[*conn]bool
	closed bool
}

// New connects with the first call.
func New(o Options) *Client { return &Client{options: o, all: make(map[*conn]bool)} }

// Address is the server's.
func (c *Client) Address() string { return c.options.Address }

// Close ends all connections, and with them what is under way.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.all {
		_ = conn.net.Close()
	}
	c.all, c.idle = nil, nil
	return nil
}

// Do sends one command and returns the answer: a string, an int64, nil, or a []any of these. An [Error] of the server says that it was not done.
// After any other error it may have been done, or may still be. Where ctx has ended the error wraps its cause.
func (c *Client) Do(ctx context.Context, command ...string) (any, error) {
	answer, err := c.do(ctx, command)
	switch refused := Error(""); {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil && !errors.As(err, &refused):
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("redis at %s: %w", c.options.Address, err)
}

func (c *Client) do(ctx context.Context, command []string) (any, error) {
	conn, err := c.take(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := conn.call(ctx, command)
	c.put(conn)
	return answer, err
}

// take is a connection that stands.
func (c *Client) take(ctx context.Context) (*conn, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, net.ErrClosed
		}
		if len(c.idle) == 0 {
			c.mu.Unlock()
			return c.dial(ctx)
		}
		conn := c.idle[len(c.idle)-1]
		c.idle = c.idle[:len(c.idle)-1]
		c.mu.Unlock()
		if time.Since(conn.used) < checkAfter {
			return conn, nil
		}
		if _, err := conn.call(ctx, []string{"PING"}); err == nil {
			return conn, nil
		} else if ctx.Err() != nil {
			c.drop(conn)
			return nil, err
		}
		c.drop(conn)
	}
}

// put keeps a connection, if it can be used again.
func (c *Client) put(conn *conn) {
	if conn.broken {
		c.drop(conn)
		return
	}
	conn.used = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.idle = append(c.idle, conn)
	}
}

func (c *Client) drop(conn *conn) {
	_ = conn.net.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, conn)
}

// dial makes a connection that the server has let in.
func (c *Client) dial(ctx context.Context) (*conn, error) {
	call, cancel := context.WithTimeout(ctx, CallTime)
	defer cancel()
	var dialer interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	} = &net.Dialer{}
	if c.options.TLS != nil {
		dialer = &tls.Dialer{Config: c.options.TLS}
	}
	n, err := dialer.DialContext(call, "tcp", c.options.Address)
	if err != nil {
		return nil, err
	}
	conn := newConn(n)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		_ = n.Close()
		return nil, net.ErrClosed
	}
	c.all[conn] = true
	c.mu.Unlock()
	for _, command := range c.greeting() {
		if _, err := conn.call(call, command); err != nil {
			c.drop(conn)
			return nil, err
		}
	}
	return conn, nil
}

func (c *Client) greeting() (commands [][]string) {
	switch o := c.options; {
	case o.User != "":
		commands = append(commands, []string{"AUTH", o.User, o.Password})
	case o.Password != "":
		commands = append(commands, []string{"AUTH", o.Password})
	}
	if c.options.DB != 0 {
		commands = append(commands, []string{"SELECT", strconv.Itoa(c.options.DB)})
	}
	return commands
}
