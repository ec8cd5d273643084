package sigv4

import (
	"bytes"
	"crypto/hmac"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The parameters of a signature in the query ("Authenticating Requests: Using Query Parameters").
const (
	queryAlgorithm = iota
	queryCredential
	queryDate
	queryExpires
	querySignedHeaders
	querySignature
	queryToken
	queryParameters // how many there are
)

var presignNames = [queryParameters]string{
	"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token",
}

// IsPresignParameter says whether a parameter of a presigned URL belongs to the signature, and to no header that the URL
// stands for. The case of the name does not matter.
func IsPresignParameter(name string) bool { return presignParameter([]byte(name)) >= 0 }

func presignParameter(name []byte) int {
	return slices.IndexFunc(presignNames[:], func(known string) bool { return equalFold(name, known) })
}

// maxExpires is a week ("Authenticating Requests: Using Query Parameters", X-Amz-Expires).
const maxExpires = 604800

func inQuery(format string, args ...any) error {
	return refuse(http.StatusBadRequest, badQuery, format, args...)
}

func inQueryCredential(format string, args ...any) error {
	return inQuery("Error parsing the X-Amz-Credential parameter; "+format, args...)
}

// presignedClaim reads a signature in the query, and takes X-Amz-Signature out of it: all other parameters are signed.
func (v *Verifier) presignedClaim(s *scratch, h http.Header) (c claim, err error) {
	c.presigned = true
	values, err := s.presignValues()
	if err != nil {
		return c, err
	}
	s.drop(querySignature)
	if err := c.auth.parsePresigned(values, v.region); err != nil {
		return c, err
	}
	if c.when, err = v.presignedTime(c.auth.date, values[queryDate], values[queryExpires]); err != nil {
		return c, err
	}
	if err := c.presignedPayload(s, h); err != nil {
		return c, err
	}
	return c, checkSigned(h, c.auth.signedHeaders, true)
}

// presignValues are the parameters of the signature, each of which must be there once, in S3's spelling; the token may be absent.
func (s *scratch) presignValues() (values [queryParameters]string, err error) {
	var there [queryParameters]bool
	for _, p := range s.pairs {
		name := s.query[p.start:p.middle]
		i := presignParameter(name)
		switch {
		case i < 0:
			continue
		case there[i]:
			return values, inQuery("%s stands more than once in the query.", presignNames[i])
		case string(name) != presignNames[i]:
			return values, inQuery("%s must be spelled %s.", name, presignNames[i])
		}
		there[i] = true
		values[i] = unescape(s.query[p.middle:p.end])
	}
	for _, value := range values[:queryToken] {
		if value == "" {
			return values, inQuery("Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.")
		}
	}
	return values, nil
}

func (auth *authorization) parsePresigned(values [queryParameters]string, region string) error {
	switch values[queryAlgorithm] {
	case algorithm:
	case algorithmV4A: // S3 would take it
		return inQuery("X-Amz-Algorithm only supports %q", algorithm)
	default:
		return inQuery(`X-Amz-Algorithm only supports "AWS4-HMAC-SHA256 and AWS4-ECDSA-P256-SHA256"`)
	}
	if err := auth.parseCredential(values[queryCredential], inQueryCredential); err != nil {
		return err
	}
	if err := auth.checkScope(region, inQueryCredential); err != nil {
		return err
	}
	auth.signedList = values[querySignedHeaders]
	if err := auth.parseSignedHeaders(inQuery); err != nil {
		return err
	}
	return auth.parseSignature(values[querySignature], inQuery)
}

func (v *Verifier) presignedTime(scopeDate, date, expires string) (when time.Time, err error) {
	when, ok := parseTime([]string{date})
	if !ok {
		return when, inQuery(`X-Amz-Date must be in the ISO8601 Long Format "yyyyMMdd'T'HHmmss'Z'"`)
	}
	if !sameDay(when, scopeDate) {
		return when, inQuery("Invalid credential date %q. This date is not the same as X-Amz-Date: %q.", scopeDate, when.Format(dateFormat))
	}
	seconds, err := strconv.ParseInt(expires, 10, 64)
	switch {
	case err != nil:
		return when, inQuery("X-Amz-Expires should be a number")
	case seconds < 0:
		return when, inQuery("X-Amz-Expires must be non-negative")
	case seconds == 0:
		return when, inQuery("X-Amz-Expires must be 1 second at least")
	case seconds > maxExpires:
		return when, inQuery("X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than %d seconds", maxExpires)
	}
	return when, v.checkWindow(when, time.Duration(seconds)*time.Second)
}

// presignedPayload reads what is announced of the body, in the query or in a header: mostly nothing, for who presigns does not
// know the body. In the canonical request stands UNSIGNED-PAYLOAD then. A header that the signature does not cover may be
// one that the signer knew of, or one that the sender added: both are tried.
func (c *claim) presignedPayload(s *scratch, h http.Header) error {
	values := slices.Clone(h["X-Amz-Content-Sha256"])
	covered := false
	if len(values) > 0 {
		_, covered = slices.BinarySearch(c.auth.signedHeaders, contentHash)
	}
	for _, p := range s.pairs {
		if equalFold(s.query[p.start:p.middle], contentHash) {
			values = append(values, unescape(s.query[p.middle:p.end]))
			covered = true
		}
	}
	c.signed[0] = unsignedPayload
	if len(values) == 0 {
		return nil
	}
	if slices.Sort(values); values[0] != values[len(values)-1] {
		return argument(contentHash, strings.Join(values, ","), "x-amz-content-sha256 stands in the request with several values")
	}
	var err error
	if c.payload, err = payloadNamed(values[0]); err != nil {
		return err
	}
	if c.payload.Chunked() {
		return argument(contentHash, values[0], "A presigned URL cannot be used with a body in chunks: please use %s or a SHA-256 digest.", unsignedPayload)
	}
	c.hash, c.signed[0] = values[0], values[0]
	if !covered && values[0] != unsignedPayload {
		c.signed[1] = unsignedPayload
	}
	return nil
}

// tokenWasAdded says whether a presigned URL would be valid without its security token: it was not given to who signed. S3 has a
// name of its own for that.
func (v *Verifier) tokenWasAdded(s *scratch, r *http.Request, spellings [][]byte, c *claim, key signingKey) bool {
	rest, toSign, canonical := slices.Clone(s.rest), slices.Clone(s.toSign), slices.Clone(s.canonical)
	defer func() { s.rest, s.toSign, s.canonical = rest, toSign, canonical }()
	if !s.drop(queryToken) {
		return false
	}
	for _, payload := range c.signed {
		if payload == "" || s.readRest(r, c.auth, payload) != nil {
			continue
		}
		for _, path := range spellings {
			s.request(r.Method, path)
			s.stringToSign(c.auth, c.when)
			if mac := sign(key[:], s.toSign); hmac.Equal(mac[:], c.auth.signature[:]) {
				return true
			}
		}
	}
	return false
}

// drop takes a parameter out of the query that is signed, and says whether it was there.
func (s *scratch) drop(parameter int) bool {
	before := len(s.pairs)
	s.pairs = slices.DeleteFunc(s.pairs, func(p pair) bool { return string(s.query[p.start:p.middle]) == presignNames[parameter] })
	return len(s.pairs) < before
}

// unescape decodes what appendParameter encoded.
func unescape(encoded []byte) string {
	if !bytes.Contains(encoded, []byte("%")) {
		return string(encoded)
	}
	out := make([]byte, 0, len(encoded))
	for i := 0; i < len(encoded); i++ {
		c := encoded[i]
		if c == '%' {
			c, _ = decode(string(encoded[i : i+3]))
			i += 2
		}
		out = append(out, c)
	}
	return string(out)
}
