package sigv4

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// postExample is the form of the Amazon S3 API Reference, "Example: Browser-Based Upload using HTTP POST (Using AWS Signature
// Version 4)". Its policy is told apart into lines as it is there.
var postExample = map[string]string{
	"key": "user/user1/photo.jpg", "acl": "public-read", "success_action_redirect": "http://sigv4examplebucket.s3.amazonaws.com/successful_upload.html",
	"content-type": "image/jpeg", "x-amz-meta-uuid": "14365123651274", "x-amz-server-side-encryption": "AES256",
	"x-amz-credential": "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/s3/aws4_request", "x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-date": "20151229T000000Z",
	"x-amz-meta-tag": "", "x-amz-signature": "8afdbf4008c03f22c2cd3cdb72e4afbb1f6a588f3255ac628749a66d7f09699e",
	"policy": "eyAiZXhwaXJhdGlvbiI6ICIyMDE1LTEyLTMwVDEyOjAwOjAwLjAwMFoiLA0KICAiY29uZGl0aW9ucyI6IFsNCiAgICB7ImJ1Y2tldCI6ICJzaWd2NGV4YW1wbGVidWNrZXQifSwNCiAgICBbInN0YXJ0" +
		"cy13aXRoIiwgIiRrZXkiLCAidXNlci91c2VyMS8iXSwNCiAgICB7ImFjbCI6ICJwdWJsaWMtcmVhZCJ9LA0KICAgIHsic3VjY2Vzc19hY3Rpb25fcmVkaXJlY3QiOiAiaHR0cDovL3NpZ3Y0ZXhhbXBsZWJ1" +
		"Y2tldC5zMy5hbWF6b25hd3MuY29tL3N1Y2Nlc3NmdWxfdXBsb2FkLmh0bWwifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRDb250ZW50LVR5cGUiLCAiaW1hZ2UvIl0sDQogICAgeyJ4LWFtei1tZXRhLXV1" +
		"aWQiOiAiMTQzNjUxMjM2NTEyNzQifSwNCiAgICB7IngtYW16LXNlcnZlci1zaWRlLWVuY3J5cHRpb24iOiAiQUVTMjU2In0sDQogICAgWyJzdGFydHMtd2l0aCIsICIkeC1hbXotbWV0YS10YWciLCAiIl0s" +
		"DQoNCiAgICB7IngtYW16LWNyZWRlbnRpYWwiOiAiQUtJQUlPU0ZPRE5ON0VYQU1QTEUvMjAxNTEyMjkvdXMtZWFzdC0xL3MzL2F3czRfcmVxdWVzdCJ9LA0KICAgIHsieC1hbXotYWxnb3JpdGhtIjogIkFX" +
		"UzQtSE1BQy1TSEEyNTYifSwNCiAgICB7IngtYW16LWRhdGUiOiAiMjAxNTEyMjlUMDAwMDAwWiIgfQ0KICBdDQp9",
}

func at(t time.Time) Options {
	return Options{Region: testRegion, Now: func() time.Time { return t }}
}

func TestPublishedPostForm(t *testing.T) {
	when := time.Date(2015, 12, 29, 0, 0, 0, 0, time.UTC)
	id, policy, err := newTest(at(when.Add(time.Hour))).VerifyPost(postExample)
	if err != nil || id.AccessKey != testKey || id.Region != testRegion || !id.Time.Equal(when) || id.Payload != Unsigned {
		t.Fatalf("%+v, %v", id, err)
	}
	if err := policy.Check(postExample, "sigv4examplebucket"); err != nil {
		t.Error(err)
	}
	if err := policy.Check(postExample, "another"); codeOf(err) != accessDenied {
		t.Errorf("another bucket: %v", err)
	}
	if _, _, ok := policy.Length(); ok {
		t.Error("it says nothing of the length")
	}
	for _, c := range []struct {
		name, field, value, code string
		now                      time.Time
	}{
		{"another policy", "policy", strings.Replace(postExample["policy"], "eyAi", "eyAg", 1), "SignatureDoesNotMatch", when},
		{"another signature", "x-amz-signature", flip(postExample["x-amz-signature"]), "SignatureDoesNotMatch", when},
		{"upper case", "x-amz-signature", strings.ToUpper(postExample["x-amz-signature"]), "SignatureDoesNotMatch", when},
		{"another day", "x-amz-date", "20151228T235900Z", invalidArgument, when},
		{"an old form", "key", "user/user1/k", accessDenied, when.Add(maxFormAge + time.Second)},
	} {
		form := maps.Clone(postExample)
		form[c.field] = c.value
		if id, policy, err := newTest(at(c.now)).VerifyPost(form); codeOf(err) != c.code || policy != nil || id.AccessKey != "" {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// signedForm is a form with this policy, signed as it should be.
func signedForm(policy string, fields map[string]string) map[string]string {
	form := map[string]string{
		"policy": policy, "x-amz-algorithm": algorithm, "x-amz-credential": testKey + "/20130524/us-east-1/s3/aws4_request", "x-amz-date": "20130524T000000Z",
	}
	key := deriveKey(testSecret, "20130524", testRegion)
	form["x-amz-signature"] = hexOf(sign(key[:], []byte(policy)))
	maps.Copy(form, fields)
	return form
}

// TestPostRefusals has each reason for which a form is refused before its policy is read, in S3's words.
func TestPostRefusals(t *testing.T) {
	const missing = "Bucket POST must contain a field named '%s'.  If it is specified, please check the order of the fields."
	credential := testKey + "/20130524/us-east-1/s3/aws4_request"
	for _, c := range []struct {
		name, field, value string // "-": not there
		status             int
		code, says         string
		argument           string
	}{
		{"no policy", "policy", "-", 400, invalidArgument, fmt.Sprintf(missing, "policy"), "policy"},
		{"no algorithm", "x-amz-algorithm", "-", 400, invalidArgument, fmt.Sprintf(missing, "x-amz-algorithm"), "x-amz-algorithm"},
		{"no credential", "x-amz-credential", "-", 400, invalidArgument, fmt.Sprintf(missing, "x-amz-credential"), "x-amz-credential"},
		{"no date", "x-amz-date", "-", 400, invalidArgument, fmt.Sprintf(missing, "x-amz-date"), "x-amz-date"},
		{"no signature", "x-amz-signature", "-", 400, invalidArgument, fmt.Sprintf(missing, "x-amz-signature"), "x-amz-signature"},
		{"algorithm", "x-amz-algorithm", "invalid", 400, invalidArgument, "Only AWS4-HMAC-SHA256 is supported", "X-Amz-Algorithm"},
		{"version 4A", "x-amz-algorithm", algorithmV4A, 400, invalidArgument, "Only AWS4-HMAC-SHA256 is supported", "X-Amz-Algorithm"},
		{"date", "x-amz-date", "invalid_date", 400, invalidArgument, "X-Amz-Date must be formated via ISO8601 Long format", "X-Amz-Date"},
		{"an old date", "x-amz-date", "20130516T235959Z", 403, accessDenied, "Invalid according to Policy: Policy expired.", ""},
		{"credential", "x-amz-credential", "malformed-no-slashes", 400, invalidArgument, badCredential, "x-amz-credential"},
		{"region", "x-amz-credential", strings.Replace(credential, "east", "west", 1), 400, invalidArgument, `the region "us-west-1" is wrong; expecting "us-east-1"`, "x-amz-credential"},
		{"service", "x-amz-credential", strings.Replace(credential, "/s3/", "/sns/", 1), 400, invalidArgument, `incorrect service "sns". This endpoint belongs to "s3".`, "x-amz-credential"},
		{"terminator", "x-amz-credential", credential + "s", 400, invalidArgument, `incorrect terminal "aws4_requests". This endpoint uses "aws4_request".`, "x-amz-credential"},
		{"credential date", "x-amz-credential", strings.Replace(credential, "20130524", "2013", 1), 400, invalidArgument, `incorrect date format "2013". This date in the credential must be in the format "yyyyMMdd".`, "x-amz-credential"},
		{"another key", "x-amz-credential", strings.Replace(credential, testKey, "AKIAUNKNOWN", 1), 403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.", ""},
		{"signature", "x-amz-signature", "incorrect_signature", 403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. Check your key and signing method.", ""},
		{"version 2", "x-amz-signature", "-", 400, invalidRequest, "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.", ""},
		{"no policy in it", "policy", "", 400, "InvalidPolicyDocument", "Invalid Policy: Expecting '{' but found End-of-Input", ""},
	} {
		form := signedForm(encodePolicy(map[string]any{"expiration": "2013-05-25T00:00:00Z", "conditions": []any{}}), nil)
		if form[c.field] = c.value; c.field == "policy" {
			form = signedForm(c.value, nil)
		}
		if c.value == "-" {
			delete(form, c.field)
		}
		if c.name == "version 2" {
			form["awsaccesskeyid"], form["signature"] = testKey, "c2ln"
		}
		_, policy, err := newTest(at(testTime)).VerifyPost(form)
		var e *Error
		if !errors.As(err, &e) || e.Status != c.status || e.Code != c.code || e.Message != c.says || detail(e, "ArgumentName") != c.argument || policy != nil {
			t.Errorf("%s: %v %q; want %d %s: %s", c.name, err, e.Details, c.status, c.code, c.says)
		}
		if c.argument != "" && c.value != "-" && detail(e, "ArgumentValue") != c.value {
			t.Errorf("%s: argument %q", c.name, e.Details)
		}
		if c.name == "signature" && (detail(e, "StringToSign") != form["policy"] || detail(e, "SignatureProvided") != c.value || detail(e, "AWSAccessKeyId") != testKey ||
			!strings.HasPrefix(detail(e, "StringToSignBytes"), "65 79 4a ")) {
			t.Errorf("%s: %q", c.name, e.Details)
		}
	}
	if _, _, err := newTest(Options{}).VerifyPost(map[string]string{"key": "k", "file": ""}); err != ErrAnonymous {
		t.Errorf("no signature at all: %v", err)
	}
}

func encodePolicy(policy any) string {
	text, err := json.Marshal(policy)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(text)
}

func policyOf(conditions ...any) string {
	return encodePolicy(map[string]any{"expiration": "2013-05-24T01:00:00Z", "conditions": append([]any{}, conditions...)})
}

// TestPolicyDocuments has policies that are none, in S3's words.
func TestPolicyDocuments(t *testing.T) {
	type list = []any
	raw := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	for _, c := range []struct{ policy, says string }{
		{"invalid_base64", "Invalid Policy: invalid Base64 encoding."},
		{raw("invalid json"), "Invalid Policy: Invalid JSON."},
		{raw(`{"expiration": "2013-05-24T01:00:00Z", "conditions": []} {}`), "Invalid Policy: Invalid JSON."},
		{raw(`[]`), "Invalid Policy: Invalid JSON."},
		{raw(`{"conditions": []}`), "Invalid Policy: Policy missing expiration."},
		{raw(`{"expiration": true, "conditions": []}`), "Invalid Policy: Invalid JSON."},
		{raw(`{"expiration": "invalid", "conditions": []}`), "Invalid Policy: Invalid 'expiration' value: 'invalid'"},
		{raw(`{"expiration": null, "conditions": []}`), "Invalid Policy: Invalid 'expiration' value: ''"},
		{raw(`{"expiration": "2144-11-08T04:19:33Z"}`), "Invalid Policy: Policy missing conditions."},
		{raw(`{"expiration": "2144-11-08T04:19:33Z", "conditions": true}`), "Invalid Policy: Invalid 'conditions' value: must be a List."},
		{raw(`{"expiration": "2144-11-08T04:19:33Z", "conditions": null}`), "Invalid Policy: Invalid 'conditions' value: must be a List."},
		{raw(`{"expiration": "2144-11-08T04:19:33Z", "conditions": [], "extra": 1}`), `Invalid Policy: Unexpected: "extra"`},
		{policyOf(true), "Invalid Policy: Invalid condition test: must be a List or Object."},
		{policyOf(nil), "Invalid Policy: Invalid condition test: must be a List or Object."},
		{policyOf(list{}), "Invalid Policy: Invalid Condition: missing operation identifier."},
		{policyOf(list{1, "$key", "k"}), "Invalid Policy: Invalid JSON."},
		{policyOf(list{"invalid", "$key", "k"}), "Invalid Policy: Invalid Condition: unknown operation 'invalid'."},
		{policyOf(list{"eq", "$key", "k", "l"}), "Invalid Policy: Invalid eq: wrong number of arguments."},
		{policyOf(list{"content-length-range", 1}), "Invalid Policy: Invalid content-length-range: wrong number of arguments."},
		{policyOf(list{"eq", false, "k"}), "Invalid Policy: Invalid JSON."},
		{policyOf(list{"eq", "$key", true}), "Invalid Policy: Invalid JSON."},
		{policyOf(list{"eq", "$key", nil}), "Invalid Policy: Invalid JSON."},
		{policyOf(list{"eq", "key", "k"}), `Invalid according to Policy: Policy Condition failed: ["eq","key","k"]`},
		{policyOf(list{"eq", "$", "k"}), `Invalid according to Policy: Policy Condition failed: ["eq","$","k"]`},
		{policyOf(list{"content-length-range", 1, false}), "Invalid Policy: Invalid JSON."},
		{policyOf(list{"content-length-range", "invalid", "14"}), "Invalid Policy: Invalid JSON."},
		{policyOf(list{"content-length-range", 1, 1.5}), "Invalid Policy: Invalid JSON."},
		{policyOf(list{"content-length-range", 1, nil}), "Invalid Policy: Invalid JSON."},
		{policyOf(map[string]any{"acl": "private", "key": "k"}), "Invalid Policy: Invalid Simple-Condition: Simple-Conditions must have exactly one property specified."},
		{policyOf(map[string]any{}), "Invalid Policy: Invalid Simple-Condition: Simple-Conditions must have exactly one property specified."},
		{policyOf(map[string]any{"acl": true}), "Invalid Policy: Invalid Simple-Condition: value must be a string."},
		{raw(`{"expiration": "2013-05-24T00:00:00Z", "conditions": [{"a": "b", "extra": 1}]}`), "Invalid Policy: Invalid Simple-Condition: Simple-Conditions must have exactly one property specified."},
		{raw(`{"expiration": "2013-05-23T23:59:59.9Z", "conditions": []}`), "Invalid according to Policy: Policy expired."},
		{raw(`{"expiration": "2013-05-24T00:59:59+01:00", "conditions": []}`), "Invalid according to Policy: Policy expired."},
	} {
		_, policy, err := newTest(at(testTime)).VerifyPost(signedForm(c.policy, nil))
		var e *Error
		if !errors.As(err, &e) || e.Message != c.says || e.Status != 403 && e.Code != "InvalidPolicyDocument" || policy != nil {
			t.Errorf("%s: %v; want %s", c.policy, err, c.says)
		}
	}
}

// TestPolicyConditions holds fields to conditions.
func TestPolicyConditions(t *testing.T) {
	type list = []any
	type simple = map[string]any
	type fields = map[string]string
	for _, c := range []struct {
		conditions list
		fields     fields
		says       string
	}{
		{list{}, nil, ""},
		{list{list{"eq", "$content-type", "text/plain"}}, fields{"content-type": "text/plain"}, ""},
		{list{list{"eq", "$Content-Type", "text/plain"}}, fields{"content-type": "text/plain"}, ""},
		{list{list{"eq", "$x-amz-meta-n", 34}}, fields{"x-amz-meta-n": "34"}, ""},
		{list{list{"starts-with", "$x-amz-meta-env", "prod"}}, fields{"x-amz-meta-env": "production"}, ""},
		{list{list{"starts-with", "$x-amz-meta-tag", ""}}, fields{"x-amz-meta-tag": "anything"}, ""},
		{list{list{"starts-with", "$x-amz-meta-tag", ""}}, nil, `Policy Condition failed: ["starts-with","$x-amz-meta-tag",""]`},
		{list{simple{"content-type": "image/png"}}, fields{"content-type": "image/png"}, ""},
		{list{list{"starts-with", "$content-type", "text/"}}, fields{"content-type": "text/plain, text/html"}, ""},
		{list{list{"content-length-range", 1, 100}}, nil, ""},
		{nil, fields{"x-ignore-custom": "value", "file": "name.txt"}, ""},

		{list{list{"eq", "$content-type", "text/plain"}}, fields{"content-type": "image/jpeg"}, `Policy Condition failed: ["eq","$content-type","text/plain"]`},
		{list{list{"starts-with", "$x-amz-meta-path", "allowed/"}}, fields{"x-amz-meta-path": "forbidden/allowed/"}, `Policy Condition failed: ["starts-with","$x-amz-meta-path","allowed/"]`},
		{list{list{"eq", "$bucket", "another"}}, nil, `Policy Condition failed: ["eq","$bucket","another"]`},
		{list{simple{"content-type": "application/xml"}}, fields{"content-type": "text/html"}, `Policy Condition failed: ["eq", "$content-type", "application/xml"]`},
		{list{list{"starts-with", "$content-type", "text/"}}, fields{"content-type": "text/plain, image/jpeg"}, `Policy Condition failed: ["starts-with","$content-type","text/"]`},
		{list{list{"starts-with", "$key", "b/"}}, nil, `Policy Condition failed: ["starts-with","$key","b/"]`},
		{list{simple{"acl": "private"}}, nil, `Policy Condition failed: ["eq", "$acl", "private"]`},
		{list{simple{"acl": "private"}, simple{"acl": "public-read"}}, fields{"acl": "private"}, `Policy Condition failed: ["eq", "$acl", "public-read"]`},
		{list{}, fields{"x-amz-meta-custom": "value"}, "Extra input fields: x-amz-meta-custom"},
		{list{}, fields{"content-type": "text/plain"}, "Extra input fields: content-type"},
		{list{}, fields{"x-amz-security-token": "fence=34"}, "Extra input fields: x-amz-security-token"},
		{list{}, fields{"x-ignor": ""}, "Extra input fields: x-ignor"},
	} {
		conditions := append(c.conditions, simple{"bucket": "b"}, simple{"key": "a/k"}, list{"starts-with", "$x-amz-algorithm", "AWS4"},
			list{"starts-with", "$x-amz-credential", testKey + "/"}, simple{"x-amz-date": "20130524T000000Z"})
		form := signedForm(policyOf(conditions...), c.fields)
		form["key"] = "a/k"
		_, policy, err := newTest(at(testTime)).VerifyPost(form)
		if err != nil {
			t.Errorf("%v: %v", c.conditions, err)
			continue
		}
		err = policy.Check(form, "b")
		var e *Error
		if c.says == "" && err != nil || c.says != "" && (!errors.As(err, &e) || e.Status != 403 || e.Code != accessDenied || e.Message != "Invalid according to Policy: "+c.says) {
			t.Errorf("%v, %v: %v; want %s", c.conditions, c.fields, err, c.says)
		}
	}
	policy, err := parsePolicy(policyOf(simple{"key": "k"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := policy.Check(fields{"key": "k"}, "b"); err == nil || !strings.HasSuffix(err.Error(), "Extra input fields: bucket") {
		t.Errorf("no condition on the bucket: %v", err)
	}
}

func TestPolicyLength(t *testing.T) {
	for _, c := range []struct {
		conditions []any
		min, max   int64
		ok         bool
	}{
		{nil, 0, 0, false},
		{[]any{[]any{"content-length-range", 1, 100}}, 1, 100, true},
		{[]any{[]any{"content-length-range", "1", "100"}}, 1, 100, true},
		{[]any{[]any{"content-length-range", 0, int64(math.MaxInt64)}}, 0, math.MaxInt64, true},
		{[]any{[]any{"content-length-range", 5, 100}, []any{"content-length-range", 1, 50}}, 5, 50, true},
		{[]any{[]any{"content-length-range", 10, 1}}, 10, 1, true}, // which no file has
	} {
		policy, err := parsePolicy(policyOf(c.conditions...))
		if err != nil {
			t.Fatal(err)
		}
		if low, high, ok := policy.Length(); low != c.min || high != c.max || ok != c.ok {
			t.Errorf("%v: %d, %d, %v", c.conditions, low, high, ok)
		}
	}
}

// TestChangedForms: a form that is signed verifies and meets its policy until one of its fields is changed.
func TestChangedForms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`[a-z/ +%é"]{0,9}`).Draw(t, "key")
		low, high := rapid.Int64Range(0, 9).Draw(t, "at least"), rapid.Int64Range(9, 99).Draw(t, "at most")
		conditions := []any{
			[]any{"content-length-range", low, high},
			[]any{"starts-with", "$x-amz-meta-a", "1"},
			map[string]any{"bucket": "b"},
			map[string]any{"X-Amz-Algorithm": algorithm},
			[]any{"eq", "$x-amz-credential", testKey + "/20130524/us-east-1/s3/aws4_request"},
			map[string]any{"x-amz-date": "20130524T000000Z"},
		}
		if prefix := rapid.IntRange(-1, len(key)).Draw(t, "prefix"); prefix >= 0 && utf8.ValidString(key[:prefix]) {
			conditions = append(conditions, []any{"starts-with", "$key", key[:prefix]})
		} else {
			conditions = append(conditions, map[string]any{"key": key})
		}
		form := signedForm(policyOf(conditions...), map[string]string{"key": key, "x-amz-meta-a": "12", "file": ""})
		id, policy, err := newTest(at(testTime)).VerifyPost(form)
		if err != nil || id.AccessKey != testKey {
			t.Fatalf("%v: %v", form, err)
		}
		if got, most, ok := policy.Length(); got != low || most != high || !ok {
			t.Fatalf("%d to %d, %v", got, most, ok)
		}
		if err := policy.Check(form, "b"); err != nil {
			t.Fatalf("%v: %v", form, err)
		}
		changed := rapid.SampledFrom([]string{"x-amz-meta-a", "x-amz-date", "x-amz-credential", "x-amz-algorithm", "policy", "x-amz-signature", "acl"}).Draw(t, "changed")
		form[changed] = "0" + form[changed]
		id, policy, err = newTest(at(testTime)).VerifyPost(form)
		if err == nil {
			err = policy.Check(form, "b")
		}
		if err == nil {
			t.Fatalf("%s changed: %+v", changed, id)
		}
	})
}
