package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// RenameObject moves an object to another key of its bucket, as one step ("Renaming objects in directory buckets"). It is a write of the key in
// its path and a delete of its source, and crosses the gates of both at once, without ever waiting at one while it is past another.

// A renamed key is one that the request may change.
type renamed struct {
	key    string
	target rules.Target
}

// rename is RenameObject.
func (x *exchange) rename() error {
	p := &renaming{x: x}
	d, err := p.demand()
	if err == nil {
		defer d.release()
		defer p.end()
		err = p.begin()
	}
	if err != nil {
		x.drain(drainTime)
		return err
	}
	rec, err := x.attempt(x.detached(), d, p)
	p.forget()
	return x.tell(rec, err)
}

// renameSources are the keys that stores take x-amz-rename-source for. S3 wants the key alone, percent-encoded; clients, and stores after them, also
// write it with its bucket before it, as in x-amz-copy-source. Where both can be meant, both are returned, and both are fenced.
func renameSources(h http.Header, bucket string) (keys []string, err error) {
	source, err := url.PathUnescape(h.Get(headerRenameSource))
	switch {
	case err != nil || source == "" || len(h[headerRenameSource]) != 1 || !utf8.ValidString(source):
		return nil, badRequest(invalidArgument, "x-amz-rename-source must be one key, percent-encoded")
	case len(source) > maxKey:
		return nil, badRequest("KeyTooLongError", "a key has at most %d bytes, that of x-amz-rename-source has %d", maxKey, len(source))
	}
	plain := strings.TrimPrefix(source, "/")
	inBucket, _ := strings.CutPrefix(plain, bucket+"/")
	for _, key := range []string{source, plain, inBucket} {
		if key != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// encodeSource writes a name for x-amz-rename-source so that no store can decode it to another one.
func encodeSource(name string) string {
	return strings.NewReplacer("%2F", "/", "+", "%2B").Replace(url.PathEscape(name))
}

// A renaming is the passage of a rename: through the gates of all its keys, or through none.
type renaming struct {
	gates
	x    *exchange
	keys []renamed
	of   map[*tokens.Write]renamed
}

// demand is what the rules of all keys ask.
func (p *renaming) demand() (*draft, error) {
	x := p.x
	sources, err := renameSources(x.r.Header, x.op.bucket)
	if err != nil {
		return nil, err
	}
	x.r = x.r.Clone(x.r.Context())
	x.r.Header.Set(headerRenameSource, encodeSource(sources[0]))
	found, err := x.findings()
	if err != nil {
		return nil, err
	}
	p.keys = []renamed{{x.op.key, x.target}}
	for _, key := range sources {
		target, _ := x.h.Rules.Object(x.op.bucket, key)
		p.keys = append(p.keys, renamed{key, target})
	}
	for i, k := range p.keys {
		if err := p.judge(found, k, i == 0); err != nil {
			return nil, p.blame(k, err)
		}
	}
	return x.demand()
}

// judge holds the request to the rule of one key, its destination or a source.
func (p *renaming) judge(found Findings, k renamed, destination bool) error {
	x, h := p.x, p.x.r.Header
	conditional := conditional(h)
	if !destination {
		conditional = h.Get(headerRenameSource+"-If-Match") != ""
	}
	if err := x.who.meets(k.target.Policy); err != nil {
		return err
	}
	switch on := x.backend().remote() && x.backend().Conditional == ConditionalOn; {
	case k.target.RequireCondition && !conditional:
		return &ruleError{conditionRequired, "this write needs conditions: send If-Match or If-None-Match for the new key, and x-amz-rename-source-if-match for the old one"}
	case k.target.WriteOnce && destination:
		return &ruleError{conditionsIgnored, "its rule says write_once, and it cannot be found out whether this store would overwrite on " + renameObject + ": use CopyObject and DeleteObject"}
	case on && k.target.Fenced && !k.target.Unconditional:
		return &ruleError{conditionsIgnored, "it cannot be found out whether this store judges conditions of " + renameObject + ", and backend " + k.target.Backend + " is configured with `conditional: on`"}
	}
	return x.allows(found, renameObject, k.key, k.target)
}

// blame makes the answer speak of the key that is the reason for it.
func (p *renaming) blame(k renamed, err error) error {
	p.x.target = k.target
	return err
}

// begin begins one write for each key that is fenced, and looks at the stamps that stand there.
func (p *renaming) begin() error {
	p.of = map[*tokens.Write]renamed{}
	for _, k := range p.keys {
		if !k.target.Fenced {
			continue
		}
		one := p.one(k)
		w, err := p.x.h.Fence.Begin(p.x.detached(), one.claim())
		if err != nil {
			return p.blame(k, err)
		}
		p.writes, p.of[w] = append(p.writes, w), k
		if one.backend().Stamp {
			if _, err := one.look(p.x.detached()); err != nil {
				return p.blame(k, err)
			}
		}
	}
	return nil
}

// one is the exchange as if it were about a key alone.
func (p *renaming) one(k renamed) *exchange {
	return p.x.one(&batchEntry{batchItem: batchItem{Key: k.key}, target: k.target})
}

// admit is a passage's.
func (p *renaming) admit() error {
	start := time.Now()
	w, err := tokens.AdmitAll(p.x.detached(), p.writes)
	p.x.h.metrics.gateWait(time.Since(start))
	if k, ok := p.of[w]; ok && err != nil {
		return p.blame(k, err)
	}
	return err
}

func (p *renaming) end() {
	for _, w := range p.writes {
		w.End()
	}
}

// forget forgets the ETags of the keys, which have, or may have, other ones now.
func (p *renaming) forget() {
	for _, k := range p.keys {
		p.x.h.etags.forget(p.one(k).name())
	}
}
