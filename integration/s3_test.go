package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// startBeforeGateway runs a proxy before a real S3 server, with anonymous clients and a bucket s3-bkt.
func startBeforeGateway(t *testing.T) *proxy {
	t.Helper()
	return startBefore(t, signedConfig(startGateway(t)))
}

// startBeforeQuickGateway takes the store to settle in a second: a lost registry is waited for ten times as long.
func startBeforeQuickGateway(t *testing.T) *proxy {
	t.Helper()
	return startBefore(t, strings.Replace(signedConfig(startGateway(t)), "path_style: true", "path_style: true, settle: 1s", 1))
}

func startBefore(t *testing.T, config string) *proxy {
	t.Helper()
	before, after, _ := strings.Cut(config, "access_keys:")
	_, after, _ = strings.Cut(after, "\n")
	p := newProxy(t, before+after)
	p.start(t)
	p.do(t, "PUT", "/s3-bkt", "").want(t, 200)
	return p
}

// TestLateUploadsToS3: as in the file store, whatever has come of an upload of 33 when 34 writes.
func TestLateUploadsToS3(t *testing.T) {
	t.Parallel()
	p := startBeforeGateway(t)
	for i, size := range []int{1, 100, 1 << 20, 20 << 20} {
		for _, sent := range slices.Compact([]int{size / 2, size - 1}) {
			for _, goesOn := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d of %d, goes on %v", sent, size, goesOn), func(t *testing.T) {
					key := fmt.Sprintf("/s3-bkt/jobs/%d-%d-%v/k", i, sent, goesOn)
					p.put(t, key, 32, "of 32").want(t, 200)
					c := p.dial(t)
					c.say("PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nX-Fence-Token: 33\r\n\r\n", key, p.addr, size)
					_, err := c.Write(lateBody(size)[:sent])
					must(t, "send", err)
					time.Sleep(50 * time.Millisecond) // until most of it is under way; no outcome depends on it

					start := time.Now()
					p.put(t, key, 34, "of 34").want(t, 200)
					if took := time.Since(start); took > 10*time.Second {
						t.Errorf("the new holder waited for %v", took)
					}
					if goesOn {
						_, _ = c.Write(lateBody(size)[sent:]) // it may be cut off already
					}
					c.learnsOf34(t, time.Now())
					p.holds(t, key, "of 34")
				})
			}
		}
	}
}

// TestCutBodiesToS3: a client that hangs up at each tenth, a body one byte short and one with another digest leave the old object.
func TestCutBodiesToS3(t *testing.T) {
	t.Parallel()
	p := startBeforeGateway(t)
	const key, old = "/s3-bkt/jobs/7/k", "of 34"
	p.put(t, key, 34, old).want(t, 200)
	for _, size := range []int{100, 3 << 20} {
		for tenth := range 10 {
			c := p.dial(t)
			c.say("PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nX-Fence-Token: 34\r\n\r\n", key, p.addr, size)
			_, _ = c.Write(lateBody(size)[:size*tenth/10])
			c.Close()
			p.holds(t, key, old)
		}
		c := p.dial(t)
		c.say("PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nX-Fence-Token: 34\r\n\r\n", key, p.addr, size)
		_, _ = c.Write(lateBody(size)[:size-1])
		c.Close()
		sum := sha256.Sum256([]byte("another body"))
		p.do(t, "PUT", key, string(lateBody(size)), "X-Fence-Token", "34", "X-Amz-Content-Sha256", hex.EncodeToString(sum[:])).
			refusedAs(t, 400, "XAmzContentSHA256Mismatch", "")
		p.holds(t, key, old)
	}
	p.put(t, key, 34, "whole").want(t, 200)
	p.holds(t, key, "whole")
}

// TestChangedRequestsAreKeptOut: what was signed is what is done. A request that was changed on its way moves nothing.
func TestChangedRequestsAreKeptOut(t *testing.T) {
	t.Parallel()
	p := newProxy(t, signedConfig(""))
	p.start(t)
	p.signed(t, "PUT", "/bucket", "", nil, nil).want(t, 200)
	p.signed(t, "PUT", "/bucket/jobs/7/a", "of 34", []string{"X-Fence-Token", "34"}, nil).want(t, 200)
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
		code   string
	}{
		"a header":           {func(r *http.Request) { r.Header.Set("X-Fence-Token", "98") }, 403, "SignatureDoesNotMatch"},
		"the path":           {func(r *http.Request) { r.URL.Path = "/bucket/jobs/8/a" }, 403, "SignatureDoesNotMatch"},
		"the token":          {func(r *http.Request) { r.URL.Path = "/~fence/98" + r.URL.Path }, 403, "SignatureDoesNotMatch"},
		"the query":          {func(r *http.Request) { r.URL.RawQuery = "x-id=PutObject" }, 403, "SignatureDoesNotMatch"},
		"the method":         {func(r *http.Request) { r.Method = "DELETE" }, 403, "SignatureDoesNotMatch"},
		"an unsigned header": {func(r *http.Request) { r.Header.Set("X-Amz-Meta-New", "x") }, 403, "AccessDenied"},
		"the body":           {func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("of 99")) }, 400, "XAmzContentSHA256Mismatch"},
		"an old request":     {nil, 403, "RequestTimeTooSkewed"},
	} {
		t.Run(name, func(t *testing.T) {
			p.signed(t, "PUT", "/bucket/jobs/7/a", "of 34", []string{"X-Fence-Token", "99"}, c.change).refusedAs(t, c.status, c.code, "")
		})
	}
	p.signed(t, "GET", "/bucket/jobs/8/a", "", nil, nil).want(t, 404)
	if a := p.signed(t, "GET", "/bucket/jobs/7/a", "", nil, nil).want(t, 200); string(a.body) != "of 34" {
		t.Errorf("%q", a.body)
	}
	p.signed(t, "PUT", "/bucket/jobs/7/a", "of 34", []string{"X-Fence-Token", "34"}, nil).want(t, 200) // the mark has not moved
}

// signed sends a request that the SDK's signer has signed, changed on its way; without a change it is said to be an hour old if change is
// nil and the token is 99.
func (p *proxy) signed(t *testing.T, method, path, body string, headers []string, change func(*http.Request)) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.addr+path, strings.NewReader(body))
	must(t, "make the request", err)
	when := time.Now()
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "99" && change == nil {
			when = when.Add(-time.Hour)
		}
	}
	sum := sha256.Sum256([]byte(body))
	digest := hex.EncodeToString(sum[:])
	r.Header.Set("X-Amz-Content-Sha256", digest)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	must(t, "sign", signer.SignHTTP(t.Context(), aws.Credentials{AccessKeyID: clientKey, SecretAccessKey: clientSecret}, r, digest, "s3", "us-east-1", when))
	if change != nil {
		change(r)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	must(t, "send", err)
	a, err := readAnswer(resp)
	must(t, "read the answer", err)
	return a
}
