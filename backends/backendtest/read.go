package backendtest

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

func testReadMissing(c *client) {
	c.put("a/b", "content")
	c.absent("key")
	c.absent("a/c")
	c.absent("b/c/d")
	c.absent("a/b2")
}

func testHead(c *client) {
	c.put("key", "content", "Content-Type", "text/plain")
	a := c.do(http.MethodHead, c.key("key"), nil)
	c.want(a, http.StatusOK, "")
	for k, v := range map[string]string{
		"Content-Length": "7", "ETag": etagOf("content"), "Accept-Ranges": "bytes", "Content-Type": "text/plain",
	} {
		if a.header.Get(k) != v {
			c.Errorf("HEAD: %s is %q, want %q", k, a.header.Get(k), v)
		}
	}
	at, err := http.ParseTime(a.header.Get("Last-Modified"))
	if age := time.Since(at); err != nil || age < -time.Hour || age > time.Hour {
		c.Errorf("HEAD: Last-Modified is %q", a.header.Get("Last-Modified"))
	}
}

func testRanges(c *client) {
	c.put("key", "0123456789")
	c.put("empty", "")
	for _, test := range []struct {
		key, ask string
		status   int
		want     string
		says     string
	}{
		{"key", "bytes=0-3", 206, "0123", "bytes 0-3/10"},
		{"key", "bytes=3-", 206, "3456789", "bytes 3-9/10"},
		{"key", "bytes=-2", 206, "89", "bytes 8-9/10"},
		{"key", "bytes=-20", 206, "0123456789", "bytes 0-9/10"},
		{"key", "bytes=8-20", 206, "89", "bytes 8-9/10"},
		{"key", "bytes=9-9", 206, "9", "bytes 9-9/10"},
		{"key", "bytes=0-1,4-5", 200, "0123456789", ""}, // S3 takes several ranges for none
		{"key", "bytes=x-", 200, "0123456789", ""},      // and one that it cannot read
		{"key", "bytes=4-3", 200, "0123456789", ""},
		{"key", "lines=0-3", 200, "0123456789", ""},
		{"key", "bytes=10-", 416, "", ""},
		{"key", "bytes=20-30", 416, "", ""},
		{"key", "bytes=-0", 416, "", ""},
		{"empty", "bytes=0-", 416, "", ""},
		{"empty", "bytes=-5", 200, "", ""}, // RFC 9110, section 14.1.2: the last 5 bytes of nothing are nothing
	} {
		a := c.get(test.key, "Range", test.ask)
		if a.status != test.status || a.status < 400 && (string(a.body) != test.want || a.header.Get("Content-Range") != test.says) {
			c.Errorf("Range %s of %s: %d %q %q, want %d %q %q", test.ask, test.key, a.status, a.body, a.header.Get("Content-Range"), test.status, test.want, test.says)
		}
		if test.status == 416 && a.code() != "InvalidRange" {
			c.Errorf("Range %s of %s: code %s, want InvalidRange", test.ask, test.key, a.code())
		}
		if h := c.do(http.MethodHead, c.key(test.key), nil, "Range", test.ask); h.status != test.status ||
			h.status < 400 && h.header.Get("Content-Length") != fmt.Sprint(len(test.want)) {
			c.Errorf("HEAD with Range %s of %s: %d %v", test.ask, test.key, h.status, h.header)
		}
	}
}

func testConditionalReads(c *client) {
	c.put("key", "content", "Content-Encoding", "gzip", "X-Amz-Meta-K", "v")
	here, other := etagOf("content"), etagOf("other")
	past, future := "Mon, 01 Jan 2001 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"
	for _, test := range []struct {
		headers []string
		status  int
	}{
		{[]string{"If-Match", here}, 200},
		{[]string{"If-Match", strings.Trim(here, `"`)}, 200},
		{[]string{"If-Match", "*"}, 200},
		{[]string{"If-Match", other}, 412},
		{[]string{"If-None-Match", here}, 304},
		{[]string{"If-None-Match", strings.Trim(here, `"`)}, 304},
		{[]string{"If-None-Match", other}, 200},
		{[]string{"If-Modified-Since", past}, 200},
		{[]string{"If-Modified-Since", future}, 304},
		{[]string{"If-Unmodified-Since", past}, 412},
		{[]string{"If-Unmodified-Since", future}, 200},
		{[]string{"If-Match", here, "If-Unmodified-Since", past}, 200},
		{[]string{"If-None-Match", here, "If-Modified-Since", past}, 304},
		{[]string{"If-Match", other, "Range", "bytes=0-1"}, 412},
	} {
		a := c.get("key", test.headers...)
		c.want(a, test.status, map[int]string{412: "PreconditionFailed"}[test.status])
		h := c.do(http.MethodHead, c.key("key"), nil, test.headers...)
		c.want(h, test.status, "")
		if test.status == 412 && (a.header.Get("X-Amz-Meta-K") != "" || a.header.Get("Content-Encoding") != "") {
			c.Errorf("a refusal has the object's headers: %v", a.header)
		}
		if test.status == 304 && (len(a.body) > 0 || a.etag() != here) {
			c.Errorf("304 with the body %q and the ETag %s", a.body, a.etag())
		}
	}
}

func testOverrides(c *client) {
	c.put("key", "content", "Content-Type", "text/plain")
	a := c.do(http.MethodGet, c.key("key")+"?response-content-type=text%2Fcsv&response-content-disposition=inline&x-id=GetObject", nil)
	c.want(a, http.StatusOK, "")
	if a.header.Get("Content-Type") != "text/csv" || a.header.Get("Content-Disposition") != "inline" {
		c.Errorf("overrides were not taken: %v", a.header)
	}
}

// testOneVersion reads while the object is replaced: content, ETag and metadata always belong together.
func testOneVersion(c *client) {
	content := func(i int) string { return strings.Repeat(fmt.Sprintf("%04d", i), 2000+i) }
	write := func(i int) { c.put("dir/key", content(i), "X-Amz-Meta-Etag", etagOf(content(i))) }
	write(0)
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a := c.get("dir/key")
				if sum := etagOf(string(a.body)); a.status != 200 || a.etag() != sum || a.header.Get("X-Amz-Meta-Etag") != sum {
					c.Errorf("read %d with %d bytes, MD5 %s, ETag %s and the metadata of %s", a.status, len(a.body), sum, a.etag(), a.header.Get("X-Amz-Meta-Etag"))
					return
				}
			}
		})
	}
	for i := range 100 {
		write(i + 1)
	}
	close(done)
	readers.Wait()
}
