package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// A client is a program with a directory, an environment and a bucket of its own.
//
// In its directory are the files state, big (which is uploaded in parts) and tree. What a test tells it to do is written as in
// docs/clients.md: with the address http://127.0.0.1:9000, the bucket demo, and token 34.
type client struct {
	*testing.T
	server *server
	bucket string // what demo stands for
	files  string // the bucket's, as the store keeps it: key by key
	dir    string
	env    []string
}

// overPlain is a client of the proxy by HTTP, with the file store behind it.
func overPlain(t *testing.T, bucket string) *client {
	return newClient(t, theStage.plain, "for-"+bucket, false)
}

// overS3 is a client of the proxy by HTTP, with a real S3 server behind it.
func overS3(t *testing.T, bucket string) *client {
	return newClient(t, theStage.plain, "s3-for-"+bucket, true)
}

// overTLS is a client of the proxy by HTTPS, with the file store behind it.
func overTLS(t *testing.T, bucket string) *client {
	return newClient(t, theStage.secure, "for-"+bucket, false)
}

func newClient(t *testing.T, start func() (*server, error), bucket string, gateway bool) *client {
	t.Helper()
	server, err := start()
	must(t, "start the proxy", err)
	c := &client{T: t, server: server, bucket: bucket, files: filepath.Join(server.dir, bucket), dir: t.TempDir()}
	if gateway {
		if server.gateway == "" {
			missing(t, "versitygw")
		}
		c.files = filepath.Join(server.gateway, bucket)
	}
	c.env = []string{
		"HOME=" + c.dir, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "AWS_ACCESS_KEY_ID=" + clientKey, "AWS_SECRET_ACCESS_KEY=" + clientSecret,
		"AWS_REGION=us-east-1", "AWS_DEFAULT_REGION=us-east-1", "AWS_PAGER=", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONFIG_FILE=" + c.dir + "/none", "AWS_SHARED_CREDENTIALS_FILE=" + c.dir + "/none",
	}
	if server.scheme == "https" {
		c.env = append(c.env, "AWS_CA_BUNDLE="+c.authority(), "NODE_EXTRA_CA_CERTS="+c.authority())
	}
	must(t, "link big", os.Link(theStage.big, filepath.Join(c.dir, "big")))
	c.write("state", "of 34")
	for _, name := range []string{"a", "b", "sub/c"} {
		c.write("tree/"+name, name)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the proxy said about %s:\n%s", bucket, server.logs.lines("bucket="+bucket))
		}
	})
	return c
}

// write writes a file in the client's directory.
func (c *client) write(name, content string) {
	c.Helper()
	path := filepath.Join(c.dir, name)
	must(c.T, "make a directory", os.MkdirAll(filepath.Dir(path), 0o755))
	must(c.T, "write a file", os.WriteFile(path, []byte(content), 0o644))
}

// createBucket makes the client's bucket, for a client that does not make its own.
func (c *client) createBucket() {
	c.Helper()
	_, err := s3.New(s3.Options{
		Region: "us-east-1", UsePathStyle: true, BaseEndpoint: aws.String(c.server.scheme + "://" + c.server.addr),
		Credentials: credentials.NewStaticCredentialsProvider(clientKey, clientSecret, ""), HTTPClient: c.trusting(),
	}).CreateBucket(c.Context(), &s3.CreateBucketInput{Bucket: &c.bucket})
	must(c.T, "create the bucket", err)
}

var (
	demo   = regexp.MustCompile(`\bdemo\b`)
	tokens = regexp.MustCompile(`\b34\b`)
)

// here puts address, bucket and token of this test in the place of those of docs/clients.md.
func (c *client) here(token, text string) string {
	text = strings.ReplaceAll(text, "http://127.0.0.1:9000", c.server.scheme+"://"+c.server.addr)
	text = strings.ReplaceAll(text, "127.0.0.1:9000", c.server.addr)
	return demo.ReplaceAllString(tokens.ReplaceAllString(text, token), c.bucket)
}

// there is the way back, for what a program says.
func (c *client) there(text string) string {
	text = strings.ReplaceAll(text, c.server.addr, "127.0.0.1:9000")
	text = strings.ReplaceAll(text, c.bucket, "demo")
	return strings.ReplaceAll(text, c.dir+"/", "")
}

// sh runs a script with a token, and returns what it says and whether it was content. It has four minutes: on a
// loaded machine some clients take seconds to start.
func (c *client) sh(token, script string) (said string, ok bool) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", c.here(token, script))
	cmd.Dir, cmd.Env, cmd.WaitDelay = c.dir, c.env, time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		c.Fatalf("%s\nis not done after four minutes; it said:\n%s", script, out)
	}
	return c.there(string(out)), err == nil
}

// works runs a script with token 34, which has to succeed.
func (c *client) works(script string) string {
	c.Helper()
	said, ok := c.sh("34", script)
	if !ok {
		c.Fatalf("%s\nfailed:\n%s", script, said)
	}
	return said
}

const refusal = "token 33 is below 34"

// stale runs a script with token 33. It has to fail with the refusal in the client's own words, after exactly that many requests.
func (c *client) stale(requests int64, script string) (said string) {
	c.Helper()
	said = c.refused(requests, script)
	if !strings.Contains(said, refusal) {
		c.Errorf("%s\nwas refused, and does not say why:\n%s", script, said)
	}
	return said
}

// refused is stale for a client that does not pass the reason on.
func (c *client) refused(requests int64, script string) (said string) {
	c.Helper()
	before := c.refusals()
	said, ok := c.sh("33", script)
	if ok {
		c.Errorf("%s\nwas not refused:\n%s", script, said)
	}
	if n := c.refusals() - before; n != requests {
		c.Errorf("%s\nwas refused %d times, want %d:\n%s", script, n, requests, said)
	}
	return said
}

// refusals is how many requests for the client's bucket the proxy has refused for their token: each one that came is counted
// before it is answered.
func (c *client) refusals() (n int64) {
	c.Helper()
	var page struct {
		Records []struct {
			Count int64
			Code  string
		}
	}
	c.api("/api/v1/audit?limit=1000&kind=refusal&bucket="+c.bucket, &page)
	for _, r := range page.Records {
		if r.Code != "StaleToken" {
			c.Errorf("a request was refused with %s", r.Code)
		}
		n += r.Count
	}
	return n
}

// api asks the admin API.
func (c *client) api(target string, into any) {
	c.Helper()
	r, err := http.Get("http://" + c.server.admin + target)
	must(c.T, "ask the proxy", err)
	defer r.Body.Close()
	must(c.T, "read what the proxy says", json.NewDecoder(r.Body).Decode(into))
}

// holds checks what the store has under a key, past all clients: in its directory.
func (c *client) holds(key, file string) {
	c.Helper()
	got, err := os.ReadFile(filepath.Join(c.files, key))
	must(c.T, "read the object", err)
	want, err := os.ReadFile(filepath.Join(c.dir, file))
	must(c.T, "read the file", err)
	if !bytes.Equal(got, want) {
		c.Errorf("%s has %d bytes, which are not the %d of %s", key, len(got), len(want), file)
	}
}

// keys checks which keys the store has below jobs/7/, past all clients.
func (c *client) keys(want ...string) {
	c.Helper()
	root := filepath.Join(c.files, "jobs/7")
	var got []string
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			name, _ := filepath.Rel(root, path)
			got = append(got, name)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		c.Fatal(err)
	}
	if !slices.Equal(got, want) {
		c.Errorf("below jobs/7/ are %q, want %q", got, want)
	}
}

// lists checks that what a client says names these.
func (c *client) lists(said string, names ...string) {
	c.Helper()
	for _, name := range names {
		if !strings.Contains(said, name) {
			c.Errorf("%s is not listed:\n%s", name, said)
		}
	}
}

// version tells which version of a client was tested: the first line of what a command says.
func (c *client) version(command string) {
	c.Helper()
	said, ok := c.sh("", command)
	if !ok {
		c.Fatalf("%s: %s", command, said)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(said), "\n")
	c.Logf("version: %s", line)
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// need skips the test loudly where a program is not here. In CI, where everything has to be there, that is a failure.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		missing(t, program)
	}
}

func missing(t *testing.T, what string) {
	t.Helper()
	why := fmt.Sprintf("%s is not here (integration/setup brings it)", what)
	if os.Getenv("CI") != "" {
		t.Fatalf("NOT SHOWN: %s", why)
	}
	t.Skipf("SKIPPED, and not shown: %s", why)
}
