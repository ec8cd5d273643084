package sigv4

import (
	"net/http"
	"strings"
)

// A Payload is what a signature says of the body.
type Payload int

const (
	// Unsigned: the body may be anything (UNSIGNED-PAYLOAD).
	Unsigned Payload = iota

	// Hashed: the body must have the SHA-256 digest that Identity.PayloadHash tells.
	Hashed

	// SignedChunks: the body comes in chunks, each with its own signature (STREAMING-AWS4-HMAC-SHA256-PAYLOAD).
	SignedChunks

	// SignedChunksTrailer: the same, and behind the last chunk come headers with a signature of their own
	// (STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER).
	SignedChunksTrailer

	// UnsignedChunksTrailer: the body comes in chunks, and behind the last one may come headers (STREAMING-UNSIGNED-PAYLOAD-TRAILER).
	UnsignedChunksTrailer
)

func (p Payload) String() string {
	switch p {
	case Unsigned:
		return "unsigned"
	case Hashed:
		return "hashed"
	case SignedChunks:
		return "signed chunks"
	case SignedChunksTrailer:
		return "signed chunks with a trailer"
	case UnsignedChunksTrailer:
		return "unsigned chunks with a trailer"
	}
	return "unknown"
}

// Chunked says whether the body is not the content but has it in chunks (aws-chunked), which a [ChunkReader] takes it out of.
func (p Payload) Chunked() bool {
	return p == SignedChunks || p == SignedChunksTrailer || p == UnsignedChunksTrailer
}

const (
	unsignedPayload  = "UNSIGNED-PAYLOAD"
	streaming        = "STREAMING-"
	streamingSigned  = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	streamingTrailer = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
	unsignedTrailer  = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	streamingV4A     = "STREAMING-AWS4-ECDSA-"
	digestLength     = 64 // hexadecimal digits of a SHA-256

	contentHash = "x-amz-content-sha256"
)

// Unverified is what x-amz-content-sha256 announces of the body of a request whose signature nobody looks at; Unsigned where
// it is not there. Its errors are those of [Verifier.Verify].
func Unverified(h http.Header) (Payload, error) {
	values := h["X-Amz-Content-Sha256"]
	if len(values) == 0 {
		return Unsigned, nil
	}
	p, _, err := payloadOf(h)
	return p, err
}

// payloadOf reads x-amz-content-sha256, which S3 demands of every request that is signed in a header ("Common Request Headers").
func payloadOf(h http.Header) (p Payload, announced string, err error) {
	values := h["X-Amz-Content-Sha256"]
	switch len(values) {
	case 0:
		return p, "", refuse(http.StatusBadRequest, invalidRequest, "Missing required header for this request: x-amz-content-sha256")
	case 1:
		p, err = payloadNamed(values[0])
		return p, values[0], err
	}
	return p, "", argument(contentHash, strings.Join(values, ","), "x-amz-content-sha256 stands %d times in the request: send it once", len(values))
}

func payloadNamed(announced string) (Payload, error) {
	switch announced {
	case unsignedPayload:
		return Unsigned, nil
	case streamingSigned:
		return SignedChunks, nil
	case streamingTrailer:
		return SignedChunksTrailer, nil
	case unsignedTrailer:
		return UnsignedChunksTrailer, nil
	}
	if len(announced) == digestLength && isHex(announced) {
		return Hashed, nil
	}
	if strings.HasPrefix(announced, streamingV4A) {
		return Unsigned, refuse(http.StatusNotImplemented, notImplemented,
			"The chunk encoding algorithm %.60s is not supported. (It is that of Signature Version 4A. Please use %s.)", announced, streamingSigned)
	}
	return Unsigned, argument(contentHash, announced,
		"x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, STREAMING-AWS4-HMAC-SHA256-PAYLOAD, "+
			"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER, STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD, STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER or a valid sha256 value.")
}

func isHex(s string) bool {
	for i := range len(s) {
		if _, ok := unhex(s[i]); !ok {
			return false
		}
	}
	return true
}

func isLowerHex(s string) bool { return isHex(s) && !strings.ContainsAny(s, "ABCDEF") }
