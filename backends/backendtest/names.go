package backendtest

import (
	"cmp"
	"encoding/xml"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// testSpellings writes keys that are easily taken for one another, by one spelling, and reads them by another.
func testSpellings(c *client) {
	long := strings.Repeat(strings.Repeat("k", 249)+"/", 4) + strings.Repeat("k", 24) // 1024 bytes
	keys := []string{
		"plus+plus", "plus plus", "plus%2Bplus", "plus%20plus", "per%cent", "semi;colon", "quest?ion", "ha#sh", "am&p=er", `quo"te`, "<tag>", "back\\slash",
		"unicode/\u00fcml\u00e4ut/\u65e5\u672c\u8a9e/\U0001f512", "e\u0301", "\u00e9", "~tilde", "a,b:c@d!e$f'g(h)i*j", ".hidden", "...", "a..b", " leading", "trailing ",
		"UPPER", "upper", "con\ttrol", "new\nline", long,
	}
	for _, k := range keys {
		c.put(k, "content of "+k)
	}
	for _, k := range keys {
		if a := c.get(k); a.status != http.StatusOK || string(a.body) != "content of "+k {
			c.Errorf("%q: %d %s", k, a.status, a.body)
		}
		every := "/" + c.bucket + "/" // every byte escaped, the slashes too
		for i := range len(k) {
			every += "%" + string("0123456789ABCDEF"[k[i]>>4]) + string("0123456789abcdef"[k[i]&15])
		}
		if a := c.do(http.MethodGet, every, nil); a.status != http.StatusOK || string(a.body) != "content of "+k {
			c.Errorf("%q, by the spelling %s: %d %s", k, every, a.status, a.body)
		}
	}
	var listed []string
	for _, o := range c.list(c.bucket, url.Values{"encoding-type": {"url"}}).Contents {
		k, err := url.PathUnescape(o.Key)
		if err != nil {
			c.Error(err)
		}
		listed = append(listed, k)
	}
	slices.Sort(keys)
	if !slices.Equal(listed, keys) {
		c.Errorf("listed are\n%q, want\n%q", listed, keys)
	}
	for _, k := range keys { // the cleanup lists without encoding, and XML has no way to write some of these
		c.want(c.do(http.MethodDelete, c.key(k), nil), http.StatusNoContent, "")
	}
}

func testRefusedKeys(c *client) {
	tooLong := strings.Repeat(strings.Repeat("k", 249)+"/", 4) + strings.Repeat("k", 25)
	for _, method := range []string{http.MethodPut, http.MethodGet, http.MethodDelete} {
		c.want(c.do(method, c.key(tooLong), nil), http.StatusBadRequest, "KeyTooLongError")
	}
	for _, b := range []string{"ab", "Upper", "-dash", "dash-", "a..b", "192.168.5.4", "192.168.05.400", "under_score", ".fenceproxy", "..", strings.Repeat("b", 64)} {
		c.want(c.do(http.MethodPut, "/"+b, nil), http.StatusBadRequest, "InvalidBucketName")
		c.want(c.do(http.MethodPut, "/"+b+"/key", strings.NewReader("x")), http.StatusBadRequest, "InvalidBucketName")
	}
}

// testTreeKeys tries what a file system would make one name of, or cannot hold.
func testTreeKeys(c *client) {
	c.put("a/b", "file")
	for k, code := range map[string]string{
		"a//b": "", "/a/b": "", "a//": "", "a/./b": "", "./a/b": "", "a/../a/b": "",
		"//": "400", "./": "400", "../" + c.bucket + "/a/b": "400", "a/../../a": "400", "a/..": "400", "..": "400", "../": "400", ".": "400",
		"nul\x00": "", "bad\xffutf8": "", strings.Repeat("k", 256): "KeyTooLongError", strings.Repeat("k", 256) + "/k": "KeyTooLongError",
	} {
		code = cmp.Or(code, "InvalidArgument")
		raw := "/" + c.bucket + "/" + strings.ReplaceAll(url.PathEscape(k), "%2F", "/")
		for _, method := range []string{http.MethodPut, http.MethodGet, http.MethodHead, http.MethodDelete} {
			if a := c.do(method, raw, nil); a.status != http.StatusBadRequest || method != http.MethodHead && a.code() != code {
				c.Errorf("%s %q: %d %s, want 400 %s", method, k, a.status, a.body, code)
			}
		}
	}
	for k, code := range map[string]string{"a": "ExistingObjectIsDirectory", "a/b/c": "ObjectParentIsFile", "a/b/c/d": "ObjectParentIsFile", "a/b/": "ObjectParentIsFile"} {
		c.testConflict(k, code)
	}
	c.holds("a/b", "file")
	c.put(strings.Repeat("k", 255), "longest")
	c.put(strings.Repeat("k/", 511)+"k", "deepest")
	c.holds(strings.Repeat("k/", 511)+"k", "deepest")
}

// testConflict tries every way to make an object whose key cannot be beside another one.
func (c *client) testConflict(key, code string) {
	c.put("source", "")
	content := "x"
	if strings.HasSuffix(key, "/") {
		content = ""
	}
	c.want(c.putIf(key, content), http.StatusBadRequest, code)
	c.want(c.do(http.MethodPut, c.key(key), nil, "X-Amz-Copy-Source", "/"+c.bucket+"/source"), http.StatusBadRequest, code)
	if content != "" {
		u := c.create(key)
		u.part(1, "x")
		c.want(u.sendComplete(u.document(1)), http.StatusBadRequest, code)
		c.want(u.abort(), http.StatusNoContent, "")
	}
	c.absent(key)
	c.want(c.do(http.MethodDelete, c.key(key), nil), http.StatusNoContent, "")
}

func testBuckets(c *client) {
	b := c.bucket
	c.want(c.do(http.MethodHead, "/"+b, nil), http.StatusOK, "")
	c.want(c.do(http.MethodHead, "/"+b+"/", nil), http.StatusOK, "")
	c.want(c.do(http.MethodPut, "/"+b, nil), http.StatusConflict, "BucketAlreadyOwnedByYou")
	c.want(c.do(http.MethodHead, "/"+b+"-none", nil), http.StatusNotFound, "")
	c.want(c.do(http.MethodDelete, "/"+b+"-none", nil), http.StatusNotFound, "NoSuchBucket")
	c.want(c.do(http.MethodGet, "/"+b+"?location", nil), http.StatusOK, "")
	c.want(c.do(http.MethodGet, "/"+b+"-none?location", nil), http.StatusNotFound, "NoSuchBucket")

	other := c.newBucket()
	names := c.buckets()
	if !slices.Contains(names, b) || !slices.Contains(names, other) || !slices.IsSorted(names) {
		c.Errorf("the buckets are %q, want %s and %s among them, in order", names, b, other)
	}
	c.put("dir/key", "content")
	c.want(c.do(http.MethodDelete, "/"+b, nil), http.StatusConflict, "BucketNotEmpty")
	c.holds("dir/key", "content")
	c.want(c.do(http.MethodGet, target(other, "dir/key"), nil), http.StatusNotFound, "NoSuchKey")

	third := b + "-3"
	body := `<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>`
	c.want(c.do(http.MethodPut, "/"+third+"/", strings.NewReader(body)), http.StatusOK, "")
	c.want(c.do(http.MethodDelete, "/"+third, nil), http.StatusNoContent, "")
	c.want(c.do(http.MethodHead, "/"+third, nil), http.StatusNotFound, "")
	if names := c.buckets(); slices.Contains(names, third) {
		c.Errorf("%s is still there: %q", third, names)
	}
}

func (c *client) buckets() []string {
	c.Helper()
	a := c.do(http.MethodGet, "/", nil)
	c.want(a, http.StatusOK, "")
	var result struct {
		XMLName xml.Name `xml:"ListAllMyBucketsResult"`
		Names   []string `xml:"Buckets>Bucket>Name"`
	}
	if err := xml.Unmarshal(a.body, &result); err != nil {
		c.Fatalf("ListBuckets: %v in %s", err, a.body)
	}
	return result.Names
}
