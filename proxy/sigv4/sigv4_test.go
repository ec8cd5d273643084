package sigv4

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// The credentials and the day of AWS's published examples.
const (
	testKey    = "AKIAIOSFODNN7EXAMPLE"
	testSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	testRegion = "us-east-1"
	emptyHash  = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

var testTime = time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)

func lookupTest(id string) (string, bool) { return testSecret, id == testKey }

func newTest(o Options) *Verifier {
	if o.Now == nil {
		o.Now = func() time.Time { return testTime }
	}
	return New(lookupTest, o)
}

// signSDK signs a request as the Go SDK's S3 client does.
func signSDK(t fataler, r *http.Request, hash, session string) {
	t.Helper()
	r.Header.Set("X-Amz-Content-Sha256", hash)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	credentials := aws.Credentials{AccessKeyID: testKey, SecretAccessKey: testSecret, SessionToken: session}
	if err := signer.SignHTTP(context.Background(), credentials, r, hash, "s3", testRegion, testTime); err != nil {
		t.Fatalf("the SDK does not sign: %v", err)
	}
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// signed is the request of raw, its line ends \n, signed by this package's own rules over the headers named. For requests that
// the SDK would not make. The path in the signature is the one given.
func signed(t fataler, raw, path, headers string) *http.Request {
	t.Helper()
	r := parse(t, raw)
	auth := authorization{
		accessKey: testKey, scope: "20130524/us-east-1/s3/aws4_request", date: "20130524", region: testRegion,
		signedList: headers, signedHeaders: strings.Split(headers, ";"),
	}
	target, err := targetOf(r)
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := new(scratch)
	if _, err := s.readQuery(target.query); err != nil {
		t.Fatalf("%v", err)
	}
	if err := s.readRest(r, auth, r.Header.Get("X-Amz-Content-Sha256")); err != nil {
		t.Fatalf("%v", err)
	}
	s.request(r.Method, []byte(path))
	s.stringToSign(auth, testTime)
	key := deriveKey(testSecret, auth.date, auth.region)
	mac := sign(key[:], s.toSign)
	r.Header.Set("Authorization", header(auth, hexOf(mac)))
	return r
}

func hexOf(mac signingKey) string {
	var b strings.Builder
	for _, c := range mac {
		b.WriteByte(strings.ToLower(upperHex)[c>>4])
		b.WriteByte(strings.ToLower(upperHex)[c&15])
	}
	return b.String()
}

func header(auth authorization, signature string) string {
	return algorithm + " Credential=" + auth.accessKey + "/" + auth.scope + ", SignedHeaders=" + auth.signedList + ", Signature=" + signature
}

// parse reads a request as net/http's server does.
func parse(t fataler, raw string) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(raw, "\n", "\r\n"))))
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return r
}

func codeOf(err error) string {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrAnonymous):
		return "anonymous"
	case errors.As(err, &e):
		return e.Code
	}
	return "not an Error: " + err.Error()
}

func detail(e *Error, name string) string {
	for _, d := range e.Details {
		if d.Name == name {
			return d.Value
		}
	}
	return ""
}

// TestPublishedExamples are those of the Amazon S3 API Reference, "Signature Calculations for the Authorization Header:
// Transferring Payload in a Single Chunk (AWS Signature Version 4)".
func TestPublishedExamples(t *testing.T) {
	const putHash = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
	for _, c := range []struct{ name, request, hash, signedHeaders, signature string }{
		{
			"GET Object", "GET /test.txt HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\nRange: bytes=0-9\n", emptyHash,
			"host;range;x-amz-content-sha256;x-amz-date", "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
		},
		{
			"PUT Object", "PUT /test%24file.text HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\nDate: Fri, 24 May 2013 00:00:00 GMT\nx-amz-storage-class: REDUCED_REDUNDANCY\n", putHash,
			"date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class", "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
		},
		{
			"GET Bucket Lifecycle", "GET /?lifecycle HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\n", emptyHash,
			"host;x-amz-content-sha256;x-amz-date", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
		},
		{
			"GET Bucket (List Objects)", "GET /?max-keys=2&prefix=J HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\n", emptyHash,
			"host;x-amz-content-sha256;x-amz-date", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
		},
	} {
		raw := c.request + "x-amz-date: 20130524T000000Z\nx-amz-content-sha256: " + c.hash + "\n"
		authorization := algorithm + " Credential=" + testKey + "/20130524/us-east-1/s3/aws4_request,SignedHeaders=" + c.signedHeaders + ",Signature=" + c.signature
		id, err := newTest(Options{Region: testRegion}).Verify(parse(t, raw+"Authorization: "+authorization+"\n\n"))
		if err != nil || id.AccessKey != testKey || id.Payload != Hashed || id.PayloadHash != c.hash || !id.Time.Equal(testTime) || id.Region != testRegion ||
			strings.Join(id.SignedHeaders, ";") != c.signedHeaders {
			t.Errorf("%s: %+v, %v", c.name, id, err)
		}
		r := parse(t, raw+"\n")
		signSDK(t, r, c.hash, "")
		if got := r.Header.Get("Authorization"); !strings.HasSuffix(got, c.signature) {
			t.Errorf("%s: the SDK signs %s, AWS's page %s", c.name, got, c.signature)
		}
		other := flip(c.signature)
		_, err = newTest(Options{}).Verify(parse(t, raw+"Authorization: "+strings.Replace(authorization, c.signature, other, 1)+"\n\n"))
		if codeOf(err) != "SignatureDoesNotMatch" {
			t.Errorf("%s, one digit changed: %v", c.name, err)
		}
	}
}

// flip changes the last digit of a signature.
func flip(signature string) string {
	last := byte('0')
	if signature[len(signature)-1] == last {
		last = '1'
	}
	return signature[:len(signature)-1] + string(last)
}

// TestCalculation is the string to sign and the canonical request that the "GET Object" example prints.
func TestCalculation(t *testing.T) {
	r := parse(t, "GET /test.txt HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\nRange: bytes=0-9\nx-amz-date: 20130524T000000Z\n"+
		"x-amz-content-sha256: "+emptyHash+"\nAuthorization: "+algorithm+" Credential="+testKey+"/20130524/us-east-1/s3/aws4_request, "+
		"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, Signature="+emptyHash+"\n\n")
	_, err := newTest(Options{}).Verify(r)
	var e *Error
	if !errors.As(err, &e) || e.Status != 403 || e.Code != "SignatureDoesNotMatch" {
		t.Fatalf("%v", err)
	}
	want := []Detail{
		{"AWSAccessKeyId", testKey},
		{"StringToSign", "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n7344ae5b7ee6c3e7e6b0fe0640412a37625d1fbfff95c48bbb2dc43964946972"},
		{"CanonicalRequest", "GET\n/test.txt\n\nhost:examplebucket.s3.amazonaws.com\nrange:bytes=0-9\nx-amz-content-sha256:" + emptyHash +
			"\nx-amz-date:20130524T000000Z\n\nhost;range;x-amz-content-sha256;x-amz-date\n" + emptyHash},
	}
	for _, d := range want {
		if got := detail(e, d.Name); got != d.Value {
			t.Errorf("%s: %q, want %q", d.Name, got, d.Value)
		}
	}
	for _, d := range append(e.Details, Detail{"Error", e.Error()}) {
		if strings.Contains(d.Value, testSecret) || strings.Contains(d.Value, "f0e8bdb87c96") {
			t.Errorf("it leaks: %s", d)
		}
	}
}
