package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// guarantees remembers what each store was found to do. A store is asked at the first write that leads to it, in the bucket of that write.
type guarantees struct {
	mu    sync.Mutex
	known map[string]*guarantee // by backend; guarded by mu
}

// A guarantee is one store's. All of it is guarded by the lock of guarantees.
type guarantee struct {
	found   *Findings           // nil until it was asked
	skipped map[string]Findings // by bucket: where the store could not be asked says nothing of other buckets
	asking  *asking             // under way; nil if none is
}

// An asking is one probe. Those who come while it is under way share what it ends with.
type asking struct {
	bucket string
	done   chan struct{} // closed when found and err are set
	found  Findings
	err    error
}

// begin says what is known of a backend, whom to wait for, or, with neither, that the caller is to ask.
func (g *guarantees) begin(backend, bucket string) (found *Findings, wait, mine *asking) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.known[backend]
	if known == nil {
		known = &guarantee{skipped: make(map[string]Findings)}
		if g.known == nil {
			g.known = make(map[string]*guarantee)
		}
		g.known[backend] = known
	}
	if f, ok := known.skipped[bucket]; ok && known.found == nil {
		return &f, nil, nil
	}
	if known.found != nil || known.asking != nil {
		return known.found, known.asking, nil
	}
	known.asking = &asking{bucket: bucket, done: make(chan struct{})}
	return nil, nil, known.asking
}

// end tells all who wait. An error is remembered for nobody else: the next write asks again.
func (g *guarantees) end(backend string, a *asking) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.known[backend]
	known.asking = nil
	switch {
	case a.err != nil:
	case a.found.Skipped != "", a.found.Blind:
		known.skipped[a.bucket] = a.found
	default:
		known.found = &a.found
	}
	close(a.done)
}

// findings are what the store was found to do with writes. It is asked if it has not been.
func (x *exchange) findings() (Findings, error) {
	b := x.backend()
	if !b.remote() {
		return Findings{}, nil
	}
	for {
		found, wait, mine := x.h.guarantees.begin(x.target.Backend, x.op.bucket)
		switch {
		case found != nil:
			return *found, nil
		case mine != nil:
			x.ask(b, mine)
			return mine.found, mine.err
		}
		select {
		case <-wait.done:
			if wait.bucket == x.op.bucket {
				return wait.found, wait.err
			}
		case <-x.r.Context().Done():
			return Findings{}, errNotProbed // its client is gone
		}
	}
}

// ask asks the store.
func (x *exchange) ask(b Backend, a *asking) {
	defer x.h.guarantees.end(x.target.Backend, a)
	a.err = errNotProbed // if it panics
	found, err := b.Probe(x.detached(), a.bucket)
	var refused *StoreRefusal
	switch {
	case errors.As(err, &refused):
		a.err = &s3Error{refused.Status, refused.Code, cmp.Or(refused.Message, "the store takes no writes to bucket "+a.bucket)}
	case err != nil:
		x.h.Log.Error("a store could not be asked what it does with writes", "backend", x.target.Backend, "bucket", a.bucket, "cause", err)
	default:
		a.found, a.err = found, nil
		x.tellGuarantee(b, found)
	}
}

// tellGuarantee says which guarantee the writes to a backend have from now on.
func (x *exchange) tellGuarantee(b Backend, found Findings) {
	var with, without []string
	for _, operation := range append(slices.Clone(conditionable), deleteObjects) {
		if b.conditional(found, operation) {
			with = append(with, operation)
		} else {
			without = append(without, operation)
		}
		x.h.metrics.condition(x.target.Backend, operation, b.conditional(found, operation))
	}
	attrs := []any{
		"backend", x.target.Backend, "bucket", x.op.bucket, "conditional", string(b.Conditional), "with_condition", strings.Join(with, ","),
		"settle_time_only", strings.Join(without, ","), "spool", found.Spool, "merges", strings.Join(found.Merges, ","), "skipped", found.Skipped,
	}
	if len(without) > 0 {
		x.h.Log.Warn("this store does not judge every condition: where it does not, a late write is kept out by the settle time alone", attrs...)
	} else {
		x.h.Log.Info("this store judges the conditions of all writes", attrs...)
	}
	detail := fmt.Sprintf("conditional: %s. With a condition: %s. By the settle time alone: %s. ", b.Conditional, list(with), list(without))
	x.h.Audit.Add(context.WithoutCancel(x.r.Context()), audit.Record{
		Kind: audit.KindGuarantee, Bucket: x.op.bucket, Detail: detail + strings.Join(append(found.Detail, found.Skipped), " "),
	})
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// allows refuses what must not go to a store of this kind: an operation on a key, which leads to t.
func (x *exchange) allows(found Findings, operation, key string, t rules.Target) error {
	b := x.backend()
	if !b.remote() {
		return nil
	}
	if spelling := mergedSpelling(key, found.Merges); spelling != "" {
		return mergedName(key, spelling)
	}
	judges := slices.Contains(conditionable, operation) || operation == deleteObjects
	unsaid := found.Skipped != "" && b.Conditional == ConditionalAuto
	if t.WriteOnce && slices.Contains(creating, operation) && !unsaid && !found.honours(operation) && (found.Skipped == "" || b.Conditional == ConditionalOff) {
		return &ruleError{conditionsIgnored, "its rule says write_once, and this store overwrites on " + operation + " whatever the condition: it cannot be kept here"}
	}
	switch {
	case !judges, !t.Fenced, t.Unconditional:
		return nil
	case unsaid:
		return &ruleError{conditionsUnknown, "whether this store judges conditions was not found out (" + found.Skipped + "): say `conditional: on` or `conditional: off` for backend " + t.Backend}
	case b.Conditional == ConditionalOn && !b.conditional(found, operation):
		return &ruleError{conditionsIgnored, "this store carries out " + operation + " without regard to its condition, and backend " + t.Backend + " is configured with `conditional: on`"}
	}
	return nil
}

func mergedName(key, spelling string) error {
	if namesNothing(key) {
		return badRequest("400", "Bad Request") // S3's own, odd as it is
	}
	return badRequest(invalidArgument, "this store takes keys with %s for other keys, which have fences of their own: use the key's plain name", spelling)
}

// merges are the spellings that a store takes for one, as far as it was asked.
func (g *guarantees) merges(backend string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.known[backend]; known != nil && known.found != nil {
		return known.found.Merges
	}
	return nil
}

// mergedSpelling says what in a key a store takes for another spelling of another key, "" if nothing.
func mergedSpelling(key string, merges []string) string {
	for _, kind := range merges {
		switch {
		case kind == "slashes" && (strings.Contains(key, "//") || strings.HasPrefix(key, "/")):
			return "empty segments (//)"
		case kind == "dots" && hasDots(key):
			return "segments . and .."
		case kind == "case" && strings.ToLower(key) != key:
			return "capital letters"
		}
	}
	return ""
}

// namesNothing says that a key, taken for a path, leads out of its bucket or to the bucket itself.
func namesNothing(key string) bool {
	depth := 0
	for segment := range strings.SplitSeq(key, "/") {
		switch segment {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return true
			}
		default:
			depth++
		}
	}
	return depth == 0
}

func hasDots(key string) bool {
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}
