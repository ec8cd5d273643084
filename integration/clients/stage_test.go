// Package clients runs S3 clients that nobody here wrote against the built program: in their default settings, signed, with a
// token by the way that suits each. With token 34 they do their work, with 33 they are refused, in their own words, and do not
// try again and again. What they are told to do stands in docs/clients.md, and is read from there.
package clients

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// patience bounds every wait for something that takes milliseconds on an idle machine.
const patience = time.Minute

// What signs the clients' requests, and what the proxy's own to the S3 server behind it.
const (
	clientKey     = "AKIDJOBS"
	clientSecret  = "secret-of-the-jobs"
	gatewayKey    = "GATEWAYKEY"
	gatewaySecret = "gateway-secret-of-the-tests"
	gatewayRegion = "eu-west-1"
)

// stage is a directory with what all tests share: the program, the S3 server behind it, files to upload. What a run needs is
// started when it is first asked for, once.
type stage struct {
	dir     string
	program string
	big     string // a file that every client uploads in parts

	plain, secure func() (*server, error)

	mu   sync.Mutex
	ends []func() error
}

var theStage stage

func TestMain(m *testing.M) { os.Exit(theStage.run(m)) }

func (s *stage) run(m *testing.M) (code int) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "4") // clients wait for disks and for each other's processes
	}
	defer func() { _ = os.RemoveAll(s.dir) }()
	if err := s.prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code = m.Run()
	for _, end := range s.ends {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

func (s *stage) prepare() (err error) {
	if s.dir, err = os.MkdirTemp("", "fenceproxy-clients-"); err != nil {
		return err
	}
	s.program, s.big = filepath.Join(s.dir, "fenceproxy"), filepath.Join(s.dir, "big")
	content := make([]byte, 17<<20) // minio-go and s3cmd begin to upload in parts at 16 MB
	_, _ = rand.Read(content)
	if err := os.WriteFile(s.big, content, 0o644); err != nil {
		return err
	}
	s.plain = sync.OnceValues(func() (*server, error) { return s.start("plain") })
	s.secure = sync.OnceValues(func() (*server, error) { return s.start("secure") })
	return s.build()
}

// build makes the program, with the race detector where that can be had.
func (s *stage) build() error {
	build := func(flags ...string) (string, error) {
		cmd := exec.Command("go", append(append([]string{"build", "-o", s.program}, flags...), "./cmd/fenceproxy")...)
		cmd.Dir = "../.."
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := build("-race")
	if err != nil && (strings.Contains(out, "cgo") || strings.Contains(out, "C compiler")) {
		fmt.Fprintf(os.Stderr, "NOTE: the program is tested without the race detector: %s", out)
		out, err = build()
	}
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// atEnd keeps what is to be stopped when all tests are done.
func (s *stage) atEnd(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, f)
}

// A server is a running proxy, with a file store, and the S3 server behind it if it has one.
type server struct {
	scheme, addr, admin string
	dir                 string // of the objects of the file store: bucket/key
	gateway             string // of those of the S3 server
	logs                logs
}

var servingLine = regexp.MustCompile(`msg=serving listen=(\S+) admin=(\S+) `)

// start runs a proxy: plain HTTP before both backends, or HTTPS before the file store.
func (s *stage) start(name string) (*server, error) {
	dir := filepath.Join(s.dir, name)
	v := &server{scheme: "http", dir: filepath.Join(dir, "objects"), gateway: filepath.Join(dir, "gateway")}
	if err := os.MkdirAll(v.gateway, 0o755); err != nil {
		return nil, err
	}
	config, err := "", error(nil)
	if name == "secure" {
		v.scheme = "https"
		config, err = writeCertificate(dir)
	} else {
		config, err = s.startGateway(v)
	}
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(proxyConfig(dir, config)), 0o644); err != nil {
		return nil, err
	}
	cmd := exec.Command(s.program, "serve", "--config", file)
	cmd.Dir = dir
	if err := v.logs.of(cmd); err != nil {
		return nil, err
	}
	s.atEnd(func() error { return v.end(cmd) })
	found := v.logs.await(servingLine)
	if found == nil {
		return nil, fmt.Errorf("serve did not come up:\n%s", v.logs.lines(""))
	}
	v.addr, v.admin = found[1], found[2]
	if backendIn(config) {
		err = v.firstWrite()
	}
	return v, err
}

// end stops the proxy, and holds it to what it must never say.
func (v *server) end(cmd *exec.Cmd) error {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	err := cmd.Wait()
	for _, never := range []string{"DATA RACE", "panic"} {
		if strings.Contains(v.logs.lines(""), never) {
			err = errors.Join(err, fmt.Errorf("%s in the proxy:\n%s", never, v.logs.lines("")))
		}
	}
	return err
}

// proxyConfig is what the proxy runs with: more is TLS, or the S3 backend. The rule for restic is the one that docs/clients.md
// gives its users.
func proxyConfig(dir, more string) string {
	backend, bucket, top := "", "", more
	if backendIn(more) {
		backend, top = more, ""
		bucket = `  - {name: "s3-*", backend: gateway, rules: [{match: "jobs/{job}/**", resource: "jobs/{job}"}]}` + "\n"
	}
	return `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: ` + dir + `/data
` + top + `
access_keys: [{id: ` + clientKey + `, secret: ` + clientSecret + `}]
limits: {raise_wait: 1m}
backends:
  local: {type: file, root: ` + dir + `/objects}
` + backend + `buckets:
` + bucket + `  - name: "*"
    backend: local
    rules:
      - {match: "jobs/{job}/**", resource: "jobs/{job}"}
      ` + resticRule + "\n"
}

// resticRule stands in docs/clients.md, too.
const resticRule = `- {match: "{repository}/**", resource: "{repository}", refuse: 403}`

func backendIn(config string) bool { return strings.HasPrefix(config, "  gateway:") }

// firstWrite makes the proxy ask the S3 server what it does with writes, for which the first one waits. Some clients do not.
func (v *server) firstWrite() error {
	client := s3.New(s3.Options{
		Region: "us-east-1", UsePathStyle: true, BaseEndpoint: aws.String(v.scheme + "://" + v.addr), RetryMaxAttempts: 10,
		Credentials: credentials.NewStaticCredentialsProvider(clientKey, clientSecret, ""), HTTPClient: http.DefaultClient,
	})
	bucket, key := aws.String("s3-first"), aws.String("key")
	if _, err := client.CreateBucket(context.Background(), &s3.CreateBucketInput{Bucket: bucket}); err != nil {
		return err
	}
	_, err := client.PutObject(context.Background(), &s3.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader("x")})
	if err != nil {
		return fmt.Errorf("the first write: %w\n%s", err, v.logs.lines(""))
	}
	return nil
}

// startGateway runs versitygw, a real S3 server, and returns the proxy's backend that leads to it. Without versitygw there is
// none, and the tests that need it are skipped.
func (s *stage) startGateway(v *server) (backend string, err error) {
	program := os.Getenv("FENCEPROXY_VERSITYGW")
	if program == "" {
		if program, err = exec.LookPath("versitygw"); err != nil {
			v.gateway = ""
			return "", nil
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	address := l.Addr().String()
	l.Close()
	cmd := exec.Command(program, "--port", address, "--access", gatewayKey, "--secret", gatewaySecret, "--region", gatewayRegion,
		"--keep-alive", "--quiet", "posix", v.gateway)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	s.atEnd(func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return nil
	})
	return fmt.Sprintf("  gateway: {type: s3, region: %s, endpoint: \"http://%s\", path_style: true, access_key: %s, secret_key: %s}\n",
		gatewayRegion, address, gatewayKey, gatewaySecret), awaitPort(address)
}

func awaitPort(address string) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("versitygw does not listen: %w", err)
		}
	}
}

// logs keep what a process says, and let a test wait for a line of it.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// of starts cmd and keeps what it says.
func (l *logs) of(cmd *exec.Cmd) error {
	cmd.Stdout, cmd.Stderr = l, l
	return cmd.Start()
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// lines are those that hold a text, the last 40 of them.
func (l *logs) lines(with string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, with) {
			found = append(found, line)
		}
	}
	return strings.Join(found[max(0, len(found)-40):], "")
}

func (l *logs) await(what *regexp.Regexp) []string {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		found := what.FindStringSubmatch(l.text.String())
		l.mu.Unlock()
		if found != nil {
			return found
		}
	}
	return nil
}
