// Package redis takes a lock of one Redis server (version 5 or newer): the one that SET NAME … NX PX makes, and that the locks of many client
// libraries are; they and this one keep each other out.
//
//	redis://[[user]:password@]host[:6379]/name[?db=N][&tls=true][&ca=FILE][&cert=FILE&key=FILE]
//
// rediss:// is the same with TLS. A server of a Redis Cluster is asked for names of its own slots only, and Sentinel is not asked at all: the
// host is where the primary is to be found.
//
// # What is kept
//
//	name            while somebody has the lock: "TOKEN ID SINCE HOLDER"; runs out with its TTL
//	{name}:token    the counter. It is for ever, and is not to be deleted
//	{name}:released what the last holder had when it released
//
// # The token
//
// It is the counter, raised by INCR in the same script that sets the name. A script of Redis runs alone, and all of it; so no two holders get
// the same number, and who gets the lock later gets a higher one, for as long as the counter is not lost.
//
// It can be lost. A server without an append-only file that is synced with every write forgets, when it crashes, what it has answered: then the
// counter starts anew, or some numbers earlier. A replica that is promoted lacks what had not reached it. [Service.Check] says so of a
// server; against the loss itself a lock can do nothing. What stands behind the token can: who binds tokens to holders, as fenceproxy does,
// refuses the same number from another holder.
package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/resp"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/internal/node"
)

// A Service is one lock of a server. It implements [locks.Service] and [locks.Checker].
type Service struct {
	client *resp.Client
	keys   []string // as the scripts have them
}

var (
	_ locks.Service = (*Service)(nil)
	_ locks.Checker = (*Service)(nil)
)

// Open makes a client of the lock that a URL names; see the package's words for its form. It connects with the first call.
func Open(url string) (*Service, error) {
	scheme := "redis"
	if strings.HasPrefix(url, "rediss:") {
		scheme = "rediss"
	}
	servers, name, err := node.Parse(url, scheme, scheme == "rediss")
	if err == nil && len(servers) != 1 {
		err = errors.New("it names several hosts; a lock on the majority of several servers is redlock://")
	}
	if err != nil {
		return nil, fmt.Errorf("the URL of the lock in Redis: %w", err)
	}
	return &Service{client: resp.New(servers[0]), keys: []string{name, "{" + name + "}:token", "{" + name + "}:released"}}, nil
}

// Check implements [locks.Checker].
func (s *Service) Check(ctx context.Context) ([]string, error) { return node.Check(ctx, s.client) }

// Close implements [locks.Service].
func (s *Service) Close() error { return s.client.Close() }

// eval runs a script over the keys of the lock. Its answer is an array of n texts.
func (s *Service) eval(ctx context.Context, script string, n int, args ...string) ([]string, error) {
	command := append(append([]string{"EVAL", script, "3"}, s.keys...), args...)
	answer, err := s.client.Do(ctx, command...)
	if err != nil {
		return nil, node.Explain(err)
	}
	texts, err := node.Texts(answer, n)
	if err != nil {
		return nil, fmt.Errorf("redis at %s: %w", s.client.Address(), err)
	}
	return texts, nil
}

// detached is for what has to be done although ctx may have ended: a short time of its own.
func detached(ctx context.Context, ttl time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), min(ttl/3, 2*time.Second))
}
