package sigv4

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const base = "host;x-amz-content-sha256;x-amz-date"

func putRequest(target string, more ...string) string {
	return "PUT " + target + " HTTP/1.1\nHost: proxy:9000\nX-Amz-Date: 20130524T000000Z\nX-Amz-Content-Sha256: UNSIGNED-PAYLOAD\nContent-Length: 0\n" +
		strings.Join(append(more, "\n"), "\n")
}

// valid is an Authorization header whose form is right.
const valid = algorithm + " Credential=" + testKey + "/20130524/us-east-1/s3/aws4_request, SignedHeaders=" + base + ", Signature=" + emptyHash

// TestRefusals has each reason for which a request is refused before its signature is looked at.
func TestRefusals(t *testing.T) {
	many := "a0"
	for i := range maxSignedHeaders {
		many += fmt.Sprintf(";b%03d", i)
	}
	for _, c := range []struct {
		name, target string
		authorize    []string // Authorization headers
		more         []string
		status       int
		code         string
	}{
		{"no signature", "/b/k", nil, nil, 403, "anonymous"},
		{"no signature, a query", "/b/k?acl", nil, nil, 403, "anonymous"},
		{"empty", "/b/k", []string{""}, nil, 400, invalidArgument},
		{"two", "/b/k", []string{valid, valid}, nil, 400, headerMalformed},
		{"long", "/b/k", []string{valid + strings.Repeat(" ", maxAuthorization) + "x"}, nil, 400, headerMalformed},
		{"basic", "/b/k", []string{"Basic QUtJQTpz"}, nil, 400, invalidArgument},
		{"version 2", "/b/k", []string{"AWS AKID:c2ln"}, nil, 400, invalidRequest},
		{"version 4A", "/b/k", []string{"AWS4-ECDSA-P256-SHA256 Credential=a/20130524/s3/aws4_request, SignedHeaders=host, Signature=00"}, nil, 400, invalidRequest},
		{"presigned, in part", "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=00", nil, nil, 400, badQuery},
		{"presigned, encoded", "/b/k?X%2DAmz-Signatur%65=00", nil, nil, 400, badQuery},
		{"presigned, lower case", "/b/k?x-amz-algorithm=AWS4-HMAC-SHA256", nil, nil, 400, badQuery},
		{"presigned, version 2", "/b/k?AWSAccessKeyId=a&Signature=b&Expires=1", nil, nil, 400, invalidRequest},
		{"presigned, version 2, signature alone", "/b/k?Signature=b", nil, nil, 400, invalidRequest},
		{"two mechanisms", "/b/k?X-Amz-Signature=00", []string{valid}, nil, 400, invalidArgument},
		{"two mechanisms, version 2", "/b/k?Signature=00", []string{valid}, nil, 400, invalidArgument},
		{"query with a semicolon", "/b/k?a=1;b=2", []string{valid}, nil, 400, invalidURI},
		{"query with a bad escape", "/b/k?a=%zz", []string{valid}, nil, 400, invalidURI},
		{"query with a bad escape, anonymous", "/b/k?X-Amz-Signature%=00", nil, nil, 400, invalidURI},
		{"query with a cut escape", "/b/k?a=%4", []string{valid}, nil, 400, invalidURI},
		{"many parameters", "/b/k?" + strings.Repeat("a&", maxPairs+1), []string{valid}, nil, 400, invalidURI},
		{"long target", "/b/" + strings.Repeat("k", maxTarget), []string{valid}, nil, 400, tooLarge},
		{"asterisk", "*", []string{valid}, nil, 400, invalidURI},
		{"another scheme", "ftp://proxy:9000/b/k", []string{valid}, nil, 400, invalidURI},
		{"nothing but a name", "/b/k", []string{algorithm}, nil, 400, invalidArgument},
		{"no components", "/b/k", []string{algorithm + " x"}, nil, 400, headerMalformed},
		{"no signature component", "/b/k", []string{strings.Split(valid, ", Signature")[0]}, nil, 400, headerMalformed},
		{"component twice", "/b/k", []string{valid + ", Signature=" + emptyHash}, nil, 400, headerMalformed},
		{"unknown component", "/b/k", []string{valid + ", Nonce=1"}, nil, 400, headerMalformed},
		{"empty component", "/b/k", []string{valid + ", "}, nil, 400, headerMalformed},
		{"short signature", "/b/k", []string{valid[:len(valid)-1]}, nil, 400, headerMalformed},
		{"upper-case signature", "/b/k", []string{strings.Replace(valid, emptyHash, strings.ToUpper(emptyHash), 1)}, nil, 400, headerMalformed},
		{"signature not hexadecimal", "/b/k", []string{valid[:len(valid)-1] + "g"}, nil, 400, headerMalformed},
		{"short credential", "/b/k", []string{strings.Replace(valid, "us-east-1/", "", 1)}, nil, 400, headerMalformed},
		{"no access key", "/b/k", []string{strings.Replace(valid, testKey, "", 1)}, nil, 400, headerMalformed},
		{"long access key", "/b/k", []string{strings.Replace(valid, testKey, strings.Repeat("A", maxAccessKey+1), 1)}, nil, 400, headerMalformed},
		{"long region", "/b/k", []string{strings.Replace(valid, testRegion, strings.Repeat("a", maxRegion+1), 1)}, nil, 400, headerMalformed},
		{"another region", "/b/k", []string{strings.Replace(valid, testRegion, "eu-west-1", 1)}, nil, 400, headerMalformed},
		{"another service", "/b/k", []string{strings.Replace(valid, "/s3/", "/sts/", 1)}, nil, 400, headerMalformed},
		{"another terminal", "/b/k", []string{strings.Replace(valid, "aws4_request", "aws5_request", 1)}, nil, 400, headerMalformed},
		{"another day", "/b/k", []string{strings.Replace(valid, "20130524/", "20130525/", 1)}, nil, 400, headerMalformed},
		{"unknown key", "/b/k", []string{strings.Replace(valid, testKey, "AKIAUNKNOWN", 1)}, nil, 403, "InvalidAccessKeyId"},
		{"wrong signature", "/b/k", []string{valid}, nil, 403, "SignatureDoesNotMatch"},
		{"host not signed", "/b/k", []string{strings.Replace(valid, "host;", "", 1)}, nil, 403, accessDenied},
		{"date not signed", "/b/k", []string{strings.Replace(valid, ";x-amz-date", "", 1)}, nil, 403, accessDenied},
		{"hash not signed", "/b/k", []string{strings.Replace(valid, "x-amz-content-sha256;", "", 1)}, nil, 403, accessDenied},
		{"metadata not signed", "/b/k", []string{valid}, []string{"x-amz-meta-a: 1"}, 403, accessDenied},
		{"session token not signed", "/b/k", []string{valid}, []string{"X-Amz-Security-Token: fence=34"}, 403, accessDenied},
		{"signed x-amz header missing", "/b/k", []string{strings.Replace(valid, base, base+";x-amz-meta-a", 1)}, nil, 403, accessDenied},
		{"missing does not stand for unsigned", "/b/k", []string{strings.Replace(valid, base, base+";x-amz-meta-a", 1)}, []string{"x-amz-meta-b: 1"}, 403, accessDenied},
		{"names not sorted", "/b/k", []string{strings.Replace(valid, base, "x-amz-content-sha256;x-amz-date;host", 1)}, nil, 400, headerMalformed},
		{"name twice", "/b/k", []string{strings.Replace(valid, base, "host;"+base, 1)}, nil, 400, headerMalformed},
		{"name in upper case", "/b/k", []string{strings.Replace(valid, "host", "Host", 1)}, nil, 400, headerMalformed},
		{"empty name", "/b/k", []string{strings.Replace(valid, base, base+";", 1)}, nil, 400, headerMalformed},
		{"too many names", "/b/k", []string{strings.Replace(valid, base, many, 1)}, nil, 400, headerMalformed},
		{"long headers", "/b/k", []string{strings.Replace(valid, base, "cookie;"+base, 1)}, []string{"Cookie: " + strings.Repeat("c", maxCanonical)}, 400, tooLarge},
	} {
		more := c.more
		for _, a := range c.authorize {
			more = append(more, "Authorization: "+a)
		}
		r := parse(t, putRequest(c.target, more...))
		id, err := newTest(Options{Region: testRegion}).Verify(r)
		var e *Error
		if !errors.As(err, &e) || e.Status != c.status || codeOf(err) != c.code || id.AccessKey != "" {
			t.Errorf("%s: %v; want %d %s", c.name, err, c.status, c.code)
		}
	}
}

func TestRequestsWithoutDateOrHash(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(h http.Header)
		status int
		code   string
	}{
		{"no date", func(h http.Header) { h.Del("X-Amz-Date") }, 403, accessDenied},
		{"two dates", func(h http.Header) { h.Add("X-Amz-Date", h.Get("X-Amz-Date")) }, 403, accessDenied},
		{"date with a fraction", func(h http.Header) { h.Set("X-Amz-Date", "20130524T000000.0Z") }, 403, accessDenied},
		{"HTTP date in x-amz-date", func(h http.Header) { h.Set("X-Amz-Date", "Fri, 24 May 2013 00:00:00 GMT") }, 403, accessDenied},
		{"a bad date is not mended by Date", func(h http.Header) { h.Set("X-Amz-Date", ""); h.Set("Date", "20130524T000000Z") }, 403, accessDenied},
		{"no hash", func(h http.Header) { h.Del("X-Amz-Content-Sha256") }, 400, invalidRequest},
		{"two hashes", func(h http.Header) { h.Add("X-Amz-Content-Sha256", emptyHash) }, 400, invalidArgument},
		{"short hash", func(h http.Header) { h.Set("X-Amz-Content-Sha256", emptyHash[1:]) }, 400, invalidArgument},
		{"hash in another case", func(h http.Header) { h.Set("X-Amz-Content-Sha256", "unsigned-payload") }, 400, invalidArgument},
		{"chunks of version 4A", func(h http.Header) { h.Set("X-Amz-Content-Sha256", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD") }, 501, notImplemented},
		{"chunks of version 4A with a trailer", func(h http.Header) { h.Set("X-Amz-Content-Sha256", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER") }, 501, notImplemented},
		{"chunks that nobody knows", func(h http.Header) { h.Set("X-Amz-Content-Sha256", "STREAMING-AWS5") }, 400, invalidArgument},
	} {
		r := parse(t, putRequest("/b/k", "Authorization: "+valid))
		c.change(r.Header)
		_, err := newTest(Options{}).Verify(r)
		var e *Error
		if !errors.As(err, &e) || e.Status != c.status || e.Code != c.code {
			t.Errorf("%s: %v; want %d %s", c.name, err, c.status, c.code)
		}
	}
}

func TestClockSkew(t *testing.T) {
	r := signed(t, putRequest("/b/k"), "/b/k", base)
	for _, c := range []struct {
		off  time.Duration
		code string
	}{
		{0, ""},
		{15 * time.Minute, ""},
		{-15 * time.Minute, ""},
		{15*time.Minute + time.Second, "RequestTimeTooSkewed"},
		{-15*time.Minute - time.Second, "RequestTimeTooSkewed"},
		{24 * time.Hour, "RequestTimeTooSkewed"},
	} {
		local := testTime.Add(c.off).In(time.FixedZone("", 3600))
		_, err := newTest(Options{Now: func() time.Time { return local }}).Verify(r)
		if codeOf(err) != c.code {
			t.Errorf("clock off by %v: %v", c.off, err)
		}
		var e *Error
		if errors.As(err, &e) && (detail(e, "RequestTime") != "20130524T000000Z" || detail(e, "ServerTime") != local.UTC().Format(time.RFC3339)) {
			t.Errorf("not both times: %q", e.Details)
		}
	}
	if _, err := newTest(Options{Skew: time.Second, Now: func() time.Time { return testTime.Add(2 * time.Second) }}).Verify(r); codeOf(err) != "RequestTimeTooSkewed" {
		t.Errorf("a skew of one second: %v", err)
	}
}

// TestDateHeader: without x-amz-date the time is that of Date, which may have several forms.
func TestDateHeader(t *testing.T) {
	for _, date := range []string{"Fri, 24 May 2013 00:00:00 GMT", "20130524T000000Z", "Fri, 24 May 2013 02:00:00 +0200"} {
		for _, names := range []string{"date;host;x-amz-content-sha256", "host;x-amz-content-sha256"} {
			raw := strings.Replace(putRequest("/b/k"), "X-Amz-Date: 20130524T000000Z", "Date: "+date, 1)
			r := signed(t, raw, "/b/k", names)
			if id, err := newTest(Options{}).Verify(r); err != nil || !id.Time.Equal(testTime) {
				t.Errorf("%s, %s: %v", date, names, err)
			}
			r.Header.Set("Date", "Fri, 24 May 2013 00:00:01 GMT")
			if _, err := newTest(Options{}).Verify(r); codeOf(err) != "SignatureDoesNotMatch" {
				t.Errorf("%s, %s, changed: %v", date, names, err)
			}
		}
	}
}

// TestKeysChangeAtOnce: the cache never keeps a key alive that lookup has given up.
func TestKeysChangeAtOnce(t *testing.T) {
	secrets := map[string]string{testKey: testSecret}
	v := New(func(id string) (string, bool) { s, ok := secrets[id]; return s, ok }, Options{Now: func() time.Time { return testTime }})
	r := signed(t, putRequest("/b/k"), "/b/k", base)
	for _, step := range []struct{ secret, code string }{
		{testSecret, ""}, {testSecret, ""}, {"another", "SignatureDoesNotMatch"}, {testSecret, ""}, {"", "InvalidAccessKeyId"}, {testSecret, ""},
	} {
		delete(secrets, testKey)
		if step.secret != "" {
			secrets[testKey] = step.secret
		}
		if _, err := v.Verify(r); codeOf(err) != step.code {
			t.Errorf("secret %q: %v; want %q", step.secret, err, step.code)
		}
	}
	if n := len(v.keys.keys); n != 1 {
		t.Errorf("%d keys cached", n)
	}
	if _, ok := v.keys.get(authorization{accessKey: testKey, date: "20130524", region: testRegion}, testSecret); !ok {
		t.Error("the key is not found again")
	}
}

// TestDecoy: the secret that stands in for those of unknown keys lets nobody in.
func TestDecoy(t *testing.T) {
	r := signed(t, putRequest("/b/k"), "/b/k", base)
	v := New(func(string) (string, bool) { return "", false }, Options{Now: func() time.Time { return testTime }})
	v.decoy = testSecret
	if _, err := v.Verify(r); codeOf(err) != "InvalidAccessKeyId" {
		t.Errorf("%v", err)
	}
	if len(v.keys.keys) != 0 {
		t.Error("the key of an unknown client was cached")
	}
}

func TestKeyCacheIsBounded(t *testing.T) {
	var c keyCache
	for i := range 3 * maxCachedKeys {
		c.put(authorization{accessKey: fmt.Sprint(i)}, "s", signingKey{1})
	}
	if len(c.keys) > maxCachedKeys {
		t.Errorf("%d keys", len(c.keys))
	}
}

// TestManyAtOnce is for the race detector: one Verifier, its cache and its memory, among many requests.
func TestManyAtOnce(t *testing.T) {
	v := newTest(Options{})
	var wg sync.WaitGroup
	for i := range 8 {
		path := fmt.Sprintf("/b/%d", i)
		good, bad := signed(t, putRequest(path), path, base), signed(t, putRequest(path), path+"x", base)
		wg.Go(func() {
			for range 100 {
				if id, err := v.Verify(good); err != nil || id.AccessKey != testKey {
					t.Errorf("%s: %v", path, err)
				}
				if _, err := v.Verify(bad); codeOf(err) != "SignatureDoesNotMatch" {
					t.Errorf("%s, signed as another: %v", path, err)
				}
			}
		})
	}
	wg.Wait()
}
