package rules

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// naive is match by backtracking, written from the words of the package comment. It gives what the variables take.
func naive(match, key string) ([]string, bool) {
	if match == "" {
		return nil, key == ""
	}
	sign, least, slashes := "", 0, false
	switch match[0] {
	case '*':
		sign = "*"
		if strings.HasPrefix(match, "**") {
			sign, slashes = "**", true
		}
	case '{':
		sign, least = match[:strings.Index(match, "}")+1], 1
	default:
		if key == "" || key[0] != match[0] {
			return nil, false
		}
		return naive(match[1:], key[1:])
	}
	for n := len(key); n >= least; n-- { // the longest first
		if !slashes && strings.Contains(key[:n], "/") {
			continue
		}
		if vars, ok := naive(match[len(sign):], key[n:]); ok {
			if least == 1 {
				vars = append([]string{key[:n]}, vars...)
			}
			return vars, true
		}
	}
	return nil, false
}

var variable = regexp.MustCompile(`\{[a-z]+\}`)

// drawMatch makes small patterns, so that they often overlap.
func drawMatch(t *rapid.T) string {
	segments := []string{"", "a", "b", "é", "*", "a*", "*b", "a*b", "*a*", "{x}", "{y}", "**", "."}
	list := rapid.SliceOfN(rapid.SampledFrom(segments), 1, 4).Draw(t, "match")
	for i, s := range list {
		if s[:min(1, len(s))] == "{" && slices.Contains(list[:i], s) {
			list[i] = "*"
		}
	}
	if list[len(list)-1] == "" && rapid.Bool().Draw(t, "open") {
		list[len(list)-1] = "**"
	}
	if match := strings.Join(list, "/"); match != "" {
		return match
	}
	return "a/**"
}

func drawRule(t *rapid.T) Rule {
	r := Rule{Match: drawMatch(t)}
	resources := []string{"", "all", "{key}.x"}
	if vars := variable.FindAllString(r.Match, -1); len(vars) > 0 {
		resources = append(resources, vars[0], "r/"+strings.Join(vars, "/"))
	}
	r.Resource = rapid.SampledFrom(resources).Draw(t, "resource")
	return r
}

func drawKey(t *rapid.T) string {
	characters := []string{"a", "b", "/", "a/", "/b/", "é", "\n", ".", "è"}
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(characters), 0, 8).Draw(t, "key"), "")
}

// drawTable makes a table of one entry by leaving out the rules that New refuses, as it can only do for what never matches.
func drawTable(t *rapid.T) (*Table, []Rule) {
	list := rapid.SliceOfN(rapid.Custom(drawRule), 0, 4).Draw(t, "rules")
	for {
		table, err := New([]Bucket{{Name: "*", Backend: "x", Rules: list}})
		if err == nil {
			return table, list
		}
		var faults Faults
		if !errors.As(err, &faults) || !strings.Contains(faults[0].Problem, "can never match") {
			t.Fatal(err)
		}
		list = slices.Delete(slices.Clone(list), faults[0].Rule, faults[0].Rule+1)
	}
}

func TestMatchIsNaiveMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		match := drawMatch(t)
		p, err := compile(match)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			key := drawKey(t)
			want, wantOK := naive(match, key)
			groups, ok := p.match(key)
			if ok != wantOK {
				t.Fatalf("%q on %q is %v, want %v", match, key, ok, wantOK)
			}
			for i := range want {
				if got := key[groups[2*i+2]:groups[2*i+3]]; got != want[i] {
					t.Fatalf("%q on %q: variable %d takes %q, want %q", match, key, i, got, want[i])
				}
			}
			at := p.nfa.start()
			for i := range len(key) {
				if wantOK && !p.reaches(key[:i]) {
					t.Fatalf("%q matches %q but does not reach %q", match, key, key[:i])
				}
				at = p.nfa.step(&at, key[i])
			}
			if p.nfa.accepts(&at) != wantOK {
				t.Fatalf("the machine of %q on %q says %v", match, key, !wantOK)
			}
		}
	})
}

func TestPrefixHoldsForEveryKey(t *testing.T) {
	yes := 0
	rapid.Check(t, func(t *rapid.T) {
		table, list := drawTable(t)
		for range 30 {
			prefix := drawKey(t)
			want, ok := table.Prefix("b", prefix)
			if !ok {
				continue
			}
			for range 20 {
				key := prefix + drawKey(t)
				if key == "" {
					continue
				}
				yes++
				if got, _ := table.Object("b", key); got != want {
					t.Fatalf("prefix %q leads to %+v, key %q to %+v\n%+v", prefix, want, key, got, list)
				}
			}
		}
	})
	if yes == 0 {
		t.Error("no prefix drawn leads to one resource")
	}
	t.Logf("%d keys compared", yes)
}

// Prefix may not say no for ever either: below a resource of folders it says yes.
func TestPrefixBelowAFolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		folder := strings.ReplaceAll(drawKey(t), "/", "-") + "x"
		table := mustNew(t, Bucket{Name: "*", Backend: "x", Rules: []Rule{
			{Match: "a/{x}/c"},
			{Match: "{x}/{y}/**", Resource: "{y}"},
		}})
		if got, ok := table.Prefix("b", "q/"+folder+"/"+drawKey(t)); !ok || got.Resource != "b/"+folder {
			t.Fatalf("got %q %v", got.Resource, ok)
		}
	})
}

func TestFirstIsFirst(t *testing.T) {
	count := map[verdict]int{}
	rapid.Check(t, func(t *rapid.T) {
		var all []*pattern
		var matches []string
		for range rapid.IntRange(1, 5).Draw(t, "rules") {
			match := drawMatch(t)
			p, err := compile(match)
			if err != nil {
				t.Fatal(err)
			}
			all, matches = append(all, p), append(matches, match)
		}
		last := len(all) - 1
		witness, v := first(all[last], all[:last])
		count[v]++
		switch v {
		case matchable:
			if witness == "" || firstMatch(matches, witness) != last {
				t.Fatalf("%q is said to select the last of %q, but selects %d", witness, matches, firstMatch(matches, witness))
			}
		case shadowed:
			for range 50 {
				if key := drawKey(t); key != "" && firstMatch(matches, key) == last {
					t.Fatalf("the last of %q is said to be shadowed, but %q selects it", matches, key)
				}
			}
		case undecided:
			t.Fatalf("%q is too hard", matches)
		}
	})
	if count[matchable] == 0 || count[shadowed] == 0 {
		t.Errorf("the patterns drawn show nothing: %v", count)
	}
}

func firstMatch(matches []string, key string) int {
	return slices.IndexFunc(matches, func(m string) bool {
		_, ok := naive(m, key)
		return ok
	})
}

func BenchmarkObject(b *testing.B) {
	table := sample(b)
	long := strings.Repeat("x", 1000)
	for _, key := range []string{"jobs/7/out/part-1", "shared/x", "plain", "jobs/7/" + long, long} {
		b.Run(fmt.Sprintf("%.12s-%d", strings.ReplaceAll(key, "/", "."), len(key)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := table.Object("bucket", key); !ok {
					b.Fatal("no target")
				}
			}
		})
	}
}

func BenchmarkPrefix(b *testing.B) {
	table := sample(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := table.Prefix("bucket", "jobs/7/out/"); !ok {
			b.Fatal("no target")
		}
	}
}
