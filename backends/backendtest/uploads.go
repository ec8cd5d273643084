package backendtest

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-cmp/cmp"
)

// A partsPage is an answer of ListParts.
type partsPage struct {
	XMLName              xml.Name `xml:"ListPartsResult"`
	Bucket, Key          string
	UploadID             string `xml:"UploadId"`
	PartNumberMarker     int
	NextPartNumberMarker int
	MaxParts             int
	IsTruncated          bool
	Parts                []struct {
		PartNumber int
		ETag       string
		Size       int64
	} `xml:"Part"`
}

func (c *client) parts(u *uploaded, more ...string) partsPage {
	c.Helper()
	a := c.do(http.MethodGet, u.target(more...), nil)
	c.want(a, http.StatusOK, "")
	var p partsPage
	if err := xml.Unmarshal(a.body, &p); err != nil || p.UploadID != u.id || p.Key != u.key || p.Bucket != c.bucket {
		c.Fatalf("ListParts: %v in %s", err, a.body)
	}
	return p
}

// An uploadsPage is an answer of ListMultipartUploads.
type uploadsPage struct {
	XMLName            xml.Name `xml:"ListMultipartUploadsResult"`
	Bucket             string
	NextKeyMarker      string
	NextUploadIDMarker string `xml:"NextUploadIdMarker"`
	MaxUploads         int
	IsTruncated        bool
	Uploads            []struct {
		Key       string
		UploadID  string `xml:"UploadId"`
		Initiated string
	} `xml:"Upload"`
	CommonPrefixes []struct{ Prefix string }
}

// items are the uploads as "key id", and common prefixes with a star before them.
func (p uploadsPage) items() (all []string) {
	for _, u := range p.Uploads {
		all = append(all, u.Key+" "+u.UploadID)
	}
	for _, cp := range p.CommonPrefixes {
		all = append(all, "*"+cp.Prefix)
	}
	return all
}

func (c *client) uploads(bucket string, q url.Values) uploadsPage {
	c.Helper()
	a := c.do(http.MethodGet, "/"+bucket+"?uploads&"+q.Encode(), nil)
	c.want(a, http.StatusOK, "")
	var p uploadsPage
	if err := xml.Unmarshal(a.body, &p); err != nil || p.Bucket != bucket {
		c.Fatalf("ListMultipartUploads: %v in %s", err, a.body)
	}
	return p
}

// abortAll ends the uploads that a test has left.
func (c *client) abortAll(bucket string) {
	c.Helper()
	for _, u := range c.uploads(bucket, url.Values{}).Uploads {
		c.want(c.do(http.MethodDelete, target(bucket, u.Key)+"?uploadId="+url.QueryEscape(u.UploadID), nil), http.StatusNoContent, "")
	}
}

func testListParts(c *client) {
	u := c.create("dir/a key")
	if p := c.parts(u); len(p.Parts) != 0 || p.IsTruncated {
		c.Errorf("the parts of a new upload are %+v", p)
	}
	for _, n := range []int{10, 9, 2, 10000, 1} {
		u.part(n, strings.Repeat("x", n))
	}
	for _, most := range []int{1, 2, 4, 5, 6, 1000} {
		var got []int
		for marker := 0; ; {
			p := c.parts(u, fmt.Sprintf("max-parts=%d", most), fmt.Sprintf("part-number-marker=%d", marker))
			for _, part := range p.Parts {
				got = append(got, part.PartNumber)
				if part.Size != int64(part.PartNumber) || part.ETag != etagOf(u.parts[part.PartNumber]) {
					c.Errorf("%+v", part)
				}
			}
			if p.MaxParts != most || len(p.Parts) > most || p.IsTruncated && len(p.Parts) < most {
				c.Fatalf("a page of %d: %+v", most, p)
			}
			if !p.IsTruncated {
				break
			}
			marker = p.NextPartNumberMarker
		}
		if !slices.Equal(got, u.numbers()) {
			c.Errorf("in pages of %d: %v, want %v", most, got, u.numbers())
		}
	}
	for _, q := range []string{"max-parts=-1", "max-parts=x", "part-number-marker=x"} {
		c.want(c.do(http.MethodGet, u.target(q), nil), http.StatusBadRequest, "InvalidArgument")
	}
}

func testListUploads(c *client) {
	var all []string
	for _, key := range []string{"b/2", "a", "b/1", "c d", "b/1", "a", "b-", "e/f/g"} {
		u := c.create(key)
		all = append(all, key+" "+u.id)
	}
	slices.SortStableFunc(all, func(a, b string) int { // the uploads of one key by time: as they were made
		return strings.Compare(a[:strings.LastIndex(a, " ")], b[:strings.LastIndex(b, " ")])
	})
	for _, most := range []int{1, 2, 3, 8, 1000} {
		for _, ask := range []url.Values{{}, {"prefix": {"b/"}}, {"delimiter": {"/"}}, {"prefix": {"e/"}, "delimiter": {"/"}}, {"prefix": {"b"}, "delimiter": {"/"}}, {"prefix": {"none"}}} {
			var want, got []string
			for _, it := range all {
				rest, ok := strings.CutPrefix(it, ask.Get("prefix"))
				if head, _, found := strings.Cut(rest, "/"); found && ask.Has("delimiter") {
					it = "*" + ask.Get("prefix") + head + "/"
				}
				if ok && !slices.Contains(want, it) {
					want = append(want, it)
				}
			}
			q := url.Values{"max-uploads": {fmt.Sprint(most)}}
			for k, v := range ask {
				q[k] = v
			}
			for {
				p := c.uploads(c.bucket, q)
				if got = append(got, p.items()...); len(p.items()) > most || p.IsTruncated && len(p.items()) < most || p.MaxUploads != most {
					c.Fatalf("a page of %d: %+v", most, p)
				}
				if !p.IsTruncated {
					break
				}
				q.Set("key-marker", p.NextKeyMarker)
				q.Set("upload-id-marker", p.NextUploadIDMarker)
			}
			if ask.Has("delimiter") { // within a page, prefixes come after uploads
				slices.Sort(want)
				slices.Sort(got)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				c.Errorf("%v in pages of %d (-want +got):\n%s", ask, most, diff)
			}
		}
	}
	if p := c.uploads(c.bucket, url.Values{"key-marker": {"b/1"}}); len(p.Uploads) != 3 { // without an id: after all of the key
		c.Errorf("after b/1: %q", p.items())
	}
	if p := c.uploads(c.bucket, url.Values{"prefix": {"c"}, "encoding-type": {"url"}}); len(p.Uploads) != 1 || p.Uploads[0].Key != "c%20d" && p.Uploads[0].Key != "c+d" {
		c.Errorf("%+v", p)
	}
	if p := c.uploads(c.newBucket(), url.Values{}); len(p.items()) > 0 {
		c.Errorf("the uploads of another bucket: %q", p.items())
	}
	c.want(c.do(http.MethodGet, "/"+c.bucket+"-none?uploads", nil), http.StatusNotFound, "NoSuchBucket")
	c.want(c.do(http.MethodGet, "/"+c.bucket+"?uploads&max-uploads=x", nil), http.StatusBadRequest, "InvalidArgument")
}

func testAbort(c *client) {
	c.put("key", "old")
	u := c.create("key")
	u.part(1, "content")
	c.want(u.abort(), http.StatusNoContent, "")
	c.want(u.sendComplete(u.document(1)), http.StatusNotFound, "NoSuchUpload")
	u.gone()
	c.holds("key", "old")
}

// testCompleteRepeated repeats a Complete as a client does whose answer was lost. S3 answers again for a while, others do not.
func testCompleteRepeated(c *client) {
	u := c.create("key")
	u.part(1, "content")
	u.completed(u.sendComplete(u.document(1), "If-None-Match", "*"), 1)
	switch a := u.sendComplete(u.document(1), "If-None-Match", "*"); a.status {
	case http.StatusOK:
		u.completed(a, 1)
	default:
		c.want(a, http.StatusNotFound, "NoSuchUpload")
	}
	c.put("key", "newer")
	if a := u.sendComplete(u.document(1)); a.status == http.StatusOK {
		c.Error("a Complete was repeated after the object was overwritten, and answered with success")
	}
	c.holds("key", "newer")
	c.want(c.do(http.MethodDelete, c.key("key"), nil), http.StatusNoContent, "")
	u.sendComplete(u.document(1))
	c.absent("key")
}

func testPartCopy(c *client) {
	source := random(minPart + 100)
	c.put("source", source)
	u := c.create("key")
	ask := func(number int, from string, headers ...string) answer {
		return c.do(http.MethodPut, u.target(fmt.Sprintf("partNumber=%d", number)), nil, append([]string{"X-Amz-Copy-Source", c.key(from)}, headers...)...)
	}
	c.copied(ask(1, "source"), "CopyPartResult", source)
	c.copied(ask(2, "source", "X-Amz-Copy-Source-Range", "bytes=50-1049"), "CopyPartResult", source[50:1050])
	u.parts[1], u.parts[2] = source, source[50:1050]
	for _, r := range []string{"bytes=0-99999999", "bytes=-5", "bytes=5-", "bytes=7-6", "5-6", "bytes=x-y", "bytes=0-1,3-4"} {
		if a := ask(2, "source", "X-Amz-Copy-Source-Range", r); a.status < 400 || a.status >= 500 {
			c.Errorf("range %s: %d %s", r, a.status, a.body)
		}
	}
	c.want(ask(2, "none"), http.StatusNotFound, "NoSuchKey")
	c.want(ask(2, "source", "X-Amz-Copy-Source-If-Match", etagOf("x")), http.StatusPreconditionFailed, "PreconditionFailed")
	c.want(ask(0, "source"), http.StatusBadRequest, "InvalidArgument")
	c.absent("key")
	u.completed(u.sendComplete(u.document(1, 2)), 1, 2)
	whole := u.content(1, 2)
	c.copied(c.copyTo("copy", "key"), "CopyObjectResult", whole) // a copy is not in parts any more
	c.holds("copy", whole)
}

func testConditionalComplete(c *client) {
	u := c.create("key")
	u.part(1, "content")
	c.want(u.sendComplete(u.document(1), "If-Match", etagOf("x")), http.StatusNotFound, "NoSuchKey")
	c.absent("key")
	u.completed(u.sendComplete(u.document(1), "If-None-Match", "*"), 1)
	etag := u.etag(1)
	c.want(c.putIf("key", "old", "If-Match", etag), http.StatusOK, "")
	for _, headers := range [][]string{{"If-None-Match", "*"}, {"If-Match", etag}} {
		u = c.create("key")
		u.part(1, "late")
		c.want(u.sendComplete(u.document(1), headers...), http.StatusPreconditionFailed, "PreconditionFailed")
		c.holds("key", "old")
		c.want(u.abort(), http.StatusNoContent, "")
	}
	u = c.create("key")
	u.part(1, "fresh")
	u.completed(u.sendComplete(u.document(1), "If-Match", etagOf("old")), 1)
}

// testCompleteRace completes one upload many times at once.
func testCompleteRace(c *client) {
	for range 5 {
		u := c.create("dir/key")
		u.part(1, random(10_000))
		var all sync.WaitGroup
		var won atomic.Int32
		for range 8 {
			all.Go(func() {
				switch a := u.sendComplete(u.document(1)); {
				case a.status == http.StatusOK && strings.Contains(string(a.body), strings.Trim(u.etag(1), `"`)):
					won.Add(1)
				case a.status != http.StatusNotFound || a.code() != "NoSuchUpload":
					c.Errorf("%d %s", a.status, a.body)
				}
			})
		}
		all.Wait()
		if won.Load() == 0 {
			c.Error("of 8 Completes of one upload none has won")
		}
		u.holds(1)
		u.gone()
	}
}

// testAbortRace lets an Abort, a Complete and parts meet.
func testAbortRace(c *client) {
	for i := range 20 {
		u := c.create(fmt.Sprintf("dir/%d", i))
		u.part(1, random(10_000))
		document := u.document(1)
		var complete, abort answer
		var all sync.WaitGroup
		all.Go(func() { complete = u.sendComplete(document) })
		all.Go(func() { abort = u.abort() })
		all.Go(func() {
			if a := u.sendPart(2, random(20_000)); a.status != http.StatusOK && (a.status != http.StatusNotFound || a.code() != "NoSuchUpload") {
				c.Errorf("UploadPart: %d %s", a.status, a.body)
			}
		})
		all.Wait()
		switch {
		case complete.status == http.StatusOK:
			u.holds(1)
		case complete.status == http.StatusNotFound && abort.status == http.StatusNoContent:
			c.absent(u.key)
		default:
			c.Fatalf("Complete answered %d %s and Abort %d %s", complete.status, complete.body, abort.status, abort.body)
		}
		u.gone()
	}
}

// testUploadsOfBucket deletes a bucket with an open upload, and makes it again.
func testUploadsOfBucket(c *client) {
	other := c.bucket + "-b"
	c.want(c.do(http.MethodPut, "/"+other, nil), http.StatusOK, "")
	o := &client{T: c.T, backend: c.backend, bucket: other}
	u := o.create("key")
	u.part(1, "content")
	o.want(o.do(http.MethodDelete, "/"+other, nil), http.StatusNoContent, "")
	o.want(u.sendComplete(u.document(1)), http.StatusNotFound, "NoSuchBucket")
	o.want(u.sendPart(1, "content"), http.StatusNotFound, "NoSuchBucket")
	o.want(o.do(http.MethodPut, "/"+other, nil), http.StatusOK, "")
	o.want(u.sendComplete(u.document(1)), http.StatusNotFound, "NoSuchUpload")
	u.gone()
	o.absent("key")
	o.want(o.do(http.MethodDelete, "/"+other, nil), http.StatusNoContent, "")
}
