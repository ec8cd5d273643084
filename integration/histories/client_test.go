package histories

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxOps   = 200                    // of a resource in the random part of a history, so that the check stays quick
	meanWait = 120 * time.Millisecond // of a client between two ops
	large    = 8<<20 + 1              // what no longer fits limits.buffer, and streams
)

// A resource is what a fence is for, and the lock service that gives out its tokens.
type resource struct {
	name string
	keys []string

	ops    atomic.Int64 // begun
	issued atomic.Int64 // the highest token given out
}

func newResources() []*resource {
	var rs []*resource
	for _, name := range []string{"jobs/0", "jobs/1"} {
		r := &resource{name: name}
		for k := range maxKeys {
			r.keys = append(r.keys, fmt.Sprintf("%s/k%d", name, k))
		}
		rs = append(rs, r)
	}
	for _, name := range []string{"own/a", "own/b"} {
		rs = append(rs, &resource{name: name, keys: []string{name}})
	}
	return rs
}

// A recorder keeps what every client did, on one clock.
type recorder struct {
	start time.Time
	stack *stack

	mu         sync.Mutex
	history    []op
	serial     int64
	unexpected []string        // answers that mean nothing to the model
	alive      context.Context // of the requests under way; ended by hangUp
	leave      context.CancelFunc
}

func newRecorder(s *stack) *recorder {
	rec := &recorder{start: time.Now(), stack: s}
	rec.alive, rec.leave = context.WithCancel(context.Background())
	return rec
}

// hangUp ends the client's side of every request under way. Clients go on with others.
func (rec *recorder) hangUp() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.leave()
	rec.alive, rec.leave = context.WithCancel(context.Background())
}

func (rec *recorder) nextSerial() int64 {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.serial++
	return rec.serial
}

// wroteSince says whether a write that was begun after a moment has been answered with success.
func (rec *recorder) wroteSince(moment time.Duration) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.ContainsFunc(rec.history, func(o op) bool { return o.Kind == put && o.Outcome == success && o.Call > moment })
}

// do carries an op out and records it.
func (rec *recorder) do(res *resource, o op, size int, timeout time.Duration) op {
	rec.mu.Lock()
	ctx, cancel := context.WithTimeout(rec.alive, timeout)
	rec.mu.Unlock()
	defer cancel()
	o.Resource = res.name
	o.Call = time.Since(rec.start)
	if o.Kind == look {
		o = rec.stack.look(res, o)
	} else {
		o = rec.stack.ask(ctx, res, o, size)
	}
	if o.Return = time.Since(rec.start); o.Outcome == unknown {
		o.Return = forever
	}
	rec.record(o)
	return o
}

func (rec *recorder) record(o op) {
	if o.Kind == "" {
		return
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if o.Outcome == "" {
		rec.unexpected = append(rec.unexpected, fmt.Sprintf("%v: %s", o, o.Answer))
		o.Outcome, o.Return = unknown, forever
	}
	rec.history = append(rec.history, o)
}

// A client is one writer, with the token that it got when it last asked for one. Whether another has a newer one it does not know.
type client struct {
	id    int
	rand  *rand.Rand
	rec   *recorder
	res   *resource
	token int64
}

// run works until stop or until the resource has had its share.
func (c *client) run(stop *atomic.Bool) {
	for !stop.Load() && c.res.ops.Add(1) <= maxOps {
		o := c.next()
		if o = c.rec.do(c.res, o, c.size(), c.timeout()); o.Outcome == stale && c.rand.IntN(2) == 0 {
			c.token = c.res.issued.Add(1) // it took the lock again; the other half does not believe it
		}
		time.Sleep(time.Duration(c.rand.Int64N(int64(2 * meanWait))))
	}
}

func (c *client) next() op {
	switch n := c.rand.IntN(100); {
	case n < 12:
		c.token = c.res.issued.Add(1)
	case n < 25:
		c.token = c.res.issued.Load() // two with one token
	}
	o := op{Client: c.id, Kind: c.kind(), Key: c.rand.IntN(len(c.res.keys)), Token: c.token}
	switch o.Kind {
	case put:
		o.Value = c.rec.nextSerial()
	case look:
		o.Token = 0
	case get:
		o.Token *= int64(c.rand.IntN(2))
	case announce:
		if o.Key = 0; o.Token == 0 {
			o.Kind = get
		}
	}
	return o
}

func (c *client) kind() kind {
	switch n := c.rand.IntN(100); {
	case n < 50:
		return put
	case n < 56:
		return del
	case n < 76:
		return get
	case n < 92:
		return look
	default:
		return announce
	}
}

func (c *client) size() int {
	if c.rand.IntN(50) == 0 {
		return large + c.rand.IntN(1<<16)
	}
	return 100 + c.rand.IntN(5000)
}

// timeout is how long a client waits before it goes away.
func (c *client) timeout() time.Duration {
	if c.rand.IntN(10) == 0 {
		return time.Duration(20+c.rand.IntN(200)) * time.Millisecond
	}
	return time.Duration(500+c.rand.IntN(3000)) * time.Millisecond
}

// content is what a PUT writes: who wrote it, again and again, so that a piece of it in another's content would be found.
func content(o op, size int) []byte {
	line := fmt.Appendf(nil, "serial %d of client %d with token %d, %d bytes\n", o.Value, o.Client, o.Token, size)
	return bytes.Repeat(line, size/len(line)+1)[:size]
}

// serialOf reads it back.
func serialOf(body []byte) (int64, error) {
	var o op
	var size int
	if _, err := fmt.Fscanf(bytes.NewReader(body), "serial %d of client %d with token %d, %d bytes\n", &o.Value, &o.Client, &o.Token, &size); err != nil {
		return 0, fmt.Errorf("nobody wrote %.60q: %w", body, err)
	}
	if size != len(body) || !bytes.Equal(body, content(o, size)) {
		return 0, fmt.Errorf("content %d of %d bytes is torn or mixed: there are %d bytes", o.Value, size, len(body))
	}
	return o.Value, nil
}

// look reads an object as another program would.
func (s *stack) look(res *resource, o op) op {
	body, err := os.ReadFile(filepath.Join(s.root, bucket, res.keys[o.Key]))
	if errors.Is(err, fs.ErrNotExist) {
		o.Outcome = success
		return o
	}
	if err == nil {
		o.Value, err = serialOf(body)
	}
	if err != nil {
		o.Answer = err.Error()
		return o
	}
	o.Outcome = success
	return o
}

// A watcher looks at every key of a resource all the time. Of looks that find the same it records the first and the last: that says
// what all of them say, nearly.
type watcher struct {
	id   int
	rec  *recorder
	res  *resource
	last [maxKeys]op // looks not recorded yet
}

func (w *watcher) run(stop *atomic.Bool) {
	for first := true; !stop.Load(); first = false {
		for k := range w.res.keys {
			o := op{Client: w.id, Kind: look, Resource: w.res.name, Key: k, Call: time.Since(w.rec.start)}
			o = w.rec.stack.peek(w.res, o)
			o.Return = time.Since(w.rec.start)
			if first || o.Value != w.last[k].Value || o.Outcome != success {
				w.rec.record(w.last[k])
				w.rec.record(o)
				w.last[k] = op{}
				w.last[k].Value = o.Value
			} else {
				w.last[k] = o
			}
		}
		time.Sleep(8 * time.Millisecond)
	}
	for _, o := range w.last {
		w.rec.record(o)
	}
}

// peek is a look at the beginning of an object.
func (s *stack) peek(res *resource, o op) op {
	f, err := os.Open(filepath.Join(s.root, bucket, res.keys[o.Key]))
	if errors.Is(err, fs.ErrNotExist) {
		o.Outcome = success
		return o
	}
	if err == nil {
		defer f.Close()
		_, err = fmt.Fscanf(f, "serial %d of", &o.Value)
	}
	if err != nil {
		o.Answer = err.Error()
		return o
	}
	o.Outcome = success
	return o
}

// ask sends an op to the proxy and says what the answer allows.
func (s *stack) ask(ctx context.Context, res *resource, o op, size int) op {
	r, err := request(ctx, "http://"+s.front.address()+"/"+bucket+"/"+res.keys[o.Key], o, size)
	if err != nil {
		o.Answer = err.Error()
		return o
	}
	resp, err := s.client.Do(r)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err != nil { // half an answer is none
		o.Outcome, o.Answer = unknown, err.Error()
		return o
	}
	return o.understand(resp, body)
}

func request(ctx context.Context, url string, o op, size int) (r *http.Request, err error) {
	switch o.Kind {
	case put:
		r, err = http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(content(o, size)))
		if err == nil {
			r.GetBody = nil // sent once
		}
	case announce:
		r, err = http.NewRequestWithContext(ctx, http.MethodPut, url+"?fence", nil)
	default:
		r, err = http.NewRequestWithContext(ctx, string(o.Kind), url, nil)
	}
	if err == nil && o.Token > 0 {
		r.Header.Set("X-Fence-Token", strconv.FormatInt(o.Token, 10))
	}
	return r, err
}

// understand is the list at [outcome].
func (o op) understand(resp *http.Response, body []byte) op {
	name := resp.Header.Get("X-Fence-Error")
	o.Answer = strings.TrimSpace(resp.Status + " " + name)
	o.Highest, _ = strconv.ParseInt(resp.Header.Get("X-Fence-Highest"), 10, 64)
	switch status := resp.StatusCode; {
	case status == http.StatusOK && o.Kind == get:
		var err error
		if o.Value, err = serialOf(body); err != nil {
			o.Answer = err.Error()
			return o
		}
		o.Outcome = success
	case status == http.StatusOK, status == http.StatusNoContent && o.Kind == del:
		o.Outcome = success
	case status == http.StatusNotFound && bytes.Contains(body, []byte("<Code>NoSuchKey</Code>")) && o.Kind == get:
		o.Outcome = success
	case status == http.StatusNotFound && bytes.Contains(body, []byte("<Code>NoSuchKey</Code>")) && o.Kind == del:
		o.Outcome = nothing
	case name == "StaleToken" && (status == http.StatusPreconditionFailed || status == http.StatusForbidden):
		o.Outcome = stale
	case status == http.StatusBadRequest && name == "", status == http.StatusServiceUnavailable:
		o.Outcome = nothing
	case status >= 500:
		o.Outcome = unknown
	default:
		o.Answer += fmt.Sprintf(" %.300s", body)
	}
	return o
}
