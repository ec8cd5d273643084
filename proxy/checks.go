package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"net/http"
	"slices"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
)

// A check is a digest that the client has sent, and that the body must have.
type check struct {
	algorithm     checksum.Algorithm // of a checksum of S3
	header        string
	code, message string // S3's for a body that has another
	want          []byte
	hash          hash.Hash
	late          func() (want []byte, err error) // of a digest that stands behind the body, nil otherwise
}

// verify is asked when the hash has seen the whole body.
func (c check) verify() (err error) {
	want := c.want
	if c.late != nil {
		if want, err = c.late(); err != nil {
			return err
		}
	}
	got := c.hash.Sum(nil)
	if subtle.ConstantTimeCompare(got, want) == 1 {
		return nil
	}
	e := &sigv4.Error{Status: http.StatusBadRequest, Code: c.code, Message: c.message}
	switch {
	case c.header == "content-md5":
		e.Details = []sigv4.Detail{
			{Name: "CalculatedDigest", Value: base64.StdEncoding.EncodeToString(got)}, {Name: "ExpectedDigest", Value: hex.EncodeToString(want)},
		}
	case c.code == contentMismatch:
		e.Details = []sigv4.Detail{
			{Name: "ClientComputedContentSHA256", Value: hex.EncodeToString(want)}, {Name: "S3ComputedContentSHA256", Value: hex.EncodeToString(got)},
		}
	}
	return e
}

const contentMismatch = "XAmzContentSHA256Mismatch"

const (
	unsignedPayload  = "UNSIGNED-PAYLOAD"
	headerContentMD5 = "Content-Md5"
)

// aboutChecksums are headers that say something of checksums and are none.
var aboutChecksums = []string{checksum.HeaderPrefix + "Algorithm", checksum.HeaderPrefix + "Mode", checksum.HeaderPrefix + "Type"}

// ofAnother are the operations whose checksums in the header are those of an object to come, and not of their body.
var ofAnother = []string{"CreateMultipartUpload", "CompleteMultipartUpload", "CopyObject", "UploadPartCopy"}

// checks are all digests of the request's body: the SHA-256 that AWS signatures carry, Content-MD5 (RFC 1864), and S3's checksums, in the headers
// or behind the body.
func (x *exchange) checks() (checks []check, err error) {
	h := x.r.Header
	if v := h.Get(headerContentHash); v != "" && v != unsignedPayload {
		want, err := hex.DecodeString(v)
		if err != nil || len(want) != sha256.Size {
			return nil, badRequest(invalidArgument, "x-amz-content-sha256 %q is not a SHA-256 digest in hexadecimal", v)
		}
		checks = append(checks, check{
			header: "x-amz-content-sha256", code: contentMismatch, message: "The provided 'x-amz-content-sha256' header does not match what was computed.",
			want: want, hash: sha256.New(),
		})
	}
	if values, ok := h[headerContentMD5]; ok {
		a, _ := checksum.ByName("MD5")
		c := check{header: "content-md5", code: "BadDigest", message: "The Content-MD5 you specified did not match what we received.", hash: a.New()}
		if c.want, ok = oneSum(a, values); !ok {
			return nil, &sigv4.Error{
				Status: http.StatusBadRequest, Code: "InvalidDigest", Message: "The Content-Md5 you specified is not valid.",
				Details: []sigv4.Detail{{Name: "Content-MD5", Value: strings.Join(values, ",")}},
			}
		}
		checks = append(checks, c)
	}
	if slices.Contains(ofAnother, x.op.name) {
		return checks, nil
	}
	sums, err := x.checksums()
	return append(checks, sums...), err
}

// checksums are those of S3, of which a body has one.
func (x *exchange) checksums() (checks []check, err error) {
	for name := range x.r.Header {
		if a, ok := checksum.ByHeader(name); ok {
			checks = append(checks, newCheck(a))
		} else if strings.HasPrefix(name, checksum.HeaderPrefix) && !slices.Contains(aboutChecksums, name) {
			return nil, badRequest("InvalidRequest", "The algorithm type you specified in x-amz-checksum- header is invalid.")
		}
	}
	for name := range x.trailer {
		a, _ := checksum.ByHeader(name) // by announcedTrailers
		c := newCheck(a)
		c.late = func() ([]byte, error) {
			values := x.chunks.Trailer()[name]
			want, ok := oneSum(a, values)
			if !ok {
				return nil, badRequest("InvalidRequest", "Value for %s trailing header is invalid.", c.header)
			}
			x.trailer[name] = values
			return want, nil
		}
		checks = append(checks, c)
	}
	switch {
	case len(checks) > 1:
		return nil, badRequest("InvalidRequest", "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
	case len(checks) == 0:
		return nil, nil
	}
	c := &checks[0]
	if v := x.r.Header.Get("X-Amz-Sdk-Checksum-Algorithm"); v != "" && !strings.EqualFold("x-amz-checksum-"+v, c.header) {
		return nil, badRequest("InvalidRequest", "Value for x-amz-sdk-checksum-algorithm header is invalid.")
	}
	if c.late == nil {
		var ok bool
		if c.want, ok = oneSum(c.algorithm, x.r.Header.Values(c.header)); !ok {
			return nil, badRequest("InvalidRequest", "Value for %s header is invalid.", c.header)
		}
	}
	return checks, nil
}

func newCheck(a checksum.Algorithm) check {
	return check{
		algorithm: a, header: strings.ToLower(a.Header()), code: "BadDigest", message: "The " + a.Name + " you specified did not match the calculated checksum.", hash: a.New(),
	}
}

func oneSum(a checksum.Algorithm, values []string) ([]byte, bool) {
	if len(values) != 1 {
		return nil, false
	}
	return a.Decode(values[0])
}

// promoteTrailers makes headers of the checksums behind a body that is here, whole and verified: the store gets them with the body.
func (x *exchange) promoteTrailers() {
	if len(x.trailer) == 0 {
		return
	}
	if !slices.Contains(ofAnother, x.op.name) { // there the store would take it for the object's
		for name, values := range x.trailer {
			x.r.Header[name] = values
		}
	}
	x.trailer = nil
}
