package s3

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

const (
	service    = "s3"
	emptyHash  = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	dateHeader = "X-Amz-Date"
	dateFormat = "20060102T150405Z"

	// A credential service that does not answer in this time fails the request, which nobody has seen.
	credentialsTimeout = 20 * time.Second
)

// alsoSigned are the headers that are signed beside host, content-length and x-amz-*: those that the signature has to have, and
// those that decide what a write does. What proxies on the way may rewrite, such as Range and Accept-Encoding, is left out.
var alsoSigned = map[string]bool{"Content-Type": true, "Content-Md5": true, "If-Match": true, "If-None-Match": true}

// sign signs the request, in the query where that can be, else in the headers.
func (x *exchange) sign(out *http.Request) error {
	who, err := x.s.retrieve(out.Context())
	if err != nil {
		return err
	}
	if at, expires, ok := x.expiring(out.Header); ok {
		x.queried = true
		x.addChecksum(out.Header)
		return x.s.signQuery(out, who, x.body.hash, at, expires)
	}
	links, err := x.s.signHeader(out, who, x.body.hash, time.Now())
	if x.body.chunked() {
		x.body.source.frames = newFramer(links, x.body.trailer)
	}
	return err
}

func (s *Store) retrieve(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
	defer cancel()
	return s.credentials.Retrieve(ctx)
}

// signed is the part of a request that its signature covers.
func signed(out *http.Request) *http.Request {
	part := &http.Request{Method: out.Method, Host: out.Host, ContentLength: out.ContentLength, Header: http.Header{}}
	target := *out.URL // the signer writes into it
	part.URL = &target
	for name, values := range out.Header {
		if strings.HasPrefix(name, "X-Amz-") || alsoSigned[name] {
			part.Header[name] = values
		}
	}
	return part
}

// signHeader signs in the headers and returns what the signatures of chunks build on. The signature lives for 15 minutes.
func (s *Store) signHeader(out *http.Request, who aws.Credentials, hash string, now time.Time) (chain, error) {
	out.Header.Set("X-Amz-Content-Sha256", hash)
	now = now.UTC()
	part := signed(out)
	if err := s.signer.SignHTTP(out.Context(), who, part, hash, service, s.o.Region, now); err != nil {
		return chain{}, err
	}
	for _, name := range []string{"Authorization", dateHeader, "X-Amz-Security-Token"} {
		if v, ok := part.Header[name]; ok {
			out.Header[name] = v
		}
	}
	_, seed, _ := strings.Cut(part.Header.Get("Authorization"), "Signature=")
	return newChain(who, s.o.Region, now, seed), nil
}

// A chain is a chain of chunk signatures: each covers the one before, the first the request's. See AWS, "Signature calculations
// for the authorization header: transferring payload in multiple chunks".
type chain struct {
	key      []byte
	scope    string // with the date
	previous string
}

func newChain(who aws.Credentials, region string, now time.Time, seed string) chain {
	stamp := now.Format(dateFormat)
	day := stamp[:8]
	key := []byte("AWS4" + who.SecretAccessKey)
	for _, part := range []string{day, region, service, "aws4_request"} {
		key = mac(key, part)
	}
	scope := strings.Join([]string{day, region, service, "aws4_request"}, "/")
	return chain{key: key, scope: stamp + "\n" + scope + "\n", previous: seed}
}

// next signs the next chunk.
func (c *chain) next(chunk []byte) string {
	return c.sign("AWS4-HMAC-SHA256-PAYLOAD\n", emptyHash+"\n", chunk)
}

// last signs the trailer ("Signature calculations for trailing headers").
func (c *chain) last(trailer string) string {
	return c.sign("AWS4-HMAC-SHA256-TRAILER\n", "", []byte(trailer))
}

func (c *chain) sign(algorithm, between string, content []byte) string {
	sum := sha256.Sum256(content)
	c.previous = hex.EncodeToString(mac(c.key, algorithm+c.scope+c.previous+"\n"+between+hex.EncodeToString(sum[:])))
	return c.previous
}

func mac(key []byte, message string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(message))
	return h.Sum(nil)
}
