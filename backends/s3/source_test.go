package s3

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// newTestSource is a source as an exchange makes it. boot is its clock.
func newTestSource(t *testing.T, content string, boot func() time.Duration) *source {
	d := newDeadline(boot, time.Minute, func() {})
	t.Cleanup(func() { d.timer.Stop() })
	return newSource(strings.NewReader(content), int64(len(content)), d)
}

// TestFirstByteWaits: once the store has begun to answer, the body is not touched before it is known what it answers.
func TestFirstByteWaits(t *testing.T) {
	for name, test := range map[string]struct {
		then func(*source, chan struct{})
		want string
	}{
		"100":             {func(s *source, _ chan struct{}) { close(s.wanted) }, "content"},
		"a final answer":  {func(s *source, _ chan struct{}) { close(s.answered); s.stop() }, ""},
		"the end":         {func(s *source, _ chan struct{}) { s.stop() }, ""},
		"hangs up":        {func(_ *source, gone chan struct{}) { close(gone) }, "content"}, // there is nobody to read it
		"nothing follows": {func(*source, chan struct{}) { time.Sleep(answerWait) }, "content"},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newTestSource(t, "content", func() time.Duration { return 0 })
			gone := make(chan struct{})
			s.gone = gone
			s.begun.Store(true)
			var reads atomic.Int32
			content := s.body
			s.body = readerFunc(func(p []byte) (int, error) { reads.Add(1); return content.Read(p) })
			read := make(chan string, 1)
			go func() {
				p, _ := io.ReadAll(s)
				read <- string(p)
			}()
			synctest.Wait()
			if n := reads.Load(); n > 0 {
				t.Errorf("the body was read %d times", n)
			}
			if strings.HasPrefix(name, "a final") || name == "the end" {
				go test.then(s, gone) // stop waits for the Read
			} else {
				test.then(s, gone)
			}
			if got := <-read; got != test.want {
				t.Errorf("%q was read", got)
			}
		})
	}
}

// TestLateEnd: when the machine slept at the gate the end stays where it is.
func TestLateEnd(t *testing.T) {
	for _, framed := range []bool{false, true} {
		var looks time.Duration
		s := newTestSource(t, "content", func() time.Duration { looks += time.Hour; return looks })
		if framed {
			s.frames = newFramer(chain{}, trailer{})
		}
		got, err := io.ReadAll(s)
		if !errors.Is(err, errLate) || len(got) > 6 || s.end.Load() != aborted {
			t.Errorf("in frames %v: %q, %v", framed, got, err)
		}
		if again, err := io.ReadAll(s); len(again) > 0 || err == nil {
			t.Errorf("in frames %v, read again: %q, %v", framed, again, err)
		}
	}
}
