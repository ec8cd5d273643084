package backendtest

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
)

func readerOf(content string) *bytes.Reader { return bytes.NewReader([]byte(content)) }

// A batch is the answer of DeleteObjects.
type batch struct {
	XMLName xml.Name `xml:"DeleteResult"`
	Deleted []struct{ Key string }
	Errors  []struct{ Key, Code, Message string } `xml:"Error"`
}

// deletes are the keys that the answer calls deleted, in order, and fails those it calls failed, as "key code".
func (b batch) deletes() (keys []string) {
	for _, d := range b.Deleted {
		keys = append(keys, d.Key)
	}
	slices.Sort(keys)
	return keys
}

func (b batch) fails() (keys []string) {
	for _, e := range b.Errors {
		keys = append(keys, e.Key+" "+e.Code)
	}
	slices.Sort(keys)
	return keys
}

// entry is an element of DeleteObjects; more is what else is in it.
func entry(key, more string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(key)) // a strings.Builder takes everything
	return "<Object><Key>" + b.String() + "</Key>" + more + "</Object>"
}

func (c *client) deleteRaw(document string) answer {
	c.Helper()
	return c.do(http.MethodPost, "/"+c.bucket+"?delete", strings.NewReader(document))
}

func (c *client) deleteAll(quiet bool, entries ...string) batch {
	c.Helper()
	a := c.deleteRaw(fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?><Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>%v</Quiet>%s</Delete>`, quiet, strings.Join(entries, "")))
	c.want(a, http.StatusOK, "")
	var b batch
	if err := xml.Unmarshal(a.body, &b); err != nil {
		c.Fatalf("DeleteObjects: %v in %s", err, a.body)
	}
	return b
}

func testBatch(c *client) {
	keys := []string{"a", "dir/b", "dir/c", "dir/deep/d", "e & <f>", "\u00fcber", "plus+%2B"}
	for _, quiet := range []bool{false, true} {
		var entries []string
		for _, k := range append(keys, "never/was") {
			entries = append(entries, entry(k, ""))
		}
		for _, k := range append(keys, "stays", "dir/stays") {
			c.put(k, k)
		}
		b := c.deleteAll(quiet, append(entries, entry("a", ""))...) // one of them twice
		if len(b.Errors) > 0 || quiet && len(b.Deleted) > 0 {
			c.Errorf("quiet %v: %+v", quiet, b)
		}
		if got := slices.Compact(b.deletes()); !quiet && !slices.Equal(got, slices.Sorted(slices.Values(append(keys, "never/was")))) {
			c.Errorf("deleted are %q", got)
		}
		for _, k := range keys {
			c.absent(k)
		}
		c.holds("stays", "stays")
		c.holds("dir/stays", "dir/stays")
	}
	c.put("dir/deep", "the deleted key's directory") // nothing of it is left
	c.want(c.do(http.MethodPost, "/"+c.bucket+"-none?delete", strings.NewReader("<Delete>"+entry("a", "")+"</Delete>")), http.StatusNotFound, "NoSuchBucket")

	var entries []string
	for i := range 1000 {
		entries = append(entries, entry(fmt.Sprintf("many/%d/%d", i%7, i), ""))
		if i%50 == 0 {
			c.put(fmt.Sprintf("many/%d/%d", i%7, i), "x")
		}
	}
	if b := c.deleteAll(false, entries...); len(b.Deleted) != 1000 || len(b.Errors) > 0 {
		c.Errorf("of 1000 keys %d were deleted, %d failed", len(b.Deleted), len(b.Errors))
	}
	c.absent("many/0/0")
	c.want(c.deleteRaw("<Delete>"+strings.Join(entries, "")+entry("dir/stays", "")+"</Delete>"), http.StatusBadRequest, "MalformedXML")
	c.holds("dir/stays", "dir/stays")

	var all sync.WaitGroup // in opposite orders, at once
	for i := range 16 {
		all.Go(func() {
			mine := slices.Clone(entries[:50])
			if i%2 == 1 {
				slices.Reverse(mine)
			}
			if a := c.deleteRaw("<Delete>" + strings.Join(mine, "") + "</Delete>"); a.status != http.StatusOK || strings.Contains(string(a.body), "<Error>") {
				c.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	all.Wait()
}

func testBatchMalformed(c *client) {
	c.put("key", "content")
	for _, document := range []string{
		"", "text", "<Delete/>", "<Delete></Delete>", "<Delete>" + entry("key", ""), "<Remove>" + entry("key", "") + "</Remove>",
		"<Delete>" + entry("key", "") + "<Object></Object></Delete>", "<Delete>" + entry("key", "") + "</Delete></Delete>",
		"<Delete>" + entry("key", "<") + "</Delete>", "{}",
	} {
		c.want(c.deleteRaw(document), http.StatusBadRequest, "MalformedXML")
		c.holds("key", "content")
	}
}

func testBatchBodyFails(c *client) {
	c.put("key", "content")
	document := "<Delete>" + entry("key", "") + "</Delete>"
	for _, cut := range []int{0, 10, len(document)} {
		r := request(http.MethodPost, "/"+c.bucket+"?delete", nil)
		r.Body, r.ContentLength = failing(document[:cut]), int64(len(document))
		if a := c.send(r); a.status != http.StatusBadRequest {
			c.Errorf("a list that was cut after %d bytes: %d %s", cut, a.status, a.body)
		}
		c.holds("key", "content")
	}
	r := request(http.MethodPost, "/"+c.bucket+"?delete", strings.NewReader(document))
	r.ContentLength += 5
	c.want(c.send(r), http.StatusBadRequest, "IncompleteBody")
	c.holds("key", "content")
}

func testBatchConditions(c *client) {
	etag := func(content string) string {
		return "<ETag>" + strings.ReplaceAll(etagOf(content), `"`, "&quot;") + "</ETag>"
	}
	for _, k := range []string{"right", "bare", "wrong", "none"} {
		c.put(k, k)
	}
	b := c.deleteAll(
		false, entry("right", etag("right")), entry("bare", "<ETag>"+strings.Trim(etagOf("bare"), `"`)+"</ETag>"), entry("wrong", etag("other")), entry("none", ""),
	)
	if !slices.Equal(b.deletes(), []string{"bare", "none", "right"}) || !slices.Equal(b.fails(), []string{"wrong PreconditionFailed"}) {
		c.Errorf("%+v", b)
	}
	c.absent("right")
	c.absent("bare")
	c.absent("none")
	c.holds("wrong", "wrong")
}

// testBatchTreeKeys asks for keys that cannot be there, and for versions where there are none, among keys that are.
func testBatchTreeKeys(c *client) {
	c.put("a/b", "content")
	c.put("c", "content")
	var bad, want []string
	for _, k := range []string{"a//b", "/a/b", "a/./b"} {
		bad, want = append(bad, entry(k, "")), append(want, k+" InvalidArgument")
	}
	for _, k := range []string{"../" + c.bucket + "/a/b", "./"} {
		bad, want = append(bad, entry(k, "")), append(want, k+" 400")
	}
	for _, k := range []string{strings.Repeat("k/", 600), strings.Repeat("k", 256)} {
		bad, want = append(bad, entry(k, "")), append(want, k+" KeyTooLongError")
	}
	bad = append(bad, entry("a/b", "<VersionId>v1</VersionId>"), entry("a/b", "<Unheard>7</Unheard>"))
	want = append(want, "a/b NoSuchVersion", "a/b NotImplemented")
	b := c.deleteAll(false, append(bad, entry("c", ""))...)
	slices.Sort(want)
	if !slices.Equal(b.fails(), want) || !slices.Equal(b.deletes(), []string{"c"}) {
		c.Errorf("failed are %q, deleted %q", b.fails(), b.deletes())
	}
	c.holds("a/b", "content")
	c.absent("c")
	for _, twice := range []string{"<Key>a/b</Key>", "<ETag>x</ETag><ETag>y</ETag>"} {
		c.want(c.deleteRaw("<Delete>"+entry("c", twice)+"</Delete>"), http.StatusBadRequest, "MalformedXML")
	}
}
