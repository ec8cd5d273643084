package proxy

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"os"
	"slices"
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

	held    byte
	isHeld  bool
	touched bool  // the client was asked for its body
	opened  bool  // the gate has let the write pass
	err     error // what the next Read returns

	mu    sync.Mutex
	ended bool  // nothing more is read from the connection: to interrupt it would hit the server's own read; guarded by mu
	cause error // why the upload was interrupted; guarded by mu
}

// A check is a digest that the client sent ahead, and that the body must have.
type check struct {
	header string
	code   string // S3's code for a body that has another
	want   []byte
	hash   hash.Hash
}

// checksOf reads the digests of a request: the SHA-256 that AWS signatures carry, Content-MD5 (RFC 1864), and S3's checksums
// ("Checking object integrity"). The last two are of the body only where the body is the content: Complete and Create speak of the object to
// come.
func checksOf(h http.Header, content bool) ([]check, error) {
	var checks []check
	switch v := h.Get("X-Amz-Content-Sha256"); {
	case v == "", v == "UNSIGNED-PAYLOAD":
	case strings.HasPrefix(v, "STREAMING-"):
		return nil, notImplemented("x-amz-content-sha256: %s: bodies in chunks (aws-chunked) are not in this version; their framing must not become data", v)
	default:
		want, err := hex.DecodeString(v)
		if err != nil || len(want) != sha256.Size {
			return nil, badRequest("InvalidArgument", "x-amz-content-sha256 %q is not a SHA-256 digest in hexadecimal", v)
		}
		checks = append(checks, check{"x-amz-content-sha256", "XAmzContentSHA256Mismatch", want, sha256.New()})
	}
	if !content {
		return checks, nil
	}
	for name, values := range h {
		made, ok := digests[name]
		if !ok {
			if strings.HasPrefix(name, checksumPrefix) && !slices.Contains(aboutChecksums, name) {
				return nil, notImplemented("%s cannot be checked by this version", strings.ToLower(name))
			}
			continue
		}
		c := check{header: strings.ToLower(name), code: "BadDigest", hash: made()}
		var err error
		c.want, err = base64.StdEncoding.DecodeString(values[0])
		if err != nil || len(values) != 1 || len(c.want) != c.hash.Size() {
			code := "InvalidRequest" // S3's for checksums
			if name == "Content-Md5" {
				code = "InvalidDigest"
			}
			return nil, badRequest(code, "%s %q is not the Base64 form of such a digest", c.header, strings.Join(values, ","))
		}
		checks = append(checks, c)
	}
	return checks, nil
}

const checksumPrefix = "X-Amz-Checksum-"

// aboutChecksums are headers that say something of checksums and are none.
var aboutChecksums = []string{checksumPrefix + "Algorithm", checksumPrefix + "Mode", checksumPrefix + "Type"}

var digests = map[string]func() hash.Hash{
	"Content-Md5":                md5.New,
	checksumPrefix + "Crc32":     func() hash.Hash { return crc32.NewIEEE() },
	checksumPrefix + "Crc32c":    func() hash.Hash { return crc32.New(castagnoli) },
	checksumPrefix + "Crc64nvme": func() hash.Hash { return crc64.New(nvme) },
	checksumPrefix + "Md5":       md5.New,
	checksumPrefix + "Sha1":      sha1.New,
	checksumPrefix + "Sha256":    sha256.New,
	checksumPrefix + "Sha512":    sha512.New,
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	nvme       = crc64.MakeTable(0x9a6c9329ac4bc9b5) // the NVM Express polynomial, its bits reversed
)

// Read gives the store everything but the end, and the end once the gate is open.
func (b *gatedBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.touched = true
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
	if err := b.end(); err != nil {
		return err
	}
	for _, c := range b.checks {
		if subtle.ConstantTimeCompare(c.hash.Sum(nil), c.want) != 1 {
			return badRequest(c.code, "the body that came does not have the %s that was announced", c.header)
		}
	}
	if err := b.gate(); err != nil {
		return err
	}
	b.opened = true
	return nil
}

// passed says whether the gate has let the write pass.
func (b *gatedBody) passed() bool { return b.opened }

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

// end is the end of reading: from here on the server itself reads from the connection, to see whether the client leaves.
func (b *gatedBody) end() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cause != nil {
		return b.cause
	}
	b.ended = true
	_ = b.control.SetReadDeadline(time.Time{})
	return nil
}

// interrupt makes the Read under way, and every later one, fail with cause. A body that has come whole it leaves to the gate.
func (b *gatedBody) interrupt(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.cause = cause
	_ = b.control.SetReadDeadline(time.Now())
}

// interrupted says whether the connection's deadline was used to end a Read: then it may have hit the server's own.
func (b *gatedBody) interrupted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cause != nil
}

// explain says why the client's body ended early.
func (b *gatedBody) explain(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.cause != nil:
		return b.cause
	case errors.As(err, new(*s3Error)):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return badRequest("RequestTimeout", "no byte of the body came for %v", b.idle)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return badRequest("IncompleteBody", "the body ended before the number of bytes that Content-Length announced")
	}
	return badRequest("IncompleteBody", "the body could not be read: %v", err)
}

// Close leaves the client's body to the server.
func (b *gatedBody) Close() error { return nil }
