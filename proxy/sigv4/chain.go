package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// A chain is the signatures of one body: each covers its chunk and the signature before it, the first one that of the request
// ("Signature Calculations for the Authorization Header: Transferring Payload in Multiple Chunks").
type chain struct {
	key       signingKey
	accessKey string // for refusals
	scope     string // the timestamp and the credential scope, as they stand in the string to sign
	previous  [digestLength]byte
	toSign    []byte
}

// newChain begins behind the signature of a request, the seed signature.
func newChain(key signingKey, c *claim) *chain {
	ch := &chain{key: key, accessKey: c.auth.accessKey, scope: c.when.Format(timeFormat) + "\n" + c.auth.scope + "\n"}
	hex.Encode(ch.previous[:], c.auth.signature[:])
	return ch
}

const emptyDigest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// chunk verifies the signature of a chunk's content, in hexadecimal, and goes on to the next one.
func (c *chain) chunk(content []byte, signature string) error {
	c.begin("AWS4-HMAC-SHA256-PAYLOAD\n")
	c.toSign = append(c.toSign, emptyDigest+"\n"...)
	return c.end(content, signature)
}

// trailers verifies the signature of what stands behind the last chunk, each header as "name:value\n".
func (c *chain) trailers(canonical []byte, signature string) error {
	c.begin("AWS4-HMAC-SHA256-TRAILER\n")
	return c.end(canonical, signature)
}

func (c *chain) begin(algorithm string) {
	c.toSign = append(c.toSign[:0], algorithm...)
	c.toSign = append(c.toSign, c.scope...)
	c.toSign = append(c.toSign, c.previous[:]...)
	c.toSign = append(c.toSign, '\n')
}

func (c *chain) end(content []byte, signature string) error {
	digest := sha256.Sum256(content)
	c.toSign = hex.AppendEncode(c.toSign, digest[:])
	mac := sign(c.key[:], c.toSign)
	hex.Encode(c.previous[:], mac[:])
	if !hmac.Equal(c.previous[:], []byte(signature)) {
		return wrongSignature(c.accessKey, string(c.toSign), signature)
	}
	return nil
}
