package s3

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const (
	signedChunks  = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	signedTrailer = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
	unsigned      = "UNSIGNED-PAYLOAD"
)

// A payload is a request's body as the store gets it. Whatever its form, the store checks it before it commits: it is covered by a
// hash in the signature of the request, by a checksum that is signed, or by one signature for each chunk and one for the end.
type payload struct {
	hash    string // SHA-256 in hex, or signedChunks, or signedTrailer
	length  int64  // on the wire
	buffer  []byte // all of a document that was read here
	source  *source
	trailer trailer      // behind the chunks; of a document, which has none, what is to be in its headers
	pass    func() error // the gate of a body that came whole, nil otherwise
}

// A passer is a body that is whole: all of it is at hand, and its gate is asked for by name (see package backends).
type passer interface{ Pass() error }

// payloadOf decides how a body goes to the store, and reads documents that did not come whole: their end is the gate.
func (x *exchange) payloadOf(r *http.Request) (payload, error) {
	if r.Body == nil || r.Body == http.NoBody {
		if r.ContentLength > 0 {
			return payload{}, badBody("IncompleteBody", "The request has no body, and says that it has %d bytes.", r.ContentLength)
		}
		return payload{hash: emptyHash}, nil
	}
	p := payload{hash: r.Header.Get("X-Amz-Content-Sha256"), length: r.ContentLength}
	if !isHash(p.hash) {
		p.hash = ""
	}
	if whole, ok := r.Body.(passer); ok && p.hash != "" && p.length >= 0 {
		p.pass = whole.Pass
		if p.length > 0 {
			p.source = newSource(r.Body, p.length, x.time)
			p.source.whole = true
		}
		return p, nil
	}
	behind, err := trailerOf(r)
	if err != nil {
		return payload{}, err
	}
	if p.length <= 0 || !isObject(r) {
		p, err = readDocument(r, p.hash)
		p.trailer = behind
		return p, err
	}
	p.source, p.trailer = newSource(r.Body, p.length, x.time), behind
	switch {
	case behind.names != nil && !x.s.takesTrailers():
		return payload{}, &apiError{http.StatusNotImplemented, "NotImplemented", "The store takes no checksum behind a body: send it ahead, in a header."}
	case behind.names != nil:
		p.hash, p.length = signedTrailer, framedLength(p.length)+behind.length()
	case p.hash == "":
		p.hash, p.length = signedChunks, framedLength(p.length)
	}
	return p, nil
}

// takesTrailers says no of a store that was seen not to: it might keep what is behind a body as a part of it. The proxy gives it such bodies whole.
func (s *Store) takesTrailers() bool {
	found := s.found.Load()
	return found == nil || found.Trailers
}

// streams says whether the body's gate is its end.
func (p payload) streams() bool { return p.source != nil && !p.source.whole }

// chunked says whether the body goes in signed chunks.
func (p payload) chunked() bool { return p.hash == signedChunks || p.hash == signedTrailer }

// isObject says whether a body is an object or a part of one. Any other is a document, which S3 takes in no other form than whole.
func isObject(r *http.Request) bool {
	if r.Method != http.MethodPut || !hasKey(r) {
		return false
	}
	for name := range parameters(r.URL.RawQuery) {
		switch name {
		case "partNumber", "uploadId", "x-id":
		default:
			return false
		}
	}
	return true
}

func isHash(v string) bool {
	b, err := hex.DecodeString(v)
	return err == nil && len(b) == sha256.Size
}

// maxDocument bounds the documents that are read here, in bytes. S3's longest, a completion of 10,000 parts, has less.
const maxDocument = 8 << 20

// readDocument reads a body that did not come whole and cannot stream. One of unknown length may be an object.
func readDocument(r *http.Request, announced string) (payload, error) {
	limit := r.ContentLength
	switch {
	case limit < 0:
		limit = maxDocument
	case limit > maxDocument:
		return payload{}, badBody("EntityTooLarge", "A document of %d bytes is more than the %d that are taken.", limit, maxDocument)
	}
	var b bytes.Buffer
	switch n, err := b.ReadFrom(io.LimitReader(r.Body, limit+1)); {
	case err != nil:
		return payload{}, badBody("IncompleteBody", "The body could not be read to its end: %v.", err)
	case r.ContentLength < 0 && n > limit:
		return payload{}, &apiError{http.StatusLengthRequired, "MissingContentLength", "A body of this size needs a Content-Length."}
	case r.ContentLength >= 0 && n != r.ContentLength:
		return payload{}, wrongLength(r.ContentLength)
	}
	sum := sha256.Sum256(b.Bytes())
	hash := hex.EncodeToString(sum[:])
	if announced != "" && !strings.EqualFold(announced, hash) {
		return payload{}, badBody("XAmzContentSHA256Mismatch", "The body does not have the x-amz-content-sha256 that was announced.")
	}
	return payload{hash: hash, length: int64(b.Len()), buffer: b.Bytes()}, nil
}

func wrongLength(announced int64) error {
	return badBody("IncompleteBody", "The body does not have the %d bytes that Content-Length announced.", announced)
}

// expectFrom is how long a body that came whole must be, in bytes, for the store to be asked whether it wants it: below, the question
// takes longer than the body.
const expectFrom = 1 << 20

// attach gives the request its body, and the headers that go with it.
func (p payload) attach(out *http.Request) error {
	out.ContentLength = p.length
	if p.chunked() {
		out.Header.Set("X-Amz-Decoded-Content-Length", strconv.FormatInt(p.source.length, 10))
	}
	switch {
	case p.hash == signedTrailer:
		out.Header.Set("X-Amz-Trailer", p.trailer.announced())
	case p.trailer.names != nil:
		if err := p.trailer.promote(out.Header); err != nil {
			return err
		}
	}
	if p.streams() || p.length > expectFrom {
		out.Header.Set("Expect", "100-continue") // a store that says no, says so before it gets a body that nobody wants
	}
	switch {
	case p.source != nil:
		out.Body = p.source
	case p.length > 0:
		out.Body = io.NopCloser(bytes.NewReader(p.buffer)) // not as http.NewRequest does it: no GetBody, no replay
	}
	return nil
}
