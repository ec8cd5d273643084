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
	a, err := parse(url)
	if err != nil {
		return nil, err
	}
	return &Service{client: resp.New(a.server), keys: []string{a.name, "{" + a.name + "}:token", "{" + a.name + "}:released"}}, nil
}

// Close implements [locks.Service].
func (s *Service) Close() error { return s.client.Close() }

// eval runs a script over the keys of the lock. Its answer is an array of n texts.
func (s *Service) eval(ctx context.Context, script string, n int, args ...string) ([]string, error) {
	command := append(append([]string{"EVAL", script, "3"}, s.keys...), args...)
	answer, err := s.client.Do(ctx, command...)
	if err != nil {
		return nil, explain(err)
	}
	values, ok := answer.([]any)
	if !ok || len(values) != n {
		return nil, fmt.Errorf("redis at %s gave an answer that cannot be: %v", s.client.Address(), answer)
	}
	texts := make([]string, n)
	for i, v := range values {
		if texts[i], ok = v.(string); !ok {
			return nil, fmt.Errorf("redis at %s gave an answer that cannot be: %v", s.client.Address(), answer)
		}
	}
	return texts, nil
}

// detached is for what has to be done although ctx may have ended: a short time of its own.
func detached(ctx context.Context, ttl time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), min(ttl/3, 2*time.Second))
}

// refused says that the server has answered, and has done nothing.
func refused(err error) bool {
	e := resp.Error("")
	return errors.As(err, &e)
}

// passes says that the server has refused for now: it is starting, or busy.
func passes(err error) bool {
	e := resp.Error("")
	if !errors.As(err, &e) {
		return false
	}
	kind, _, _ := strings.Cut(string(e), " ")
	return kind == "LOADING" || kind == "BUSY" || kind == "TRYAGAIN" || kind == "CLUSTERDOWN"
}
