package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A Process was started by a [Stage], in a process group of its own: a Ctrl-C of the terminal is for us alone, and what is done to the
// process is done to its children, too.
type Process struct {
	Name string
	PID  int

	cmd   *exec.Cmd
	end   syscall.Signal
	log   string        // the file that has what it wrote to standard error
	lines chan string   // what it wrote to standard output; closed when it has ended
	ended chan struct{} // closed when it has ended; err is set before
	err   error
}

// maxLines is how many lines of output wait to be read; more are dropped. A worker says a dozen.
const maxLines = 1024

// killWait is for a process that is ended by another signal than SIGKILL.
const killWait = 10 * time.Second

// Start starts a process. Its standard error goes to a file, and its standard output to Expect and Read.
func (s *Stage) Start(name string, cmd *exec.Cmd) (*Process, error) {
	return s.start(name, cmd, syscall.SIGKILL)
}

// start is Start of a process that the signal end ends, with all that it has started.
func (s *Stage) start(name string, cmd *exec.Cmd, end syscall.Signal) (*Process, error) {
	s.mu.Lock() // until it stands in the list: what close does not see must not start
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the demo is over")
	}
	p := &Process{Name: name, cmd: cmd, end: end, lines: make(chan string, maxLines), ended: make(chan struct{})}
	log, err := os.CreateTemp(s.Dir, strings.ReplaceAll(name, " ", "-")+"-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.log = log.Name()
	if cmd.Dir == "" {
		cmd.Dir = s.Dir
	}
	if cmd.Env == nil {
		cmd.Env = environment()
	}
	cmd.Stdout, cmd.Stderr = &lineWriter{to: p.lines}, log
	cmd.WaitDelay = time.Second // for a grandchild that has standard output
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	endWithParent(cmd.SysProcAttr, end)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.PID = cmd.Process.Pid
	s.processes = append(s.processes, p)
	go func() {
		p.err = cmd.Wait()
		close(p.lines)
		close(p.ended)
	}()
	return p, nil
}

// Pause stops the process and its children where they are, as a long garbage collection or a frozen machine would.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume lets them go on.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

// Kill ends them at once, and returns when the process has ended.
func (p *Process) Kill() {
	_ = p.signal(p.end)
	select {
	case <-p.ended:
	case <-time.After(killWait):
		_ = p.signal(syscall.SIGKILL)
		<-p.ended
	}
}

// signal signals the group, whose number is the process's until its end was seen.
func (p *Process) signal(sig syscall.Signal) error {
	select {
	case <-p.ended:
		return p.failure()
	default:
	}
	if err := syscall.Kill(-p.PID, sig); err != nil {
		return fmt.Errorf("%s: %v: %w", p.Name, sig, err)
	}
	return nil
}

// Wait returns when the process has ended by itself, and fails where it failed.
func (p *Process) Wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s does not end", p.Name))
	defer cancel()
	select {
	case <-p.ended:
		if p.err != nil {
			return p.failure()
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// An Event is a line that a worker wrote: a word, and the rest.
type Event struct{ Word, Rest string }

// Read returns the next line of the process.
func (p *Process) Read(ctx context.Context, within time.Duration) (Event, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("%s has said nothing for %s", p.Name, within))
	defer cancel()
	select {
	case line, ok := <-p.lines:
		if !ok {
			<-p.ended
			return Event{}, p.failure()
		}
		word, rest, _ := strings.Cut(line, " ")
		return Event{word, rest}, nil
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	}
}

// Expect is Read of a line that begins with a certain word.
func (p *Process) Expect(ctx context.Context, within time.Duration, word string) (rest string, err error) {
	e, err := p.Read(ctx, within)
	if err == nil && e.Word != word {
		err = fmt.Errorf("%s was to say %q, and said %q", p.Name, word, e.Word+" "+e.Rest)
	}
	return e.Rest, err
}

// WaitLog waits until standard error has something that matches, and returns the submatches.
func (p *Process) WaitLog(ctx context.Context, re *regexp.Regexp) (found []string, err error) {
	err = until(ctx, p, p.Name+" starts", func(context.Context) bool {
		text, _ := os.ReadFile(p.log)
		found = re.FindStringSubmatch(string(text))
		return found != nil
	})
	return found, err
}

// failure says that the process has ended where it was not to, with its last words.
func (p *Process) failure() error {
	text, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := strings.Join(lines[max(0, len(lines)-8):], "\n  ")
	return fmt.Errorf("%s has ended too early (%v). Its last words:\n  %s", p.Name, p.cmd.ProcessState, last)
}

// A lineWriter sends whole lines to a channel. It is written to by one goroutine.
type lineWriter struct {
	rest []byte
	to   chan<- string
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		select {
		case w.to <- string(line):
		default:
		}
		w.rest = rest
	}
}
