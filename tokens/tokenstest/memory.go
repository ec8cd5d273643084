package tokenstest

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/fleet"
)

// A Memory is the engine of a fleet at its simplest: a few maps under one mutex. It outlives the instances, and ends with the test. What a real
// engine does must look like this.
type Memory struct {
	timed bool // it times leases itself, as etcd does; else instances expel each other

	mu           sync.Mutex
	fences       map[string]tokens.Entry // guarded by mu, like all below
	incarnations map[int64]*memoryIncarnation
	grants       map[tokens.GrantID]*memoryGrant
	uploads      map[string]tokens.Token
	locks        map[string]tokens.LockRow
	mapping      int64
	last         int64                      // number that was given out last, to an incarnation or a grant
	hints        map[chan struct{}]struct{} // of the stores that are open
}

type memoryIncarnation struct {
	fleet.Peer
	mapping int64
	ended   bool
	until   time.Time // where the engine times leases
}

type memoryGrant struct {
	fleet.GrantRef
	generation int64
	token      tokens.Token
	named      int // 1: for a holder
	settle     time.Duration
	revoked    bool
}

// compare puts grants in the order in which they wait for each other.
func (g *memoryGrant) compare(o *memoryGrant) int {
	return cmp.Or(cmp.Compare(g.generation, o.generation), cmp.Compare(g.token, o.token), cmp.Compare(g.named, o.named))
}

// NewMemory returns an empty one. timed says that it times leases itself.
func NewMemory(timed bool) *Memory {
	return &Memory{
		timed: timed, fences: map[string]tokens.Entry{}, incarnations: map[int64]*memoryIncarnation{}, grants: map[tokens.GrantID]*memoryGrant{},
		uploads: map[string]tokens.Token{}, locks: map[string]tokens.LockRow{}, mapping: 1, hints: map[chan struct{}]struct{}{},
	}
}

// Store implements [Engine].
func (m *Memory) Store(testing.TB) fleet.Store {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &memoryStore{m: m, hints: make(chan struct{}, 1)}
	m.hints[s.hints] = struct{}{}
	return s
}

// Mapping implements [Engine].
func (m *Memory) Mapping(testing.TB) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mapping
}

// Remap implements [Engine].
func (m *Memory) Remap(testing.TB) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mapping++
	return m.mapping
}

// lock takes the mutex and ends the leases that are over.
func (s *memoryStore) lock() (unlock func()) {
	m := s.m
	m.mu.Lock()
	if m.timed {
		for _, i := range m.incarnations {
			i.ended = i.ended || !time.Now().Before(i.until)
		}
	}
	return m.mu.Unlock
}

func (m *Memory) next() int64 {
	m.last++
	return m.last
}

func (m *Memory) hint() {
	for hints := range m.hints {
		select {
		case hints <- struct{}{}:
		default:
		}
	}
}

// alive returns an incarnation, or an error if it has ended.
func (m *Memory) alive(incarnation int64) (*memoryIncarnation, error) {
	i := m.incarnations[incarnation]
	if i == nil || i.ended {
		return nil, fleet.ErrEnded
	}
	return i, nil
}

// of is the grant of an incarnation on a resource, nil if it has none.
func (m *Memory) of(incarnation int64, resource string) *memoryGrant {
	for _, g := range m.grants {
		if g.Incarnation == incarnation && g.Resource == resource {
			return g
		}
	}
	return nil
}

// revoke marks the grants on a resource for which lower says so, and returns them.
func (m *Memory) revoke(resource string, lower func(*memoryGrant) bool) (refs []fleet.GrantRef) {
	for _, g := range m.grants {
		if g.Resource == resource && lower(g) {
			g.revoked = true
			refs = append(refs, g.GrantRef)
		}
	}
	if len(refs) > 0 {
		m.hint()
	}
	return refs
}

func (m *Memory) view(incarnation int64) (v fleet.View) {
	v.Mapping = m.mapping
	for n, i := range m.incarnations {
		if i.ended {
			v.Ended = append(v.Ended, n)
		} else {
			v.Alive = append(v.Alive, i.Peer)
		}
	}
	for _, g := range m.grants {
		if g.Incarnation == incarnation && g.revoked {
			v.Revoked = append(v.Revoked, tokens.Revocation{ID: g.ID, Entry: m.entry(g.Resource)})
		}
	}
	return v
}

func (m *Memory) entry(resource string) tokens.Entry {
	e := m.fences[resource]
	e.Resource = resource
	return e
}

// memoryStore is one instance's way to a Memory.
type memoryStore struct {
	m     *Memory
	hints chan struct{}
}

func (s *memoryStore) Join(_ context.Context, lease time.Duration, mapping int64) (int64, error) {
	defer s.lock()()
	if mapping != s.m.mapping {
		return 0, fleet.ErrRemapped
	}
	for _, i := range s.m.incarnations {
		if i.mapping != mapping {
			return 0, fleet.ErrDraining
		}
	}
	n := s.m.next()
	i := &memoryIncarnation{Peer: fleet.Peer{Incarnation: n, Lease: lease}, mapping: mapping, until: time.Now().Add(lease)}
	if !s.m.timed {
		i.Beat = 1
	}
	s.m.incarnations[n] = i
	return n, nil
}

func (s *memoryStore) Beat(_ context.Context, incarnation int64) (fleet.View, error) {
	defer s.lock()()
	i, err := s.m.alive(incarnation)
	if err != nil {
		return fleet.View{}, err
	}
	i.until = time.Now().Add(i.Lease)
	if !s.m.timed {
		i.Beat++
	}
	return s.m.view(incarnation), nil
}

func (s *memoryStore) Look(context.Context) (fleet.View, error) {
	defer s.lock()()
	return s.m.view(0), nil
}

func (s *memoryStore) Expel(_ context.Context, p fleet.Peer) error {
	defer s.lock()()
	if i, err := s.m.alive(p.Incarnation); err == nil && !s.m.timed && i.Beat == p.Beat {
		i.ended = true
	}
	return nil
}

func (s *memoryStore) Leave(_ context.Context, incarnation int64) error {
	defer s.lock()()
	i, err := s.m.alive(incarnation)
	if err != nil {
		return err
	}
	i.ended = true
	s.m.hint()
	return nil
}

func (s *memoryStore) Record(_ context.Context, incarnation int64, c tokens.Claim) (rec fleet.Recorded, err error) {
	defer s.lock()()
	if _, err := s.m.alive(incarnation); err != nil {
		return rec, err
	}
	e := s.m.entry(c.Resource)
	switch {
	case c.Generation != e.Generation:
		return rec, &tokens.ResetError{Resource: c.Resource, Token: c.Token, Highest: e.Token, Holder: e.Holder, Generation: e.Generation}
	case c.Token < e.Token:
		return rec, &tokens.StaleError{Resource: c.Resource, Token: c.Token, Highest: e.Token, Holder: e.Holder}
	case c.Token == e.Token && e.Holder != "" && c.Holder != e.Holder:
		return rec, &tokens.ConflictError{Resource: c.Resource, Token: c.Token, Holder: c.Holder, Bound: e.Holder}
	}
	raised := c.Token > e.Token
	if raised || c.Holder != e.Holder {
		e.Token, e.Holder, e.AccessKey, e.RaisedAt = c.Token, c.Holder, c.AccessKey, time.UnixMilli(time.Now().UnixMilli())
		s.m.fences[c.Resource] = e
	}
	g := &memoryGrant{
		GrantRef:   fleet.GrantRef{ID: tokens.GrantID(s.m.next()), Resource: c.Resource, Incarnation: incarnation},
		generation: e.Generation, token: c.Token, named: min(len(c.Holder), 1), settle: c.Settle,
	}
	was := s.m.of(incarnation, c.Resource)
	below := func(o *memoryGrant) bool { return o.compare(g) < 0 }
	if was != nil && was.generation == g.generation && was.token == g.token && was.named < g.named {
		s.m.revoke(c.Resource, below)
		return fleet.Recorded{Own: was.ID}, nil
	}
	if was != nil {
		if was.compare(g) == 0 {
			g.settle = max(g.settle, was.settle)
		}
		delete(s.m.grants, was.ID)
		s.m.hint()
	}
	s.m.grants[g.ID] = g
	rec.Grant = tokens.Grant{ID: g.ID, Token: g.token, Holder: e.Holder, Settle: g.settle, Raised: raised, Generation: g.generation}
	rec.Lower = s.m.revoke(c.Resource, below)
	return rec, nil
}

func (s *memoryStore) RecordReset(_ context.Context, incarnation int64, resource string, t tokens.Token) (e tokens.Entry, rec fleet.Recorded, err error) {
	defer s.lock()()
	if _, err := s.m.alive(incarnation); err != nil {
		return e, rec, err
	}
	e = tokens.Entry{
		Resource: resource, Token: t, RaisedAt: time.UnixMilli(time.Now().UnixMilli()),
		Generation: s.m.fences[resource].Generation + 1,
	}
	s.m.fences[resource] = e
	for _, ref := range s.m.revoke(resource, func(*memoryGrant) bool { return true }) {
		if ref.Incarnation == incarnation {
			rec.Grant.ID = ref.ID
		} else {
			rec.Lower = append(rec.Lower, ref)
		}
	}
	return e, rec, nil
}

func (s *memoryStore) Standing(_ context.Context, grants []fleet.GrantRef) (standing []fleet.GrantRef, err error) {
	defer s.lock()()
	for _, ref := range grants {
		if s.m.grants[ref.ID] != nil {
			standing = append(standing, ref)
		}
	}
	return standing, nil
}

func (s *memoryStore) Remove(_ context.Context, ids ...tokens.GrantID) error {
	defer s.lock()()
	for _, id := range ids {
		delete(s.m.grants, id)
	}
	s.m.hint()
	return nil
}

func (s *memoryStore) Sweep(_ context.Context, incarnation int64, settled time.Duration) (next time.Duration, err error) {
	defer s.lock()()
	if i := s.m.incarnations[incarnation]; i == nil || !i.ended {
		return 0, nil
	}
	left := 0
	for id, g := range s.m.grants {
		switch {
		case g.Incarnation != incarnation:
		case g.settle <= settled:
			delete(s.m.grants, id)
		default:
			if left++; left == 1 || g.settle < next {
				next = g.settle
			}
		}
	}
	if left == 0 {
		delete(s.m.incarnations, incarnation)
	}
	s.m.hint()
	return next, nil
}

func (s *memoryStore) Hints() <-chan struct{} { return s.hints }

func (s *memoryStore) Lookup(_ context.Context, resource string) (tokens.Entry, error) {
	defer s.lock()()
	return s.m.entry(resource), nil
}

func (s *memoryStore) List(_ context.Context, prefix, after string, limit int) (entries []tokens.Entry, err error) {
	defer s.lock()()
	for name, e := range s.m.fences {
		if strings.HasPrefix(name, prefix) && name > after {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b tokens.Entry) int { return cmp.Compare(a.Resource, b.Resource) })
	return entries[:min(limit, len(entries))], nil
}

func (s *memoryStore) TouchUpload(_ context.Context, upload string, t tokens.Token) error {
	defer s.lock()()
	s.m.uploads[upload] = max(s.m.uploads[upload], t)
	return nil
}

func (s *memoryStore) UploadToken(_ context.Context, upload string) (tokens.Token, error) {
	defer s.lock()()
	return s.m.uploads[upload], nil
}

func (s *memoryStore) ForgetUpload(_ context.Context, upload string) error {
	defer s.lock()()
	delete(s.m.uploads, upload)
	return nil
}

func (s *memoryStore) LoadLock(_ context.Context, resource string) (tokens.LockView, error) {
	defer s.lock()()
	return tokens.LockView{Row: s.m.locks[resource], Fence: s.m.entry(resource)}, nil
}

func (s *memoryStore) SwapLock(_ context.Context, incarnation int64, was tokens.LockView, now tokens.LockRow) (int64, error) {
	defer s.lock()()
	if _, err := s.m.alive(incarnation); err != nil {
		return 0, err
	}
	row, fence := s.m.locks[was.Fence.Resource], s.m.entry(was.Fence.Resource)
	if row.Version != was.Row.Version ||
		now.Issued > was.Row.Issued && (fence.Token != was.Fence.Token || fence.Generation != was.Fence.Generation) {
		return 0, nil
	}
	now.Version++
	s.m.locks[was.Fence.Resource] = now
	return now.Version, nil
}

func (s *memoryStore) Close() error {
	defer s.lock()()
	delete(s.m.hints, s.hints)
	return nil
}
