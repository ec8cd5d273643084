package misbehave

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

// readBody reads the whole body and verifies it: its length, its chunks and its digests. A body that breaks off costs the connection,
// and changes nothing.
func (x *request) readBody() ([]byte, *reply) {
	if refused := x.checkForm(); refused != nil {
		return nil, refused
	}
	var body []byte
	var err error
	if strings.HasPrefix(x.r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		body, err = x.readChunks()
	} else {
		body, err = io.ReadAll(x.r.Body)
	}
	switch {
	case err != nil && x.fault.Torn && len(body) > 0:
		return body, nil
	case errors.Is(err, errChunks):
		return nil, refuse(http.StatusBadRequest, "IncompleteBody", "The request body terminated unexpectedly: %v", err)
	case errors.Is(err, errTrailer):
		return nil, refuse(http.StatusBadRequest, "MalformedTrailerError", "The request contained trailing data that was not well-formed or did not conform to our published schema.")
	case errors.Is(err, errSignature):
		return nil, refuse(http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided: %v", err)
	case err != nil:
		panic(http.ErrAbortHandler)
	}
	if refused := x.checkDigests(body); refused != nil {
		return nil, refused
	}
	if x.fault.Cut > 0 && x.fault.Cut < len(body) {
		body = body[:x.fault.Cut]
	}
	return body, nil
}

// checkForm refuses a body before a byte of it is read.
func (x *request) checkForm() *reply {
	form := x.r.Header.Get("X-Amz-Content-Sha256")
	switch {
	case x.r.ContentLength < 0:
		return refuse(http.StatusNotImplemented, "NotImplemented", "A header you provided implies functionality that is not implemented: Transfer-Encoding")
	case len(x.r.Header["Content-Length"]) == 0 && x.op.Name == "PutObject":
		return refuse(http.StatusLengthRequired, "MissingContentLength", "You must provide the Content-Length HTTP header.")
	case x.s.options.NoTrailers && (form == chunkedTrailer || form == unsignedTrailer):
		return refuse(http.StatusNotImplemented, "NotImplemented", "this store has no trailers")
	case strings.HasPrefix(form, "STREAMING-") && form != chunked && form != chunkedTrailer && form != unsignedTrailer:
		return refuse(http.StatusNotImplemented, "NotImplemented", "this store does not have the form of body %s", form)
	}
	return x.checkAlgorithm()
}

// checkAlgorithm refuses the name of a checksum that does not come ("Checking object integrity").
func (x *request) checkAlgorithm() *reply {
	h := x.r.Header
	named := strings.ToLower(h.Get("X-Amz-Sdk-Checksum-Algorithm"))
	if named != "" && h.Get(checksum.HeaderPrefix+named) == "" && !strings.EqualFold(h.Get("X-Amz-Trailer"), checksum.HeaderPrefix+named) {
		return refuse(http.StatusBadRequest, "InvalidRequest", "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found.")
	}
	return nil
}

// checksumsOf are those that came before or behind a body.
func (x *request) checksumsOf() http.Header {
	all := http.Header{}
	for _, a := range checksum.All {
		name := a.Header()
		if values := slices.Concat(x.r.Header.Values(name), x.trailer.Values(name)); len(values) > 0 {
			all[name] = values
		}
	}
	return all
}

// checkDigests compares the digests that were sent ("Checking object integrity"). The checksums of a Complete are of the object to come.
func (x *request) checkDigests(body []byte) *reply {
	h := x.r.Header
	if v := h.Get("X-Amz-Content-Sha256"); isHash(v) && v != hexSum(body) {
		return refuse(http.StatusBadRequest, "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed.")
	}
	if sum := md5.Sum(body); h.Get("Content-Md5") != "" && h.Get("Content-Md5") != base64.StdEncoding.EncodeToString(sum[:]) {
		return refuse(http.StatusBadRequest, "BadDigest", "The Content-MD5 you specified did not match what we received.")
	}
	if x.op.Name == "CompleteMultipartUpload" {
		return nil
	}
	came := x.checksumsOf()
	for name, values := range came {
		a, _ := checksum.ByHeader(name)
		switch {
		case len(came) > 1 || len(values) > 1:
			return refuse(http.StatusBadRequest, "InvalidRequest", "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
		case values[0] != a.Of(body):
			return refuse(http.StatusBadRequest, "BadDigest", "The %s you specified did not match the calculated checksum.", a.Name)
		}
	}
	return nil
}

func isHash(v string) bool {
	b, err := hex.DecodeString(v)
	return err == nil && len(b) == sha256.Size
}

func md5Tag(content []byte) string {
	sum := md5.Sum(content)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}
