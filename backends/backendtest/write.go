package backendtest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

func testRoundTrip(c *client) {
	for _, size := range []int{1, 4 << 10, 256 << 10, 256<<10 + 1, 3 << 20} {
		key, content := fmt.Sprintf("size/%d", size), random(size)
		c.absent(key)
		if a := c.put(key, content); a.etag() != etagOf(content) {
			c.Errorf("PUT of %d bytes answered the ETag %s, want the quoted MD5 %s", size, a.etag(), etagOf(content))
		}
		c.holds(key, content)
	}
}

func testMetadata(c *client) {
	given := []string{
		"Content-Type", "text/plain; charset=utf-8",
		"Cache-Control", "max-age=60",
		"Content-Disposition", `attachment; filename="a b.txt"`,
		"Content-Encoding", "gzip",
		"Content-Language", "de",
		"Expires", "Thu, 01 Dec 2033 16:00:00 GMT",
		"X-Amz-Meta-Plain", "value",
		"X-Amz-Meta-With-Signs", `a=b&c;d%20"e" f+g`,
	}
	c.put("with", "content", given...)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		a := c.do(method, c.key("with"), nil)
		for i := 0; i < len(given); i += 2 {
			if got := a.header.Get(given[i]); got != given[i+1] {
				c.Errorf("%s: %s is %q, want %q", method, given[i], got, given[i+1])
			}
		}
		if got := a.header.Get("Content-Length"); got != "7" {
			c.Errorf("%s: Content-Length %q of an object with a Content-Encoding, want 7", method, got)
		}
	}

	c.put("with", "other") // a new version has only what it brings itself
	a := c.get("with")
	if a.header.Get("X-Amz-Meta-Plain") != "" || a.header.Get("Cache-Control") != "" {
		c.Errorf("metadata of the version before is still there: %v", a.header)
	}
	if got := a.header.Get("Content-Type"); got != "binary/octet-stream" && got != "application/octet-stream" {
		c.Errorf("Content-Type is %q where none was given", got)
	}

	c.put("chunked", "content", "Content-Encoding", "aws-chunked")
	c.put("chunked-gzip", "content", "Content-Encoding", "aws-chunked,gzip")
	if got := c.get("chunked").header.Get("Content-Encoding"); got != "" {
		c.Errorf("aws-chunked was stored as the Content-Encoding %q", got)
	}
	if got := c.get("chunked-gzip").header.Get("Content-Encoding"); got != "gzip" {
		c.Errorf("aws-chunked,gzip was stored as the Content-Encoding %q", got)
	}
}

func testEmptyBody(c *client) {
	bodies := map[string]func() io.ReadCloser{
		"nil":    func() io.ReadCloser { return nil },
		"NoBody": func() io.ReadCloser { return http.NoBody },
		"empty":  func() io.ReadCloser { return io.NopCloser(strings.NewReader("")) },
	}
	for name, body := range bodies {
		r := request(http.MethodPut, c.key(name), nil)
		r.Body, r.ContentLength = body(), 0
		c.want(c.send(r), http.StatusOK, "")
		c.holds(name, "")
	}
}

func testOverwrite(c *client) {
	for i := range 5 {
		content := strings.Repeat("x", i) + fmt.Sprint(i)
		c.put("dir/key", content)
		c.holds("dir/key", content)
	}
}

// testBodyFails ends the body with an error at each tenth of it, and after the last byte in place of io.EOF.
func testBodyFails(c *client) {
	const size = 1 << 20
	old, fresh := "old", random(size)
	c.put("present", old, "X-Amz-Meta-Version", "1")
	for _, failure := range []error{io.ErrUnexpectedEOF, errors.New("the signature of a chunk does not match")} {
		for tenth := range 11 {
			for key, before := range map[string]*string{"present": &old, "absent": nil, "absent/deep/er": nil} {
				end := func() error {
					c.is(key, before) // a reader that looks meanwhile
					return failure
				}
				a := c.putScripted(key, fresh[:size*tenth/10], size, tenth%2 == 0, end)
				if a.status < 400 || a.status >= 500 && a.status != 501 && a.status != 503 {
					c.Errorf("a body that ended with %q after %d tenths was answered %d, which does not say that nothing was changed", failure, tenth, a.status)
				}
				c.is(key, before)
			}
		}
	}
	if got := c.get("present").header.Get("X-Amz-Meta-Version"); got != "1" {
		c.Errorf("the old version has lost its metadata: %q", got)
	}
}

// testBodyFailsFirst fails a body for whose key nothing is there yet, and checks that it leaves nothing in the way.
func testBodyFailsFirst(c *client) {
	a := c.putScripted("a/b/c", "half", 8, false, func() error { return io.ErrUnexpectedEOF })
	c.want(a, http.StatusBadRequest, "")
	c.put("a", "where a directory would be")
	c.holds("a", "where a directory would be")
}

// testHeldEnd holds the end of the body back, as the fence does.
func testHeldEnd(c *client) {
	for _, together := range []bool{false, true} {
		for key, before := range map[string]*string{"key": ptr("old"), "new": nil, "new-dir/x/y": nil} {
			if before != nil {
				c.put(key, *before)
			}
			reached, release, done := make(chan struct{}), make(chan struct{}), make(chan answer)
			fresh := random(300 << 10)
			go func() {
				done <- c.putScripted(key, fresh, len(fresh), together, func() error {
					close(reached)
					<-release
					return io.EOF
				})
			}()
			<-reached
			c.is(key, before)
			close(release)
			c.want(<-done, http.StatusOK, "")
			c.holds(key, fresh)
			c.want(c.do(http.MethodDelete, c.key(key), nil), http.StatusNoContent, "")
		}
	}
}

// testHeldEndOfMany holds back many writes of one key at once: they neither wait for each other nor mix, and one that passes the gate last
// stays.
func testHeldEndOfMany(c *client) {
	const n = 8
	var gates [n]chan struct{}
	var done [n]chan answer
	var reached sync.WaitGroup
	content := func(i int) string { return strings.Repeat(fmt.Sprint(i), 1000+i) }
	for i := range n {
		gates[i], done[i] = make(chan struct{}), make(chan answer, 1)
		reached.Add(1)
		go func() {
			done[i] <- c.putScripted("key", content(i), 1000+i, false, func() error {
				reached.Done()
				<-gates[i]
				return io.EOF
			})
		}()
	}
	reached.Wait()
	c.absent("key")
	for _, i := range []int{3, 0, 7, 1, 2, 6, 5, 4} {
		close(gates[i])
		c.want(<-done[i], http.StatusOK, "")
		c.holds("key", content(i))
	}
}

func testWrongLength(c *client) {
	c.put("key", "old")
	for _, length := range []int{5, 100} {
		a := c.putScripted("key", "four", length, false, func() error { return io.EOF })
		c.want(a, http.StatusBadRequest, "IncompleteBody")
		c.holds("key", "old")
	}
}

func testMissingBucket(c *client) {
	none := target(c.bucket+"-none", "key")
	c.want(c.do(http.MethodPut, none, strings.NewReader("x")), http.StatusNotFound, "NoSuchBucket")
	c.want(c.do(http.MethodGet, none, nil), http.StatusNotFound, "NoSuchBucket")
	c.want(c.do(http.MethodHead, none, nil), http.StatusNotFound, "")
	c.want(c.do(http.MethodDelete, none, nil), http.StatusNotFound, "NoSuchBucket")
	c.want(c.do(http.MethodGet, "/"+c.bucket+"-none?list-type=2", nil), http.StatusNotFound, "NoSuchBucket")
	c.want(c.do(http.MethodGet, "/"+c.bucket+"-none?list-type=2&prefix=a/b", nil), http.StatusNotFound, "NoSuchBucket")
}

func testTooMuchMetadata(c *client) {
	most := strings.Repeat("v", 2<<10-1)
	c.put("most", "x", "X-Amz-Meta-K", most)
	if got := c.get("most").header.Get("X-Amz-Meta-K"); got != most {
		c.Errorf("of %d bytes of metadata came back %d", len(most), len(got))
	}
	a := c.do(http.MethodPut, c.key("more"), strings.NewReader("x"), "X-Amz-Meta-K", strings.Repeat("v", 2<<10))
	c.want(a, http.StatusBadRequest, "MetadataTooLarge")
	c.absent("more")
}

func testDelete(c *client) {
	c.put("a/b/c", "content")
	for range 2 {
		c.want(c.do(http.MethodDelete, c.key("a/b/c"), nil), http.StatusNoContent, "")
		c.absent("a/b/c")
	}
	c.want(c.do(http.MethodDelete, c.key("never/was"), nil), http.StatusNoContent, "")
	c.put("a", "the deleted key's first component") // nothing is left of a/b/c
	c.holds("a", "the deleted key's first component")

	r := request(http.MethodDelete, c.key("a"), nil) // a body that is refused stops a DELETE, too
	r.Body, r.ContentLength = &scripted{content: nothing(), end: func() error { return io.ErrUnexpectedEOF }}, 10
	c.want(c.send(r), http.StatusBadRequest, "")
	c.holds("a", "the deleted key's first component")
}

// testSharedPrefixes writes and deletes keys with common prefixes at once: nobody's write may fail or be lost because somebody else's
// delete has emptied the prefix.
func testSharedPrefixes(c *client) {
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			key := fmt.Sprintf("p/q/%d/key-%d", i%2, i)
			for round := range 25 {
				content := fmt.Sprintf("%d of %d", round, i)
				if a := c.do(http.MethodPut, c.key(key), strings.NewReader(content)); a.status != http.StatusOK {
					c.Errorf("PUT %s: %d %s", key, a.status, a.body)
				}
				if a := c.get(key); string(a.body) != content {
					c.Errorf("GET %s after PUT: %d %s, want %q", key, a.status, a.body, content)
				}
				if a := c.do(http.MethodDelete, c.key(key), nil); a.status != http.StatusNoContent {
					c.Errorf("DELETE %s: %d %s", key, a.status, a.body)
				}
				if a := c.get(key); a.status != http.StatusNotFound {
					c.Errorf("GET %s after DELETE: %d %s", key, a.status, a.body)
				}
			}
		})
	}
	all.Wait()
}

// testOtherOperations asks for what is not there. None of it may be taken for a plain PUT, GET or DELETE of the object.
func testOtherOperations(c *client) {
	c.put("key", "content")
	for _, ask := range []string{
		"PUT ?acl", "PUT ?retention", "PUT ?legal-hold", "PUT ?partNumber=1", "PUT ?uploadId=x", "PUT ?unheard-of", "PUT ?versionId=1",
		"PUT ?annotation&annotationName=x", "PUT ?renameObject", "PUT ?encryption", "DELETE ?versionId=1", "DELETE ?uploadId=x&tagging",
		"PUT ?tagging;", "PUT ?tagging&versionId=1", "DELETE ?tagging&acl", "GET ?partNumber=1&acl", "GET ?tagging&acl", "GET ?attributes&versionId=1",
		"POST ?restore", "POST ?select&select-type=2", "POST ?uploads&acl", "POST ", "PUT ?partNumber=1&uploadId=x&acl",
		"PUT ?partNumber=1&uploadId=x&uploadId=y", "POST ?uploadId=x&restore", "PATCH ", "GET ?torrent", "HEAD ?versionId=1",
	} {
		method, query, _ := strings.Cut(ask, " ")
		a := c.do(method, c.key("key")+query, strings.NewReader("<Tagging/>"))
		if a.status != http.StatusNotImplemented && a.status != http.StatusBadRequest && a.status != http.StatusMethodNotAllowed {
			c.Errorf("%s: %d %s, want 501", ask, a.status, a.body)
		}
	}
	for _, ask := range []string{"PUT ?versioning", "PUT ?lifecycle", "PUT ?policy", "DELETE ?lifecycle", "PUT ?acl", "GET ?metrics", "GET ?prefix=&unheard-of"} {
		method, query, _ := strings.Cut(ask, " ")
		c.want(c.do(method, "/"+c.bucket+query, strings.NewReader("<X/>")), http.StatusNotImplemented, "NotImplemented")
	}
	for _, ask := range []string{"GET ?uploads&versions", "POST ?delete&acl"} {
		method, query, _ := strings.Cut(ask, " ")
		c.want(c.do(method, "/"+c.bucket+query, strings.NewReader("<X/>")), http.StatusBadRequest, "InvalidArgument")
	}
	for _, query := range []string{"?tagging", "?acl"} {
		a := c.do(http.MethodPut, c.key("copy")+query, nil, "X-Amz-Copy-Source", url.PathEscape(c.bucket+"/key"))
		if a.status != http.StatusNotImplemented && a.status != http.StatusBadRequest {
			c.Errorf("a copy with %s: %d %s, want 501", query, a.status, a.body)
		}
	}
	c.want(c.do(http.MethodPut, c.key("append"), strings.NewReader("x"), "X-Amz-Write-Offset-Bytes", "7"), http.StatusNotImplemented, "NotImplemented")
	c.absent("copy")
	c.absent("append")
	c.holds("key", "content")
	c.want(c.do(http.MethodPut, c.key("key")+"?x-id=PutObject&X-Amz-Signature=0&X-Amz-Expires=60", strings.NewReader("new")), http.StatusOK, "")
	c.holds("key", "new")
}

func ptr(s string) *string { return &s }

// testDeleteConditions deletes an object that must have a size and a time.
func testDeleteConditions(c *client) {
	const size, modified = "X-Amz-If-Match-Size", "X-Amz-If-Match-Last-Modified-Time"
	c.put("key", "content")
	is, was := c.get("key").header.Get("Last-Modified"), "Mon, 01 Jan 2001 00:00:00 GMT"
	for _, headers := range [][]string{
		{size, "6"}, {modified, was}, {size, "7", modified, was}, {size, "6", modified, is}, {size, "7", modified, is, "If-Match", etagOf("other")},
	} {
		c.want(c.do(http.MethodDelete, c.key("key"), nil, headers...), http.StatusPreconditionFailed, "PreconditionFailed")
		c.holds("key", "content")
	}
	c.want(c.do(http.MethodDelete, c.key("key"), nil, size, "x"), http.StatusBadRequest, "")
	c.want(c.do(http.MethodDelete, c.key("key"), nil, size, "7", modified, is, "If-Match", etagOf("content")), http.StatusNoContent, "")
	c.absent("key")
}
