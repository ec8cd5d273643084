//go:build linux && amd64

package integration

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

const diskSample = 60 // faults of a short run

// A diskStory is one client, one proxy that is traced, and a fault that may come at any moment.
type diskStory struct {
	story
	x   *tracer
	hit string // the call that failed, as far as it was looked at

	syncs syncs // of the run without a fault
}

// TestDiskFaults makes one system call after the other fail with which a proxy writes to its disk, in each way in which it may, and
// kills the process at each. Then the disk is checked, mended, and held against what was answered.
//
// A short run takes a sample that has every kind of call and of fault in it. With -long, or FENCEPROXY_LONG, all are run.
func TestDiskFaults(t *testing.T) {
	t.Parallel()
	whole := newDiskStory(t, fault{})
	calls := whole.run()
	if whole.syncs.renames < 8 {
		t.Errorf("%d objects got their names in the whole story", whole.syncs.renames)
	}
	faults := everyFault(calls)
	all := len(faults)
	if !*longRun {
		faults = sample(faults, diskSample)
	}
	var mended, hit atomic.Int64
	t.Run("faults", func(t *testing.T) {
		for _, f := range faults {
			t.Run(f.String(), func(t *testing.T) {
				t.Parallel()
				s := newDiskStory(t, f)
				s.run()
				if _, at := s.x.seen(); at != "" {
					hit.Add(1)
				}
				mended.Add(int64(s.check()))
			})
		}
	})
	t.Logf("%d of %d faults at %d calls were tried, %d of them met their call; fsck mended %d left-overs", len(faults), all, len(calls), hit.Load(), mended.Load())
	if n := hit.Load(); int(n) < len(faults)*3/4 && !t.Failed() {
		t.Errorf("only %d of %d faults met the call that they were for", n, len(faults))
	}
}

// syncs is what a loss of power would show and a kill does not: that everything is synced before something else relies on it.
type syncs struct {
	looked  int             // calls that were looked at
	dirty   map[string]bool // files that were written and not synced since
	made    map[string]bool // directories in which names have come or gone that are not synced yet
	renames int
}

// check looks at the calls since the last request. At the moment when an object gets its name or loses it, the token that lets it must be
// durable, and so must its content, and the directories above it. When that is answered, its directory must be.
func (y *syncs) check(s *diskStory, target string, o outcome) {
	if y.dirty == nil {
		y.dirty, y.made = map[string]bool{}, map[string]bool{}
	}
	calls, _ := s.x.seen()
	for _, c := range calls[y.looked:] {
		name, path, _ := strings.Cut(c, " ")
		from, to, _ := strings.Cut(path, " ")
		bucket := strings.HasPrefix(path, s.p.root+"/bkt")
		switch {
		case name == "fsync" || name == "fdatasync":
			delete(y.dirty, path)
			delete(y.made, path)
		case name == "mkdirat" && bucket:
			y.made[filepath.Dir(path)] = true
		case name == "renameat" && strings.HasPrefix(to, s.p.root+"/bkt"):
			y.renames++
			y.clean(s, c, from)
			for dir := filepath.Dir(filepath.Dir(to)); len(dir) >= len(s.p.root); dir = filepath.Dir(dir) {
				if y.made[dir] {
					s.t.Errorf("%s: a directory was made in %s, which is not synced", c, dir)
				}
			}
			y.made[filepath.Dir(to)] = true
		case name == "unlinkat" && bucket:
			y.clean(s, c)
			y.made[filepath.Dir(path)] = true
		case slices.Contains([]string{"write", "pwrite64", "copy_file_range", "fsetxattr", "ftruncate"}, name):
			y.dirty[path] = true
		}
	}
	y.looked = len(calls)
	if o == applied {
		for dir := range y.made {
			s.t.Errorf("%s is answered with success, and %s is not synced", target, dir)
		}
		clear(y.made) // to tell it once
	}
}

// clean checks that the registry's log and these files are synced.
func (y *syncs) clean(s *diskStory, call string, files ...string) {
	for _, f := range append(files, filepath.Join(s.p.data, "registry.db-wal")) {
		if y.dirty[f] {
			s.t.Errorf("%s: %s is not synced", call, f)
		}
	}
}

// everyFault is each kind of fault at each call.
func everyFault(calls []string) (all []fault) {
	counts := map[string]int{}
	for _, c := range calls {
		name, _, _ := strings.Cut(c, " ")
		counts[name]++
		for _, how := range []faultKind{failed, full, reported, killed, torn, short} {
			if how.onWrites() && !strings.Contains(name, "write") {
				continue
			}
			all = append(all, fault{name, counts[name], how})
		}
	}
	return all
}

// sample picks n faults: one of each call and kind in turn, so that a call that is made often does not crowd the others out.
func sample(all []fault, n int) (some []fault) {
	groups := map[string][]fault{}
	var names []string
	for _, f := range all {
		name := f.call + " " + string(f.how)
		if groups[name] == nil {
			names = append(names, name)
		}
		groups[name] = append(groups[name], f)
	}
	slices.Sort(names)
	for len(some) < n && len(some) < len(all) {
		for _, name := range names {
			if g := groups[name]; len(g) > 0 && len(some) < n {
				i := rand.IntN(len(g))
				some = append(some, g[i])
				groups[name] = slices.Delete(g, i, i+1)
			}
		}
	}
	return some
}

func newDiskStory(t *testing.T, f fault) *diskStory {
	t.Helper()
	p := newProxy(t, plainConfig)
	s := &diskStory{story: story{t: t, p: p, l: newLedger()}, x: newTracer(f, p.data, p.root)}
	s.answered = s.judge
	return s
}

// judge holds an answer to what it says of the disk: with success only if each write, sync and rename for it has said that it succeeded.
// After a kill nobody could tell, for the kernel has what was written.
func (s *diskStory) judge(method, target string, o outcome) {
	if s.x.fault.call == "" {
		s.syncs.check(s, target, o)
		return
	}
	before := s.hit
	if _, s.hit = s.x.seen(); s.hit == before || o != applied {
		return
	}
	call, path, _ := strings.Cut(s.hit, " ")
	switch {
	case !slices.Contains([]string{"write", "pwrite64", "fsync", "fdatasync", "renameat"}, call):
		return // a directory that stays, a file that is made in another way
	case strings.Contains(path, "/audit.db"), strings.HasSuffix(path, "-shm"):
		return // the audit log holds nobody up; an index can be made anew
	case strings.Contains(target, "uploadId=") && method != "PUT" && (strings.Contains(path, "/uploads/") || strings.Contains(path, "/registry.db")):
		return // what is left of an upload that has ended
	}
	s.t.Errorf("%s %s is answered with success, though %s has failed", method, target, s.hit)
}

// run tells the story until the process is gone, kills it if it is not, and returns the calls that were made.
func (s *diskStory) run() (calls []string) {
	s.t.Helper()
	if s.start() == nil {
		s.tell()
	}
	s.p.kill()
	s.p.checkLogs(s.t)
	calls, _ = s.x.seen()
	return calls
}

func (s *diskStory) start() error {
	err := s.x.start(s.t, s.p)
	_, s.hit = s.x.seen()
	return err
}

// tell is the story: every kind of write, a refusal, and a stop with a new start.
func (s *diskStory) tell() {
	s.send("PUT", "/bkt", "", 0)
	s.put("/bkt/jobs/1/a", 1, "one")
	s.put("/bkt/jobs/1/a", 2, strings.Repeat("two ", 75_000))
	if a, err := s.send("PUT", "/bkt/jobs/1/a", "late", 1); err == nil && s.l.mark("bkt/jobs/1").answered > 1 && a.header.Get("X-Fence-Error") != "StaleToken" {
		s.t.Errorf("a stale token is answered %d %s", a.status, a.body)
	}
	s.upload("/bkt/jobs/1/up", 3, strings.Repeat("part ", 60_000), true)
	s.upload("/bkt/jobs/1/up", 3, "given up", false)
	s.put("/bkt/jobs/2/x/y", 5, "x")
	s.put("/bkt/jobs/2/z", 5, "z")
	s.write("DELETE", "/bkt/jobs/2/x/y", "", "", 6)
	s.copy("/bkt/jobs/3/c", "/bkt/jobs/1/up", 4)
	s.batch(7, "/bkt/jobs/1/a", "/bkt/jobs/2/z")
	s.restart()
	s.put("/bkt/jobs/1/a", 8, "eight")
	s.put("/bkt/jobs/2/z", 8, "eight")
	s.write("DELETE", "/bkt/jobs/3/c", "", "", 9)
}

// restart stops the proxy the clean way, as far as its disk lets it, and starts it again.
func (s *diskStory) restart() {
	if s.over() {
		return
	}
	_ = s.p.cmd.Process.Signal(syscall.SIGTERM) // the fault may have ended it this moment
	eventually(s.t, "the proxy stops", s.over)
	s.p.checkLogs(s.t)
	_ = s.start() // with a fault it may refuse
}

// check mends the disk, starts the proxy without a tracer, and holds it to all that was answered. It returns how much was mended.
func (s *diskStory) check() (mended int) {
	s.t.Helper()
	if _, err := os.Stat(s.p.data); err == nil { // it was the first that was to be made
		mended, _ = s.p.fsck(s.t)
	}
	s.p.start(s.t)
	s.l.check(s.t, s.p)
	if len(s.p.audit(s.t, "kind=start")) == 0 {
		s.t.Error("the audit log does not know of the start")
	}
	s.p.do(s.t, "PUT", "/bkt", "")
	s.p.put(s.t, "/bkt/jobs/1/a", 100, "all is well").want(s.t, 200)
	s.p.holds(s.t, "/bkt/jobs/1/a", "all is well")
	s.p.kill()
	s.p.checkLogs(s.t)
	if s.t.Failed() {
		calls, hit := s.x.seen()
		s.t.Logf("the fault met %q; the calls were\n%s", hit, strings.Join(calls, "\n"))
	}
	return mended
}
