package rules

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func mustNew(t interface {
	Helper()
	Fatal(...any)
}, buckets ...Bucket,
) *Table {
	t.Helper()
	table, err := New(buckets)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func sample(t testing.TB) *Table {
	return mustNew(t,
		Bucket{Name: "logs-*", Backend: "cold", BucketWrites: Deny},
		Bucket{Name: "*", Backend: "local", BucketWrites: Fence, Rules: []Rule{
			{Match: "jobs/{job}/tmp/**", Token: Off},
			{Match: "jobs/{job}/**", Resource: "jobs/{job}", Token: Required, HolderRequired: true, MaxAdvance: 9, Reads: Plain, Refuse: 403},
			{Match: "shared/**", Resource: "shared", WriteOnce: true, RequireCondition: true, Unconditional: true},
			{Match: "each/**"},
			{Match: "*/{x}/**", Resource: "by/{x}"},
		}})
}

func TestObject(t *testing.T) {
	plain := Policy{Refuse: 412}
	jobs := Policy{Token: Required, HolderRequired: true, MaxAdvance: 9, Reads: Plain, Refuse: 403}
	table := sample(t)
	for _, test := range []struct {
		bucket, key string
		want        Target
	}{
		{"logs-1", "a/b", Target{plain, "cold", "logs-1/a/b", true, `the built-in rule of bucket "logs-*"`}},
		{"b", "jobs/7/x", Target{jobs, "local", "b/jobs/7", true, `rule "jobs/{job}/**" of bucket "*"`}},
		{"b", "jobs/7/", Target{jobs, "local", "b/jobs/7", true, `rule "jobs/{job}/**" of bucket "*"`}},
		{"b", "jobs/7", Target{plain, "local", "b/jobs/7", true, `the built-in rule of bucket "*"`}},
		{"b", "jobs/7/tmp/x", Target{Policy{Token: Off, Refuse: 412}, "local", "b/jobs/7/tmp/x", false, `rule "jobs/{job}/tmp/**" of bucket "*"`}},
		{"b", "shared/x", Target{Policy{WriteOnce: true, RequireCondition: true, Refuse: 412, Unconditional: true}, "local", "b/shared", true, `rule "shared/**" of bucket "*"`}},
	} {
		got, ok := table.Object(test.bucket, test.key)
		if diff := cmp.Diff(test.want, got); diff != "" || !ok {
			t.Errorf("%s/%s: %v %s", test.bucket, test.key, ok, diff)
		}
	}
	if _, ok := table.Object("b", ""); ok {
		t.Error("the empty key leads somewhere")
	}
	if _, ok := mustNew(t, Bucket{Name: "a", Backend: "x"}).Object("b", "k"); ok {
		t.Error("a bucket without an entry leads somewhere")
	}
}

func TestBucket(t *testing.T) {
	table := sample(t)
	got, ok := table.Bucket("logs-7")
	if want := (BucketTarget{"cold", Deny, "logs-7/"}); got != want || !ok {
		t.Errorf("got %v %v, want %v", got, ok, want)
	}
	got, ok = table.Bucket("other")
	if want := (BucketTarget{"local", Fence, "other/"}); got != want || !ok {
		t.Errorf("got %v %v, want %v", got, ok, want)
	}
	for _, name := range []string{"", "a/b"} {
		if _, ok := table.Bucket(name); ok {
			t.Errorf("%q leads somewhere", name)
		}
	}
}

func TestPrefix(t *testing.T) {
	table := sample(t)
	for prefix, want := range map[string]string{
		"":             "",
		"j":            "",
		"jobs/7":       "", // jobs/70/x
		"jobs/7/":      "", // jobs/7/tmp/ is not fenced
		"jobs/7/t":     "",
		"jobs/7/x":     "b/jobs/7",
		"jobs/7/x/y/z": "b/jobs/7",
		"jobs/7/tmp/":  "", // each object its own resource
		"shared":       "",
		"shared/":      "b/shared",
		"each/x/":      "",
		"foo/bar/":     "b/by/bar",
		"foo/bar":      "",
		"foo//":        "",
	} {
		got, ok := table.Prefix("b", prefix)
		if ok != (want != "") || got.Resource != want {
			t.Errorf("%q: got %q %v, want %q", prefix, got.Resource, ok, want)
		}
	}
	if _, ok := mustNew(t, Bucket{Name: "a", Backend: "x"}).Prefix("b", "k"); ok {
		t.Error("a bucket without an entry leads somewhere")
	}
	loose := mustNew(t, Bucket{Name: "*", Backend: "x", Rules: []Rule{
		{Match: "**/all/**", Resource: "all"},
	}})
	if got, ok := loose.Prefix("b", "a/all/b"); !ok || got.Resource != "b/all" {
		t.Errorf("got %q %v", got.Resource, ok)
	}
	loose = mustNew(t, Bucket{Name: "*", Backend: "x", Rules: []Rule{{Match: "**/{x}/end/**", Resource: "{x}"}}})
	if got, ok := loose.Prefix("b", "a/b/end/c"); ok {
		t.Errorf("got %q, but a/b/end/c/d/end/ is another resource", got.Resource)
	}
}

func TestFaults(t *testing.T) {
	_, err := New([]Bucket{
		{Name: "a?", Rules: []Rule{{Match: "x", Resource: "{y}", Refuse: 500, MaxAdvance: -1}}},
		{Name: "b*", Backend: "x", Rules: []Rule{
			{Match: "[", Token: Off, HolderRequired: true, MaxAdvance: 1},
			{Match: "jobs/**"},
			{Match: "jobs/{job}/**"},
			{Match: "a/{x}"},
			{Match: "a/"},
			{Match: "a/*"},
		}},
		{Name: "bc", Backend: "x"},
	})
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatalf("got %v", err)
	}
	var got []string
	for _, f := range faults {
		got = append(got, fmt.Sprintf("%d %d %s", f.Bucket, f.Rule, f.Field))
	}
	want := []string{
		"0 -1 name", "0 -1 backend", "0 0 refuse", "0 0 max_advance", "0 0 resource",
		"1 0 holder", "1 0 max_advance", "1 0 match", "1 2 match", "1 5 match", "2 -1 name",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for i, text := range map[int]string{
		8:  `bucket entry 2, rule 3: match: "jobs/{job}/**" can never match: every key it matches is taken by rule 2, "jobs/**", above it`,
		9:  `bucket entry 2, rule 6: match: "a/*" can never match: every key it matches is taken by the rules above it`,
		10: `bucket entry 3: name: "bc" can never match: every bucket it matches is taken by entry 2, "b*", above it`,
	} {
		if i < len(faults) && faults[i].Error() != text {
			t.Errorf("got  %s\nwant %s", faults[i], text)
		}
	}
}

func TestEmptyTable(t *testing.T) {
	if _, ok := mustNew(t).Object("b", "k"); ok {
		t.Error("an empty table leads somewhere")
	}
}

func TestSpelling(t *testing.T) {
	for _, p := range []TokenPolicy{Optional, Required, Off} {
		if got, err := ParseTokenPolicy(p.String()); got != p || err != nil {
			t.Errorf("%v: got %v, %v", p, got, err)
		}
	}
	for _, p := range []ReadPolicy{Announce, Plain} {
		if got, err := ParseReadPolicy(p.String()); got != p || err != nil {
			t.Errorf("%v: got %v, %v", p, got, err)
		}
	}
	for _, w := range []BucketWrites{Allow, Deny, Fence} {
		if got, err := ParseBucketWrites(w.String()); got != w || err != nil {
			t.Errorf("%v: got %v, %v", w, got, err)
		}
	}
	if _, err := ParseTokenPolicy("Required"); err == nil || err.Error() != `"Required" must be optional, required or off` {
		t.Errorf("got %v", err)
	}
	if _, err := ParseReadPolicy(""); err == nil || err.Error() != `"" must be announce or plain` {
		t.Errorf("got %v", err)
	}
	if got := TokenPolicy(9).String(); got != "(9)" {
		t.Errorf("got %q", got)
	}
}

// A table that somebody might have, and one made to be hard, are checked in the time of a start.
func TestNewIsQuick(t *testing.T) {
	var many []Rule
	for i := range 300 {
		many = append(many, Rule{Match: fmt.Sprintf("tenant-%03d/*/data/{x}/**", i), Resource: "{x}"})
	}
	var hard []Rule
	for i := range 5 {
		hard = append(hard, Rule{Match: strings.Repeat("*"+string(rune('a'+i))+"*b", 100)})
	}
	for name, list := range map[string][]Rule{"many": many, "hard": hard} {
		start := time.Now()
		mustNew(t, Bucket{Name: "*", Backend: "x", Rules: list})
		t.Logf("%s: %v", name, time.Since(start))
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("%s: took %v", name, d)
		}
	}
}
