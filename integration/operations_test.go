package integration

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fenceproxy/fenceproxy/integration/sdkops"
)

// operationsPage reads the tables of docs/operations.md: what stands in the columns of an operation, by the heads of its table.
func operationsPage(t *testing.T) map[string]map[string]string {
	t.Helper()
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]map[string]string{}
	var heads []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			heads = nil
		case heads == nil:
			heads = cells
		case heads[0] == "operation" && !strings.HasPrefix(cells[0], "-"):
			row := map[string]string{}
			for i, cell := range cells {
				row[heads[i]] = cell
			}
			lines[cells[0]] = row
		}
	}
	return lines
}

// An asked operation is one that is about to be sent, to a bucket of its own.
type askedOperation struct {
	name   string
	bucket string
	upload string
}

// ask makes a bucket with an object, key, and an upload to it.
func ask(t *testing.T, p *proxy, name string, number int) askedOperation {
	t.Helper()
	o := askedOperation{name: name, bucket: fmt.Sprintf("operation-%d", number)}
	p.do(t, "PUT", "/"+o.bucket, "").want(t, 200)
	p.put(t, "/"+o.bucket+"/key", 34, "content").want(t, 200)
	var created struct{ UploadId string }
	a := p.do(t, "POST", "/"+o.bucket+"/key?uploads", "", tokenHeader(34)...).want(t, 200)
	if err := xml.Unmarshal(a.body, &created); err != nil {
		t.Fatal(err)
	}
	o.upload = created.UploadId
	return o
}

// request is what a client sends.
func (o askedOperation) request(t *testing.T) *http.Request {
	t.Helper()
	v := sdkops.Values{
		"Bucket": o.bucket, "Key": "key", "UploadId": o.upload, "CopySource": o.bucket + "/key", "RenameSource": "key", "Body": strings.NewReader("content"),
		"Delete": types.Delete{Objects: []types.ObjectIdentifier{{Key: aws.String("key")}}},
	}
	name := o.name
	switch name {
	case "AppendObject":
		name, v["WriteOffsetBytes"] = "PutObject", int64(7)
	case "PostObject":
		return o.form(t)
	}
	r, err := sdkops.Request(name, v)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (o askedOperation) form(t *testing.T) *http.Request {
	t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	_ = w.WriteField("key", "key")
	_ = w.WriteField("file", "content")
	_ = w.Close()
	r, err := http.NewRequest(http.MethodPost, "http://localhost/"+o.bucket, &body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", w.FormDataContentType())
	return r
}

// send sends it with a token.
func (o askedOperation) send(t *testing.T, p *proxy, n int64) answer {
	t.Helper()
	r := o.request(t)
	headers := tokenHeader(n)
	for name, values := range r.Header {
		if name != "Expect" && name != "Content-Length" {
			headers = append(headers, name, values[0])
		}
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return p.do(t, r.Method, r.URL.RequestURI(), string(content), headers...)
}

// isAs says whether the answer is what the page's column says of the file store. An operation that it has may find fault with what the SDK's
// smallest input asks for.
func (a answer) isAs(column string) bool {
	switch column {
	case "yes":
		return a.status < 500
	case "nothing set":
		return a.status == 200 || a.status == 400 || a.status == 404
	case "501":
		return a.status == 501 && (len(a.body) == 0 || a.code() == "NotImplemented")
	}
	return strconv.Itoa(a.status) == column
}

// TestOperationsOfTheFileStore: what docs/operations.md says of an operation is what a client of the file store meets, and a stale token is
// refused there, whether the store has the operation or not.
func TestOperationsOfTheFileStore(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	page := operationsPage(t)
	names := append(sdkops.Names(), "AppendObject", "PostObject")
	for i, name := range names {
		line := page[name]
		has, kind := line["file store"], line["kind"]
		if kind == "refused" {
			has = "501"
		}
		o := ask(t, p, name, i)
		switch kind {
		case "write", "create", "part", "rename", "form":
			a := o.send(t, p, 33)
			if a.header.Get("X-Fence-Error") != "StaleToken" {
				t.Errorf("%s with a stale token: %d %s", name, a.status, a.body)
			}
		case "batch":
			if a := o.send(t, p, 33); a.status != 200 || !strings.Contains(string(a.body), "<Error>") {
				t.Errorf("%s with a stale token: %d %s", name, a.status, a.body)
			}
		}
		if a := o.send(t, p, 34); !a.isAs(has) {
			t.Errorf("%s: %d %.300s; docs/operations.md says %q", name, a.status, a.body, has)
		}
	}
	if len(page) != len(names)+6 { // preflights, below, and the proxy's own
		t.Errorf("docs/operations.md has %d operations, and %d were tried", len(page), len(names))
	}
}

// TestPreflight: what a browser asks, unsigned, before a page may use a bucket, is answered by the store. Whatever token it carries moves no mark.
func TestPreflight(t *testing.T) {
	t.Parallel()
	p := newProxy(t, signedConfig(""))
	p.start(t)
	p.signed(t, "PUT", "/bkt", "", nil, nil).want(t, 200)
	p.signed(t, "PUT", "/bkt/k", "of 5", []string{"X-Fence-Token", "5"}, nil).want(t, 200)
	column := operationsPage(t)["OptionsObject"]["file store"]
	for _, target := range []string{"/bkt/k", "/~fence/9/bkt/k", "/bkt", "/bkt/k?X-Amz-Signature=00&X-Fence-Token=9", "/bkt/other?acl&uploads"} {
		a := p.do(t, "OPTIONS", target, "", "Origin", "https://example.com", "Access-Control-Request-Method", "PUT", "X-Fence-Token", "9")
		if a.refusedAs(t, 403, "AccessForbidden", ""); !a.isAs(column) {
			t.Errorf("OPTIONS %s: docs/operations.md says %q", target, column)
		}
	}
	p.signed(t, "PUT", "/bkt/k", "of 6", []string{"X-Fence-Token", "6"}, nil).want(t, 200)
}
