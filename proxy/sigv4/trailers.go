package sigv4

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

const (
	maxTrailer       = 8 << 10 // bytes of all lines behind the last chunk
	trailerSignature = "x-amz-trailer-signature"
)

// A tail is what stands behind the last chunk, as far as it was read.
type tail struct {
	canonical []byte // as it is signed
	header    http.Header
	malformed bool   // S3's word for one that was not announced, or is there twice
	signature string // of the rest
}

// readTrailers reads the headers behind the last chunk, up to the end of the body or a blank line, and verifies them.
func (c *ChunkReader) readTrailers() (http.Header, error) {
	var t tail
	var err error
	if c.payload == SignedChunks {
		err = c.skipEnd()
	} else {
		err = c.readLines(&t)
	}
	if err != nil {
		return nil, err
	}
	if t.malformed || len(t.header) != len(c.o.Trailers) {
		return nil, refuse(http.StatusBadRequest, "MalformedTrailerError",
			"The request contained trailing data that was not well-formed or did not conform to our published schema.")
	}
	if c.chain != nil && c.payload == SignedChunksTrailer {
		if err := c.chain.trailers(t.canonical, t.signature); err != nil {
			return nil, err
		}
	}
	if t.header == nil {
		t.header = http.Header{}
	}
	return t.header, nil
}

// skipEnd reads the line end of the last chunk, which some clients leave out.
func (c *ChunkReader) skipEnd() error {
	if _, err := c.in.Peek(1); err == io.EOF {
		return nil
	}
	return c.lineEnd()
}

// readLines reads "name:value" lines up to a blank one. Clients differ in how the lines end:
//
//   - minio-go has \n\r\n behind a header: a blank line behind a bare \n is no end, though the body may end there;
//   - where nothing is announced, the body may end right behind the last chunk's line, and so it may behind the signature.
func (c *ChunkReader) readLines(t *tail) error {
	signed := c.chain != nil
	total, bare, blank := 0, false, false
	for {
		if _, err := c.in.Peek(1); err == io.EOF {
			mayEnd := t.signature != "" || !signed && (blank || total == 0 && len(c.o.Trailers) == 0)
			if !mayEnd {
				return incomplete()
			}
			return nil
		}
		line, err := c.trailerLine(maxTrailer - total)
		if err != nil {
			return err
		}
		total += len(line)
		text, whole := bytes.CutSuffix(line[:len(line)-1], []byte("\r"))
		if len(text) > 0 {
			if err := t.add(string(text), c); err != nil {
				return err
			}
			bare, blank = !whole, false
			continue
		}
		if done := t.signature != "" || !signed && !bare; done {
			return nil
		}
		bare, blank = false, true
	}
}

// trailerLine is like line, for what may be longer than the memory of the reader.
func (c *ChunkReader) trailerLine(most int) ([]byte, error) {
	var whole []byte
	for {
		part, err := c.in.ReadSlice('\n')
		whole = append(whole, part...)
		switch {
		case len(whole) > most, err == io.EOF:
			return nil, incomplete()
		case err != bufio.ErrBufferFull:
			return whole, err
		}
	}
}

// add takes one line. What breaks the framing is refused at once; what is only not announced, when all is read.
func (t *tail) add(text string, c *ChunkReader) error {
	if t.signature != "" || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return incomplete()
	}
	name, value, ok := strings.Cut(text, ":")
	name, value = strings.ToLower(name), strings.Trim(value, " \t")
	if name == trailerSignature && c.payload == SignedChunksTrailer {
		if len(value) != digestLength || !isLowerHex(value) {
			return incomplete()
		}
		t.signature = value
		return nil
	}
	t.canonical = append(t.canonical, name+":"+value+"\n"...)
	key := textproto.CanonicalMIMEHeaderKey(name)
	if _, twice := t.header[key]; !ok || twice || !slices.Contains(c.o.Trailers, key) {
		t.malformed = true
		return nil
	}
	if t.header == nil {
		t.header = http.Header{}
	}
	t.header[key] = []string{value}
	return nil
}
