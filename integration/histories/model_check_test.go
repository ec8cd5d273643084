package histories

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A story is a history written by hand: each op is called and answered before the next is, unless during or lateBy says otherwise.
type story []Op

func written(key int, token, value int64) Op {
	return Op{Kind: Put, Key: key, Token: token, Value: value, Outcome: Success}
}

func deleted(key int, token int64) Op {
	return Op{Kind: Delete, Key: key, Token: token, Outcome: Success}
}

func read(key int, value int64) Op { return Op{Kind: Look, Key: key, Value: value, Outcome: Success} }

func readWith(token int64, key int, value int64) Op {
	return Op{Kind: Get, Key: key, Token: token, Highest: token, Value: value, Outcome: Success}
}

func (o Op) whileAt(highest int64) Op {
	o.Highest = highest
	return o
}

func announced(token int64) Op { return Op{Kind: Announce, Token: token, Outcome: Success} }

func (o Op) refusedAt(highest int64) Op {
	o.Outcome, o.Highest = Stale, highest
	return o
}

func (o Op) ended(how Outcome) Op {
	o.Outcome = how
	return o
}

// during gives an op the interval of places i to j of the story.
func (o Op) during(i, j int) Op {
	o.Call, o.Return = at(i), at(j)+time.Millisecond
	return o
}

func at(place int) time.Duration { return time.Duration(place) * 10 * time.Millisecond }

func (s story) history() (history []Op) {
	for i, o := range s {
		if o.Return == 0 {
			o = o.during(i, i)
		}
		if o.Outcome == Unknown {
			o.Return = Forever
		}
		o.Client, o.Resource = i, "r"
		history = append(history, o)
	}
	return history
}

// TestChecker: the checker lets pass what the promise allows, and finds what it forbids. A checker that cannot fail checks nothing.
func TestChecker(t *testing.T) {
	good := map[string]story{
		"nothing written":                      {read(0, 0)},
		"newer after older":                    {written(0, 1, 10), written(0, 2, 20), read(0, 20)},
		"equal tokens side by side":            {written(0, 1, 10), written(0, 1, 11), read(0, 11), written(0, 1, 12), read(0, 12)},
		"equal tokens at once, either order":   {written(0, 1, 10).during(0, 2), written(0, 1, 11).during(0, 2), read(0, 11).during(3, 3), read(0, 11)},
		"stale one refused":                    {written(0, 2, 20), written(0, 1, 10).refusedAt(2), read(0, 20)},
		"refused by one that is under way":     {written(0, 2, 20).during(0, 5), written(0, 1, 10).refusedAt(2).during(1, 1), read(0, 0).during(2, 2), read(0, 20).during(6, 6)},
		"refused by one that never took place": {written(0, 2, 20).ended(Unknown), written(0, 1, 10).refusedAt(2), read(0, 0)},
		"seen, forgotten by a kill, let in":    {written(0, 2, 20).ended(Unknown), written(0, 1, 10).refusedAt(2), written(0, 1, 11), read(0, 11)},
		"unknown, took effect":                 {written(0, 1, 10).ended(Unknown), read(0, 10)},
		"unknown, took no effect":              {written(0, 1, 10).ended(Unknown), read(0, 0), written(0, 1, 11), read(0, 11)},
		"unknown, took effect late":            {written(0, 1, 10).ended(Unknown), read(0, 0), written(0, 1, 11), read(0, 11), read(0, 10)},
		"unknown, late, then a newer one":      {written(0, 1, 10).ended(Unknown), read(0, 0), read(0, 10), written(0, 2, 20), read(0, 20)},
		"unknown, and nobody can know":         {written(0, 1, 10).ended(Unknown), written(0, 2, 20), read(0, 20)},
		"did nothing":                          {written(0, 1, 10).ended(Nothing), read(0, 0)},
		"deleted":                              {written(0, 1, 10), deleted(0, 1), read(0, 0)},
		"unknown delete took effect late":      {written(0, 1, 10), deleted(0, 1).ended(Unknown), read(0, 10), read(0, 0)},
		"unknown delete took no effect":        {written(0, 1, 10), deleted(0, 1).ended(Unknown), read(0, 10), written(0, 2, 20), read(0, 20)},
		"unknown delete, then empty anyway":    {deleted(0, 1).ended(Unknown), read(0, 0), written(0, 2, 20), read(0, 20)},
		"announced, then newer":                {announced(1), written(0, 2, 20), read(0, 20)},
		"announced without an answer":          {announced(2).ended(Unknown), written(0, 1, 10), read(0, 10)},
		"another key of the resource":          {written(0, 1, 10), written(1, 2, 20), read(0, 10), read(1, 20)},
		"a stale reader is served":             {written(0, 2, 20), readWith(1, 0, 20), written(0, 2, 21)},
		"a stale reader raises nothing":        {written(0, 3, 30).during(0, 5), readWith(2, 0, 0).whileAt(3).during(1, 1), written(0, 1, 10).during(0, 4), read(0, 10).during(3, 3)},
		"a read overlaps a write":              {written(0, 1, 10).during(0, 2), read(0, 0).during(0, 1), read(0, 10).during(3, 3)},
		"without a token, before any":          {written(0, 0, 10), read(0, 10), written(0, 1, 11), written(0, 0, 12).refusedAt(1), read(0, 11)},
	}
	for name, s := range good {
		if v := judge(s.history(), false); v.result != porcupine.Ok {
			t.Errorf("%s: %s, and it keeps the promise. %s", name, v.result, v.why)
		}
	}
	const behind = "refused for a token below what was answered"
	bad := map[string]story{
		"stale write answered after a newer one":   {written(0, 2, 20), written(0, 1, 10)},
		"stale write seen after a newer one":       {written(0, 1, 10).ended(Unknown), written(0, 2, 20), read(0, 20), read(0, 10)},
		"stale write under a newer announcement":   {written(0, 1, 10).ended(Unknown), announced(2), read(0, 0), read(0, 10)},
		"stale write to another key":               {written(1, 1, 10).ended(Unknown), written(0, 2, 20), read(1, 0), read(1, 10)},
		"stale write after a newer reader's look":  {written(0, 1, 10).ended(Unknown), readWith(2, 0, 0), read(0, 10)},
		"stale write after a newer unanswered one": {written(0, 2, 20).ended(Unknown), read(0, 20), written(0, 1, 10)},
		"stale delete after a newer write":         {deleted(0, 1).ended(Unknown), written(0, 2, 20), read(0, 20), read(0, 0)},
		"stale delete answered":                    {written(0, 2, 20), deleted(0, 1)},
		"without a token after one":                {written(0, 1, 10), written(0, 0, 11)},
		"announced after a higher one":             {announced(2), announced(1)},
		"lost write":                               {written(0, 1, 10), read(0, 0)},
		"lost write, the one before is back":       {written(0, 1, 10), written(0, 1, 11), read(0, 11), read(0, 10)},
		"lost delete":                              {written(0, 1, 10), deleted(0, 1), read(0, 10)},
		"stale read":                               {written(0, 1, 10), written(0, 2, 20), read(0, 10)},
		"reads go back":                            {written(0, 1, 10).during(0, 9), read(0, 10).during(1, 1), read(0, 0).during(2, 2)},
		"refused, and shows up":                    {written(0, 2, 20), written(0, 1, 10).refusedAt(2), read(0, 10)},
		"did nothing, and shows up":                {written(0, 1, 10).ended(Nothing), read(0, 10)},
		"takes effect twice":                       {written(0, 1, 10).ended(Unknown), read(0, 10), written(0, 1, 11), read(0, 11), read(0, 10)},
		"content of nobody":                        {written(0, 1, 10), read(0, 99)},
		"read before it was sent":                  {read(0, 10), written(0, 1, 10).ended(Unknown)},
		behind:                                     {written(0, 2, 20), written(0, 3, 30), written(0, 1, 10).refusedAt(2)},
		"refused for its own token":                {written(0, 2, 20), written(0, 2, 21).refusedAt(2)},
		"refused for a token that nobody has sent": {written(0, 2, 20), written(0, 1, 10).refusedAt(7)},
		"refused for a token that is sent later":   {written(0, 1, 10).refusedAt(2), written(0, 2, 20)},
	}
	// A proxy of a fleet may refuse by what it knew before another one raised it.
	if v := judge(bad[behind].history(), true); v.result != porcupine.Ok {
		t.Errorf("in a fleet, %s: %s", behind, v.result)
	}
	fleet := maps.Clone(bad)
	delete(fleet, behind)
	for name, s := range fleet {
		if v := judge(s.history(), true); v.result != porcupine.Illegal {
			t.Errorf("in a fleet, %s: %s, and it breaks the promise", name, v.result)
		}
	}
	for name, s := range bad {
		if v := judge(s.history(), false); v.result != porcupine.Illegal {
			t.Errorf("%s: %s, and it breaks the promise", name, v.result)
		}
	}
}

// TestExcerpt: what people get to read of a violation names the ops at which it stands.
func TestExcerpt(t *testing.T) {
	history := story{written(0, 1, 10), written(0, 2, 20), written(1, 1, 11), read(0, 20)}.history()
	v := judge(history, false)
	text := excerpt(history, v, false)
	if !strings.Contains(text, "PUT r/1 = 11, token 1") {
		t.Errorf("the stale write is not in\n%s", text)
	}
}
