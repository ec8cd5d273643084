package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestS3fs: a bucket as a directory. What a stale holder writes fails with "Input/output error", after one request.
func TestS3fs(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	r := readRecipe(t, "s3fs")
	for name, start := range map[string]func(*testing.T, string) *client{"file": overPlain, "S3": overS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "s3fs")
			c.version("s3fs --version")
			c.createBucket()
			c.mount("34", r["sh"][0])
			c.works("cd mnt && mkdir -p jobs/7/tree && cp ../state jobs/7/state && cp ../big jobs/7/big && cp -r ../tree/. jobs/7/tree && mv jobs/7/tree/a jobs/7/moved")
			c.works("cmp mnt/jobs/7/big big && ls -R mnt && rm mnt/jobs/7/tree/b")
			c.unmount()
			c.holds("jobs/7/state", "state")
			c.holds("jobs/7/big", "big")
			c.holds("jobs/7/moved", "tree/a")

			c.mount("33", r["sh"][0])
			c.write("new", "of 33")
			r.told(c, c.refused(1, "cp new mnt/jobs/7/new"))
			c.refused(1, "cp big mnt/jobs/7/big2")
			c.refused(1, "rm mnt/jobs/7/state")
			c.refused(1, "mv mnt/jobs/7/state mnt/jobs/7/elsewhere")
			c.refused(1, "mkdir mnt/jobs/7/dir")
			c.works("cmp mnt/jobs/7/state state")
			c.unmount()
			c.keys("big", "moved", "state", "tree/sub/c")
		})
	}
}

// needFUSE skips the test where the kernel gives no FUSE, in CI, too; not where only s3fs is missing.
func needFUSE(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("SKIPPED, and not shown: no s3fs without FUSE: %v", err)
	}
	f.Close()
	need(t, "s3fs")
	need(t, "fusermount")
}

func (c *client) mount(token, script string) {
	c.Helper()
	c.env = append(c.env, "AWSACCESSKEYID="+clientKey, "AWSSECRETACCESSKEY="+clientSecret)
	c.Cleanup(func() { _ = exec.Command("fusermount", "-uqz", filepath.Join(c.dir, "mnt")).Run() }) // where the test has not come to it
	said, ok := c.sh(token, script)
	if !ok && strings.Contains(said, "mount failed: Operation not permitted") {
		c.Skipf("SKIPPED, and not shown: no s3fs where nobody may mount: %s", said)
	}
	if !ok {
		c.Fatalf("s3fs: %s", said)
	}
}

// unmount returns when s3fs has written everything.
func (c *client) unmount() {
	c.Helper()
	c.works("fusermount -u mnt")
}
