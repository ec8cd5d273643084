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

const signedChunks = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"

// A payload is a request's body as the store gets it. Whatever its form, the store checks it before it commits: it is covered by a
// hash in the signature of the request, or by one signature for each chunk and one for the end.
type payload struct {
	hash   string // as x-amz-content-sha256 has it
	length int64  // on the wire
	buffer []byte // all of it, unless it streams
	source *source
}

// payloadOf decides how a body goes to the store, and reads the small ones, whose end is the gate.
func (s *Store) payloadOf(r *http.Request) (payload, error) {
	if r.Body == nil || r.Body == http.NoBody {
		if r.ContentLength > 0 {
			return payload{}, badBody("IncompleteBody", "The request has no body, and says that it has %d bytes.", r.ContentLength)
		}
		return payload{hash: emptyHash}, nil
	}
	announced := r.Header.Get("X-Amz-Content-Sha256")
	if !isHash(announced) {
		announced = ""
	}
	if r.ContentLength <= max(s.o.Buffer, 0) || !isObject(r) {
		return s.readWhole(r, announced)
	}
	p := payload{hash: announced, length: r.ContentLength, source: newSource(r.Body, r.ContentLength)}
	if announced == "" {
		p.hash, p.length = signedChunks, framedLength(r.ContentLength)
	}
	return p, nil
}

// isObject says whether a body is an object or a part of one. Any other is a document, which S3 takes in no other form than whole.
func isObject(r *http.Request) bool {
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if r.Method != http.MethodPut || key == "" {
		return false
	}
	for pair := range strings.SplitSeq(query(r.URL.RawQuery), "&") {
		switch name, _, _ := strings.Cut(pair, "="); name {
		case "", "partNumber", "uploadId", "x-id":
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

// maxDocument bounds the bodies that are no objects, in bytes. S3's longest, a completion of 10,000 parts, has less.
const maxDocument = 8 << 20

// readWhole reads a body that is as long as Buffer or maxDocument allow. One of unknown length may be, too.
func (s *Store) readWhole(r *http.Request, announced string) (payload, error) {
	limit := r.ContentLength
	switch most := max(s.o.Buffer, maxDocument); {
	case limit < 0:
		limit = most
	case limit > most:
		return payload{}, badBody("EntityTooLarge", "A document of %d bytes is more than the %d that are taken.", limit, most)
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
	if announced != "" && announced != hash {
		return payload{}, badBody("XAmzContentSHA256Mismatch", "The body does not have the x-amz-content-sha256 that was announced.")
	}
	return payload{hash: hash, length: int64(b.Len()), buffer: b.Bytes()}, nil
}

func wrongLength(announced int64) error {
	return badBody("IncompleteBody", "The body does not have the %d bytes that Content-Length announced.", announced)
}

// attach gives the request its body.
func (p payload) attach(out *http.Request) {
	out.ContentLength = p.length
	switch {
	case p.source != nil && p.hash == signedChunks:
		out.Header.Set("X-Amz-Decoded-Content-Length", strconv.FormatInt(p.source.length, 10))
		fallthrough
	case p.source != nil:
		out.Header.Set("Expect", "100-continue") // a store that says no, says so before it gets a body that nobody wants
		out.Body = p.source
	case p.length > 0:
		out.Body = io.NopCloser(bytes.NewReader(p.buffer)) // not as http.NewRequest does it: no GetBody, no replay
	}
}
