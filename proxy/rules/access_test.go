package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAccessBucket(t *testing.T) {
	for _, test := range []struct {
		patterns []string
		in, out  string // names, with spaces between them
	}{
		{nil, "a b.c A", ""},
		{[]string{}, "a b.c A", ""},
		{[]string{"a"}, "a", "A aa b"},
		{[]string{"a", "b-*"}, "a b- b-1 b-1-2", "ab b c-1 ab-1"},
		{[]string{"*"}, "a b.c A", ""},
		{[]string{"*-logs"}, "-logs a-logs a-logs-logs", "logs a-log a-logs1"},
		{[]string{"a*b*c"}, "abc axbxc abbcc abcbc", "ab abcd bc xabc acb"},
		{[]string{"a*a"}, "aa aaa aba", "a ab ba"},
	} {
		a := &Access{Buckets: test.patterns}
		for _, name := range strings.Fields(test.in) {
			if !a.Bucket(name) || !a.Key(name, "k") || !a.List(name, "") {
				t.Errorf("%q: %s is out of reach", test.patterns, name)
			}
		}
		for _, name := range strings.Fields(test.out) {
			if a.Bucket(name) || a.Key(name, "k") || a.List(name, "") {
				t.Errorf("%q: %s is within reach", test.patterns, name)
			}
		}
	}
}

// A list shows every key with its prefix: all of them are to be within reach, so that the prefix is judged as a key is.
func TestAccessPrefixes(t *testing.T) {
	a := &Access{Buckets: []string{"b", "c*"}, Prefixes: []string{"jobs/7/", "tmp", "é/"}}
	for _, key := range []string{"jobs/7/", "jobs/7/x", "jobs/7//", "tmp", "tmp/x", "tmpfile", "é/x"} {
		if !a.Key("b", key) || !a.List("b", key) || !a.Key("c1", key) {
			t.Errorf("%q is out of reach", key)
		}
		if a.Key("a", key) || a.List("a", key) {
			t.Errorf("%q is within reach in a bucket that is not", key)
		}
	}
	for _, key := range []string{"", "j", "jobs/", "jobs/7", "jobs/70/x", "/jobs/7/x", "Jobs/7/x", "jobs%2F7%2Fx", "tm", "x/tmp", "e\u0301/x", "\xc3"} {
		if a.Key("b", key) || a.List("b", key) {
			t.Errorf("%q is within reach", key)
		}
	}
	if !a.Bucket("b") || a.Bucket("a") {
		t.Error("prefixes have changed which buckets are within reach")
	}
}

func TestAccessWithoutBounds(t *testing.T) {
	for _, a := range []*Access{nil, {}, {ReadOnly: true}, {Buckets: []string{}, Prefixes: []string{}}} {
		if !a.Bucket("b") || !a.Key("b", "k") || !a.List("b", "") || !a.List("b", "x/") {
			t.Errorf("%+v bounds something", a)
		}
	}
}

// TestAccessAgreesWithBucketEntries: a pattern matches the same names in an access key and in a bucket entry.
func TestAccessAgreesWithBucketEntries(t *testing.T) {
	words := func(letters string) (all []string) {
		all = []string{""}
		for i := 0; len(all[i]) < 5; i++ {
			for _, c := range letters {
				all = append(all, all[i]+string(c))
			}
		}
		return all[1:]
	}
	for _, text := range words("ab*") {
		p, err := compileBucket(text)
		if err != nil {
			continue // **
		}
		for _, name := range words("ab") {
			_, want := p.match(name)
			if got := matchesStars(text, name); got != want {
				t.Fatalf("%q and %q: %v, and in a bucket entry %v", text, name, got, want)
			}
		}
	}
}

func TestCheckAccess(t *testing.T) {
	table := mustNew(t, Bucket{Name: "jobs", Backend: "x"}, Bucket{Name: "logs-*", Backend: "x"})
	for _, test := range []struct {
		access Access
		want   []string // field, index, the beginning of the problem
	}{
		{Access{}, nil},
		{Access{Buckets: []string{"jobs", "logs-1", "logs-2*"}, Prefixes: []string{"a/", "b", "a"}}, nil},
		{Access{Buckets: []string{"*"}}, nil},
		{Access{Buckets: []string{"*-1", "l*"}}, nil},
		{Access{Buckets: []string{"job"}}, []string{`buckets 0 "job" matches no bucket`}},
		{Access{Buckets: []string{"jobs", "log-*"}}, []string{`buckets 1 "log-*" matches no bucket`}},
		{Access{Buckets: []string{"jobs", "logs-*", "logs-1", "jobs"}}, []string{
			`buckets 2 "logs-1" adds nothing`, `buckets 3 "jobs" adds nothing`,
		}},
		{Access{Buckets: []string{"", "jobs/x", "**"}}, []string{
			`buckets 0 name is missing`, `buckets 1 "jobs/x": a bucket's name has`, `buckets 2 "**": write one *`,
		}},
		{Access{Prefixes: []string{"", "a/", "a/b", "c", "c", "x*", "\xff", strings.Repeat("x", MaxPattern+1)}}, []string{
			`prefixes 0 the empty prefix`, `prefixes 2 "a/b" adds nothing: every key it begins begins with "a/"`, `prefixes 4 "c" adds nothing`,
			`prefixes 5 "x*": a prefix is compared byte by byte`, `prefixes 6 the prefix is not valid UTF-8`, `prefixes 7 the prefix has 513 bytes`,
		}},
	} {
		var got []string
		for i, f := range table.CheckAccess(&test.access) {
			text := fmt.Sprintf("%s %d %s", f.Field, f.Index, f.Problem)
			if i < len(test.want) {
				text = text[:min(len(text), len(test.want[i]))]
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%+v: %s", test.access, diff)
		}
	}
}
