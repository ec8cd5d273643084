package locks_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A writer takes the lock, writes with its token, and gives the lock back.
func Example() {
	service := newMemory() // or etcd.Open("etcd://localhost/compactor"), redis.Open(…), …
	defer service.Close()
	lock := locks.New(service, locks.Options{TTL: 30 * time.Second, Holder: "node-1"})

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // how long to wait
	defer cancel()
	grant, err := lock.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	// The S3 client of these writes has the token in its endpoint. A new grant needs a new client.
	fmt.Printf("AWS_ENDPOINT_URL=http://localhost:9000/~fence/%d;holder=%s\n", grant.Token(), grant.Holder())

	if err := grant.Release(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: AWS_ENDPOINT_URL=http://localhost:9000/~fence/1;holder=node-1
}

// Who can stop in the middle of its work saves the rest of it when the lock is lost. The data does not depend on that.
func ExampleGrant_Lost() {
	service := newMemory()
	defer service.Close()
	grant, err := locks.New(service, locks.Options{TTL: time.Second}).Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	service.remove() // an operator, or time

	work, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	go func() {
		select {
		case <-grant.Lost():
			stop(grant.Err())
		case <-work.Done():
		}
	}()
	<-work.Done() // the work
	fmt.Println(context.Cause(work))
	fmt.Println(errors.Is(grant.Release(context.Background()), locks.ErrLost))
	// Output:
	// the lock is lost
	// true
}

// A holder is paused for longer than its lock lasts. Storage that compares tokens does not take what it writes when it wakes up.
func Example_lateWrite() {
	service := newMemory()
	defer service.Close()
	var storage fenced
	ctx := context.Background()

	paused, err := service.Acquire(ctx, locks.Request{Holder: "node-1", TTL: 30 * time.Second}) // a Hold: nobody renews it
	if err != nil {
		fmt.Println(err)
		return
	}
	service.remove() // its TTL is over
	next, err := locks.New(service, locks.Options{Holder: "node-2"}).Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("node-2:", storage.write(next.Token(), "new"))
	fmt.Println("node-1:", storage.write(paused.Token(), "old"))
	fmt.Println(storage.content, next.Release(ctx))
	// Output:
	// node-2: <nil>
	// node-1: token 1 is below 2
	// new <nil>
}

// Who waits can be told for whom.
func ExampleOptions_waiting() {
	service := newMemory()
	defer service.Close()
	ctx := context.Background()
	first, err := locks.New(service, locks.Options{Holder: "node-1"}).Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	lock := locks.New(service, locks.Options{Holder: "node-2", Waiting: func(o locks.Other) {
		fmt.Println(o.Holder, "has it, with token", o.Token)
		go func() { _ = first.Release(ctx) }() // Waiting itself must not block
	}})
	second, err := lock.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("token", second.Token())
	_ = second.Release(ctx)
	// Output:
	// node-1 has it, with token 1
	// token 2
}

// fenced is storage that compares tokens, in its smallest form.
type fenced struct {
	highest tokens.Token
	content string
}

func (f *fenced) write(t tokens.Token, content string) error {
	if t < f.highest {
		return fmt.Errorf("token %d is below %d", t, f.highest)
	}
	f.highest, f.content = t, content
	return nil
}

// memory is a lock service for one process: what a driver has to do, in its smallest form. Its locks do not run out.
type memory struct {
	mu     sync.Mutex // guards the rest
	issued tokens.Token
	held   *memoryHold   // nil where nobody has the lock
	change chan struct{} // closed, and made anew, when held changes
}

func newMemory() *memory { return &memory{change: make(chan struct{})} }

func (m *memory) Close() error { return nil }

func (m *memory) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	for {
		m.mu.Lock()
		held, change := m.held, m.change
		if held == nil {
			m.issued++ // never goes back, whatever becomes of the lock
			h := &memoryHold{m: m, holder: r.Holder, token: m.issued}
			m.set(h)
			m.mu.Unlock()
			return h, nil
		}
		m.mu.Unlock()
		if r.Waiting != nil {
			r.Waiting(locks.Other{Holder: held.holder, Token: held.token})
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// set is called with mu held.
func (m *memory) set(h *memoryHold) {
	m.held = h
	close(m.change)
	m.change = make(chan struct{})
}

func (m *memory) remove() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(nil)
}

type memoryHold struct {
	m        *memory
	holder   string
	token    tokens.Token
	released bool // guarded by m.mu
}

func (h *memoryHold) Token() tokens.Token { return h.token }
func (h *memoryHold) TakenOver() bool     { return false }

func (h *memoryHold) Renew(context.Context) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.m.held != h {
		return locks.ErrLost
	}
	return nil
}

func (h *memoryHold) Release(context.Context) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	switch {
	case h.released:
		return nil
	case h.m.held != h:
		return locks.ErrLost
	}
	h.released = true
	h.m.set(nil)
	return nil
}
