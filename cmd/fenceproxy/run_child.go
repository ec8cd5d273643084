package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// forwarded are the signals that the command gets. One that we were started without an ear for, as by nohup, stays ignored, for the command, too.
var forwarded = slices.DeleteFunc([]os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}, signal.Ignored)

// A child is the command while it runs.
type child struct {
	cmd   *exec.Cmd
	group bool // it has a process group to itself, which gets its signals; else the terminal sends it its own
}

// child runs the command, and returns the code to exit with. An error says that it could not be started, or that the lock was lost.
func (r *runner) child(g *locks.Grant, signals <-chan os.Signal) (code int, err error) {
	c, err := r.start(g)
	if err != nil {
		err = notStarted(err)
		return exitCode(err), err
	}
	exited := make(chan error, 1)
	go func() { exited <- c.cmd.Wait() }()
	lost := g.Lost()
	var kill <-chan time.Time
	for {
		select {
		case <-exited:
			code := codeOf(c.cmd.ProcessState)
			if r.report.Lost && r.options.onLost == "term" {
				c.endRest(kill)
				return exitLockLost, &exitError{exitLockLost, errQuiet}
			}
			return code, nil
		case s := <-signals:
			c.forward(s.(syscall.Signal))
		case <-lost:
			lost = nil
			r.report.Lost = true
			if r.options.onLost == "keep" {
				r.log.say("%v. The command goes on with token %d; once somebody else has written, it is refused", g.Err(), g.Token())
				continue
			}
			c.signal(syscall.SIGTERM)
			c.signal(syscall.SIGCONT) // a stopped one would not hear it
			kill = time.After(r.options.killAfter)
			r.log.say("%v. The command with token %d is told to end; SIGKILL comes in %s", g.Err(), g.Token(), r.options.killAfter)
		case <-kill:
			kill = nil
			r.log.say("the command has not ended: SIGKILL")
			c.signal(syscall.SIGKILL)
		}
	}
}

// start starts the command, with our input and outputs. In a terminal it stays in our process group, or it could not read from there; elsewhere
// it gets one of its own, so that what ends it reaches what it has started, too: of a script it is the client that writes.
func (r *runner) start(g *locks.Grant) (*child, error) {
	cmd := exec.Command(r.command[0], r.command[1:]...)
	cmd.Env = r.environment(g)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	c := &child{cmd: cmd, group: !isatty.IsTerminal(os.Stdin.Fd())}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: c.group}
	return c, cmd.Start()
}

// forward passes a signal on that we got. What a terminal sends, it sends to both of us.
func (c *child) forward(s syscall.Signal) {
	if !c.group && (s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGWINCH) {
		return
	}
	c.signal(s)
}

// signal reaches nobody if the command has ended: its number is ours until Wait has seen its end, and that of its group for as long as one
// process is in it.
func (c *child) signal(s syscall.Signal) {
	if c.group {
		_ = syscall.Kill(-c.cmd.Process.Pid, s)
		return
	}
	_ = c.cmd.Process.Signal(s)
}

// endRest waits for what the command has started and left behind, and has been told to end with it, until kill comes: a script ends at once,
// and what it was that wrote may take its time, or not listen.
func (c *child) endRest(kill <-chan time.Time) {
	tick := time.NewTicker(groupLook)
	defer tick.Stop()
	for c.group && kill != nil && syscall.Kill(-c.cmd.Process.Pid, 0) == nil {
		select {
		case <-tick.C:
		case <-kill:
			c.signal(syscall.SIGKILL)
			return
		}
	}
}

// groupLook is the time between two looks whether somebody is left in a process group.
const groupLook = 20 * time.Millisecond

// codeOf is the exit code of a process as a shell has it.
func codeOf(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exitSignal + int(w.Signal())
	}
	return s.ExitCode()
}

// notStarted says why a command could not be started, as a shell would.
func notStarted(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &exitError{exitNotFound, err}
	}
	return &exitError{exitNotStarted, err}
}
