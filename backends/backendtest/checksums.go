package backendtest

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

const sumType = "X-Amz-Checksum-Type"

func algorithm(name string) checksum.Algorithm {
	a, ok := checksum.ByName(name)
	if !ok {
		panic("no algorithm " + name)
	}
	return a
}

func sumOf(name, content string) string { return algorithm(name).Of([]byte(content)) }

// compositeOf is the checksum of the checksums of these contents.
func compositeOf(name string, contents ...string) string {
	a := algorithm(name)
	h := a.New()
	for _, content := range contents {
		b, _ := a.Decode(a.Of([]byte(content)))
		h.Write(b)
	}
	return fmt.Sprintf("%s-%d", base64.StdEncoding.EncodeToString(h.Sum(nil)), len(contents))
}

// told says which checksum the headers of an answer tell: its algorithm, its value and its type.
func told(a answer) (name, value, kind string) {
	for _, alg := range checksum.All {
		if v := a.header.Get(alg.Header()); v != "" {
			name, value = name+alg.Name, value+v
		}
	}
	return name, value, a.header.Get(sumType)
}

// summed checks what GET, HEAD and GetObjectAttributes tell of an object's checksum.
func (c *client) summed(key, name, value, kind string) {
	c.Helper()
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		a := c.do(method, c.key(key), nil, "X-Amz-Checksum-Mode", "ENABLED")
		if n, v, k := told(a); n != name || v != value || k != kind {
			c.Errorf("%s of %s tells the checksum %s %s %s, want %s %s %s", method, key, n, v, k, name, value, kind)
		}
		if n, v, _ := told(c.do(method, c.key(key), nil)); n+v != "" {
			c.Errorf("%s of %s tells the checksum %s %s, which nobody asked for", method, key, n, v)
		}
		a = c.do(method, c.key(key), nil, "X-Amz-Checksum-Mode", "ENABLED", "Range", "bytes=0-0")
		if n, v, _ := told(a); n+v != "" {
			c.Errorf("%s of a range of %s tells the checksum %s %s", method, key, n, v)
		}
	}
	got := c.attributes(key, "Checksum").Checksum
	if got == nil || got.ChecksumType != kind || len(got.Sums) != 1 || got.Sums[0].XMLName.Local != "Checksum"+name || got.Sums[0].Value != value {
		c.Errorf("GetObjectAttributes of %s tells %+v, want %s %s %s", key, got, name, value, kind)
	}
}

func testChecksums(c *client) {
	for _, a := range checksum.All {
		content := "content of " + a.Name
		sum := a.Of([]byte(content))
		answer := c.put(a.Name, content, a.Header(), sum, "X-Amz-Sdk-Checksum-Algorithm", a.Name)
		if n, v, k := told(answer); n != a.Name || v != sum || k != "FULL_OBJECT" {
			c.Errorf("PUT with a %s tells %s %s %s", a.Name, n, v, k)
		}
		c.summed(a.Name, a.Name, sum, "FULL_OBJECT")
		c.holds(a.Name, content)
	}
	c.put("SHA1", "other") // a new version has a checksum of its own: S3's default
	c.summed("SHA1", "CRC64NVME", sumOf("CRC64NVME", "other"), "FULL_OBJECT")
	empty := c.put("empty", "")
	if n, v, k := told(empty); n != "CRC64NVME" || v != "AAAAAAAAAAA=" || k != "FULL_OBJECT" {
		c.Errorf("PUT of nothing tells %s %s %s", n, v, k)
	}
}

func testChecksumsRefused(c *client) {
	c.put("key", "old")
	put := func(headers ...string) answer {
		return c.do(http.MethodPut, c.key("key"), strings.NewReader("new"), headers...)
	}
	for _, a := range checksum.All {
		c.want(put(a.Header(), a.Of([]byte("newer"))), http.StatusBadRequest, "BadDigest")
		for _, value := range []string{"", "%", sumOf("CRC32", "new") + "AAAA", a.Of([]byte("new"))[1:]} {
			c.want(put(a.Header(), value), http.StatusBadRequest, "InvalidRequest")
		}
	}
	crc, sha := sumOf("CRC32", "new"), sumOf("SHA256", "new")
	c.want(put("X-Amz-Checksum-Crc32", crc, "X-Amz-Checksum-Sha256", sha), http.StatusBadRequest, "InvalidRequest")
	c.want(put("X-Amz-Checksum-Crc31", crc), http.StatusBadRequest, "InvalidRequest")
	c.want(put("X-Amz-Checksum-Crc32", crc, "X-Amz-Sdk-Checksum-Algorithm", "SHA256"), http.StatusBadRequest, "InvalidRequest")
	c.holds("key", "old")
	u := c.create("parts", "X-Amz-Checksum-Algorithm", "CRC32")
	part := func(headers ...string) answer {
		return c.do(http.MethodPut, u.target("partNumber=1"), strings.NewReader("new"), headers...)
	}
	c.want(part("X-Amz-Checksum-Crc32", sumOf("CRC32", "newer")), http.StatusBadRequest, "BadDigest")
	c.want(part("X-Amz-Checksum-Sha256", sha), http.StatusBadRequest, "InvalidRequest") // not that of the upload
	c.want(part(), http.StatusBadRequest, "InvalidRequest")                             // none, and the upload's is of those of the parts
	if p := c.parts(u); len(p.Parts) != 0 {
		c.Errorf("after parts that were refused there are %+v", p.Parts)
	}
	for _, headers := range [][]string{
		{"X-Amz-Checksum-Algorithm", "CRC31"},
		{"X-Amz-Checksum-Algorithm", "CRC32", "X-Amz-Checksum-Type", "HALF"},
		{"X-Amz-Checksum-Type", "COMPOSITE"},
		{"X-Amz-Checksum-Algorithm", "SHA256", "X-Amz-Checksum-Type", "FULL_OBJECT"},
		{"X-Amz-Checksum-Algorithm", "CRC64NVME", "X-Amz-Checksum-Type", "COMPOSITE"},
	} {
		c.want(c.do(http.MethodPost, c.key("none")+"?uploads", nil, headers...), http.StatusBadRequest, "InvalidRequest")
	}
}

// testChecksumTrailer sends a checksum behind the body, as the proxy hands on what streams.
func testChecksumTrailer(c *client) {
	c.put("key", "old")
	for _, test := range []struct {
		of     string
		status int
	}{{"other", http.StatusBadRequest}, {"streamed", http.StatusOK}} {
		r := request(http.MethodPut, c.key("key"), nil)
		r.ContentLength = int64(len("streamed"))
		end := func() error { return io.EOF }
		if c.whole { // then it comes as a header
			r.Header.Set("X-Amz-Checksum-Sha256", sumOf("SHA256", test.of))
		} else {
			r.Trailer = http.Header{"X-Amz-Checksum-Sha256": nil}
			end = func() error {
				r.Trailer.Set("X-Amz-Checksum-Sha256", sumOf("SHA256", test.of))
				return io.EOF
			}
		}
		r.Body = &scripted{content: bytes.NewReader([]byte("streamed")), end: end}
		a := c.send(r)
		c.want(a, test.status, map[int]string{http.StatusBadRequest: "BadDigest"}[test.status])
		if test.status != http.StatusOK {
			c.holds("key", "old")
		}
	}
	c.holds("key", "streamed")
	c.summed("key", "SHA256", sumOf("SHA256", "streamed"), "FULL_OBJECT")
}

func testChecksumsCopied(c *client) {
	c.put("from", "content", "X-Amz-Checksum-Sha1", sumOf("SHA1", "content"))
	for _, test := range []struct {
		headers []string
		name    string
	}{{nil, "SHA1"}, {[]string{"X-Amz-Checksum-Algorithm", "CRC32C"}, "CRC32C"}} {
		a := c.copyTo("to", "from", test.headers...)
		c.copied(a, "CopyObjectResult", "content")
		if sum := sumOf(test.name, "content"); !strings.Contains(string(a.body), fmt.Sprintf("<Checksum%s>%s</Checksum%[1]s>", test.name, sum)) {
			c.Errorf("the copy's %s %s is not in %s", test.name, sum, a.body)
		}
		c.summed("to", test.name, sumOf(test.name, "content"), "FULL_OBJECT")
	}
	c.want(c.copyTo("none", "from", "X-Amz-Checksum-Algorithm", "CRC31"), http.StatusBadRequest, "InvalidRequest")
	c.absent("none")
}

// summedPart sends a part with its checksum.
func (u *uploaded) summedPart(number int, name, content string) {
	u.c.Helper()
	headers := []string{}
	if name != "" {
		headers = []string{algorithm(name).Header(), sumOf(name, content)}
	}
	a := u.c.do(http.MethodPut, u.target(fmt.Sprintf("partNumber=%d", number)), strings.NewReader(content), headers...)
	u.c.want(a, http.StatusOK, "")
	if name != "" && a.header.Get(algorithm(name).Header()) != sumOf(name, content) {
		u.c.Errorf("part %d tells the checksum %v, want %s %s", number, a.header, name, sumOf(name, content))
	}
	u.parts[number] = content
}

// summedDocument is the list of a Complete with the checksums of the parts.
func (u *uploaded) summedDocument(name string, numbers ...int) string {
	var b strings.Builder
	for _, n := range numbers {
		fmt.Fprintf(&b, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag><Checksum%[3]s>%s</Checksum%[3]s></Part>",
			n, strings.Trim(etagOf(u.parts[n]), `"`), name, sumOf(name, u.parts[n]))
	}
	return "<CompleteMultipartUpload>" + b.String() + "</CompleteMultipartUpload>"
}

func testChecksumsOfParts(c *client) {
	first, last := random(minPart), random(minPart/3)
	for _, test := range []struct{ name, kind, asked string }{
		{"CRC32", "COMPOSITE", ""},
		{"SHA256", "COMPOSITE", "COMPOSITE"},
		{"CRC32", "FULL_OBJECT", "FULL_OBJECT"},
		{"CRC32C", "FULL_OBJECT", "FULL_OBJECT"},
		{"CRC64NVME", "FULL_OBJECT", ""},
		{"", "FULL_OBJECT", ""}, // S3's default
	} {
		key := test.name + test.kind
		var headers []string
		if test.name != "" {
			headers = []string{"X-Amz-Checksum-Algorithm", test.name}
		}
		if test.asked != "" {
			headers = append(headers, "X-Amz-Checksum-Type", test.asked)
		}
		u := c.create(key, headers...)
		u.summedPart(1, test.name, first)
		u.summedPart(2, test.name, last)
		document, name := u.document(1, 2), "CRC64NVME"
		if test.name != "" {
			document, name = u.summedDocument(test.name, 1, 2), test.name
		}
		want := sumOf(name, first+last)
		if test.kind == "COMPOSITE" {
			want = compositeOf(name, first, last)
		}
		if test.name != "" { // a wrong checksum of the whole is refused, and nothing of it is lost
			c.want(u.sendComplete(document, algorithm(name).Header(), sumOf(name, first)), http.StatusBadRequest, "BadDigest")
			c.absent(key)
			headers = []string{algorithm(name).Header(), want, sumType, test.kind}
		}
		a := u.sendComplete(document, headers...)
		u.completed(a, 1, 2)
		if test.name != "" && !strings.Contains(string(a.body), fmt.Sprintf("<Checksum%s>%s</Checksum%[1]s>", name, want)) {
			c.Errorf("Complete does not tell the %s %s: %s", name, want, a.body)
		}
		c.summed(key, name, want, test.kind)
		if test.kind == "FULL_OBJECT" {
			c.want(c.copyTo("copy", key), http.StatusOK, "")
			c.summed("copy", name, want, "FULL_OBJECT")
		}
	}
}

func testCompleteChecksumsRefused(c *client) {
	u := c.create("key", "X-Amz-Checksum-Algorithm", "SHA256")
	u.summedPart(1, "SHA256", "content")
	entry := func(more string) string {
		return "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + strings.Trim(etagOf("content"), `"`) + "</ETag>" + more + "</Part></CompleteMultipartUpload>"
	}
	good := "<ChecksumSHA256>" + sumOf("SHA256", "content") + "</ChecksumSHA256>"
	for _, test := range []struct {
		more    string
		headers []string
		code    string
	}{
		{"", nil, "InvalidRequest"}, // a composite one is made of them
		{"<ChecksumSHA256>" + sumOf("SHA256", "other") + "</ChecksumSHA256>", nil, "InvalidPart"},
		{"<ChecksumCRC32>" + sumOf("CRC32", "other") + "</ChecksumCRC32>", nil, "BadDigest"},
		{"<ChecksumSHA256>%</ChecksumSHA256>", nil, "InvalidArgument"},
		{good + "<ChecksumCRC32>" + sumOf("CRC32", "content") + "</ChecksumCRC32>", nil, "InvalidArgument"},
		{good, []string{sumType, "FULL_OBJECT"}, "InvalidRequest"},
		{good, []string{sumType, "HALF"}, "InvalidRequest"},
		{good, []string{"X-Amz-Checksum-Sha256", "%"}, "InvalidRequest"},
		{good, []string{"X-Amz-Checksum-Sha256", compositeOf("SHA256", "content") + "x"}, "InvalidRequest"},
		{good, []string{"X-Amz-Checksum-Sha256", compositeOf("SHA256", "other")}, "BadDigest"},
		{good, []string{"X-Amz-Mp-Object-Size", "6"}, "InvalidRequest"},
		{good, []string{"X-Amz-Mp-Object-Size", "-1"}, "InvalidRequest"},
		{good, []string{"X-Amz-Mp-Object-Size", "x"}, "InvalidRequest"},
	} {
		a := u.sendComplete(entry(test.more), test.headers...)
		if a.status != http.StatusBadRequest || a.code() != test.code {
			c.Errorf("Complete with %s %v: %d %s, want 400 %s", test.more, test.headers, a.status, a.body, test.code)
		}
		c.absent("key")
	}
	u.completed(u.sendComplete(entry(good), "X-Amz-Mp-Object-Size", "7", "X-Amz-Checksum-Sha256", compositeOf("SHA256", "content")), 1)
}

// An attributes is an answer of GetObjectAttributes.
type attributes struct {
	XMLName  xml.Name `xml:"GetObjectAttributesResponse"`
	ETag     string
	Checksum *struct {
		ChecksumType string
		Sums         []sumElement `xml:",any"`
	}
	ObjectParts *struct {
		PartsCount           int
		PartNumberMarker     int
		NextPartNumberMarker int
		MaxParts             int
		IsTruncated          bool
		Parts                []struct {
			PartNumber int
			Size       int64
			Sums       []sumElement `xml:",any"`
		} `xml:"Part"`
	}
	StorageClass string
	ObjectSize   *int64
}

type sumElement struct {
	XMLName xml.Name
	Value   string `xml:",chardata"`
}

func (c *client) attributes(key, names string, headers ...string) (got attributes) {
	c.Helper()
	a := c.do(http.MethodGet, c.key(key)+"?attributes", nil, append([]string{"X-Amz-Object-Attributes", names}, headers...)...)
	c.want(a, http.StatusOK, "")
	if err := xml.Unmarshal(a.body, &got); err != nil {
		c.Fatalf("GetObjectAttributes: %v in %s", err, a.body)
	}
	if _, err := http.ParseTime(a.header.Get("Last-Modified")); err != nil {
		c.Errorf("GetObjectAttributes: %v", err)
	}
	return got
}
