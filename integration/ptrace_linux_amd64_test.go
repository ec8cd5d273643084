package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A fault is what happens to one system call.
type fault struct {
	call string // its name, "" for no fault
	n    int    // its number among the calls of this name, from 1
	how  faultKind
}

func (f fault) String() string { return fmt.Sprintf("%s-%d-%s", f.call, f.n, f.how) }

type faultKind string

const (
	failed   faultKind = "EIO"      // it does nothing, and says so
	full     faultKind = "ENOSPC"   // the same, of a full disk
	reported faultKind = "reported" // it does its work and says that it failed
	killed   faultKind = "killed"   // the process gets SIGKILL, and the call is not made
	torn     faultKind = "torn"     // half of what is written is written, then the process gets SIGKILL
	short    faultKind = "short"    // half of what is written is written, and it says that it failed
)

// onWrites are the kinds that only a call with a length can have.
func (k faultKind) onWrites() bool { return k == torn || k == short }

// A tracer runs one process after the other, counts the calls with which they change files below its directories, and makes one of them
// fail. It is strace -f -e inject=…:when=N, but for N: strace counts in every thread by itself, and a Go program's calls go to
// whatever thread is free.
type tracer struct {
	under []string // absolute
	fault fault

	mu    sync.Mutex
	calls []string // "name path" of every call so far; guarded by mu
	hit   string   // the call that failed; guarded by mu

	counts map[string]int // by name; of the tracing goroutine
}

func newTracer(f fault, under ...string) *tracer {
	return &tracer{under: under, fault: f, counts: map[string]int{}}
}

// seen returns what was called so far, and which call failed.
func (x *tracer) seen() (calls []string, hit string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]string{}, x.calls...), x.hit
}

// start runs serve under the tracer and returns when it accepts. The one before must have ended.
func (x *tracer) start(t *testing.T, p *proxy) error {
	t.Helper()
	p.logs, p.done = newLogs(), make(chan struct{})
	p.cmd = exec.Command(binary, "serve", "--config", p.config)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = p.dir, p.logs, p.logs
	p.cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true, Setpgid: true}
	started := make(chan error)
	go x.trace(p.cmd, p.done, started)
	if err := <-started; errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		skip(t, "processes cannot be traced here: "+err.Error())
	} else if err != nil {
		t.Fatal(err)
	}
	found, err := p.logs.await(servingLine, p.done)
	if err != nil {
		p.kill()
		return err
	}
	p.addr, p.admin = found[1], found[2]
	return nil
}

// A thread of the traced process.
type thread struct {
	inside bool   // between the entry of a call and its exit
	leave  *fault // what to do at the exit
}

// trace starts the process and stays with it until all of its threads have ended. The kernel takes the thread that starts it for its
// tracer, and nobody else may do anything.
func (x *tracer) trace(cmd *exec.Cmd, done chan struct{}, started chan error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(done)
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	_, err := unix.Wait4(pid, &status, unix.WALL, nil) // it has stopped before its first instruction
	if err == nil {
		err = unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL)
	}
	if err == nil {
		err = unix.PtraceSyscall(pid, 0)
	}
	if err != nil {
		_ = cmd.Process.Kill()
	}
	started <- err
	threads := map[int]*thread{pid: {}}
	for err == nil {
		var tid int
		if tid, err = wait(pid, &status); err == nil && status.Stopped() {
			x.stopped(pid, tid, threads, status)
		}
	}
	_ = cmd.Wait() // it was waited for already; this waits for what it has said
}

// wait waits for a thread of the process group that this thread of ours traces, and for no other child of ours.
func wait(group int, status *unix.WaitStatus) (tid int, err error) {
	for {
		tid, err = unix.Wait4(-group, status, unix.WALL|unix.WNOTHREAD, nil)
		if err != unix.EINTR {
			return tid, err
		}
	}
}

// stopped lets a thread go on. That it may have been killed meanwhile is no error.
func (x *tracer) stopped(pid, tid int, threads map[int]*thread, status unix.WaitStatus) {
	th, known := threads[tid]
	if !known {
		th = &thread{}
		threads[tid] = th
	}
	deliver := 0
	switch sig := status.StopSignal(); {
	case sig == unix.SIGTRAP|0x80: // the entry or the exit of a call
		if th.inside = !th.inside; th.inside {
			x.enter(pid, tid, th)
		} else if th.leave != nil {
			x.exit(pid, tid, th)
		}
	case sig == unix.SIGTRAP && status.TrapCause() > 0: // a new thread
	case sig == unix.SIGSTOP && !known: // its first stop
	default:
		deliver = int(sig)
	}
	_ = unix.PtraceSyscall(tid, deliver)
}

// enter looks at a call that is about to be made.
func (x *tracer) enter(pid, tid int, th *thread) {
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &regs) != nil {
		return
	}
	name, paths := callOf(pid, tid, &regs)
	if name == "" || !x.ours(paths) {
		return
	}
	x.counts[name]++
	hit := x.fault.call == name && x.fault.n == x.counts[name]
	x.mu.Lock()
	x.calls = append(x.calls, name+" "+strings.Join(paths, " "))
	if hit {
		x.hit = x.calls[len(x.calls)-1]
	}
	x.mu.Unlock()
	if !hit {
		return
	}
	switch x.fault.how {
	case killed:
		_ = unix.Kill(pid, unix.SIGKILL)
		return
	case failed, full:
		regs.Orig_rax = ^uint64(0) // no call has this number
	case torn, short:
		regs.Rdx /= 2
	}
	if unix.PtraceSetRegs(tid, &regs) == nil {
		th.leave = &x.fault
	}
}

// exit gives a call its result.
func (x *tracer) exit(pid, tid int, th *thread) {
	how := th.leave.how
	th.leave = nil
	var regs unix.PtraceRegs
	if how == torn {
		_ = unix.Kill(pid, unix.SIGKILL)
		return
	}
	if unix.PtraceGetRegs(tid, &regs) != nil {
		return
	}
	errno := unix.EIO
	if how == full {
		errno = unix.ENOSPC
	}
	regs.Rax = -uint64(errno)
	_ = unix.PtraceSetRegs(tid, &regs)
}

func (x *tracer) ours(paths []string) bool {
	for _, p := range paths {
		for _, u := range x.under {
			if p == u || strings.HasPrefix(p, u+"/") {
				return true
			}
		}
	}
	return false
}

// The calls that change files, by the form of their arguments.
var (
	onFD = map[uint64]string{ // a descriptor first
		unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_SYNCFS: "syncfs",
		unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FALLOCATE: "fallocate", unix.SYS_FSETXATTR: "fsetxattr", unix.SYS_FCHMOD: "fchmod",
	}
	onPath = map[uint64]string{ // a path first, and of some a second one
		unix.SYS_RENAME: "rename", unix.SYS_LINK: "link", unix.SYS_UNLINK: "unlink", unix.SYS_RMDIR: "rmdir", unix.SYS_MKDIR: "mkdir",
		unix.SYS_SETXATTR: "setxattr", unix.SYS_TRUNCATE: "truncate", unix.SYS_CHMOD: "chmod",
	}
	onDir = map[uint64]string{ // a directory and a path in it, and of some two more
		unix.SYS_OPENAT: "openat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_FCHMODAT: "fchmodat",
		unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2", unix.SYS_LINKAT: "linkat",
	}
)

// callOf names a call that may change files, and the files. An openat is one where it may make a file.
func callOf(pid, tid int, r *unix.PtraceRegs) (name string, paths []string) {
	switch nr := r.Orig_rax; {
	case nr == unix.SYS_COPY_FILE_RANGE:
		return "copy_file_range", []string{fdPath(pid, r.Rdx)}
	case onFD[nr] != "":
		return onFD[nr], []string{fdPath(pid, r.Rdi)}
	case onPath[nr] != "":
		paths = []string{text(tid, r.Rdi)}
		if nr == unix.SYS_RENAME || nr == unix.SYS_LINK {
			paths = append(paths, text(tid, r.Rsi))
		}
		return onPath[nr], paths
	case nr == unix.SYS_OPENAT && r.Rdx&unix.O_CREAT == 0:
	case onDir[nr] != "":
		paths = []string{below(fdPath(pid, r.Rdi), text(tid, r.Rsi))}
		if nr == unix.SYS_RENAMEAT || nr == unix.SYS_RENAMEAT2 || nr == unix.SYS_LINKAT {
			paths = append(paths, below(fdPath(pid, r.Rdx), text(tid, r.R10)))
		}
		if nr == unix.SYS_UNLINKAT && r.Rdx&unix.AT_REMOVEDIR != 0 {
			return "unlinkat-dir", paths
		}
		return onDir[nr], paths
	}
	return "", nil
}

// fdPath is "" for what is no file, AT_FDCWD among them: the program names its files absolutely there.
func fdPath(pid int, fd uint64) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, int32(fd)))
	return path
}

func below(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// text reads a C string from a stopped thread.
func text(tid int, at uint64) string {
	var all []byte
	for len(all) < unix.PathMax {
		var b [64]byte // each word costs a call
		n, err := unix.PtracePeekData(tid, uintptr(at)+uintptr(len(all)), b[:])
		s, _, found := bytes.Cut(b[:n], []byte{0})
		all = append(all, s...)
		if found || err != nil {
			break
		}
	}
	return string(all)
}
