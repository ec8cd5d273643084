package audit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRunsAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newRuns(100)
		type tally struct {
			first, last time.Time
			count       int64
		}
		model := map[int64][]*tally{}
		got := map[*run]bool{}
		now := epoch
		for range rapid.IntRange(1, 60).Draw(rt, "refusals") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, time.Minute, runGap - 1, runGap, 5 * time.Hour}).Draw(rt, "pause"))
			r := refusal()
			r.Token, r.Time, r.Last, r.Count = rapid.Int64Range(1, 2).Draw(rt, "token"), now, now, 1
			u, _ := s.join(r)
			got[u] = true
			runs := model[r.Token]
			if n := len(runs); n == 0 || now.Sub(runs[n-1].last) >= runGap || now.Sub(runs[n-1].first) >= runLength {
				runs = append(runs, &tally{first: now})
				model[r.Token] = runs
			}
			runs[len(runs)-1].last, runs[len(runs)-1].count = now, runs[len(runs)-1].count+1
			if want := runs[len(runs)-1]; u.count != want.count || !u.first.Equal(want.first) || !u.last.Equal(want.last) {
				rt.Fatalf("run %+v, want %+v", u, want)
			}
		}
		if n := len(model[1]) + len(model[2]); len(got) != n {
			rt.Fatalf("%d runs, want %d", len(got), n)
		}
	})
}

func TestTheQuietestRunIsForgotten(t *testing.T) {
	s := newRuns(2)
	join := func(token int64) (first bool) {
		r := refusal()
		r.Token, r.Time, r.Last = token, epoch, epoch
		_, first = s.join(r)
		return first
	}
	for i, c := range []struct {
		token int64
		first bool
	}{{1, true}, {2, true}, {1, false}, {3, true}, {1, false}, {2, true}} {
		if got := join(c.token); got != c.first {
			t.Errorf("step %d, token %d: first = %v, want %v", i, c.token, got, c.first)
		}
	}
}
