package s3

import (
	"io"
	"strconv"
	"strings"
)

// chunkSize is how much of a body one signature covers: at least 8 KiB by S3's rules. It is what a streaming upload keeps in memory,
// twice.
const chunkSize = 64 << 10

const (
	signatureIs  = ";chunk-signature="
	signatureLen = 64
	crlf         = "\r\n"
)

// frameLength is the length of a chunk with n bytes of data.
func frameLength(n int64) int64 {
	return int64(len(strconv.FormatInt(n, 16))) + int64(len(signatureIs)) + signatureLen + int64(len(crlf)) + n + int64(len(crlf))
}

// endLength is the length of what ends a body in chunks: the empty one, in which the trailer is where data would be.
func endLength(t trailer) int64 { return frameLength(0) + t.length() }

// framedLength is the length of a body of n bytes in chunks, the empty one at its end included. A trailer comes on top.
func framedLength(n int64) int64 {
	total := n/chunkSize*frameLength(chunkSize) + frameLength(0)
	if rest := n % chunkSize; rest > 0 {
		total += frameLength(rest)
	}
	return total
}

// A framer puts a body into signed chunks (aws-chunked). A store that misses the empty chunk at the end, or finds a signature wrong,
// refuses the whole.
type framer struct {
	chain   chain
	trailer trailer
	chunk   []byte // data
	frame   []byte // on the wire
	sent    int    // of frame
	end     bool   // frame has the empty chunk
}

func newFramer(c chain, t trailer) *framer {
	return &framer{chain: c, trailer: t, chunk: make([]byte, chunkSize), frame: make([]byte, 0, frameLength(chunkSize)+endLength(t))}
}

// read is the source's, which lets one in at a time.
func (f *framer) read(s *source, p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	for f.sent == len(f.frame) {
		if f.end {
			return 0, io.EOF
		}
		if err := f.fill(s); err != nil {
			return 0, err
		}
	}
	n := copy(p, f.frame[f.sent:])
	f.sent += n
	return n, nil
}

// fill frames the next chunk, and with the last one the end. The trailer is looked at before that is let go.
func (f *framer) fill(s *source) error {
	var lines []string
	n := 0
	for n < len(f.chunk) && !f.end {
		m, err := s.next(f.chunk[n:])
		n += m
		if err == io.EOF {
			if lines, s.err = f.trailer.lines(); s.err != nil {
				return s.err
			}
			if err := s.release(); err != nil {
				return err
			}
			f.end = true
		} else if err != nil {
			return err
		}
	}
	f.frame, f.sent = f.frame[:0], 0
	f.add(f.chunk[:n])
	if f.end {
		f.finish(lines)
	}
	return nil
}

func (f *framer) add(data []byte) {
	f.head(data)
	f.frame = append(f.frame, data...)
	f.frame = append(f.frame, crlf...)
}

func (f *framer) head(data []byte) {
	f.frame = strconv.AppendInt(f.frame, int64(len(data)), 16)
	f.frame = append(f.frame, signatureIs...)
	f.frame = append(f.frame, f.chain.next(data)...)
	f.frame = append(f.frame, crlf...)
}

// finish adds the empty chunk, and the lines of the trailer with their signature.
func (f *framer) finish(lines []string) {
	f.head(nil)
	if lines != nil {
		signature := f.chain.last(strings.Join(lines, "\n") + "\n")
		f.frame = append(f.frame, strings.Join(append(lines, trailerSignatureIs+signature), crlf)...)
		f.frame = append(f.frame, crlf...)
	}
	f.frame = append(f.frame, crlf...)
}
