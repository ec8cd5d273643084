package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// sdkSigner signs as the SDK's S3 client does.
func sdkSigner() *v4.Signer {
	return v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
}

var someKey = aws.Credentials{AccessKeyID: "AKIDALL", SecretAccessKey: testSecret}

// signHeader signs a request as a client would have.
func (r *remote) signHeader(in *http.Request) {
	r.Helper()
	in.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	if err := sdkSigner().SignHTTP(r.Context(), someKey, in, "UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now()); err != nil {
		r.Fatal(err)
	}
}

// signQuery makes a presigned URL of it, which is good for a minute.
func (r *remote) signQuery(in *http.Request) {
	r.Helper()
	in.URL.RawQuery = "X-Amz-Expires=60"
	signed, _, err := sdkSigner().PresignHTTP(r.Context(), someKey, in, "UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now())
	if err != nil {
		r.Fatal(err)
	}
	_, in.URL.RawQuery, _ = strings.Cut(signed, "?")
	in.RequestURI = in.URL.RequestURI()
}

// TestSignedHeadersOfTheWay: trap 4, headers that proxies like to rewrite may be signed (aws-sdk-go-v2 #1816 and #2722, litestream #1424, seaweedfs #6511 and
// #10282, gaul/s3proxy #726). They are what the client has sent when its signature is verified, and one that was changed on its way is seen.
func TestSignedHeadersOfTheWay(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixtureWith(t, restricted(nil), Backend{Handler: b})
	headers := []string{
		"Accept-Encoding: identity", "Range: bytes=0-9", "X-Forwarded-For: 10.0.0.1", "X-Forwarded-Host: other.example", "X-Forwarded-Proto: https",
		"X-Forwarded-Prefix: /s3", "Forwarded: for=10.0.0.1", "Via: 1.1 other", "Cache-Control: no-cache", "If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT",
	}
	for _, method := range []string{"GET", "PUT"} {
		body := map[string]string{"PUT": "content"}[method] // its Content-Length is signed, too
		for _, prefix := range []string{"", "/~fence/34"} {
			sign := func() *http.Request {
				r := f.request(method, prefix+"/b/a%20b", body, append(headers, "X-Fence-Token: 34", "X-Amz-Content-Sha256: UNSIGNED-PAYLOAD")...)
				if err := sdkSigner().SignHTTP(t.Context(), someKey, r, "UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now()); err != nil {
					t.Fatal(err)
				}
				return r
			}
			r := sign()
			_, signed, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
			signed, _, _ = strings.Cut(signed, ",")
			if resp, text := f.send(r); resp.StatusCode != 200 {
				t.Fatalf("%s, with %s signed: %d %s", method, signed, resp.StatusCode, text)
			}
			for _, h := range headers {
				name, value, _ := strings.Cut(h, ": ")
				if !strings.Contains(";"+signed+";", ";"+strings.ToLower(name)+";") {
					t.Errorf("%s was not even signed: %s", name, signed)
				}
				if got, _ := b.last(); got.header.Get(name) != value && !strings.Contains(name, "orwarded") && name != "Via" {
					t.Errorf("%s: the store got %q", h, got.header.Get(name))
				}
				r := sign()
				r.Header.Set(name, value+"x")
				if resp, _ := f.send(r); resp.StatusCode != http.StatusForbidden {
					t.Errorf("%s, %s changed on its way: %d, want 403", method, name, resp.StatusCode)
				}
			}
			if body != "" && !strings.Contains(signed, "content-length") {
				t.Errorf("the length was not signed: %s", signed)
			}
		}
	}
}

// TestSignedHost: trap 4, the host is what the client has asked for and not what another proxy has called us (seaweedfs #6086 and #8598).
func TestSignedHost(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, restricted(nil), Backend{Handler: &watcher{}})
	for sent, want := range map[string]int{"s3.example:9000": 200, "other.example": 403, "s3.example": 403} {
		r := f.request("PUT", "/b/a", "content", "X-Amz-Content-Sha256: UNSIGNED-PAYLOAD", "X-Forwarded-Host: s3.example:9000")
		r.Host = "s3.example:9000"
		if err := sdkSigner().SignHTTP(t.Context(), someKey, r, "UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now()); err != nil {
			t.Fatal(err)
		}
		r.Host = sent
		if resp, text := f.send(r); resp.StatusCode != want {
			t.Errorf("signed for s3.example:9000, sent to %s: %d %s, want %d", sent, resp.StatusCode, text, want)
		}
	}
}
