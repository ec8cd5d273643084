package rules

import (
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxStates bounds the search for a key that a pattern is the first to match. Patterns that people write need some dozens;
// those made to need more are taken to match.
const maxStates = 4096

type verdict int

const (
	matchable verdict = iota // there is a key
	shadowed                 // there is none
	undecided                // the search was given up
)

// first looks for the shortest key that p matches and none of earlier does. The key is not empty and is valid UTF-8.
//
// It walks all machines at once, breadth first (the subset construction), over the characters that the patterns name,
// the slash, and one that stands for all others, which no machine can tell apart.
func first(p *pattern, earlier []*pattern) (key string, v verdict) {
	return common([]*pattern{p}, earlier)
}

// common looks for the shortest key that all of want match and none of earlier does.
func common(want, earlier []*pattern) (key string, v verdict) {
	s := newSearch(want, earlier)
	for i := 0; i < len(s.queue); i++ {
		if len(s.queue) > maxStates {
			return "", undecided
		}
		if i > 0 && s.isFirst(&s.queue[i]) {
			return s.key(i), matchable
		}
		for _, r := range s.alphabet {
			s.visit(i, r)
		}
	}
	return "", shadowed
}

type search struct {
	machines []nfa // those in question are the last ones
	earlier  int   // how many are not
	alphabet []rune
	seen     map[string]bool
	queue    []state
}

// A state is where the machines are after some key. Those that are nowhere are left out.
type state struct {
	at   []place
	prev int // the state before the last character
	char rune
}

type place struct {
	machine int
	at      set
}

func newSearch(want, earlier []*pattern) *search {
	s := &search{seen: map[string]bool{}}
	var text strings.Builder
	add := func(p *pattern) {
		s.machines = append(s.machines, p.nfa)
		text.WriteString(p.literals)
	}
	for _, q := range earlier {
		if p := want[0]; strings.HasPrefix(q.head, p.head) || strings.HasPrefix(p.head, q.head) {
			add(q)
		}
	}
	s.earlier = len(s.machines)
	for _, p := range want {
		add(p)
	}
	s.alphabet = alphabet(text.String())
	var begin state
	for i, m := range s.machines {
		begin.at = append(begin.at, place{i, m.start()})
	}
	s.queue = append(s.queue, begin) // not seen: a state like it after some character is no longer that of the empty key
	return s
}

// alphabet gives the characters of text, the slash, and one more.
func alphabet(text string) []rune {
	runes := append([]rune(text), '/')
	other := 'a'
	for slices.Contains(runes, other) {
		other++
	}
	runes = append(runes, other)
	slices.Sort(runes)
	return slices.Compact(runes)
}

func (s *search) isFirst(st *state) bool {
	for i := range st.at {
		p := &st.at[i]
		if s.machines[p.machine].accepts(&p.at) != (p.machine >= s.earlier) {
			return false
		}
	}
	return true
}

// visit goes on from a state by one character. What leads nowhere is dropped: where a machine in question is stuck, or an
// earlier one takes all that follows.
func (s *search) visit(from int, r rune) {
	next := state{prev: from, char: r}
	var buf [utf8.UTFMax]byte
	bytes := utf8.AppendRune(buf[:0], r)
	alive := 0 // of those in question
	for _, p := range s.queue[from].at {
		m := s.machines[p.machine]
		for _, c := range bytes {
			p.at = m.step(&p.at, c)
		}
		if p.at.empty() {
			continue
		}
		if p.machine >= s.earlier {
			alive++
		} else if m.takesAll(&p.at) {
			return
		}
		next.at = append(next.at, p)
	}
	if alive == len(s.machines)-s.earlier {
		s.push(next)
	}
}

func (s *search) push(st state) {
	var id []byte
	for _, p := range st.at {
		for w, word := range p.at {
			if word != 0 {
				id = binary.AppendUvarint(id, uint64(p.machine*len(p.at)+w))
				id = binary.LittleEndian.AppendUint64(id, word)
			}
		}
	}
	if !s.seen[string(id)] {
		s.seen[string(id)] = true
		s.queue = append(s.queue, st)
	}
}

func (s *search) key(i int) string {
	var runes []rune
	for ; i > 0; i = s.queue[i].prev {
		runes = append(runes, s.queue[i].char)
	}
	slices.Reverse(runes)
	return string(runes)
}
