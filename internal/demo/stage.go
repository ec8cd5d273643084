// Package demo plays the stories that fencing tokens are about, with real processes, locks, servers and files: what happens is what is
// told, and a story that did not come out as it says fails.
//
// A story is a function that is played on a [Stage]. It tells what happens through the stage's [Narrator], starts what it needs with
// [Stage.Start], [Stage.Proxy] and the servers of servers.go, and leaves the clearing up to [Play].
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// Options of a demonstration.
type Options struct {
	Out     io.Writer // where the story is told
	Program string    // path of this program, which also is the proxy and the workers

	// OpenLock opens a lock by its URL and returns the URL as it may be shown. The drivers of locks are known to the program, not here.
	OpenLock func(url string) (s locks.Service, shown string, err error)
}

// patience bounds every step that takes no time but the machine's.
const patience = 30 * time.Second

// A Stage is where one demonstration happens: a temporary folder, and the processes that were started. Nothing of it outlives [Play].
type Stage struct {
	*Narrator
	Dir string // the temporary folder; other users may enter it, for PostgreSQL is one

	options Options

	mu        sync.Mutex // guards the rest
	closed    bool
	processes []*Process
}

// Play plays one story, and then ends every process that it started and removes the folder, also when the story fails, panics, is
// interrupted (SIGINT, SIGTERM, SIGHUP), or nobody reads on. Only a SIGKILL leaves the folder; on Linux not even then a process stays.
func Play(ctx context.Context, o Options, story func(context.Context, *Stage) error) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop() // the last thing: a second Ctrl-C must not end the clearing up
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE) // makes an error of Write of what would end the process: `demo … | head`
	defer signal.Stop(pipe)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	dir, err := os.MkdirTemp("", "fenceproxy-demo-")
	if err != nil {
		return err
	}
	s := &Stage{Narrator: newNarrator(o.Out, cancel), Dir: dir, options: o}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	err = story(ctx, s)
	if ctx.Err() != nil { // whatever failed then failed for that
		return fmt.Errorf("the demo was cut short: %w", context.Cause(ctx))
	}
	return err
}

// close ends all processes, the last one first, and removes the folder.
func (s *Stage) close() error {
	s.mu.Lock()
	s.closed = true
	processes := s.processes
	s.mu.Unlock()
	for _, p := range slices.Backward(processes) {
		p.Kill()
	}
	return os.RemoveAll(s.Dir)
}

// Path is a file in the stage's folder.
func (s *Stage) Path(name ...string) string {
	return filepath.Join(append([]string{s.Dir}, name...)...)
}

// environment is ours, without what would make the servers and clients of a demonstration talk to somebody else's, and with what is set.
func environment(set ...string) []string {
	foreign := []string{"ETCD", "REDISCLI_", "PG", "FENCE_"}
	all := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(e, prefix) })
	})
	return append(all, set...)
}

// until asks every 20 ms whether something is so, for as long as patience has it, and as long as the process p, if there is one, runs.
func until(ctx context.Context, p *Process, what string, so func(context.Context) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s: not within %s", what, patience))
	defer cancel()
	var ended <-chan struct{}
	if p != nil {
		ended = p.ended
	}
	for !so(ctx) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ended:
			return p.failure()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
