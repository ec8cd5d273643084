package servers

import (
	"os/exec"
	"syscall"
	"testing"
)

// A process is a server's, while it runs. It ends with the test's.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd     // nil while it is down
	ended chan struct{} // closed when cmd has ended
}

// run starts what is down, and does not wait for it to answer.
func (p *process) run(cmd *exec.Cmd) {
	p.t.Helper()
	if p.cmd != nil {
		p.t.Fatalf("%s runs already", cmd.Path)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	p.cmd, p.ended = cmd, ended
}

// Kill ends it at once, as a crash would.
func (p *process) Kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	p.cmd = nil
}

// Pause stops it where it is, until Resume.
func (p *process) Pause() { p.signal(syscall.SIGSTOP) }

// Resume lets it go on.
func (p *process) Resume() { p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}
