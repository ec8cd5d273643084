package rules

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestMappings(t *testing.T) {
	for name, test := range map[string]struct {
		rules []Rule
		want  []MappingRule
	}{
		"none": {},
		"policy only": {rules: []Rule{
			{Match: "once/**", WriteOnce: true}, {Match: "cas/{x}", RequireCondition: true, Resource: "{key}"}, {Match: "**", Token: Required},
		}},
		"policy on what maps": {
			rules: []Rule{{Match: "jobs/{job}/**", Resource: "jobs/{job}", Token: Required, HolderRequired: true, MaxAdvance: 9, Reads: Plain, Refuse: 403}},
			want:  []MappingRule{{Match: "jobs/{job}/**", Resource: "jobs/{job}"}},
		},
		"off": {
			rules: []Rule{{Match: "free/**", Token: Off, Resource: "whatever"}},
			want:  []MappingRule{{Match: "free/**", Off: true}},
		},
		"a plain rule before one that takes some of its keys": {
			rules: []Rule{{Match: "jobs/7/**", WriteOnce: true}, {Match: "jobs/{job}/**", Resource: "jobs/{job}"}},
			want:  []MappingRule{{Match: "jobs/7/**", Resource: "{key}"}, {Match: "jobs/{job}/**", Resource: "jobs/{job}"}},
		},
		"a plain rule before one that takes none of its keys": {
			rules: []Rule{{Match: "logs/**", WriteOnce: true}, {Match: "jobs/{job}/**", Resource: "jobs/{job}"}},
			want:  []MappingRule{{Match: "jobs/{job}/**", Resource: "jobs/{job}"}},
		},
		"a plain rule behind": {
			rules: []Rule{{Match: "jobs/{job}/**", Resource: "jobs/{job}"}, {Match: "jobs/**", WriteOnce: true}},
			want:  []MappingRule{{Match: "jobs/{job}/**", Resource: "jobs/{job}"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := mustNew(t, Bucket{Name: "first", Backend: "x"}, Bucket{Name: "*", Backend: "y", Rules: test.rules, BucketWrites: Deny})
			want := []Mapping{{Name: "first", Backend: "x"}, {Name: "*", Backend: "y", Rules: test.want}}
			if diff := cmp.Diff(want, table.Mappings()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Rules with equal mappings lead every key to the same resource: what is left out of a mapping makes no difference.
func TestEqualMappingsMapAlike(t *testing.T) {
	alike := 0
	rapid.Check(t, func(t *rapid.T) {
		table, list := drawTable(t)
		at := rapid.IntRange(0, len(list)).Draw(t, "at")
		more, err := New([]Bucket{{Name: "*", Backend: "x", Rules: slices.Insert(slices.Clone(list), at, Rule{Match: drawMatch(t), WriteOnce: true})}})
		if err != nil || !cmp.Equal(table.Mappings(), more.Mappings()) {
			return // a rule that can never match, or one that takes keys from a rule behind it
		}
		alike++
		for range 30 {
			key := drawKey(t)
			was, ok1 := table.Object("b", key)
			is, ok2 := more.Object("b", key)
			if ok1 != ok2 || was.Resource != is.Resource || was.Fenced != is.Fenced {
				t.Fatalf("%+v with a plain rule at %d leads %q to %q and not to %q", list, at, key, is.Resource, was.Resource)
			}
		}
	})
	if alike == 0 {
		t.Error("no added rule left the mapping as it was")
	}
}

// TestMeet against all short names.
func TestMeet(t *testing.T) {
	var short []string
	for names := []string{""}; len(names[0]) < 5; {
		var longer []string
		for _, n := range names {
			for _, c := range "abz" {
				longer = append(longer, n+string(c))
			}
		}
		short = append(short, longer...)
		names = longer
	}
	draw := func(t *rapid.T, label string) ([]string, *Names) {
		texts := rapid.SliceOfN(rapid.StringMatching(`[ab*]{1,3}`).Filter(func(s string) bool { return !strings.Contains(s, "**") }), 1, 3).Draw(t, label)
		n, err := NewNames(texts)
		if err != nil {
			t.Fatal(err)
		}
		return texts, n
	}
	rapid.Check(t, func(t *rapid.T) {
		one, here := draw(t, "here")
		other, there := draw(t, "there")
		for i := range one {
			for j := range other {
				found := slices.ContainsFunc(short, func(b string) bool { return here.First(b) == i && there.First(b) == j })
				bucket, ok := here.Meet(i, there, j)
				if ok != found {
					t.Fatalf("%q at %d and %q at %d: %q %v, want %v", one, i, other, j, bucket, ok, found)
				}
				if ok && (here.First(bucket) != i || there.First(bucket) != j) {
					t.Fatalf("%q at %d and %q at %d do not meet in %q", one, i, other, j, bucket)
				}
			}
		}
	})
}

func TestNewNamesRefuses(t *testing.T) {
	if _, err := NewNames([]string{"a", "b?"}); err == nil || !strings.Contains(err.Error(), `"b?"`) {
		t.Errorf("%v", err)
	}
}
