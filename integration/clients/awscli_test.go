package clients

import (
	"os/exec"
	"strings"
	"testing"
)

// awsCLIs are where the AWS CLI may be: Debian's, of version 2, and another one in front of it in PATH.
func awsCLIs() (paths []string) {
	for _, path := range []string{"/usr/bin/aws", "aws"} {
		if found, err := exec.LookPath(path); err == nil && (len(paths) == 0 || found != paths[0]) && exec.Command(found, "--version").Run() == nil {
			paths = append(paths, found)
		}
	}
	return paths
}

// TestAWSCLI: the first version found does all of it by path; it and the second one the most of it by session token, before a
// real S3 server and by HTTPS.
func TestAWSCLI(t *testing.T) {
	t.Parallel()
	found := awsCLIs()
	if len(found) == 0 {
		missing(t, "the AWS CLI")
	}
	r := readRecipe(t, "AWS CLI")
	t.Run("path", func(t *testing.T) {
		t.Parallel()
		w := &cli{overPlain(t, "awscli"), found[0]}
		w.version("aws --version")
		w.upload(r, r["sh"][0])
		w.tree()
		w.batch()
	})
	t.Run("session token, S3", func(t *testing.T) {
		t.Parallel()
		w := &cli{overS3(t, "awscli"), found[0]}
		w.upload(r, r["sh"][1])
	})
	t.Run("session token, HTTPS", func(t *testing.T) {
		t.Parallel()
		w := &cli{overTLS(t, "awscli"), found[len(found)-1]}
		w.version("aws --version")
		w.upload(r, r["sh"][1])
	})
}

type cli struct {
	*client
	program string
}

// at is a command with the token in its endpoint.
func at(command string) string {
	return "aws --endpoint-url http://127.0.0.1:9000/~fence/34 " + command
}

// upload writes an object, small and in parts.
func (w *cli) upload(r recipe, recipe string) {
	w.env = append(w.env, "PATH="+strings.TrimSuffix(w.program, "/aws")+":/usr/bin:/bin")
	w.createBucket()
	w.works(recipe)
	w.works(at("s3 cp --no-progress big s3://demo/jobs/7/big"))
	w.holds("jobs/7/big", "big")

	w.write("new", "of 33")
	r.told(w.client, w.stale(1, strings.Replace(recipe, "cp state", "cp new", 1)))
	w.stale(1, at("s3 cp --no-progress big s3://demo/jobs/7/big2"))
	w.holds("jobs/7/state", "state")
}

func (w *cli) tree() {
	w.works(at("s3 sync --only-show-errors tree s3://demo/jobs/7/tree"))
	w.works(at("s3 cp --only-show-errors s3://demo/jobs/7/state s3://demo/jobs/7/copy"))
	w.holds("jobs/7/copy", "state")
	w.stale(3, at("s3 rm --recursive s3://demo/jobs/7/tree"))
	w.keys("big", "copy", "state", "tree/a", "tree/b", "tree/sub/c")
	said, ok := w.sh("33", at("s3 ls --recursive s3://demo/jobs/7/"))
	if w.lists(said, "jobs/7/big", "jobs/7/copy", "jobs/7/tree/sub/c"); !ok {
		w.Errorf("a stale holder may read, and is told\n%s", said)
	}
	w.works("rm tree/a; " + at("s3 sync --only-show-errors --delete tree s3://demo/jobs/7/tree"))
	w.works(at("s3 rm --only-show-errors s3://demo/jobs/7/big"))
	w.keys("copy", "state", "tree/b", "tree/sub/c")
}

// batch: of a DeleteObjects only the stale keys are refused, and the CLI says which.
func (w *cli) batch() {
	w.write("keys", `{"Objects":[{"Key":"jobs/7/copy"},{"Key":"jobs/8/none"}]}`)
	before := w.refusals()
	said, _ := w.sh("33", at("s3api delete-objects --bucket demo --delete file://keys"))
	w.lists(said, refusal, "jobs/8/none")
	if n := w.refusals() - before; n != 1 {
		w.Errorf("%d keys were refused:\n%s", n, said)
	}
	w.keys("copy", "state", "tree/b", "tree/sub/c")
}
