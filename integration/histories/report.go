package histories

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A Record is a history as it is kept for people and for -recheck.
type Record struct {
	Seed    uint64
	Store   string
	Fleet   bool    // of several proxies
	Events  []Event // what was done to processes and connections
	History []Op

	Unexpected []string // answers that mean nothing to the model
}

// An Event is one deed, for the record.
type Event struct {
	What     string
	From, To time.Duration
	Met      int // whom: processes, pieces, connections, requests
}

// JudgeAll checks every resource of a record. A record that breaks the promise is kept, and of each resource that does the picture that
// porcupine draws. So is the record of a test that has failed already.
func (r Record) JudgeAll(t *testing.T) {
	t.Helper()
	for _, u := range r.Unexpected {
		t.Errorf("seed %d: an answer that means nothing: %s", r.Seed, u)
	}
	kept := ""
	if t.Failed() {
		kept = r.keep(t)
	}
	for resource, history := range perResource(r.History) {
		v := judge(history, r.Fleet)
		if v.result == porcupine.Ok {
			continue
		}
		if kept == "" {
			kept = r.keep(t)
		}
		if v.why == "" {
			picture := filepath.Join(filepath.Dir(kept), strings.ReplaceAll(resource, "/", "-")+".html")
			if err := porcupine.VisualizePath(model(r.Fleet), v.info, picture); err != nil {
				t.Errorf("no picture: %v", err)
			}
		}
		t.Errorf("%s, seed %d: the history of %s is %s. A picture is beside %s; -run TestRecheck -args -recheck=FILE looks at it again.\n%s",
			r.Store, r.Seed, resource, v.result, kept, excerpt(history, v, r.Fleet))
	}
}

// keep writes a record to a file that outlives the test, and returns its path.
func (r Record) keep(t *testing.T) string {
	t.Helper()
	file := filepath.Join(KeptDir(t), "history.json")
	text, err := json.MarshalIndent(r, "", "\t")
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s, seed %d: the history is %s", r.Store, r.Seed, file)
	return file
}

// keptDirs are the temporary directories, by test.
var keptDirs sync.Map

// KeptDir is a directory that outlives the test: that of -artifacts, or a temporary one. It is the same for all that a test leaves.
func KeptDir(t *testing.T) string {
	t.Helper()
	if f := flag.Lookup("test.artifacts"); f != nil && f.Value.String() == "true" {
		return t.ArtifactDir()
	}
	if dir, ok := keptDirs.Load(t.Name()); ok {
		return dir.(string)
	}
	dir, err := os.MkdirTemp("", "fenceproxy-history-")
	if err != nil {
		t.Fatal(err)
	}
	keptDirs.Store(t.Name(), dir)
	return dir
}

// excerpt tells where a history breaks the promise: how far it can be explained, and what stands around the first op that cannot.
func excerpt(history []Op, v verdict, fleet bool) string {
	if v.why != "" {
		return v.why
	}
	explained := longest(v.info)
	var s state
	done := make(map[Op]bool)
	for _, o := range explained {
		s, _ = s.step(o, fleet)
		done[o] = true
	}
	left := slices.DeleteFunc(prepare(history), func(o Op) bool { return done[o] })
	if len(left) == 0 {
		return "everything can be explained"
	}
	slices.SortFunc(left, func(a, b Op) int { return cmp.Compare(a.Return, b.Return) })
	var b strings.Builder
	fmt.Fprintf(&b, "%d ops can be explained, up to %+v; not what follows, from here on:\n", len(explained), s)
	first := left[0]
	slices.SortStableFunc(history, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	from := slices.IndexFunc(history, func(o Op) bool { return o.Call == first.Call && o.Client == first.Client })
	for i := max(0, from-15); i < min(len(history), from+6); i++ {
		sign := "  "
		if i == from {
			sign = "=>"
		}
		o := history[i]
		answered := "never"
		if o.Return != Forever {
			answered = fmt.Sprintf("%.3f", o.Return.Seconds())
		}
		fmt.Fprintf(&b, "%s %8.3f – %8s client %2d  %v  %s\n", sign, o.Call.Seconds(), answered, o.Client, o, o.Answer)
	}
	return b.String()
}

func longest(info porcupine.LinearizationInfo) (explained []Op) {
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, partial := range partition {
			if len(partial) > len(explained) {
				explained = explained[:0]
				for _, o := range partial {
					explained = append(explained, o.Input.(Op))
				}
			}
		}
	}
	return explained
}
