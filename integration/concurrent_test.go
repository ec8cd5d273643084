package integration

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// keepAlive is a client of many connections that are used again.
func keepAlive(t *testing.T, conns int) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 2 * time.Minute}
}

// A model is what one fenced key may answer: ten lines that every answer is held against.
type model struct {
	mu       sync.Mutex
	begun    map[int64]bool // tokens that somebody has begun a request with
	answered int64          // the highest one answered with success
	writes   []written      // those answered with success
	problems []string
}

// A written is a write that was answered with success. Its times are counts of a clock that all clients share.
type written struct {
	token      int64
	start, end int64
	content    string
}

func (m *model) begin(n int64) (floor int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun == nil {
		m.begun = map[int64]bool{}
	}
	m.begun[n] = true
	return m.answered
}

// end judges an answer. floor is what begin returned.
func (m *model) end(w written, floor int64, a answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	problem := func(format string, args ...any) {
		m.problems = append(m.problems, fmt.Sprintf("token %d: ", w.token)+fmt.Sprintf(format, args...))
	}
	highest, err := strconv.ParseInt(a.header.Get("X-Fence-Highest"), 10, 64)
	switch {
	case err != nil:
		problem("no X-Fence-Highest: %v", err)
	case !m.begun[highest] && highest != 0:
		problem("X-Fence-Highest %d, which nobody has begun with", highest)
	case highest < floor:
		problem("X-Fence-Highest %d, after %d was answered", highest, floor)
	}
	switch {
	case a.status == 200 && w.token < floor:
		problem("success, after %d was answered before it began", floor)
	case a.status == 200 && highest < w.token:
		problem("success, and X-Fence-Highest %d", highest)
	case a.status == 200:
		m.answered = max(m.answered, w.token)
		m.writes = append(m.writes, w)
	case a.status != 412 || a.header.Get("X-Fence-Error") != "StaleToken":
		problem("%d %s", a.status, a.body)
	case highest <= w.token:
		problem("refused, and X-Fence-Highest %d", highest)
	}
}

// lasts says what a reader may find when nobody writes any more: of the writes with the highest token those that no other one with it
// came after.
func (m *model) lasts() (contents []string) {
	var latest int64 // start of the write that began last
	for _, w := range m.writes {
		if w.token == m.answered {
			latest = max(latest, w.start)
		}
	}
	for _, w := range m.writes {
		if w.token == m.answered && w.end > latest {
			contents = append(contents, w.content)
		}
	}
	return contents
}

// TestConcurrentWriters: 64 writers with equal, rising and falling tokens over 1,000 resources, and the model agrees with every answer.
func TestConcurrentWriters(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const writers, resources, requests = 64, 1000, 8000
	client := keepAlive(t, writers)
	models := make([]model, resources)
	var issued [resources]atomic.Int64 // what the lock service has given out
	var next, clock, wrote, refused atomic.Int64
	key := func(i int) string { return fmt.Sprintf("/bkt/jobs/%d/k", i) }
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for {
				n := int(next.Add(1))
				if n > requests {
					return
				}
				// All are at about the same resources at a time: each is met by eight requests, most of them at once.
				i := (n/8 + rand.IntN(3)) % resources
				var w written
				switch rand.IntN(4) {
				case 0, 1:
					w.token = issued[i].Add(1)
				case 2:
					w.token = max(1, issued[i].Load())
				case 3:
					w.token = max(1, issued[i].Load()-1-rand.Int64N(2))
				}
				w.content = fmt.Sprintf("%d of token %d %s", n, w.token, strings.Repeat("x", rand.IntN(3000)))
				m := &models[i]
				floor := m.begin(w.token)
				w.start = clock.Add(1)
				a, err := send(client, p.addr, "PUT", key(i), strings.NewReader(w.content), "X-Fence-Token", token(w.token))
				w.end = clock.Add(1)
				if err != nil {
					t.Errorf("no answer: %v", err)
					return
				}
				m.end(w, floor, a)
				if a.status == 200 {
					wrote.Add(1)
				} else {
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	agree := func(when string) {
		var problems []string
		for i := range models {
			m := &models[i]
			for _, problem := range m.problems {
				problems = append(problems, key(i)+": "+problem)
			}
			m.problems = nil
			if m.answered == 0 {
				continue
			}
			a, err := send(client, p.addr, "GET", key(i), nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(m.lasts(), string(a.body)) {
				problems = append(problems, fmt.Sprintf("%s holds %.60q, want one of %.60q", key(i), a.body, m.lasts()))
			}
			if got := a.header.Get("X-Fence-Highest"); got != token(m.answered) {
				problems = append(problems, fmt.Sprintf("%s stands at %s, want %d", key(i), got, m.answered))
			}
		}
		if len(problems) > 0 {
			t.Errorf("%s the model disagrees %d times:\n%s", when, len(problems), strings.Join(problems[:min(len(problems), 10)], "\n"))
		}
	}
	agree("at the end")
	p.crash(t)
	agree("after a kill")
	t.Logf("%d writers, %d resources: %d writes, %d refusals", writers, resources, wrote.Load(), refused.Load())
	if wrote.Load() < requests/4 || refused.Load() < requests/20 {
		t.Error("that is too one-sided to say much")
	}
}

// TestAnOvertakenWriterIsToldSo: a writer whose token is overtaken while it stands at the gate, its body read, is told that it is stale; and
// its connection is good for what it sends next.
func TestAnOvertakenWriterIsToldSo(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const rounds = 60
	clients := []*http.Client{keepAlive(t, 1), keepAlive(t, 1)} // one connection each
	odd := map[string]int{}
	for round := range int64(rounds) {
		var answers [2]answer
		var errs [2]error
		var both sync.WaitGroup
		for i := range answers {
			both.Go(func() {
				n := 2*round + 1 + int64(i)
				answers[i], errs[i] = send(clients[i], p.addr, "PUT", "/bkt/k", strings.NewReader(token(n)), "X-Fence-Token", token(n))
			})
		}
		both.Wait()
		for i, a := range answers {
			switch {
			case errs[i] != nil:
				odd[errs[i].Error()]++
			case a.status == 412 && i == 0 && a.header.Get("X-Fence-Error") == "StaleToken":
			case a.status != 200:
				odd[fmt.Sprintf("writer %d: %d %s: %s", i, a.status, a.code(), a.xml().Message)]++
			}
		}
		if answers[1].status == 200 {
			p.holds(t, "/bkt/k", token(2*round+2))
		}
	}
	if len(odd) > 0 {
		t.Errorf("besides success and StaleToken there was, in %d rounds: %v", rounds, odd)
	}
}

// TestTokenlessWritersRaceTheFirstRaise: once the first token of a resource has been answered, no write without one takes effect.
func TestTokenlessWritersRaceTheFirstRaise(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const rounds, writers = 20, 12
	client := keepAlive(t, writers)
	var before, after atomic.Int64
	for round := range rounds {
		key := func(i int) string { return fmt.Sprintf("/bkt/jobs/r%d/%d", round, i) }
		var raised atomic.Bool // set once the first token has been answered
		var all sync.WaitGroup
		written := make(chan struct{}, writers*1000)
		for i := range writers {
			all.Go(func() {
				for n := 0; ; n++ {
					began := raised.Load()
					a, err := send(client, p.addr, "PUT", key(i), strings.NewReader(fmt.Sprintf("%d without a token", n)))
					switch {
					case err != nil:
						t.Error(err)
						return
					case a.status == 200 && !began:
						before.Add(1)
						written <- struct{}{}
					case a.status == 412 && a.header.Get("X-Fence-Error") == "StaleToken":
						after.Add(1)
						if began {
							return
						}
					default:
						t.Errorf("a write without a token, begun after the raise: %v: %d %s", began, a.status, a.body)
						return
					}
				}
			})
		}
		for range writers + rand.IntN(3*writers) { // let them get going
			<-written
		}
		switch target := key(0); round % 3 {
		case 0:
			p.do(t, "PUT", target+"?fence", "", "X-Fence-Token", "34").want(t, 200)
		case 1:
			p.do(t, "GET", target, "", "X-Fence-Token", "34").want(t, 200)
		case 2:
			p.put(t, key(writers), 34, "of 34").want(t, 200)
		}
		raised.Store(true)
		// An answer of success may still be on its way to its client. The write behind it has taken effect, or never will.
		content := func(i int) string {
			if a := p.get(t, key(i)); a.status == 200 {
				return string(a.body)
			}
			return "nothing"
		}
		var found [writers]string
		for i := range found {
			found[i] = content(i)
		}
		all.Wait()
		for i, was := range found {
			if is := content(i); is != was {
				t.Errorf("%s held %q after the raise, and holds %q now", key(i), was, is)
			}
		}
	}
	t.Logf("%d writes before a raise, %d refused behind it", before.Load(), after.Load())
}
