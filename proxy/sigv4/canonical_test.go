package sigv4

import (
	"net/http"
	"strings"
	"testing"
)

// TestSpellings: traps 4 and 5. What stands on the wire may be encoded less or more than what was signed, as long as it is the same object.
func TestSpellings(t *testing.T) {
	for _, c := range []struct {
		wire, signed string
		ok           bool
	}{
		{"/b/k", "/b/k", true},
		{"/b/a+b=c@d", "/b/a%2Bb%3Dc%40d", true},
		{"/b/a+b=c@d", "/b/a+b=c@d", true},
		{"/b/!(a)*'", "/b/%21%28a%29%2A%27", true},
		{"/b/%7ea%2d%5Fb", "/b/~a-_b", true},
		{"/b/%e4%B8%ad", "/b/%E4%B8%AD", true},
		{"/b/中", "/b/%E4%B8%AD", true},
		{"/b/中", "/b/中", true},
		{"/b//a/./b/../c", "/b//a/./b/../c", true},
		{"/b//a/./b/../c", "/b/a/c", false},
		{"//b/k", "//b/k", true},
		{"/b/k/", "/b/k/", true},
		{"/b/k/", "/b/k", false},
		{"/b/a%2Fb", "/b/a/b", true},
		{"/b/a%2Fb", "/b/a%2Fb", true},
		{"/b/a%2fb", "/b/a%2Fb", true},
		{"/b/a/b", "/b/a%2Fb", false},
		{"/b/a%252Fb", "/b/a%2Fb", false},
		{"/b/a%252Fb", "/b/a%252Fb", true},
		{"/b/a+b", "/b/a%20b", false},
		{"/b/a%20b", "/b/a+b", false},
		{"/b/a#b", "/b/a%23b", true},
		{"/b/%00%FF", "/b/%00%FF", true},
		{"/~fence/34;holder=a/b/k", "/~fence/34;holder=a/b/k", true},
		{"/~fence/34;holder=a/b/k", "/~fence/34%3Bholder%3Da/b/k", true},
		{"/%7Efence/34/b/k", "/~fence/34/b/k", true},
		{"/~fence/34;holder=a%2Fc/b/k", "/~fence/34;holder=a%2Fc/b/k", true},
		{"/~fence/34;holder=a%2Fc/b/k", "/~fence/34;holder=a/c/b/k", false}, // another holder, another object
		{"/~fence/34;holder=a%2Fc/b/k", "/~fence/34%3Bholder%3Da/c/b/k", false},
		{"/~fence/34;holder=a/c/b/k", "/~fence/34;holder=a%2Fc/b/k", false},
		{"/~fence%2F34/b/k", "/~fence/34/b/k", false}, // another bucket
		{"/%7efence%2F34/b/k", "/~fence/34/b/k", false},
		{"/~fence/34/b/k", "/~fence/35/b/k", false},
		{"/~fence/34/b/k", "/b/k", false},
		{"/b/k", "/~fence/34/b/k", false},
		{"http://proxy:9000/b/k", "/b/k", true},
		{"HTTP://proxy:9000//b/k", "//b/k", true},
		{"http://proxy:9000", "/", true},
		{"http://proxy:9000?acl", "/", true},
		{"https://proxy:9000/b/k?acl=/", "/b/k", true},
	} {
		id, err := newTest(Options{}).Verify(signed(t, putRequest(c.wire), c.signed, base))
		if (err == nil) != c.ok || (id.AccessKey == testKey) != c.ok || err != nil && codeOf(err) != "SignatureDoesNotMatch" {
			t.Errorf("%s, signed as %s: %v", c.wire, c.signed, err)
		}
	}
}

// TestBadEscapesInPaths: net/http lets none through; a request from elsewhere is refused.
func TestBadEscapesInPaths(t *testing.T) {
	for _, path := range []string{"/b/%", "/b/%4", "/b/%zz", "/b/%4g"} {
		r := parse(t, putRequest("/b/k", "Authorization: "+valid))
		r.RequestURI = path
		if _, err := newTest(Options{}).Verify(r); codeOf(err) != invalidURI {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestCanonicalQuery(t *testing.T) {
	for raw, want := range map[string]string{
		"":                      "",
		"acl":                   "acl=",
		"acl=":                  "acl=",
		"&&acl&":                "acl=",
		"b=2&a=1":               "a=1&b=2",
		"a=2&a=1&a=":            "a=&a=1&a=2",
		"a-b=1&a=2":             "a=2&a-b=1", // by name, not by the whole pair
		"a=b-c&a=b/c":           "a=b%2Fc&a=b-c",
		"prefix=a+b":            "prefix=a%20b",
		"prefix=a%2Bb":          "prefix=a%2Bb",
		"prefix=a/b&marker=a=b": "marker=a%3Db&prefix=a%2Fb",
		"prefix=%7e%c3%a9é":     "prefix=~%C3%A9%C3%A9",
		"B=1&a=2&%41=3":         "A=3&B=1&a=2",
		"=1":                    "=1",
		"a=%00%26%3B":           "a=%00%26%3B",
	} {
		s := new(scratch)
		if _, err := s.readQuery(raw); err != nil {
			t.Errorf("%q: %v", raw, err)
			continue
		}
		r := &http.Request{}
		if err := s.readRest(r, authorization{}, ""); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := strings.Cut(string(s.rest), "\n"); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}

// TestCanonicalHeaders: trap 4, of what net/http takes out of the headers of a request, the signed ones are made again.
func TestCanonicalHeaders(t *testing.T) {
	r := parse(t, "PUT /b/k HTTP/1.1\nHost: proxy:9000\nX-A:  two   words\t \nX-B: 1\nx-b: 2 \nX-B:\nX-Empty:\nContent-Length: 3\nExpect: 100-continue\nX-Meta: \"a  b\"\n\nabc")
	chunked := parse(t, "PUT /b/k HTTP/1.1\nHost: proxy:9000\nTransfer-Encoding: chunked\nTrailer: X-Two\nTrailer: X-One\n\n0\n\n")
	for _, c := range []struct {
		r          *http.Request
		name, want string
	}{
		{r, "host", "proxy:9000"},
		{r, "x-a", "two words"},
		{r, "x-b", "1,2,"},
		{r, "x-empty", ""},
		{r, "x-missing", ""},
		{r, "x-meta", `"a b"`},
		{r, "content-length", "3"},
		{r, "transfer-encoding", ""},
		{r, "expect", "100-continue"},
		{chunked, "content-length", ""},
		{chunked, "transfer-encoding", "chunked"},
		{chunked, "trailer", "X-One,X-Two"},
		{&http.Request{ContentLength: 5}, "content-length", "5"},
		{&http.Request{Header: http.Header{"X-A": {"\ttwo \t words\t"}}}, "x-a", "two words"},
		{&http.Request{Header: http.Header{"X-" + strings.Repeat("A", 1) + strings.Repeat("a", 99): {"long"}}}, "x-" + strings.Repeat("a", 100), "long"},
	} {
		got, ok := appendHeader(nil, c.r, c.name)
		if !ok || string(got) != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	for _, c := range []string{"a\nb", "a\rb", "a\x00", "\x7f"} {
		if _, ok := appendHeader(nil, &http.Request{Header: http.Header{"X-A": {c}}}, "x-a"); ok {
			t.Errorf("%q goes through", c)
		}
	}
}

// TestCredentialsOtherClientsSend are forms of the header that differ from the SDK's.
func TestCredentialsOtherClientsSend(t *testing.T) {
	r := signed(t, putRequest("/b/k"), "/b/k", base)
	sent := r.Header.Get("Authorization")
	parts := strings.Split(strings.TrimPrefix(sent, algorithm+" "), ", ")
	for _, form := range []string{
		algorithm + " " + strings.Join(parts, ","),
		algorithm + "   " + strings.Join(parts, " ,\t"),
		algorithm + " " + parts[2] + "," + parts[0] + "," + parts[1],
	} {
		r.Header.Set("Authorization", form)
		if _, err := newTest(Options{}).Verify(r); err != nil {
			t.Errorf("%s: %v", form, err)
		}
	}
	v := New(func(id string) (string, bool) { return testSecret, id == "a/b/c" }, Options{Now: newTest(Options{}).now})
	r.Header.Set("Authorization", strings.Replace(sent, testKey, "a/b/c", 1))
	if id, err := v.Verify(r); err != nil || id.AccessKey != "a/b/c" {
		t.Errorf("an access key with slashes: %v", err)
	}
}
