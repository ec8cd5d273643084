package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/internal/resp"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A lossy is a server behind a network that loses messages and answers, and delivers some messages long after they were given up.
type lossy struct {
	asker
	of   int            // one message in so many is lost, one answer, and one message is late
	late sync.WaitGroup // messages that are still on their way
}

var errLoss = errors.New("the network lost it")

func (l *lossy) Do(ctx context.Context, command ...string) (any, error) {
	switch rand.N(l.of) {
	case 0:
		return nil, errLoss
	case 1:
		_, _ = l.asker.Do(ctx, command...)
		return nil, errLoss
	case 2:
		l.late.Go(func() {
			time.Sleep(rand.N(500 * time.Millisecond))
			call, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, _ = l.asker.Do(call, command...)
		})
		return nil, errLoss
	}
	return l.asker.Do(ctx, command...)
}

func (l *lossy) Close() error {
	l.late.Wait()
	return l.asker.Close()
}

// A ledger holds holders to what the package promises, without a clock.
type ledger struct {
	t testing.TB

	mu      sync.Mutex // guards the rest
	given   map[tokens.Token]string
	highest tokens.Token // of those that were given
	renewed int
	lost    int
}

func (l *ledger) now() tokens.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.highest
}

// acquired is told of a token, and what the highest one was when its holder began to ask.
func (l *ledger) acquired(holder string, token, before tokens.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, twice := l.given[token]; twice {
		l.t.Errorf("%d was given to %s, and to %s", token, other, holder)
	}
	if token <= before {
		l.t.Errorf("%s began after somebody had got %d, and got %d", holder, before, token)
	}
	l.given[token] = holder
	l.highest = max(l.highest, token)
}

func (l *ledger) called(token, before tokens.Token, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil && before > token:
		l.t.Errorf("%d was renewed after somebody had got %d", token, before)
	case err == nil:
		l.renewed++
	case errors.Is(err, locks.ErrLost):
		l.lost++
	}
}

// run has so many holders live until ctx ends.
func (l *ledger) run(ctx context.Context, holders int, network func() []asker) (wait func()) {
	var tasks sync.WaitGroup
	for i := range holders {
		s := newService(network(), "jobs/7")
		tasks.Go(func() {
			defer s.Close()
			for n := 0; ctx.Err() == nil; n++ {
				l.live(ctx, s, fmt.Sprint("holder", i, ".", n))
			}
		})
	}
	return tasks.Wait
}

func (l *ledger) say(tokens int, more string) {
	l.t.Logf("%d tokens up to %d; %d renewals, %d losses seen%s", len(l.given), l.highest, l.renewed, l.lost, more)
	if len(l.given) < tokens || l.renewed < tokens/10 || l.lost < tokens/20 {
		l.t.Error("too little has happened for this to show anything")
	}
}

// TestChaos: servers crash and come back, messages are lost and late, holders are paused for longer than they may be, and locks run out: tokens are
// given once, and grow, and no renewal says yes to somebody who was overtaken.
func TestChaos(t *testing.T) {
	all := start(t, servers.RedisOptions{Durable: true})
	l := &ledger{t: t, given: make(map[tokens.Token]string)}
	lasts := 5 * time.Second
	if os.Getenv("FENCEPROXY_LONG") != "" {
		lasts = 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), lasts)
	defer cancel()
	wait := l.run(ctx, 4, func() (nodes []asker) {
		for _, r := range all {
			nodes = append(nodes, &lossy{asker: resp.New(resp.Options{Address: r.Address}), of: 40})
		}
		return nodes
	})
	crashes := 0
	for ctx.Err() == nil {
		time.Sleep(rand.N(time.Second))
		r := all[rand.N(len(all))]
		r.Kill()
		time.Sleep(rand.N(50 * time.Millisecond))
		r.Start()
		crashes++
	}
	wait()
	l.say(10, fmt.Sprintf(", %d crashes of servers", crashes))
}

// A pretended server does what the scripts do, in virtual time. It keeps what it has over its crashes.
type pretended struct {
	mu      sync.Mutex // guards the rest
	value   string     // "" where nobody has the lock
	until   time.Time
	counter int64
	down    time.Time // until when it is
}

func (p *pretended) Close() error { return nil }

func (p *pretended) Do(ctx context.Context, command ...string) (any, error) {
	select { // each way takes its time
	case <-time.After(rand.N(20 * time.Millisecond)):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	answer, err := p.do(command[1], command[5:])
	select {
	case <-time.After(rand.N(20 * time.Millisecond)):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return answer, err
}

func (p *pretended) do(script string, args []string) (any, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.down) {
		return nil, errLoss
	}
	if !now.Before(p.until) {
		p.value = ""
	}
	mine := strings.Contains(p.value, " "+args[0]+" ")
	number := func(i int) int64 { n, _ := strconv.ParseInt(args[i], 10, 64); return n }
	yes := false
	switch script {
	case lockScript:
		if p.value != "" {
			return []any{"0", p.value}, nil
		}
		p.value, p.until = "0 "+args[0]+" "+args[3]+" "+args[1], now.Add(time.Duration(number(2))*time.Millisecond)
		return []any{"1", fmt.Sprint(p.counter)}, nil
	case raiseScript:
		if yes = mine && p.counter < number(1); yes {
			p.counter, p.value = number(1), args[1]+p.value[1:]
		}
	case renewScript:
		if yes = mine && p.counter <= number(1); yes {
			p.until = now.Add(time.Duration(number(2)) * time.Millisecond)
		}
	case releaseScript:
		if yes = mine; yes {
			p.value = ""
		}
	}
	if yes {
		return []any{"1"}, nil
	}
	return []any{"0"}, nil
}

// TestSimulation is TestChaos over five servers in virtual time, of which there is plenty.
func TestSimulation(t *testing.T) {
	lasts := 5 * time.Minute
	if os.Getenv("FENCEPROXY_LONG") != "" {
		lasts = time.Hour
	}
	synctest.Test(t, func(t *testing.T) {
		all := make([]*pretended, 5)
		for i := range all {
			all[i] = &pretended{}
		}
		l := &ledger{t: t, given: make(map[tokens.Token]string)}
		ctx, cancel := context.WithTimeout(context.Background(), lasts)
		defer cancel()
		wait := l.run(ctx, 5, func() (nodes []asker) {
			for _, p := range all {
				nodes = append(nodes, &lossy{asker: p, of: 40})
			}
			return nodes
		})
		for ctx.Err() == nil {
			time.Sleep(rand.N(500 * time.Millisecond))
			p := all[rand.N(len(all))]
			p.mu.Lock()
			p.down = time.Now().Add(rand.N(500 * time.Millisecond))
			p.mu.Unlock()
		}
		wait()
		l.say(200, "")
	})
}

// live is one holder's life.
func (l *ledger) live(ctx context.Context, s *Service, name string) {
	before := l.now()
	call, cancel := context.WithTimeout(ctx, 2*time.Second)
	h, err := s.Acquire(call, locks.Request{Holder: name, TTL: shortest + rand.N(200*time.Millisecond)})
	cancel()
	if err != nil {
		return
	}
	l.acquired(name, h.Token(), before)
	for range rand.N(4) {
		time.Sleep(rand.N(150 * time.Millisecond)) // sometimes for too long
		before := l.now()
		l.called(h.Token(), before, h.Renew(ctx))
	}
	if rand.N(4) > 0 {
		_ = h.Release(ctx)
	}
}
