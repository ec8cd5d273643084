// Package sigv4 verifies the header signatures of S3 requests (AWS Signature Version 4), from the headers alone, before any
// byte of the body is read.
//
// A signature covers the method, the path, the query, the headers that it names and the digest of the body that
// x-amz-content-sha256 announces. That the body has that digest is for the reader of the body to see.
//
// The rules are those of the Amazon S3 API Reference, "Authenticating Requests: Using the Authorization Header (AWS Signature
// Version 4)" and "Signature Calculations for the Authorization Header: Transferring Payload in a Single Chunk"; the codes and
// sentences of the refusals those of its "Error responses". Presigned URLs and bodies in signed chunks are refused by name.
package sigv4

import (
	"crypto/hmac"
	"crypto/rand"
	"net/http"
	"strings"
	"time"
)

// Options of a [Verifier].
type Options struct {
	// Now is the clock; time.Now if nil.
	Now func() time.Time

	// Skew is the most by which the time of a request may differ from Now, either way; S3's 15 minutes if 0.
	Skew time.Duration

	// Region is the one that signatures must name; "" takes any.
	Region string
}

// A Verifier verifies signatures. It may be used by several goroutines at once.
type Verifier struct {
	lookup func(accessKeyID string) (secret string, ok bool)
	now    func() time.Time
	skew   time.Duration
	region string
	decoy  string // the secret of the keys that do not exist; nobody knows it
	keys   keyCache
}

// New returns a Verifier of signatures made with the secrets that lookup knows. It is asked anew for each request, so that a
// key that is withdrawn or changed counts at once, and must stand being called by several goroutines.
func New(lookup func(accessKeyID string) (secret string, ok bool), o Options) *Verifier {
	v := &Verifier{lookup: lookup, now: o.Now, skew: o.Skew, region: o.Region, decoy: rand.Text()}
	if v.now == nil {
		v.now = time.Now
	}
	if v.skew == 0 {
		v.skew = 15 * time.Minute
	}
	return v
}

// A Payload is what a signature says of the body.
type Payload int

const (
	// Unsigned: the body may be anything (UNSIGNED-PAYLOAD).
	Unsigned Payload = iota

	// Hashed: the body must have the SHA-256 digest that Identity.PayloadHash tells.
	Hashed
)

func (p Payload) String() string {
	if p == Hashed {
		return "hashed"
	}
	return "unsigned"
}

// An Identity is what a valid signature proves.
type Identity struct {
	AccessKey     string
	Payload       Payload
	PayloadHash   string    // in hexadecimal, as the client sent it, where Payload is Hashed; else ""
	Region        string    // of the credential scope
	Time          time.Time // when the request was signed, by the client's clock
	SignedHeaders []string  // in lower case, sorted
}

// Verify tells who signed a request, or why the signature does not count: every error is an [*Error], and a request that makes
// no attempt at authentication gets [ErrAnonymous]. It needs the request as net/http's server made it, RequestURI above all.
func (v *Verifier) Verify(r *http.Request) (Identity, error) {
	s := scratches.Get().(*scratch)
	defer s.release()

	target, err := targetOf(r)
	if err != nil {
		return Identity{}, err
	}
	inQuery, err := s.readQuery(target.query)
	if err != nil {
		return Identity{}, err
	}
	auth, err := mechanism(r.Header, inQuery)
	if err != nil {
		return Identity{}, err
	}
	if err := auth.checkScope(v.region); err != nil {
		return Identity{}, err
	}
	when, err := v.timeOf(r.Header, auth.date)
	if err != nil {
		return Identity{}, err
	}
	payload, announced, err := payloadOf(r.Header)
	if err != nil {
		return Identity{}, err
	}
	if err := checkSigned(r.Header, auth.signedHeaders); err != nil {
		return Identity{}, err
	}
	if err := v.checkSignature(s, r, target, auth, when, announced); err != nil {
		return Identity{}, err
	}
	id := Identity{AccessKey: auth.accessKey, Payload: payload, Region: auth.region, Time: when, SignedHeaders: auth.signedHeaders}
	if payload == Hashed {
		id.PayloadHash = announced
	}
	return id, nil
}

// checkSignature compares the signature with the one that the secret makes, over each spelling of the path that the client may
// have signed. A key that does not exist is worked for like one whose secret is wrong; only the answer differs, as S3's does.
func (v *Verifier) checkSignature(s *scratch, r *http.Request, target target, auth authorization, when time.Time, payload string) error {
	secret, known := v.lookup(auth.accessKey)
	if !known {
		secret = v.decoy
	}
	key, cached := v.keys.get(auth, secret)
	if !cached {
		key = deriveKey(secret, auth.date, auth.region)
	}
	if err := s.readRest(r, auth, payload); err != nil {
		return err
	}
	spellings, err := s.spellings(target.path)
	if err != nil {
		return err
	}
	for _, path := range spellings {
		s.request(r.Method, path)
		s.stringToSign(auth, when)
		if mac := sign(key[:], s.toSign); hmac.Equal(mac[:], auth.signature[:]) && known {
			if !cached {
				v.keys.put(auth, secret, key)
			}
			return nil
		}
	}
	if !known {
		return unknownKey(auth.accessKey)
	}
	s.request(r.Method, spellings[0]) // the one that S3 expects
	s.stringToSign(auth, when)
	return mismatch(auth, r.Method, target.path, s)
}

const (
	timeFormat = "20060102T150405Z" // ISO 8601, basic
	dateFormat = "20060102"
)

// timeOf is when the request was signed: x-amz-date, else Date ("Elements of an AWS API request signature", "Date"). A time in
// neither needs no place among the signed headers, for it is part of what is signed.
func (v *Verifier) timeOf(h http.Header, scopeDate string) (time.Time, error) {
	when, ok := parseTime(h["X-Amz-Date"])
	if len(h["X-Amz-Date"]) == 0 {
		when, ok = parseDate(h["Date"])
	}
	if !ok {
		return when, refuse(http.StatusForbidden, accessDenied, "AWS authentication requires a valid Date or x-amz-date header")
	}
	if !sameDay(when, scopeDate) {
		return when, malformed("Invalid credential date %q. This date is not the same as X-Amz-Date: %q.", scopeDate, when.Format(dateFormat))
	}
	now := v.now().UTC()
	if d := now.Sub(when); d > v.skew || d < -v.skew {
		return when, skewed(when, now, v.skew)
	}
	return when, nil
}

func sameDay(t time.Time, date string) bool {
	var b [len(dateFormat)]byte
	return string(t.AppendFormat(b[:0], dateFormat)) == date
}

// parseTime takes one timestamp and no other form of it: it stands in the string to sign as it is.
func parseTime(values []string) (t time.Time, ok bool) {
	if len(values) != 1 || len(values[0]) != len(timeFormat) {
		return t, false
	}
	t, err := time.Parse(timeFormat, values[0])
	return t, err == nil
}

// parseDate takes what may stand in a Date header: an HTTP date (RFC 9110), or a timestamp.
func parseDate(values []string) (t time.Time, ok bool) {
	if t, ok = parseTime(values); ok || len(values) != 1 {
		return t, ok
	}
	t, err := http.ParseTime(values[0])
	if err != nil {
		t, err = time.Parse(time.RFC1123Z, values[0])
	}
	return t.UTC(), err == nil
}

const (
	unsignedPayload = "UNSIGNED-PAYLOAD"
	streaming       = "STREAMING-"
	digestLength    = 64 // hexadecimal digits of a SHA-256
)

// payloadOf reads x-amz-content-sha256, which S3 demands of every signed request ("Common Request Headers").
func payloadOf(h http.Header) (p Payload, announced string, err error) {
	values := h["X-Amz-Content-Sha256"]
	if len(values) == 0 {
		return p, "", refuse(http.StatusBadRequest, "InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
	}
	switch v := values[0]; {
	case len(values) > 1:
		return p, "", refuse(http.StatusBadRequest, invalidArgument, "x-amz-content-sha256 stands %d times in the request: send it once", len(values))
	case v == unsignedPayload:
		return Unsigned, v, nil
	case strings.HasPrefix(v, streaming):
		return p, "", refuse(http.StatusNotImplemented, notImplemented, "x-amz-content-sha256: %.60s: bodies in signed chunks are not in this version", v)
	case len(v) == digestLength && isHex(v):
		return Hashed, v, nil
	}
	return p, "", refuse(http.StatusBadRequest, invalidArgument,
		"x-amz-content-sha256 must be UNSIGNED-PAYLOAD or a SHA-256 digest of %d hexadecimal digits", digestLength)
}

func isHex(s string) bool {
	for i := range len(s) {
		if _, ok := unhex(s[i]); !ok {
			return false
		}
	}
	return true
}
