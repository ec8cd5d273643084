package backendtest

import (
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
	for _, q := range []string{"max-keys=-1", "max-keys=x", "encoding-type=base64", "continuation-token=made%20up"} {
		c.want(c.do(http.MethodGet, "/"+c.bucket+"?list-type=2&"+q, nil), http.StatusBadRequest, "InvalidArgument")
	}
	for _, prefix := range []string{"no", "c/1/", "c//", "../", "/", "d/", strings.Repeat("x", 300) + "/"} {
		if p := c.list(c.bucket, url.Values{"prefix": {prefix}}); len(p.items()) != 0 {
			c.Errorf("prefix %q: %q", prefix, p.items())
		}
	}
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
