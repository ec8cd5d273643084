package lockstest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A double is a lock service that is small enough to be seen to be right, and that can be given one flaw.
type double struct {
	flaw string
	http *httptest.Server

	mu    sync.Mutex // guards the rest
	locks map[string]*entry
	asked int
}

type entry struct {
	Counter  tokens.Token
	ID       string // of the hold; "" where nobody has it
	Holder   string
	Token    tokens.Token
	Since    time.Time
	until    time.Time
	released bool
	ghosts   int // who gave up waiting, and was not taken off the queue: a flaw
}

// An answer is what the double says: the lock as it is, and whether it is now, or was, the asker's.
type answer struct {
	entry
	Done      bool
	TakenOver bool
}

func newDouble(t testing.TB, flaw string) *double {
	d := &double{flaw: flaw, locks: make(map[string]*entry)}
	d.http = httptest.NewServer(d)
	t.Cleanup(d.http.Close)
	return d
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := r.URL.Query()
	ttl, _ := time.ParseDuration(q.Get("ttl"))
	if d.flaw == "free too early" {
		ttl /= 2
	}
	e := d.locks[q.Get("name")]
	if e == nil {
		e = &entry{}
		d.locks[q.Get("name")] = e
	}
	now := time.Now()
	var a answer
	switch r.URL.Path {
	case "/acquire":
		d.asked++
		a.Done, a.TakenOver = d.acquire(e, q.Get("id"), q.Get("holder"), now, ttl)
	case "/renew":
		a.Done = e.ID == q.Get("id") && now.Before(e.until)
		if d.flaw == "renewal takes back" && !a.Done && q.Get("token") != "" {
			e.ID, a.Done = q.Get("id"), true
		}
		if a.Done && d.flaw != "renewal does nothing" {
			e.until = now.Add(ttl)
		}
	case "/release":
		a.Done = e.ID == q.Get("id") && now.Before(e.until)
		if a.Done && d.flaw != "release does nothing" || d.flaw == "release of another's" {
			e.ID, e.released = "", true
			if e.ghosts > 0 {
				e.ghosts--
				e.ID, e.until = "ghost", now.Add(ttl)
			}
		}
		if d.flaw == "counter goes with the lock" && q.Get("last") != "" {
			e.Counter = 0
		}
	case "/gone":
		e.ghosts++
	}
	a.entry = *e
	_ = json.NewEncoder(w).Encode(a)
}

func (d *double) acquire(e *entry, id, holder string, now time.Time, ttl time.Duration) (done, over bool) {
	if e.ID != "" && e.ID != id && now.Before(e.until) && (d.flaw != "two at once" || d.asked%7 != 0) {
		return false, false
	}
	over = e.ID != "" && !e.released && d.flaw != "takeover not told"
	if d.flaw != "token repeats" || e.Counter%9 != 8 {
		e.Counter++
	}
	e.ID, e.Holder, e.Token, e.Since, e.until, e.released = id, holder, e.Counter, now, now.Add(ttl), false
	return true, over
}

func (d *double) forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name == "" {
		d.locks = make(map[string]*entry)
	}
	delete(d.locks, name)
}

// A doubleClient is a driver of it.
type doubleClient struct {
	d    *double
	base string
	name string
	http *http.Client
}

func (c *doubleClient) Close() error { c.http.CloseIdleConnections(); return nil }

func (c *doubleClient) ask(ctx context.Context, what string, q url.Values) (a answer, err error) {
	q.Set("name", c.name)
	if c.d.flaw == "deaf" {
		ctx = context.WithoutCancel(ctx)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+what+"?"+q.Encode(), nil)
	if err != nil {
		return a, err
	}
	response, err := c.http.Do(r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	return a, json.NewDecoder(response.Body).Decode(&a)
}

func (c *doubleClient) Acquire(ctx context.Context, r locks.Request) (locks.Hold, error) {
	h := &doubleHold{c: c, id: rand.Text(), ttl: r.TTL}
	if c.d.flaw == "let in twice" {
		h.id = fmt.Sprintf("%p", c)
	}
	var told tokens.Token
	for {
		a, err := c.ask(ctx, "/acquire", url.Values{"id": {h.id}, "holder": {r.Holder}, "ttl": {r.TTL.String()}})
		switch {
		case err == nil && a.Done:
			h.token, h.over = a.Token, a.TakenOver
			return h, nil
		case err == nil && r.Waiting != nil && a.Token != told:
			told = a.Token
			o := locks.Other{Holder: a.Holder, Token: a.Token, Since: a.Since}
			if c.d.flaw == "wrong one told" {
				o.Token++
			}
			r.Waiting(o)
		case err != nil && ctx.Err() == nil:
			return nil, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			if c.d.flaw == "stays in the queue" {
				_, _ = c.ask(context.WithoutCancel(ctx), "/gone", url.Values{})
			}
			if c.d.flaw == "cause not told" {
				return nil, ctx.Err()
			}
			return nil, context.Cause(ctx)
		}
	}
}

type doubleHold struct {
	c        *doubleClient
	id       string
	ttl      time.Duration
	token    tokens.Token
	over     bool
	released bool
}

func (h *doubleHold) Token() tokens.Token { return h.token }
func (h *doubleHold) TakenOver() bool     { return h.over }

func (h *doubleHold) call(ctx context.Context, what string) error {
	a, err := h.c.ask(ctx, what, url.Values{"id": {h.id}, "ttl": {h.ttl.String()}, "token": {fmt.Sprint(h.token)}, "last": {fmt.Sprint(h.token > 3)}})
	if err == nil && !a.Done {
		err = locks.ErrLost
	}
	return err
}

func (h *doubleHold) Renew(ctx context.Context) error {
	err := h.call(ctx, "/renew")
	switch {
	case h.c.d.flaw == "loss not told" && err != nil:
		return nil
	case h.c.d.flaw == "renewal changes the token":
		h.token++
	}
	return err
}

func (h *doubleHold) Release(ctx context.Context) error {
	if h.released && h.c.d.flaw != "not twice" {
		return nil
	}
	err := h.call(ctx, "/release")
	h.released = err == nil
	return err
}
