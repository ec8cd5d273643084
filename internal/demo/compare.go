package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Compare is the story of one lock on five services: its holder is killed, and is paused, and what it writes late goes straight to a
// directory, and through fenceproxy. A service whose server is not on this machine is left out, and the table says so.
func Compare(ctx context.Context, o Options, ttl time.Duration) error {
	if ttl < 2*time.Second || ttl > 20*time.Second || ttl%time.Second != 0 {
		return fmt.Errorf("--ttl %s: it is from 2s to 20s, in whole seconds", ttl)
	}
	return Play(ctx, o, func(ctx context.Context, s *Stage) error {
		proxy, err := s.Proxy(ctx)
		if err != nil {
			return err
		}
		s.Title("One lock on five services: its holder is killed, and is paused")
		s.Text("On each service the same three rounds, with two real worker processes each: the holder of the lock is killed; is paused and writes late, "+
			"straight to a directory; is paused and writes late, through fenceproxy. The TTL is %s everywhere. The services run side by side.", ttl)
		s.print("\n")
		all := s.compare(ctx, proxy, ttl)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.print("\n")
		s.table(all)
		s.print("\n")
		s.footnotes(all, ttl)
		return s.judge(all)
	})
}

// judge fails if something that was played did not come out as it had to.
func (s *Stage) judge(all []*compared) error {
	var failed []error
	shown := 0
	for _, c := range all {
		if c.err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", c.name, c.err))
		} else if c.install == "" {
			shown++
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	s.Verdict(fmt.Sprintf("Shown on %d of %d: whichever lock it was, the late write won where nobody compared tokens, and was refused where the store did.", shown, len(all)))
	return nil
}

// A contender is a lock service of the comparison.
type contender struct {
	name, actor string
	needs       []string
	start       func(ctx context.Context, s *Stage, p *Proxy) (lock string, err error) // of the server; lock is the URL
}

var contenders = []contender{
	{"Redis", "redis", []string{"redis-server", "redis-cli"}, func(ctx context.Context, s *Stage, _ *Proxy) (string, error) {
		r, err := s.Redis(ctx)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("redis://127.0.0.1:%d/compare", r.Port), nil
	}},
	{"etcd", "etcd", []string{"etcd"}, func(ctx context.Context, s *Stage, _ *Proxy) (string, error) {
		e, err := s.Etcd(ctx)
		if err != nil {
			return "", err
		}
		return strings.Replace(e.Endpoint, "http://", "etcd://", 1) + "/compare", nil
	}},
	{"ZooKeeper", "zookeeper", []string{"zookeeper", "java"}, func(ctx context.Context, s *Stage, _ *Proxy) (string, error) {
		z, err := s.ZooKeeper(ctx)
		if err != nil {
			return "", err
		}
		return "zookeeper://" + z.Address + "/compare", nil
	}},
	{"PostgreSQL", "postgres", []string{"postgres"}, func(ctx context.Context, s *Stage, _ *Proxy) (string, error) {
		p, err := s.Postgres(ctx)
		if err != nil {
			return "", err
		}
		return strings.Replace(p.DSN, "/postgres?", "/postgres/compare?", 1), nil
	}},
	{"fenceproxy", "proxy", nil, func(_ context.Context, _ *Stage, p *Proxy) (string, error) {
		return "fence://" + p.Address + "/demo/proxy", nil
	}},
}

// A compared is what was seen of a service.
type compared struct {
	contender
	install string // where its server is not on this machine
	err     error

	killed, straight, fenced round
}

// compare plays the rounds, of all services at once, for most of them is waiting.
func (s *Stage) compare(ctx context.Context, p *Proxy, ttl time.Duration) []*compared {
	all := make([]*compared, len(contenders))
	var playing sync.WaitGroup
	for i, c := range contenders {
		all[i] = &compared{contender: c, install: install(c.needs...)}
		if all[i].install != "" {
			s.Say(c.actor, "is not on this machine")
			continue
		}
		playing.Go(func() {
			if all[i].err = s.rounds(ctx, p, all[i], ttl); all[i].err != nil && ctx.Err() == nil {
				s.Alarm(c.actor, "did not do what was to be shown, or not in time")
			}
		})
	}
	playing.Wait()
	return all
}

// rounds plays those of one service.
func (s *Stage) rounds(ctx context.Context, p *Proxy, c *compared, ttl time.Duration) error {
	lock, err := c.start(ctx, s, p)
	if err != nil {
		return err
	}
	crew, err := s.program(lock, ttl)
	if err != nil {
		return err
	}
	file := object{where: s.Path("compare-" + c.actor), holder: "demo"}
	fenced := object{where: p.URL + "/demo/" + c.actor}
	c.killed, err = s.killedHolder(ctx, crew, ttl, file)
	if err != nil {
		return err
	}
	s.Say(c.actor, "holder killed: the next one after %s", seconds(c.killed.after))
	c.straight, err = s.pausedHolder(ctx, crew, ttl, file)
	if err != nil {
		return err
	}
	s.Say(c.actor, "holder paused: the next one after %s; late write: overwrote a newer one", seconds(c.straight.after))
	c.fenced, err = s.pausedHolder(ctx, crew, ttl, fenced)
	if err != nil {
		return err
	}
	s.Say(c.actor, "holder paused: the next one after %s; late write: refused", seconds(c.fenced.after))
	return nil
}
