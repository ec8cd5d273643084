// Package zookeeper takes locks of ZooKeeper, and hands their holders fencing tokens. The lock is the queue that Apache Curator's
// InterProcessMutex, kazoo's Lock and ZooKeeper's own recipe stand in: each contender makes a sequential ephemeral node below the lock's
// node, and has the lock when no node with a lower sequence number is left. Holders of any of them exclude each other.
//
// # The token
//
// The token is the czxid of the contender's node: the number of the transaction that made it. ZooKeeper numbers all the transactions of an
// ensemble in one ascending row (an epoch in the upper 32 bits, a counter in the lower ones), so two nodes never have the same one, whatever
// is deleted in between. And it grows from holder to holder, though it is given when the queue is entered and not when the lock is won:
//
// Let A and B hold the lock, B after A. If B's node were the older one, it would have had the lower sequence number: sequence numbers are
// given by the transactions that make the nodes, in their order, as long as the lock's node lives. A, when it won, saw no lower node in a
// list that was at least as new as its own node, as every session sees its own writes. So B's node was gone by then, and what is gone does not
// come back: what is made later is younger. But B has written to its node after it had won, and that write went through the leader behind
// A's. So B's node is the younger one, and its czxid higher. (If the lock's node was deleted in between, all
// nodes below it were gone before, and any later one is younger.)
//
// The write behind the list is part of the argument: lists may come from a server that lags behind, writes do not.
//
// What must not be used instead: the sequence number in the node's name, and the cversion of the lock's node, which it is made from. Both
// begin anew when the lock's node is deleted, and ZooKeeper does that by itself where Curator has made it, for Curator makes containers,
// which are deleted when they have been empty for a while. A token of theirs would then be lower than one that was given out before.
//
// # What keeps a hold
//
// Each hold is a session of its own, whose timeout is the hold's TTL. While it is connected, the library keeps the session alive by itself,
// so it is ended here when [locks.Hold.Renew] has not succeeded for a TTL. A renewal writes to the node: as long as the node is there, its session was
// not over, and nobody else can have had the lock. A session that expires takes its node with it, in the same transaction.
//
// A server tells the leader only about every half tick (tickTime, 2 s by default) whom it has heard of. If it crashes in between, a session
// may end that much earlier than its TTL after the last renewal. The tenth of the TTL by which package locks gives a hold up earlier covers
// that from a TTL of 10 s on; below it, or beyond it, the fence does.
//
// # What takes tokens back
//
// A new ensemble, or one that was restored from an older snapshot, counts anew. There is nothing by which a client could tell.
package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fenceproxy/fenceproxy/internal/trust"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A lock is one of an ensemble.
type lock struct {
	servers  []string // host:port
	path     string   // of the lock's node; it begins with / and does not end with one
	user     string   // "name:password", "" for nobody
	security *tls.Config

	mu       sync.Mutex // guards the rest
	sessions map[*session]bool
	closed   bool
}

// Open returns the lock that a URL names, and does not connect yet:
//
//	zookeeper://[user:password@]host:port[,host:port…]/path[?tls=true&ca=FILE&cert=FILE&key=FILE]
//
// The path is that of the lock's node; it is made where it is missing, and must belong to this lock alone. With a user, the digest
// scheme is used, and what is made belongs to that user; without one, anybody may change it.
func Open(rawURL string) (locks.Service, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("the URL of a ZooKeeper lock cannot be read; it is zookeeper://host:port,host:port/path") // its text may have a password
	}
	l := &lock{path: u.Path, sessions: make(map[*session]bool)}
	if err := l.parse(u); err != nil {
		return nil, fmt.Errorf("the lock %s: %w", u.Redacted(), err)
	}
	return l, nil
}

func (l *lock) parse(u *url.URL) error {
	if u.Scheme != "zookeeper" || u.Fragment != "" {
		return errors.New("the URL of a ZooKeeper lock is zookeeper://host:port,host:port/path")
	}
	for server := range strings.SplitSeq(u.Host, ",") {
		host, port, err := net.SplitHostPort(server)
		if err != nil || host == "" || port == "" {
			return fmt.Errorf("%q is no server: each is host:port, and the port is most often 2181", server)
		}
		l.servers = append(l.servers, server)
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(l.path, "/"), "/") {
		if part == "" || part == "." || part == ".." {
			return errors.New("behind the servers must stand the path of the lock's node, as /locks/compactor, without a slash at its end")
		}
	}
	if u.User != nil {
		password, ok := u.User.Password()
		if !ok || u.User.Username() == "" {
			return errors.New("a user is given as user:password@")
		}
		l.user = u.User.Username() + ":" + password
	}
	return l.secure(u.Query())
}

func (l *lock) secure(q url.Values) (err error) {
	for name := range q {
		switch name {
		case "tls", "ca", "cert", "key":
		default:
			return fmt.Errorf("?%s= is not known: there are tls, ca, cert and key", name)
		}
	}
	switch {
	case q.Get("tls") == "true":
		l.security, err = trust.Load(q.Get("ca"), q.Get("cert"), q.Get("key"))
		return err
	case len(q) > 0:
		return errors.New("ca, cert and key are for TLS: say tls=true")
	}
	return nil
}

func (l *lock) acl() []zk.ACL {
	if l.user != "" {
		return zk.AuthACL(zk.PermAll)
	}
	return zk.WorldACL(zk.PermAll)
}

// dial connects to a server, which is looked up anew each time: its address may have changed.
func (l *lock) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if l.security == nil {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return (&tls.Dialer{Config: l.security}).DialContext(ctx, network, address)
}

// Close drops all connections without a word: what was not released runs out.
func (l *lock) Close() error {
	l.mu.Lock()
	l.closed = true
	var open []*session
	for s := range l.sessions {
		open = append(open, s)
	}
	l.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range open {
		all.Go(func() { s.end(errClosed) })
	}
	all.Wait()
	return nil
}

// enter remembers a session for Close.
func (l *lock) enter(s *session) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	l.sessions[s] = true
	return nil
}

func (l *lock) leave(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, s)
}
