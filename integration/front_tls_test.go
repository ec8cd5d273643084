package integration

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// secureConfig lets one key in, by any name of the tests.
const secureConfig = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: DIR/data
backends:
  local: {type: file, root: DIR/objects}
buckets:
  - {name: "*", rules: [{match: "jobs/{job}/**", resource: "jobs/{job}"}]}
access_keys: [{id: ALL, secret: the secret of ALL}]
limits: {raise_wait: 1m}
`

// overTLS is a signer that speaks one version of HTTP.
func (p *proxy) overTLS(t *testing.T, a *authority, http2 bool) *signer {
	t.Helper()
	s := p.signer(t, "ALL")
	s.base = "https://" + p.addr
	s.client.Transport = &protoCheck{t, p.transport(t, a, http2), map[bool]int{true: 2, false: 1}[http2]}
	return s
}

// A protoCheck fails the test where another version of HTTP is spoken than it is about.
type protoCheck struct {
	*testing.T
	http.RoundTripper
	major int
}

func (p *protoCheck) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.RoundTripper.RoundTrip(r)
	if err == nil && resp.ProtoMajor != p.major {
		p.Errorf("%s %s was answered by %s", r.Method, r.URL, resp.Proto)
	}
	return resp, err
}

// TestTheSDKOverTLS: in its default settings it sends checksums in trailers here, and HTTP/2.
func TestTheSDKOverTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for _, http2 := range []bool{true, false} {
		t.Run(fmt.Sprintf("HTTP2 %v", http2), func(t *testing.T) {
			t.Parallel()
			p := startTLS(t, a, secureConfig)
			as := func(token string) *s3.Client {
				s := p.overTLS(t, a, http2)
				return s.sdk(func(o *s3.Options) { o.BaseEndpoint = aws.String(s.base + "/~fence/" + token) })
			}
			w := &sdkWork{T: t, bucket: "bucket", stale: as("33"), holder: as("34")}
			w.run(t.Context())
		})
	}
}

// TestBodiesOverTLS: large and refused bodies, by both versions of HTTP, and what comes after them on the same connection.
func TestBodiesOverTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	p := startTLS(t, a, secureConfig)
	big := strings.Repeat("0123456789abcdef", 2<<20) // 32 MiB, larger than every buffer on the way
	for _, http2 := range []bool{true, false} {
		s := p.overTLS(t, a, http2)
		bucket := fmt.Sprintf("/bucket-%v", http2)
		s.do("PUT", bucket, "").want(t, 200)
		s.do("PUT", bucket+"/jobs/7/a", big, "X-Fence-Token", "34").want(t, 200)
		s.do("PUT", bucket+"/jobs/7/a", big, "X-Fence-Token", "33").stale(t, 34)
		if got := s.do("GET", bucket+"/jobs/7/a", ""); string(got.want(t, 200).body) != big {
			t.Errorf("HTTP2 %v: %d bytes came back", http2, len(got.body))
		}
		if got := s.do("GET", bucket+"/jobs/7/a", "", "Range", "bytes=16-19"); string(got.want(t, 206).body) != "0123" {
			t.Errorf("HTTP2 %v: %q", http2, got.body)
		}
		s.do("HEAD", bucket+"/jobs/7/none", "").want(t, 404)
		etag := s.do("HEAD", bucket+"/jobs/7/a", "").want(t, 200).header.Get("ETag")
		if got := s.do("GET", bucket+"/jobs/7/a", "", "If-None-Match", etag).want(t, 304); len(got.body) != 0 {
			t.Errorf("a 304 with %q", got.body)
		}
		s.do("DELETE", bucket+"/jobs/7/a", "", "X-Fence-Token", "33").stale(t, 34)
		s.do("DELETE", bucket+"/jobs/7/a", "", "X-Fence-Token", "34").want(t, 204)
	}
}

// TestUploadThatStallsBesideOthers: on one connection of HTTP/2 an upload that is paused holds nobody up, and the newer holder's write goes through.
func TestUploadThatStallsBesideOthers(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	p := startTLS(t, a, strings.Replace(secureConfig, "access_keys: [{id: ALL, secret: the secret of ALL}]", "", 1))
	client := &http.Client{Transport: &protoCheck{t, p.transport(t, a, true), 2}, Timeout: 2 * time.Minute}
	const size = 10 << 20
	send := func(method, key string, body io.Reader, token string) answer {
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+p.addr+"/bucket"+key, body)
		must(t, "make the request", err)
		if token == "33" {
			r.ContentLength = size
		}
		if token != "" {
			r.Header.Set("X-Fence-Token", token)
		}
		resp, err := client.Do(r)
		must(t, method+" "+key, err)
		got, err := readAnswer(resp)
		must(t, "read the answer", err)
		return got
	}
	send("PUT", "", nil, "").want(t, 200)

	read, write := io.Pipe()
	old := make(chan answer, 1)
	go func() { old <- send("PUT", "/jobs/7/a", read, "33") }() // the client closes it when it is cut off
	_, err := write.Write(bytes.Repeat([]byte("x"), 9<<20))     // 9 MiB have been taken: it streams
	must(t, "begin to upload", err)
	for range 20 {
		send("PUT", "/jobs/8/a", strings.NewReader("beside it"), "1").want(t, 200)
	}
	send("PUT", "/jobs/7/a", strings.NewReader("of 34"), "34").want(t, 200)
	_, _ = write.Write(bytes.Repeat([]byte("x"), size-9<<20)) // it may be cut off already
	_ = write.Close()
	(<-old).stale(t, 34)
	if got := send("GET", "/jobs/7/a", nil, ""); string(got.body) != "of 34" {
		t.Errorf("%q", got.body)
	}
}

// TestCurlOverTLS: a program that nobody here wrote, with the authority's certificate, by both versions of HTTP.
func TestCurlOverTLS(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		skip(t, "there is no curl here")
	}
	if out, _ := exec.Command(curl, "--version").CombinedOutput(); !regexp.MustCompile(`(?m)^Features:.* HTTP2`).Match(out) {
		skip(t, "this curl has no HTTP/2")
	}
	a := newAuthority(t)
	p := startTLS(t, a, secureConfig)
	dir := t.TempDir()
	mustWrite(t, filepath.Join(dir, "content"), strings.Repeat("x", 3<<20))
	for flag, version := range map[string]string{"--http2": "2", "--http1.1": "1.1"} {
		ask := func(want string, args ...string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), curl, append([]string{
				"-sS", flag, "--cacert", a.file, "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", "ALL:" + secretOf("ALL"),
				"-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "-w", " %{http_version} %{http_code}",
			}, args...)...)
			cmd.Dir = dir
			said, _ := cmd.CombinedOutput()
			if !strings.Contains(string(said), want) || !strings.Contains(string(said), " "+version+" ") {
				t.Errorf("curl %s %q: %.500s; want %q by HTTP %s", flag, args, said, want, version)
			}
		}
		bucket := "https://localhost:" + p.port() + "/curl-" + version[:1]
		ask(" 200", "-X", "PUT", bucket)
		ask(" 200", "-T", "content", "-H", "X-Fence-Token: 34", bucket+"/jobs/7/a")
		ask("token 33 is below 34", "-T", "content", "-H", "X-Fence-Token: 33", bucket+"/jobs/7/a")
		ask(" 200", "-o", "back", bucket+"/jobs/7/a")
		if mustRead(t, filepath.Join(dir, "back")) != strings.Repeat("x", 3<<20) {
			t.Errorf("curl %s has another object", flag)
		}
	}
}

func (p *proxy) port() string { return p.addr[strings.LastIndex(p.addr, ":")+1:] }

// TestPlainHTTPToTLS is told so, and nothing else.
func TestPlainHTTPToTLS(t *testing.T) {
	t.Parallel()
	p := startTLS(t, newAuthority(t), secureConfig)
	a := p.do(t, "PUT", "/bucket/jobs/7/a", "x", "X-Fence-Token", "34").want(t, 400)
	if !strings.Contains(string(a.body), "HTTPS") {
		t.Errorf("%q", a.body)
	}
	if got := p.ok(t, "fences", "list", "--format", "jsonl"); got != "" {
		t.Errorf("there is a fence: %s", got)
	}
}

// TestCertificateIsReplaced: new clients get the new certificate without a restart, and those that are connected go on.
func TestCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	p := startTLS(t, a, secureConfig)
	serial := func() int64 {
		c, err := tls.Dial("tcp", p.addr, &tls.Config{RootCAs: a.pool, ServerName: "localhost"})
		must(t, "connect", err)
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Fatalf("certificate %d", got)
	}
	connected := p.overTLS(t, a, true)
	connected.do("PUT", "/bucket", "").want(t, 200)

	cert, key := a.issue(t, 2)
	replaceFile(t, p.dir+"/tls.crt", cert) // half of it
	awaitLog(t, p, "the changed certificate is not taken", func() { serial() })
	if got := serial(); got != 1 {
		t.Errorf("certificate %d, while half of the second one is there", got)
	}
	replaceFile(t, p.dir+"/tls.key", key)
	eventually(t, "the second certificate", func() bool { return serial() == 2 })
	connected.do("GET", "/bucket?list-type=2", "").want(t, 200)
	if n := strings.Count(p.logs.String(), "the changed certificate is not taken"); n != 1 {
		t.Errorf("the log has %d lines about the half one", n)
	}

	replaceFile(t, p.dir+"/tls.key", key[:40])
	awaitLog(t, p, "(?s)not taken.*not taken", func() { serial() })
	if got := serial(); got != 2 {
		t.Errorf("certificate %d, while the key is broken", got)
	}
	if said := p.logs.String(); strings.Contains(said, key[30:40]) {
		t.Errorf("a key is in the log:\n%s", said)
	}
	p.stop(t)
	if said := p.refused(t); !strings.Contains(said, "config.yaml:12: cert: ") || !strings.Contains(said, "are no certificate and its key") {
		t.Errorf("a start with a broken key: %s", said)
	}
	replaceFile(t, p.dir+"/tls.key", key)
	p.start(t)
	if got := serial(); got != 2 {
		t.Errorf("certificate %d after the restart", got)
	}
}

// awaitLog does something again and again until the log has a match.
func awaitLog(t *testing.T, p *proxy, what string, again func()) {
	t.Helper()
	pattern := regexp.MustCompile(what)
	eventually(t, what, func() bool {
		again()
		return pattern.MatchString(p.logs.String())
	})
}
