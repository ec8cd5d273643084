package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var kills = flag.Int("kills", 6, "how many rounds of kill -9 to run")

// Short runs have fewer lanes: each begins with a start of its own.
const (
	killLanes     = 2
	killLanesLong = 8
)

// TestKillsAndFsck: kill -9 at random moments under load, and before the next start a look at the disk: nothing that a kill leaves is more
// than --repair removes, and what was answered is there after that. TestKills lets the next start clean up by itself.
//
// A kill is no loss of power: what the kernel has taken reaches the disk.
func TestKillsAndFsck(t *testing.T) {
	t.Parallel()
	lanes := killLanes
	if *kills >= 100 {
		lanes = killLanesLong
	}
	rounds := *kills / lanes * lanes
	var counts crashCounts
	var uploads, mended atomic.Int64
	begin := time.Now()
	t.Run("lanes", func(t *testing.T) {
		for i := range lanes {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				l := &lane{p: startProxy(t), client: keepAlive(t, 2*crashWriters), counts: &counts}
				u := &uploader{story: story{t: t, p: l.p, l: newLedger()}}
				for range rounds / lanes {
					mended.Add(int64(killRound(t, l, u)))
					if t.Failed() {
						return
					}
				}
				uploads.Add(u.token)
			})
		}
	})
	t.Logf("%d kills in %v; writes: %d succeeded, %d refused, %d unanswered; %d uploads and batches; %d objects and fences checked; fsck mended %d left-overs",
		counts.rounds.Load(), time.Since(begin).Round(time.Second), counts.succeeded.Load(), counts.refused.Load(), counts.unanswered.Load(),
		uploads.Load(), counts.checked.Load(), mended.Load())
	if n := counts.rounds.Load(); n != int64(rounds) && !t.Failed() {
		t.Errorf("%d rounds were run, want %d", n, rounds)
	}
}

// killRound kills a proxy under its writers, looks at the disk, and starts it again.
func killRound(t *testing.T, l *lane, u *uploader) (mended int) {
	t.Helper()
	var uploading sync.WaitGroup
	uploading.Go(u.work)
	l.load(t)
	uploading.Wait()
	l.p.checkLogs(t)
	mended, notes := l.p.fsck(t)
	if notes > 0 {
		t.Errorf("fsck has %d notes about a disk that only the proxy has written", notes)
	}
	l.p.start(t)
	l.check(t)
	u.l.check(t, l.p)
	l.counts.rounds.Add(1)
	return mended
}

// An uploader is a client that uploads in parts, and deletes in batches, with a token that rises each time.
type uploader struct {
	story
	token int64
}

// work goes on until the proxy is gone.
func (u *uploader) work() {
	for !u.over() {
		u.token++
		a, b := "/bkt/jobs/uploads/a", "/bkt/jobs/uploads/deep/er/b"
		switch rand.IntN(5) {
		case 0:
			u.batch(u.token, a, b)
		case 1:
			u.upload(a, u.token, "given up", false)
		case 2:
			u.copy(b, a, u.token)
		default:
			u.upload(a, u.token, strings.Repeat(fmt.Sprintf("%d,", u.token), 1+rand.IntN(50_000)), true)
		}
	}
}
