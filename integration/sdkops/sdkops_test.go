package sdkops

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestRequests(t *testing.T) {
	names := Names()
	if !slices.Contains(names, "PutObject") || !slices.Contains(names, "ListBuckets") || slices.Contains(names, "Options") {
		t.Fatalf("%q", names)
	}
	for _, name := range names {
		r, err := Request(name, Values{"Bucket": "bucket", "Key": "key/a+b", "Body": strings.NewReader("other")})
		if err != nil {
			t.Error(err)
			continue
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || int64(len(body)) != r.ContentLength {
			t.Errorf("%s: %q, %v; its length is %d", name, body, err, r.ContentLength)
		}
		if !slices.Contains([]string{"/", "/bucket", "/bucket/key/a+b", "/WriteGetObjectResponse"}, r.URL.Path) {
			t.Errorf("%s goes to %s", name, r.URL)
		}
	}
}

// TestGiven: fields that are given are sent, twice alike, and unknown ones are those of other operations.
func TestGiven(t *testing.T) {
	for range 2 {
		r, err := Request("PutObject", Values{"Bucket": "b", "Key": "k", "Body": strings.NewReader("content"), "WriteOffsetBytes": int64(3), "UploadId": "u"})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		if string(body) != "content" || err != nil || r.Method != "PUT" || r.URL.Path != "/b/k" || r.Header.Get("X-Amz-Write-Offset-Bytes") != "3" {
			t.Errorf("%s %s %v %q %v", r.Method, r.URL, r.Header, body, err)
		}
	}
	if _, err := Request("PutObject", Values{"Key": 3}); err == nil {
		t.Error("a number is no key")
	}
	if _, err := Request("PutNothing", nil); err == nil {
		t.Error("there is no such operation")
	}
}
