package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
)

// How a body goes to the store:
//
//	whole      read and verified before anything else: what is small, and what a store elsewhere gets up to limits.buffer. It can be sent
//	           again, behind a gate of its own.
//	spooled    the same, from a file: a large body for a store that may make pieces of one the object, unless it has a SHA-256 for the whole
//	streaming  everything else, as it comes, but for its end (gate.go)

// maxSmall bounds the bodies that are no objects, in bytes. The largest are lists of 10,000 parts.
const maxSmall = 4 << 20

// A delivery is a body on its way to the store, past the gate or before it.
type delivery interface {
	io.ReadCloser
	passed() bool   // the gate has let the write pass
	failure() error // why the body came to no end, nil if it did or was not read so far
}

// A content is a body that is at hand, whole and verified.
type content struct {
	io.ReaderAt
	size    int64
	sha256  string // in hexadecimal
	late    bool   // its gate is its end: it is too long for the time that a write has between the gate and the store
	release func() // gives its memory or its file back
}

// deliver makes the content the body of a request, behind a gate.
func (c *content) deliver(out *http.Request, gate func() error) delivery {
	body := &heldBody{Reader: io.NewSectionReader(c, 0, c.size), left: c.size, gate: gate}
	out.Body, out.ContentLength = body, c.size
	if !c.late {
		out.Body = wholeBody{body, c}
	}
	out.Header.Set(headerContentHash, c.sha256)
	return body
}

// A heldBody is a content whose end is behind a gate.
type heldBody struct {
	io.Reader
	left   int64 // bytes to come
	gate   func() error
	asked  bool
	opened bool
	err    error // why it did not open
}

// pass passes the gate, once.
func (b *heldBody) pass() error {
	if !b.asked {
		b.asked = true
		b.err = b.gate()
		b.opened = b.err == nil
	}
	return b.err
}

// Read gives the body, and its end only when the gate is passed.
func (b *heldBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.Reader.Read(p)
	if b.left -= int64(n); err == io.EOF && b.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	switch {
	case err == io.EOF:
		if err := b.pass(); err != nil {
			return 0, err
		}
	case err != nil: // the spool, and not the client
		b.err = fmt.Errorf("a body that was here cannot be read any more: %w", err)
		return 0, b.err
	}
	return n, err
}

func (b *heldBody) Close() error   { return nil }
func (b *heldBody) passed() bool   { return b.opened }
func (b *heldBody) failure() error { return b.err }

// A wholeBody is one that may be sent at once behind the gate, as package backends has it.
type wholeBody struct {
	*heldBody
	io.ReaderAt // the content again: a backend may have to sum it up before it sends it
}

// Pass passes the gate.
func (b wholeBody) Pass() error { return b.pass() }

// A budget is the memory for bodies, shared by all requests.
type budget struct{ left atomic.Int64 }

// take says whether there was enough left. Nobody waits for it.
func (b *budget) take(n int64) bool {
	if b.left.Add(-n) < 0 {
		b.left.Add(n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.left.Add(n) }

// small says that a body is no object's content, or none at all.
func (x *exchange) small() bool { return !x.streams() || x.r.ContentLength == 0 }

// gather reads and verifies the contents that go to the store whole, and returns nil for one that streams. ctx ends when the upload is to be
// cut off.
func (x *exchange) gather(ctx context.Context, checks []check, found Findings) (*content, error) {
	size := x.r.ContentLength
	switch {
	case !x.backend().remote():
		return nil, nil
	case size <= x.h.Buffer && x.h.memory.take(size):
		c, err := x.gatherInto(ctx, checks, bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead)))
		if err != nil {
			x.h.memory.give(size)
			return nil, err
		}
		c.release = func() { x.h.memory.give(size) }
		return c, nil
	case found.Spool, len(x.trailer) > 0 && !found.Trailers:
		c, err := x.gatherInFile(ctx, checks)
		if err == nil {
			c.late = !found.Unhashed // else it must not be seen in pieces, and has to be quick
		}
		return c, err
	}
	return nil, nil
}

func (x *exchange) gatherSmall(ctx context.Context, checks []check) (*content, error) {
	release, err := x.reserveSmall()
	if err != nil {
		return nil, err
	}
	tooLong := badRequest("EntityTooLarge", "the body of %s has more than %d bytes", x.op.name, maxSmall)
	x.r.Body = &capped{ReadCloser: x.r.Body, left: maxSmall, err: tooLong}
	c, err := x.gatherInto(ctx, checks, new(bytes.Buffer))
	if err != nil {
		release()
		return nil, err
	}
	c.release = release
	return c, nil
}

// freeSmall is what a body that is no object may have, in bytes, without a share of the memory for bodies: nearly all of them.
const freeSmall = 64 << 10

// reserveSmall takes a share for a larger one. Nobody waits for memory, and there is no other way for such a body.
func (x *exchange) reserveSmall() (release func(), err error) {
	size := x.r.ContentLength
	if size < 0 || size > maxSmall {
		size = maxSmall
	}
	if size <= freeSmall {
		return func() {}, nil
	}
	if !x.h.memory.take(size) {
		return nil, &s3Error{http.StatusServiceUnavailable, slowDown, "the memory for bodies (limits.memory) is in use: send it again. Nothing was changed"}
	}
	return func() { x.h.memory.give(size) }, nil
}

func (x *exchange) gatherInto(ctx context.Context, checks []check, b *bytes.Buffer) (*content, error) {
	sum, err := x.receive(ctx, checks, b)
	if err != nil {
		return nil, err
	}
	return &content{ReaderAt: bytes.NewReader(b.Bytes()), size: int64(b.Len()), sha256: sum, release: func() {}}, nil
}

// gatherInFile spools a body.
func (x *exchange) gatherInFile(ctx context.Context, checks []check) (*content, error) {
	f, err := x.h.spool()
	if err != nil {
		return nil, err
	}
	sum, err := x.receive(ctx, checks, f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &content{ReaderAt: f, size: x.r.ContentLength, sha256: sum, release: func() { _ = f.Close() }}, nil
}

// spool makes a file that has no name any more: whatever happens, nothing of it stays.
func (h *Handler) spool() (*os.File, error) {
	f, err := os.CreateTemp(h.Spool, "body-*")
	if err != nil {
		return nil, fmt.Errorf("the spool of large bodies: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("the spool of large bodies: %w", err), f.Close())
	}
	return f, nil
}

// receive reads the client's body to its end, verifies it, and returns its SHA-256.
func (x *exchange) receive(ctx context.Context, checks []check, w io.Writer) (sum string, err error) {
	body := x.clientBody(checks, func() error { return nil })
	hash := sha256.New()
	var from io.Reader = io.TeeReader(body, hash)
	for _, c := range checks {
		if c.header == "x-amz-content-sha256" { // it is taken anyway
			hash, from = c.hash, body
		}
	}
	stop := x.watch(ctx, body)
	_, err = io.Copy(w, from)
	stop()
	x.bodyTouched = true
	if failure := body.failure(); failure != nil {
		return "", failure
	}
	if err != nil {
		return "", fmt.Errorf("a body could not be kept: %w", err)
	}
	x.promoteTrailers()
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// clientBody is the client's body, its end behind a gate.
func (x *exchange) clientBody(checks []check, gate func() error) *gatedBody {
	return &gatedBody{src: x.r.Body, control: x.control, idle: x.h.BodyIdle, gate: gate, checks: checks}
}

// watch interrupts the body when ctx ends. stop waits for an interruption under way, which must not hit the next request.
func (x *exchange) watch(ctx context.Context, body *gatedBody) (stop func()) {
	done := make(chan struct{})
	stopFunc := context.AfterFunc(ctx, func() {
		defer close(done)
		body.interrupt(context.Cause(ctx))
	})
	return func() {
		if !stopFunc() {
			<-done
		}
		if body.interrupted() {
			x.w.Header().Set("Connection", "close")
		}
	}
}

// capped fails before it gives out more than is left: a body that is too long must not come to its end, and to the gate.
type capped struct {
	io.ReadCloser
	left int
	err  error
}

func (c *capped) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if c.left -= n; c.left < 0 {
		return 0, c.err
	}
	return n, err
}
