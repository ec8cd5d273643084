package backendtest

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// treacherous are keys whose order by bytes is not the order in which a walk of directories meets them, and none of
// which is a directory of another.
var treacherous = []string{
	"a-b", "a.b", "a/b", "a/b-c", "a/b.c/d", "a/bc", "a0", "a!", "A/z", "aa/a", "aa/a0", "b/a/a/a", "b/a/a0", "b/a-", "b-", "b0/x", "c", "c-d/e", "c d",
	"\u00e9/x", "\u00e9", "\u00e90", "z/\U0001f512/1", "z/\uffee/1", "z/~",
}

// apart keeps the keys of which none is a directory of another.
func apart(keys []string) []string {
	var kept []string
	for _, k := range keys {
		if !slices.ContainsFunc(kept, func(o string) bool { return o == k || strings.HasPrefix(o, k+"/") || strings.HasPrefix(k, o+"/") }) {
			kept = append(kept, k)
		}
	}
	return kept
}

// items are keys, and common prefixes with a star before them.
func (p page) items() []string {
	var all []string
	for _, o := range p.Contents {
		all = append(all, o.Key)
	}
	for _, cp := range p.CommonPrefixes {
		all = append(all, "*"+cp.Prefix)
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(strings.TrimPrefix(a, "*"), strings.TrimPrefix(b, "*")) })
	return all
}

// model is what a list is, in ten lines: the keys in order, rolled up.
func model(keys []string, prefix, delimiter, after string) []string {
	var all []string
	for _, k := range slices.Sorted(slices.Values(keys)) {
		rest, ok := strings.CutPrefix(k, prefix)
		name := k
		if head, _, found := strings.Cut(rest, delimiter); delimiter != "" && found {
			name = prefix + head + delimiter
			k = "*" + name
		}
		if ok && name > after && (len(all) == 0 || all[len(all)-1] != k) {
			all = append(all, k)
		}
	}
	return all
}

// listAll follows the pages to the end, and checks that each but the last is full.
func (c *client) listAll(t rapid.TB, bucket string, q url.Values, pageSize int) []string {
	var all []string
	q.Set("max-keys", fmt.Sprint(pageSize))
	for {
		p := c.list(bucket, q)
		items := p.items()
		all = append(all, items...)
		if p.KeyCount != len(items) || len(items) > pageSize || p.IsTruncated && len(items) < pageSize {
			t.Fatalf("a page of %d has %d items, says %d, and is truncated: %v", pageSize, len(items), p.KeyCount, p.IsTruncated)
		}
		if p.IsTruncated != (p.NextContinuationToken != "") {
			t.Fatalf("truncated %v, with the token %q", p.IsTruncated, p.NextContinuationToken)
		}
		if !p.IsTruncated {
			return all
		} else if p.NextContinuationToken == q.Get("continuation-token") {
			t.Fatalf("the page after %q is the one before", p.NextContinuationToken)
		}
		q.Set("continuation-token", p.NextContinuationToken)
	}
}

func testListOrder(c *client) {
	keys := apart(treacherous)
	for _, k := range keys {
		c.put(k, "")
	}
	p := c.list(c.bucket, url.Values{})
	var got []string
	for _, o := range p.Contents { // as they come, not sorted
		got = append(got, o.Key)
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(keys)), got); diff != "" {
		c.Errorf("the keys are not in the order of their bytes (-want +got):\n%s", diff)
	}
	for _, size := range []int{1, 2, 3, 7, 1000} {
		for _, delimiter := range []string{"", "/", "-", "b/"} {
			got := c.listAll(c, c.bucket, url.Values{"delimiter": {delimiter}}, size)
			if diff := cmp.Diff(model(keys, "", delimiter, ""), got); diff != "" {
				c.Errorf("delimiter %q in pages of %d (-want +got):\n%s", delimiter, size, diff)
			}
		}
	}
}

// testListModel compares lists of random keys with the model.
func testListModel(c *client) {
	part := rapid.SampledFrom([]string{"a", "a-", "a.", "a0", "b", "\u00e9", "a b", "z"})
	path := rapid.Custom(func(t *rapid.T) string { return strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "parts"), "/") })
	some := rapid.Custom(func(t *rapid.T) string { // a prefix or marker: often of a key, sometimes of nothing
		p := path.Draw(t, "path") + rapid.SampledFrom([]string{"", "/", "-", "0", "//", "/../"}).Draw(t, "end")
		for cut := rapid.IntRange(0, len(p)).Draw(t, "cut"); ; cut-- {
			if cut == 0 || cut == len(p) || p[cut]&0xc0 != 0x80 { // not within a character
				return p[:cut]
			}
		}
	})
	rapid.Check(c.T, func(t *rapid.T) {
		keys := apart(rapid.SliceOfN(path, 0, 12).Draw(t, "keys"))
		for _, k := range keys {
			c.put(k, "")
		}
		for range 8 {
			q := url.Values{}
			prefix, after := some.Draw(t, "prefix"), some.Draw(t, "after")
			delimiter := rapid.SampledFrom([]string{"", "/", "-", "a/", "\u00e9", "/a"}).Draw(t, "delimiter")
			for name, v := range map[string]string{"prefix": prefix, "start-after": after, "delimiter": delimiter} {
				if v != "" {
					q.Set(name, v)
				}
			}
			got := c.listAll(t, c.bucket, q, rapid.IntRange(1, 6).Draw(t, "page"))
			if diff := cmp.Diff(model(keys, prefix, delimiter, after), got); diff != "" {
				t.Fatalf("%v (-want +got):\n%s", q, diff)
			}
		}
		for _, k := range keys {
			c.want(c.do(http.MethodDelete, c.key(k), nil), http.StatusNoContent, "")
		}
	})
}

func testListParameters(c *client) {
	for _, k := range []string{"a b", "c/1", "c/2", "d"} {
		c.put(k, "content")
	}
	if p := c.list(c.bucket, url.Values{"max-keys": {"0"}}); p.KeyCount != 0 || p.IsTruncated || p.MaxKeys != 0 {
		c.Errorf("max-keys=0: %+v", p)
	}
	if p := c.list(c.bucket, url.Values{"max-keys": {"5000"}}); p.MaxKeys != 1000 || p.KeyCount != 4 {
		c.Errorf("max-keys=5000: %+v", p)
	}
	p := c.list(c.bucket, url.Values{"prefix": {"a b"}, "delimiter": {"/"}, "encoding-type": {"url"}, "fetch-owner": {"true"}, "start-after": {"a"}})
	if p.Name != c.bucket || p.EncodingType != "url" || len(p.Contents) != 1 {
		c.Fatalf("%+v", p)
	}
	if o := p.Contents[0]; o.Key != "a%20b" && o.Key != "a+b" || o.Size != 7 || o.ETag != etagOf("content") || o.StorageClass != "STANDARD" || o.Owner == nil {
		c.Errorf("%+v", o)
	}
	if p := c.list(c.bucket, url.Values{}); p.Contents[0].Owner != nil {
		c.Error("an owner where none was asked for")
	}
	for _, q := range []string{"list-type=2&max-keys=-1", "list-type=2&max-keys=x", "max-keys=9999999999", "list-type=2&encoding-type=base64", "list-type=2&continuation-token="} {
		c.want(c.do(http.MethodGet, "/"+c.bucket+"?"+q, nil), http.StatusBadRequest, "InvalidArgument")
	}
	for _, prefix := range []string{"no", "c/1/", "c//", "../", "/", "d/", strings.Repeat("x", 300) + "/"} {
		if p := c.list(c.bucket, url.Values{"prefix": {prefix}}); len(p.items()) != 0 {
			c.Errorf("prefix %q: %q", prefix, p.items())
		}
	}
}

// testListEcho reads what an answer repeats of its request, and how it is encoded.
func testListEcho(c *client) {
	for _, k := range []string{"d+ ir/\u00fc 1", "d+ ir/\u00fc 2", "d+ ir/\u00fc 3"} {
		c.put(k, "")
	}
	for _, encoding := range []string{"", "url"} {
		decode := func(s string) string { return s }
		if encoding == "url" {
			decode = func(s string) string { d, _ := url.PathUnescape(s); return d }
		}
		q := url.Values{"prefix": {"d+ ir/"}, "delimiter": {"\u00fc/"}, "start-after": {"d+ ir/\u00fc 1"}, "max-keys": {"1"}}
		if encoding != "" {
			q.Set("encoding-type", encoding)
		}
		p := c.list(c.bucket, q)
		if decode(p.Prefix) != "d+ ir/" || decode(p.Delimiter) != "\u00fc/" || decode(p.StartAfter) != "d+ ir/\u00fc 1" || p.EncodingType != encoding || p.Marker != nil {
			c.Errorf("encoding-type %q: %+v", encoding, p)
		}
		if len(p.Contents) != 1 || decode(p.Contents[0].Key) != "d+ ir/\u00fc 2" || encoding == "url" && strings.ContainsAny(p.Contents[0].Key, " \u00fc") {
			c.Errorf("encoding-type %q: %+v", encoding, p.Contents)
		}
		token := p.NextContinuationToken
		q.Set("continuation-token", token)
		if p := c.list(c.bucket, q); p.ContinuationToken != token || len(p.Contents) != 1 || decode(p.Contents[0].Key) != "d+ ir/\u00fc 3" {
			c.Errorf("the second page: %+v", p)
		}
		first := url.Values{"marker": {"d+ ir/\u00fc 1"}, "max-keys": {"1"}, "encoding-type": {encoding}}
		if p := c.list(c.bucket, first); p.Marker == nil || decode(*p.Marker) != "d+ ir/\u00fc 1" || p.ContinuationToken+p.StartAfter != "" {
			c.Errorf("the first version: %+v", p)
		}
	}
	// What XML cannot carry as it is pages on nevertheless.
	for _, k := range []string{" odd", "odd\x01", "odd\x02", "odd\n", "base64:odd"} {
		c.put(k, "")
		defer c.do(http.MethodDelete, c.key(k), nil) // the cleanup cannot read some of them
	}
	n := 0
	for q := (url.Values{"max-keys": {"1"}, "encoding-type": {"url"}}); ; n++ {
		p := c.list(c.bucket, q)
		if !p.IsTruncated || n > 8 {
			break
		}
		q.Set("continuation-token", p.NextContinuationToken)
	}
	if n != 7 {
		c.Errorf("eight keys have %d pages", n+1)
	}
}

// A versionsPage is an answer of ListObjectVersions.
type versionsPage struct {
	XMLName             xml.Name `xml:"ListVersionsResult"`
	KeyMarker           string
	VersionIDMarker     string `xml:"VersionIdMarker"`
	NextKeyMarker       string
	NextVersionIDMarker string `xml:"NextVersionIdMarker"`
	IsTruncated         bool
	MaxKeys             int
	Versions            []struct {
		Key, VersionID, ETag string
		IsLatest             bool
		Size                 int64
	} `xml:"Version"`
	CommonPrefixes []struct{ Prefix string }
}

// testListVersions empties a bucket as programs do that go by the list of versions. In a bucket that never had versioning, every
// object has the version null.
func testListVersions(c *client) {
	for _, k := range []string{"a", "b/1", "b/2", "c", "d/1"} {
		c.put(k, "")
	}
	q := url.Values{"versions": {""}, "max-keys": {"1"}, "delimiter": {"/"}}
	var got []string
	for {
		a := c.do(http.MethodGet, "/"+c.bucket+"?"+q.Encode(), nil)
		c.want(a, http.StatusOK, "")
		var p versionsPage
		if err := xml.Unmarshal(a.body, &p); err != nil || p.MaxKeys != 1 || p.KeyMarker != q.Get("key-marker") || p.VersionIDMarker != q.Get("version-id-marker") {
			c.Fatalf("ListObjectVersions: %v in %s", err, a.body)
		}
		for _, v := range p.Versions {
			got = append(got, v.Key)
			if !v.IsLatest || v.ETag != etagOf("") || !strings.Contains(string(a.body), "<VersionId>null</VersionId>") {
				c.Errorf("%s", a.body)
			}
		}
		for _, cp := range p.CommonPrefixes {
			got = append(got, "*"+cp.Prefix)
		}
		if !p.IsTruncated {
			break
		}
		if len(got) > 4 || len(p.Versions)+len(p.CommonPrefixes) == 0 {
			c.Fatalf("the pages do not end: %q, and then %s", got, a.body)
		}
		q.Set("key-marker", p.NextKeyMarker)
		q.Del("version-id-marker")
		if p.NextVersionIDMarker != "" {
			q.Set("version-id-marker", p.NextVersionIDMarker)
		}
	}
	if want := []string{"a", "*b/", "c", "*d/"}; !slices.Equal(got, want) {
		c.Errorf("listed are %q, want %q", got, want)
	}
	c.want(c.do(http.MethodGet, "/"+c.bucket+"?versions&version-id-marker=null", nil), http.StatusBadRequest, "InvalidArgument")
	c.testNullVersion()
}

func (c *client) testNullVersion() {
	c.want(c.do(http.MethodGet, c.key("a")+"?versionId=null", nil), http.StatusOK, "")
	if a := c.do(http.MethodGet, c.key("a")+"?versionId=unheard-of", nil); a.status != http.StatusBadRequest && a.status != http.StatusNotFound {
		c.Errorf("GET of another version: %d %s", a.status, a.body)
	}
	c.want(c.do(http.MethodDelete, c.key("a")+"?versionId=null", nil), http.StatusNoContent, "")
	c.absent("a")
	b := c.deleteAll(false, entry("b/1", "<VersionId>null</VersionId>"), entry("c", "<VersionId>null</VersionId>"))
	if got := b.deletes(); !slices.Equal(got, []string{"b/1", "c"}) {
		c.Errorf("deleted are %q, failed %q", got, b.fails())
	}
	c.absent("b/1")
	c.holds("b/2", "")
}

func testListFirstVersion(c *client) {
	for _, k := range []string{"a", "b/1", "b/2", "c"} {
		c.put(k, "")
	}
	p := c.list(c.bucket, url.Values{"marker": {""}, "delimiter": {"/"}, "max-keys": {"2"}})
	if diff := cmp.Diff([]string{"a", "*b/"}, p.items()); diff != "" || !p.IsTruncated || p.NextMarker != "b/" || p.Marker == nil {
		c.Errorf("%+v %s", p, diff)
	}
	p = c.list(c.bucket, url.Values{"marker": {p.NextMarker}, "delimiter": {"/"}})
	if diff := cmp.Diff([]string{"c"}, p.items()); diff != "" || p.IsTruncated {
		c.Errorf("%+v %s", p, diff)
	}
}
