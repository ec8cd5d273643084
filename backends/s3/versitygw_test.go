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

	"github.com/aws/aws-sdk-go-v2/aws"
)

// TestTornOnVersitygw ends bodies early in each of the ways that there are, at each tenth of them, and looks for the old object on a
// real store. The connection is cut by our side, with FIN.
func TestTornOnVersitygw(t *testing.T) {
	endpoint := versitygw(t)
	for _, m := range modes[1:] { // what is whole is never sent torn
		s := open(t, endpoint)
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
				r := m.request(t.Context(), bucket+"/key", content[:size*tenth/10], size, func() error {
					if w := do(s, "GET", bucket+"/key", nil); w.Body.String() != "old" {
						t.Errorf("%d bytes are there before the gate", w.Body.Len())
					}
					return io.ErrUnexpectedEOF
				})
				if m.hash {
					r.Header.Set("X-Amz-Content-Sha256", sha256Hex(content))
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
	}
}

// TestBareOnVersitygw is why no body goes out bare: this store makes a torn one an object. If it no longer does, that is good news.
func TestBareOnVersitygw(t *testing.T) {
	endpoint := versitygw(t)
	s := open(t, endpoint)
	if w := do(s, "PUT", "/bare", nil); w.Code != 200 {
		t.Fatal(w.Code)
	}
	status, length := s.sendHalf(t, "/bare/key", func(out *http.Request, who aws.Credentials) error {
		_, err := s.signHeader(out, who, unsigned, time.Now())
		return err
	})
	t.Logf("a bare body of 2 MiB, cut after 1 MiB: HEAD says %d, %s bytes", status, length)
	status, length = s.sendHalf(t, "/bare/expiring", func(out *http.Request, who aws.Credentials) error {
		at, _ := s.clock.now()
		return s.signQuery(out, who, sha256Hex(make([]byte, 2<<20)), at, time.Minute)
	})
	if status != http.StatusNotFound {
		t.Errorf("a body that was signed in the query, cut after half: HEAD says %d, %s bytes", status, length)
	}
}

// sendHalf sends half of a body of 2 MiB, and FIN. It returns what is there then.
func (s *Store) sendHalf(t *testing.T, target string, sign func(*http.Request, aws.Credentials) error) (status int, length string) {
	t.Helper()
	out := s.outgoing(t.Context(), httptest.NewRequest(http.MethodPut, target, nil))
	out.ContentLength = 2 << 20
	who, err := s.retrieve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sign(out, who); err != nil {
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
	w := do(s, "HEAD", target, nil)
	return w.Code, w.Header().Get("Content-Length")
}

// TestSpellings: traps 2 and 5, two spellings are one key, and two keys are two. It writes keys that are easily taken for one another, and finds them by another spelling and under their own names.
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
	s := open(t, versitygw(t))
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
