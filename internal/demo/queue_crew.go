package demo

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// queueWorkers is how many workers there are.
const queueWorkers = 10

// A queueCrew is the workers of one table, all at once. It is used by one goroutine.
type queueCrew struct {
	worked string // the folder with a file for each job whose work may end
	said   chan queueSaid
	wrote  map[int]int // how many results each job has
	killed *Process    // of which nothing is expected any more
}

// A queueSaid is what a worker has said.
type queueSaid struct {
	worker *Process
	word   string
	queueJob
	text string
	err  error // that it has ended
}

// queueCrew starts the workers. What they say is read until the function that is returned is called.
func (s *Stage) queueCrew(ctx context.Context, dsn, results string) (*queueCrew, func(), error) {
	c := &queueCrew{worked: s.Path("worked"), said: make(chan queueSaid), wrote: map[int]int{}}
	if err := os.Mkdir(c.worked, 0o700); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	stop := func() { cancel(); readers.Wait() }
	for i := range queueWorkers {
		name := fmt.Sprintf("worker %d", i+1)
		cmd := exec.Command(s.options.Program, "demo", "queue-worker")
		cmd.Env = append(environment(), "NAME="+strings.ReplaceAll(name, " ", "-"), "JOBS="+dsn, "RESULTS="+results, "WORKED="+c.worked)
		p, err := s.Start(name, cmd)
		if err != nil {
			stop()
			return nil, nil, err
		}
		readers.Go(func() { c.listen(ctx, p) })
	}
	return c, stop, nil
}

// listen passes on what a worker says.
func (c *queueCrew) listen(ctx context.Context, p *Process) {
	for {
		e, err := p.Read(ctx, time.Hour)
		said := queueSaid{worker: p, word: e.Word, err: err}
		if err == nil {
			said.queueJob, said.text, said.err = parseJob(e.Rest)
		}
		select {
		case c.said <- said:
		case <-ctx.Done():
			return
		}
		if said.err != nil {
			return
		}
	}
}

// parseJob reads "JOB ATTEMPT TEXT".
func parseJob(rest string) (j queueJob, text string, err error) {
	id, rest, _ := strings.Cut(rest, " ")
	attempt, text, _ := strings.Cut(rest, " ")
	j.id, err = strconv.Atoi(id)
	if err == nil {
		j.attempt, err = strconv.ParseInt(attempt, 10, 64)
	}
	return j, text, err
}

// next is what is said next, by whomever.
func (c *queueCrew) next(ctx context.Context) (queueSaid, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no worker has said anything for %s", patience))
	defer cancel()
	for {
		select {
		case said := <-c.said:
			if said.err != nil && said.worker == c.killed {
				continue
			}
			if said.word == "wrote" {
				c.wrote[said.id]++
			}
			return said, said.err
		case <-ctx.Done():
			return queueSaid{}, context.Cause(ctx)
		}
	}
}

// until returns when somebody has said a word of a job.
func (c *queueCrew) until(ctx context.Context, word string, job int) (queueSaid, error) {
	for {
		said, err := c.next(ctx)
		if err != nil {
			return said, fmt.Errorf("somebody was to say %q of job %d: %w", word, job, err)
		}
		if said.word == word && said.id == job {
			return said, nil
		}
	}
}

// end lets the work at a job end.
func (c *queueCrew) end(job int) error {
	return os.WriteFile(filepath.Join(c.worked, strconv.Itoa(job)), nil, 0o600)
}
