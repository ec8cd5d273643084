package s3

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

const trailerSignatureIs = "x-amz-trailer-signature:"

// A trailer is the checksums that come behind a body. Their names are known from the start, their values once the body has ended. It goes to the store
// behind the chunks, under a signature of its own. See AWS, "Signature calculations for trailing headers".
type trailer struct {
	names  []string    // canonical and sorted; nil if there is no trailer
	values http.Header // the request's
}

// trailerOf is what a request has announced, nothing for most.
func trailerOf(r *http.Request) (trailer, error) {
	t := trailer{values: r.Trailer}
	for name := range r.Trailer {
		if _, ok := sizeOf(name); !ok {
			return trailer{}, &apiError{http.StatusBadRequest, "InvalidRequest", "The value specified in the x-amz-trailer header is not supported"}
		}
		t.names = append(t.names, name)
	}
	slices.Sort(t.names)
	return t, nil
}

// sizeOf is how long the value of a trailer will be, in bytes: it is not known when the length of the whole must be.
func sizeOf(name string) (size int, ok bool) {
	a, ok := checksum.ByHeader(name)
	return base64.StdEncoding.EncodedLen(a.Size), ok
}

// announced is the value of x-amz-trailer, and the trailer's part in the signature of the request.
func (t trailer) announced() string { return strings.ToLower(strings.Join(t.names, ",")) }

// length is how many bytes it has on the wire, with its signature.
func (t trailer) length() (n int64) {
	if t.names == nil {
		return 0
	}
	for _, name := range t.names {
		size, _ := sizeOf(name)
		n += int64(len(name) + len(":") + size + len(crlf))
	}
	return n + int64(len(trailerSignatureIs)+signatureLen+len(crlf))
}

// lines are the checksums, once the body has ended. The proxy has verified them; here only their length must be what was announced.
func (t trailer) lines() (lines []string, err error) {
	for _, name := range t.names {
		a, _ := checksum.ByHeader(name)
		value := t.values.Get(name)
		if _, ok := a.Decode(value); !ok || len(value) != base64.StdEncoding.EncodedLen(a.Size) {
			return nil, badBody("InvalidRequest", "Value for %s trailing header is invalid.", strings.ToLower(name))
		}
		lines = append(lines, strings.ToLower(name)+":"+value)
	}
	return lines, nil
}

// promote makes headers of the checksums behind a body that was read to its end: with a document they go ahead.
func (t trailer) promote(h http.Header) error {
	if _, err := t.lines(); err != nil {
		return err
	}
	for _, name := range t.names {
		h[name] = t.values[name]
	}
	return nil
}
