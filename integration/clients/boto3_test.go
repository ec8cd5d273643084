package clients

import (
	"os/exec"
	"testing"
)

// pythons are those that have boto3: Debian's, and another one in front of it in PATH.
func pythons() (paths []string) {
	for _, path := range []string{"/usr/bin/python3", "python3"} {
		if found, err := exec.LookPath(path); err == nil && (len(paths) == 0 || found != paths[0]) && exec.Command(found, "-c", "import boto3").Run() == nil {
			paths = append(paths, found)
		}
	}
	return paths
}

// TestBoto3 runs testdata/boto3_story.py with the clients that the manual makes.
func TestBoto3(t *testing.T) {
	t.Parallel()
	found := pythons()
	if len(found) == 0 {
		missing(t, "boto3")
	}
	run := func(name, python string, recipe int, start func(*testing.T, string) *client) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "boto3")
			made := readRecipe(t, "boto3")["python"][recipe]
			c.program("boto3_story.py")
			c.write("holder.py", c.here("34", made))
			c.write("stale.py", c.here("33", made))
			c.story(python + " boto3_story.py " + c.bucket + " " + c.server.scheme)
		})
	}
	run("path", found[0], 0, overPlain)
	run("session token, S3", found[len(found)-1], 1, overS3)
	run("path, HTTPS", found[len(found)-1], 0, overTLS)
}
