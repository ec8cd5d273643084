package integration

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestAttackByStrangers: whoever cannot sign a request moves no mark with it, however high its token is and by whatever operation.
func TestAttackByStrangers(t *testing.T) {
	t.Parallel()
	p := newProxy(t, signedConfig(""))
	p.start(t)
	const key = "/bkt/jobs/7/k"
	p.signed(t, "PUT", "/bkt", "", nil, nil).want(t, 200)
	p.signed(t, "PUT", key, "of 5", []string{"X-Fence-Token", "5"}, nil).want(t, 200)
	a := p.signed(t, "POST", key+"?uploads=", "", []string{"X-Fence-Token", "5"}, nil).want(t, 200)
	_, rest, _ := strings.Cut(string(a.body), "<UploadId>")
	upload, _, _ := strings.Cut(rest, "</UploadId>")
	requests := []struct{ method, path, body string }{
		{"PUT", key, "of a stranger"},
		{"DELETE", key, ""},
		{"GET", key, ""},
		{"HEAD", key, ""},
		{"PUT", key + "?fence=", ""},
		{"GET", key + "?fence=", ""},
		{"POST", key + "?uploads=", ""},
		{"PUT", key + "?partNumber=1&uploadId=" + upload, "a part"},
		{"POST", key + "?uploadId=" + upload, "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>"},
		{"DELETE", key + "?uploadId=" + upload, ""},
		{"POST", "/bkt?delete=", "<Delete><Object><Key>jobs/7/k</Key></Object></Delete>"},
		{"GET", "/bkt?list-type=2&prefix=jobs%2F7%2F", ""},
		{"PUT", "/stranger", ""},
		{"DELETE", "/bkt", ""},
	}
	strip := func(r *http.Request, names ...string) {
		for _, name := range names {
			r.Header.Del(name)
		}
	}
	for name, change := range map[string]func(*http.Request){
		"not signed":              func(r *http.Request) { strip(r, "Authorization") },
		"an empty Authorization":  func(r *http.Request) { r.Header.Set("Authorization", "") },
		"Basic":                   func(r *http.Request) { r.SetBasicAuth(clientKey, clientSecret) },
		"Bearer":                  func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+clientSecret) },
		"Signature Version 2":     func(r *http.Request) { r.Header.Set("Authorization", "AWS "+clientKey+":AAAA") },
		"another algorithm":       replace("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA1 "),
		"another key":             replace(clientKey, "AKIDSTRANGER"),
		"an empty key":            replace("Credential="+clientKey, "Credential="),
		"another region":          replace("us-east-1", "eu-west-1"),
		"another service":         replace("/s3/", "/sts/"),
		"another day":             replace("/us-east-1", "0/us-east-1"),
		"an empty signature":      func(r *http.Request) { cutBehind(r, "Signature=", "") },
		"a signature of zeros":    func(r *http.Request) { cutBehind(r, "Signature=", strings.Repeat("0", 64)) },
		"two signatures":          func(r *http.Request) { r.Header.Add("Authorization", r.Header.Get("Authorization")) },
		"no header is signed":     func(r *http.Request) { between(r, "SignedHeaders=", ",", "") },
		"only the host is signed": func(r *http.Request) { between(r, "SignedHeaders=", ",", "host") },
		"no date":                 func(r *http.Request) { strip(r, "X-Amz-Date", "Date") },
		"another date": func(r *http.Request) {
			r.Header.Set("X-Amz-Date", time.Now().Add(time.Minute).UTC().Format("20060102T150405Z"))
		},
		"no digest":                 func(r *http.Request) { strip(r, "X-Amz-Content-Sha256") },
		"a body that is not signed": func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD") },
		"a token in the path":       func(r *http.Request) { strip(r, "X-Fence-Token"); r.URL.Path = "/~fence/" + huge + r.URL.Path },
		"another token":             func(r *http.Request) { r.Header.Set("X-Fence-Token", "9000000000000000001") },
		"a session token":           func(r *http.Request) { r.Header.Set("X-Amz-Security-Token", "fence="+huge) },
		"another key of the bucket": func(r *http.Request) { r.URL.Path += "x" },
		"a parameter more":          func(r *http.Request) { r.URL.RawQuery += "&x-id=x" },
		"another host":              func(r *http.Request) { r.Host = "elsewhere.example" },
		"credentials in the query":  inQuery("X-Amz-Credential=" + clientKey + "%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Signature=00"),
		"credentials in the query alone": func(r *http.Request) {
			strip(r, "Authorization")
			inQuery("AWSAccessKeyId=" + clientKey + "&Signature=AAAA&Expires=9999999999")(r)
		},
	} {
		before := p.state(t)
		for _, r := range requests {
			a := p.signed(t, r.method, r.path, r.body, []string{"X-Fence-Token", huge}, change)
			if a.status/100 != 4 && a.status != 501 {
				t.Errorf("%s: %s %s: %d %.300s", name, r.method, r.path, a.status, a.body)
			}
			if a.header.Get("X-Fence-Highest") != "" {
				t.Errorf("%s: %s %s tells a stranger where the fence stands: %v", name, r.method, r.path, a.header)
			}
		}
		if now := changes(before, p.state(t)); now != "" {
			t.Errorf("%s has changed something:\n%.2000s", name, now)
		}
	}
	if f := p.signed(t, "GET", key+"?fence=", "", nil, nil).want(t, 200).fence(t); f.Highest != 5 {
		t.Errorf("the fence stands at %d, want 5", f.Highest)
	}
	p.signed(t, "PUT", key, "of 6", []string{"X-Fence-Token", "6"}, nil).want(t, 200) // a lower token than any stranger's is good
}

// TestAttackByChangedBodies: under a good signature, of headers that say another digest than the body has. Nothing is stored, and the
// token of the headers moves nothing, for it is the whole request that a client vouches for.
func TestAttackByChangedBodies(t *testing.T) {
	t.Parallel()
	p := newProxy(t, signedConfig(""))
	p.start(t)
	const key = "/bkt/jobs/7/k"
	p.signed(t, "PUT", "/bkt", "", nil, nil).want(t, 200)
	p.signed(t, "PUT", key, "of 5", []string{"X-Fence-Token", "5"}, nil).want(t, 200)
	for _, r := range []struct{ method, path, body string }{
		{"PUT", key, strings.Repeat("body ", 1000)},
		{"PUT", key, ""},
		{"PUT", "/bkt/jobs/7/new", "x"},
		{"DELETE", key, ""},
		{"POST", key + "?uploads=", ""},
		{"POST", "/bkt?delete=", "<Delete><Object><Key>jobs/7/other</Key></Object></Delete>"},
	} {
		for name, tamper := range map[string]func(string) string{
			"a bit":    func(s string) string { return strings.Replace(s, "o", "n", 1) },
			"the end":  func(s string) string { return s + "\n" },
			"all":      func(string) string { return "<Delete><Object><Key>jobs/7/k</Key></Object></Delete>" },
			"cut":      func(s string) string { return s[:len(s)/2] },
			"nothing":  func(string) string { return "" },
			"repeated": func(s string) string { return s + s },
		} {
			body := tamper(r.body)
			if body == r.body {
				continue
			}
			before := p.state(t)
			a := p.signed(t, r.method, r.path, r.body, []string{"X-Fence-Token", huge}, func(out *http.Request) {
				out.Body, out.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
				if body == "" {
					out.Body = http.NoBody
				}
			})
			if a.status/100 != 4 {
				t.Errorf("%s %s with %s changed: %d %.300s", r.method, r.path, name, a.status, a.body)
			}
			if now := changes(before, p.state(t)); now != "" {
				t.Errorf("%s %s with %s changed has changed something:\n%.2000s", r.method, r.path, name, now)
			}
		}
	}
	p.signed(t, "PUT", key, "of 6", []string{"X-Fence-Token", "6"}, nil).want(t, 200)
	p.noTemps(t)
}

// replace changes a text in the Authorization header.
func replace(old, with string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), old, with, 1))
	}
}

// cutBehind puts value in the place of all that stands behind name in the Authorization header.
func cutBehind(r *http.Request, name, value string) {
	before, _, _ := strings.Cut(r.Header.Get("Authorization"), name)
	r.Header.Set("Authorization", before+name+value)
}

// between puts value in the place of what stands between name and end in the Authorization header.
func between(r *http.Request, name, end, value string) {
	before, after, _ := strings.Cut(r.Header.Get("Authorization"), name)
	_, after, _ = strings.Cut(after, end)
	r.Header.Set("Authorization", before+name+value+end+after)
}

// inQuery adds to the query.
func inQuery(more string) func(*http.Request) {
	return func(r *http.Request) { r.URL.RawQuery = strings.TrimPrefix(r.URL.RawQuery+"&"+more, "&") }
}
