package clients

import (
	"strings"
	"testing"
)

func TestS3cmd(t *testing.T) {
	t.Parallel()
	need(t, "s3cmd")
	r := readRecipe(t, "s3cmd")
	token, _, _ := strings.Cut(r["sh"][0], "s3cmd ") // in front of the command
	for name, start := range map[string]func(*testing.T, string) *client{"file": overPlain, "S3": overS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "s3cmd")
			c.version("s3cmd --version")
			c.write(".s3cfg", c.here("", r["ini"][0]))
			s3cmd := func(args string) string { return token + "s3cmd " + args }
			c.works(s3cmd("mb s3://demo"))
			c.works(r["sh"][0])
			c.works(s3cmd("put big s3://demo/jobs/7/big")) // in parts of 15 MB
			c.holds("jobs/7/big", "big")
			c.works(s3cmd("sync tree/ s3://demo/jobs/7/tree/"))
			c.works(s3cmd("cp s3://demo/jobs/7/state s3://demo/jobs/7/copy"))
			c.holds("jobs/7/copy", "state")

			c.write("new", "of 33")
			r.told(c, c.stale(1, strings.Replace(r["sh"][0], "put state", "put new", 1)))
			c.stale(1, s3cmd("put big s3://demo/jobs/7/big2"))
			c.stale(1, s3cmd("cp s3://demo/jobs/7/big s3://demo/jobs/7/copy"))
			c.stale(1, s3cmd("del s3://demo/jobs/7/copy"))
			said, ok := c.sh("33", s3cmd("ls -r s3://demo/jobs/7/"))
			if c.lists(said, "jobs/7/big", "jobs/7/copy", "jobs/7/tree/sub/c"); !ok {
				t.Errorf("a stale holder may read, and is told\n%s", said)
			}
			c.holds("jobs/7/state", "state")

			c.works("rm tree/a; " + s3cmd("sync --delete-removed tree/ s3://demo/jobs/7/tree/"))
			c.works(s3cmd("del s3://demo/jobs/7/big"))
			c.keys("copy", "state", "tree/b", "tree/sub/c")
		})
	}
}
