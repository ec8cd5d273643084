package rules

import (
	"fmt"
	"strings"
)

// A Fault is one thing wrong with what a table was to be made of.
type Fault struct {
	Bucket  int    // index of the entry
	Rule    int    // index of the rule in it, -1 for the entry itself
	Field   string // as the configuration spells it: match, resource, name, …
	Problem string // a sentence that says what would be right
}

func (f *Fault) Error() string {
	if f.Rule < 0 {
		return fmt.Sprintf("bucket entry %d: %s: %s", f.Bucket+1, f.Field, f.Problem)
	}
	return fmt.Sprintf("bucket entry %d, rule %d: %s: %s", f.Bucket+1, f.Rule+1, f.Field, f.Problem)
}

// Faults is the error of [New]: all that is wrong, in the order of the entries and rules.
type Faults []*Fault

func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].Error()
	}
	return strings.Join(lines, "\n")
}

// New makes a table. Its error is a [Faults]: patterns and templates that mean nothing, numbers out of range, demands on what
// is not fenced, and entries and rules that can never match.
func New(buckets []Bucket) (*Table, error) {
	var b builder
	t := &Table{}
	for i := range buckets {
		t.entries = append(t.entries, b.entry(i, &buckets[i]))
	}
	if len(b.faults) > 0 {
		return nil, b.faults
	}
	return t, nil
}

// A builder compiles a table and collects what is wrong with it on the way.
type builder struct {
	faults       Faults
	bucket, rule int // what is being compiled
	names        namedPatterns
	matches      namedPatterns // of the entry
}

// namedPatterns are the patterns so far, with the numbers that people count them by. One that does not compile has a number
// but is not among them.
type namedPatterns struct {
	patterns []*pattern
	numbers  []int
}

func (n *namedPatterns) add(p *pattern, index int) {
	n.patterns = append(n.patterns, p)
	n.numbers = append(n.numbers, index+1)
}

func (b *builder) fault(field, problem string) {
	b.faults = append(b.faults, &Fault{Bucket: b.bucket, Rule: b.rule, Field: field, Problem: problem})
}

func (b *builder) check(field string, err error) {
	if err != nil {
		b.fault(field, err.Error())
	}
}

func (b *builder) entry(index int, bucket *Bucket) entry {
	b.bucket, b.rule = index, -1
	b.matches = namedPatterns{}
	e := entry{backend: bucket.Backend, bucketWrites: bucket.BucketWrites}
	var err error
	e.name, err = compileBucket(bucket.Name)
	b.check("name", err)
	if err == nil {
		b.check("name", b.names.shadow(e.name, "bucket", "entry", "entries"))
		b.names.add(e.name, index)
	}
	if bucket.Backend == "" {
		b.fault("backend", "backend is missing; name the one that has the bucket")
	}
	for i := range bucket.Rules {
		b.rule = i
		title := fmt.Sprintf("rule %q of bucket %q", bucket.Rules[i].Match, bucket.Name)
		e.rules = append(e.rules, b.compile(&bucket.Rules[i], bucket.Backend, title))
	}
	e.rules = append(e.rules, builtin(bucket))
	return e
}

// builtin is the rule behind all others.
func builtin(bucket *Bucket) rule {
	var none builder
	title := fmt.Sprintf("the built-in rule of bucket %q", bucket.Name)
	return none.compile(&Rule{Match: "**"}, bucket.Backend, title)
}

func (b *builder) compile(in *Rule, backend, title string) rule {
	r := rule{target: Target{
		Policy:  in.policy(),
		Backend: backend,
		Fenced:  in.Token != Off,
		Rule:    title,
	}}
	b.checkPolicy(in)
	var err error
	if r.match, err = compile(in.Match); err != nil {
		b.check("match", err)
		return r
	}
	r.template, err = compileTemplate(in.Resource, r.match.vars)
	b.check("resource", err)
	b.check("match", b.matches.shadow(r.match, "key", "rule", "rules"))
	b.matches.add(r.match, b.rule)
	return r
}

func (in *Rule) policy() Policy {
	p := Policy{
		Token:            in.Token,
		HolderRequired:   in.HolderRequired,
		WriteOnce:        in.WriteOnce,
		RequireCondition: in.RequireCondition,
		MaxAdvance:       in.MaxAdvance,
		Reads:            in.Reads,
		Refuse:           in.Refuse,
		Unconditional:    in.Unconditional,
	}
	if p.Refuse == 0 {
		p.Refuse = 412
	}
	return p
}

func (b *builder) checkPolicy(in *Rule) {
	if in.Refuse != 0 && in.Refuse != 403 && in.Refuse != 412 {
		b.fault("refuse", fmt.Sprintf("%d must be 412 or 403", in.Refuse))
	}
	if in.MaxAdvance < 0 {
		b.fault("max_advance", fmt.Sprintf("%d must be 1 or more, or 0 for any distance", in.MaxAdvance))
	}
	if in.Token != Off {
		return
	}
	if in.HolderRequired {
		b.fault("holder", "required asks for what token: off does not look at; take one of them out")
	}
	if in.MaxAdvance > 0 {
		b.fault("max_advance", "a limit for tokens that token: off does not look at; take one of them out")
	}
}

// shadow is an error where the patterns so far leave nothing to p.
func (n *namedPatterns) shadow(p *pattern, what, one, many string) error {
	if _, v := first(p, n.patterns); v != shadowed {
		return nil
	}
	for i, q := range n.patterns {
		if _, v := first(p, []*pattern{q}); v == shadowed {
			return fmt.Errorf("%q can never match: every %s it matches is taken by %s %d, %q, above it",
				p.text, what, one, n.numbers[i], q.text)
		}
	}
	return fmt.Errorf("%q can never match: every %s it matches is taken by the %s above it", p.text, what, many)
}
