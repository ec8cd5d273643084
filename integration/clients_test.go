package integration

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A foreign client is a program that nobody here wrote, with the environment of a writer: the proxy's URL and credentials of its own.
type foreign struct {
	*testing.T
	endpoint string
	dir      string
}

func newForeign(t *testing.T, backend string) *foreign {
	t.Helper()
	gateway := ""
	if backend == "s3" {
		gateway = startGateway(t)
	}
	p := newProxy(t, signedConfig(gateway))
	p.start(t)
	return &foreign{t, "http://" + p.addr, t.TempDir()}
}

// run runs a program with a token in its session token, or none, and returns what it says and whether it was content.
func (f *foreign) run(session string, program string, args ...string) (said string, ok bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = f.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + f.dir, "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_PAGER=",
		"AWS_EC2_METADATA_DISABLED=true", "AWS_DEFAULT_REGION=us-east-1", "AWS_ACCESS_KEY_ID=" + clientKey, "AWS_SECRET_ACCESS_KEY=" + clientSecret,
	}
	if session != "" {
		cmd.Env = append(cmd.Env, "AWS_SESSION_TOKEN="+session)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// eachWay runs a test for each backend and each way of the token.
func eachWay(t *testing.T, run func(t *testing.T, f *foreign, bucket, channel string)) {
	for _, backend := range []string{"local", "s3"} {
		for _, channel := range []string{"path", "session"} {
			t.Run(backend+"/"+channel, func(t *testing.T) {
				t.Parallel()
				run(t, newForeign(t, backend), backend+"-bucket", channel)
			})
		}
	}
}

func TestBoto3(t *testing.T) {
	t.Parallel()
	python := ""
	for _, candidate := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(candidate, "-c", "import boto3").Run() == nil {
			python = candidate
			break
		}
	}
	if python == "" {
		skip(t, "no Python here has boto3 (integration/test brings it)")
	}
	story, err := filepath.Abs("testdata/boto3_story.py")
	must(t, "find the story", err)
	eachWay(t, func(t *testing.T, f *foreign, bucket, channel string) {
		said, ok := f.run("", python, story, f.endpoint, channel, bucket)
		if !ok {
			t.Fatal(said)
		}
		t.Log(strings.TrimSpace(said))
	})
}

func TestAWSCLI(t *testing.T) {
	t.Parallel()
	found := false
	for _, candidate := range []string{"aws", "/usr/bin/aws"} {
		out, err := exec.Command(candidate, "--version").CombinedOutput()
		if err != nil {
			continue
		}
		found = true
		version, _, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		t.Run(strings.ReplaceAll(version, "/", "-"), func(t *testing.T) {
			t.Parallel()
			eachWay(t, func(t *testing.T, f *foreign, bucket, channel string) {
				(&cliWork{f, candidate, bucket, channel}).story()
			})
		})
	}
	if !found {
		skip(t, "the AWS CLI is not here (integration/test brings it)")
	}
}

// cliWork is what a script does with a bucket.
type cliWork struct {
	*foreign
	program, bucket, channel string
}

func (w *cliWork) aws(token string, args ...string) (said string, ok bool) {
	w.Helper()
	endpoint, session := w.endpoint, ""
	if w.channel == "path" {
		endpoint += "/~fence/" + token
	} else {
		session = "fence=" + token
	}
	return w.run(session, w.program, append([]string{"--endpoint-url", endpoint}, args...)...)
}

func (w *cliWork) works(args ...string) string {
	w.Helper()
	said, ok := w.aws("34", args...)
	if !ok {
		w.Fatalf("aws %s: %s", strings.Join(args, " "), said)
	}
	return said
}

// refused wants the refusal in the client's own words, at once.
func (w *cliWork) refused(args ...string) {
	w.Helper()
	begun := time.Now()
	said, ok := w.aws("33", args...)
	if ok || !strings.Contains(said, "token 33 is below 34") {
		w.Errorf("aws %s: %v, %s; want it refused", strings.Join(args, " "), ok, said)
	}
	if d := time.Since(begun); d > 30*time.Second {
		w.Errorf("aws %s: refused after %v: it tried again and again", strings.Join(args, " "), d)
	}
}

func (w *cliWork) holds(key string, content []byte) {
	w.Helper()
	w.works("s3", "cp", "s3://"+w.bucket+"/"+key, "got")
	got, err := os.ReadFile(filepath.Join(w.dir, "got"))
	if err != nil || !bytes.Equal(got, content) {
		w.Errorf("%s holds %d bytes (%v), want %d", key, len(got), err, len(content))
	}
}

func (w *cliWork) story() {
	big := make([]byte, 64<<20)
	_, _ = rand.Read(big)
	mustWrite(w.T, filepath.Join(w.dir, "small"), "of 34")
	mustWrite(w.T, filepath.Join(w.dir, "big"), string(big))
	at := "s3://" + w.bucket + "/"

	w.works("s3api", "create-bucket", "--bucket", w.bucket)
	w.works("s3", "cp", "small", at+"jobs/7/a b+c")
	w.refused("s3", "cp", "big", at+"jobs/7/a b+c")
	w.holds("jobs/7/a b+c", []byte("of 34"))
	w.works("s3", "cp", "big", at+"jobs/7/big") // in parts
	w.holds("jobs/7/big", big)
	w.works("s3", "cp", at+"jobs/7/a b+c", at+"jobs/7/copy")
	w.refused("s3", "cp", at+"jobs/7/a b+c", at+"jobs/7/copy2")
	if said, ok := w.aws("33", "s3", "ls", at+"jobs/7/"); !ok || strings.Count(said, "\n") != 3 {
		w.Errorf("ls: %s", said) // a stale holder may read
	}
	w.refused("s3", "rm", at+"jobs/7/copy")
	mustWrite(w.T, filepath.Join(w.dir, "keys"), `{"Objects":[{"Key":"jobs/7/copy"},{"Key":"jobs/8/none"}]}`)
	if said, _ := w.aws("33", "s3api", "delete-objects", "--bucket", w.bucket, "--delete", "file://keys"); !strings.Contains(said, "token 33 is below 34") ||
		!strings.Contains(said, "jobs/8/none") {
		w.Errorf("delete-objects: %s", said)
	}
	w.holds("jobs/7/copy", []byte("of 34"))
	w.works("s3", "rm", "--recursive", at+"jobs/7/")
}
