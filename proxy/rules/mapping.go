package rules

import "slices"

// A Mapping is what an entry of a table makes of the keys of its buckets, without what its rules ask of those who write: where two
// entries have equal mappings, they lead every key to the same resource.
type Mapping struct {
	Name    string // a pattern for names of buckets
	Backend string
	Rules   []MappingRule // the built-in one is left out
}

// A MappingRule is a [Rule] as far as it maps.
type MappingRule struct {
	Match    string
	Resource string // "" where Off is true
	Off      bool   // not fenced
}

// Mappings are those of the table's entries, in their order. A rule that could be left out, because the built-in rule would lead its
// keys to the same resources, is left out: it is there for its policy only.
func (t *Table) Mappings() []Mapping {
	all := make([]Mapping, len(t.entries))
	for i := range t.entries {
		e := &t.entries[i]
		all[i] = Mapping{Name: e.name.text, Backend: e.backend, Rules: e.mapping()}
	}
	return all
}

// mapping goes from the last rule to the first. Without a rule that leads every key to itself, its keys fall to the rules behind it: that
// is no difference where none of those that lead elsewhere takes any of them.
func (e *entry) mapping() []MappingRule {
	var mapped []MappingRule
	var elsewhere []*pattern
	for _, r := range slices.Backward(e.rules[:len(e.rules)-1]) {
		m := MappingRule{Match: r.match.text, Resource: r.template.text}
		if !r.target.Fenced {
			m.Resource, m.Off = "", true
		}
		plain := m.Resource == wholeKey
		if plain && !slices.ContainsFunc(elsewhere, r.match.overlaps) {
			continue
		}
		if !plain {
			elsewhere = append(elsewhere, r.match)
		}
		mapped = append(mapped, m)
	}
	slices.Reverse(mapped)
	return mapped
}

// overlaps says whether some key may match both.
func (p *pattern) overlaps(q *pattern) bool {
	_, v := common([]*pattern{p, q}, nil)
	return v != shadowed
}

// Names are the names of bucket entries in their order: the first one that matches a bucket counts.
type Names struct {
	patterns []*pattern
}

// NewNames compiles names of entries. Its error says which one means nothing.
func NewNames(texts []string) (*Names, error) {
	n := &Names{}
	for _, text := range texts {
		p, err := compileBucket(text)
		if err != nil {
			return nil, err
		}
		n.patterns = append(n.patterns, p)
	}
	return n, nil
}

// First says which name counts for a bucket; -1 where none matches.
func (n *Names) First(bucket string) int {
	return slices.IndexFunc(n.patterns, func(p *pattern) bool {
		_, ok := p.match(bucket)
		return ok
	})
}

// Meet looks for a bucket for which name i counts here and name j there. bucket is an example, and "" where the search for one was
// given up: then there may be one.
func (n *Names) Meet(i int, there *Names, j int) (bucket string, ok bool) {
	earlier := slices.Concat(n.patterns[:i], there.patterns[:j])
	bucket, v := common([]*pattern{n.patterns[i], there.patterns[j]}, earlier)
	return bucket, v != shadowed
}
