package zookeeper

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// Acquire queues up, and waits for the node before ours to go. The place in the queue goes with the session, and that with Acquire's error.
func (l *lock) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if r.TTL < time.Millisecond || r.TTL > 24*time.Hour {
		return nil, fmt.Errorf("the lock %s: a TTL of %s cannot be a session's timeout; it must be between 1ms and 24h", l.path, r.TTL)
	}
	s, err := l.open(r.TTL)
	if err != nil {
		return nil, fmt.Errorf("the lock %s: %w", l.path, err)
	}
	h, err := s.acquire(ctx, r)
	if err == nil {
		return h, nil
	}
	s.end(errReleased)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("the lock %s: %w", l.path, err)
}

func (s *session) acquire(ctx context.Context, r locks.Request) (*hold, error) {
	if s.lock.user != "" {
		if err := do(ctx, s, func(c *zk.Conn) error { return c.AddAuth("digest", []byte(s.lock.user)) }); err != nil {
			return nil, err
		}
	}
	q := &queue{session: s, request: r, prefix: protected()}
	node, err := q.wait(ctx)
	if err != nil {
		return nil, err
	}
	h := &hold{session: s, node: s.lock.path + "/" + node, data: r.Holder + " " + time.Now().UTC().Format(time.RFC3339)}
	// This write is what the order of tokens stands on; see the package's comment.
	stat, err := ask(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(h.node, []byte(h.data), -1) })
	if err != nil {
		return nil, fmt.Errorf("the lock was won, but its node could not be written to: %w", err)
	}
	h.token = tokens.Token(stat.Czxid)
	s.keep()
	return h, nil
}

// protected is what our node's name begins with: Curator's form. By it we find the node, though the answer to its creation was lost.
func protected() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("_c_%x-%x-%x-%x-%x-lock-", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// A queue is a place in a lock's queue, or on the way to one.
type queue struct {
	session *session
	request locks.Request
	prefix  string // of our node's name
	told    string // the node of whom Waiting was told
}

// wait queues up, and returns the name of our node once there is none before it. What goes wrong with the connection is tried again, for as
// long as the session can be alive.
func (q *queue) wait(ctx context.Context) (string, error) {
	s := q.session
	var (
		watched string          // the node before ours
		changed <-chan zk.Event // it is gone, or its holder has renewed
	)
	for {
		p, err := q.look(ctx)
		if err == nil {
			err = s.short()
		}
		if err == nil && p.before == "" {
			return p.mine, nil
		}
		if err == nil && p.before != watched {
			if changed, err = q.watch(ctx, p.before); err == nil {
				watched = p.before
			}
		}
		pause := s.ttl / 3 // nobody would tell us that our own node is gone, or that no server is left
		switch {
		case errors.Is(err, zk.ErrNoNode): // the one before has gone meanwhile
			continue
		case passing(err) && s.heardOf():
			pause = s.ttl / 10
		case err != nil:
			return "", err
		}
		timer := time.NewTimer(pause)
		select {
		case <-changed:
			watched, changed = "", nil
		case <-timer.C:
		case <-ctx.Done():
		case <-s.over:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
	}
}

// look finds our place, and makes our node where there is none: that of the answer that was lost, or that somebody has deleted.
func (q *queue) look(ctx context.Context) (place, error) {
	for range 2 {
		all, err := ask(ctx, q.session, func(c *zk.Conn) ([]string, error) {
			all, _, err := c.Children(q.session.lock.path)
			return all, err
		})
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return place{}, err
		}
		p, err := find(all, q.prefix)
		if err != nil {
			return place{}, err
		}
		if p.mine != "" {
			q.tell(ctx, p)
			return p, nil
		}
		if err := q.join(ctx); err != nil {
			return place{}, err
		}
	}
	return place{}, errors.New("our place in the queue was deleted as soon as it was made")
}

// join makes our node, and the nodes above it where they are missing.
func (q *queue) join(ctx context.Context) error {
	s := q.session
	create := func(path, data string, flags int32) error {
		return do(ctx, s, func(c *zk.Conn) error { _, err := c.Create(path, []byte(data), flags, s.lock.acl()); return err })
	}
	mine := s.lock.path + "/" + q.prefix
	err := create(mine, q.request.Holder, zk.FlagEphemeral|zk.FlagSequence)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	for i := range len(s.lock.path) + 1 {
		if i == 0 || i < len(s.lock.path) && s.lock.path[i] != '/' {
			continue
		}
		above := s.lock.path[:i]
		// Asked for first: to make what is there already may be forbidden.
		there, err := ask(ctx, s, func(c *zk.Conn) (bool, error) { there, _, err := c.Exists(above); return there, err })
		if err == nil && !there {
			err = create(above, "", zk.FlagPersistent) // no container: those are deleted when they are empty, and their sequence numbers begin anew
		}
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("%s: %w", above, err)
		}
	}
	return create(mine, q.request.Holder, zk.FlagEphemeral|zk.FlagSequence)
}

// watch is told when a node is gone, or written to.
func (q *queue) watch(ctx context.Context, node string) (<-chan zk.Event, error) {
	return ask(ctx, q.session, func(c *zk.Conn) (<-chan zk.Event, error) {
		_, _, changed, err := c.GetW(q.session.lock.path + "/" + node) // not ExistsW, which leaves a watch behind where there is none
		return changed, err
	})
}

// tell tells who has the lock, once for each holder. That the node of the first in the queue cannot be read is no reason not to wait.
func (q *queue) tell(ctx context.Context, p place) {
	if q.request.Waiting == nil || p.before == "" || p.first == q.told {
		return
	}
	var data []byte
	stat, err := ask(ctx, q.session, func(c *zk.Conn) (stat *zk.Stat, err error) {
		data, stat, err = c.Get(q.session.lock.path + "/" + p.first)
		return stat, err
	})
	if err != nil {
		return
	}
	q.told = p.first
	o := locks.Other{Token: tokens.Token(stat.Czxid)}
	holder, since, _ := strings.Cut(string(data), " ")
	if o.Holder, err = tokens.ParseHolder(holder); err == nil { // other clients write what they like
		o.Since, _ = time.Parse(time.RFC3339, since)
	}
	q.request.Waiting(o)
}

// A place is one in the queue.
type place struct {
	mine   string // our node's name, "" where it is not there
	before string // the one before it, "" where it is the first
	first  string
}

// find finds our place among the children of the lock's node. Where there is more than one node of ours, because the answer to a creation was
// lost and came too late to be seen, it is the first of them: the others go with the session.
func find(children []string, prefix string) (place, error) {
	order := make(map[string]string, len(children))
	for _, name := range children {
		sequence, ok := sequenceOf(name)
		if !ok {
			return place{}, fmt.Errorf("the node %q below it is none of a lock that is known here (Curator, kazoo, ZooKeeper's recipe): "+
				"a lock needs a node for itself alone", name)
		}
		order[name] = sequence
	}
	children = slices.SortedFunc(maps.Keys(order), func(a, b string) int { return cmp.Compare(order[a], order[b]) })
	var p place
	for _, name := range children {
		if p.first == "" {
			p.first = name
		}
		if strings.HasPrefix(name, prefix) {
			p.mine = name
			return p, nil
		}
		p.before = name
	}
	return p, nil
}

// sequenceOf is the number that ZooKeeper has put behind a contender's name: ten digits, behind "lock-" as Curator and ZooKeeper's recipe have
// it, or "lock__" as kazoo has. (Beyond 2^31 it would be negative, which is refused: the order would be another one.)
func sequenceOf(name string) (string, bool) {
	if len(name) < 15 {
		return "", false
	}
	begin, digits := name[:len(name)-10], name[len(name)-10:]
	for _, c := range digits {
		if c < '0' || c > '9' {
			return "", false
		}
	}
	return digits, strings.HasSuffix(begin, "lock-") || strings.HasSuffix(begin, "lock__")
}
