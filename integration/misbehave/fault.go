package misbehave

import "time"

// A Fault is what the store does with one request instead of what it should. The zero Fault is no fault. Fields compose:
//
//	stall → headers are judged → body → late → conditions are judged, effect → hold → answer
//
// A request that is refused before its effect (a signature, a broken body) is refused whatever the other fields say.
type Fault struct {
	// Stall is how long the request is on its way: its headers are taken, and its signature is judged, only then.
	Stall time.Duration

	// Unread makes the answer come before the body is read. Nothing takes effect.
	Unread bool

	// Late is how long after the whole request has come it takes effect. Its conditions are judged then, and by the content alone: a
	// late conflict is not noticed. A truthful answer waits for it, a made-up one does not.
	Late time.Duration

	// Lose makes it take no effect. A truthful answer is the one that it would have had.
	Lose bool

	// Again, if it is not 0, carries the request out once more, so much later than the first time.
	Again time.Duration

	// IgnoreConditions takes If-Match, If-None-Match and the ETags of a batch as if they were not there.
	IgnoreConditions bool

	// Torn keeps what has come of a body that broke off, as the object.
	Torn bool

	// Cut, if it is not 0, keeps only so many bytes of the body, and says nothing of it.
	Cut int

	// Hold is how long the answer waits: a truthful one after the effect, another after the request.
	Hold time.Duration

	// Until, if it is not nil, holds the answer until it is closed.
	Until <-chan struct{}

	// Drop cuts the connection instead of an answer.
	Drop bool

	// Status, if it is not 0, is answered whatever has happened: with Code in an error document, or, if Code is "" and Status below 300,
	// as a success. With Code and Status 200 the error is inside a success, as S3 has it for Copy and Complete.
	Status int
	Code   string
}

// truthful says whether the answer tells what has happened.
func (f Fault) truthful() bool { return !f.Drop && f.Status == 0 }

// A planned fault is for the next request that matches.
type planned struct {
	match func(Operation) bool
	fault Fault
}

// Next plans a fault for the next request that matches and has none planned for it yet. It goes before [Options.Fault].
func (s *Store) Next(match func(Operation) bool, f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.planned = append(s.planned, planned{match, f})
}

// Named matches operations by S3's name for them.
func Named(names ...string) func(Operation) bool {
	return func(op Operation) bool {
		for _, name := range names {
			if op.Name == name {
				return true
			}
		}
		return false
	}
}

// faultOf is what was planned for a request, or what Options.Fault says.
func (s *Store) faultOf(op Operation) Fault {
	s.mu.Lock()
	for i, p := range s.planned {
		if p.match(op) {
			s.planned = append(s.planned[:i:i], s.planned[i+1:]...)
			s.mu.Unlock()
			return p.fault
		}
	}
	s.mu.Unlock()
	if s.options.Fault == nil {
		return Fault{}
	}
	return s.options.Fault(op)
}
