// Package rules says which resource an object belongs to, and what the fence asks of those who write to it. It is pure: a
// [Table] is made once from the configuration, never changes, and looks nothing up outside itself.
//
// A table is a list of bucket entries, and each entry a list of rules. The first entry whose name matches the bucket counts,
// and in it the first rule whose match matches the key. Behind the last rule of every entry stands a built-in one: every
// object its own resource, token optional.
//
// # match
//
// A match is compared with the whole key, byte by byte.
//
//   - any number of characters, none included, but no slash
//     {x}       one whole segment, not empty, between two slashes or at an end; resource may use it
//     **        anything, slashes and nothing at all included; alone between two slashes or at an end
//     the rest  itself
//
// So a/** takes a/, a/b and a/b/c, but not a: the folder marker jobs/7/ belongs to job 7. The signs of other globs (? [ ] \
// and {a,b}) are refused, lest somebody believe that they work. Matching takes time linear in the length of the key.
package rules

// A Bucket is one entry of a table, as the configuration has it.
type Bucket struct {
	Name         string // a pattern: letters, digits, . _ - and * for any number of them
	Backend      string // the name of the backend that has the bucket
	BucketWrites BucketWrites
	Rules        []Rule // the first match counts
}

// A Rule maps keys to a resource and says what is asked of a write there.
type Rule struct {
	Match            string // see the package comment
	Resource         string // a template: text, {x} of Match, {key}; "" is {key}
	Token            TokenPolicy
	HolderRequired   bool  // a write without a holder is refused
	WriteOnce        bool  // an object that exists is not overwritten
	RequireCondition bool  // a write without If-Match or If-None-Match is refused
	MaxAdvance       int64 // how far a token may go beyond the one on record; 0: any distance
	Reads            ReadPolicy
	Refuse           int  // HTTP status of a refused stale token: 412 (0 is 412) or 403
	Unconditional    bool // no condition is added to a write, even where the store would honour it
}

// A Policy is what a rule asks of a write. The fields are those of [Rule], with Refuse 412 or 403.
type Policy struct {
	Token            TokenPolicy
	HolderRequired   bool
	WriteOnce        bool
	RequireCondition bool
	MaxAdvance       int64
	Reads            ReadPolicy
	Refuse           int
	Unconditional    bool
}

// A Target is where a key leads.
type Target struct {
	Policy
	Backend  string
	Resource string // bucket, a slash, and what the rule's template makes of the key
	Fenced   bool   // false where the rule says token: off
	Rule     string // for messages: rule "jobs/{job}/**" of bucket "*"
}

// A BucketTarget is where a bucket leads.
type BucketTarget struct {
	Backend      string
	BucketWrites BucketWrites
	Resource     string // bucket and a slash: no object has this resource
}

// A Table maps buckets and keys to backends, resources and policies. It never changes and may be used from many goroutines.
type Table struct {
	entries []entry
}

type entry struct {
	name         *pattern
	backend      string
	bucketWrites BucketWrites
	rules        []rule // the built-in one is the last
}

type rule struct {
	match    *pattern
	template template
	target   Target // all of it but Resource
}

// Bucket says where a bucket leads. It is false where no entry matches the name.
func (t *Table) Bucket(name string) (BucketTarget, bool) {
	e := t.entry(name)
	if e == nil {
		return BucketTarget{}, false
	}
	return BucketTarget{Backend: e.backend, BucketWrites: e.bucketWrites, Resource: name + "/"}, true
}

// Object says where an object leads. The key is as the store sees it, percent-decoded, and valid UTF-8. It is false where no
// entry matches the bucket, and for the empty key, which names no object.
func (t *Table) Object(bucket, key string) (Target, bool) {
	e := t.entry(bucket)
	if e == nil || key == "" {
		return Target{}, false
	}
	for i := range e.rules {
		r := &e.rules[i]
		if groups, ok := r.match.match(key); ok {
			return r.lead(bucket, key, groups), true
		}
	}
	return Target{}, false // not reached: the built-in rule takes every key
}

// Prefix says where all objects lead whose keys begin with prefix. It is true only if each of them, stored or not, falls
// under the same rule and belongs to the same resource.
func (t *Table) Prefix(bucket, prefix string) (Target, bool) {
	e := t.entry(bucket)
	if e == nil {
		return Target{}, false
	}
	for i := range e.rules {
		r := &e.rules[i]
		if !r.match.reaches(prefix) {
			continue
		}
		groups, ok := r.match.match(prefix)
		if !ok || !r.oneResource() {
			return Target{}, false
		}
		return r.lead(bucket, prefix, groups), true
	}
	return Target{}, false
}

func (t *Table) entry(bucket string) *entry {
	if bucket == "" {
		return nil
	}
	for i := range t.entries {
		if _, ok := t.entries[i].name.match(bucket); ok {
			return &t.entries[i]
		}
	}
	return nil
}

func (r *rule) lead(bucket, key string, groups []int) Target {
	target := r.target
	target.Resource = r.template.expand(bucket, key, groups)
	return target
}

// oneResource says that whatever begins with a match of the rule is a match, too, and belongs to the same resource. The part
// before the last ** ends in a slash and, having no ** itself, is matched by the same number of segments however the key
// goes on: its variables are settled.
func (r *rule) oneResource() bool {
	return r.match.tail && !r.template.usesKey && (!r.match.loose || !r.template.usesVars)
}
