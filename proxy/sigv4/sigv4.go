// Package sigv4 verifies the signatures of S3 requests (AWS Signature Version 4): in the Authorization header, in the query
// (presigned URLs), in the fields of a POST form, and in the chunks of a body (aws-chunked).
//
// A signature covers the method, the path, the query, the headers that it names and what x-amz-content-sha256 announces of the
// body. It is verified from the headers alone, before any byte of the body is read. That the body has the digest announced is
// for the reader of the body to see; that signed chunks are what they should be, for the [ChunkReader].
//
// The rules are those of the Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)": "Using the
// Authorization Header", "Using Query Parameters", "Signature calculations for the authorization header" in a single chunk, in
// multiple chunks, and with trailers; and "Browser-Based Uploads Using POST". The codes and sentences of the refusals are S3's:
// clients act on the first and print the second. Signature Version 2 and 4A are refused by name.
package sigv4

import (
	"crypto/hmac"
	"crypto/rand"
	"net/http"
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

// An Identity is what a valid signature proves.
type Identity struct {
	AccessKey     string
	Payload       Payload
	PayloadHash   string    // in hexadecimal, as the client sent it, where Payload is Hashed; else ""
	Region        string    // of the credential scope
	Time          time.Time // when the request was signed, by the client's clock
	SignedHeaders []string  // in lower case, sorted
	Presigned     bool      // the signature is in the query

	chain *chain // of the signatures of the chunks, where Payload is SignedChunks or SignedChunksTrailer; else nil
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
	c, err := v.claimOf(s, r.Header, inQuery)
	if err != nil {
		return Identity{}, err
	}
	key, err := v.checkSignature(s, r, target, &c)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{
		AccessKey: c.auth.accessKey, Payload: c.payload, Region: c.auth.region, Time: c.when, SignedHeaders: c.auth.signedHeaders,
		Presigned: c.presigned,
	}
	switch c.payload {
	case Hashed:
		id.PayloadHash = c.hash
	case SignedChunks, SignedChunksTrailer:
		id.chain = newChain(key, &c)
	}
	return id, nil
}

// A claim is what a request says of itself, before its signature was looked at.
type claim struct {
	auth      authorization
	when      time.Time
	presigned bool
	payload   Payload
	hash      string    // of the body, where payload is Hashed
	signed    [2]string // what may stand for the body in the canonical request; the second one is mostly ""
}

// claimOf reads how a request authenticates itself, in the header or in the query, and refuses all that no signature can mend.
func (v *Verifier) claimOf(s *scratch, h http.Header, inQuery queryMechanism) (c claim, err error) {
	inHeader, err := mechanism(h, inQuery)
	if err != nil {
		return c, err
	}
	if inHeader == "" {
		return v.presignedClaim(s, h)
	}
	if c.auth, err = parseAuthorization(inHeader); err != nil {
		return c, err
	}
	if err := c.auth.checkScope(v.region, malformed); err != nil {
		return c, err
	}
	if c.when, err = v.timeOf(h, c.auth.date); err != nil {
		return c, err
	}
	if c.payload, c.signed[0], err = payloadOf(h); err != nil {
		return c, err
	}
	c.hash = c.signed[0]
	return c, checkSigned(h, c.auth.signedHeaders, false)
}

// checkSignature compares the signature with the one that the secret makes, over each spelling of the path that the client may
// have signed. A key that does not exist is worked for like one whose secret is wrong; only the answer differs, as S3's does.
func (v *Verifier) checkSignature(s *scratch, r *http.Request, target target, c *claim) (signingKey, error) {
	key, settle := v.keyOf(c.auth)
	spellings, err := s.spellings(target.path)
	if err != nil {
		return key, err
	}
	for _, payload := range c.signed {
		if payload == "" {
			continue
		}
		if err := s.readRest(r, c.auth, payload); err != nil {
			return key, err
		}
		for _, path := range spellings {
			s.request(r.Method, path)
			s.stringToSign(c.auth, c.when)
			if mac := sign(key[:], s.toSign); hmac.Equal(mac[:], c.auth.signature[:]) && settle(true) {
				return key, nil
			}
		}
	}
	if !settle(false) {
		return key, unknownKey(c.auth.accessKey)
	}
	if c.presigned && v.tokenWasAdded(s, r, spellings, c, key) {
		return key, refuse(http.StatusBadRequest, "InvalidToken", "The provided token is malformed or otherwise invalid.")
	}
	s.request(r.Method, spellings[0]) // the one that S3 expects
	s.stringToSign(c.auth, c.when)
	return key, mismatch(c.auth, s)
}
