package sigv4

import (
	"errors"
	"strings"
	"testing"
)

// TestSentences: what is wrong with an Authorization header is told in S3's words and elements, which clients print and test
// suites compare.
func TestSentences(t *testing.T) {
	const malformed = "The authorization header is malformed; "
	with := func(old, new string) string { return strings.Replace(valid, old, new, 1) }
	scope := testKey + "/20130524/us-east-1/s3/aws4_request"
	for _, c := range []struct {
		name, authorization, more string
		status                    int
		code, says                string
		detail                    Detail
	}{
		{"no blank", "invalid_header", "", 400, invalidArgument, "Authorization header is invalid -- one and only one ' ' (space) required.", Detail{"ArgumentValue", "invalid_header"}},
		{"another algorithm", with(algorithm, "AWS2-HMAC-SHA1"), "", 400, invalidArgument, "Unsupported Authorization Type", Detail{"ArgumentValue", "AWS2-HMAC-SHA1"}},
		{"version 2", "AWS AKID:c2ln", "", 400, invalidRequest, "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.", Detail{"Mechanism", "Signature Version 2, in the Authorization header"}},
		{"version 4A", with(algorithm, algorithmV4A), "", 400, invalidRequest, "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.", Detail{"Mechanism", "Signature Version 4A, in the Authorization header"}},
		{"two components", with(" SignedHeaders="+base+",", ""), "", 400, headerMalformed, malformed + "the authorization header requires three components: Credential, SignedHeaders, and Signature.", Detail{}},
		{"four components", valid + ",a=b", "", 400, headerMalformed, malformed + "the authorization header requires three components: Credential, SignedHeaders, and Signature.", Detail{}},
		{"a component without value", with("SignedHeaders="+base, "SignedHeaders-Content-Length"), "", 400, headerMalformed, malformed + `the authorization component "SignedHeaders-Content-Length" is malformed.`, Detail{}},
		{"no credential", with("Credential", "missing"), "", 400, headerMalformed, malformed + "missing Credential.", Detail{}},
		{"no signed headers", with("SignedHeaders", "missing"), "", 400, headerMalformed, malformed + "missing SignedHeaders.", Detail{}},
		{"no signature", with("Signature=", "missing="), "", 400, headerMalformed, malformed + "missing Signature.", Detail{}},
		{"six parts", with(scope, "access/32234/us-east-1/s3/extra/things"), "", 400, headerMalformed, malformed + badCredential, Detail{}},
		{"four parts", with(scope, "20130524/us-east-1/s3/aws4_request"), "", 400, headerMalformed, malformed + badCredential, Detail{}},
		{"terminator", with(scope, testKey+"/32234/us-east-1/s3/aws_request"), "", 400, headerMalformed, malformed + `incorrect terminal "aws_request". This endpoint uses "aws4_request".`, Detail{}},
		{"service", with(scope, testKey+"/32234/us-east-1/ec2/aws4_request"), "", 400, headerMalformed, malformed + `incorrect service "ec2". This endpoint belongs to "s3".`, Detail{}},
		{"date", with(scope, testKey+"/3223423234/us-east-1/s3/aws4_request"), "", 400, headerMalformed, malformed + `incorrect date format "3223423234". This date in the credential must be in the format "yyyyMMdd".`, Detail{}},
		{"region", with("us-east-1", "us-west-1"), "", 400, headerMalformed, malformed + `the region "us-west-1" is wrong; expecting "us-east-1"`, Detail{"Region", testRegion}},
		{"another key", with(testKey, "AKIAUNKNOWN"), "", 403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.", Detail{"AWSAccessKeyId", "AKIAUNKNOWN"}},
		{"headers not signed", valid, "X-Amz-Tagging: a=b\nX-Amz-Copy-Source: b/k", 403, accessDenied, "There were headers present in the request which were not signed", Detail{"HeadersNotSigned", "x-amz-copy-source, x-amz-tagging"}},
		{"signature", valid, "", 403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. Check your key and signing method.", Detail{"SignatureProvided", emptyHash}},
	} {
		more := []string{"Authorization: " + c.authorization}
		if c.more != "" {
			more = append(more, c.more)
		}
		_, err := newTest(Options{Region: testRegion}).Verify(parse(t, putRequest("/b/k", more...)))
		var e *Error
		if !errors.As(err, &e) || e.Status != c.status || e.Code != c.code || e.Message != c.says || c.detail.Name != "" && detail(e, c.detail.Name) != c.detail.Value {
			t.Errorf("%s: %v %q; want %d %s: %s %q", c.name, err, e.Details, c.status, c.code, c.says, c.detail)
		}
	}
	if ErrAnonymous.Error() != "AccessDenied: Access Denied." {
		t.Error(ErrAnonymous)
	}
	var e *Error
	for announced, says := range map[string]string{
		"invalid_sha256": "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER, " +
			"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD, STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER or a valid sha256 value.",
	} {
		r := parse(t, strings.Replace(putRequest("/b/k", "Authorization: "+valid), unsignedPayload, announced, 1))
		if _, err := newTest(Options{}).Verify(r); !errors.As(err, &e) || e.Status != 400 || e.Message != says || detail(e, "ArgumentName") != contentHash || detail(e, "ArgumentValue") != announced {
			t.Errorf("%s: %v", announced, err)
		}
	}
	r := parse(t, strings.Replace(putRequest("/b/k", "Authorization: "+valid), "20130524T000000Z", "03032006", 1))
	if _, err := newTest(Options{}).Verify(r); !errors.As(err, &e) || e.Status != 403 || e.Message != "AWS authentication requires a valid Date or x-amz-date header." {
		t.Errorf("%v", err)
	}
}
