package sigv4

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxTarget    = 32 << 10 // bytes of a request target
	maxPairs     = 256      // in a query
	maxCanonical = 64 << 10 // bytes of canonical headers
)

// A target is what the client asked for, as it stood in the request line.
type target struct{ path, query string }

// targetOf takes the target of a request apart and changes nothing: no byte decoded, no segment cleaned away.
func targetOf(r *http.Request) (t target, err error) {
	raw := r.RequestURI
	if raw == "" { // a request that no server read
		raw = r.URL.RequestURI()
	}
	if len(raw) > maxTarget {
		return t, refuse(http.StatusBadRequest, tooLarge, "The request target is longer than %d bytes.", maxTarget)
	}
	if !strings.HasPrefix(raw, "/") { // the absolute form (RFC 9112, 3.2.2)
		scheme, rest, ok := strings.Cut(raw, "://")
		if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
			return t, refuse(http.StatusBadRequest, invalidURI, "Couldn't parse the specified URI.")
		}
		raw = ""
		if i := strings.IndexAny(rest, "/?"); i >= 0 {
			raw = rest[i:]
		}
	}
	t.path, t.query, _ = strings.Cut(raw, "?")
	if t.path == "" {
		t.path = "/"
	}
	return t, nil
}

// A scratch is the memory in which one canonical request is built.
type scratch struct {
	query     []byte // encoded names and values, in the client's order
	pairs     []pair
	paths     []byte // the spellings of the path
	rest      []byte // of the canonical request, from the query on
	canonical []byte
	toSign    []byte
	spelled   [3][]byte
}

// A pair is a parameter: its encoded name is query[start:middle], its value query[middle:end].
type pair struct{ start, middle, end int }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// release gives a scratch back, unless one large request made it large.
func (s *scratch) release() {
	const most = 64 << 10
	if cap(s.query)+cap(s.paths)+cap(s.rest)+cap(s.canonical) <= most {
		scratches.Put(s)
	}
}

// readQuery takes the query apart into encoded pairs, and tells whether it attempts an authentication. Whatever
// [net/url.ParseQuery] would leave out is refused here: what is read from a query must be what was signed.
func (s *scratch) readQuery(raw string) (found queryMechanism, err error) {
	s.query, s.pairs = s.query[:0], s.pairs[:0]
	for raw != "" {
		var one string
		one, raw, _ = strings.Cut(raw, "&")
		if one == "" {
			continue
		}
		if len(s.pairs) == maxPairs {
			return found, refuse(http.StatusBadRequest, invalidURI, "The query has more than %d parameters.", maxPairs)
		}
		name, value, _ := strings.Cut(one, "=")
		p := pair{start: len(s.query)}
		ok := !strings.Contains(one, ";")
		if ok {
			s.query, ok = appendParameter(s.query, name)
		}
		p.middle = len(s.query)
		if ok {
			s.query, ok = appendParameter(s.query, value)
		}
		if !ok {
			return found, refuse(http.StatusBadRequest, invalidURI, "Couldn't parse the query of the specified URI: %.60q", one)
		}
		p.end = len(s.query)
		s.pairs = append(s.pairs, p)
		if m := mechanismOf(s.query[p.start:p.middle]); m != noMechanism && found != presigned {
			found = m
		}
	}
	slices.SortFunc(s.pairs, func(a, b pair) int {
		if c := bytes.Compare(s.query[a.start:a.middle], s.query[b.start:b.middle]); c != 0 {
			return c
		}
		return bytes.Compare(s.query[a.middle:a.end], s.query[b.middle:b.end])
	})
	return found, nil
}

// mechanismOf tells whether a parameter belongs to a signature in the query. Those of version 4 count in any case: to be
// refused once too often harms nobody.
func mechanismOf(name []byte) queryMechanism {
	switch {
	case len(name) < len("Signature"):
		return noMechanism
	case equalFold(name, "X-Amz-Signature"), equalFold(name, "X-Amz-Algorithm"), equalFold(name, "X-Amz-Credential"):
		return presigned
	case string(name) == "Signature", string(name) == "AWSAccessKeyId":
		return presignedV2
	}
	return noMechanism
}

func equalFold(name []byte, s string) bool {
	return len(name) == len(s) && strings.EqualFold(string(name), s)
}

// spellings are the forms of the path that a client may have signed, all of which lead to the same object:
//
//   - S3's: each byte decoded and encoded anew ("Signature Calculations …: Task 1", CanonicalURI and UriEncode), whatever
//     the client left unencoded on the wire;
//   - the same with %2F kept, for clients that sign what they send. Behind an endpoint's own prefix (no bucket's name begins
//     with a tilde) it is the only one, for there %2F and / may mean two things;
//   - what the client sent, byte by byte: SDKs sign the prefix of an endpoint as it was configured.
func (s *scratch) spellings(raw string) ([][]byte, error) {
	s.paths = slices.Grow(s.paths[:0], 7*len(raw)) // so that it stays where it is: 3 + 3 + 1
	all, ok := appendPath(s.paths, raw, true)
	if !ok {
		return nil, refuse(http.StatusBadRequest, invalidURI, "Couldn't parse the path of the specified URI.")
	}
	kept := all[:len(all):len(all)]
	spelled := s.spelled[:0]
	if bytes.Contains(kept, []byte("%2F")) && !bytes.HasPrefix(kept, []byte("/~")) {
		all, _ = appendPath(all, raw, false)
		spelled = append(spelled, all[len(kept):len(all):len(all)])
	}
	spelled = append(spelled, kept)
	if string(kept) != raw {
		all = append(all, raw...)
		spelled = append(spelled, all[len(all)-len(raw):])
	}
	return spelled, nil
}

// readRest builds the canonical request from the query on: what all spellings of the path share.
func (s *scratch) readRest(r *http.Request, auth authorization, payload string) error {
	b := s.rest[:0]
	for i, p := range s.pairs {
		if i > 0 {
			b = append(b, '&')
		}
		b = append(b, s.query[p.start:p.middle]...)
		b = append(b, '=')
		b = append(b, s.query[p.middle:p.end]...)
	}
	b = append(b, '\n')
	query := len(b)
	for _, name := range auth.signedHeaders {
		b = append(b, name...)
		b = append(b, ':')
		var ok bool
		if b, ok = appendHeader(b, r, name); !ok {
			return refuse(http.StatusBadRequest, invalidArgument, "The header %s has a control character.", name)
		}
		b = append(b, '\n')
		if len(b)-query > maxCanonical {
			return refuse(http.StatusBadRequest, tooLarge, "The signed headers are longer than %d bytes.", maxCanonical)
		}
	}
	b = append(b, '\n')
	b = append(b, auth.signedList...)
	b = append(b, '\n')
	s.rest = append(b, payload...)
	return nil
}

// request completes the canonical request.
func (s *scratch) request(method string, path []byte) {
	b := append(s.canonical[:0], method...)
	b = append(b, '\n')
	b = append(b, path...)
	b = append(b, '\n')
	s.canonical = append(b, s.rest...)
}

// stringToSign is "Signature Calculations …: Task 2: Create a String to Sign".
func (s *scratch) stringToSign(auth authorization, when time.Time) {
	b := append(s.toSign[:0], algorithm+"\n"...)
	b = when.AppendFormat(b, timeFormat)
	b = append(b, '\n')
	b = append(b, auth.scope...)
	b = append(b, '\n')
	digest := sha256.Sum256(s.canonical)
	s.toSign = hex.AppendEncode(b, digest[:])
}

// appendHeader appends the value that a header had before net/http took it out of the header, its repetitions joined by
// commas. A header that is not there is empty: clients name some that their HTTP library then leaves out (versitygw #457).
func appendHeader(b []byte, r *http.Request, name string) (_ []byte, ok bool) {
	values := headerValues(r.Header, name)
	if len(values) == 0 {
		switch name {
		case "host":
			return appendTrimmed(b, r.Host)
		case "content-length":
			if r.ContentLength > 0 {
				b = strconv.AppendInt(b, r.ContentLength, 10)
			}
			return b, true
		case "transfer-encoding":
			values = r.TransferEncoding
		case "trailer":
			values = trailers(r.Trailer)
		}
	}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		if b, ok = appendTrimmed(b, v); !ok {
			return b, false
		}
	}
	return b, true
}

// trailers are the names that the Trailer header announced. Their order and case are lost; this is how Go's client sends them.
func trailers(h http.Header) []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
