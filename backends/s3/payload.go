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
	signedChunks = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	unsigned     = "UNSIGNED-PAYLOAD"
)

// A payload is a request's body as the store gets it. Whatever its form, the store checks it before it commits: it is covered by a
// hash in the signature of the request, by a checksum that is signed, or by one signature for each chunk and one for the end.
type payload struct {
	hash   string // SHA-256 in hex, or signedChunks
	length int64  // on the wire
	buffer []byte // all of a document that was read here
	source *source
	pass   func() error // the gate of a body that came whole, nil otherwise
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
	if p.length <= 0 || !isObject(r) {
		return readDocument(r, p.hash)
	}
	p.source = newSource(r.Body, p.length, x.time)
	if p.hash == "" {
		p.hash, p.length = signedChunks, framedLength(p.length)
	}
	return p, nil
}

// streams says whether the body's gate is its end.
func (p payload) streams() bool { return p.source != nil && !p.source.whole }

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

// attach gives the request its body.
func (p payload) attach(out *http.Request) {
	out.ContentLength = p.length
	if p.hash == signedChunks {
		out.Header.Set("X-Amz-Decoded-Content-Length", strconv.FormatInt(p.source.length, 10))
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
}
