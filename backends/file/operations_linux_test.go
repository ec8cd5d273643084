package file

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// served are the names of the operations that the store has.
func served() (names []string) {
	names = append(names, "ListBuckets", "OptionsObject")
	for _, op := range ofBucket {
		names = append(names, op.name)
	}
	for _, op := range ofObject {
		names = append(names, op.name)
	}
	return names
}

// each hands every request that is an operation of S3 to do, with its name, "" where S3 has none.
func eachOperation(do func(method, target, name string)) {
	for _, of := range []struct {
		target     string
		operations map[string]methods
	}{{"/bucket", bucketOperations}, {"/bucket/key", objectOperations}} {
		for sub, m := range of.operations {
			target := of.target
			if sub != "" {
				target += "?" + sub
			}
			for method, name := range map[string]string{http.MethodGet: m.get, http.MethodPut: m.put, http.MethodPost: m.post, http.MethodDelete: m.delete} {
				if m.lists != "" && method == http.MethodGet {
					do(method, target, m.lists)
					do(method, target+"&id=x&annotationName=x", m.get)
					continue
				}
				do(method, target, name)
			}
		}
	}
}

// TestNotImplementedByName asks for every operation of S3. What the store does not have is 501 with its name, and changes nothing.
func TestNotImplementedByName(t *testing.T) {
	b := newBench(t, Options{})
	b.put("key", "content")
	have, refused := served(), 0
	eachOperation(func(method, target, name string) {
		if slices.Contains(have, name) {
			return
		}
		w := b.do(method, target, "<X/>")
		switch {
		case name == "":
			b.wantCode(w, 405, "MethodNotAllowed")
		default:
			refused++
			b.wantCode(w, 501, "NotImplemented")
			if !strings.Contains(w.Body.String(), "<Detail>"+name+" is not implemented by the file store.</Detail>") {
				t.Errorf("%s %s is not refused by the name %s: %s", method, target, name, w.Body)
			}
		}
	})
	if refused < 60 {
		t.Errorf("only %d operations were asked for", refused)
	}
	b.holds("key", "content")
}

// TestOperationsAreDocumented looks for every operation on the page about the file store.
func TestOperationsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/file-store.md")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.FieldsFunc(string(page), func(c rune) bool {
		return (c < 'a' || 'z' < c) && (c < 'A' || 'Z' < c) && (c < '0' || '9' < c)
	})
	for _, name := range served() {
		if !slices.Contains(words, name) {
			t.Errorf("%s is served, and not on the page", name)
		}
	}
	eachOperation(func(_, _, name string) {
		if name != "" && !slices.Contains(words, name) {
			t.Errorf("%s is not on the page", name)
		}
	})
}

// TestCaller calls the caller's what the store has.
func TestCaller(t *testing.T) {
	b := newBench(t, Options{})
	signed := "AWS4-HMAC-SHA256 Credential=KEY/WITH/SLASH/20261130/eu-central-1/s3/aws4_request, SignedHeaders=host, Signature=0"
	for _, test := range []struct{ header, region, id string }{{"", "us-east-1", "fenceproxy"}, {signed, "eu-central-1", "KEY/WITH/SLASH"}, {"AWS4-HMAC-SHA256 Credential=a/b", "us-east-1", "fenceproxy"}} {
		if got := b.do("HEAD", "/bucket", "", "Authorization", test.header).Header().Get("X-Amz-Bucket-Region"); got != test.region {
			t.Errorf("%q: HEAD says the region %q, want %q", test.header, got, test.region)
		}
		list := b.do("GET", "/", "", "Authorization", test.header).Body.String()
		if !strings.Contains(list, "<BucketRegion>"+test.region+"</BucketRegion>") || !strings.Contains(list, "<ID>"+test.id+"</ID>") {
			t.Errorf("%q: %s", test.header, list)
		}
		location := b.do("GET", "/bucket?location", "", "Authorization", test.header).Body.String()
		if strings.Contains(location, "eu-central-1") != (test.region == "eu-central-1") || strings.Contains(location, "us-east-1") {
			t.Errorf("%q: %s", test.header, location)
		}
		elsewhere := b.do("GET", "/?bucket-region=ap-south-1", "", "Authorization", test.header).Body.String()
		if strings.Contains(elsewhere, "<Name>") {
			t.Errorf("a bucket of another region: %s", elsewhere)
		}
	}
}

func TestMethodsOfTheService(t *testing.T) {
	b := newBench(t, Options{})
	for _, method := range []string{"POST", "PUT", "DELETE", "HEAD"} {
		if w := b.do(method, "/", ""); w.Code != 405 {
			t.Errorf("%s /: %d %s", method, w.Code, w.Body)
		}
	}
	b.wantCode(b.do("GET", "/?unheard-of", ""), 501, "NotImplemented")
	b.wantCode(b.do("GET", "/?continuation-token=", ""), 400, "InvalidArgument")
	b.wantCode(b.do("GET", "/?continuation-token=No+Bucket", ""), 400, "InvalidArgument")
	b.want(b.do("GET", "/bucket?x-own-mark=1", ""), 200) // S3 only logs it
	b.wantCode(b.do("PUT", "/bucket?x-own-mark=1", ""), 501, "NotImplemented")
}

// TestFaultsOfBucketTags fails every system call of a change of a bucket's tags.
func TestFaultsOfBucketTags(t *testing.T) {
	set := func(v string) string {
		return "<Tagging><TagSet><Tag><Key>k</Key><Value>" + v + "</Value></Tag></TagSet></Tagging>"
	}
	for _, mode := range []faultMode{notDone, reported, dead} {
		for _, method := range []string{"PUT", "DELETE"} {
			for n, more := 0, true; more; n++ {
				b := newBench(t, Options{})
				b.want(b.do("PUT", "/bucket?tagging", set("old")), 204)
				f := &faults{at: n, mode: mode, err: unix.EIO}
				b.sys = f.system()
				w := b.do(method, "/bucket?tagging", set("new"))
				b.sys = &kernel
				after := map[string]string{"PUT": set("new"), "DELETE": "NoSuchTagSet"}[method]
				got := strings.ReplaceAll(b.do("GET", "/bucket?tagging", "").Body.String(), ` xmlns="`+xmlns+`"`, "")
				isOld, isNew := strings.Contains(got, set("old")), strings.Contains(got, after)
				if !isOld && !isNew || w.Code < 300 && !isNew || w.Code == 503 && !isOld {
					t.Errorf("%s answered %d after %q, and the tags are %s", method, w.Code, f.calls, got)
				}
				more = n < len(f.calls)
				_ = b.Close()
			}
		}
	}
}
