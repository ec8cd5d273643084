package s3

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func md5Of(s string) string {
	sum := md5.Sum([]byte(s))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// alone makes the AWS configuration of this machine none of the test's.
func alone(t *testing.T) string {
	dir := t.TempDir()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "") // restores it
			_ = os.Unsetenv(name)
		}
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(dir, "config"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(dir, "credentials"))
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	return dir
}

func TestBadOptions(t *testing.T) {
	alone(t)
	for want, o := range map[string]Options{
		"belong together":      {AccessKey: "a", Region: "r"},
		"secret_key belong":    {SecretKey: "a", Region: "r"},
		"session token":        {SessionToken: "a", Region: "r"},
		"two sources":          {AccessKey: "a", SecretKey: "b", Profile: "p", Region: "r"},
		"not the name":         {RoleARN: "role", Region: "r"},
		"negative":             {Region: "r", StallTimeout: -1},
		"settle time is neg":   {Region: "r", SettleLong: -1},
		"no region is given":   {},
		"not an AWS region":    {Region: "Frankfurt/Main"},
		"not the URL":          {Endpoint: "localhost:7070"},
		"is not the URL":       {Endpoint: "ftp://store"},
		"store: it looks like": {Endpoint: "http://"},
		"more than scheme":     {Endpoint: "http://u:p@store?x=1"},
		"set path_style":       {Endpoint: "http://127.0.0.1:7070"},
		"cannot be loaded":     {Profile: "nobody", Region: "r"},
	} {
		s, err := Open(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}

func TestEndpoints(t *testing.T) {
	alone(t)
	t.Setenv("AWS_ENDPOINT_URL", "http://this-program.example:9000")
	for _, test := range []struct {
		o            Options
		target, want string
	}{
		{Options{Region: "eu-west-1"}, "/bucket/a%2Bb?acl", "https://bucket.s3.eu-west-1.amazonaws.com/a%2Bb?acl="},
		{Options{Region: "eu-west-1"}, "/bucket", "https://bucket.s3.eu-west-1.amazonaws.com/"},
		{Options{Region: "eu-west-1"}, "/bucket//a", "https://bucket.s3.eu-west-1.amazonaws.com//a"},
		{Options{Region: "eu-west-1"}, "/", "https://s3.eu-west-1.amazonaws.com/"},
		{Options{Region: "cn-north-1"}, "/my.bucket/a", "https://s3.cn-north-1.amazonaws.com.cn/my.bucket/a"},
		{Options{Region: "eu-west-1"}, "/x@evil.example/a", "https://s3.eu-west-1.amazonaws.com/x%40evil.example/a"},
		{Options{Region: "eu-west-1"}, "/Bucket_1/a", "https://s3.eu-west-1.amazonaws.com/Bucket_1/a"},
		{Options{Region: "eu-west-1", PathStyle: true}, "/bucket/a", "https://s3.eu-west-1.amazonaws.com/bucket/a"},
		{Options{Endpoint: "http://store:80/"}, "/bucket/a", "http://bucket.store/a"},
		{Options{Endpoint: "https://store:443/s3", PathStyle: true}, "/bucket/", "https://store/s3/bucket/"},
		{Options{Endpoint: "http://[::1]:7070", PathStyle: true}, "/bucket/a", "http://[::1]:7070/bucket/a"},
	} {
		test.o.AccessKey, test.o.SecretKey = testKey, testSecret
		s, err := Open(t.Context(), test.o)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.url(httptest.NewRequest("GET", test.target, nil).URL).String(); got != test.want {
			t.Errorf("%+v: %s goes to %s, want %s", test.o, test.target, got, test.want)
		}
		_ = s.Close()
	}
}

// TestVirtualHost has the bucket in the name of the host that is signed.
func TestVirtualHost(t *testing.T) {
	f := newFake(t, answering(ok))
	s := open(t, "http://s3.example", func(o *Options) { o.PathStyle = false })
	s.transport.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
		if addr != "bucket.s3.example:80" {
			t.Errorf("dialled %s", addr)
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(f.url, "http://"))
		return newConn(c, time.Minute), err
	}
	if w := do(s, "PUT", "/bucket//a/b", strings.NewReader("x")); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	g := f.requests()[0]
	checkSignature(t, g)
	if g.Host != "bucket.s3.example" || !strings.HasPrefix(g.head, "PUT //a/b HTTP/1.1"+crlf) {
		t.Error(g.head)
	}
}

// TestTLS: trap 13, AWS_CA_BUNDLE breaks the loading of the SDK's configuration. It trusts what that says, speaks HTTP/1.1, uses a connection again, and tells a store that hangs up apart.
func TestTLS(t *testing.T) {
	dir := alone(t)
	var connections atomic.Int32
	var cut atomic.Bool
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cut.Load() {
			panic(http.ErrAbortHandler)
		}
		n, err := io.Copy(io.Discard, r.Body)
		if r.ProtoMajor != 1 || err != nil || n != max(r.ContentLength, 0) || r.Host == "" {
			t.Errorf("%s, %d bytes, %v", r.Proto, n, err)
		}
		_, _ = io.WriteString(w, "ok")
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	stranger := open(t, server.URL)
	if w := do(stranger, "DELETE", "/bucket/key", nil); w.Code != 503 {
		t.Errorf("a store that is not trusted: %d %s", w.Code, w.Body)
	}
	bundle := filepath.Join(dir, "ca.pem")
	pemBytes := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(bundle, pemBytes, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CA_BUNDLE", bundle)
	s := open(t, server.URL)
	s.transport.IdleConnTimeout = time.Hour
	before := connections.Load()
	for _, method := range []string{"PUT", "GET", "DELETE", "PUT"} {
		if w := do(s, method, "/bucket/key", strings.NewReader(strings.Repeat("x", 200_000))); w.Code != 200 {
			t.Errorf("%s: %d %s", method, w.Code, w.Body)
		}
	}
	if n := connections.Load() - before; n != 1 {
		t.Errorf("%d connections for 4 requests", n)
	}
	cut.Store(true)
	if w := do(s, "DELETE", "/bucket/key", nil); w.Code != 502 {
		t.Errorf("a store that hangs up after the request: %d %s", w.Code, w.Body)
	}
}

// TestCredentials: from the environment, a profile, a role; and none, which is known before anything is sent.
func TestCredentials(t *testing.T) {
	f := newFake(t, answering(ok))
	ask := func(t *testing.T, o Options) (string, int) {
		o.Endpoint, o.Region, o.PathStyle = f.url, testRegion, true
		s, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		before := len(f.requests())
		w := do(s, "DELETE", "/bucket/key", nil)
		if w.Code != 200 {
			return "", w.Code
		}
		g := f.requests()[before]
		id, _, _ := strings.Cut(strings.TrimPrefix(g.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="), "/")
		return id + "," + g.Header.Get("X-Amz-Security-Token"), w.Code
	}
	t.Run("none", func(t *testing.T) {
		alone(t)
		if who, status := ask(t, Options{}); status != 503 {
			t.Errorf("%s %d", who, status)
		}
	})
	t.Run("environment", func(t *testing.T) {
		alone(t)
		t.Setenv("AWS_ACCESS_KEY_ID", "env")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
		t.Setenv("AWS_SESSION_TOKEN", "token")
		if who, status := ask(t, Options{}); who != "env,token" {
			t.Errorf("%s %d", who, status)
		}
	})
	t.Run("profile", func(t *testing.T) {
		dir := alone(t)
		file := "[default]\naws_access_key_id = other\naws_secret_access_key = s\n[mine]\naws_access_key_id = profiled\naws_secret_access_key = s\n"
		if err := os.WriteFile(filepath.Join(dir, "credentials"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		if who, status := ask(t, Options{Profile: "mine"}); who != "profiled," {
			t.Errorf("%s %d", who, status)
		}
	})
	t.Run("role", func(t *testing.T) {
		alone(t)
		sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("RoleArn") != "arn:aws:iam::123456789012:role/r" || !strings.Contains(r.Header.Get("Authorization"), "Credential=base/") {
				t.Errorf("STS was asked %v", r.Form)
			}
			w.Header().Set("Content-Type", "text/xml")
			_, _ = io.WriteString(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials><AccessKeyId>assumed</AccessKeyId>`+
				`<SecretAccessKey>s</SecretAccessKey><SessionToken>role-token</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`)
		}))
		defer sts.Close()
		t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
		if who, status := ask(t, Options{RoleARN: "arn:aws:iam::123456789012:role/r", AccessKey: "base", SecretKey: "s"}); who != "assumed,role-token" {
			t.Errorf("%s %d", who, status)
		}
	})
	t.Run("container", func(t *testing.T) {
		alone(t)
		container := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"AccessKeyId":"contained","SecretAccessKey":"s","Token":"t","Expiration":"2099-01-01T00:00:00Z"}`)
		}))
		defer container.Close()
		t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", container.URL)
		if who, status := ask(t, Options{}); who != "contained,t" {
			t.Errorf("%s %d", who, status)
		}
	})
}
