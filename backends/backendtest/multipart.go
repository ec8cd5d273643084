package backendtest

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const minPart = 5 << 20 // bytes of every part but the last

// An uploaded is an upload in parts, as its client sees it.
type uploaded struct {
	c       *client
	key, id string
	parts   map[int]string // the content of each
}

func (c *client) create(key string, headers ...string) *uploaded {
	c.Helper()
	a := c.do(http.MethodPost, c.key(key)+"?uploads", nil, headers...)
	c.want(a, http.StatusOK, "")
	var result struct {
		XMLName     xml.Name `xml:"InitiateMultipartUploadResult"`
		Bucket, Key string
		ID          string `xml:"UploadId"`
	}
	if err := xml.Unmarshal(a.body, &result); err != nil || result.Bucket != c.bucket || result.Key != key || result.ID == "" {
		c.Fatalf("CreateMultipartUpload: %v in %s", err, a.body)
	}
	return &uploaded{c: c, key: key, id: result.ID, parts: map[int]string{}}
}

// target is the request target of the upload, with more parameters.
func (u *uploaded) target(more ...string) string {
	return u.c.key(u.key) + "?" + strings.Join(append(more, "uploadId="+url.QueryEscape(u.id)), "&")
}

func (u *uploaded) sendPart(number int, content string) answer {
	u.c.Helper()
	return u.c.do(http.MethodPut, u.target(fmt.Sprintf("partNumber=%d", number)), strings.NewReader(content))
}

func (u *uploaded) part(number int, content string) {
	u.c.Helper()
	a := u.sendPart(number, content)
	u.c.want(a, http.StatusOK, "")
	if a.etag() != etagOf(content) {
		u.c.Fatalf("part %d has the ETag %s, want %s", number, a.etag(), etagOf(content))
	}
	u.parts[number] = content
}

// numbers are those of the parts, in order.
func (u *uploaded) numbers() (all []int) {
	for n := range u.parts {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// document is the list of these parts that a Complete sends.
func (u *uploaded) document(numbers ...int) string {
	var b strings.Builder
	for _, n := range numbers {
		fmt.Fprintf(&b, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", n, strings.ReplaceAll(etagOf(u.parts[n]), `"`, "&quot;"))
	}
	return `<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">` + b.String() + "</CompleteMultipartUpload>"
}

func (u *uploaded) sendComplete(document string, headers ...string) answer {
	u.c.Helper()
	return u.c.do(http.MethodPost, u.target(), strings.NewReader(document), headers...)
}

// etag is what the object has that these parts make.
func (u *uploaded) etag(numbers ...int) string {
	sum := md5.New()
	for _, n := range numbers {
		one := md5.Sum([]byte(u.parts[n]))
		sum.Write(one[:])
	}
	return fmt.Sprintf(`"%s-%d"`, hex.EncodeToString(sum.Sum(nil)), len(numbers))
}

func (u *uploaded) content(numbers ...int) string {
	var b strings.Builder
	for _, n := range numbers {
		b.WriteString(u.parts[n])
	}
	return b.String()
}

// completed checks a Complete's answer, and the object.
func (u *uploaded) completed(a answer, numbers ...int) {
	u.c.Helper()
	u.c.want(a, http.StatusOK, "")
	var result struct {
		XMLName                     xml.Name `xml:"CompleteMultipartUploadResult"`
		Location, Bucket, Key, ETag string
	}
	if err := xml.Unmarshal(a.body, &result); err != nil || result.Bucket != u.c.bucket || result.Key != u.key || result.ETag != u.etag(numbers...) || result.Location == "" {
		u.c.Fatalf("CompleteMultipartUpload: %v in %s, want the ETag %s", err, a.body, u.etag(numbers...))
	}
	u.holds(numbers...)
}

// holds checks that the object is made of these parts, in GET, HEAD and list alike.
func (u *uploaded) holds(numbers ...int) {
	u.c.Helper()
	c, want := u.c, u.content(numbers...)
	a := c.get(u.key)
	c.want(a, http.StatusOK, "")
	if string(a.body) != want || a.etag() != u.etag(numbers...) {
		c.Fatalf("%s holds %s with the ETag %s, want %s with %s", u.key, short(a.body), a.etag(), short([]byte(want)), u.etag(numbers...))
	}
	h := c.do(http.MethodHead, c.key(u.key), nil)
	if h.etag() != a.etag() || h.header.Get("Content-Length") != fmt.Sprint(len(want)) {
		c.Fatalf("HEAD: %v, want %d bytes and the ETag %s", h.header, len(want), a.etag())
	}
	for _, o := range c.list(c.bucket, url.Values{"prefix": {u.key}}).Contents {
		if o.Key == u.key && o.ETag == a.etag() && o.Size == int64(len(want)) {
			return
		}
	}
	c.Fatalf("the list has no %s with the ETag %s", u.key, a.etag())
}

func (u *uploaded) abort() answer {
	u.c.Helper()
	return u.c.do(http.MethodDelete, u.target(), nil)
}

// gone checks that there is no such upload any more, for any operation on it.
func (u *uploaded) gone() {
	u.c.Helper()
	c := u.c
	c.want(u.sendPart(1, "late"), http.StatusNotFound, "NoSuchUpload")
	c.want(c.do(http.MethodGet, u.target(), nil), http.StatusNotFound, "NoSuchUpload")
	c.want(u.abort(), http.StatusNotFound, "NoSuchUpload")
	for _, o := range c.uploads(c.bucket, url.Values{}).Uploads {
		if o.UploadID == u.id {
			c.Fatalf("the upload of %s is still listed", u.key)
		}
	}
}

func testMultipart(c *client) {
	for _, old := range []*string{nil, ptr("old")} {
		key := "dir/new"
		if old != nil {
			key = "dir/old"
			c.put(key, *old, "X-Amz-Meta-Colour", "green")
		}
		u := c.create(key, "X-Amz-Meta-Shape", "round", "Content-Type", "text/html", "Content-Encoding", "aws-chunked,gzip")
		for _, n := range []int{3, 1, 10000} { // neither in order nor without gaps
			u.part(n, random(minPart+n))
			c.is(key, old)
		}
		u.completed(u.sendComplete(u.document(u.numbers()...)), u.numbers()...)
		h := c.get(key).header
		for k, v := range map[string]string{"X-Amz-Meta-Shape": "round", "X-Amz-Meta-Colour": "", "Content-Type": "text/html", "Content-Encoding": "gzip"} {
			if h.Get(k) != v {
				c.Errorf("the object has %s: %q, want %q", k, h.Get(k), v)
			}
		}
		u.gone()
		u.holds(1, 3, 10000) // all that was refused has changed nothing
		part := c.get(key, "Range", fmt.Sprintf("bytes=%d-%d", minPart-5, minPart+5))
		if want := u.content(1, 3, 10000)[minPart-5 : minPart+6]; part.status != http.StatusPartialContent || string(part.body) != want {
			c.Errorf("a range over the border of two parts: %d, %d bytes", part.status, len(part.body))
		}
	}
	u := c.create("single") // one part, of any size
	u.part(7, "tiny")
	u.completed(u.sendComplete(u.document(7)), 7)
	c.put("single", "overwritten") // the object is one like any other
	c.holds("single", "overwritten")
}

// testMultipartRandom uploads parts of random sizes in a random order, some twice and some for nothing.
func testMultipartRandom(c *client) {
	for range 3 {
		u := c.create("key")
		last := 2 + rand.IntN(3)
		numbers := []int{}
		for n := range last {
			numbers = append(numbers, n+1)
		}
		rand.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
		for _, n := range numbers {
			if rand.IntN(3) == 0 {
				u.part(n, random(rand.IntN(1000)))
			}
			size := minPart + rand.IntN(100_000)
			if n == last {
				size = rand.IntN(1000)
			}
			u.part(n, random(size))
		}
		u.part(last+1, "not in the list")
		slices.Sort(numbers)
		u.completed(u.sendComplete(u.document(numbers...)), numbers...)
		u.gone()
	}
}

func testPartReplaced(c *client) {
	u := c.create("key")
	u.part(1, "first")
	old := u.document(1)
	u.part(1, "second")
	c.want(u.sendComplete(old), http.StatusBadRequest, "InvalidPart")
	c.absent("key")
	u.completed(u.sendComplete(u.document(1)), 1)
}

// testPartBodyFails ends the body of a part with an error: the part before it under that number stays.
func testPartBodyFails(c *client) {
	u := c.create("key")
	u.part(2, "good")
	for _, number := range []int{1, 2} {
		for _, cut := range []int{0, 500, 1000} {
			r := request(http.MethodPut, u.target(fmt.Sprintf("partNumber=%d", number)), nil)
			r.Body, r.ContentLength = failing(strings.Repeat("x", cut)), 1000
			if a := c.send(r); a.status < 400 || a.status >= 500 && a.status != 501 && a.status != 503 {
				c.Errorf("a part that was cut after %d bytes: %d %s", cut, a.status, a.body)
			}
		}
	}
	if p := c.parts(u); len(p.Parts) != 1 || p.Parts[0].ETag != etagOf("good") {
		c.Errorf("after parts that failed there are %+v", p.Parts)
	}
	u.completed(u.sendComplete(u.document(2)), 2)
}

// testCompleteHeldEnd holds the end of a Complete's body back: there is no object before it.
func testCompleteHeldEnd(c *client) {
	for _, end := range []error{io.ErrUnexpectedEOF, io.EOF} {
		u := c.create("key")
		u.part(1, "content")
		document := u.document(1)
		r := request(http.MethodPost, u.target(), nil)
		r.ContentLength = int64(len(document))
		r.Body = &scripted{content: readerOf(document), end: func() error {
			c.absent("key")
			return end
		}}
		a := c.send(r)
		if end == io.EOF {
			u.completed(a, 1)
			continue
		}
		c.want(a, http.StatusBadRequest, "")
		c.absent("key")
		c.want(u.abort(), http.StatusNoContent, "")
	}
}

func testMultipartRefused(c *client) {
	c.want(c.do(http.MethodPost, target(c.bucket+"-none", "key")+"?uploads", nil), http.StatusNotFound, "NoSuchBucket")
	u := c.create("key")
	for _, number := range []string{"0", "10001", "-1", "x", "", "1.5"} {
		c.want(c.do(http.MethodPut, u.target("partNumber="+number), strings.NewReader("x")), http.StatusBadRequest, "InvalidArgument")
	}
	u.part(1, random(minPart-1))
	u.part(2, random(minPart))
	u.part(3, "last")
	list := func(parts string) string {
		return "<CompleteMultipartUpload>" + parts + "</CompleteMultipartUpload>"
	}
	wrong := "<Part><PartNumber>3</PartNumber><ETag>" + strings.Trim(etagOf("x"), `"`) + "</ETag></Part>"
	for _, test := range []struct{ document, code string }{
		{u.document(3, 2), "InvalidPartOrder"},
		{u.document(2, 2), "InvalidPartOrder"},
		{u.document(2, 4), "InvalidPart"},
		{list(wrong), "InvalidPart"},
		{u.document(1, 2, 3), "EntityTooSmall"},
		{u.document(2, 3) + "x", "MalformedXML"},
		{list(""), "MalformedXML"},
		{list("<Part><PartNumber>2</PartNumber>"), "MalformedXML"},
		{"<Complete/>", "MalformedXML"},
		{"{}", "MalformedXML"},
	} {
		c.want(u.sendComplete(test.document), http.StatusBadRequest, test.code)
		c.absent("key")
	}
	u.completed(u.sendComplete(u.document(2, 3)), 2, 3) // nothing of it was lost
}

func testNoSuchUpload(c *client) {
	open := c.create("key")
	open.part(1, "content")
	for _, id := range []string{"none", "..", "../" + open.id, open.id + "x", open.id[:len(open.id)-1], strings.Repeat("0", len(open.id))} {
		u := &uploaded{c: c, key: "key", id: id, parts: open.parts}
		c.want(u.sendComplete(u.document(1)), http.StatusNotFound, "NoSuchUpload")
		u.gone()
	}
	other := &uploaded{c: c, key: "other", id: open.id, parts: open.parts} // of another key
	c.want(other.sendComplete(other.document(1)), http.StatusNotFound, "NoSuchUpload")
	c.want(other.sendPart(1, "x"), http.StatusNotFound, "NoSuchUpload")
	c.want(other.abort(), http.StatusNotFound, "NoSuchUpload")
	c.absent("other")
	open.completed(open.sendComplete(open.document(1)), 1)
}
