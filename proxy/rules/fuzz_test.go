package rules

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzMatch: a pattern that is taken matches the keys that its words say, and what it takes of them makes one name under the bucket's.
func FuzzMatch(f *testing.F) {
	f.Add("jobs/{job}/**", "jobs/7/out.txt")
	f.Add("**", "a//b/../é\x00")
	f.Add("a*b/{x}", "ab/c")
	f.Add("*/**", "x/")
	f.Fuzz(func(t *testing.T, match, key string) {
		if len(match) > 30 || len(key) > 40 || key == "" || !utf8.ValidString(key) || strings.Count(match, "*") > 5 { // naive tries every way
			return
		}
		p, err := compile(match)
		if err != nil {
			return
		}
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
		table, err := New([]Bucket{{Name: "*", Backend: "b", Rules: []Rule{{Match: match}}}})
		if err != nil {
			return
		}
		if target, ok := table.Object("bucket", key); !ok || target.Resource != "bucket/"+key {
			t.Fatalf("%q by %q has the resource %q", key, match, target.Resource)
		}
	})
}
