package file

import (
	"crypto/md5"
	"encoding/xml"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
)

func md5Of(content string) string { return fmt.Sprintf("%x", md5.Sum([]byte(content))) }

func (b *bench) copyTo(to, from string, headers ...string) *httptest.ResponseRecorder {
	b.Helper()
	return b.do("PUT", "/bucket/"+to, "", append([]string{"X-Amz-Copy-Source", "bucket/" + url.PathEscape(from)}, headers...)...)
}

func (b *bench) deleteAll(keys ...string) *httptest.ResponseRecorder {
	b.Helper()
	var doc strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&doc, "<Object><Key>%s</Key></Object>", k)
	}
	return b.do("POST", "/bucket?delete", "<Delete>"+doc.String()+"</Delete>")
}

// An up is an upload in parts.
type up struct {
	b       *bench
	key, id string
	parts   map[int]string
}

// create begins an upload whose metadata names the content that its object will have.
func (b *bench) create(key, content string) *up {
	b.Helper()
	w := b.do("POST", "/bucket/"+key+"?uploads", "", "X-Amz-Meta-Of", content)
	b.want(w, 200)
	var result createResult
	if err := xml.Unmarshal(w.Body.Bytes(), &result); err != nil {
		b.Fatal(err)
	}
	return &up{b: b, key: key, id: result.UploadID, parts: map[int]string{}}
}

func (u *up) target(more string) string { return "/bucket/" + u.key + "?uploadId=" + u.id + more }

func (u *up) send(number int, content string) *httptest.ResponseRecorder {
	u.b.Helper()
	return u.b.do("PUT", u.target(fmt.Sprintf("&partNumber=%d", number)), content)
}

func (u *up) part(number int, content string) {
	u.b.Helper()
	u.b.want(u.send(number, content), 200)
	u.parts[number] = content
}

func (u *up) document(numbers ...int) string {
	var doc strings.Builder
	for _, n := range numbers {
		fmt.Fprintf(&doc, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", n, md5Of(u.parts[n]))
	}
	return "<CompleteMultipartUpload>" + doc.String() + "</CompleteMultipartUpload>"
}

func (u *up) complete(numbers ...int) *httptest.ResponseRecorder {
	u.b.Helper()
	return u.b.do("POST", u.target(""), u.document(numbers...))
}

func (u *up) abort() *httptest.ResponseRecorder {
	u.b.Helper()
	return u.b.do("DELETE", u.target(""), "")
}

// uploads are the open uploads of the bucket: "key" with the numbers and the MD5s of its parts.
func (b *bench) uploads() string {
	b.Helper()
	w := b.do("GET", "/bucket?uploads", "")
	b.want(w, 200)
	var list uploadsResult
	if err := xml.Unmarshal(w.Body.Bytes(), &list); err != nil {
		b.Fatal(err)
	}
	var all []string
	for _, o := range list.Uploads {
		w := b.do("GET", "/bucket/"+o.Key+"?uploadId="+o.UploadID, "")
		b.want(w, 200)
		var parts partsResult
		if err := xml.Unmarshal(w.Body.Bytes(), &parts); err != nil {
			b.Fatal(err)
		}
		text := o.Key
		for _, p := range parts.Parts {
			text += fmt.Sprintf(" %d:%s", p.PartNumber, strings.Trim(p.ETag, `"`))
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
