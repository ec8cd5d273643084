package proxy

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// maxBatch is how many keys S3 takes in one DeleteObjects.
const maxBatch = 1000

// A batch is the body of DeleteObjects. It is never handed on as it came: what we have read of it is what the store gets, lest the store
// read another key out of the same text.
type batch struct {
	XMLName xml.Name    `xml:"http://s3.amazonaws.com/doc/2006-03-01/ Delete"`
	Objects []batchItem `xml:"Object"`
	Quiet   bool

	entries []batchEntry
}

// A batchItem is one object as S3's XML has it. Key is a list to notice a second one.
type batchItem struct {
	Key              []string
	VersionId        string                       `xml:",omitempty"`
	ETag             string                       `xml:",omitempty"`
	LastModifiedTime string                       `xml:",omitempty"`
	Size             string                       `xml:",omitempty"`
	Unknown          []struct{ XMLName xml.Name } `xml:",any"`
}

// A batchEntry is one object, and what is said of it.
type batchEntry struct {
	batchItem
	key     string
	target  rules.Target
	refusal error
}

// A batchAnswer is S3's DeleteResult, as far as it has to be read and added to.
type batchAnswer struct {
	XMLName xml.Name     `xml:"DeleteResult"`
	Errors  []batchError `xml:"Error"`
	Inner   string       `xml:",innerxml"`
}

type batchError struct {
	XMLName xml.Name `xml:"Error"`
	Key     string
	Code    string
	Message string
}

// deleteMany is DeleteObjects, judged key by key: stale ones come back as errors of their own, the others are deleted. It crosses the
// gates of all resources at once, without ever waiting at one while it is past another.
func (x *exchange) deleteMany() error {
	b, err := x.readBatch()
	if err != nil {
		x.drain(drainTime)
		return err
	}
	gates := x.beginAll(b)
	defer func() {
		for _, w := range gates.writes {
			w.End()
		}
	}()
	if err := gates.admit(x); err != nil {
		return err
	}
	rec := newRecorder(x.w.Header())
	if err := x.forwardBatch(rec, b); err != nil {
		return err
	}
	if err := x.settle(rec, gates); err != nil {
		return err
	}
	return x.tellBatch(rec, b)
}

// readBatch reads and checks the body, and finds out where each key leads and what the rules ask there.
func (x *exchange) readBatch() (*batch, error) {
	checks, err := checksOf(x.r.Header, true)
	if err != nil {
		return nil, err
	}
	x.bodyTouched = true
	tooLong := badRequest("MalformedXML", "a Delete has %d bytes at most", maxSmall)
	body := &gatedBody{src: &capped{x.r.Body, maxSmall, tooLong}, control: x.control, idle: x.h.BodyIdle, gate: func() error { return nil }, checks: checks}
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	b, err := parseBatch(text)
	if err != nil {
		return nil, err
	}
	for i := range b.entries {
		e := &b.entries[i]
		e.target, _ = x.h.Rules.Object(x.op.bucket, e.key)
		e.refusal = x.who.meets(e.target.Policy)
		if e.refusal == nil && e.target.RequireCondition && e.ETag == "" {
			e.refusal = &ruleError{conditionRequired, "this delete needs a condition: send the object's ETag with its key"}
		}
	}
	return b, nil
}

func parseBatch(text []byte) (*batch, error) {
	malformed := func(format string, args ...any) (*batch, error) {
		return nil, badRequest("MalformedXML", format, args...)
	}
	var read struct { // in any namespace: not every client writes one
		XMLName xml.Name    `xml:"Delete"`
		Objects []batchItem `xml:"Object"`
		Quiet   bool
		Unknown []struct{ XMLName xml.Name } `xml:",any"`
	}
	if err := xml.Unmarshal(text, &read); err != nil {
		return malformed("the body is not a Delete: %v", err)
	}
	if len(read.Objects) == 0 || len(read.Objects) > maxBatch {
		return malformed("a Delete has 1 to %d objects; this one has %d", maxBatch, len(read.Objects))
	}
	if len(read.Unknown) > 0 {
		return malformed("a Delete has no %s", read.Unknown[0].XMLName.Local)
	}
	b := &batch{Quiet: read.Quiet}
	for i, item := range read.Objects {
		if len(item.Key) != 1 || item.Key[0] == "" {
			return malformed("object %d must have one key", i+1)
		}
		if len(item.Unknown) > 0 {
			return malformed("object %d has a %s, which is not known", i+1, item.Unknown[0].XMLName.Local)
		}
		b.entries = append(b.entries, batchEntry{batchItem: item, key: item.Key[0]})
	}
	return b, nil
}

// gates are those of a batch: one write per resource, as many keys as there may be.
type gates struct {
	writes  []*tokens.Write
	entries map[*tokens.Write][]*batchEntry
}

func (x *exchange) beginAll(b *batch) *gates {
	g := &gates{entries: map[*tokens.Write][]*batchEntry{}}
	begun := map[string]*tokens.Write{}
	refused := map[string]error{}
	for i := range b.entries {
		e := &b.entries[i]
		resource := e.target.Resource
		if e.refusal == nil {
			e.refusal = refused[resource]
		}
		if e.refusal != nil || !e.target.Fenced {
			continue
		}
		w := begun[resource]
		if w == nil {
			c := x.claim()
			c.Resource, c.MaxAdvance = resource, tokens.Token(e.target.MaxAdvance)
			var err error
			if w, err = x.h.Fence.Begin(x.detached(), c); err != nil {
				refused[resource], e.refusal = err, err
				continue
			}
			begun[resource] = w
			g.writes = append(g.writes, w)
		}
		g.entries[w] = append(g.entries[w], e)
	}
	return g
}

// admit passes all gates but those of refused resources. What is no refusal of one resource ends the request.
func (g *gates) admit(x *exchange) error {
	start := time.Now()
	defer func() { x.h.metrics.gateWait(time.Since(start)) }()
	for {
		w, err := tokens.AdmitAll(x.detached(), g.writes)
		if err == nil {
			return nil
		}
		if w == nil || !x.answerTo(err).refusal() {
			return err
		}
		for _, e := range g.entries[w] {
			e.refusal = err
		}
		w.End()
		g.remove(w)
	}
}

func (g *gates) remove(w *tokens.Write) {
	left := g.writes[:0]
	for _, other := range g.writes {
		if other != w {
			left = append(left, other)
		}
	}
	g.writes = left
}

// forwardBatch hands the store the keys that passed. Where none is left, the store is not asked.
func (x *exchange) forwardBatch(rec *recorder, b *batch) error {
	passed := batch{Quiet: b.Quiet}
	for _, e := range b.entries {
		if e.refusal == nil {
			passed.Objects = append(passed.Objects, e.batchItem)
		}
	}
	if len(passed.Objects) == 0 {
		rec.WriteHeader(http.StatusOK)
		rec.body = []byte("<DeleteResult/>")
		return nil
	}
	body, err := xml.Marshal(passed)
	if err != nil {
		return err
	}
	out := x.toBackend().WithContext(x.detached())
	setBody(out, append([]byte(xml.Header), body...))
	x.runBackend(rec, out)
	return nil
}

// setBody gives a request a body of ours, with the digests that belong to it instead of the client's.
func setBody(r *http.Request, body []byte) {
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Amz-Checksum-") {
			r.Header.Del(name)
		}
	}
	r.Header.Del("X-Amz-Sdk-Checksum-Algorithm")
	sum5, sum256 := md5.Sum(body), sha256.Sum256(body)
	r.Header.Set("Content-Md5", base64.StdEncoding.EncodeToString(sum5[:]))
	r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum256[:]))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	r.ContentLength = int64(len(body))
	r.Body = io.NopCloser(bytes.NewReader(body))
}

// tellBatch adds the refused keys to the store's answer, each on record first.
func (x *exchange) tellBatch(rec *recorder, b *batch) error {
	var answer batchAnswer
	if rec.status != http.StatusOK {
		return x.tell(rec, nil) // the store refused it as a whole
	}
	if xml.Unmarshal(rec.body, &answer) != nil {
		return errOutcomeUnknown // it was done, and of which keys cannot be read
	}
	var refused bytes.Buffer
	for _, e := range b.entries {
		if e.refusal == nil {
			continue
		}
		a := x.refuseEntry(e)
		line, err := xml.Marshal(batchError{Key: e.key, Code: a.code, Message: a.message})
		if err != nil {
			return err
		}
		refused.Write(line)
	}
	if refused.Len() > 0 {
		rec.header.Set("Content-Type", xmlType)
		rec.body = fmt.Appendf(nil, `%s<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s%s</DeleteResult>`, xml.Header, answer.Inner, refused.Bytes())
		rec.header.Set("Content-Length", strconv.Itoa(len(rec.body)))
	}
	return x.tell(rec, nil)
}

// refuseEntry records the refusal of one key, as if it had come alone.
func (x *exchange) refuseEntry(e batchEntry) answer {
	one := *x
	one.op.key, one.target = e.key, e.target
	if entry, err := x.h.Fence.Highest(x.detached(), e.target.Resource); err == nil {
		one.highest = entry.Token
	}
	a := one.answerTo(e.refusal)
	one.record(a, e.refusal)
	x.h.metrics.refusal(a.name)
	return a
}

// gates are a passage: what becomes of the batch becomes of each of its resources.

func (g *gates) Done() {
	for _, w := range g.writes {
		w.Done()
	}
}

func (g *gates) Failed() {
	for _, w := range g.writes {
		w.Failed()
	}
}

func (g *gates) InDoubt() (proven func()) {
	var each []func()
	for _, w := range g.writes {
		each = append(each, w.InDoubt())
	}
	return func() {
		for _, proven := range each {
			proven()
		}
	}
}
