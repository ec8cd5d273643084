package proxy

import (
	"bytes"
	"encoding/xml"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// FuzzBatch: what is read of a DeleteObjects is what is written of it for the store, key by key, and nothing else can be read out of that.
func FuzzBatch(f *testing.F) {
	f.Add(deleteBody("a", "jobs/1/<&>", " x "))
	f.Add(`<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet><Object><Key>a</Key><VersionId>1</VersionId><ETag>"e"</ETag></Object></Delete>`)
	f.Add("<Delete><Object><Key>a<!-- b -->c</Key></Object></Delete>")
	f.Add("<Delete><Object><Key><![CDATA[a]]></Key></Object></Delete>")
	f.Add("<?xml version='1.0'?><Delete/>")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := parseBatch([]byte(text))
		if err != nil {
			return
		}
		sent := batch{Quiet: b.Quiet}
		for _, e := range b.entries {
			if e.Key == "" || len(e.Key) > maxKey {
				t.Fatalf("a key of %d bytes was read", len(e.Key))
			}
			sent.Objects = append(sent.Objects, e.batchItem)
		}
		written, err := xml.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseBatch(written)
		if err != nil {
			t.Fatalf("%s cannot be read again: %v", written, err)
		}
		if len(again.entries) != len(b.entries) || again.Quiet != b.Quiet {
			t.Fatalf("%s has %d entries, want %d", written, len(again.entries), len(b.entries))
		}
		for i := range again.entries {
			if again.entries[i].batchItem != b.entries[i].batchItem {
				t.Fatalf("entry %d: %+v becomes %+v", i, b.entries[i].batchItem, again.entries[i].batchItem)
			}
		}
	})
}

// FuzzTags: the tags of a form are those of the header, whatever their characters.
func FuzzTags(f *testing.F) {
	f.Add("<Tagging><TagSet><Tag><Key>a</Key><Value>b c</Value></Tag></TagSet></Tagging>")
	f.Add("<Tagging><TagSet><Tag><Key>&amp;=</Key><Value>%zz</Value></Tag><Tag><Key>a</Key></Tag></TagSet></Tagging>")
	f.Fuzz(func(t *testing.T, document string) {
		header, err := tagsOf(document)
		if err != nil {
			return
		}
		tags, err := url.ParseQuery(header)
		if err != nil {
			t.Fatalf("%q: %v", header, err)
		}
		var read struct {
			Tags []struct{ Key, Value string } `xml:"TagSet>Tag"`
		}
		if err := xml.Unmarshal([]byte(document), &read); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, values := range tags {
			n += len(values)
		}
		if n != len(read.Tags) {
			t.Fatalf("%q has %d tags, want %d", header, n, len(read.Tags))
		}
		for _, tag := range read.Tags {
			if !slices.Contains(tags[tag.Key], tag.Value) {
				t.Fatalf("%q lacks %+v", header, tag)
			}
		}
	})
}

// FuzzQuery: what is taken out of a query is of the signature or the fence, in whatever spelling, and all else stays, in its order.
func FuzzQuery(f *testing.F) {
	for _, raw := range []string{
		"X-Amz-Signature=0&x-amz-meta-a=b&uploads", "x%2Dfence-token=34&a=b;c", "X-Fence-Holder=a&%zz&versionId=", "X-Amz-Credential=&x-amz-copy-source=b%2Fk",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		r := &http.Request{Method: "PUT", URL: &url.URL{Path: "/b/k", RawQuery: raw}, Header: http.Header{}}
		out, err := withoutSignature(r)
		if err != nil {
			return
		}
		rest := raw
		for _, pair := range strings.Split(out.URL.RawQuery, "&") {
			i := strings.Index("&"+rest+"&", "&"+pair+"&")
			if i < 0 && pair != "" {
				t.Fatalf("%q has %q, which is not in %q", out.URL.RawQuery, pair, raw)
			}
			rest = ("&" + rest)[max(i, 0):]
		}
		for name := range out.URL.Query() {
			switch http.CanonicalHeaderKey(name) {
			case headerToken, headerHolder, "X-Amz-Signature", "X-Amz-Algorithm", "X-Amz-Credential":
				t.Fatalf("%q keeps %s", out.URL.RawQuery, name)
			}
		}
		for name, values := range out.Header {
			if !strings.HasPrefix(name, "X-Amz-") || len(values) != 1 || strings.ContainsFunc(values[0], isControl) {
				t.Fatalf("%q becomes the header %s: %q", raw, name, values)
			}
		}
	})
}

// FuzzForm: a form is an object and no other operation, whatever its fields, and one that is cut off is none.
func FuzzForm(f *testing.F) {
	f.Add("key", "k", "x-amz-copy-source", "b/x", "content", 0)
	f.Add("KEY", "a/${filename}", "x-amz-write-offset-bytes", "1", "", 7)
	f.Add("key", "..", "Content-Type", "a\r\nX-Amz-Copy-Source: b/x", "\r\n--", 3)
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2, content string, cut int) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for _, field := range [][2]string{{name1, value1}, {name2, value2}} {
			if err := w.WriteField(field[0], field[1]); err != nil {
				return
			}
		}
		part, err := w.CreateFormFile("file", "f")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, content) // into memory
		_ = w.Close()
		text := b.String()
		cut = max(0, min(cut, len(text)))
		r := httptest.NewRequest("POST", "/b", strings.NewReader(text[:len(text)-cut]))
		r.Header.Set("Content-Type", w.FormDataContentType())
		h := New(Config{Buffer: 1 << 20, Memory: 1 << 20})
		x := &exchange{h: h, r: r, control: noDeadlines(), wire: r.Body, wireLength: r.ContentLength, op: operation{bucket: "b", level: bucket, name: "PostObject"}}
		form, err := x.readForm()
		if err != nil {
			return
		}
		defer form.release()
		if cut > len("--\r\n") { // what is behind the last boundary's name nobody needs
			t.Fatalf("a form without its last %d bytes was taken", cut)
		}
		got, err := io.ReadAll(io.NewSectionReader(form.content, 0, form.size))
		if err != nil || string(got) != content {
			t.Fatalf("the file has become %q, %v; want %q", got, err, content)
		}
		header, err := form.headers()
		if err != nil {
			return
		}
		for _, name := range []string{headerCopySource, headerRenameSource, headerWriteOffset, "If-Match", headerToken} {
			if v, ok := header[name]; ok {
				t.Fatalf("a field has become the header %s: %q", name, v)
			}
		}
	})
}
