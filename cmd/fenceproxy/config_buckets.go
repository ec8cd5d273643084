package main

import (
	"errors"
	"strings"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"go.yaml.in/yaml/v3"
)

// A bucketDraft is a bucket entry and where it stands.
type bucketDraft struct {
	rules.Bucket
	node   *yaml.Node
	values map[string]*yaml.Node
	rules  []ruleDraft
}

type ruleDraft struct {
	rules.Rule
	node   *yaml.Node
	values map[string]*yaml.Node
}

var (
	bucketKeys = []configKey[bucketDraft]{
		{"name", func(r *configReader, n *yaml.Node, b *bucketDraft) { r.text(n, &b.Name) }},
		{"backend", func(r *configReader, n *yaml.Node, b *bucketDraft) { r.text(n, &b.Backend) }},
		{"bucket_writes", func(r *configReader, n *yaml.Node, b *bucketDraft) {
			readConfigEnum(r, n, rules.ParseBucketWrites, &b.BucketWrites)
		}},
		{"rules", readRules},
	}
	ruleKeys = []configKey[rules.Rule]{
		{"match", func(r *configReader, n *yaml.Node, rule *rules.Rule) { r.text(n, &rule.Match) }},
		{"resource", readResource},
		{"token", func(r *configReader, n *yaml.Node, rule *rules.Rule) {
			readConfigEnum(r, n, rules.ParseTokenPolicy, &rule.Token)
		}},
		{"holder", readHolder},
		{"write_once", func(r *configReader, n *yaml.Node, rule *rules.Rule) { r.boolean(n, &rule.WriteOnce) }},
		{"require_condition", func(r *configReader, n *yaml.Node, rule *rules.Rule) { r.boolean(n, &rule.RequireCondition) }},
		{"max_advance", func(r *configReader, n *yaml.Node, rule *rules.Rule) { r.integer(n, &rule.MaxAdvance) }},
		{"reads", func(r *configReader, n *yaml.Node, rule *rules.Rule) {
			readConfigEnum(r, n, rules.ParseReadPolicy, &rule.Reads)
		}},
		{"refuse", readRefuse},
		{"conditional", readConditional},
		{"stamp", nil},
	}
)

func readBuckets(r *configReader, n *yaml.Node, d *configDraft) {
	items := r.list(n)
	if len(items) == 0 && !r.bad[n] {
		r.fault(n, "names no bucket; take the key out for the default, or write an entry")
	}
	for _, item := range items {
		b := bucketDraft{node: item}
		b.values = readMapping(r, item, bucketKeys, &b)
		d.buckets = append(d.buckets, b)
	}
}

func readRules(r *configReader, n *yaml.Node, b *bucketDraft) {
	for _, item := range r.list(n) {
		rule := ruleDraft{node: item}
		rule.values = readMapping(r, item, ruleKeys, &rule.Rule)
		b.rules = append(b.rules, rule)
	}
}

func readConfigEnum[T any](r *configReader, n *yaml.Node, parse func(string) (T, error), into *T) {
	s, ok := r.scalar(n)
	if !ok {
		return
	}
	v, err := parse(s)
	if err != nil {
		r.fault(n, "%v", err)
		return
	}
	*into = v
}

// readResource refuses the empty text, which rules takes for the default: who writes it means something else.
func readResource(r *configReader, n *yaml.Node, rule *rules.Rule) {
	r.text(n, &rule.Resource)
	if rule.Resource == "" {
		r.fault(n, "is empty; write a name, or take it out for the default, {key}")
	}
}

func readHolder(r *configReader, n *yaml.Node, rule *rules.Rule) {
	var s string
	r.oneOf(n, &s, "optional", "required")
	rule.HolderRequired = s == "required"
}

func readRefuse(r *configReader, n *yaml.Node, rule *rules.Rule) {
	var s string
	r.oneOf(n, &s, "412", "403")
	if s == "403" {
		rule.Refuse = 403
	}
}

func readConditional(r *configReader, n *yaml.Node, rule *rules.Rule) {
	on := true
	r.onOff(n, &on)
	rule.Unconditional = !on
}

// finishBuckets leads every entry to a backend and makes the table.
func (d *configDraft) finishBuckets(r *configReader) {
	if d.values["buckets"] == nil {
		d.buckets = []bucketDraft{{Bucket: rules.Bucket{Name: "*"}}}
	}
	for i := range d.buckets {
		b := &d.buckets[i]
		d.checkBackend(r, b)
		for _, rule := range b.rules {
			b.Rules = append(b.Rules, rule.Rule)
		}
		d.Buckets = append(d.Buckets, b.Bucket)
	}
	if len(d.buckets) == 0 {
		d.useAll() // buckets could not be read
	}
	for _, b := range d.backends {
		if !b.used && !r.bad[b.node] {
			r.fault(b.node, "backend %s is used by no bucket; lead one to it, or take it out", b.Name)
		}
	}
	table, err := rules.New(d.Buckets)
	d.Rules = table
	d.ruleFaults(r, err)
}

func (d *configDraft) checkBackend(r *configReader, b *bucketDraft) {
	names := make([]string, len(d.backends))
	for i := range d.backends {
		names[i] = d.backends[i].Name
	}
	node := b.values["backend"]
	if node == nil && len(names) == 1 {
		b.Backend = names[0]
	}
	for i, name := range names {
		if name == b.Backend {
			d.backends[i].used = true
			return
		}
	}
	if node != nil {
		d.unknownBackend(r, node, b.Backend, names)
		return
	}
	d.useAll()
	switch list := strings.Join(names, ", "); {
	case len(names) == 0: // has its fault already
	case d.values["buckets"] == nil:
		r.fault(d.values["backends"], "there are %s, but no buckets that says which of them has which bucket; write it", list)
	case b.values != nil:
		r.fault(b.node, "an entry without backend; name one of %s", list)
	}
}

// unknownBackend takes the one that was meant for used: one slip is one fault.
func (d *configDraft) unknownBackend(r *configReader, node *yaml.Node, name string, names []string) {
	if len(names) == 0 || r.bad[node] {
		d.useAll()
		return
	}
	meant := nearestName(name, names)
	for i := range d.backends {
		d.backends[i].used = d.backends[i].used || d.backends[i].Name == meant
	}
	r.fault(node, "there is no backend %q; %s", name, insteadOfName(meant, names))
}

func (d *configDraft) useAll() {
	for i := range d.backends {
		d.backends[i].used = true
	}
}

// ruleFaults puts the faults of the table where their values stand. What could not be read has its fault already.
func (d *configDraft) ruleFaults(r *configReader, err error) {
	var faults rules.Faults
	if !errors.As(err, &faults) {
		return
	}
	for _, f := range faults {
		b := &d.buckets[f.Bucket]
		node, values := b.node, b.values
		if f.Rule >= 0 {
			node, values = b.rules[f.Rule].node, b.rules[f.Rule].values
		}
		value := values[f.Field]
		switch {
		case values == nil || r.bad[value] || f.Field == "backend": // for backend see checkBackend
		case value != nil:
			r.fault(value, "%s", f.Problem)
		default:
			r.fault(node, "%s", f.Problem)
		}
	}
}
