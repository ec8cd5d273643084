package s3

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

var (
	errCutShort = errors.New("the chunks have no end")
	errForged   = errors.New("a signature is wrong")
)

// chainOf is what the signatures in the body of a request build on.
func chainOf(r *http.Request) (*chain, error) {
	at, err := time.Parse(dateFormat, r.Header.Get(dateHeader))
	if err != nil {
		return nil, err
	}
	_, seed, _ := strings.Cut(r.Header.Get("Authorization"), "Signature=")
	c := newChain(aws.Credentials{SecretAccessKey: testSecret}, testRegion, at, seed)
	return &c, nil
}

// parseChunks takes a body in signed chunks apart, and the trailer behind it. A nil chain looks at no signature. What was read so far comes beside an
// error.
func parseChunks(body []byte, links *chain, hasTrailer bool) (data []byte, behind http.Header, err error) {
	for {
		head, after, found := bytes.Cut(body, []byte(crlf))
		size, signature, _ := strings.Cut(string(head), signatureIs)
		n, err := parseHex(size)
		if !found || err != nil {
			return data, nil, errCutShort
		}
		if n == 0 {
			body = after
			if links != nil && links.next(nil) != signature {
				return data, nil, errForged
			}
			break
		}
		if len(after) < n+2 || string(after[n:n+2]) != crlf {
			return append(data, after[:min(n, len(after))]...), nil, errCutShort
		}
		if links != nil && links.next(after[:n]) != signature {
			return data, nil, errForged
		}
		data, body = append(data, after[:n]...), after[n+2:]
	}
	if hasTrailer {
		return parseTrailer(data, body, links)
	}
	if string(body) != crlf {
		return data, nil, errCutShort
	}
	return data, nil, nil
}

func parseTrailer(data, body []byte, links *chain) ([]byte, http.Header, error) {
	lines, found := strings.CutSuffix(string(body), crlf+crlf)
	lines, signature, signed := strings.Cut(lines, trailerSignatureIs)
	if !found || !signed {
		return data, nil, errCutShort
	}
	behind := http.Header{}
	for line := range strings.SplitSeq(strings.TrimSuffix(lines, crlf), crlf) {
		name, value, _ := strings.Cut(line, ":")
		behind.Add(name, value)
	}
	if links != nil && links.last(strings.ReplaceAll(lines, crlf, "\n")) != signature {
		return data, nil, errForged
	}
	return data, behind, nil
}

// unframe takes the chunks apart, and checks their signatures and what the headers say of them.
func unframe(t *testing.T, g got) (data []byte, behind http.Header) {
	t.Helper()
	links, err := chainOf(g.Request)
	if err != nil {
		t.Fatal(err)
	}
	data, behind, err = parseChunks(g.body, links, g.Header.Get("X-Amz-Content-Sha256") == signedTrailer)
	if err != nil {
		t.Fatalf("%v: %d bytes of data, the end is %q", err, len(data), g.body[max(0, len(g.body)-300):])
	}
	return data, behind
}

func inChunks(h http.Header) bool {
	return strings.HasPrefix(h.Get("X-Amz-Content-Sha256"), "STREAMING-")
}
