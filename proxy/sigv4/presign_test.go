package sigv4

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/encoding/httpbinding"
	"pgregory.net/rapid"
)

// presignedExample is the one of the Amazon S3 API Reference, "Authenticating Requests: Using Query Parameters".
const presignedExample = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request" +
	"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"

func getExample(t fataler, target string, headers ...string) *http.Request {
	return parse(t, "GET "+target+" HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\n"+strings.Join(append(headers, "\n"), "\n"))
}

func TestPublishedPresignedURL(t *testing.T) {
	id, err := newTest(Options{Region: testRegion}).Verify(getExample(t, presignedExample))
	if err != nil || id.AccessKey != testKey || !id.Presigned || id.Payload != Unsigned || id.PayloadHash != "" || !id.Time.Equal(testTime) || id.Region != testRegion ||
		strings.Join(id.SignedHeaders, ";") != "host" {
		t.Errorf("%+v, %v", id, err)
	}
	_, err = newTest(Options{}).Verify(getExample(t, presignedExample[:len(presignedExample)-1]+"5"))
	var e *Error
	if !errors.As(err, &e) || e.Status != 403 || e.Code != "SignatureDoesNotMatch" {
		t.Fatalf("one digit changed: %v", err)
	}
	want := "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n3bfa292879f6447bbcda7001decf97f4a54dc650c8942174ae0a9121cf58ad04"
	if got := detail(e, "StringToSign"); got != want {
		t.Errorf("string to sign %q, want %q", got, want)
	}
}

// TestPresignedOrder: the parameters may come in any order and encoded as the client likes.
func TestPresignedOrder(t *testing.T) {
	path, query, _ := strings.Cut(presignedExample, "?")
	parts := strings.Split(query, "&")
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	for _, target := range []string{
		path + "?" + strings.Join(parts, "&"),
		strings.ReplaceAll(presignedExample, "%2F", "/"),
		strings.ReplaceAll(presignedExample, "X-Amz-S", "X%2DAmz%2dS"),
		presignedExample + "&&",
	} {
		if _, err := newTest(Options{}).Verify(getExample(t, target)); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// TestPresignedRefusals has each reason for which a presigned URL is refused, in S3's words: clients and test suites compare them.
func TestPresignedRefusals(t *testing.T) {
	const missing = "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters."
	const credential = "Error parsing the X-Amz-Credential parameter; "
	with := func(old, new string) string { return strings.Replace(presignedExample, old, new, 1) }
	without := func(name string) string {
		path, query, _ := strings.Cut(presignedExample, "?")
		var kept []string
		for part := range strings.SplitSeq(query, "&") {
			if !strings.HasPrefix(part, name+"=") {
				kept = append(kept, part)
			}
		}
		return path + "?" + strings.Join(kept, "&")
	}
	for _, c := range []struct {
		name, target string
		status       int
		code, says   string
		headers      []string
	}{
		{"no algorithm", without("X-Amz-Algorithm"), 400, badQuery, missing, nil},
		{"no credential", without("X-Amz-Credential"), 400, badQuery, missing, nil},
		{"no date", without("X-Amz-Date"), 400, badQuery, missing, nil},
		{"no expiry", without("X-Amz-Expires"), 400, badQuery, missing, nil},
		{"no signed headers", without("X-Amz-SignedHeaders"), 400, badQuery, missing, nil},
		{"no signature", without("X-Amz-Signature"), 400, badQuery, missing, nil},
		{"empty signature", without("X-Amz-Signature") + "&X-Amz-Signature=", 400, badQuery, missing, nil},
		{"date twice", presignedExample + "&X-Amz-Date=20130524T000000Z", 400, badQuery, "X-Amz-Date stands more than once in the query.", nil},
		{"signature twice", presignedExample + "&X-Amz-Signature=" + emptyHash, 400, badQuery, "X-Amz-Signature stands more than once in the query.", nil},
		{"signature twice, in another case", presignedExample + "&x-amz-signature=" + emptyHash, 400, badQuery, "X-Amz-Signature stands more than once in the query.", nil},
		{"another case", with("X-Amz-Expires", "x-amz-expires"), 400, badQuery, "x-amz-expires must be spelled X-Amz-Expires.", nil},
		{"version 4A", with(algorithm, algorithmV4A), 400, badQuery, `X-Amz-Algorithm only supports "AWS4-HMAC-SHA256"`, nil},
		{"another algorithm", with(algorithm, "AWS4-SHA256"), 400, badQuery, `X-Amz-Algorithm only supports "AWS4-HMAC-SHA256 and AWS4-ECDSA-P256-SHA256"`, nil},
		{"three parts", with(testKey+"%2F20130524%2Fus-east-1%2Fs3%2Faws4_request", "access/hello/world"), 400, badQuery, credential + badCredential, nil},
		{"terminator", with("aws4_request", "aws5_request"), 400, badQuery, credential + `incorrect terminal "aws5_request". This endpoint uses "aws4_request".`, nil},
		{"service", with("%2Fs3%2F", "%2Fsns%2F"), 400, badQuery, credential + `incorrect service "sns". This endpoint belongs to "s3".`, nil},
		{"region", with("us-east-1", "us-west-1"), 400, badQuery, credential + `the region "us-west-1" is wrong; expecting "us-east-1"`, nil},
		{"credential date", with("20130524", "32234Z34"), 400, badQuery, credential + `incorrect date format "32234Z34". This date in the credential must be in the format "yyyyMMdd".`, nil},
		{"another day", with("20130524", "20060102"), 400, badQuery, `Invalid credential date "20060102". This date is not the same as X-Amz-Date: "20130524".`, nil},
		{"date", with("20130524T000000Z", "20130524"), 400, badQuery, `X-Amz-Date must be in the ISO8601 Long Format "yyyyMMdd'T'HHmmss'Z'"`, nil},
		{"expiry no number", with("86400", "soon"), 400, badQuery, "X-Amz-Expires should be a number", nil},
		{"expiry of a fraction", with("86400", "1.5"), 400, badQuery, "X-Amz-Expires should be a number", nil},
		{"expiry below nothing", with("86400", "-3"), 400, badQuery, "X-Amz-Expires must be non-negative", nil},
		{"expiry of nothing", with("86400", "0"), 400, badQuery, "X-Amz-Expires must be 1 second at least", nil},
		{"expiry beyond a week", with("86400", "604801"), 400, badQuery, "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than 604800 seconds", nil},
		{"signed headers", with("=host", "=Host"), 400, badQuery, "SignedHeaders must be header names in lower case, sorted, each once.", nil},
		{"host not signed", with("=host", "=x-amz-meta-a"), 403, accessDenied, "There were headers present in the request which were not signed", []string{"x-amz-meta-a: 1"}},
		{"headers not signed", presignedExample, 403, accessDenied, "There were headers present in the request which were not signed", []string{"X-Amz-Tagging: a=b", "X-Amz-Copy-Source: b/k"}},
		{"short signature", presignedExample[:len(presignedExample)-1], 400, badQuery, "the Signature must be 64 lowercase hexadecimal digits.", nil},
		{"a key that is unknown", with(testKey, "AKIAUNKNOWN"), 403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.", nil},
		{"a token behind the signature", presignedExample + "&X-Amz-Security-Token=my_token", 400, "InvalidToken", "The provided token is malformed or otherwise invalid.", nil},
		{"a token, and another path", "/b" + presignedExample + "&X-Amz-Security-Token=my_token", 403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. Check your key and signing method.", nil},
		{"another parameter", presignedExample + "&acl", 403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. Check your key and signing method.", nil},
		{"both mechanisms", presignedExample, 400, invalidArgument, "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified", []string{"Authorization: " + valid}},
		{"chunks", presignedExample, 400, invalidArgument, "A presigned URL cannot be used with a body in chunks: please use UNSIGNED-PAYLOAD or a SHA-256 digest.", []string{"X-Amz-Content-Sha256: " + streamingSigned}},
		{"chunks, in the query", presignedExample + "&X-Amz-Content-Sha256=" + unsignedTrailer, 400, invalidArgument, "A presigned URL cannot be used with a body in chunks: please use UNSIGNED-PAYLOAD or a SHA-256 digest.", nil},
		{"two digests", presignedExample + "&X-Amz-Content-Sha256=" + emptyHash, 400, invalidArgument, "x-amz-content-sha256 stands in the request with several values", []string{"X-Amz-Content-Sha256: UNSIGNED-PAYLOAD"}},
	} {
		id, err := newTest(Options{Region: testRegion}).Verify(getExample(t, c.target, c.headers...))
		var e *Error
		if !errors.As(err, &e) || e.Status != c.status || e.Code != c.code || e.Message != c.says || id.AccessKey != "" {
			t.Errorf("%s: %v; want %d %s: %s", c.name, err, c.status, c.code, c.says)
		}
	}
}

// TestPresignedWindow: a presigned URL is good from its date, less the skew, to its last second; where it is not, S3 says when.
func TestPresignedWindow(t *testing.T) {
	for _, c := range []struct {
		now  time.Duration // after the date
		says string
	}{
		{0, ""},
		{-15 * time.Minute, ""},
		{-15*time.Minute - time.Second, "Request is not valid yet."},
		{24 * time.Hour, ""},
		{24*time.Hour + time.Second, "Request has expired."},
		{30 * 24 * time.Hour, "Request has expired."},
	} {
		v := newTest(Options{Now: func() time.Time { return testTime.Add(c.now) }})
		_, err := v.Verify(getExample(t, presignedExample))
		var e *Error
		if errors.As(err, &e) != (c.says != "") || c.says != "" && (e.Status != 403 || e.Code != accessDenied || e.Message != c.says) {
			t.Errorf("%v after its date: %v; want %q", c.now, err, c.says)
		}
		if c.says == "Request has expired." && (detail(e, "X-Amz-Expires") != "86400" || detail(e, "Expires") != "2013-05-25T00:00:00Z" ||
			detail(e, "ServerTime") != testTime.Add(c.now).Format(time.RFC3339)) {
			t.Errorf("%v after its date: %q", c.now, e.Details)
		}
	}
}

func TestIsPresignParameter(t *testing.T) {
	for name, want := range map[string]bool{
		"X-Amz-Algorithm": true, "X-Amz-Credential": true, "X-Amz-Date": true, "X-Amz-Expires": true, "X-Amz-Signedheaders": true, "x-amz-signature": true,
		"X-Amz-Security-Token": true, "X-Amz-Content-Sha256": false, "x-id": false, "X-Amz-Signatur": false, "": false,
	} {
		if IsPresignParameter(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// A presignedShot is a shot whose signature is in the query, and what the verifier must find out about its body.
type presignedShot struct {
	shot
	payload Payload
	hash    string
}

// drawPresigned makes a request and lets the SDK presign it, with the digest of the body announced in each way that there is.
func drawPresigned(t *rapid.T, base *url.URL) presignedShot {
	key := "/b/" + drawText.Draw(t, "key")
	prefix := drawPrefix.Draw(t, "prefix")
	escaped := prefix + httpbinding.EscapePath(key, false)
	query := url.Values{"X-Amz-Expires": {"60"}}
	for range rapid.IntRange(0, 3).Draw(t, "pairs") {
		query.Add("n"+drawName.Draw(t, "name"), drawText.Draw(t, "parameter"))
	}
	r := &http.Request{
		Method: drawMethod.Draw(t, "method"), Header: http.Header{}, Host: base.Host,
		URL: &url.URL{Scheme: base.Scheme, Host: base.Host, Path: prefix + key, RawPath: escaped, RawQuery: query.Encode()},
	}
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(headers), 0, 4, rapid.ID).Draw(t, "headers") {
		r.Header.Add(name, drawValue.Draw(t, "value"))
	}
	s := presignedShot{shot: shot{path: loosen(t, escaped)}}
	if r.Method == "PUT" || r.Method == "POST" {
		s.body = bytes.Repeat([]byte("b"), rapid.IntRange(0, 3).Draw(t, "body"))
	}
	r.ContentLength = int64(len(s.body))
	digest := sha256.Sum256(s.body)
	hash := hex.EncodeToString(digest[:])
	how := rapid.SampledFrom([]string{"unsigned", "announced", "a signed header", "in the query", "signed, added by the sender", "added by the sender"}).Draw(t, "digest")
	signed := hash
	switch how {
	case "unsigned", "announced", "added by the sender":
		signed = unsignedPayload
	}
	switch how {
	case "announced":
		r.Header.Set(contentHash, unsignedPayload)
	case "a signed header":
		r.Header.Set(contentHash, hash)
	case "in the query":
		r.URL.RawQuery += "&X-Amz-Content-Sha256=" + hash
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping = true
		o.DisableHeaderHoisting = rapid.Bool().Draw(t, "headers as headers")
	})
	credentials := aws.Credentials{AccessKeyID: testKey, SecretAccessKey: testSecret, SessionToken: rapid.SampledFrom([]string{"", "fence=34", "FwoGZXIvYXdzEBY//+="}).Draw(t, "session token")}
	uri, sent, err := signer.PresignHTTP(context.Background(), credentials, r, signed, "s3", testRegion, testTime)
	if err != nil {
		t.Fatalf("the SDK does not presign: %v", err)
	}
	_, s.query, _ = strings.Cut(uri, "?")
	r.Header = http.Header{}
	for name, values := range sent {
		if name != "Host" && name != "Content-Length" {
			r.Header[name] = values
		}
	}
	if strings.Contains(how, "sender") {
		r.Header.Set(contentHash, hash)
	}
	s.request = r
	if how != "unsigned" && how != "announced" {
		s.payload, s.hash = Hashed, hash
	}
	return s
}

// TestPresignedAgainstTheSDK: whatever the Go SDK presigns verifies after its way through net/http, and nothing of it can be changed.
func TestPresignedAgainstTheSDK(t *testing.T) {
	base, send := newRange(t, newTest(Options{Region: testRegion}))
	rapid.Check(t, func(t *rapid.T) {
		s := drawPresigned(t, base)
		got := send(t, s.shot, nil)
		if got.Code != "" || got.ID.AccessKey != testKey || !got.ID.Presigned || got.ID.PayloadHash != s.hash || got.ID.Payload != s.payload {
			t.Fatalf("%s %s?%s %q: %+v", s.request.Method, s.path, s.query, s.request.Header, got)
		}
		harmless := send(t, s.shot, func(r *http.Request) { // what a signature need not cover
			r.Header.Set("User-Agent", "another")
			r.Header.Set("X-Custom-Header", "1")
		})
		if harmless.Code != "" {
			t.Fatalf("with unsigned headers: %+v", harmless)
		}
		all := requestMutations(t, s.shot, got.ID.SignedHeaders)
		maps.Copy(all, presignMutations(s))
		for name, change := range all {
			if got := send(t, s.shot, change); got.Code == "" || got.Code == "anonymous" || got.ID.AccessKey != "" {
				t.Fatalf("%s: %s %s?%s %q: %+v", name, s.request.Method, s.path, s.query, s.request.Header, got)
			}
		}
	})
}

func presignMutations(s presignedShot) map[string]func(*http.Request) {
	replace := func(old, new string) func(*http.Request) {
		return func(r *http.Request) { r.URL.RawQuery = strings.Replace(r.URL.RawQuery, old, new, 1) }
	}
	return map[string]func(*http.Request){
		"presigned key":     replace(testKey, "AKIAI44QH8DHBEXAMPLE"),
		"presigned day":     replace("20130524", "20130525"),
		"presigned date":    replace("20130524T000000Z", "20130524T000001Z"),
		"presigned region":  replace(testRegion, "us-east-2"),
		"presigned expiry":  replace("X-Amz-Expires=60", "X-Amz-Expires=61"),
		"presigned headers": replace("X-Amz-SignedHeaders=", "X-Amz-SignedHeaders=a%3B"),
		"presigned end": func(r *http.Request) {
			at := strings.Index(r.URL.RawQuery, "X-Amz-Signature=") + len("X-Amz-Signature=")
			signature := r.URL.RawQuery[at : at+digestLength]
			r.URL.RawQuery = strings.Replace(r.URL.RawQuery, signature, flip(signature), 1)
		},
		"chunks":        func(r *http.Request) { r.Header.Set(contentHash, unsignedTrailer) },
		"another token": func(r *http.Request) { r.URL.RawQuery += "&X-Amz-Security-Token=fence%3D35" },
	}
}
