package clients

import (
	"strings"
	"testing"
)

// TestCurl: the token in a header, and in the path.
func TestCurl(t *testing.T) {
	t.Parallel()
	need(t, "curl")
	r := readRecipe(t, "curl")
	for name, start := range map[string]func(*testing.T, string) *client{"file": overPlain, "S3": overS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "curl")
			c.version("curl --version")
			c.createBucket()
			c.works(r["sh"][0])
			c.holds("jobs/7/state", "state")
			c.write("new", "of 33")
			r.told(c, c.stale(1, strings.Replace(r["sh"][0], "-T state", "-T new", 1)))
			c.stale(1, strings.Replace(r["sh"][0], "-T state", "-T big", 1))
			c.holds("jobs/7/state", "state")

			put, _, _ := strings.Cut(r["sh"][1], "-T ") // the token in the path
			on := func(method, key, more string) string {
				return put + "-X " + method + " " + more + " 'http://127.0.0.1:9000/~fence/34/demo" + key + "'"
			}
			c.works(r["sh"][1])
			c.works(strings.Replace(r["sh"][1], "-T state", "-T big", 1))
			c.holds("jobs/7/state", "big")
			c.works(on("PUT", "/jobs/7/copy", "-H 'x-amz-copy-source: /demo/jobs/7/state'"))
			c.holds("jobs/7/copy", "big")
			c.lists(c.works(on("GET", "?list-type=2&prefix=jobs%2F7%2F", "")), "jobs/7/copy", "jobs/7/state")
			c.stale(1, on("DELETE", "/jobs/7/copy", ""))
			c.works(on("DELETE", "/jobs/7/copy", ""))
			c.keys("state")
		})
	}
}
