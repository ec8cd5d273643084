// Package redlock takes a lock on the majority of several Redis servers that know nothing of each other, as Redis's page on distributed locks
// describes it (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), and adds what that algorithm lacks: a fencing token.
//
//	redlock://[[user]:password@]host1[:6379],host2[:6379],host3[:6379]/name[?db=N][&tls=true][&ca=FILE][&cert=FILE&key=FILE]
//
// Everybody who wants the lock must name the same servers. On each of them there is
//
//	name            while somebody has the lock there: "TOKEN ID SINCE HOLDER"; runs out with its TTL
//	{name}:token    the counter of that server. It is for ever, and is not to be deleted
//
// # The protocol
//
// A try to get the lock has an id of its own.
//
//   - Lock: every server is asked to set name, if it is not set, and tells its counter in the same script. With fewer than a majority of locks the
//     try is over. Else its token is 1 and the highest counter that it was told.
//   - Raise: every server that gave its lock is asked to set the counter to the token, which it does if the lock is still that of this id and the
//     counter is lower. With a majority of that the lock is ours.
//
// What ends without success is taken back. Nothing is sent twice, and what was not answered counts as not done.
//
// # Why tokens are different, and grow
//
// The counters alone see to it. Two majorities have a server in common, and that one raises its counter to a number once, and never down. So no two
// get the same token; and who begins to raise after another has got his gets a higher one, or none. What the counters are read for is only to
// propose a number that has a chance.
//
// The lock is asked for in the raise so that somebody who has lost it on the way, and does not know, cannot overtake the one who has it now: the
// two meet in a server, where the later lock was told what the earlier one had raised.
//
// A renewal asks each server whether the lock is still ours there, and its counter not above our token. There is no majority for that once somebody has
// got a higher token, even if a message of ours that was long on its way has set a lock of ours anew.
//
// No clock is in any of this; locks may run out when they like. docs/model/redlock.pml is the model of it, with the ways to get it wrong.
//
// # What it rests on
//
// Counters that stay: each server must sync its append-only file with every write, and one that is replaced must get the counters of a majority
// before it is asked. A majority that has forgotten what it answered gives the same tokens again. See [Service.Check].
package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/resp"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/internal/node"
)

// A Service is one lock of several servers. It implements [locks.Service] and [locks.Checker].
type Service struct {
	nodes    []asker
	majority int
	keys     []string // as the scripts have them
}

// An asker is one server: a [resp.Client].
type asker interface {
	Do(ctx context.Context, command ...string) (any, error)
	Close() error
}

var (
	_ locks.Service = (*Service)(nil)
	_ locks.Checker = (*Service)(nil)
)

// Open makes a client of the lock that a URL names; see the package's words for its form. It connects with the first call.
func Open(url string) (*Service, error) {
	servers, name, err := node.Parse(url, "redlock", false)
	if err == nil {
		err = enough(servers)
	}
	if err != nil {
		return nil, fmt.Errorf("the URL of the lock on several Redis servers: %w", err)
	}
	var nodes []asker
	for _, o := range servers {
		nodes = append(nodes, resp.New(o))
	}
	return newService(nodes, name), nil
}

func newService(nodes []asker, name string) *Service {
	return &Service{nodes: nodes, majority: len(nodes)/2 + 1, keys: []string{name, "{" + name + "}:token"}}
}

func enough(servers []resp.Options) error {
	seen := make(map[string]bool)
	for _, o := range servers {
		if seen[o.Address] {
			return fmt.Errorf("it names %s twice", o.Address)
		}
		seen[o.Address] = true
	}
	if len(servers) < 3 {
		return errors.New("a majority that outlives a server takes three servers or more; a lock in one server is redis://")
	}
	return nil
}

// Close implements [locks.Service].
func (s *Service) Close() error {
	var all []error
	for _, n := range s.nodes {
		all = append(all, n.Close())
	}
	return errors.Join(all...)
}

// Check implements [locks.Checker].
func (s *Service) Check(ctx context.Context) (found []string, _ error) {
	for _, n := range s.nodes {
		client, ok := n.(*resp.Client)
		if !ok {
			continue
		}
		of, err := node.Check(ctx, client)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			of = []string{fmt.Sprintf("redis at %s cannot be asked: %v", client.Address(), err)}
		}
		found = append(found, of...)
	}
	return found, nil
}

// An answer is one server's: what its script returned, or why there is nothing. The zero answer is that of one who was not asked.
type answer struct {
	texts []string
	err   error
	asked bool
}

func (a answer) yes() bool { return a.asked && a.err == nil && a.texts[0] == "1" }
func (a answer) no() bool  { return a.asked && a.err == nil && a.texts[0] != "1" }

// maybe says that the server may have done it, or may do it still.
func (a answer) maybe() bool { return a.yes() || a.asked && a.err != nil && !node.Refused(a.err) }

// each asks all servers of which is true, at once, and waits for all of them, for so long.
func (s *Service) each(ctx context.Context, within time.Duration, which func(i int) bool, script string, n int, args ...string) []answer {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	command := append(append([]string{"EVAL", script, "2"}, s.keys...), args...)
	answers := make([]answer, len(s.nodes))
	var tasks sync.WaitGroup
	for i, one := range s.nodes {
		if which(i) {
			tasks.Go(func() { answers[i] = ask(ctx, one, n, command) })
		}
	}
	tasks.Wait()
	return answers
}

func ask(ctx context.Context, n asker, texts int, command []string) answer {
	a := answer{asked: true}
	value, err := n.Do(ctx, command...)
	if err != nil {
		a.err = node.Explain(err)
		return a
	}
	a.texts, a.err = node.Texts(value, texts)
	return a
}

func every(int) bool { return true }

func count(answers []answer, what func(answer) bool) (n int) {
	for _, a := range answers {
		if what(a) {
			n++
		}
	}
	return n
}

// trouble is what went wrong at servers that were asked; nil if nothing did.
func trouble(answers []answer) error {
	var all []error
	for _, a := range answers {
		if a.err != nil {
			all = append(all, a.err)
		}
	}
	return errors.Join(all...)
}

// patience is how long one server is waited for. It is short beside the TTL: a server that does not answer must not cost the lock.
func patience(ttl time.Duration) time.Duration {
	return min(max(ttl/5, 50*time.Millisecond), time.Second)
}
