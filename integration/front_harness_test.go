package integration

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// An authority issues the certificates of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	file string // PEM, for programs
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, "make a key", err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of the tests"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, "make the authority", err)
	a := &authority{key: key, pool: x509.NewCertPool(), file: filepath.Join(t.TempDir(), "ca.pem")}
	a.cert, err = x509.ParseCertificate(der)
	must(t, "read the authority", err)
	a.pool.AddCert(a.cert)
	mustWrite(t, a.file, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	return a
}

// serverNames are those that the proxies of the tests have.
var serverNames = []string{"localhost", "s3.test", "*.s3.test"}

// issue makes a certificate and its key, as PEM.
func (a *authority) issue(t *testing.T, serial int64) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, "make a key", err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "proxy"}, DNSNames: serverNames, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	must(t, "issue a certificate", err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	must(t, "write the key", err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

// replaceFile writes what is not "" over a file, by a rename.
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	if content == "" {
		return
	}
	must(t, "write "+path, os.WriteFile(path+".new", []byte(content), 0o600))
	must(t, "rename "+path, os.Rename(path+".new", path))
}

// withTLS adds a certificate with the serial number 1 to a configuration.
func (p *proxy) withTLS(t *testing.T, a *authority, config string) {
	t.Helper()
	cert, key := a.issue(t, 1)
	replaceFile(t, p.dir+"/tls.crt", cert)
	replaceFile(t, p.dir+"/tls.key", key)
	p.writeConfig(t, config+"\ntls: {cert: DIR/tls.crt, key: DIR/tls.key}\n")
}

// startTLS runs a proxy that speaks HTTPS.
func startTLS(t *testing.T, a *authority, config string) *proxy {
	t.Helper()
	p := newProxy(t, config)
	p.withTLS(t, a, config)
	p.start(t)
	return p
}

// transport reaches the proxy by whatever name, and speaks HTTP/2 where it is to be had and wanted. a is nil for plain HTTP.
func (p *proxy) transport(t *testing.T, a *authority, http2 bool) *http.Transport {
	t.Helper()
	transport := &http.Transport{
		DisableCompression: true, ForceAttemptHTTP2: http2,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, p.addr)
		},
	}
	if a != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: a.pool}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// A signer is one who has an access key. Without one it sends plain requests.
type signer struct {
	*testing.T
	base   string // scheme and host
	key    string
	client *http.Client
}

// secretOf is the secret of an access key of the tests.
func secretOf(key string) string { return "the secret of " + key }

func (p *proxy) signer(t *testing.T, key string) *signer {
	t.Helper()
	return &signer{T: t, base: "http://" + p.addr, key: key, client: &http.Client{Transport: p.transport(t, nil, false), Timeout: 2 * time.Minute}}
}

// do sends a request; headers are names and values in turn.
func (s *signer) do(method, path, body string, headers ...string) answer {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.base+path, bytes.NewReader([]byte(body)))
	must(s.T, "make the request", err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	if s.key != "" {
		sum := sha256.Sum256([]byte(body))
		digest := hex.EncodeToString(sum[:])
		r.Header.Set("X-Amz-Content-Sha256", digest)
		signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
		must(s.T, "sign", signer.SignHTTP(s.Context(), s.credentials(r), r, digest, "s3", "us-east-1", time.Now()))
	}
	resp, err := s.client.Do(r)
	must(s.T, method+" "+path, err)
	a, err := readAnswer(resp)
	must(s.T, "read the answer", err)
	return a
}

// credentials take the session token that the request has already, as the signer wants it.
func (s *signer) credentials(r *http.Request) aws.Credentials {
	session := r.Header.Get("X-Amz-Security-Token")
	r.Header.Del("X-Amz-Security-Token")
	return aws.Credentials{AccessKeyID: s.key, SecretAccessKey: secretOf(s.key), SessionToken: session}
}

// sdk is the AWS SDK for Go with the same key, HTTP client and base.
func (s *signer) sdk(change ...func(*s3.Options)) *s3.Client {
	o := s3.Options{
		Region: "us-east-1", UsePathStyle: true, BaseEndpoint: aws.String(s.base), HTTPClient: s.client,
		Credentials: credentials.NewStaticCredentialsProvider(s.key, secretOf(s.key), ""),
	}
	for _, c := range change {
		c(&o)
	}
	return s3.New(o)
}

func putInput(bucket, key, body string) *s3.PutObjectInput {
	return &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String(key), Body: strings.NewReader(body)}
}

// md5Of is a Content-MD5 (RFC 1864).
func md5Of(body string) string {
	sum := md5.Sum([]byte(body))
	return base64.StdEncoding.EncodeToString(sum[:])
}
