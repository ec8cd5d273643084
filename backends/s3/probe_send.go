package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A reply is an answer of the store, read whole.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// maxReply bounds what is read of an answer, in bytes.
const maxReply = 4 << 20

// ok says that the store said yes. Copies, completions and batches may say no in the body of a 200.
func (r reply) ok() bool {
	return r.status >= 200 && r.status < 300 && !bytes.Contains(r.body, []byte("<Error>"))
}

// conditionFailed says that the store said no for the sake of a condition.
func (r reply) conditionFailed() bool {
	switch r.status {
	case http.StatusPreconditionFailed, http.StatusConflict:
		return true
	case http.StatusOK:
		return !r.ok() && (r.code() == "PreconditionFailed" || r.code() == "ConditionalRequestConflict")
	}
	return false
}

// absent says that there is no such object. Who may not list a bucket is told 403.
func (r reply) absent() bool {
	return r.status == http.StatusNotFound || r.status == http.StatusForbidden
}

func (r reply) etag() string { return r.header.Get("Etag") }

// code is the error code, "" if there is none.
func (r reply) code() string { return r.element("Code") }

// element is what the first element of a name has in it.
func (r reply) element(name string) string {
	_, rest, _ := strings.Cut(string(r.body), "<"+name+">")
	v, _, found := strings.Cut(rest, "</"+name+">")
	if !found {
		return ""
	}
	return v
}

func (r reply) String() string {
	return strings.TrimSpace(strconv.Itoa(r.status) + " " + r.code())
}

// request is a request to the store, not signed yet. A key of "" is the bucket itself. What a write names is cleaned up later.
func (p *prober) request(ctx context.Context, method, key, query string, headers []string) *http.Request {
	if key != "" && method != http.MethodGet && method != http.MethodHead {
		p.mu.Lock()
		p.keys[key] = true
		p.mu.Unlock()
	}
	in := &http.Request{Method: method, URL: &url.URL{Path: "/" + p.bucket + "/" + key, RawQuery: query}, Header: http.Header{}}
	if key == "" {
		in.URL.Path = "/" + p.bucket
	}
	for i := 0; i+1 < len(headers); i += 2 {
		in.Header.Set(headers[i], headers[i+1])
	}
	return p.s.outgoing(ctx, in)
}

func attachBytes(out *http.Request, body []byte) {
	if len(body) > 0 {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body)) // no GetBody, no replay
	}
}

func hexHash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// do sends a request with its SHA-256 signed in the headers, and reads the answer.
func (p *prober) do(ctx context.Context, method, key, query string, body []byte, headers ...string) (reply, error) {
	out := p.request(ctx, method, key, query, headers)
	attachBytes(out, body)
	if _, err := p.signHeader(out, hexHash(body)); err != nil {
		return reply{}, err
	}
	return p.roundTrip(ctx, out)
}

func (p *prober) signHeader(out *http.Request, hash string) (chain, error) {
	who, err := p.s.retrieve(out.Context())
	if err != nil {
		return chain{}, fmt.Errorf("no credentials for the store: %w", err)
	}
	return p.s.signHeader(out, who, hash, time.Now())
}

// doByQuery is do with the signature in the query, where it was good until the given time.
func (p *prober) doByQuery(ctx context.Context, until time.Time, method, key, query string, body []byte, headers ...string) (reply, error) {
	out := p.request(ctx, method, key, query, headers)
	attachBytes(out, body)
	if err := p.signQuery(out, hexHash(body), until); err != nil {
		return reply{}, err
	}
	return p.roundTrip(ctx, out)
}

// queryLife is for how long a signature in the query is good.
const queryLife = time.Minute

func (p *prober) signQuery(out *http.Request, hash string, until time.Time) error {
	who, err := p.s.retrieve(out.Context())
	if err != nil {
		return fmt.Errorf("no credentials for the store: %w", err)
	}
	return p.s.signQuery(out, who, hash, until.Add(-queryLife).UTC().Truncate(time.Second), queryLife)
}

// soon is a time until which a signature is good now, by the store's clock if it is known.
func (p *prober) soon() time.Time {
	now, known := p.s.clock.now()
	if !known {
		now = time.Now()
	}
	return now.Add(queryLife)
}

// roundTrip sends a signed request, unless ctx has ended. Once it is on its way it gets its time, whatever becomes of ctx: what has
// been answered cannot happen after the clean-up. 5xx is an error, beside the reply; but 501 is an answer.
func (p *prober) roundTrip(ctx context.Context, out *http.Request) (reply, error) {
	if ctx.Err() != nil {
		return reply{}, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	resp, err := p.transport.RoundTrip(out.WithContext(ctx))
	if err != nil {
		return reply{}, fmt.Errorf("the store did not answer: %w", err)
	}
	p.s.clock.learn(resp.Header.Get("Date"))
	return readReply(resp)
}

func readReply(resp *http.Response) (reply, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return reply{}, fmt.Errorf("the store's answer broke off: %w", err)
	}
	r := reply{resp.StatusCode, resp.Header, body}
	if r.status >= 500 && r.status != http.StatusNotImplemented {
		return r, fmt.Errorf("the store answered %s to %s", r, resp.Request.Method)
	}
	return r, nil
}

// put makes an object with a content that is read back, and returns its ETag.
func (p *prober) put(ctx context.Context, key, content string) (etag string, err error) {
	r, err := p.do(ctx, http.MethodPut, key, "", []byte(content))
	if err != nil {
		return "", err
	}
	got, err := p.do(ctx, http.MethodGet, key, "", nil)
	switch {
	case err != nil:
		return "", err
	case !r.ok():
		return "", &unasked{"a plain PUT was answered " + r.String()}
	case !got.ok() || string(got.body) != content:
		return "", &unasked{"a GET after a plain PUT did not find the object (" + got.String() + ")"}
	case got.etag() == "":
		return "", &unasked{"the store gives no ETag"}
	}
	return got.etag(), nil
}

// content is what an object has, and whether there is one.
func (p *prober) content(ctx context.Context, key string) (content string, exists bool, err error) {
	r, err := p.do(ctx, http.MethodGet, key, "", nil)
	switch {
	case err != nil:
		return "", false, err
	case r.ok():
		return string(r.body), true, nil
	case r.absent():
		return "", false, nil
	}
	return "", false, &unasked{"a GET was answered " + r.String()}
}

// refused judges the reply to a write that had to change nothing, for the sake of its condition: the object has this content.
func (p *prober) refused(ctx context.Context, what string, r reply, key, content string) (bool, string, error) {
	got, _, err := p.content(ctx, key)
	switch {
	case err != nil:
		return false, "", err
	case got != content:
		return false, fmt.Sprintf("%s was carried out (%s): the condition is ignored.", what, r), nil
	case r.conditionFailed():
		return true, fmt.Sprintf("%s was refused (%s).", what, r), nil
	case r.ok():
		return false, fmt.Sprintf("%s changed nothing, and was answered with success (%s).", what, r), nil
	}
	return false, fmt.Sprintf("%s is not taken by the store (%s).", what, r), nil
}

// accepted judges the reply to a write whose condition held: the object has this content now.
func (p *prober) accepted(ctx context.Context, what string, r reply, key, content string) (bool, string, error) {
	got, _, err := p.content(ctx, key)
	switch {
	case err != nil:
		return false, "", err
	case !r.ok():
		return false, fmt.Sprintf("%s was refused (%s).", what, r), nil
	case got != content:
		return false, fmt.Sprintf("%s was answered with success (%s), and the object has another content.", what, r), nil
	}
	return true, fmt.Sprintf("%s was carried out (%s).", what, r), nil
}
