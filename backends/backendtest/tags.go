package backendtest

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-cmp/cmp"
)

// A tag is one of an object.
type tag struct{ Key, Value string }

// tags are those of a key, in the order of their names.
func (c *client) tags(key string) []tag {
	c.Helper()
	a := c.do(http.MethodGet, c.key(key)+"?tagging", nil)
	c.want(a, http.StatusOK, "")
	var doc struct {
		XMLName xml.Name `xml:"Tagging"`
		Tags    []tag    `xml:"TagSet>Tag"`
	}
	if err := xml.Unmarshal(a.body, &doc); err != nil {
		c.Fatalf("GetObjectTagging: %v in %s", err, a.body)
	}
	slices.SortFunc(doc.Tags, func(a, b tag) int { return strings.Compare(a.Key, b.Key) })
	return doc.Tags
}

func (c *client) hasTags(key string, want ...tag) {
	c.Helper()
	if diff := cmp.Diff(want, c.tags(key)); diff != "" {
		c.Fatalf("the tags of %s (-want +got):\n%s", key, diff)
	}
	count := ""
	if len(want) > 0 {
		count = fmt.Sprint(len(want))
	}
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		if got := c.do(method, c.key(key), nil).header.Get("X-Amz-Tagging-Count"); got != count {
			c.Errorf("%s of %s: x-amz-tagging-count %q, want %q", method, key, got, count)
		}
	}
}

func tagging(tags ...tag) string {
	var b strings.Builder
	for _, t := range tags {
		b.WriteString("<Tag><Key>")
		_ = xml.EscapeText(&b, []byte(t.Key)) // a builder takes everything
		b.WriteString("</Key><Value>")
		_ = xml.EscapeText(&b, []byte(t.Value))
		b.WriteString("</Value></Tag>")
	}
	return `<Tagging xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><TagSet>` + b.String() + "</TagSet></Tagging>"
}

func (c *client) putTags(key, document string, headers ...string) answer {
	c.Helper()
	return c.do(http.MethodPut, c.key(key)+"?tagging", strings.NewReader(document), headers...)
}

func testTags(c *client) {
	for _, key := range []string{"key", "deep/er/key"} {
		put := c.put(key, "content", "X-Amz-Tagging", "colour=green&empty=&only&odd%2Fname+b=a%2Bb", "X-Amz-Meta-Shape", "round")
		c.hasTags(key, tag{"colour", "green"}, tag{"empty", ""}, tag{"odd/name b", "a+b"}, tag{"only", ""})
		before := c.get(key)

		c.want(c.putTags(key, tagging(tag{"a", "1"}, tag{"ü b", "+-=._:/@"})), http.StatusOK, "")
		c.hasTags(key, tag{"a", "1"}, tag{"ü b", "+-=._:/@"})
		c.want(c.putTags(key, tagging()), http.StatusOK, "")
		c.hasTags(key)
		c.want(c.putTags(key, tagging(tag{"b", "2"})), http.StatusOK, "")

		after := c.get(key) // nothing else has changed
		if string(after.body) != "content" || after.etag() != put.etag() || after.header.Get("X-Amz-Meta-Shape") != "round" ||
			after.header.Get("Last-Modified") != before.header.Get("Last-Modified") {
			c.Errorf("after its tags were changed the object is %d %s %v, before it was %v", after.status, after.body, after.header, before.header)
		}
		c.holds(key, "content")
		for range 2 {
			c.want(c.do(http.MethodDelete, c.key(key)+"?tagging", nil), http.StatusNoContent, "")
			c.hasTags(key)
		}
		c.want(c.putTags(key, tagging(tag{"c", "3"})), http.StatusOK, "")
		c.put(key, "new") // a new version has only what it brings itself
		c.hasTags(key)
	}
	for _, none := range []string{c.key("none"), c.key("none/deep/er")} {
		c.want(c.do(http.MethodPut, none+"?tagging", strings.NewReader(tagging())), http.StatusNotFound, "NoSuchKey")
		c.want(c.do(http.MethodGet, none+"?tagging", nil), http.StatusNotFound, "NoSuchKey")
		c.want(c.do(http.MethodDelete, none+"?tagging", nil), http.StatusNotFound, "NoSuchKey")
	}
	c.want(c.do(http.MethodPut, target(c.bucket+"-none", "key")+"?tagging", strings.NewReader(tagging())), http.StatusNotFound, "NoSuchBucket")
	c.absent("none")
}

func testTagsRefused(c *client) {
	c.put("key", "content", "X-Amz-Tagging", "kept=yes")
	var eleven []tag
	var header []string
	for i := range 11 {
		eleven = append(eleven, tag{fmt.Sprint(i), "v"})
		header = append(header, fmt.Sprintf("%d=v", i))
	}
	for _, test := range []struct {
		document string
		code     string
	}{
		{tagging(eleven...), "BadRequest"},
		{tagging(tag{strings.Repeat("k", 129), "v"}), "InvalidTag"},
		{tagging(tag{"k", strings.Repeat("v", 257)}), "InvalidTag"},
		{tagging(tag{"", "v"}), "InvalidTag"},
		{tagging(tag{"a!b", "v"}), "InvalidTag"},
		{tagging(tag{"k", "a?b"}), "InvalidTag"},
		{tagging(tag{"k", "1"}, tag{"k", "2"}), "InvalidTag"},
		{"<Tagging><TagSet>", "MalformedXML"},
		{"<Tagging><TagSet><Tag><Key>k</Key></TagSet></Tagging>", "MalformedXML"},
	} {
		c.want(c.putTags("key", test.document), http.StatusBadRequest, test.code)
	}
	for value, code := range map[string]string{
		strings.Join(header, "&"): "BadRequest", "k=1&k=2": "InvalidArgument", "=v": "InvalidArgument", "k%": "InvalidArgument", "k!=v": "InvalidTag",
	} {
		c.want(c.do(http.MethodPut, c.key("other"), strings.NewReader("x"), "X-Amz-Tagging", value), http.StatusBadRequest, code)
	}
	c.hasTags("key", tag{"kept", "yes"})
	c.absent("other")
	c.want(c.putTags("key", tagging(tag{strings.Repeat("k", 128), strings.Repeat("v", 256)})), http.StatusOK, "")
}

// testTagsHeldEnd ends the body of a tag write with an error, and holds its end back: it is a write as any other.
func testTagsHeldEnd(c *client) {
	c.put("key", "content", "X-Amz-Tagging", "old=1")
	document := tagging(tag{"new", "1"})
	for _, end := range []error{io.ErrUnexpectedEOF, io.EOF} {
		for _, method := range []string{http.MethodPut, http.MethodDelete} {
			body := document
			if method == http.MethodDelete {
				body = ""
			}
			r := request(method, c.key("key")+"?tagging", nil)
			r.ContentLength = int64(len(body))
			r.Body = &scripted{content: bytes.NewReader([]byte(body)), end: func() error {
				if end == io.EOF && method == http.MethodDelete {
					c.hasTags("key", tag{"new", "1"})
				} else {
					c.hasTags("key", tag{"old", "1"})
				}
				return end
			}}
			a := c.send(r)
			switch {
			case end != io.EOF:
				c.want(a, http.StatusBadRequest, "")
				c.hasTags("key", tag{"old", "1"})
			case method == http.MethodPut:
				c.want(a, http.StatusOK, "")
				c.hasTags("key", tag{"new", "1"})
			default:
				c.want(a, http.StatusNoContent, "")
				c.hasTags("key")
			}
		}
	}
	c.holds("key", "content")
}

func testTagsCopied(c *client) {
	c.put("from", "content", "X-Amz-Tagging", "a=1&b=2")
	c.want(c.copyTo("copied", "from", "X-Amz-Tagging", "ignored=1"), http.StatusOK, "")
	c.hasTags("copied", tag{"a", "1"}, tag{"b", "2"})
	c.want(c.copyTo("replaced", "from", "X-Amz-Tagging-Directive", "REPLACE", "X-Amz-Tagging", "c=3"), http.StatusOK, "")
	c.hasTags("replaced", tag{"c", "3"})
	c.want(c.copyTo("none", "from", "X-Amz-Tagging-Directive", "REPLACE"), http.StatusOK, "")
	c.hasTags("none")
	c.want(c.copyTo("refused", "from", "X-Amz-Tagging-Directive", "KEEP"), http.StatusBadRequest, "InvalidArgument")
	c.absent("refused")
	u := c.create("parts", "X-Amz-Tagging", "d=4")
	u.part(1, "content")
	u.completed(u.sendComplete(u.document(1)), 1)
	c.hasTags("parts", tag{"d", "4"})
}

// testTagsRace changes tags while the object is replaced: content and metadata always belong together, and what was answered last is there.
func testTagsRace(c *client) {
	version := func(i int) string { return strings.Repeat(fmt.Sprint(i), 100) }
	c.put("dir/key", version(0), "X-Amz-Meta-Version", version(0))
	var all sync.WaitGroup
	for writer := range 3 {
		all.Go(func() {
			for i := range 30 {
				a := c.do(http.MethodPut, c.key("dir/key"), strings.NewReader(version(i)), "X-Amz-Meta-Version", version(i), "X-Amz-Tagging", fmt.Sprintf("by=%d", writer))
				if a.status != http.StatusOK {
					c.Errorf("PUT: %d %s", a.status, a.body)
				}
				if a := c.putTags("dir/key", tagging(tag{"tagged", fmt.Sprint(writer)})); a.status != http.StatusOK {
					c.Errorf("PutObjectTagging: %d %s", a.status, a.body)
				}
				got := c.get("dir/key")
				if content := string(got.body); got.status != http.StatusOK || got.header.Get("X-Amz-Meta-Version") != content || got.etag() != etagOf(content) {
					c.Errorf("read %d %q with the metadata of %q and the ETag %s", got.status, content, got.header.Get("X-Amz-Meta-Version"), got.etag())
				}
			}
		})
	}
	all.Wait()
	c.want(c.putTags("dir/key", tagging(tag{"last", "1"})), http.StatusOK, "")
	c.hasTags("dir/key", tag{"last", "1"})
}
