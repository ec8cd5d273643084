package rules

import "math/bits"

// An nfa is a pattern as a machine over bytes. Its positions are the ops, and len(nfa), the end; every position has a way to
// the end, so a machine that is anywhere can still match.
type nfa []op

type op struct {
	kind opKind
	char byte // of a literal
}

type opKind int

const (
	literal  opKind = iota // this byte
	notSlash               // one byte, no slash
	star                   // any number of bytes, no slash
	anything               // any number of bytes
)

// A set holds the positions a machine is at. No pattern compiles to more ops than it has bytes.
type set [MaxPattern/64 + 1]uint64

func (s *set) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }
func (s *set) empty() bool    { return *s == set{} }

// add puts the machine at position i and wherever it gets from there without a byte.
func (n nfa) add(s *set, i int) {
	s[i/64] |= 1 << (i % 64)
	for i < len(n) && (n[i].kind == star || n[i].kind == anything) {
		i++
		s[i/64] |= 1 << (i % 64)
	}
}

func (n nfa) start() set {
	var s set
	n.add(&s, 0)
	return s
}

func (n nfa) step(from *set, c byte) set {
	var to set
	for w, word := range from {
		for ; word != 0; word &= word - 1 {
			n.move(&to, w*64+bits.TrailingZeros64(word), c)
		}
	}
	return to
}

func (n nfa) move(to *set, i int, c byte) {
	if i == len(n) {
		return
	}
	switch n[i].kind {
	case literal:
		if c == n[i].char {
			n.add(to, i+1)
		}
	case notSlash:
		if c != '/' {
			n.add(to, i+1)
		}
	case star:
		if c != '/' {
			n.add(to, i)
		}
	case anything:
		n.add(to, i)
	}
}

// accepts says that what was read so far matches.
func (n nfa) accepts(s *set) bool { return s.has(len(n)) }

// takesAll says that what was read so far matches, however it goes on.
func (n nfa) takesAll(s *set) bool {
	last := len(n) - 1
	return last >= 0 && n[last].kind == anything && s.has(last)
}
