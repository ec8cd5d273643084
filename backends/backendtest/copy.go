package backendtest

import (
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// copyTo asks for a copy of a key of the client's bucket.
func (c *client) copyTo(to, from string, headers ...string) answer {
	c.Helper()
	return c.do(http.MethodPut, c.key(to), nil, append([]string{"X-Amz-Copy-Source", target(c.bucket, from)}, headers...)...)
}

// copied checks the answer to a copy of an object that a PUT has made.
func (c *client) copied(a answer, element, content string) {
	c.Helper()
	c.want(a, http.StatusOK, "")
	var result struct {
		XMLName      xml.Name
		ETag         string
		LastModified time.Time
	}
	if err := xml.Unmarshal(a.body, &result); err != nil || result.XMLName.Local != element || result.ETag != etagOf(content) || time.Since(result.LastModified).Abs() > time.Hour {
		c.Fatalf("%v in %s, want a %s with the ETag %s", err, a.body, element, etagOf(content))
	}
}

func testCopy(c *client) {
	for _, content := range []string{"", "small", random(3<<20 + 1)} {
		c.put("from/key", content)
		c.copied(c.copyTo("to/new/key", "from/key"), "CopyObjectResult", content)
		c.holds("to/new/key", content)
		c.holds("from/key", content)
	}
	other := c.newBucket()
	odd := "a b+c%d?e&\u00fc"
	c.put(odd, "odd")
	every := "" // each byte escaped, the slash too
	for _, b := range []byte(c.bucket + "/" + odd) {
		every += "%" + string("0123456789ABCDEF"[b>>4]) + string("0123456789ABCDEF"[b&15])
	}
	for i, source := range []string{target(c.bucket, odd), strings.TrimPrefix(target(c.bucket, odd), "/"), every, "/" + c.bucket + "/" + url.PathEscape(odd)} {
		to := target(other, "copy"+string(rune('0'+i)))
		c.copied(c.do(http.MethodPut, to, nil, "X-Amz-Copy-Source", source), "CopyObjectResult", "odd")
		if a := c.do(http.MethodGet, to, nil); string(a.body) != "odd" {
			c.Errorf("source %s: %d %s", source, a.status, a.body)
		}
	}
}

func testCopyMetadata(c *client) {
	c.put("key", "content", "X-Amz-Meta-Colour", "green", "Content-Type", "text/plain", "Cache-Control", "no-store")
	given := []string{"X-Amz-Meta-Shape", "round", "Content-Type", "text/html"}
	type want map[string]string
	for _, test := range []struct {
		to      string
		headers []string
		want    want
	}{
		{"plain", given, want{"X-Amz-Meta-Colour": "green", "X-Amz-Meta-Shape": "", "Content-Type": "text/plain", "Cache-Control": "no-store"}},
		{"copy", append(given, "X-Amz-Metadata-Directive", "COPY"), want{"X-Amz-Meta-Colour": "green", "X-Amz-Meta-Shape": "", "Content-Type": "text/plain"}},
		{"replace", append(given, "X-Amz-Metadata-Directive", "REPLACE"), want{"X-Amz-Meta-Colour": "", "X-Amz-Meta-Shape": "round", "Content-Type": "text/html", "Cache-Control": ""}},
		{"key", append(given, "X-Amz-Metadata-Directive", "REPLACE"), want{"X-Amz-Meta-Colour": "", "X-Amz-Meta-Shape": "round", "Content-Type": "text/html"}}, // onto itself
	} {
		c.copied(c.copyTo(test.to, "key", test.headers...), "CopyObjectResult", "content")
		c.holds(test.to, "content")
		a := c.get(test.to)
		for k, v := range test.want {
			if got := a.header.Get(k); got != v {
				c.Errorf("the copy %s has %s: %q, want %q", test.to, k, got, v)
			}
		}
	}
}

func testCopyRefused(c *client) {
	c.put("key", "content", "X-Amz-Meta-Colour", "green")
	c.want(c.copyTo("to", "none"), http.StatusNotFound, "NoSuchKey")
	c.want(c.copyTo("to", "none/deep/er"), http.StatusNotFound, "NoSuchKey")
	c.want(c.do(http.MethodPut, c.key("to"), nil, "X-Amz-Copy-Source", "/"+c.bucket+"-none/key"), http.StatusNotFound, "NoSuchBucket")
	c.want(c.do(http.MethodPut, target(c.bucket+"-none", "to"), nil, "X-Amz-Copy-Source", c.key("key")), http.StatusNotFound, "NoSuchBucket")
	for _, source := range []string{"", "/", c.bucket, "/" + c.bucket + "/", "no-slash"} {
		if a := c.do(http.MethodPut, c.key("to"), nil, "X-Amz-Copy-Source", source); a.status < 400 || a.status >= 500 {
			c.Errorf("the source %q: %d %s", source, a.status, a.body)
		}
	}
	c.want(c.copyTo("key", "key"), http.StatusBadRequest, "InvalidRequest")
	c.want(c.copyTo("key", "key", "X-Amz-Metadata-Directive", "COPY"), http.StatusBadRequest, "InvalidRequest")
	c.want(c.copyTo("to", "key", "X-Amz-Metadata-Directive", "KEEP"), http.StatusBadRequest, "InvalidArgument")
	if a := c.do(http.MethodPut, c.key("to"), nil, "X-Amz-Copy-Source", c.key("key")+"?versionId=3sL4kqtJlcpXroDTDmJ-rmSpXd3dIbrHY"); a.status < 400 {
		c.Errorf("a version that is none was copied: %d %s", a.status, a.body)
	}
	c.absent("to")
	c.holds("key", "content")
	if got := c.get("key").header.Get("X-Amz-Meta-Colour"); got != "green" {
		c.Errorf("a refused copy has changed the metadata: %q", got)
	}
}

func testCopySourceConditions(c *client) {
	c.put("key", "content")
	etag, no := etagOf("content"), etagOf("other")
	past, future := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), time.Now().Add(-time.Second).Add(time.Hour).UTC().Format(http.TimeFormat)
	const match, none, since, until = "X-Amz-Copy-Source-If-Match", "X-Amz-Copy-Source-If-None-Match", "X-Amz-Copy-Source-If-Modified-Since", "X-Amz-Copy-Source-If-Unmodified-Since"
	for _, test := range []struct {
		headers []string
		holds   bool
	}{
		{[]string{match, etag}, true},
		{[]string{match, no}, false},
		{[]string{none, no}, true},
		{[]string{none, etag}, false},
		{[]string{since, past}, true},
		{[]string{until, future}, true},
		{[]string{until, past}, false},
		{[]string{match, etag, until, past}, true}, // S3's page on CopyObject: the ETag decides
		{[]string{none, etag, since, past}, false},
	} {
		a := c.copyTo("to", "key", test.headers...)
		if test.holds {
			c.copied(a, "CopyObjectResult", "content")
			c.holds("to", "content")
			c.want(c.do(http.MethodDelete, c.key("to"), nil), http.StatusNoContent, "")
		} else {
			c.want(a, http.StatusPreconditionFailed, "PreconditionFailed")
			c.absent("to")
		}
	}
}

func testCopyConditions(c *client) {
	c.put("key", "content")
	c.want(c.copyTo("dir/to", "key", "If-Match", etagOf("x")), http.StatusNotFound, "NoSuchKey")
	c.absent("dir/to")
	c.want(c.copyTo("dir/to", "key", "If-None-Match", "*"), http.StatusOK, "")
	c.holds("dir/to", "content")
	c.put("key", "fresh")
	c.want(c.copyTo("dir/to", "key", "If-None-Match", "*"), http.StatusPreconditionFailed, "PreconditionFailed")
	c.want(c.copyTo("dir/to", "key", "If-Match", etagOf("fresh")), http.StatusPreconditionFailed, "PreconditionFailed")
	c.holds("dir/to", "content")
	c.want(c.copyTo("dir/to", "key", "If-Match", etagOf("content")), http.StatusOK, "")
	c.holds("dir/to", "fresh")
}

// testCopyOneVersion copies an object that is overwritten all the time: the copy is one of its versions, with that one's metadata.
func testCopyOneVersion(c *client) {
	version := func(i int) string { return strings.Repeat(string(rune('a'+i)), 200<<10) }
	c.put("key", version(0), "X-Amz-Meta-Version", "a")
	var all sync.WaitGroup
	stop := make(chan struct{})
	all.Go(func() {
		for i := 0; ; i = (i + 1) % 5 {
			select {
			case <-stop:
				return
			default:
			}
			a := c.do(http.MethodPut, c.key("key"), strings.NewReader(version(i)), "X-Amz-Meta-Version", version(i)[:1])
			if a.status != http.StatusOK {
				c.Errorf("PUT: %d %s", a.status, a.body)
			}
		}
	})
	for range 50 {
		a := c.copyTo("to", "key")
		got := c.get("to")
		if a.status != http.StatusOK || got.status != http.StatusOK || len(got.body) == 0 ||
			string(got.body) != strings.Repeat(got.header.Get("X-Amz-Meta-Version"), 200<<10) || got.etag() != etagOf(string(got.body)) {
			c.Errorf("copy: %d %s; it has %s, of version %q, with the ETag %s", a.status, a.body, short(got.body), got.header.Get("X-Amz-Meta-Version"), got.etag())
			break
		}
	}
	close(stop)
	all.Wait()
}

// failing is a body that is refused at its end.
func failing(content string) io.ReadCloser {
	return &scripted{content: readerOf(content), end: func() error { return io.ErrUnexpectedEOF }}
}
