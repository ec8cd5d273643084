package clients

import (
	"strings"
	"testing"
)

func TestRclone(t *testing.T) {
	t.Parallel()
	need(t, "rclone")
	r := readRecipe(t, "rclone")
	remote, write := r["sh"][0], r["sh"][1]
	for name, start := range map[string]func(*testing.T, string) *client{"file": overPlain, "S3": overS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "rclone")
			c.version("rclone version")
			rclone := func(args string) string { return remote + "rclone --retries 1 " + args }
			c.works(rclone("mkdir fenced:demo"))
			c.works(remote + write)
			c.works(rclone("copyto --s3-upload-cutoff 5M big fenced:demo/jobs/7/big"))
			c.holds("jobs/7/big", "big")
			c.works(rclone("sync tree fenced:demo/jobs/7/tree"))
			c.works(rclone("copyto fenced:demo/jobs/7/state fenced:demo/jobs/7/copy"))
			c.holds("jobs/7/copy", "state")

			c.write("new", "of 33")
			r.told(c, c.stale(1, remote+strings.Replace(write, "state ", "new ", 1)))
			c.stale(1, rclone("copyto --s3-upload-cutoff 5M big fenced:demo/jobs/7/big2"))
			c.stale(1, rclone("copyto fenced:demo/jobs/7/big fenced:demo/jobs/7/copy"))
			c.stale(1, rclone("deletefile fenced:demo/jobs/7/copy"))
			c.works("rm tree/a; echo changed >tree/b")
			c.stale(1, rclone("sync tree fenced:demo/jobs/7/tree"))
			said, ok := c.sh("33", rclone("lsf -R fenced:demo/jobs/7"))
			if c.lists(said, "big", "copy", "state", "tree/a", "tree/b", "tree/sub/c"); !ok {
				t.Errorf("a stale holder may read, and is told\n%s", said)
			}
			c.holds("jobs/7/state", "state")

			c.works(rclone("sync tree fenced:demo/jobs/7/tree"))
			c.works(rclone("deletefile fenced:demo/jobs/7/big"))
			c.keys("copy", "state", "tree/b", "tree/sub/c")
		})
	}
}
