package sigv4

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const (
	maxChunk       = 16 << 20  // bytes of content in a signed chunk: it is held until its signature is verified
	minChunk       = 8 << 10   // of each chunk but the last one, by S3's rules
	freeChunk      = 128 << 10 // held without asking ChunkOptions.Reserve
	firstChunk     = 16 << 10  // held at first, however large the chunk says it is
	maxChunkHeader = 1 << 10   // bytes of the line before a chunk
)

// ChunkOptions say what a request announced of its body in chunks.
type ChunkOptions struct {
	// Length is the length of the content in bytes (x-amz-decoded-content-length). Any other is refused as IncompleteBody.
	Length int64

	// Trailers are the names of the headers that stand behind the content (x-amz-trailer), in canonical form.
	Trailers []string

	// Reserve is asked before a reader holds n bytes more than the 128 KiB that each may hold. The answer no ends the reading
	// with 503 SlowDown. nil never says no.
	Reserve func(n int64) bool
}

// A ChunkReader reads the content of a body in chunks (aws-chunked).
//
// A signed chunk is read whole and its signature verified before Read returns a byte of it; it may be 16 MiB long. io.EOF comes
// only once the last, empty chunk, its signature, the trailers and theirs were verified, the content is as long as
// announced, and the body has ended. Errors are an [*Error] with S3's code, or what the body returned.
type ChunkReader struct {
	in      *bufio.Reader
	o       ChunkOptions
	payload Payload
	chain   *chain // nil: no signature is looked at

	data     []byte // verified, and not yet returned
	held     []byte // the memory that data is part of
	reserved int64
	passing  int64 // bytes of the current chunk to return as they come

	left    int64 // of Length: what no chunk has brought yet
	chunks  int   // how many there were
	last    int64 // the size of the last one
	trailer http.Header
	err     error
}

// Chunks is the content of a body whose request has this identity. Its Payload must be Chunked.
func (id Identity) Chunks(body io.Reader, o ChunkOptions) *ChunkReader {
	c := NewChunks(id.Payload, body, o)
	if id.chain != nil {
		own := *id.chain
		c.chain = &own
	}
	return c
}

// NewChunks is the content of a body whose signatures nobody can verify, for no access keys are known. The framing is
// held to the same rules, but for the size of signed chunks.
func NewChunks(p Payload, body io.Reader, o ChunkOptions) *ChunkReader {
	return &ChunkReader{in: bufio.NewReaderSize(body, 4<<10), o: o, payload: p, left: o.Length}
}

// Read reads content, as [io.Reader] has it.
func (c *ChunkReader) Read(p []byte) (int, error) {
	for c.err == nil && len(p) > 0 {
		if len(c.data) > 0 {
			n := copy(p, c.data)
			c.data = c.data[n:]
			return n, nil
		}
		if c.passing > 0 {
			n, err := c.pass(p)
			if c.err = err; n > 0 {
				return n, nil
			}
			continue
		}
		c.err = c.next()
	}
	return 0, c.err
}

// Trailer is what stood behind the content, with names in canonical form, once Read has returned io.EOF; before that, nil.
func (c *ChunkReader) Trailer() http.Header { return c.trailer }

// Release ends the reading, and tells how many bytes were got from [ChunkOptions.Reserve] and are to be given back. It tells
// them once.
func (c *ChunkReader) Release() int64 {
	n := c.reserved
	c.reserved, c.data, c.held, c.passing = 0, nil, nil, 0
	if c.err == nil {
		c.err = errReleased
	}
	return n
}

var errReleased = errors.New("sigv4: read of a body in chunks after its release")

// pass returns content as it comes. Nothing of it is signed.
func (c *ChunkReader) pass(p []byte) (n int, err error) {
	most := min(int64(len(p)), c.passing, c.left)
	if most == 0 {
		return 0, c.tooLong()
	}
	n, err = c.in.Read(p[:most])
	c.passing -= int64(n)
	c.left -= int64(n)
	if err == io.EOF {
		err = incomplete()
	}
	return n, err
}

// tooLong tells the content that goes on behind its announced length from the chunk that ends before its own.
func (c *ChunkReader) tooLong() error {
	next, err := c.in.Peek(2)
	switch {
	case string(next) == "\r\n":
		return incomplete()
	case len(next) > 0:
		return wrongLength()
	case err != io.EOF:
		return err
	}
	return incomplete()
}

// next reads up to the content of the next chunk, and past it where it is signed.
func (c *ChunkReader) next() error {
	if c.chunks > 0 {
		if err := c.lineEnd(); err != nil {
			return err
		}
	}
	size, signature, err := c.header()
	if err != nil {
		return err
	}
	if size == 0 {
		return c.finish(signature)
	}
	if c.chunks > 0 && c.last < minChunk {
		return badChunk(c.chunks, c.last, "Only the last chunk is allowed to have a size less than 8192 bytes")
	}
	c.chunks++
	c.last = size
	if c.chain == nil {
		c.passing = size
		return nil
	}
	switch {
	case size > c.left:
		return wrongLength()
	case size > maxChunk:
		return badChunk(c.chunks, size, "A signed chunk may have 16777216 bytes at most: this one has to be held until its signature is verified")
	}
	return c.hold(size, signature)
}

// header reads the line before a chunk: its size, and where chunks are signed, the signature.
func (c *ChunkReader) header() (size int64, signature string, err error) {
	line, err := c.line()
	if err != nil {
		return 0, "", err
	}
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	digits, extension, extended := bytes.Cut(text, []byte(";"))
	if c.chain == nil { // whatever extensions there are, and blanks, which some HTTP libraries put before the line's end
		digits = bytes.TrimRight(digits, " \t")
	} else {
		name, value, _ := strings.Cut(string(extension), "=")
		signature = value
		ok = ok && extended && name == "chunk-signature" && len(value) == digestLength && isLowerHex(value)
	}
	n, err := strconv.ParseUint(string(digits), 16, 63)
	if !ok || err != nil {
		return 0, "", incomplete()
	}
	return int64(n), signature, nil
}

// hold reads a signed chunk and verifies it. The memory grows with what has arrived, not with what was announced.
func (c *ChunkReader) hold(size int64, signature string) error {
	c.held = c.held[:0]
	for int64(len(c.held)) < size {
		if len(c.held) == cap(c.held) {
			if err := c.grow(size); err != nil {
				return err
			}
		}
		n, err := c.in.Read(c.held[len(c.held):min(int64(cap(c.held)), size)])
		c.held = c.held[:len(c.held)+n]
		if err == io.EOF && int64(len(c.held)) < size {
			return incomplete()
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
	if err := c.chain.chunk(c.held, signature); err != nil {
		return err
	}
	c.data = c.held
	c.left -= size
	return nil
}

func (c *ChunkReader) grow(size int64) error {
	want := min(size, max(firstChunk, 2*int64(cap(c.held))))
	if more := want - freeChunk - c.reserved; more > 0 && c.o.Reserve != nil {
		if !c.o.Reserve(more) {
			return refuse(http.StatusServiceUnavailable, "SlowDown", "Please reduce your request rate. (There is no memory for a signed chunk of %d bytes now.)", size)
		}
		c.reserved += more
	}
	grown := make([]byte, len(c.held), want)
	copy(grown, c.held)
	c.held = grown
	return nil
}

// finish reads what stands behind the size of the last chunk, which is empty. It returns io.EOF if all is as it should be.
func (c *ChunkReader) finish(signature string) error {
	if c.chain != nil {
		if err := c.chain.chunk(nil, signature); err != nil {
			return err
		}
	}
	if c.left != 0 {
		return wrongLength()
	}
	trailer, err := c.readTrailers()
	if err != nil {
		return err
	}
	if _, err := c.in.ReadByte(); err != io.EOF {
		if err == nil {
			err = refuse(http.StatusBadRequest, incompleteBody, "The request body goes on behind its last chunk")
		}
		return err
	}
	c.trailer = trailer
	return io.EOF
}

// line reads up to the next \n, which must come soon.
func (c *ChunkReader) line() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	if err == bufio.ErrBufferFull || err == io.EOF || len(line) > maxChunkHeader {
		return nil, incomplete()
	}
	return line, err
}

func (c *ChunkReader) lineEnd() error {
	line, err := c.line()
	if err == nil && string(line) != "\r\n" {
		err = incomplete()
	}
	return err
}

const incompleteBody = "IncompleteBody"

func incomplete() error {
	return refuse(http.StatusBadRequest, incompleteBody, "The request body terminated unexpectedly")
}

func wrongLength() error {
	return refuse(http.StatusBadRequest, incompleteBody, "You did not provide the number of bytes specified by the Content-Length HTTP header")
}

func badChunk(number int, size int64, message string) error {
	return &Error{
		Status: http.StatusBadRequest, Code: "InvalidChunkSizeError", Message: message,
		Details: []Detail{{"Chunk", strconv.Itoa(number)}, {"BadChunkSize", strconv.FormatInt(size, 10)}},
	}
}
