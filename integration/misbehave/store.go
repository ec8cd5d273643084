package misbehave

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options of a [Store].
type Options struct {
	// Now is the store's clock, by which signatures are judged; time.Now if nil.
	Now func() time.Time

	// Secret is the key that chunks are signed with. If it is "", their signatures are not looked at. Those of requests never are.
	Secret string

	// NoTrailers refuses bodies whose checksum comes behind them, as older stores do.
	NoTrailers bool

	// Fault is asked once for each request, when its first line and headers have come; nil: no faults. It must not call the store.
	Fault func(Operation) Fault

	// Applied is told of every effect at the moment when it happens: no reader has seen it, and none can see what was before it any
	// more. It must not call the store.
	Applied func(Application)

	// Names that lead to one object: "p//q" and "p/q" (Slashes), "p/./q", "p/z/../q" and "p/q" (Dots), "P/q" and "p/q" (Case).
	Slashes, Dots, Case bool
}

// A Store is the server. It is an [http.Handler] in path style: /bucket/key.
type Store struct {
	options Options
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	late    sync.WaitGroup // effects that are still to come

	mu       sync.Mutex
	closed   bool               // no late effect begins; guarded by mu
	requests int                // guarded by mu
	buckets  map[string]*bucket // guarded by mu, with all that is in them
	planned  []planned          // guarded by mu
	journal  []Application      // guarded by mu
}

// A bucket has its objects by their names, which are the keys unless names are merged.
type bucket struct {
	objects map[string]*object
	changes map[string]int // how often the object of that name was made, replaced or removed
	uploads map[string]*upload
}

// An object is never changed, only replaced.
type object struct {
	content   []byte
	etag      string // with its quotes
	header    http.Header
	checksums http.Header // those that it was sent with
	modified  time.Time
}

// An Application is one effect that a reader can see.
type Application struct {
	Operation           // the request that it is of
	At        time.Time // when it took effect, by time.Now
	Target    string    // the key; of DeleteObjects the one of many that it is about
	Content   []byte    // of the object that is there now; nil where one was removed
	ETag      string    // of the same
	Metadata  http.Header
	Checksums http.Header // that were sent with the object, before or behind its body
	Deleted   bool
	Before    string // the ETag that was replaced or removed, "" if there was no object
	Late      bool   // it took effect after the answer, or Fault.Late after the request
	Second    bool   // the request had taken effect before
}

// New returns a store with these buckets. Close it.
func New(o Options, buckets ...string) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Store{options: o, buckets: map[string]*bucket{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, name := range buckets {
		s.buckets[name] = newBucket()
	}
	return s
}

func newBucket() *bucket {
	return &bucket{objects: map[string]*object{}, changes: map[string]int{}, uploads: map[string]*upload{}}
}

// Close ends every wait: what has not taken effect by now never will, and answers that are held become cut connections.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.late.Wait()
}

// Journal returns all effects so far, in their order.
func (s *Store) Journal() []Application {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.journal)
}

// Content is what a key has now.
func (s *Store) Content(bucket, key string) (content []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.buckets[bucket]
	if !ok {
		return nil, false
	}
	o, ok := b.objects[s.merged(key)]
	if !ok {
		return nil, false
	}
	return slices.Clone(o.content), true
}

// Put puts an object there by the back door: it is in the journal as an operation without a name.
func (s *Store) Put(bucket, key string, content []byte, header http.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := Operation{Bucket: bucket, Key: key}
	s.replace(&effect{op: op}, s.buckets[bucket], key, newObject(content, md5Tag(content), header))
}

// replace is where every object is made, replaced or, with nil, removed. Called with the lock held.
func (s *Store) replace(e *effect, b *bucket, key string, o *object) {
	name := s.merged(key)
	a := Application{Operation: e.op, At: time.Now(), Target: key, Deleted: o == nil, Late: e.late, Second: e.second}
	if before, ok := b.objects[name]; ok {
		a.Before = before.etag
	} else if o == nil {
		return // nothing was there, and nothing is
	}
	b.changes[name]++
	if o == nil {
		delete(b.objects, name)
	} else {
		b.objects[name] = o
		a.Content, a.ETag, a.Metadata, a.Checksums = o.content, o.etag, o.header, o.checksums
	}
	s.journal = append(s.journal, a)
	if s.options.Applied != nil {
		s.options.Applied(a)
	}
}

// wait sleeps, and says false if the store was closed meanwhile.
func (s *Store) wait(d time.Duration, until <-chan struct{}) bool {
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.ctx.Done():
			return false
		}
	}
	if until != nil {
		select {
		case <-until:
		case <-s.ctx.Done():
			return false
		}
	}
	return true
}
