package sigv4

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const testTrailer = "X-Amz-Checksum-Crc32c"

// A chunkBody is content as a client puts it in chunks: the SDK's signer signs the chunks, and the rules of AWS's page the
// trailer, which it does not know.
type chunkBody struct {
	payload Payload
	content []byte
	sizes   []int  // of the chunks; what is left is one more
	value   string // of the trailer; "" none
}

// identity is who sends b, and the signature that the first chunk builds on.
func (b chunkBody) identity(t fataler) (id Identity, seed []byte) {
	t.Helper()
	hash := map[Payload]string{SignedChunks: streamingSigned, SignedChunksTrailer: streamingTrailer, UnsignedChunksTrailer: unsignedTrailer}[b.payload]
	r := parse(t, "PUT /b/k HTTP/1.1\nHost: proxy:9000\nX-Amz-Decoded-Content-Length: "+strconv.Itoa(len(b.content))+"\n\n")
	signSDK(t, r, hash, "")
	id, err := newTest(Options{}).Verify(r)
	if err != nil || id.Payload != b.payload || !id.Payload.Chunked() || id.PayloadHash != "" {
		t.Fatalf("%+v, %v", id, err)
	}
	_, signature, _ := strings.Cut(r.Header.Get("Authorization"), "Signature=")
	seed, err = hex.DecodeString(signature)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return id, seed
}

func (b chunkBody) chunks() (all [][]byte) {
	rest := b.content
	for _, size := range b.sizes {
		if size > 0 && size <= len(rest) {
			all, rest = append(all, rest[:size]), rest[size:]
		}
	}
	if len(rest) > 0 {
		all = append(all, rest)
	}
	return append(all, nil)
}

// wire is b as it goes over the wire, behind the seed signature.
func (b chunkBody) wire(t fataler, seed []byte) []byte {
	t.Helper()
	signer := v4.NewStreamSigner(aws.Credentials{AccessKeyID: testKey, SecretAccessKey: testSecret}, "s3", testRegion, seed)
	var out bytes.Buffer
	last := seed
	for _, chunk := range b.chunks() {
		fmt.Fprintf(&out, "%x", len(chunk))
		if b.payload != UnsignedChunksTrailer {
			signature, err := signer.GetSignature(context.Background(), nil, chunk, testTime)
			if err != nil {
				t.Fatalf("the SDK does not sign a chunk: %v", err)
			}
			fmt.Fprintf(&out, ";chunk-signature=%x", signature)
			last = signature
		}
		out.WriteString("\r\n")
		if len(chunk) > 0 {
			out.Write(chunk)
			out.WriteString("\r\n")
		}
	}
	if b.value != "" {
		line := strings.ToLower(testTrailer) + ":" + b.value
		out.WriteString(line + "\r\n")
		if b.payload == SignedChunksTrailer {
			out.WriteString("x-amz-trailer-signature:" + signTrailer(last, line+"\n") + "\r\n")
		}
	}
	out.WriteString("\r\n")
	return out.Bytes()
}

// signTrailer is "Signature Calculations …: Including Trailing Headers", the string to sign for the trailing header.
func signTrailer(previous []byte, canonical string) string {
	digest := sha256.Sum256([]byte(canonical))
	key := deriveKey(testSecret, "20130524", testRegion)
	return hexOf(sign(key[:], []byte(strings.Join([]string{
		"AWS4-HMAC-SHA256-TRAILER", "20130524T000000Z", "20130524/us-east-1/s3/aws4_request", hex.EncodeToString(previous), hex.EncodeToString(digest[:]),
	}, "\n"))))
}

func (b chunkBody) options() ChunkOptions {
	o := ChunkOptions{Length: int64(len(b.content))}
	if b.value != "" {
		o.Trailers = []string{testTrailer}
	}
	return o
}

func trailerOf(value string) http.Header {
	if value == "" {
		return http.Header{}
	}
	return http.Header{testTrailer: {value}}
}

// readAll reads with a buffer of size bytes, and returns what came before the error.
func readAll(r io.Reader, size int) (content []byte, err error) {
	buffer := make([]byte, size)
	for {
		n, err := r.Read(buffer)
		content = append(content, buffer[:n]...)
		if err == io.EOF {
			return content, nil
		}
		if err != nil {
			return content, err
		}
	}
}

// slowDecode is what a body in chunks says, by the rules of AWS's pages and what package sigv4 tolerates, written down a second
// time over the whole body. Nothing of it streams, and no signature is looked at. ok says whether it is as it should be.
func slowDecode(p Payload, wire []byte, o ChunkOptions) (content []byte, trailer http.Header, ok bool) {
	rest, before := string(wire), -1
	for {
		line, behind, found := strings.Cut(rest, "\r\n")
		if !found || strings.Contains(line, "\n") || len(line)+2 > maxChunkHeader {
			return content, nil, false
		}
		digits, _, _ := strings.Cut(line, ";")
		size, err := strconv.ParseUint(strings.TrimRight(digits, " \t"), 16, 63)
		if err != nil {
			return content, nil, false
		}
		rest = behind
		if size == 0 {
			break
		}
		if before >= 0 && before < minChunk || size > uint64(o.Length)-uint64(len(content)) || uint64(len(rest)) < size+2 || rest[size:size+2] != "\r\n" {
			return content, nil, false
		}
		content, rest, before = append(content, rest[:size]...), rest[size+2:], int(size)
	}
	if int64(len(content)) != o.Length {
		return content, nil, false
	}
	if p == SignedChunks {
		return content, http.Header{}, (rest == "\r\n" || rest == "") && len(o.Trailers) == 0
	}
	trailer, ok = slowTrailer(p, rest, o.Trailers)
	return content, trailer, ok
}

// slowTrailer reads what is behind the last chunk, up to its very end.
func slowTrailer(p Payload, rest string, announced []string) (trailer http.Header, ok bool) {
	trailer = http.Header{}
	left := maxTrailer
	signed, wasBare, wasBlank, first := false, false, false, true
	for ; ; first = false {
		if rest == "" { // cut where some clients end
			return trailer, (signed || wasBlank || first) && len(trailer) == len(announced)
		}
		line, behind, found := strings.Cut(rest, "\n")
		if left -= len(line) + 1; !found || left < 0 {
			return nil, false
		}
		rest = behind
		text, whole := strings.CutSuffix(line, "\r")
		if text == "" && (signed || !wasBare) {
			return trailer, rest == "" && len(trailer) == len(announced)
		}
		wasBare, wasBlank = text != "" && !whole, text == ""
		if text == "" {
			continue
		}
		name, value, found := strings.Cut(text, ":")
		if !found || signed || strings.ContainsFunc(text, func(r rune) bool { return r != '\t' && (r < ' ' || r == 0x7f) }) {
			return nil, false
		}
		name, value = http.CanonicalHeaderKey(strings.ToLower(name)), strings.Trim(value, " \t")
		switch {
		case name == "X-Amz-Trailer-Signature" && p == SignedChunksTrailer:
			if _, err := hex.DecodeString(value); err != nil || len(value) != 64 || value != strings.ToLower(value) {
				return nil, false
			}
			signed = true
		case !slices.Contains(announced, name) || trailer[name] != nil:
			return nil, false
		default:
			trailer[name] = []string{value}
		}
	}
}
