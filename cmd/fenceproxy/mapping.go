package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// Tokens are recorded by the names of resources. Where a key leads to another resource than before, its token is forgotten, and the
// holders that were shut out get in again. So the registry has on record how every bucket was mapped when it was served last, and an
// operator has to say that a change is meant.

// An entryMapping is what is digested of a bucket entry. Policy is not in it, and neither is the entry's name: the same mapping under
// another name is no change for a bucket.
type entryMapping struct {
	Backend string        `json:"backend"`
	Store   string        `json:"store,omitempty"` // of an S3 backend: where it is. A file backend's root has the registry's name in it
	Rules   []mappingRule `json:"rules,omitempty"`
}

type mappingRule struct {
	Match    string `json:"match"`
	Resource string `json:"resource,omitempty"`
	Token    string `json:"token,omitempty"` // off, where it is
}

func (r mappingRule) String() string {
	if r.Token != "" {
		return fmt.Sprintf("{match: %q, token: %s}", r.Match, r.Token)
	}
	return fmt.Sprintf("{match: %q, resource: %q}", r.Match, r.Resource)
}

// mappingsOf are the mappings of a configuration, in the order of its entries.
func mappingsOf(c *config) ([]tokens.Mapping, error) {
	stores := map[string]string{}
	for _, b := range c.Backends {
		stores[b.Name] = storeOf(b)
	}
	var all []tokens.Mapping
	for _, m := range c.Rules.Mappings() {
		e := entryMapping{Backend: m.Backend, Store: stores[m.Backend]}
		for _, r := range m.Rules {
			rule := mappingRule{Match: r.Match, Resource: r.Resource}
			if r.Off {
				rule.Token = rules.Off.String()
			}
			e.Rules = append(e.Rules, rule)
		}
		text, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		all = append(all, tokens.Mapping{Name: m.Name, Digest: hex.EncodeToString(sum[:]), Text: string(text)})
	}
	return all, nil
}

// storeOf is what an S3 backend's name leads to: endpoint, with its path, and region. Who asks there does not matter.
func storeOf(b backendConfig) string {
	if b.Type != "s3" {
		return ""
	}
	endpoint := strings.TrimRight(b.S3.Endpoint, "/")
	if u, err := url.Parse(endpoint); err == nil {
		u.Host = strings.ToLower(u.Host)
		endpoint = u.String()
	}
	return strings.TrimSpace("S3 at " + cmp.Or(endpoint, "AWS") + " " + b.S3.Region)
}

// A mappingList is a list of mappings with their names compiled.
type mappingList struct {
	entries []tokens.Mapping
	names   *rules.Names
}

func newMappingList(entries []tokens.Mapping) (mappingList, error) {
	texts := make([]string, len(entries))
	for i, m := range entries {
		texts[i] = m.Name
	}
	names, err := rules.NewNames(texts)
	return mappingList{entries, names}, err
}

// of is the mapping of a bucket. It is false where no entry matches.
func (l mappingList) of(bucket string) (tokens.Mapping, bool) {
	i := l.names.First(bucket)
	if i < 0 {
		return tokens.Mapping{}, false
	}
	return l.entries[i], true
}

// behind is l with those of older behind it that still serve a bucket: no entry of l matches it, and it must not come back with another
// mapping.
func (l mappingList) behind(older mappingList) ([]tokens.Mapping, error) {
	both, err := newMappingList(slices.Concat(l.entries, older.entries))
	if err != nil {
		return nil, err
	}
	kept := slices.Clone(l.entries)
	for i := len(l.entries); i < len(both.entries); i++ {
		if _, served := both.names.Meet(i, both.names, i); served {
			kept = append(kept, both.entries[i])
		}
	}
	return kept, nil
}

// A mappingChange says that some bucket is mapped otherwise than before.
type mappingChange struct {
	was, is tokens.Mapping
	bucket  string // one of them, "" where none was found
}

// changes compares two lists bucket by bucket, without knowing which buckets there are: a name counts that is served by both, and it
// has to have the same mapping in both.
func (l mappingList) changes(now mappingList) (all []mappingChange) {
	for i, was := range l.entries {
		for j, is := range now.entries {
			if was.Digest == is.Digest {
				continue
			}
			if bucket, ok := l.names.Meet(i, now.names, j); ok {
				all = append(all, mappingChange{was, is, bucket})
			}
		}
	}
	return all
}

// describe names the entry and what differs first.
func (c mappingChange) describe() string {
	var was, is entryMapping
	if json.Unmarshal([]byte(c.was.Text), &was) != nil || json.Unmarshal([]byte(c.is.Text), &is) != nil {
		return fmt.Sprintf("entry %q: it was %s, and is %s", c.is.Name, c.was.Text, c.is.Text) // not reached: both are our own words
	}
	what := fmt.Sprintf("entry %q", c.is.Name)
	if c.was.Name != c.is.Name {
		what += fmt.Sprintf(", which takes the place of %q", c.was.Name)
	}
	if c.bucket != "" && c.bucket != c.is.Name {
		what += fmt.Sprintf(" for buckets such as %q", c.bucket)
	}
	return what + ": " + was.differsFrom(is)
}

func (was entryMapping) differsFrom(is entryMapping) string {
	switch {
	case was.Backend != is.Backend:
		return fmt.Sprintf("the backend was %s, and is %s", was.Backend, is.Backend)
	case was.Store != is.Store:
		return fmt.Sprintf("the backend %s was %s, and is %s", is.Backend, cmp.Or(was.Store, "a directory"), cmp.Or(is.Store, "a directory"))
	}
	for i, rule := range is.Rules {
		if i == len(was.Rules) {
			return fmt.Sprintf("the rule %s is new", rule)
		}
		if was.Rules[i] != rule {
			return fmt.Sprintf("where the rule %s stood, there is %s", was.Rules[i], rule)
		}
	}
	if len(was.Rules) == len(is.Rules) {
		return "it is on record in other words" // not reached: the digests would be equal
	}
	return fmt.Sprintf("the rule %s is gone", was.Rules[len(is.Rules)])
}

// checkMapping lets the configuration lead no bucket otherwise than the registry has it on record, unless --remap says that it is meant.
// Then it waits for the writes of earlier runs first: they went by the old names, and no raise by a new name would wait for them.
//
// If we crash during the wait, the old mapping is on record, and the next start is refused without --remap once more.
//
// Where several proxies start at once, another one may put its mappings on record after we have looked: then they are compared once more.
func (s *state) checkMapping(ctx context.Context, c *config, remap bool, log *slog.Logger) (err error) {
	for range 5 {
		if err = s.compareMapping(ctx, c, remap, log); !errors.Is(err, tokens.ErrRemapped) {
			return err
		}
	}
	return err
}

func (s *state) compareMapping(ctx context.Context, c *config, remap bool, log *slog.Logger) error {
	entries, err := mappingsOf(c)
	if err != nil {
		return err
	}
	recorded, version, err := s.registry.Mappings(ctx)
	if err != nil {
		return err
	}
	now, err := newMappingList(entries)
	if err != nil {
		return err
	}
	was, err := newMappingList(recorded)
	if err != nil {
		return fmt.Errorf("the mappings on record in the token registry: %w", err)
	}
	s.mapping = version
	changes := was.changes(now)
	if len(changes) > 0 {
		if err := s.remap(ctx, was, now, changes, remap, log); err != nil {
			return err
		}
	}
	all, err := now.behind(was)
	if err != nil || slices.Equal(all, recorded) {
		return err
	}
	s.mapping, err = s.registry.RecordMappings(ctx, all, version, len(changes) > 0)
	return err
}

func (s *state) remap(ctx context.Context, was, now mappingList, changes []mappingChange, meant bool, log *slog.Logger) error {
	left, err := s.leftBehind(ctx, was, now)
	if err != nil {
		return err
	}
	what := changes[0].describe()
	if more := len(changes) - 1; more > 0 {
		what += fmt.Sprintf(" (and %d more)", more)
	}
	if !meant {
		return fmt.Errorf("the buckets of the configuration lead keys to other resources than before: %s. "+
			"Wherever a key leads to another name, its token would be forgotten: %s. Put it back, or say with `serve --remap` that it is meant", what, left)
	}
	if n, wait := s.registry.Unsettled(); wait > 0 {
		log.Warn("--remap waits for the writes of earlier runs, which went by the old names", "resources", n, "wait", wait.Round(time.Second))
		if err := s.registry.WaitSettled(ctx); err != nil {
			return fmt.Errorf("--remap has not waited long enough for the writes of earlier runs; nothing was changed: %w", err)
		}
	}
	s.audit.Add(ctx, audit.Record{Kind: audit.KindReload, Operation: "serve --remap", Detail: what + "; left behind: " + left.String()})
	log.Warn("keys lead to other resources than before, as --remap says", "change", what, "left_behind", left.String())
	return nil
}

// A leftovers tells of the resources that were recorded under another mapping.
type leftovers struct {
	buckets   int
	resources int64
	first     []string // the first of them
}

// maxLeftovers is how many are named.
const maxLeftovers = 20

func (l leftovers) String() string {
	if l.resources == 0 {
		return "no token is recorded there"
	}
	names := make([]string, len(l.first))
	for i, name := range l.first {
		names[i] = printable(name)
	}
	text := fmt.Sprintf("tokens of %d resources in %d buckets are recorded there: %s", l.resources, l.buckets, strings.Join(names, ", "))
	if l.resources > int64(len(l.first)) {
		text += ", …"
	}
	return text
}

// leftBehind counts what is recorded of buckets whose mapping changes. A key may still lead to some of it.
func (s *state) leftBehind(ctx context.Context, was, now mappingList) (left leftovers, err error) {
	for after := ""; ; {
		next, err := s.registry.List(ctx, "", after, 1)
		if err != nil || len(next) == 0 {
			return left, err
		}
		bucket, _, _ := strings.Cut(next[0].Resource, "/")
		after = bucket + "0" // the byte behind the slash: behind all of this bucket's, and before the next one's
		before, known := was.of(bucket)
		if is, ok := now.of(bucket); !known || !ok || before.Digest == is.Digest {
			continue
		}
		n, err := s.registry.Count(ctx, bucket+"/")
		if err != nil {
			return left, err
		}
		left.buckets++
		left.resources += n
		some, err := s.registry.List(ctx, bucket+"/", "", maxLeftovers-len(left.first))
		if err != nil {
			return left, err
		}
		for _, e := range some {
			left.first = append(left.first, e.Resource)
		}
	}
}

// adopt lets the stamps of other registries count as this one's.
func (s *state) adopt(ctx context.Context, ids []string, log *slog.Logger) error {
	for _, id := range ids {
		if slices.Contains(s.registry.Adopted(), id) {
			continue
		}
		if err := s.registry.Adopt(ctx, id); err != nil {
			return fmt.Errorf("--adopt: %w", err)
		}
		if !slices.Contains(s.registry.Adopted(), id) {
			continue // our own
		}
		detail := fmt.Sprintf("the stamps of registry %s count as those of registry %s from now on", id, s.registry.Start().ID)
		s.audit.Add(ctx, audit.Record{Kind: audit.KindStart, Operation: "adopt", Detail: detail})
		log.Info("the stamps of another registry count as our own from now on", "adopted", id)
	}
	return nil
}
