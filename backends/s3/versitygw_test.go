package s3

import (
	"bytes"
	"crypto/rand"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestTornOnVersitygw ends bodies early in each of the ways that there are, at each tenth of them, and looks for the old object on a
// real store. The connection is cut by our side, with FIN.
func TestTornOnVersitygw(t *testing.T) {
	endpoint := versitygw(t)
	eachMode(t, func(t *testing.T, change func(*Options), headers func([]byte) []string) {
		s := open(t, endpoint, change, func(o *Options) { o.AnswerTimeout = 0 })
		bucket := "/torn-" + strings.ToLower(rand.Text())
		if w := do(s, "PUT", bucket, nil); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
		for _, size := range []int{chunkSize, 1 << 20, 3 << 20} {
			if w := do(s, "PUT", bucket+"/key", strings.NewReader("old")); w.Code != 200 {
				t.Fatal(w.Code, w.Body)
			}
			content := make([]byte, size)
			_, _ = rand.Read(content)
			for tenth := range 11 {
				r := httptest.NewRequest(http.MethodPut, bucket+"/key", nil)
				r.Body = &gated{Reader: bytes.NewReader(content[:size*tenth/10]), atGate: func() error {
					if w := do(s, "GET", bucket+"/key", nil); w.Body.String() != "old" {
						t.Errorf("%d bytes are there before the gate", w.Body.Len())
					}
					return io.ErrUnexpectedEOF
				}}
				r.ContentLength = int64(size)
				for i, h := 0, headers(content); i < len(h); i += 2 {
					r.Header.Set(h[i], h[i+1])
				}
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				if w.Code != http.StatusBadRequest {
					t.Errorf("%d tenths of %d: %d %s", tenth, size, w.Code, w.Body)
				}
				if w := do(s, "GET", bucket+"/key", nil); w.Body.String() != "old" {
					t.Fatalf("%d tenths of %d became the object: %d bytes", tenth, size, w.Body.Len())
				}
			}
		}
		time.Sleep(200 * time.Millisecond) // what is late
		if w := do(s, "GET", bucket+"/key", nil); w.Body.String() != "old" {
			t.Errorf("late, %d bytes became the object", w.Body.Len())
		}
	})
}

// TestBareOnVersitygw is why no body goes out bare: this store makes a torn one an object. If it no longer does, that is good news.
func TestBareOnVersitygw(t *testing.T) {
	endpoint := versitygw(t)
	s := open(t, endpoint)
	if w := do(s, "PUT", "/bare", nil); w.Code != 200 {
		t.Fatal(w.Code)
	}
	out := s.outgoing(t.Context(), httptest.NewRequest(http.MethodPut, "/bare/key", nil))
	out.ContentLength = 2 << 20
	if _, err := s.sign(out, "UNSIGNED-PAYLOAD"); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", s.host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out.Body = io.NopCloser(io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), readerFunc(func([]byte) (int, error) { return 0, errBody })))
	_ = out.Write(c)
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
	w := do(s, "HEAD", "/bare/key", nil)
	t.Logf("a bare body of 2 MiB, cut after 1 MiB: HEAD says %d, %s bytes", w.Code, w.Header().Get("Content-Length"))
}

// TestSpellings writes keys that are easily taken for one another, and finds them by another spelling and under their own names.
func TestSpellings(t *testing.T) {
	s := open(t, versitygw(t))
	if w := do(s, "PUT", "/spelt", nil); w.Code != 200 {
		t.Fatal(w.Code)
	}
	keys := []string{
		"a+b", "a b", "a%2Bb", "a%20b", "a%2Fb", "a;b", "a?b", "a#b", "a&b=c", "\u00fc/\u65e5\u672c\U0001f512", "e\u0301", "~(a)*!'", "a:b@c,d$", "a\\b", "<a>", `"`,
	}
	for _, k := range keys {
		if w := do(s, "PUT", (&url.URL{Path: "/spelt/" + k}).EscapedPath(), strings.NewReader(k)); w.Code != 200 {
			t.Fatalf("%q: %d %s", k, w.Code, w.Body)
		}
	}
	for _, k := range keys {
		var every strings.Builder
		for i := range len(k) {
			fmt.Fprintf(&every, "%%%02x", k[i])
		}
		if w := do(s, "GET", "/spelt/"+every.String(), nil); w.Body.String() != k {
			t.Errorf("%q: %d %s", k, w.Code, w.Body)
		}
		var list struct{ Contents []struct{ Key string } }
		w := do(s, "GET", "/spelt?list-type=2&prefix="+url.QueryEscape(k), nil)
		if err := xml.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Contents) == 0 || list.Contents[0].Key != k {
			t.Errorf("%q is listed as %+v %v", k, list, err)
		}
	}
}

// TestOperations: what the store has and we have never heard of goes through, multipart uploads in chunks too.
func TestOperations(t *testing.T) {
	s := open(t, versitygw(t), streaming)
	must := func(w *httptest.ResponseRecorder, status int) string {
		t.Helper()
		if w.Code != status {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return w.Body.String()
	}
	must(do(s, "PUT", "/many", nil), 200)
	part := make([]byte, 5<<20)
	_, _ = rand.Read(part)
	var created struct{ UploadId string }
	if err := xml.Unmarshal([]byte(must(do(s, "POST", "/many/big?uploads", nil), 200)), &created); err != nil {
		t.Fatal(err)
	}
	complete := "<CompleteMultipartUpload>"
	for i := range 2 {
		w := do(s, "PUT", fmt.Sprintf("/many/big?partNumber=%d&uploadId=%s", i+1, created.UploadId), bytes.NewReader(part))
		must(w, 200)
		complete += fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, w.Header().Get("Etag"))
	}
	must(do(s, "GET", "/many/big?uploadId="+created.UploadId, nil), 200)
	must(do(s, "GET", "/many/big", nil), 404)
	must(do(s, "POST", "/many/big?uploadId="+created.UploadId, strings.NewReader(complete+"</CompleteMultipartUpload>")), 200)
	if got := must(do(s, "GET", "/many/big", nil), 200); got != string(part)+string(part) {
		t.Errorf("%d bytes came back", len(got))
	}
	must(do(s, "PUT", "/many/copy%20of", nil, "X-Amz-Copy-Source", "many/big", "X-Amz-Copy-Source-Range", ""), 200)
	must(do(s, "PUT", "/many/big?tagging", strings.NewReader("<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>")), 200)
	if got := must(do(s, "GET", "/many/big?tagging", nil), 200); !strings.Contains(got, "<Value>v</Value>") {
		t.Error(got)
	}
	batch := "<Delete><Object><Key>big</Key></Object><Object><Key>copy of</Key></Object></Delete>"
	if got := must(do(s, "POST", "/many?delete", strings.NewReader(batch), "Content-Md5", md5Of(batch)), 200); strings.Count(got, "<Deleted>") != 2 {
		t.Error(got)
	}
	must(do(s, "GET", "/many/copy%20of", nil), 404)
}
