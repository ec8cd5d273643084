package simulation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A writer is a client that takes the lock now and then, and often goes on without noticing that it has lost it.
type writer struct {
	*world
	luck
	name  uint64
	token int64 // 0: begins without one
	count int
	stale bool              // it was told so
	etags map[string]string // that it was told last
}

func (w *world) writer(name uint64, l luck) {
	a := &writer{world: w, luck: l, name: name, etags: map[string]string{}}
	for time.Now().Before(w.until) {
		if a.sleep(8 * time.Second); a.oneIn(15) {
			a.sleep(2 * time.Minute) // a long pause, with the lock in hand
		}
		switch {
		case a.oneIn(12), a.stale && a.oneIn(2):
			a.token, a.stale = w.token.Add(1), false
		case a.oneIn(10):
			a.token = w.token.Load() // as another has it
		}
		a.act()
	}
}

func (a *writer) key() string { return keys[a.IntN(len(keys))] }

// act is one thing that a client does. In TestLate nothing is deleted and nothing copied, so that no content recurs.
func (a *writer) act() {
	n := a.IntN(12)
	if a.k == lateKind && n >= 7 {
		n = a.IntN(7)
	}
	switch n {
	case 0, 1, 2:
		a.put(bufferSize - a.IntN(bufferSize-100))
	case 3:
		a.put(bufferSize + 100 + a.IntN(3*bufferSize))
	case 4:
		a.read()
	case 5:
		a.raise()
	case 6:
		a.multipart()
	case 7, 8:
		a.copy()
	case 9, 10:
		a.remove()
	default:
		a.removeMany()
	}
}

// A call is one request.
type call struct {
	method, target string
	body           []byte
	header         http.Header
	keys           []string
	slow           bool // the client may stop in the middle of the body
}

// An answer is what came back. status is 0 if none did.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (r answer) ok() bool { return r.status >= 200 && r.status < 300 && !r.isError() }

func (r answer) isError() bool {
	return strings.Contains(string(r.body), "<Error><Code>") && !strings.Contains(string(r.body), "DeleteResult")
}

// no says that the client was told that nothing was changed.
func (r answer) no() bool {
	return r.status >= 300 && r.status < 500 || r.status == http.StatusNotImplemented || r.status == http.StatusServiceUnavailable
}

func target(key string) string { return "/" + bucketName + "/" + key }

// nextID names a request. What it writes is never written again.
func (a *writer) nextID() string {
	a.count++
	return fmt.Sprintf("w%d-%d", a.name, a.count)
}

// send sends a request with the writer's token.
func (a *writer) send(id string, c call) answer {
	p := a.proxy()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	a.world.send(id, c.method+" "+c.target, c.keys, a.token, p.number)
	if p.fence.Stats().Resources == 0 {
		a.world.count(evicted)
	}
	if !a.calm && a.oneIn(10) {
		after := a.upTo(20 * time.Second)
		stop := time.AfterFunc(after, func() {
			a.world.count(cut)
			a.note("%s hangs up", id)
			leave()
		})
		defer stop.Stop()
	}
	r, err := http.NewRequestWithContext(ctx, c.method, "http://localhost"+c.target, a.body(ctx, c))
	if err != nil {
		panic(err)
	}
	r.ContentLength = int64(len(c.body))
	for name, values := range c.header {
		r.Header[name] = values
	}
	r.Header.Set(idHeader, id)
	if a.token > 0 {
		r.Header.Set("X-Fence-Token", strconv.FormatInt(a.token, 10))
	}
	got := exchange(p.client, r)
	a.note("%s: answered %d %s %.200s", id, got.status, got.header.Get("X-Fence-Error"), got.body)
	if got.status == 0 || got.status == http.StatusGatewayTimeout {
		a.world.count(lost)
	}
	switch got.header.Get("X-Fence-Error") {
	case "StaleToken":
		a.stale = true
		a.world.count(refused)
	case "WaitingForOlderWrite":
		if a.k == fileKind {
			a.waited(id)
		}
	}
	return got
}

func exchange(client http.RoundTripper, r *http.Request) answer {
	resp, err := client.RoundTrip(r)
	if err != nil {
		return answer{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}
	}
	return answer{resp.StatusCode, resp.Header, body}
}

// body is the request's, with a pause in it perhaps.
func (a *writer) body(ctx context.Context, c call) io.Reader {
	if len(c.body) == 0 {
		return nil
	}
	b := &slowBody{ctx: ctx, rest: c.body}
	if c.slow && a.oneIn(3) {
		b.pause, b.at = a.upTo(80*time.Second), a.IntN(len(c.body)) // longer than the proxy waits, sometimes
	}
	return b
}

// A slowBody stops once, with at bytes left.
type slowBody struct {
	ctx   context.Context
	rest  []byte
	pause time.Duration
	at    int
}

func (b *slowBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(b.rest), 700)
	if left := len(b.rest) - n; b.pause > 0 && left <= b.at {
		t := time.NewTimer(b.pause)
		defer t.Stop()
		b.pause = 0
		select {
		case <-t.C:
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
	}
	copy(p, b.rest[:n])
	b.rest = b.rest[n:]
	return n, nil
}

// settle tells the checker what the client was told of a write to one key.
func (a *writer) settle(id, key string, r answer, mustShow bool) {
	switch {
	case r.ok():
		a.done(id, key, mustShow)
		if etag := r.header.Get("Etag"); etag != "" {
			a.etags[key] = etag
		}
	case r.no():
		a.refuse(id, key)
	}
}

// content is what nobody else writes.
func content(id string, size int) []byte {
	return []byte(id + strings.Repeat(".", max(0, size-len(id))))
}

func (a *writer) put(size int) {
	id, key := a.nextID(), a.key()
	c := call{method: http.MethodPut, target: target(key), keys: []string{key}, body: content(id, size), header: http.Header{}, slow: true}
	c.header.Set("X-Amz-Meta-Writer", id)
	switch {
	case a.oneIn(8):
		c.header.Set("If-None-Match", "*")
	case a.oneIn(8) && a.etags[key] != "":
		c.header.Set("If-Match", a.etags[key])
	}
	if a.oneIn(2) {
		sum := sha256.Sum256(c.body)
		c.header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	}
	a.settle(id, key, a.send(id, c), true)
}

func (a *writer) read() {
	id, key := a.nextID(), a.key()
	method := http.MethodGet
	if a.oneIn(3) {
		method = http.MethodHead
	}
	r := a.send(id, call{method: method, target: target(key), keys: []string{key}})
	a.heard(key, r, r.ok() || r.status == http.StatusNotFound)
	if etag := r.header.Get("Etag"); etag != "" {
		a.etags[key] = etag
	}
}

// heard is an announcement that came through, unless the token was stale already.
func (a *writer) heard(key string, r answer, good bool) {
	if good && a.token > 0 && r.header.Get("X-Fence-Highest") == strconv.FormatInt(a.token, 10) {
		a.announce(key, a.token)
	}
}

func (a *writer) raise() {
	if a.token == 0 {
		return
	}
	id, key := a.nextID(), a.key()
	r := a.send(id, call{method: http.MethodPut, target: target(key) + "?fence", keys: []string{key}})
	a.heard(key, r, r.ok())
}

func (a *writer) copy() {
	id, from, to := a.nextID(), a.key(), a.key()
	c := call{method: http.MethodPut, target: target(to), keys: []string{to}, header: http.Header{}}
	c.header.Set("X-Amz-Copy-Source", url.PathEscape(bucketName+"/"+from))
	if from == to || a.oneIn(2) {
		c.header.Set("X-Amz-Metadata-Directive", "REPLACE")
		c.header.Set("X-Amz-Meta-Writer", id)
	}
	a.settle(id, to, a.send(id, c), true)
}

func (a *writer) remove() {
	id, key := a.nextID(), a.key()
	a.settle(id, key, a.send(id, call{method: http.MethodDelete, target: target(key), keys: []string{key}}), false)
}

func (a *writer) removeMany() {
	id := a.nextID()
	body := "<Delete>"
	var asked []string
	for _, key := range keys {
		if a.oneIn(2) {
			body += "<Object><Key>" + key + "</Key></Object>"
			asked = append(asked, key)
		}
	}
	if len(asked) == 0 {
		return
	}
	r := a.send(id, call{method: http.MethodPost, target: "/" + bucketName + "?delete", keys: asked, body: []byte(body + "</Delete>")})
	var result struct {
		XMLName        xml.Name `xml:"DeleteResult"`
		Deleted, Error []struct{ Key string }
	}
	switch {
	case r.status == http.StatusOK && xml.Unmarshal(r.body, &result) == nil:
		for _, d := range result.Deleted {
			a.done(id, d.Key, false)
		}
		for _, e := range result.Error {
			a.refuse(id, e.Key)
		}
	case r.no():
		for _, key := range asked {
			a.refuse(id, key)
		}
	}
}

// multipart is an upload in parts, with pauses. It is completed, aborted, or left.
func (a *writer) multipart() {
	key := a.key()
	id := a.nextID()
	r := a.send(id, call{method: http.MethodPost, target: target(key) + "?uploads", keys: []string{key}})
	var created struct{ UploadId string }
	if !r.ok() || xml.Unmarshal(r.body, &created) != nil || created.UploadId == "" {
		return
	}
	a.announce(key, a.token)
	list := "<CompleteMultipartUpload>"
	parts := 1 + a.IntN(2)
	if a.k == fileKind {
		parts = 1 // all but the last have 5 MiB at least, which only costs time here
	}
	for n := 1; n <= parts; n++ {
		a.sleep(5 * time.Second)
		id := a.nextID()
		size := 100 + a.IntN(2*bufferSize)
		r := a.send(id, call{method: http.MethodPut, target: fmt.Sprintf("%s?partNumber=%d&uploadId=%s", target(key), n, url.QueryEscape(created.UploadId)), keys: []string{key}, body: content(id, size), slow: true})
		if !r.ok() {
			break
		}
		list += fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", n, r.header.Get("Etag"))
	}
	a.sleep(10 * time.Second)
	id = a.nextID()
	c := call{method: http.MethodPost, target: target(key) + "?uploadId=" + url.QueryEscape(created.UploadId), keys: []string{key}, body: []byte(list + "</CompleteMultipartUpload>")}
	if !strings.Contains(list, "<Part>") || a.oneIn(5) {
		c.method, c.body = http.MethodDelete, nil
		a.send(id, c)
		return
	}
	a.settle(id, key, a.send(id, c), true)
}
