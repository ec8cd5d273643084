package sigv4

import (
	"bufio"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// FuzzVerify: no request, however it is made, verifies without the secret, or is answered otherwise than by a refusal of S3's.
func FuzzVerify(f *testing.F) {
	put := putRequest("/~fence/34/b/a%2Fb+c?x-id=PutObject&acl", "Authorization: "+valid, "X-Amz-Meta-A: 1", "X-Amz-Security-Token: fence=34")
	f.Add(put)
	f.Add(strings.Replace(put, base, base+";x-amz-meta-a;x-amz-security-token", 1))
	f.Add(strings.Replace(put, "X-Amz-Date", "Date", 1))
	f.Add(strings.Replace(putRequest("http://proxy:9000//b/../k", "Authorization: "+valid), "Content-Length: 0", "Transfer-Encoding: chunked", 1))
	f.Add(putRequest("/b/k?X-Amz-Signature=1"))
	f.Add(putRequest("/b/k?Signature=1", "Authorization: AWS a:b"))
	secret := rand.Text()
	v := New(func(id string) (string, bool) { return secret, id == testKey }, Options{Now: func() time.Time { return testTime }})
	f.Fuzz(func(t *testing.T, raw string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(raw, "\n", "\r\n"))))
		if err != nil {
			return
		}
		id, err := v.Verify(r)
		var e *Error
		if !errors.As(err, &e) || e.Code == "" || e.Message == "" || e.Status != 400 && e.Status != 403 && e.Status != 501 {
			t.Fatalf("%q: %+v, %v", raw, id, err)
		}
		if id.AccessKey != "" || id.SignedHeaders != nil {
			t.Fatalf("%q: an identity beside the error %v: %+v", raw, err, id)
		}
	})
}

// FuzzSpellings: each spelling of a path that may have been signed leads to what net/http decodes the path to.
func FuzzSpellings(f *testing.F) {
	for _, path := range []string{"/b/k", "/b/a%2fb%2B+", "/~fence/34;holder=a%2Fb/b/k", "//b/../中%ff%00"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n")))
		if err != nil || !strings.HasPrefix(r.RequestURI, "/") || strings.ContainsAny(path, "? \r\n") {
			return
		}
		s := new(scratch)
		spellings, err := s.spellings(r.RequestURI)
		if err != nil {
			t.Fatalf("%q: %v", path, err)
		}
		for _, spelling := range spellings {
			decoded := make([]byte, 0, len(spelling))
			for i := 0; i < len(spelling); i++ {
				c := spelling[i]
				if c == '%' {
					c, _ = decode(string(spelling[i:]))
					i += 2
				}
				decoded = append(decoded, c)
			}
			if string(decoded) != r.URL.Path {
				t.Errorf("%q: spelled %q, which is %q and not %q", path, spelling, decoded, r.URL.Path)
			}
		}
	})
}
