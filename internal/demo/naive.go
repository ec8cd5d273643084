package demo

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Naive is the story of the Redis lock as it is often written: three ways in which it breaks, its repair, the pause that breaks it still, and
// the fence.
func Naive(ctx context.Context, o Options) error {
	return Play(ctx, o, func(ctx context.Context, s *Stage) error {
		if err := s.Need("redis-server", "redis-cli", "curl"); err != nil {
			return err
		}
		redis, err := s.Redis(ctx)
		if err != nil {
			return err
		}
		s.Title("A lock in Redis: broken three times, repaired, broken by a pause, and fenced")
		s.Text("Each command is sent by redis-cli to a real redis-server, in an order that may happen at any time. A, B and C believe that they have the lock " +
			"when Redis says OK.")
		n := &naive{s, redis}
		for _, act := range []struct {
			title string
			play  func(context.Context) error
		}{
			{"1 · GET, then SET: two get in", n.lookThenTake},
			{"2 · No expiry: a dead holder keeps everybody out", n.noExpiry},
			{"3 · DEL of a lock that another one has", n.deleteAnothers},
			{"4 · Repaired: SET NX PX in one command, a value of one's own, and a script that deletes only that", n.repaired},
			{"5 · A pause still breaks it: two worker processes under that lock, writing to a directory", n.pause},
		} {
			s.Act(act.title)
			if err := act.play(ctx); err != nil {
				return err
			}
		}
		s.Act("6 · The fence: the script counts its holders as it lets them in, and the store compares that number")
		proxy, err := s.Proxy(ctx)
		if err != nil {
			return err
		}
		crew, err := s.redisCLI(redis, naiveTTL)
		if err != nil {
			return err
		}
		if err := s.fenced(ctx, proxy, crew, naiveTTL); err != nil {
			return err
		}
		s.Verdict("Shown: three faults, which care can mend; and one that no lock with a timeout can. The token mends it, where the store compares it.")
		return nil
	})
}

// TTLs of the story: of a lock that is to run out, of one that is not, and of the workers'.
const (
	soonMS   = "500"
	lateMS   = "60000"
	naiveTTL = 2 * time.Second
	tries    = 10 // of one who waits for a lock that never comes free
)

// Answers of redis-cli.
const (
	ok    = "OK"
	none  = "(nil)"
	zero  = "(integer) 0"
	one   = "(integer) 1"
	never = "(integer) -1" // of TTL: the key does not run out
)

// compareAndDelete deletes a lock that still has one's own value.
const compareAndDelete = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) else return 0 end`

// naive is the stage with the server.
type naive struct {
	*Stage
	redis *Redis
}

// step sends a command, tells it, and fails if the answer is another one than the story has.
func (n *naive) step(ctx context.Context, who, want string, command ...string) error {
	got, err := n.redis.Do(ctx, command...)
	if err != nil {
		return err
	}
	shown := strings.Join(command, " ")
	if command[0] == "EVAL" {
		shown = fmt.Sprintf("EVAL compare-and-delete %s %s", command[3], command[4])
	}
	n.Say(who, "%-38s → %s", shown, got)
	if got != want {
		return fmt.Errorf("%s sent %s, and was to get %s, not %s", who, shown, want, got)
	}
	return nil
}

// A redisStep is a command of the story and its answer.
type redisStep struct {
	who, want, command string // the command's words have no spaces
}

func (n *naive) steps(ctx context.Context, steps ...redisStep) error {
	for _, s := range steps {
		if err := n.step(ctx, s.who, s.want, strings.Fields(s.command)...); err != nil {
			return err
		}
	}
	return nil
}

func (n *naive) lookThenTake(ctx context.Context) error {
	err := n.steps(ctx,
		redisStep{"A", none, "GET lock:1"},
		redisStep{"B", none, "GET lock:1"},
		redisStep{"A", ok, "SET lock:1 A"},
		redisStep{"B", ok, "SET lock:1 B"})
	if err == nil {
		n.Alarm("", "A and B are both in. What A has seen was true no more when it acted on it.")
	}
	return err
}

func (n *naive) noExpiry(ctx context.Context) error {
	if err := n.holdAndDie(ctx, "SETNX lock:2 A", one); err != nil {
		return err
	}
	for try := range tries {
		answer, err := n.redis.Do(ctx, "SETNX", "lock:2", "B")
		if err != nil {
			return err
		}
		if answer != zero {
			return fmt.Errorf("the lock of the dead A was to stay taken, and B got it with try %d", try+1)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	n.Say("B", "%-38s → %s, %d times in 2 s", "SETNX lock:2 B", zero, tries)
	if err := n.step(ctx, "B", never, "TTL", "lock:2"); err != nil {
		return err
	}
	n.Alarm("", "It never runs out. Nobody gets in until somebody deletes it by hand, and who knows that A is dead, and not slow?")
	return nil
}

// holdAndDie has A, a process that takes a lock, killed while it has it.
func (n *naive) holdAndDie(ctx context.Context, command, want string) error {
	script := fmt.Sprintf(`echo "took $(redis-cli -p %d --no-raw %s)"; exec sleep 600`, n.redis.Port, command)
	a, err := n.Start("A", exec.Command("sh", "-c", script))
	if err != nil {
		return err
	}
	got, err := a.Expect(ctx, patience, "took")
	if err != nil {
		return err
	}
	n.Say("A", "%-38s → %s", command, got)
	if got != want {
		return fmt.Errorf("the answer to %s was to be %s, and is %s", command, want, got)
	}
	a.Kill()
	n.Say("demo", "kill -9 of A, process %d, which has the lock", a.PID)
	return nil
}

func (n *naive) deleteAnothers(ctx context.Context) error {
	if err := n.steps(ctx, redisStep{"A", ok, "SET lock:3 held NX PX " + soonMS}); err != nil {
		return err
	}
	n.Say("A", "is slow")
	if err := n.runsOut(ctx, "lock:3"); err != nil {
		return err
	}
	err := n.steps(ctx,
		redisStep{"B", ok, "SET lock:3 held NX PX " + lateMS},
		redisStep{"A", one, "DEL lock:3"},
		redisStep{"C", ok, "SET lock:3 held NX PX " + lateMS})
	if err == nil {
		n.Alarm("", "A was slow, and has deleted B's lock: B and C are both in.")
	}
	return err
}

// runsOut waits until A's lock has run out.
func (n *naive) runsOut(ctx context.Context, key string) error {
	err := until(ctx, nil, "the lock runs out", func(ctx context.Context) bool {
		answer, err := n.redis.Do(ctx, "EXISTS", key)
		return err == nil && answer == zero
	})
	if err == nil {
		n.Say("redis", "%s has run out", key)
	}
	return err
}

// repaired plays the three again, with the lock as it should be.
func (n *naive) repaired(ctx context.Context) error {
	if err := n.steps(ctx,
		redisStep{"A", ok, "SET lock:4 a-7f3c NX PX " + lateMS},
		redisStep{"B", none, "SET lock:4 b-90d1 NX PX " + lateMS}); err != nil {
		return err
	}
	n.Relief("", "One gets in: to look and to take are one step.")

	if err := n.holdAndDie(ctx, "SET lock:5 a-7f3c NX PX "+soonMS, ok); err != nil {
		return err
	}
	if err := n.runsOut(ctx, "lock:5"); err != nil {
		return err
	}
	if err := n.steps(ctx, redisStep{"B", ok, "SET lock:5 b-90d1 NX PX " + lateMS}); err != nil {
		return err
	}
	n.Relief("", "The dead keep nobody out for longer than that.")

	if err := n.steps(ctx, redisStep{"A", ok, "SET lock:6 a-7f3c NX PX " + soonMS}); err != nil {
		return err
	}
	n.Say("A", "is slow")
	if err := n.runsOut(ctx, "lock:6"); err != nil {
		return err
	}
	err := n.steps(ctx, redisStep{"B", ok, "SET lock:6 b-90d1 NX PX " + lateMS})
	if err == nil {
		err = n.step(ctx, "A", zero, "EVAL", compareAndDelete, "1", "lock:6", "a-7f3c")
	}
	if err == nil {
		err = n.steps(ctx, redisStep{"C", none, "SET lock:6 c-22e8 NX PX " + lateMS})
	}
	if err == nil {
		n.Relief("", "Who comes late deletes nobody else's lock.")
	}
	return err
}

func (n *naive) pause(ctx context.Context) error {
	crew, err := n.redisCLI(n.redis, naiveTTL)
	if err != nil {
		return err
	}
	return n.unfenced(ctx, crew, naiveTTL)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
