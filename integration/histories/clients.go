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

const Bucket = "bkt"

const (
	maxOps   = 200                    // of a resource in the random part of a history, so that the check stays quick
	meanWait = 120 * time.Millisecond // of a client between two ops, if the target does not say
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

// A Target is what clients work on.
type Target struct {
	Client  *http.Client
	Address func() string                           // of the S3 API
	Wait    time.Duration                           // of a client between two ops, on average
	Open    func(key string) (io.ReadCloser, error) // reads an object around the proxy, also while nobody serves; [fs.ErrNotExist] where there is none
}

// Files opens the objects of a bucket that are plain files.
func Files(root string) func(key string) (io.ReadCloser, error) {
	return func(key string) (io.ReadCloser, error) { return os.Open(filepath.Join(root, Bucket, key)) }
}

// A Recorder keeps what every client did, on one clock.
type Recorder struct {
	Start  time.Time
	target Target

	mu         sync.Mutex
	History    []Op
	serial     int64
	Unexpected []string        // answers that mean nothing to the model
	alive      context.Context // of the requests under way; ended by hangUp
	leave      context.CancelFunc
}

func newRecorder(to Target) *Recorder {
	if to.Wait == 0 {
		to.Wait = meanWait
	}
	rec := &Recorder{Start: time.Now(), target: to}
	rec.alive, rec.leave = context.WithCancel(context.Background())
	return rec
}

// HangUp ends the client's side of every request under way. Clients go on with others.
func (rec *Recorder) HangUp() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.leave()
	rec.alive, rec.leave = context.WithCancel(context.Background())
}

func (rec *Recorder) nextSerial() int64 {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.serial++
	return rec.serial
}

// WroteSince says whether a write that was begun after a moment has been answered with success.
func (rec *Recorder) WroteSince(moment time.Duration) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.ContainsFunc(rec.History, func(o Op) bool { return o.Kind == Put && o.Outcome == Success && o.Call > moment })
}

// do carries an op out and records it.
func (rec *Recorder) do(res *resource, o Op, size int, timeout time.Duration) Op {
	rec.mu.Lock()
	ctx, cancel := context.WithTimeout(rec.alive, timeout)
	rec.mu.Unlock()
	defer cancel()
	o.Resource = res.name
	o.Call = time.Since(rec.Start)
	if o.Kind == Look {
		o = rec.target.look(res, o)
	} else {
		o = rec.target.ask(ctx, res, o, size)
	}
	if o.Return = time.Since(rec.Start); o.Outcome == Unknown {
		o.Return = Forever
	}
	rec.record(o)
	return o
}

func (rec *Recorder) record(o Op) {
	if o.Kind == "" {
		return
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if o.Outcome == "" {
		rec.Unexpected = append(rec.Unexpected, fmt.Sprintf("%v: %s", o, o.Answer))
		o.Outcome, o.Return = Unknown, Forever
	}
	rec.History = append(rec.History, o)
}

// A client is one writer, with the token that it got when it last asked for one. Whether another has a newer one it does not know.
type client struct {
	id    int
	rand  *rand.Rand
	rec   *Recorder
	res   *resource
	token int64
}

// run works until stop or until the resource has had its share.
func (c *client) run(stop *atomic.Bool) {
	for !stop.Load() && c.res.ops.Add(1) <= maxOps {
		o := c.next()
		if o = c.rec.do(c.res, o, c.size(), c.timeout()); o.Outcome == Stale && c.rand.IntN(2) == 0 {
			c.token = c.res.issued.Add(1) // it took the lock again; the other half does not believe it
		}
		time.Sleep(time.Duration(c.rand.Int64N(int64(2 * c.rec.target.Wait))))
	}
}

func (c *client) next() Op {
	switch n := c.rand.IntN(100); {
	case n < 12:
		c.token = c.res.issued.Add(1)
	case n < 25:
		c.token = c.res.issued.Load() // two with one token
	}
	o := Op{Client: c.id, Kind: c.kind(), Key: c.rand.IntN(len(c.res.keys)), Token: c.token}
	switch o.Kind {
	case Put:
		o.Value = c.rec.nextSerial()
	case Look:
		o.Token = 0
	case Get:
		o.Token *= int64(c.rand.IntN(2))
	case Announce:
		if o.Key = 0; o.Token == 0 {
			o.Kind = Get
		}
	}
	return o
}

func (c *client) kind() Kind {
	switch n := c.rand.IntN(100); {
	case n < 50:
		return Put
	case n < 56:
		return Delete
	case n < 76:
		return Get
	case n < 92:
		return Look
	default:
		return Announce
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

// Content is what a PUT writes: who wrote it, again and again, so that a piece of it in another's content would be found.
func Content(o Op, size int) []byte {
	line := fmt.Appendf(nil, "serial %d of client %d with token %d, %d bytes\n", o.Value, o.Client, o.Token, size)
	return bytes.Repeat(line, size/len(line)+1)[:size]
}

// SerialOf reads it back.
func SerialOf(body []byte) (int64, error) {
	var o Op
	var size int
	if _, err := fmt.Fscanf(bytes.NewReader(body), "serial %d of client %d with token %d, %d bytes\n", &o.Value, &o.Client, &o.Token, &size); err != nil {
		return 0, fmt.Errorf("nobody wrote %.60q: %w", body, err)
	}
	if size != len(body) || !bytes.Equal(body, Content(o, size)) {
		return 0, fmt.Errorf("content %d of %d bytes is torn or mixed: there are %d bytes", o.Value, size, len(body))
	}
	return o.Value, nil
}

// look reads an object as another program would.
func (to Target) look(res *resource, o Op) Op {
	var body []byte
	f, err := to.Open(res.keys[o.Key])
	if err == nil {
		body, err = io.ReadAll(f)
		f.Close()
	}
	if errors.Is(err, fs.ErrNotExist) {
		o.Outcome = Success
		return o
	}
	if err == nil {
		o.Value, err = SerialOf(body)
	}
	if err != nil {
		o.Answer = err.Error()
		return o
	}
	o.Outcome = Success
	return o
}

// A watcher looks at every key of a resource all the time. Of looks that find the same it records the first and the last: that says
// what all of them say, nearly.
type watcher struct {
	id   int
	rec  *Recorder
	res  *resource
	last [maxKeys]Op // looks not recorded yet
}

func (w *watcher) run(stop *atomic.Bool) {
	for first := true; !stop.Load(); first = false {
		for k := range w.res.keys {
			o := Op{Client: w.id, Kind: Look, Resource: w.res.name, Key: k, Call: time.Since(w.rec.Start)}
			o = w.rec.target.peek(w.res, o)
			o.Return = time.Since(w.rec.Start)
			if first || o.Value != w.last[k].Value || o.Outcome != Success {
				w.rec.record(w.last[k])
				w.rec.record(o)
				w.last[k] = Op{}
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
func (to Target) peek(res *resource, o Op) Op {
	f, err := to.Open(res.keys[o.Key])
	if errors.Is(err, fs.ErrNotExist) {
		o.Outcome = Success
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
	o.Outcome = Success
	return o
}

// ask sends an op to the proxy and says what the answer allows.
func (to Target) ask(ctx context.Context, res *resource, o Op, size int) Op {
	r, err := request(ctx, "http://"+to.Address()+"/"+Bucket+"/"+res.keys[o.Key], o, size)
	if err != nil {
		o.Answer = err.Error()
		return o
	}
	resp, err := to.Client.Do(r)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err != nil { // half an answer is none
		o.Outcome, o.Answer = Unknown, err.Error()
		return o
	}
	return o.understand(resp, body)
}

func request(ctx context.Context, url string, o Op, size int) (r *http.Request, err error) {
	switch o.Kind {
	case Put:
		r, err = http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(Content(o, size)))
		if err == nil {
			r.GetBody = nil // sent once
		}
	case Announce:
		r, err = http.NewRequestWithContext(ctx, http.MethodPut, url+"?fence", nil)
	default:
		r, err = http.NewRequestWithContext(ctx, string(o.Kind), url, nil)
	}
	if err == nil && o.Token > 0 {
		r.Header.Set("X-Fence-Token", strconv.FormatInt(o.Token, 10))
	}
	return r, err
}

// ServedBy is the header in which a balancer says who answered.
const ServedBy = "X-Served-By"

// understand is the list at [Outcome].
func (o Op) understand(resp *http.Response, body []byte) Op {
	name := resp.Header.Get("X-Fence-Error")
	o.Answer, o.By = strings.TrimSpace(resp.Status+" "+name), resp.Header.Get(ServedBy)
	o.Highest, _ = strconv.ParseInt(resp.Header.Get("X-Fence-Highest"), 10, 64)
	switch status := resp.StatusCode; {
	case status == http.StatusOK && o.Kind == Get:
		var err error
		if o.Value, err = SerialOf(body); err != nil {
			o.Answer = err.Error()
			return o
		}
		o.Outcome = Success
	case status == http.StatusOK, status == http.StatusNoContent && o.Kind == Delete:
		o.Outcome = Success
	case status == http.StatusNotFound && bytes.Contains(body, []byte("<Code>NoSuchKey</Code>")) && o.Kind == Get:
		o.Outcome = Success
	case status == http.StatusNotFound && bytes.Contains(body, []byte("<Code>NoSuchKey</Code>")) && o.Kind == Delete:
		o.Outcome = Nothing
	case name == "StaleToken" && (status == http.StatusPreconditionFailed || status == http.StatusForbidden):
		o.Outcome = Stale
	case status == http.StatusBadRequest && name == "", status == http.StatusServiceUnavailable:
		o.Outcome = Nothing
	case status >= 500:
		o.Outcome = Unknown
	default:
		o.Answer += fmt.Sprintf(" %.300s", body)
	}
	return o
}
