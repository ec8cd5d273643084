package tokens_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// TestABatchThatWaitsHoldsNothing: while an older write to one of its resources has not settled, a newer holder of another comes through at
// once.
func TestABatchThatWaitsHoldsNothing(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		older := claim(33)
		older.Resource = "bucket/b"
		open, err := admit(f, older)
		if err != nil {
			t.Fatal(err)
		}
		defer open.End()
		var batch []*tokens.Write
		for _, resource := range []string{"bucket/a", "bucket/b"} {
			c := claim(34)
			c.Resource = resource
			w, err := f.Begin(context.Background(), c)
			if err != nil {
				t.Fatal(err)
			}
			defer w.End()
			batch = append(batch, w)
		}
		var failed *tokens.Write
		result := make(chan error, 1)
		go func() {
			var err error
			failed, err = tokens.AdmitAll(context.Background(), batch)
			result <- err
		}()
		synctest.Wait()
		start := time.Now()
		mustWrite(t, f, 35) // to bucket/a
		if waited := time.Since(start); waited != 0 {
			t.Errorf("the newer holder waited for %v", waited)
		}
		open.Done()
		mustBeStale(t, <-result, 35)
		if failed != batch[0] {
			t.Error("the batch was refused for another resource")
		}
	})
}

// TestALateAnswerLeavesTheHolder: the answer to a raise comes when a higher token has been seen and bound to another holder. It does not bind
// that token to the old one.
func TestALateAnswerLeavesTheHolder(t *testing.T) {
	inBubble(t, tokens.Options{}, func(t *testing.T, m *memory, f *tokens.Fence) {
		m.hold = make(chan struct{})
		m.holdFor = func(c tokens.Claim) bool { return c.Token == 34 }
		older, newer := claim(34), claim(35)
		older.Holder, newer.Holder = "old", "new"
		result := make(chan error, 1)
		go func() {
			_, err := admit(f, older)
			result <- err
		}()
		synctest.Wait()
		for range 2 { // the second comes behind the late answer
			w, err := admit(f, newer)
			if err != nil {
				t.Fatalf("the newer holder: %v", err)
			}
			w.Done()
			w.End()
			if m.hold != nil {
				close(m.hold)
				mustBeStale(t, <-result, 35)
				synctest.Wait()
				m.hold = nil
			}
		}
	})
}
