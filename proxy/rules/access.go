package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// An Access is what one access key may do. The zero Access and nil may do everything.
type Access struct {
	Buckets  []string // patterns of names, as those of [Bucket]; none: every bucket
	Prefixes []string // of keys, byte by byte: "jobs/7" is that of "jobs/70", too; none: every key
	ReadOnly bool     // no writes, and nothing that raises a fence
}

// Bucket says whether a bucket is within reach, or at least some of its keys.
func (a *Access) Bucket(name string) bool {
	if a == nil || len(a.Buckets) == 0 {
		return true
	}
	return slices.ContainsFunc(a.Buckets, func(pattern string) bool { return matchesStars(pattern, name) })
}

// Key says whether an object is within reach. The key is as the store sees it, percent-decoded.
func (a *Access) Key(bucket, key string) bool { return a.List(bucket, key) }

// List says whether every key that begins with prefix is within reach, stored or not.
func (a *Access) List(bucket, prefix string) bool {
	if !a.Bucket(bucket) {
		return false
	}
	if a == nil || len(a.Prefixes) == 0 {
		return true
	}
	return slices.ContainsFunc(a.Prefixes, func(p string) bool { return strings.HasPrefix(prefix, p) })
}

// matchesStars compares a whole name with a pattern in which * takes any number of bytes. The last star alone is ever tried again, so
// that the time is bounded by the product of the lengths.
func matchesStars(pattern, name string) bool {
	star, again := -1, 0 // where the last star stands, and what follows it is tried from
	p := 0
	for n := 0; n < len(name); {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, again = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p, n = p+1, n+1
		case star >= 0:
			again++
			p, n = star+1, again
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// An AccessFault is one thing wrong with an [Access].
type AccessFault struct {
	Field   string // buckets or prefixes
	Index   int    // in that list
	Problem string // a sentence that says what would be right
}

// CheckAccess says what is wrong with an Access: patterns that mean nothing or match no bucket of the table, prefixes that cannot begin a key, and
// entries that add nothing to those before them. A nil Table has every bucket.
func (t *Table) CheckAccess(a *Access) (faults []AccessFault) {
	check := func(field string, index int, err error) {
		if err != nil {
			faults = append(faults, AccessFault{field, index, err.Error()})
		}
	}
	var names namedPatterns
	for i, name := range a.Buckets {
		check("buckets", i, t.checkReach(name, &names))
	}
	for i, prefix := range a.Prefixes {
		check("prefixes", i, checkPrefix(prefix, a.Prefixes[:i]))
	}
	return faults
}

// checkReach is an error where a pattern of buckets means nothing, matches nothing, or matches nothing beside those before it.
func (t *Table) checkReach(name string, before *namedPatterns) error {
	p, err := compileBucket(name)
	if err != nil {
		return err
	}
	if _, v := first(p, before.patterns); v == shadowed {
		return fmt.Errorf("%q adds nothing: every bucket it matches is matched by those before it; take it out", name)
	}
	before.add(p, len(before.patterns))
	if !t.meets(p) {
		return fmt.Errorf("%q matches no bucket that an entry of the configuration's buckets matches; mend the one or the other", name)
	}
	return nil
}

// meets says whether an entry may match a bucket that p matches.
func (t *Table) meets(p *pattern) bool {
	meets := func(e entry) bool {
		_, v := common([]*pattern{p, e.name}, nil)
		return v != shadowed
	}
	return t == nil || slices.ContainsFunc(t.entries, meets)
}

// checkPrefix is an error where a prefix means nothing, or nothing beside those before it.
func checkPrefix(prefix string, before []string) error {
	if prefix == "" {
		return errors.New("the empty prefix is that of every key; take prefixes out for that")
	}
	if err := checkText("the prefix", prefix); err != nil {
		return err
	}
	if strings.Contains(prefix, "*") {
		return fmt.Errorf("%q: a prefix is compared byte by byte, and * is no sign in it; write what the keys begin with, such as jobs/", prefix)
	}
	for _, p := range before {
		if p != "" && strings.HasPrefix(prefix, p) {
			return fmt.Errorf("%q adds nothing: every key it begins begins with %q, too; take it out", prefix, p)
		}
	}
	return nil
}
