package clients

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJavaScript runs testdata/js/story.mjs with the clients that the manual makes. This SDK sends the checksums of streams in trailers.
func TestJavaScript(t *testing.T) {
	t.Parallel()
	need(t, "node")
	modules := nodeModules(t)
	run := func(name string, recipe int, start func(*testing.T, string) *client) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "javascript")
			must(t, "link the modules", os.Symlink(modules, filepath.Join(c.dir, "node_modules")))
			made := readRecipe(t, "AWS SDK for JavaScript v3")["js"][recipe] + "export { s3 };\n"
			c.program("js/story.mjs")
			c.write("holder.mjs", c.here("34", made))
			c.write("stale.mjs", c.here("33", made))
			if said := c.story("node story.mjs " + c.bucket); !strings.Contains(said, "STREAMING-UNSIGNED-PAYLOAD-TRAILER") {
				t.Error("it sent no trailer")
			}
		})
	}
	run("path", 0, overPlain)
	run("session token, S3", 1, overS3)
	run("path, HTTPS", 0, overTLS)
}

// nodeModules is where integration/setup has put what testdata/js/package-lock.json names.
func nodeModules(t *testing.T) string {
	t.Helper()
	lock, err := os.ReadFile("testdata/js/package-lock.json")
	must(t, "read the lock file", err)
	sum := sha256.Sum256(lock)
	dir := filepath.Join(cache(t), "js-"+hex.EncodeToString(sum[:6]), "node_modules")
	if _, err := os.Stat(filepath.Join(dir, "@aws-sdk", "lib-storage")); err != nil {
		missing(t, "the AWS SDK for JavaScript")
	}
	return dir
}

// cache is where integration/setup puts what it builds and fetches.
func cache(t *testing.T) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	must(t, "find the cache directory", err)
	return filepath.Join(dir, "fenceproxy-tests")
}
