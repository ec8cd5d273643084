package file

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fenceproxy/fenceproxy/internal/checksum"
)

func sumBy(name, content string) sum {
	a, _ := checksum.ByName(name)
	return sum{name: name, value: a.Of([]byte(content))}
}

// TestJoinedCRCs puts checksums together of those of parts, and takes them of the whole.
func TestJoinedCRCs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name := range crcs {
		for range 200 {
			var content strings.Builder
			var list []chosen
			var sums []sum
			for range 1 + r.IntN(5) {
				p := make([]byte, r.IntN(5000)*r.IntN(2)) // every other one is empty
				for i := range p {
					p[i] = byte(r.Uint32())
				}
				content.Write(p)
				list = append(list, chosen{meta: &meta{size: int64(len(p))}})
				sums = append(sums, sumBy(name, string(p)))
			}
			if got, want := joined(list, sums), sumBy(name, content.String()); got != want {
				t.Fatalf("%s of %d parts, %d bytes: %v, want %v", name, len(list), content.Len(), got, want)
			}
		}
		if got := joined([]chosen{{meta: &meta{}}}, []sum{{name: name, value: "%"}}); got.name != "" {
			t.Errorf("a checksum was made of none: %v", got)
		}
	}
}

func TestPartsRecord(t *testing.T) {
	thousands := make([]int64, maxParts)
	for i := range thousands {
		thousands[i] = minPart
	}
	for text, sizes := range map[string][]int64{
		"5": {5}, "3x5242880.17": {5242880, 5242880, 5242880, 17}, "1.2x2.1": {1, 2, 2, 1}, "0": {0}, "10000x5242880": thousands,
	} {
		m := &meta{parts: parts{sizes: text}}
		for _, size := range sizes {
			m.size += size
		}
		if got := encodeSizes(sizes); got != text {
			t.Errorf("%d sizes are written as %q, want %q", len(sizes), got, text)
		}
		if got := m.sizesOf(); !slices.Equal(got, sizes) {
			t.Errorf("%q is read as %d", text, got)
		}
	}
	for _, text := range []string{"", ".", "x", "3x", "x3", "-1x7", "-7", "2x3.", "10001x0", "9999x0.2x0", "99999999999999999999", "6", "3x2.1"} {
		if got := (&meta{size: 5, parts: parts{sizes: text}}).sizesOf(); got != nil {
			t.Errorf("%q of an object of 5 bytes is read as %d", text, got)
		}
	}
}

// TestMetaRoundTrip writes everything that can be recorded, and reads it; and reads what earlier versions of this program have written.
func TestMetaRoundTrip(t *testing.T) {
	full := &meta{
		etag: "5d41402abc4b2a76b9719d911017c592-2", size: 7, mtime: 1796004895739143945,
		given: given{
			headers: map[string]string{"Content-Type": "text/plain", "X-Amz-Meta-Empty": "", "X-Amz-Meta-Odd": "a=b&c;\xff%", redirect: "/x"},
			tags:    []tag{{"b&=", "ü +%"}, {"a", ""}},
		},
		sums:   []sum{sumBy("CRC32", "a"), sumBy("CRC64NVME", "b"), {name: "SHA256", value: sumBy("SHA256", "c").value + "-2"}},
		upload: "id", parts: parts{sizes: "5.2", sums: "AAAA-_"},
	}
	options := cmp.AllowUnexported(meta{}, given{}, sum{}, parts{})
	got, ok := decodeMeta(full.encode())
	if diff := cmp.Diff(full, got, options); !ok || diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	const old = "content-type=application%2Fx-www-form-urlencoded&etag=5d41402abc4b2a76b9719d911017c592&mtime=1796004895739143945&size=5&v=1&x-amz-meta-of=x"
	want := &meta{
		etag: "5d41402abc4b2a76b9719d911017c592", size: 5, mtime: 1796004895739143945,
		given: given{headers: map[string]string{"Content-Type": "application/x-www-form-urlencoded", "X-Amz-Meta-Of": "x"}},
	}
	got, ok = decodeMeta([]byte(old))
	if diff := cmp.Diff(want, got, options); !ok || diff != "" {
		t.Errorf("what an earlier version wrote (-want +got):\n%s", diff)
	}
	if string(want.encode()) != old {
		t.Errorf("it is written as %s", want.encode())
	}
	u := &upload{id: "x", bucket: "b", key: "k", given: full.given, algorithm: "SHA1", kind: composite}
	back, err := decodeUpload("x", u.encode())
	if err != nil || back.algorithm != "SHA1" || back.kind != composite || !slices.Equal(back.tags, full.tags) {
		t.Errorf("%+v, %v", back, err)
	}
}

// record replaces what is recorded of a file.
func (b *bench) rerecord(path string, change func(q url.Values)) {
	b.Helper()
	text := make([]byte, maxAttribute)
	n, err := unix.Getxattr(path, attribute, text)
	if err != nil {
		b.Fatal(err)
	}
	q, err := url.ParseQuery(string(text[:n]))
	if err != nil {
		b.Fatal(err)
	}
	change(q)
	if err := unix.Setxattr(path, attribute, []byte(q.Encode()), 0); err != nil {
		b.Fatal(err)
	}
}

func withoutSums(q url.Values) {
	for k := range q {
		if strings.HasPrefix(k, "checksum-") {
			q.Del(k)
		}
	}
}

// TestObjectsWithoutChecksum completes and copies what an earlier version has written: the checksum is taken of the content.
func TestObjectsWithoutChecksum(t *testing.T) {
	b := newBench(t, Options{})
	for n, path := range twoPartsOnDisk(b) {
		if n == 0 {
			b.rerecord(path, withoutSums)
		}
	}
	b.want(b.up.complete(1, 2), 200)
	b.hasSum("d/key", sumBy(defaultSum, "firstsecond"))
	b.put("old", "content")
	b.rerecord(b.path("bucket", "old"), withoutSums)
	b.hasSum("old", sum{})
	b.want(b.copyTo("copy", "old"), 200)
	b.holds("copy", "content")
	b.hasSum("copy", sumBy(defaultSum, "content"))
}

func twoPartsOnDisk(b *bench) []string {
	twoParts(b)
	dir := b.path(ownDir, uploadsDir, b.up.id)
	return []string{dir + "/" + partName(1), dir + "/" + partName(2)}
}

func (b *bench) hasSum(key string, want sum) {
	b.Helper()
	h := b.do("HEAD", "/bucket/"+key, "", "X-Amz-Checksum-Mode", "ENABLED").Header()
	for _, a := range checksum.All {
		is := ""
		if a.Name == want.name {
			is = want.value
		}
		if got := h.Get(a.Header()); got != is {
			b.Errorf("%s has the %s %q, want %q", key, a.Name, got, is)
		}
	}
}

// TestCopyKeepsBlocks: a copy of a plain object has nothing to compute, and the kernel copies.
func TestCopyKeepsBlocks(t *testing.T) {
	b := newBench(t, Options{})
	b.put("from", "content")
	f := &faults{at: -1}
	b.sys = f.system()
	b.want(b.copyTo("to", "from"), 200)
	b.want(b.copyTo("other", "from", "X-Amz-Checksum-Algorithm", "SHA1"), 200)
	b.sys = &kernel
	count := func(call string) (n int) {
		for _, c := range f.calls {
			if strings.HasPrefix(c, call) {
				n++
			}
		}
		return n
	}
	if clones, reads := count("copy_file_range"), count("pread"); clones != 1 || reads != 1 {
		t.Errorf("%d copies by the kernel and %d reads, want one of each: %q", clones, reads, f.calls)
	}
	b.hasSum("to", sumBy(defaultSum, "content"))
	b.hasSum("other", sumBy("SHA1", "content"))
}

// TestManyParts completes an upload whose record fits into no attribute: 200 parts with a SHA-512 each.
func TestManyParts(t *testing.T) {
	b := newBench(t, Options{})
	w := b.do("POST", "/bucket/key?uploads", "", "X-Amz-Checksum-Algorithm", "SHA512", "X-Amz-Meta-Of", "")
	b.want(w, 200)
	_, id, _ := strings.Cut(w.Body.String(), "<UploadId>")
	id, _, _ = strings.Cut(id, "</UploadId>")
	var doc, whole strings.Builder
	var sums []sum
	const many = 200
	for i := range many {
		content := fmt.Sprintf("part %d", i)
		sums = append(sums, sumBy("SHA512", content))
		whole.WriteString(content)
		b.want(b.do("PUT", fmt.Sprintf("/bucket/key?uploadId=%s&partNumber=%d", id, i+1), content, "X-Amz-Checksum-Sha512", sums[i].value), 200)
		fmt.Fprintf(&doc, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag><ChecksumSHA512>%s</ChecksumSHA512></Part>", i+1, md5Of(content), sums[i].value)
	}
	b.want(b.do("POST", "/bucket/key?uploadId="+id, "<CompleteMultipartUpload>"+doc.String()+"</CompleteMultipartUpload>"), 200)
	b.reopen(Options{})
	w = b.do("GET", "/bucket/key?partNumber=150", "", "X-Amz-Checksum-Mode", "ENABLED")
	if w.Code != 206 || w.Body.String() != "part 149" || w.Header().Get("X-Amz-Mp-Parts-Count") != fmt.Sprint(many) || w.Header().Get("X-Amz-Checksum-Sha512") != sums[149].value {
		t.Errorf("part 150: %d %q %v", w.Code, w.Body, w.Header())
	}
	b.hasSum("key", compositeOf(sums))
	if w := b.do("GET", "/bucket/key", ""); w.Body.String() != whole.String() {
		t.Errorf("the object has %d bytes, want %d", w.Body.Len(), whole.Len())
	}
}

func TestClaims(t *testing.T) {
	for _, test := range []struct {
		header, trailer http.Header
		code            string
	}{
		{http.Header{}, nil, ""},
		{http.Header{"X-Amz-Sdk-Checksum-Algorithm": {"CRC32"}}, nil, ""}, // the checksum was of another form, and the proxy has verified it
		{http.Header{"X-Amz-Sdk-Checksum-Algorithm": {"CRC31"}}, nil, "InvalidRequest"},
		{http.Header{"X-Amz-Checksum-Crc32": {"AAAAAA==", "AAAAAA=="}}, nil, "InvalidRequest"},
		{http.Header{"X-Amz-Checksum-Crc32": {"AAAAAA=="}}, http.Header{"X-Amz-Checksum-Crc32c": nil}, "InvalidRequest"},
		{http.Header{}, http.Header{"X-Amz-Checksum-Crc32c": nil, "X-Amz-Checksum-Crc32": nil}, "InvalidRequest"},
		{http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}, http.Header{"X-Amz-Checksum-Crc32c": nil}, ""},
	} {
		_, err := claimOf(&http.Request{Header: test.header, Trailer: test.trailer})
		code := ""
		if e, ok := err.(*apiError); ok {
			code = e.code
		}
		if code != test.code {
			t.Errorf("%v %v: %v, want %q", test.header, test.trailer, err, test.code)
		}
	}
}
