package histories

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A Kind is what clients do.
type Kind string

const (
	Put      Kind = "PUT"
	Delete   Kind = "DELETE"
	Get      Kind = "GET"  // through the proxy; one with a token announces it
	Look     Kind = "look" // a look at the store's file, around the proxy: also while nobody serves
	Announce Kind = "PUT ?fence"
)

// An Outcome is what an answer allows to have happened. Every answer is one of these, and any that is not expected fails the history at once.
//
//	success   2xx, and 404 to a GET. It happened, at one moment between call and return.
//	stale     412 or 403 with X-Fence-Error: StaleToken. Nothing happened and nothing will, and a higher token was seen by then.
//	nothing   503: WaitingForOlderWrite, RegistryUnavailable, or the store's own 503, of which the proxy promises that nothing was changed.
//	          400, from a body that the network cut. 404 to a DELETE, from versitygw when two meet and the other one removed the
//	          object. Nothing happened and nothing will. The token may have been raised, of which nobody was told.
//	unknown   504 and every other 5xx, a connection that failed, a client that went away. It may have happened at any time after the
//	          call, also long after; or never.
//
// A plain 412 never comes: no client here sends a condition, and those that the proxy adds are its own affair.
type Outcome string

const (
	Success Outcome = "success"
	Stale   Outcome = "stale"
	Nothing Outcome = "nothing"
	Unknown Outcome = "unknown"
)

// An Op is one thing that a client did, and what became of it. Values are serial numbers of contents, each written once; 0 is no
// object.
type Op struct {
	Client   int
	Kind     Kind
	Resource string
	Key      int   // of the resource
	Token    int64 // 0: without one
	Value    int64 // written, or read
	Call     time.Duration
	Return   time.Duration // of the clock of the history; forever where no answer came
	Outcome  Outcome
	Highest  int64  // X-Fence-Highest of the answer
	Answer   string // as the client saw it, for people
	By       string // which of several proxies answered, where a balancer says so in [ServedBy]
}

const (
	Forever time.Duration = math.MaxInt64
	maxKeys               = 3 // of a resource
)

func (o Op) reads() bool { return o.Kind == Get || o.Kind == Look }

// Raises says whether the answer promises that nothing lower happens from then on.
func (o Op) Raises() bool {
	return o.Outcome == Success && o.Kind != Look && (!o.reads() || o.Highest <= o.Token)
}

// A state of a resource: what the promise is about.
type state struct {
	highest int64 // the highest token of what has happened: writes that took effect, announcements that were answered
	values  [maxKeys]int64
}

// step is the promise. It says whether an op may happen in a state, and which one follows.
//
// What happens raises the token, whether its client was told or not: the registry has it before the store has the write. So
// nothing lower happens later, which is more than what was answered would ask for.
//
// A refusal names the highest token seen, which is never below what has happened. (It may be above: a token is seen before its write
// takes effect, and may be forgotten again when the proxy is killed before it is on disk.)
//
// In a fleet it may be below: a proxy that has no grant of the resource knows for a second no more than it knew.
//
// A read with a token is a raise and a look, one after the other. Here both are one, at the moment of the look: between them nothing
// lower happens, so that the raise may as well come late. A stale reader is served and raises nothing: what it reads may be changed
// by an older write that a raise to the higher token still waits for. X-Fence-Highest tells it so.
//
// A DELETE whose outcome is unknown happens if it still may; prepare lets it wait for ever, which is never.
func (s state) step(o Op, fleet bool) (state, bool) {
	switch {
	case o.reads():
		if o.Highest <= o.Token {
			s.highest = max(s.highest, o.Token)
		}
		return s, s.values[o.Key] == o.Value
	case o.Outcome == Stale:
		return s, o.Highest > o.Token && (fleet || o.Highest >= s.highest)
	case o.Token < s.highest:
		return s, o.Outcome == Unknown
	}
	s.highest = o.Token
	if o.Kind != Announce {
		s.values[o.Key] = o.Value
	}
	return s, true
}

// model is the promise of one proxy, or that of a fleet.
func model(fleet bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, in, _ any) (bool, any) {
			next, ok := s.(state).step(in.(Op), fleet)
			return ok, next
		},
		DescribeOperation: func(in, _ any) string { return in.(Op).String() },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

func (o Op) String() string {
	s := fmt.Sprintf("%s %s/%d", o.Kind, o.Resource, o.Key)
	if o.Kind == Announce {
		s = fmt.Sprintf("%s %s", o.Kind, o.Resource)
	} else if o.Kind != Delete && (o.Kind == Put || o.Outcome == Success) {
		s += fmt.Sprintf(" = %d", o.Value)
	}
	if o.Kind != Look {
		s += fmt.Sprintf(", token %d", o.Token)
	}
	switch o.Outcome {
	case Success:
		return s
	case Stale:
		return fmt.Sprintf("%s: stale, highest %d", s, o.Highest)
	}
	return s + ": " + string(o.Outcome)
}

// prepare takes out of one resource's history what says nothing, and makes the rest definite, so that the search stays short. Whether
// the history keeps the promise does not change by it:
//
//   - What did nothing, and an announcement or a read without an answer, may be left out: to think that they did not happen forbids
//     less than to think they did.
//   - The same for a PUT without an answer whose content nobody has read. One whose content was read has happened, before the first
//     such read was over.
//   - The same for a DELETE without an answer, if nobody found the key empty afterwards. The others stay open for ever.
func prepare(history []Op) (prepared []Op) {
	firstRead := make(map[int64]time.Duration) // of each value: when the first read of it was over
	for _, o := range history {
		if o.reads() && o.Outcome == Success && o.Value != 0 {
			if at, ok := firstRead[o.Value]; !ok || o.Return < at {
				firstRead[o.Value] = o.Return
			}
		}
	}
	for _, o := range history {
		switch {
		case o.Outcome == Nothing, o.Outcome == Unknown && (o.reads() || o.Kind == Announce):
			continue
		case o.Outcome == Unknown && o.Kind == Put:
			at, ok := firstRead[o.Value]
			if !ok {
				continue
			}
			o.Outcome, o.Return = Success, max(at, o.Call) // read before it was sent: then the read is what cannot be
		case o.Outcome == Unknown && o.Kind == Delete:
			if !foundEmptyAfter(history, o) {
				continue
			}
			o.Return = Forever
		}
		prepared = append(prepared, o)
	}
	return prepared
}

func foundEmptyAfter(history []Op, deleted Op) bool {
	return slices.ContainsFunc(history, func(o Op) bool {
		return o.reads() && o.Outcome == Success && o.Key == deleted.Key && o.Value == 0 && o.Return >= deleted.Call
	})
}

// A verdict on one resource.
type verdict struct {
	result porcupine.CheckResult
	why    string // for a result that porcupine did not find
	info   porcupine.LinearizationInfo
}

// judge checks one resource's history. Nothing may take longer than a search of patience, else the result is [porcupine.Unknown].
func judge(history []Op, fleet bool) verdict {
	if o, ok := refusedTooSoon(history); ok {
		return verdict{result: porcupine.Illegal, why: fmt.Sprintf("%v: nobody had sent %d by then", o, o.Highest)}
	}
	var ops []porcupine.Operation
	for _, o := range prepare(history) {
		ops = append(ops, porcupine.Operation{ClientId: o.Client, Input: o, Call: int64(o.Call), Return: int64(o.Return)})
	}
	result, info := porcupine.CheckOperationsVerbose(model(fleet), ops, Patience)
	return verdict{result: result, info: info}
}

// refusedTooSoon finds a refusal that names a token as seen which nobody had sent when the answer came.
func refusedTooSoon(history []Op) (Op, bool) {
	for _, refused := range history {
		if refused.Outcome == Stale && !slices.ContainsFunc(history, func(o Op) bool {
			return o.Token == refused.Highest && o.Call <= refused.Return
		}) {
			return refused, true
		}
	}
	return Op{}, false
}

// perResource takes a history apart. Resources promise nothing to each other.
func perResource(history []Op) map[string][]Op {
	parts := make(map[string][]Op)
	for _, o := range history {
		parts[o.Resource] = append(parts[o.Resource], o)
	}
	return parts
}
