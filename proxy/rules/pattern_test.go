package rules

import (
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		match    string
		yes, not []string
	}{
		{"a", []string{"a"}, []string{"", "A", "aa", "a\n", "/a", "a/"}},
		{"a*c", []string{"ac", "abc", "a.c", "a\nc", "aécc"}, []string{"a/c", "ab", "acb"}},
		{"*", []string{"a", "jobs", ".", "\n"}, []string{"a/", "/", "a/b"}},
		{"*/x", []string{"/x", "a/x"}, []string{"x", "a/b/x"}},
		{"jobs/{job}/out", []string{"jobs/7/out", "jobs/\n/out", "jobs/é/out"}, []string{"jobs//out", "jobs/7/8/out"}},
		{"{x}", []string{"a", "日本"}, []string{"", "a/", "/a", "/"}},
		{"jobs/{job}/**", []string{"jobs/7/", "jobs/7/a", "jobs/7/a/b", "jobs/7//", "jobs/7/\n"}, []string{"jobs/7", "jobs//a", "job/7/a"}},
		{"a/**", []string{"a/", "a/b", "a//"}, []string{"a", "ab", "/a/"}},
		{"**", []string{"a", "/", "a/b\n", "日本"}, nil},
		{"a/**/b", []string{"a//b", "a/x/b", "a/x/y/b", "a/\n/b"}, []string{"a/b", "a/x/bc"}},
		{"**/b", []string{"/b", "a/b", "a/c/b"}, []string{"b", "ab"}},
		{"a.b+(c)|^$", []string{"a.b+(c)|^$"}, []string{"axb+(c)|^$", "a.bb(c)", "a.b+c", "a.b+(c)|"}},
		{"a\nb", []string{"a\nb"}, []string{"ab", "a", "b"}},
		{"über-*", []string{"über-", "über-x"}, []string{"uber-x", "\xc3"}},
		{" ", []string{" "}, []string{"", "  "}},
		{"//", []string{"//"}, []string{"/", "///"}},
	} {
		p, err := compile(test.match)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range test.yes {
			if _, ok := p.match(key); !ok {
				t.Errorf("%q does not match %q", test.match, key)
			}
		}
		for _, key := range test.not {
			if _, ok := p.match(key); ok {
				t.Errorf("%q matches %q", test.match, key)
			}
		}
	}
}

func TestMatchRefused(t *testing.T) {
	for match, want := range map[string]string{
		"":                       "is missing",
		"a?":                     "* takes any number",
		"a[bc]":                  "one rule for each case",
		"a]":                     "one rule for each case",
		`a\*`:                    "does not escape",
		"{a,b}/c":                "one rule for each",
		"a/{b":                   "do not pair",
		"a/b}":                   "do not pair",
		"a}b{":                   "stands alone",
		"job-{job}/x":            "stands alone",
		"{a}{b}":                 "stands alone",
		"{{a}}":                  "stands alone",
		"{}":                     "lower-case",
		"{Job}":                  "lower-case",
		"{1}":                    "lower-case",
		"{a b}":                  "lower-case",
		"{a}/{a}":                "stands twice",
		"{key}/x":                "another name",
		"***":                    "stands alone",
		"a**":                    "stands alone",
		"a/**b/c":                "stands alone",
		"\xff":                   "UTF-8",
		"a\uFFFD":                "UTF-8",
		strings.Repeat("a", 513): "512 is the most",
	} {
		_, err := compile(match)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v does not say %q", match, err, want)
		}
	}
	if _, err := compile(strings.Repeat("a", MaxPattern)); err != nil {
		t.Error(err)
	}
}

func TestBucketName(t *testing.T) {
	for name, bucket := range map[string]string{"*": "data", "a*": "a", "a*c": "a-b.c", "*-prod": "x-prod", "data": "data", "A_b": "A_b"} {
		p, err := compileBucket(name)
		if err != nil {
			t.Error(err)
		} else if _, ok := p.match(bucket); !ok {
			t.Errorf("%q does not match %q", name, bucket)
		}
	}
	for _, name := range []string{"", "**", "a**", "a/b", "a/*", "{x}", "a?", "a b", "é"} {
		if _, err := compileBucket(name); err == nil {
			t.Errorf("%q is taken for a bucket's name", name)
		}
	}
	p, _ := compileBucket("data")
	for _, bucket := range []string{"", "dat", "data2", "data/"} {
		if _, ok := p.match(bucket); ok {
			t.Errorf("data matches %q", bucket)
		}
	}
}

func TestTemplate(t *testing.T) {
	p, err := compile("{a}/x/{b_2}/**")
	if err != nil {
		t.Fatal(err)
	}
	key := "one/x/two/three"
	groups, ok := p.match(key)
	if !ok {
		t.Fatal("no match")
	}
	for text, want := range map[string]string{
		"":                "bucket/one/x/two/three",
		"{key}":           "bucket/one/x/two/three",
		"all":             "bucket/all",
		"{a}":             "bucket/one",
		"j/{b_2}-{a}/{a}": "bucket/j/two-one/one",
		"{a}.{key}":       "bucket/one.one/x/two/three",
	} {
		tmpl, err := compileTemplate(text, p.vars)
		if err != nil {
			t.Error(err)
		} else if got := tmpl.expand("bucket", key, groups); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"{c}":                    "there are {a}, {b_2} and {key}",
		"{a":                     "not closed",
		"a}":                     "not open",
		"{}":                     "no variable {}",
		"{a}/*":                  "no *",
		"\xff":                   "UTF-8",
		strings.Repeat("a", 513): "512 is the most",
	} {
		if _, err := compileTemplate(text, p.vars); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v does not say %q", text, err, want)
		}
	}
	if _, err := compileTemplate("{a}", nil); err == nil || !strings.Contains(err.Error(), "there is only {key}") {
		t.Errorf("error %v does not say what there is", err)
	}
}
