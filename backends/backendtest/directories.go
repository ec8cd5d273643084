package backendtest

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// testDirectoryObject makes objects of keys that end with a slash, as consoles and s3fs do to show a folder.
func testDirectoryObject(c *client) {
	c.put("d/", "", "X-Amz-Meta-Of", "folder", "Content-Type", "application/x-directory")
	c.holds("d/", "")
	c.absent("d")
	c.absent("d/e/")
	if a := c.get("d/"); a.header.Get("X-Amz-Meta-Of") != "folder" || a.header.Get("Content-Type") != "application/x-directory" {
		c.Errorf("its metadata: %v", a.header)
	}
	c.put("d/e/f/", "")
	c.put("d/key", "content")
	c.put("e", "content")
	c.holds("d/", "")
	for _, test := range []struct{ prefix, delimiter, want string }{
		{"", "", "d/ d/e/f/ d/key e"},
		{"", "/", "*d/ e"},
		{"d", "/", "*d/"},
		{"d/", "/", "d/ *d/e/ d/key"},
		{"d/e", "/", "*d/e/"},
		{"d/e/", "/", "*d/e/f/"},
		{"d/e/f/", "/", "d/e/f/"},
		{"", "/e/", "d/ *d/e/ d/key e"},
		{"", "e/", "d/ *d/e/ d/key e"},
	} {
		for _, size := range []int{1, 2, 1000} {
			got := c.listAll(c, c.bucket, url.Values{"prefix": {test.prefix}, "delimiter": {test.delimiter}}, size)
			if diff := cmp.Diff(strings.Fields(test.want), got); diff != "" {
				c.Errorf("prefix %q, delimiter %q, in pages of %d (-want +got):\n%s", test.prefix, test.delimiter, size, diff)
			}
		}
	}
	c.testDirectoryCopies()
	c.testDirectoryDeletes()
}

func (c *client) testDirectoryCopies() {
	c.want(c.copyTo("copy/", "d/"), http.StatusOK, "")
	if a := c.get("copy/"); a.header.Get("X-Amz-Meta-Of") != "folder" {
		c.Errorf("the metadata of a copy: %v", a.header)
	}
	c.want(c.copyTo("copied", "d/"), http.StatusOK, "")
	c.holds("copied", "")
	c.want(c.copyTo("back/again/", "copied"), http.StatusOK, "")
	c.holds("back/again/", "")
	c.want(c.copyTo("none", "back/"), http.StatusNotFound, "NoSuchKey")
	c.put("d/", "", "X-Amz-Meta-Of", "replaced")
	if a := c.get("d/"); a.header.Get("X-Amz-Meta-Of") != "replaced" {
		c.Errorf("the metadata of what was put over it: %v", a.header)
	}
}

func (c *client) testDirectoryDeletes() {
	c.want(c.do(http.MethodDelete, c.key("d/"), nil), http.StatusNoContent, "")
	c.absent("d/")
	c.holds("d/key", "content")
	c.holds("d/e/f/", "")
	c.want(c.do(http.MethodDelete, c.key("d/"), nil), http.StatusNoContent, "") // it is not there
	c.want(c.do(http.MethodDelete, c.key("d/e/f"), nil), http.StatusNoContent, "")
	c.holds("d/e/f/", "")
	c.put("d/e/f/key", "content")
	c.want(c.do(http.MethodDelete, c.key("d/e/f/key"), nil), http.StatusNoContent, "")
	c.holds("d/e/f/", "") // the last object in it has gone
	b := c.deleteAll(false, entry("d/e/f/", ""), entry("copy/", ""), entry("never/", ""))
	if got := b.deletes(); !slices.Equal(got, []string{"copy/", "d/e/f/", "never/"}) {
		c.Errorf("deleted are %q, failed %q", got, b.fails())
	}
	c.absent("d/e/f/")
	c.absent("copy/")
	c.holds("d/key", "content")
}

// testDirectoryWithContent tries every way to put content where a directory is.
func testDirectoryWithContent(c *client) {
	const code = "DirectoryObjectContainsData"
	c.put("source", "content")
	c.put("d/", "")
	for _, key := range []string{"d/", "new/"} {
		c.want(c.putIf(key, "x"), http.StatusBadRequest, code)
		r := request(http.MethodPut, c.key(key), strings.NewReader("x"))
		r.ContentLength = -1
		c.want(c.send(r), http.StatusBadRequest, code)
		c.want(c.copyTo(key, "source"), http.StatusBadRequest, code)
		c.want(c.do(http.MethodPost, c.key(key)+"?uploads", nil), http.StatusBadRequest, code)
	}
	c.holds("d/", "")
	c.absent("new/")
	c.put("new", "content") // the tries have left nothing in its way
	c.want(c.putIf("d", "x"), http.StatusBadRequest, "ExistingObjectIsDirectory")
	c.want(c.putIf("new/", ""), http.StatusBadRequest, "ObjectParentIsFile")
	c.holds("d/", "")
	c.holds("new", "content")
}
