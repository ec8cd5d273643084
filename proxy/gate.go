package proxy

import (
	"crypto/md5"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// A gatedBody is the body of a write on its way to the store. Its last byte and its end are held back until the body has been
// verified whole and the gate is open: a store can commit nothing of it before.
//
//	read … read | held: the last byte | verify → gate → last byte, io.EOF → the store commits
//
// It is read by one goroutine, the backend's; interrupt may come from another.
type gatedBody struct {
	src     io.Reader
	control *http.ResponseController // of the connection, for deadlines
	idle    time.Duration            // longest wait for the client's next bytes
	gate    func() error             // admits the write
	checks  []check

	held   byte
	isHeld bool
	opened bool  // the gate has let the write pass
	err    error // what the next Read returns

	mu    sync.Mutex
	cause error // why the upload was interrupted; guarded by mu
}

// A check is a digest that the client sent ahead, and that the body must have.
type check struct {
	header string
	code   string // S3's code for a body that has another
	want   []byte
	hash   hash.Hash
}

// checksOf reads the digests of a request: Content-MD5 (RFC 1864) and the SHA-256 that AWS signatures carry.
func checksOf(h http.Header) ([]check, error) {
	var checks []check
	if v := h.Get("Content-Md5"); v != "" {
		want, err := base64.StdEncoding.DecodeString(v)
		if err != nil || len(want) != md5.Size {
			return nil, badRequest("InvalidDigest", "Content-MD5 %q is not the Base64 form of an MD5 digest", v)
		}
		checks = append(checks, check{"Content-MD5", "BadDigest", want, md5.New()})
	}
	switch v := h.Get("X-Amz-Content-Sha256"); {
	case v == "", v == "UNSIGNED-PAYLOAD":
	case strings.HasPrefix(v, "STREAMING-"):
		return nil, notImplemented("x-amz-content-sha256: %s: bodies in signed chunks are not in this version; its framing must not become data", v)
	default:
		want, err := hex.DecodeString(v)
		if err != nil || len(want) != sha256.Size {
			return nil, badRequest("InvalidArgument", "x-amz-content-sha256 %q is not a SHA-256 digest in hexadecimal", v)
		}
		checks = append(checks, check{"x-amz-content-sha256", "XAmzContentSHA256Mismatch", want, sha256.New()})
	}
	return checks, nil
}

// Read gives the store everything but the end, and the end once the gate is open.
func (b *gatedBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for b.err == nil {
		n, err := b.readBehindHeld(p)
		if err == nil {
			if n > 0 {
				return n, nil
			}
			continue // there is one byte, and it is held
		}
		if err != io.EOF {
			b.err = b.explain(err)
			break
		}
		if b.err = b.open(); b.err != nil {
			break
		}
		b.err = io.EOF
		if b.isHeld {
			p[n] = b.held
			return n + 1, nil
		}
		return n, io.EOF
	}
	return 0, b.err
}

// readBehindHeld reads once and fills p with all that has come but the last byte, which it holds. At the end of the body it
// leaves room for that byte in p.
func (b *gatedBody) readBehindHeld(p []byte) (n int, err error) {
	if err := b.arm(); err != nil {
		return 0, err
	}
	var one [1]byte
	into := p[1:]
	if !b.isHeld {
		into = p
	} else if len(into) == 0 {
		into = one[:]
	}
	m, err := b.src.Read(into)
	for _, c := range b.checks {
		c.hash.Write(into[:m])
	}
	if m == 0 {
		return 0, err
	}
	last := into[m-1]
	if b.isHeld {
		p[0] = b.held
		n = m
	} else {
		n = m - 1
	}
	b.held, b.isHeld = last, true
	if err == io.EOF && n == len(p) {
		err = nil // no room for the last byte in p: the next Read meets the end again
	}
	return n, err
}

// open verifies the body and lets the write pass the gate. Where it fails, the store never sees the end, and so changes nothing.
func (b *gatedBody) open() error {
	for _, c := range b.checks {
		if subtle.ConstantTimeCompare(c.hash.Sum(nil), c.want) != 1 {
			return badRequest(c.code, "the body that came does not have the %s that was announced", c.header)
		}
	}
	b.disarm()
	if err := b.gate(); err != nil {
		return err
	}
	b.opened = true
	return nil
}

// failure is why the body came to no end, nil if it did or was not read so far.
func (b *gatedBody) failure() error {
	if b.err == io.EOF {
		return nil
	}
	return b.err
}

// arm gives the client time for its next bytes, unless the upload was interrupted.
func (b *gatedBody) arm() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cause != nil {
		return b.cause
	}
	_ = b.control.SetReadDeadline(time.Now().Add(b.idle)) // a connection without deadlines has none to pass
	return nil
}

// disarm takes the deadline away: from here on the server itself reads from the connection, to see whether the client leaves.
func (b *gatedBody) disarm() {
	_ = b.control.SetReadDeadline(time.Time{})
}

// interrupt makes the Read under way, and every later one, fail with cause.
func (b *gatedBody) interrupt(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cause = cause
	_ = b.control.SetReadDeadline(time.Now())
}

// explain says why the client's body ended early.
func (b *gatedBody) explain(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.cause != nil:
		return b.cause
	case errors.Is(err, os.ErrDeadlineExceeded):
		return badRequest("RequestTimeout", "no byte of the body came for %v", b.idle)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return badRequest("IncompleteBody", "the body ended before the number of bytes that Content-Length announced")
	}
	return badRequest("IncompleteBody", "the body could not be read: %v", err)
}

// Close leaves the client's body to the server.
func (b *gatedBody) Close() error { return nil }
