package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A hold is the first node of the queue.
type hold struct {
	session *session
	node    string
	data    string // whose it is, and since when
	token   tokens.Token

	mu       sync.Mutex // held during a release; guards released
	released bool
}

func (h *hold) Token() tokens.Token { return h.token }

// TakenOver is always false: a node is gone in the same way when it was released and when its session has expired.
func (h *hold) TakenOver() bool { return false }

// Renew writes to the node, through the leader and a majority.
func (h *hold) Renew(ctx context.Context) error {
	stat, err := ask(ctx, h.session, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(h.node, []byte(h.data), -1) })
	if err == nil && tokens.Token(stat.Czxid) != h.token { // deleted, and the lock's node with it: else the name does not come again
		err = zk.ErrNoNode
	}
	if err == nil {
		h.session.keep()
		return nil
	}
	return h.failed("renew", err)
}

// Release deletes the node, and ends the session, by which the lock comes free even where the node could not be deleted.
func (h *hold) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return nil
	}
	err := do(ctx, h.session, func(c *zk.Conn) error { return c.Delete(h.node, -1) })
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		h.session.end(errUnanswered)
		return h.failed("release", err)
	}
	h.session.end(errReleased)
	if err != nil {
		return h.failed("release", err)
	}
	h.released = true
	return nil
}

func (h *hold) failed(what string, err error) error {
	why := h.session.reason()
	switch {
	case errors.Is(err, zk.ErrNoNode):
		err = errors.New("its node is gone: its session has expired, or somebody has deleted it")
	case why == nil || why == errUnanswered || !errors.Is(err, why): // not known to be over
		return fmt.Errorf("the lock %s: cannot %s it: %w", h.session.lock.path, what, err)
	}
	return fmt.Errorf("%w: the lock %s: %w", locks.ErrLost, h.session.lock.path, err)
}
