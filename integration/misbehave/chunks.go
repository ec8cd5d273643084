package misbehave

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const (
	chunked         = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	chunkedTrailer  = chunked + "-TRAILER"
	unsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

var (
	errChunks    = errors.New("the chunks are not what was announced")
	errSignature = errors.New("the signature of a chunk is another")
	errTrailer   = errors.New("what is behind the chunks is not what x-amz-trailer announced")
)

// A chunkReader decodes aws-chunked ("Transferring payload in multiple chunks", and the same with trailing headers).
type chunkReader struct {
	in       *bufio.Reader
	links    *chain
	signed   bool
	trailing bool
	names    []string // of the trailer
	trailer  http.Header
}

func (x *request) newChunkReader() *chunkReader {
	form := x.r.Header.Get("X-Amz-Content-Sha256")
	c := &chunkReader{in: bufio.NewReader(x.r.Body), signed: form != unsignedTrailer, trailing: form != chunked, trailer: http.Header{}}
	if c.signed {
		c.links = newChain(x.s.options.Secret, x.r.Header)
	}
	if v := x.r.Header.Get("X-Amz-Trailer"); v != "" {
		c.names = strings.Split(v, ",")
	}
	return c
}

// readChunks returns the content, and beside an error what was read of it so far.
func (x *request) readChunks() ([]byte, error) {
	want, err := strconv.ParseInt(x.r.Header.Get("X-Amz-Decoded-Content-Length"), 10, 64)
	if err != nil {
		return nil, errChunks
	}
	c := x.newChunkReader()
	var data []byte
	for {
		chunk, err := c.next(want)
		if data = append(data, chunk...); err != nil {
			return data, err
		}
		if len(chunk) == 0 {
			break
		}
	}
	if err := c.end(); err != nil {
		return data, err
	}
	if rest, err := io.Copy(io.Discard, c.in); err != nil || rest > 0 || int64(len(data)) != want {
		return data, errChunks
	}
	x.trailer = c.trailer
	return data, nil
}

// next reads a chunk, of the last one, which is empty, the head alone.
func (c *chunkReader) next(most int64) ([]byte, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return nil, brokenOff(err)
	}
	size, signature, _ := strings.Cut(strings.TrimSuffix(line, "\r\n"), ";chunk-signature=")
	n, err := strconv.ParseInt(size, 16, 64)
	if err != nil || n < 0 || n > most || c.signed && len(signature) != 2*sha256.Size {
		return nil, errChunks
	}
	chunk := make([]byte, n+2) // CRLF
	if n == 0 {
		chunk = chunk[:0]
	} else if got, err := io.ReadFull(c.in, chunk); err != nil {
		return chunk[:min(int64(got), n)], brokenOff(err)
	}
	if chunk = chunk[:n]; !c.links.signed(chunk, signature) {
		return nil, errSignature
	}
	return chunk, nil
}

// end reads what is behind the last chunk: an empty line, and the trailer before it.
func (c *chunkReader) end() error {
	var lines strings.Builder // as they are signed
	signature := ""
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return brokenOff(err)
		}
		line = strings.TrimSuffix(line, "\r\n")
		name, value, _ := strings.Cut(line, ":")
		switch {
		case line == "":
			return c.checkTrailer(lines.String(), signature)
		case name == "x-amz-trailer-signature":
			signature = value
		default:
			lines.WriteString(line + "\n")
			c.trailer.Add(name, value)
		}
	}
}

func (c *chunkReader) checkTrailer(lines, signature string) error {
	for _, name := range c.names {
		if len(c.trailer.Values(name)) != 1 {
			return errTrailer
		}
	}
	switch {
	case len(c.trailer) != len(c.names):
		return errTrailer
	case c.signed && c.trailing && !c.links.signedTrailer(lines, signature):
		return errSignature
	}
	return nil
}

// brokenOff is a body that has the length that Content-Length said, and not its last chunk.
func brokenOff(err error) error {
	if err == io.EOF {
		return errChunks
	}
	return err
}

// A chain is that of the chunks' signatures: each covers the one before, the first the request's.
type chain struct {
	key      []byte
	scope    string // with the date
	previous string
}

func newChain(secret string, h http.Header) *chain {
	if secret == "" {
		return nil
	}
	authorization, date := h.Get("Authorization"), h.Get("X-Amz-Date")
	_, scope, _ := strings.Cut(authorization, "Credential=")
	scope, _, _ = strings.Cut(scope, ",")
	_, scope, _ = strings.Cut(scope, "/") // behind the access key
	_, seed, _ := strings.Cut(authorization, "Signature=")
	c := &chain{key: []byte("AWS4" + secret), scope: date + "\n" + scope + "\n", previous: seed}
	for part := range strings.SplitSeq(scope, "/") {
		c.key = mac(c.key, part)
	}
	return c
}

func (c *chain) signed(chunk []byte, signature string) bool {
	return c == nil || c.sign("AWS4-HMAC-SHA256-PAYLOAD\n", hexSum(nil)+"\n"+hexSum(chunk)) == signature
}

func (c *chain) signedTrailer(lines, signature string) bool {
	return c == nil || c.sign("AWS4-HMAC-SHA256-TRAILER\n", hexSum([]byte(lines))) == signature
}

func (c *chain) sign(algorithm, what string) string {
	c.previous = hex.EncodeToString(mac(c.key, algorithm+c.scope+c.previous+"\n"+what))
	return c.previous
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func mac(key []byte, message string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(message))
	return h.Sum(nil)
}
