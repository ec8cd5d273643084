package backendtest

import (
	"fmt"
	"net/http"
	"strings"
)

func testAttributes(c *client) {
	c.put("key", "content")
	got := c.attributes("key", "ETag,ObjectSize,StorageClass")
	if `"`+got.ETag+`"` != etagOf("content") || got.ObjectSize == nil || *got.ObjectSize != 7 || got.StorageClass != "STANDARD" || got.Checksum != nil || got.ObjectParts != nil {
		c.Errorf("%+v", got)
	}
	if got = c.attributes("key", "ObjectParts"); got.ETag != "" || got.ObjectSize != nil || got.StorageClass != "" || got.ObjectParts != nil {
		c.Errorf("the parts of an object that has none: %+v", got)
	}
	ask := func(key string, headers ...string) answer {
		return c.do(http.MethodGet, c.key(key)+"?attributes", nil, headers...)
	}
	const header = "X-Amz-Object-Attributes"
	c.want(ask("none", header, "ETag"), http.StatusNotFound, "NoSuchKey")
	c.want(ask("key", header, "ETag,Colour"), http.StatusBadRequest, "InvalidArgument")
	c.want(ask("key", header, ""), http.StatusBadRequest, "InvalidRequest")
	c.want(ask("key"), http.StatusBadRequest, "InvalidRequest")
	c.want(c.do(http.MethodGet, target(c.bucket+"-none", "key")+"?attributes", nil, header, "ETag"), http.StatusNotFound, "NoSuchBucket")
}

func testAttributesOfParts(c *client) {
	u := c.create("key", "X-Amz-Checksum-Algorithm", "SHA256")
	for _, n := range []int{2, 5, 9} {
		u.summedPart(n, "SHA256", random(minPart+n%2))
	}
	u.completed(u.sendComplete(u.summedDocument("SHA256", 2, 5, 9)), 2, 5, 9)
	for _, most := range []int{1, 2, 3, 1000} {
		var seen []string
		for marker, more := 0, true; more; {
			p := c.attributes("key", "ObjectParts", "X-Amz-Max-Parts", fmt.Sprint(most), "X-Amz-Part-Number-Marker", fmt.Sprint(marker)).ObjectParts
			if p == nil || p.PartsCount != 3 || p.MaxParts != most || p.PartNumberMarker != marker || len(p.Parts) > most || p.IsTruncated && len(p.Parts) < most {
				c.Fatalf("a page of %d: %+v", most, p)
			}
			for _, part := range p.Parts {
				seen = append(seen, fmt.Sprintf("%d %d %s", part.PartNumber, part.Size, part.Sums[0].Value))
			}
			marker, more = p.NextPartNumberMarker, p.IsTruncated
		}
		want := []string{}
		for i, n := range []int{2, 5, 9} { // numbered anew, without gaps
			want = append(want, fmt.Sprintf("%d %d %s", i+1, minPart+n%2, sumOf("SHA256", u.parts[n])))
		}
		if fmt.Sprint(seen) != fmt.Sprint(want) {
			c.Errorf("in pages of %d: %q, want %q", most, seen, want)
		}
	}
}

func testPartReads(c *client) {
	u := c.create("key", "Content-Encoding", "gzip")
	for n, content := range map[int]string{1: random(minPart), 4: random(minPart + 1), 7: "last"} {
		u.part(n, content)
	}
	u.completed(u.sendComplete(u.document(1, 4, 7)), 1, 4, 7)
	whole := u.content(1, 4, 7)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		first := 0
		for i, n := range []int{1, 4, 7} {
			content := u.parts[n]
			a := c.do(method, c.key("key")+fmt.Sprintf("?partNumber=%d", i+1), nil)
			says := fmt.Sprintf("bytes %d-%d/%d", first, first+len(content)-1, len(whole))
			if a.status != http.StatusPartialContent || a.header.Get("Content-Range") != says || a.header.Get("X-Amz-Mp-Parts-Count") != "3" ||
				a.header.Get("Content-Length") != fmt.Sprint(len(content)) || a.etag() != u.etag(1, 4, 7) || method == http.MethodGet && string(a.body) != content {
				c.Errorf("%s of part %d: %d %v with %d bytes, want %s", method, i+1, a.status, a.header, len(a.body), says)
			}
			first += len(content)
		}
		if got := c.do(method, c.key("key"), nil).header.Get("X-Amz-Mp-Parts-Count"); got != "" {
			c.Errorf("%s of the whole tells %s parts", method, got)
		}
	}
	c.want(c.do(http.MethodGet, c.key("key")+"?partNumber=4", nil), http.StatusRequestedRangeNotSatisfiable, "InvalidPartNumber")
	c.want(c.do(http.MethodGet, c.key("key")+"?partNumber=1", nil, "If-None-Match", u.etag(1, 4, 7)), http.StatusNotModified, "")
	c.want(c.do(http.MethodGet, c.key("key")+"?partNumber=1", nil, "If-Match", etagOf("x")), http.StatusPreconditionFailed, "PreconditionFailed")
	for _, number := range []string{"0", "-1", "10001", "x", ""} {
		c.want(c.do(http.MethodGet, c.key("key")+"?partNumber="+number, nil), http.StatusBadRequest, "InvalidArgument")
	}
	c.want(c.do(http.MethodGet, c.key("key")+"?partNumber=1", nil, "Range", "bytes=0-1"), http.StatusBadRequest, "InvalidRequest")

	c.put("plain", "content") // is its own first part
	c.put("empty", "")
	a := c.do(http.MethodGet, c.key("plain")+"?partNumber=1", nil)
	if a.status != http.StatusPartialContent || string(a.body) != "content" || a.header.Get("Content-Range") != "bytes 0-6/7" || a.header.Get("X-Amz-Mp-Parts-Count") != "" {
		c.Errorf("the first part of a plain object: %d %v %q", a.status, a.header, a.body)
	}
	a = c.do(http.MethodGet, c.key("empty")+"?partNumber=1", nil, "X-Amz-Checksum-Mode", "ENABLED")
	if a.status != http.StatusOK || len(a.body) > 0 || a.header.Get("Content-Range") != "" || a.header.Get("X-Amz-Checksum-Crc64nvme") == "" {
		c.Errorf("the first part of an empty object: %d %v %q", a.status, a.header, a.body)
	}
	c.want(c.do(http.MethodGet, c.key("plain")+"?partNumber=2", nil), http.StatusRequestedRangeNotSatisfiable, "InvalidPartNumber")
	c.want(c.do(http.MethodGet, c.key("none")+"?partNumber=1", nil), http.StatusNotFound, "NoSuchKey")
}

// testKeptHeaders stores what S3 keeps besides the usual headers.
func testKeptHeaders(c *client) {
	const redirect = "X-Amz-Website-Redirect-Location"
	c.put("key", "content", redirect, "/elsewhere", "X-Amz-Storage-Class", "STANDARD")
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		if got := c.do(method, c.key("key"), nil).header.Get(redirect); got != "/elsewhere" {
			c.Errorf("%s: %s is %q", method, redirect, got)
		}
	}
	c.want(c.copyTo("copy", "key"), http.StatusOK, "") // which never has it
	if got := c.get("copy").header.Get(redirect); got != "" {
		c.Errorf("a copy has %s %q", redirect, got)
	}
	c.want(c.copyTo("copy", "key", redirect, "https://elsewhere.example"), http.StatusOK, "")
	if got := c.get("copy").header.Get(redirect); got != "https://elsewhere.example" {
		c.Errorf("a copy with a new one has %s %q", redirect, got)
	}
	c.want(c.do(http.MethodPut, c.key("none"), strings.NewReader("x"), redirect, "elsewhere"), http.StatusBadRequest, "InvalidRedirectLocation")
	c.absent("none")
}
