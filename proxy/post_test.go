package proxy

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// A field of a form, in its order.
type field struct{ name, value string }

// signedForm is a form as a page has it whose server has signed a policy for it.
func signedForm(now time.Time, key string, conditions string, fields ...field) []field {
	day := now.UTC().Format("20060102")
	credential := key + "/" + day + "/us-east-1/s3/aws4_request"
	date := now.UTC().Format("20060102T150405Z")
	policy := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, `{"expiration": %q, "conditions": [
		{"bucket": "b"}, {"x-amz-credential": %q}, {"x-amz-date": %q}, {"x-amz-algorithm": "AWS4-HMAC-SHA256"}%s]}`,
		now.Add(time.Hour).UTC().Format(time.RFC3339), credential, date, conditions))
	k := []byte("AWS4" + testSecret)
	for _, part := range []string{day, "us-east-1", "s3", "aws4_request", policy} {
		h := hmac.New(sha256.New, k)
		h.Write([]byte(part))
		k = h.Sum(nil)
	}
	return append([]field{
		{"X-Amz-Credential", credential},
		{"X-Amz-Date", date},
		{"X-Amz-Algorithm", "AWS4-HMAC-SHA256"},
		{"Policy", policy},
		{"X-Amz-Signature", hex.EncodeToString(k)},
	}, fields...)
}

// post sends a form.
func (f *fixture) post(fields []field, filename, content string, headers ...string) (*http.Response, string) {
	f.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, field := range fields {
		if err := w.WriteField(field.name, field.value); err != nil {
			f.Fatal(err)
		}
	}
	if filename != "" {
		part, err := w.CreateFormFile("file", filename)
		if err != nil {
			f.Fatal(err)
		}
		_, _ = part.Write([]byte(content)) // into memory
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(f.request("POST", "/b", b.String(), append(headers, "Content-Type: "+w.FormDataContentType())...))
	if err != nil {
		f.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		f.Fatal(err)
	}
	return resp, text.String()
}

// TestForm: a form is the PutObject that it means, with its token, its metadata and its gate.
func TestForm(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixtureWith(t, restricted(map[string]*rules.Access{"AKIDPREFIX": {Prefixes: []string{"jobs/"}}}), Backend{Handler: b})
	const conditions = `, ["starts-with", "$key", ""], ["starts-with", "$x-fence-token", ""], ["starts-with", "$x-amz-meta-a", ""], ["starts-with", "$Content-Type", ""], ["content-length-range", 2, 20]`
	fields := []field{{"key", "jobs/${filename}"}, {"X-Fence-Token", "34"}, {"X-Amz-Meta-A", "b"}, {"Content-Type", "text/plain"}}
	form := func(key string, more ...field) []field {
		return signedForm(time.Now(), key, conditions, append(more, fields...)...)
	}
	resp, body := f.post(form("AKIDPREFIX"), "a.txt", "content")
	if resp.StatusCode != http.StatusNoContent || resp.Header.Get("ETag") != `"e"` || !strings.HasSuffix(resp.Header.Get("Location"), "/b/jobs/a.txt") {
		t.Fatalf("%d %v %s, want 204", resp.StatusCode, resp.Header, body)
	}
	got, _ := b.last()
	if got.method != "PUT" || got.path != "/b/jobs/a.txt" || got.body != "content" || got.length != 7 || got.header.Get("X-Amz-Meta-A") != "b" || got.header.Get("Content-Type") != "text/plain" {
		t.Errorf("the backend got %+v", got)
	}
	for name := range got.header {
		if strings.HasPrefix(name, "X-Fence") || name == "X-Amz-Credential" || name == "Policy" {
			t.Errorf("the backend got %s", name)
		}
	}
	if e, _ := f.fence.Highest(t.Context(), "b/jobs/a.txt"); e.Token != 34 {
		t.Errorf("the fence stands at %+v", e)
	}
	fields[1].value = "33"
	if resp, body := f.post(form("AKIDPREFIX"), "a.txt", "content"); resp.StatusCode != 412 || resp.Header.Get(headerError) != staleToken {
		t.Errorf("a stale form: %d %s", resp.StatusCode, body)
	}
	fields[1].value = "35"
	for name, c := range map[string]struct {
		fields            []field
		filename, content string
		status            int
	}{
		"another prefix":                      {append(signedForm(time.Now(), "AKIDPREFIX", conditions), field{"key", "other/k"}, field{"X-Fence-Token", "35"}), "a.txt", "content", 403},
		"no file":                             {form("AKIDPREFIX"), "", "", 400},
		"too short":                           {form("AKIDPREFIX"), "a.txt", "c", 400},
		"too long":                            {form("AKIDPREFIX"), "a.txt", strings.Repeat("c", 21), 400},
		"field that the policy does not know": {form("AKIDPREFIX", field{"acl", "public-read"}), "a.txt", "content", 403},
		"no key":                              {signedForm(time.Now(), "AKIDPREFIX", conditions), "a.txt", "content", 400},
		"no policy":                           {fields, "a.txt", "content", 403},
		"expired":                             {signedForm(time.Now().Add(-2*time.Hour), "AKIDPREFIX", conditions, fields...), "a.txt", "content", 403},
		"large fields":                        {form("AKIDPREFIX", field{"x-ignore-me", strings.Repeat("x", maxFields)}), "a.txt", "content", 400},
		"twice":                               {form("AKIDPREFIX", field{"key", "jobs/x"}), "a.txt", "content", 400},
	} {
		_, before := b.last()
		resp, body := f.post(c.fields, c.filename, c.content)
		if _, after := b.last(); resp.StatusCode != c.status || after != before {
			t.Errorf("%s: %d %s, and the backend was asked %d times; want %d and none", name, resp.StatusCode, body, after-before, c.status)
		}
	}
	for _, resource := range []string{"b/jobs/a.txt", "b/other/k"} {
		if e, _ := f.fence.Highest(t.Context(), resource); e.Token > 34 {
			t.Errorf("a form that is refused has raised %s to %d", resource, e.Token)
		}
	}
}

// TestFormWithoutKeys: where everybody may come in, a form needs no policy. It is cut off like any body, and tells where the page wants it.
func TestFormWithoutKeys(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	resp, body := f.post([]field{{"key", "k"}, {"success_action_status", "201"}, {"tagging", "<Tagging><TagSet><Tag><Key>a</Key><Value>b c</Value></Tag></TagSet></Tagging>"}}, "x", "content")
	if resp.StatusCode != 201 || !strings.Contains(body, "<PostResponse ") || !strings.Contains(body, "<Key>k</Key>") {
		t.Errorf("%d %s, want 201 and a PostResponse", resp.StatusCode, body)
	}
	if got, _ := b.last(); got.header.Get("X-Amz-Tagging") != "a=b+c" {
		t.Errorf("the tags became %q", got.header.Get("X-Amz-Tagging"))
	}
	resp, _ = f.post([]field{{"key", "k"}, {"success_action_redirect", "http://example.com/done?x=1"}}, "x", "content")
	if resp.StatusCode != 303 || !strings.HasPrefix(resp.Header.Get("Location"), "http://example.com/done?bucket=b&etag=%22e%22&key=k&x=1") {
		t.Errorf("%d %s, want 303", resp.StatusCode, resp.Header.Get("Location"))
	}
	_, before := b.last()
	cut := "--q\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n--q\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nhalf of it"
	if text := f.want(400, "", "POST", "/b", cut, "Content-Type: multipart/form-data; boundary=q"); !strings.Contains(text, "MalformedPOSTRequest") {
		t.Errorf("a form without its end: %s", text)
	}
	f.want(412, "", "POST", "/b", "x", "Content-Type: text/plain")
	if _, after := b.last(); after != before {
		t.Error("the backend got a form that was refused")
	}
}

// TestFormIsNoCopy: a field may not make another operation of the object that is put.
func TestFormIsNoCopy(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixture(t, Backend{Handler: b})
	f.post([]field{{"key", "k"}, {"x-amz-copy-source", "b/secret"}, {"x-amz-write-offset-bytes", "3"}, {"if-match", "x"}}, "x", "content")
	if got, n := b.last(); n != 1 || got.body != "content" || got.header.Get("X-Amz-Copy-Source") != "" || got.header.Get("X-Amz-Write-Offset-Bytes") != "" || got.header.Get("If-Match") != "" {
		t.Errorf("the backend got %+v", got)
	}
}

// TestTokenBesideAForm: where access keys are needed, a token has to stand in the form: no policy covers the path it is sent to, or its headers.
func TestTokenBesideAForm(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixtureWith(t, restricted(nil), Backend{Handler: b})
	fields := signedForm(time.Now(), "AKIDME", `, ["starts-with", "$key", ""]`, field{"key", "k"})
	for _, header := range []string{"X-Fence-Token: 99", "X-Amz-Security-Token: fence=99"} {
		if resp, body := f.post(fields, "x", "content", header); resp.StatusCode != 400 || resp.Header.Get(headerError) != malformedToken {
			t.Errorf("%s: %d %s", header, resp.StatusCode, body)
		}
	}
	if resp, body := f.post(append(fields, field{"x-fence-token", "99"}), "x", "content"); resp.StatusCode != 403 {
		t.Errorf("a token that the policy does not cover: %d %s", resp.StatusCode, body)
	}
	if _, n := b.last(); n != 0 {
		t.Errorf("the backend was asked %d times", n)
	}
}
