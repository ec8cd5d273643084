package file

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// faults is a system in which one call fails, or all from one on. It also keeps a record of the calls.
type faults struct {
	mu    sync.Mutex
	calls []string // guarded by mu
	at    int      // the number of the call that fails, -1 for none
	on    func(call string) error
	mode  faultMode
	err   error
}

type faultMode string

const (
	notDone  faultMode = "not done"                        // the call fails and has done nothing
	reported faultMode = "done but reported failed"        // the call has done its work and says that it failed
	dead     faultMode = "not done, nor any call after it" // the disk has died
)

// call runs a system call, or not.
func (f *faults) call(run func() error, format string, args ...any) error {
	f.mu.Lock()
	n := len(f.calls)
	what := fmt.Sprintf(format, args...)
	f.calls = append(f.calls, what)
	f.mu.Unlock()
	if f.on != nil {
		if err := f.on(what); err != nil {
			return err
		}
	}
	switch {
	case n != f.at && (f.mode != dead || f.at < 0 || n < f.at):
		return run()
	case f.mode == reported:
		_ = run()
	}
	return f.err
}

func (f *faults) system() *system {
	k := &kernel
	return &system{
		openat: func(dir int, name string, flags int, mode uint32) (int, error) {
			fd := -1
			err := f.call(func() (err error) { fd, err = k.openat(dir, name, flags, mode); return err }, "openat %s", name)
			if err != nil && fd >= 0 {
				_ = unix.Close(fd)
			}
			return fd, err
		},
		mkdirat: func(dir int, name string, mode uint32) error {
			return f.call(func() error { return k.mkdirat(dir, name, mode) }, "mkdirat %s", name)
		},
		unlinkat: func(dir int, name string, flags int) error {
			return f.call(func() error { return k.unlinkat(dir, name, flags) }, "unlinkat %s", name)
		},
		renameat: func(od int, on string, nd int, nn string) error {
			return f.call(func() error { return k.renameat(od, on, nd, nn) }, "renameat %s %s", on, nn)
		},
		fstat: func(fd int, st *unix.Stat_t) error {
			return f.call(func() error { return k.fstat(fd, st) }, "fstat %s", nameOf(fd))
		},
		fstatat: func(dir int, name string, st *unix.Stat_t) error {
			return f.call(func() error { return k.fstatat(dir, name, st) }, "fstatat %s", name)
		},
		write: func(fd int, p []byte) (n int, err error) {
			err = f.call(func() error { n, err = k.write(fd, p); return err }, "write %s", nameOf(fd))
			return n, err
		},
		read: func(fd int, p []byte) (n int, err error) {
			err = f.call(func() error { n, err = k.read(fd, p); return err }, "read %s", nameOf(fd))
			return n, err
		},
		pread: func(fd int, p []byte, off int64) (n int, err error) {
			err = f.call(func() error { n, err = k.pread(fd, p, off); return err }, "pread %s", nameOf(fd))
			return n, err
		},
		copyRange: func(from int, off int64, to, size int) (n int, err error) {
			err = f.call(func() error { n, err = k.copyRange(from, off, to, size); return err }, "copy_file_range %s %s", nameOf(from), nameOf(to))
			return n, err
		},
		fsync:  func(fd int) error { return f.call(func() error { return k.fsync(fd) }, "fsync %s", nameOf(fd)) },
		syncfs: func(fd int) error { return f.call(func() error { return k.syncfs(fd) }, "syncfs %s", nameOf(fd)) },
		fsetxattr: func(fd int, name string, data []byte) error {
			return f.call(func() error { return k.fsetxattr(fd, name, data) }, "fsetxattr %s", nameOf(fd))
		},
		fgetxattr: func(fd int, name string, p []byte) (n int, err error) {
			err = f.call(func() error { n, err = k.fgetxattr(fd, name, p); return err }, "fgetxattr %s", nameOf(fd))
			return n, err
		},
		fremovexattr: func(fd int, name string) error {
			return f.call(func() error { return k.fremovexattr(fd, name) }, "fremovexattr %s", nameOf(fd))
		},
		getdents: func(fd int, p []byte) (n int, err error) {
			err = f.call(func() error { n, err = k.getdents(fd, p); return err }, "getdents %s", nameOf(fd))
			return n, err
		},
	}
}

// nameOf is the last component of what a descriptor is open on.
func nameOf(fd int) string {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd), buf)
	if err != nil {
		return err.Error()
	}
	path := string(buf[:n])
	return path[strings.LastIndexByte(path, '/')+1:]
}

// A scenario is one write, from one state to another.
type scenario struct {
	name          string
	setup         func(b *bench)
	method        string
	key           string
	body          string
	header        []string
	before, after string // of the key
}

var scenarios = []scenario{
	{name: "put new", method: "PUT", key: "new", body: "fresh", before: "absent", after: "fresh"},
	{name: "put in new directories", method: "PUT", key: "d/e/new", body: "fresh", before: "absent", after: "fresh"},
	{
		name: "overwrite", setup: func(b *bench) { b.put("d/key", "old") },
		method: "PUT", key: "d/key", body: "fresh", before: "old", after: "fresh",
	},
	{
		name: "conditional overwrite", setup: func(b *bench) { b.put("d/key", "old") },
		method: "PUT", key: "d/key", body: "fresh", header: []string{"If-Match", "149603e6c03516362a8da23f624db945"}, before: "old", after: "fresh",
	},
	{
		name: "put over an empty directory", setup: func(b *bench) { b.mkdir("bucket/key/left/over") },
		method: "PUT", key: "key", body: "fresh", before: "absent", after: "fresh",
	},
	{
		name: "delete", setup: func(b *bench) { b.put("d/e/key", "old"); b.put("d/other", "other") },
		method: "DELETE", key: "d/e/key", before: "old", after: "absent",
	},
	{
		name: "conditional delete", setup: func(b *bench) { b.put("key", "old") },
		method: "DELETE", key: "key", header: []string{"If-Match", "149603e6c03516362a8da23f624db945"}, before: "old", after: "absent",
	},
}

// TestFaults fails every system call of every scenario in every mode, and holds the answer to the contract.
func TestFaults(t *testing.T) {
	for _, side := range []bool{false, true} {
		for _, sc := range scenarios {
			for _, mode := range []faultMode{notDone, reported, dead} {
				t.Run(fmt.Sprintf("%s/side %v/%s", sc.name, side, mode), func(t *testing.T) {
					t.Parallel()
					for n := 0; sc.fail(t, Options{ForceSideFiles: side}, mode, n); n++ {
						if n > 200 {
							t.Fatal("the scenario does not end")
						}
					}
				})
			}
		}
	}
}

// fail runs the scenario with its n-th call failing, and says whether there was an n-th call.
func (sc scenario) fail(t *testing.T, o Options, mode faultMode, n int) bool {
	b := newBench(t, o)
	b.put("d/neighbour", "neighbour")
	if sc.setup != nil {
		sc.setup(b)
	}
	sc.check(b, "before", sc.before)
	f := &faults{at: n, mode: mode, err: unix.EIO}
	b.sys = f.system()
	w := b.do(sc.method, "/bucket/"+sc.key, sc.body, append(sc.header, "X-Amz-Meta-Of", sc.body)...)
	b.sys = &kernel
	what := fmt.Sprintf("%d after %s", w.Code, strings.Join(f.calls[:min(n+1, len(f.calls))], ", "))

	allowed := []string{sc.before, sc.after}
	switch {
	case w.Code < 300:
		allowed = []string{sc.after}
	case w.Code < 500 || w.Code == 501 || w.Code == 503:
		allowed = []string{sc.before}
	case !strings.Contains(w.Body.String(), "outcome is unknown"):
		t.Errorf("%s: the message does not say that the outcome is unknown: %s", what, w.Body)
	}
	sc.check(b, what, allowed...)
	if w.Code == 503 && mode != dead && len(b.files(tempDir)) > 0 && !strings.HasPrefix(f.calls[n], "openat") && !strings.HasPrefix(f.calls[n], "unlinkat") {
		t.Errorf("%s: temporary files are left: %q", what, b.files(tempDir))
	}
	b.reopen(o)
	sc.check(b, what+", reopened", allowed...)
	if left := b.files(tempDir); len(left) > 0 {
		t.Errorf("%s, reopened: temporary files are left: %q", what, left)
	}
	if w.Code == 503 { // the store has not got stuck
		b.want(b.do(sc.method, "/bucket/"+sc.key, sc.body, append(sc.header, "X-Amz-Meta-Of", sc.body)...), map[string]int{"PUT": 200, "DELETE": 204}[sc.method])
		sc.check(b, what+", repeated", sc.after)
	}
	_ = b.Close()
	return n < len(f.calls)
}

func (sc scenario) check(b *bench, when string, allowed ...string) {
	b.Helper()
	if got := b.state(sc.key); !slices.Contains(allowed, got) {
		b.Fatalf("%s: %s is %q, want one of %q", when, sc.key, got, allowed)
	}
	b.holds("d/neighbour", "neighbour")
}

// TestFaultsOfBuckets does the same for buckets.
func TestFaultsOfBuckets(t *testing.T) {
	for _, mode := range []faultMode{notDone, reported, dead} {
		for n := 0; n < 40; n++ {
			for _, method := range []string{"PUT", "DELETE"} {
				b := newBench(t, Options{})
				before, after := 404, 200
				if method == "DELETE" {
					b.mkdir("second/left/over")
					before, after = 200, 404
				}
				f := &faults{at: n, mode: mode, err: unix.EIO}
				b.sys = f.system()
				w := b.do(method, "/second", "")
				b.sys = &kernel
				got := b.do("HEAD", "/second", "").Code
				if w.Code < 300 && got != after || w.Code != 500 && w.Code >= 300 && got != before {
					t.Errorf("%s answered %d %s after %q, and HEAD %d", method, w.Code, w.Body, f.calls, got)
				}
				_ = b.Close()
			}
		}
	}
}

// TestFullDisk names the reason to the client.
func TestFullDisk(t *testing.T) {
	for errno, says := range map[unix.Errno]string{unix.ENOSPC: "disk is full", unix.EDQUOT: "quota", unix.EROFS: "read-only"} {
		for _, call := range []string{"write", "fsync put", "renameat", "mkdirat"} {
			b := newBench(t, Options{})
			b.sys = (&faults{at: -1, on: failOn(call, errno)}).system()
			w := b.do("PUT", "/bucket/d/key", "content")
			b.sys = &kernel
			b.wantCode(w, 503, "ServiceUnavailable")
			if !strings.Contains(w.Body.String(), says) {
				t.Errorf("%s of %s: %s", errno, call, w.Body)
			}
			b.holds("d/key", "absent")
		}
	}
}

func failOn(prefix string, err error) func(string) error {
	return func(call string) error {
		if strings.HasPrefix(call, prefix) {
			return err
		}
		return nil
	}
}

// TestAttributesThatDoNotFit falls back to side files by what the kernel says.
func TestAttributesThatDoNotFit(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOTSUP, unix.EPERM, unix.ENOSPC, unix.E2BIG, unix.ERANGE} {
		b := newBench(t, Options{})
		b.sys = (&faults{at: -1, on: failOn("fsetxattr", errno)}).system()
		b.put("key", "content")
		b.sys = &kernel
		b.holds("key", "content")
		if n := len(b.files(sideDir)); n != 1 {
			t.Errorf("%s: %d side files, want one", errno, n)
		}
		b.reopen(Options{})
		b.holds("key", "content")
		b.put("key", "other") // with an attribute now
		if left := b.files(sideDir); len(left) > 0 {
			t.Errorf("%s: the replaced object's side file is left: %q", errno, left)
		}
		_ = b.Close()
	}
}

// TestUnsyncedDirectory fails the sync of a new directory's parent and the removal of the directory: what comes next must not rely
// on it before it is durable.
func TestUnsyncedDirectory(t *testing.T) {
	b := newBench(t, Options{})
	f := &faults{at: -1, on: func(call string) error {
		if call == "fsync bucket" || call == "unlinkat d" {
			return unix.EIO
		}
		return nil
	}}
	b.sys = f.system()
	b.wantCode(b.do("PUT", "/bucket/d/key", "content"), 503, "ServiceUnavailable")
	f.on = failOn("syncfs", unix.EIO)
	b.wantCode(b.do("PUT", "/bucket/d/key", "content"), 503, "ServiceUnavailable")
	b.holds("d/key", "absent")
	f.on, f.calls = nil, nil
	b.put("d/key", "content")
	if i, j := slices.Index(f.calls, "syncfs "+nameOf(b.rootFD)), slices.IndexFunc(f.calls, func(c string) bool { return strings.HasPrefix(c, "renameat") }); i < 0 || i > j {
		t.Errorf("no syncfs before the rename: %q", f.calls)
	}
	f.calls = nil
	b.put("d/key", "again")
	if slices.ContainsFunc(f.calls, func(c string) bool { return strings.HasPrefix(c, "syncfs") }) {
		t.Errorf("syncfs once is enough: %q", f.calls)
	}
	b.sys = &kernel
}

// TestReplacedWhileReading replaces or deletes the object before each system call of a read.
func TestReplacedWhileReading(t *testing.T) {
	for _, side := range []bool{false, true} {
		for _, method := range []string{"PUT", "DELETE"} {
			for n, more := 0, true; more; n++ {
				b := newBench(t, Options{ForceSideFiles: side})
				b.put("d/key", "old")
				b.put("d/other", "other") // the directory stays
				var f *faults
				f = &faults{at: -1, on: func(string) error {
					if len(f.calls) == n+1 {
						b.want(b.do(method, "/bucket/d/key", "fresh", "X-Amz-Meta-Of", "fresh"), map[string]int{"PUT": 200, "DELETE": 204}[method])
					}
					return nil
				}}
				b.sys = f.system()
				got := b.state("d/key")
				if got != "old" && got != map[string]string{"PUT": "fresh", "DELETE": "absent"}[method] {
					t.Errorf("%s before call %d of %q: read %q", method, n, f.calls, got)
				}
				more = len(f.calls) > n
				b.sys = &kernel
				_ = b.Close()
			}
		}
	}
}

// TestLocks looks, within the system calls that judge and take effect, whether the locks are held that make one step of them.
func TestLocks(t *testing.T) {
	b := newBench(t, Options{})
	b.put("d/key", "old")
	n := name{bucket: "bucket", dirs: []string{"d"}, base: "key"}
	seen := map[string]bool{}
	f := &faults{at: -1, on: func(call string) error {
		if strings.HasPrefix(call, "renameat") && strings.HasSuffix(call, " key") {
			call = "renameat key"
		}
		switch call {
		case "fstatat key", "renameat key", "unlinkat key":
			if lock := b.key(n); lock.TryLock() {
				lock.Unlock()
				t.Errorf("%s without the key's lock", call)
			}
			if b.tree.TryLock() {
				b.tree.Unlock()
				t.Errorf("%s without the tree's lock", call)
			}
		case "unlinkat d", "mkdirat e":
			if b.tree.TryRLock() {
				b.tree.RUnlock()
				t.Errorf("%s while others may be in the tree", call)
			}
		}
		seen[call] = true
		return nil
	}}
	b.sys = f.system()
	b.want(b.do("PUT", "/bucket/d/key", "new", "If-Match", `"149603e6c03516362a8da23f624db945"`), 200)
	b.want(b.do("DELETE", "/bucket/d/key", "", "If-Match", "*"), 204)
	b.put("d/e/f", "below")
	b.sys = &kernel
	for _, call := range []string{"fstatat key", "renameat key", "unlinkat key", "unlinkat d", "mkdirat e"} {
		if !seen[call] {
			t.Errorf("no %s was seen", call)
		}
	}
}
