package lockstest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A term is one holder's time, as the holder knows it: it began before from, and ended after to.
type term struct {
	token    tokens.Token
	from, to time.Time
}

// inOrder holds that no two terms overlap, and that tokens are different and grow with time.
func (b *bench) inOrder(terms []term) {
	b.Helper()
	slices.SortFunc(terms, func(x, y term) int { return cmp.Compare(x.token, y.token) })
	for i := 1; i < len(terms); i++ {
		a, c := terms[i-1], terms[i]
		switch {
		case a.token == c.token:
			b.Fatalf("the token %d was given twice", a.token)
		case c.to.Before(a.from):
			b.Fatalf("the token %d was given after %d", a.token, c.token)
		case c.from.Before(a.to):
			b.Fatalf("two holders at once, for %s: with the tokens %d and %d", a.to.Sub(c.from), a.token, c.token)
		}
	}
}

// testStorm: sixteen clients at once, none of them paused: one at a time has the lock. What they count without any lock of ours is seen by
// the race detector, too.
func testStorm(b *bench) {
	const clients, rounds = 16, 3
	var (
		mu      sync.Mutex // guards terms
		terms   []term
		counter int // guarded by the lock that is tested
		tasks   sync.WaitGroup
	)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	for i := range clients {
		c := b.client()
		tasks.Go(func() {
			for range rounds {
				h, err := c.Acquire(ctx, locks.Request{Holder: fmt.Sprint("client", i), TTL: b.long()})
				if err != nil {
					b.Errorf("client %d: %v", i, err)
					return
				}
				from := time.Now()
				counter++
				mine := counter
				time.Sleep(time.Millisecond) // long enough for somebody else to come in
				if counter != mine {
					b.Errorf("token %d: somebody else came in", h.Token())
				}
				to := time.Now()
				if err := settled(h.Release); err != nil {
					b.Errorf("client %d, token %d: %v", i, h.Token(), err)
				}
				mu.Lock()
				terms = append(terms, term{h.Token(), from, to})
				mu.Unlock()
			}
		})
	}
	tasks.Wait()
	if b.Failed() {
		return
	}
	if len(terms) != clients*rounds || counter != clients*rounds {
		b.Fatalf("%d terms, counted as %d; want %d", len(terms), counter, clients*rounds)
	}
	b.inOrder(terms)
}

// testHandOvers: over a thousand of them, tokens strictly grow. Some of the holders crash, some are paused and try to go on much later.
func testHandOvers(b *bench) {
	const handOvers = 1000
	crashes := 2
	if long() {
		crashes = 50
	}
	var (
		clients = []*client{b.client(), b.client(), b.client()}
		last    tokens.Token
		began   = time.Now()
	)
	for i := range handOvers {
		who := i % len(clients)
		c := clients[who]
		if (i+1)%(handOvers/crashes) != 0 {
			h := c.acquire(fmt.Sprint("client", who), b.long(), b.TTL+b.Late+soon)
			b.higher(h.Token(), last)
			last = h.Token()
			b.release(h)
			continue
		}
		h := c.acquire(fmt.Sprint("client", who), b.TTL, b.TTL+b.Late+soon)
		b.higher(h.Token(), last)
		last = h.Token()
		if crash := i / (handOvers / crashes) % 2; crash == 0 {
			c.crash()
			clients[who] = b.client()
			continue
		}
		c.pause()
		next := clients[(who+1)%len(clients)].acquire("successor", b.long(), b.TTL+b.Late+soon)
		b.higher(next.Token(), last)
		last = next.Token()
		b.release(next)
		c.wake()
		b.lost("Renew", h.Renew)
		b.lost("Release", h.Release)
	}
	b.Logf("%d hand-overs, %d of them from a holder that had crashed or was paused, in %s; the last token is %d", handOvers, crashes, time.Since(began), last)
}
