package proxy

import (
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

// A guarantee is one store's. Those who come while it is asked wait for it.
type guarantee struct {
	turn    chan struct{} // holds one token; who has it may ask, and touch what is below
	done    bool
	found   Findings
	skipped map[string]Findings // by bucket: where the store could not be asked says nothing of other buckets
}

func (g *guarantees) of(backend string) *guarantee {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known == nil {
		g.known = make(map[string]*guarantee)
	}
	if g.known[backend] == nil {
		g.known[backend] = &guarantee{turn: make(chan struct{}, 1), skipped: make(map[string]Findings)}
		g.known[backend].turn <- struct{}{}
	}
	return g.known[backend]
}

// findings asks the store what it does with writes, unless it has been asked. An error is no answer: the next write asks again.
func (x *exchange) findings() (Findings, error) {
	b := x.backend()
	if !b.remote() {
		return Findings{}, nil
	}
	g := x.h.guarantees.of(x.target.Backend)
	<-g.turn
	defer func() { g.turn <- struct{}{} }()
	if g.done {
		return g.found, nil
	}
	if found, ok := g.skipped[x.op.bucket]; ok {
		return found, nil
	}
	found, err := b.Probe(x.detached(), x.op.bucket)
	var refused *StoreRefusal
	if errors.As(err, &refused) {
		return Findings{}, &s3Error{refused.Status, refused.Code, "the store takes no writes to bucket " + x.op.bucket}
	}
	if err != nil {
		x.h.Log.Error("a store could not be asked what it does with writes", "backend", x.target.Backend, "bucket", x.op.bucket, "cause", err)
		return Findings{}, errNotProbed
	}
	if found.Skipped != "" {
		g.skipped[x.op.bucket] = found
	} else {
		g.done, g.found = true, found
	}
	x.tellGuarantee(b, found)
	return found, nil
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
		return badRequest(invalidArgument, "this store takes keys with %s for other keys, which have fences of their own: write to the key under its plain name", spelling)
	}
	judges := slices.Contains(conditionable, operation) || operation == deleteObjects
	switch {
	case !judges, !t.Fenced, t.Unconditional:
		return nil
	case found.Skipped != "" && b.Conditional == ConditionalAuto:
		return &ruleError{conditionsUnknown, "whether this store judges conditions was not found out (" + found.Skipped + "): say `conditional: on` or `conditional: off` for backend " + t.Backend}
	case b.Conditional == ConditionalOn && !b.conditional(found, operation):
		return &ruleError{conditionsIgnored, "this store carries out " + operation + " without regard to its condition, and backend " + t.Backend + " is configured with `conditional: on`"}
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

func hasDots(key string) bool {
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}
