package proxy

import (
	"io"
	"iter"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
)

// One request can be sent in several forms. Behind this file there is one: the bucket stands in the path, neither signature nor token in the
// query, and the body is the content and nothing else.

// bucketOf is "/bucket" where the bucket stands in the host's name (virtual-host style), else "".
func (h *Handler) bucketOf(host string) string {
	name := hostname(host)
	if bucket, ok := strings.CutSuffix(name, "."+h.Domain); ok && h.Domain != "" && bucket != "" {
		return "/" + bucket
	}
	return ""
}

// inDomain says whether a host is the domain of the virtual-host style, or a bucket's name below it.
func (h *Handler) inDomain(host string) bool {
	return h.Domain != "" && (hostname(host) == h.Domain || h.bucketOf(host) != "")
}

func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// A parameter is one of a query: as it stands there, its value, and its name as that of a header, which those of presigned URLs are.
type parameter struct{ raw, header, value string }

// parameters goes through a query. What cannot be decoded is no header's, and stays as it is.
func parameters(raw string) iter.Seq[parameter] {
	return func(yield func(parameter) bool) {
		for pair := range strings.SplitSeq(raw, "&") {
			p := parameter{raw: pair}
			name, value, _ := strings.Cut(pair, "=")
			if name, err := url.QueryUnescape(name); err == nil {
				if value, err := url.QueryUnescape(value); err == nil {
					p.header, p.value = textproto.CanonicalMIMEHeaderKey(name), value
				}
			}
			if !yield(p) {
				return
			}
		}
	}
}

// mayHaveHeaders is a quick no: the name of every parameter that is a header's has a hyphen or an escape.
func mayHaveHeaders(raw string) bool { return strings.ContainsAny(raw, "-%") }

// noVersion is what some SDKs say of no version.
const noVersion = "versionId="

// withoutSignature takes out of the query what does not belong to the operation: the token, and of a presigned URL the signature and what stands there as a
// header, which S3 takes for one ("Authenticating Requests: Using Query Parameters"). It does not look at the signature, and it changes a copy.
func withoutSignature(r *http.Request) (*http.Request, error) {
	if !mayHaveHeaders(r.URL.RawQuery) && !strings.HasSuffix(r.URL.RawQuery, noVersion) {
		return r, nil
	}
	presigned := isPresigned(r.URL.RawQuery)
	var kept []string
	moved := http.Header{}
	for p := range parameters(r.URL.RawQuery) {
		switch {
		case p.raw == noVersion && r.Method == http.MethodPut: // of a DELETE it is refused, which could mean another version
		case p.header == headerToken, p.header == headerHolder, presigned && sigv4.IsPresignParameter(p.header):
			if p.header == headerSessionToken {
				moved.Add(p.header, p.value)
			}
		case presigned && strings.HasPrefix(p.header, "X-Amz-"):
			moved.Add(p.header, p.value)
		default:
			kept = append(kept, p.raw)
		}
	}
	out := r.Clone(r.Context())
	out.URL.RawQuery = strings.Join(kept, "&")
	for name, values := range moved {
		if err := moveHeader(out.Header, name, values); err != nil {
			return out, err
		}
	}
	return out, nil
}

// isPresigned knows an attempt at a signature in the query by what package sigv4 knows it by.
func isPresigned(raw string) bool {
	for p := range parameters(raw) {
		switch p.header {
		case "X-Amz-Signature", "X-Amz-Algorithm", "X-Amz-Credential":
			return true
		}
	}
	return false
}

func moveHeader(h http.Header, name string, values []string) error {
	there, ok := h[name]
	switch {
	case len(values) > 1, ok && !slices.Equal(there, values):
		return badRequest(invalidArgument, "%s stands more than once in the request, with several values", strings.ToLower(name))
	case strings.ContainsFunc(values[0], isControl), !isToken(name):
		return badRequest(invalidArgument, "%q in the query cannot be a header: it has a character that none has", strings.ToLower(name))
	}
	h[name] = values
	return nil
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// isToken says whether a name can be a header's (RFC 9110, 5.6.2).
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// unchunkUnverified takes a body out of chunks whose signatures nobody can verify, for there are no access keys.
func (x *exchange) unchunkUnverified() error {
	if x.op.way == postsForm || x.op.way == preflight {
		return nil
	}
	payload, err := sigv4.Unverified(x.r.Header)
	if err != nil {
		return err
	}
	return x.unchunk(payload, func(body io.Reader, o sigv4.ChunkOptions) *sigv4.ChunkReader {
		return sigv4.NewChunks(payload, body, o)
	})
}

const (
	headerContentHash   = "X-Amz-Content-Sha256"
	headerDecodedLength = "X-Amz-Decoded-Content-Length"
	headerTrailers      = "X-Amz-Trailer"
)

// unchunk makes a body in chunks (aws-chunked) what is in them. That it is in chunks says x-amz-content-sha256, never the Content-Encoding,
// which some clients leave out, and some leave on objects.
func (x *exchange) unchunk(payload sigv4.Payload, decode func(io.Reader, sigv4.ChunkOptions) *sigv4.ChunkReader) error {
	switch {
	case !payload.Chunked():
		return nil
	case payload == sigv4.UnsignedChunksTrailer && !x.streams():
		return badRequest("InvalidRequest", "The value of x-amz-content-sha256 header is invalid.")
	}
	length, err := decodedLength(x.r.Header)
	if err != nil {
		return err
	}
	names, err := announcedTrailers(x.r.Header)
	if err != nil {
		return err
	}
	x.chunks = decode(x.wire, sigv4.ChunkOptions{Length: length, Trailers: names, Reserve: x.h.memory.take})
	if len(names) > 0 {
		x.trailer = http.Header{}
		for _, name := range names {
			x.trailer[name] = nil
		}
	}
	x.r = x.r.Clone(x.r.Context())
	x.r.Body, x.r.ContentLength = io.NopCloser(x.chunks), length
	h := x.r.Header
	h.Set(headerContentHash, unsignedPayload)
	h.Set("Content-Length", strconv.FormatInt(length, 10))
	h.Del(headerDecodedLength)
	h.Del(headerTrailers)
	return nil
}

// decodedLength is how long the content is that is in the chunks. Sentence and code are S3's.
func decodedLength(h http.Header) (int64, error) {
	values := h[headerDecodedLength]
	if len(values) == 1 {
		if n, err := strconv.ParseUint(values[0], 10, 63); err == nil {
			return int64(n), nil
		}
	}
	return 0, &s3Error{http.StatusLengthRequired, missingContentLength, "You must provide the Content-Length HTTP header."}
}

// announcedTrailers are the checksums that x-amz-trailer says will stand behind the content. S3 takes nothing else there.
func announcedTrailers(h http.Header) (names []string, err error) {
	for name := range strings.SplitSeq(strings.Join(h[headerTrailers], ","), ",") {
		name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
		if name == "" {
			continue
		}
		if _, ok := checksum.ByHeader(name); !ok {
			return nil, badRequest("InvalidRequest", "The value specified in the x-amz-trailer header is not supported")
		}
		names = append(names, name)
	}
	return names, nil
}
