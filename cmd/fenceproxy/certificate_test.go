package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A testPair is a certificate that signs itself, and its key, as PEM.
type testPair struct{ cert, key string }

func newTestPair(t *testing.T, serial int64, change func(*x509.Certificate), names ...string) testPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return testPair{
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})),
	}
}

// A certificateTest is a pair on disk, and a certificateFile over it.
type certificateTest struct {
	*testing.T
	files tlsFiles
	log   bytes.Buffer
	c     *certificateFile
}

func newCertificateTest(t *testing.T, first testPair) *certificateTest {
	t.Helper()
	dir := t.TempDir()
	ct := &certificateTest{T: t, files: tlsFiles{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}}
	ct.write(first.cert, first.key)
	var err error
	if ct.c, err = openCertificate(ct.files, slog.New(slog.NewTextHandler(&ct.log, nil))); err != nil {
		t.Fatal(err)
	}
	return ct
}

// write replaces what is not "", by a rename, as careful programs do.
func (ct *certificateTest) write(cert, key string) {
	ct.Helper()
	for path, content := range map[string]string{ct.files.Cert: cert, ct.files.Key: key} {
		if content == "" {
			continue
		}
		mustWriteFile(ct.T, path+".new", content, 0o600)
		if err := os.Rename(path+".new", path); err != nil {
			ct.Fatal(err)
		}
	}
}

// serves checks which certificate a client is given that comes a second later.
func (ct *certificateTest) serves(serial int64) {
	ct.Helper()
	ct.c.looked = time.Time{}
	ct.servesNow(serial)
}

func (ct *certificateTest) servesNow(serial int64) {
	ct.Helper()
	pair, err := ct.c.get(&tls.ClientHelloInfo{})
	if err != nil || pair.Leaf.SerialNumber.Int64() != serial {
		ct.Errorf("%v, %v; want certificate %d\n%s", pair.Leaf.SerialNumber, err, serial, ct.log.String())
	}
}

// said checks how often the log has said something, and forgets it.
func (ct *certificateTest) said(what string, times int) {
	ct.Helper()
	if n := strings.Count(ct.log.String(), what); n != times || strings.Count(ct.log.String(), "\n") != times {
		ct.Errorf("%q stands %d times in the log, want %d and nothing else:\n%s", what, n, times, ct.log.String())
	}
	ct.log.Reset()
}

func TestCertificateReload(t *testing.T) {
	one, two := newTestPair(t, 1, nil, "localhost"), newTestPair(t, 2, nil, "localhost")
	ct := newCertificateTest(t, one)
	ct.serves(1)
	ct.said("certificate", 0)

	ct.write(two.cert, "")
	ct.serves(1)
	ct.serves(1)
	ct.said("the changed certificate is not taken", 1)
	ct.write("", two.key)
	ct.serves(2)
	ct.serves(2)
	ct.said("the certificate has changed", 1)

	ct.write(one.cert[:len(one.cert)/2], one.key)
	ct.serves(2)
	ct.said("the changed certificate is not taken", 1)
	ct.write(one.cert, "")
	ct.servesNow(2) // not before a second has gone
	ct.said("certificate", 0)
	ct.serves(1)
	ct.said("the certificate has changed", 1)

	for _, path := range []string{ct.files.Key, ct.files.Cert} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		ct.serves(1)
		ct.serves(1)
		ct.said("the changed certificate is not taken", 1)
	}
	ct.write(two.cert, two.key)
	ct.serves(2)
	ct.said("the certificate has changed", 1)
}

// TestCertificateBehindALink is how Kubernetes changes both files at once.
func TestCertificateBehindALink(t *testing.T) {
	dir := t.TempDir()
	for name, serial := range map[string]int64{"one": 1, "two": 2} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		pair := newTestPair(t, serial, nil, "localhost")
		mustWriteFile(t, filepath.Join(dir, name, "tls.crt"), pair.cert, 0o600)
		mustWriteFile(t, filepath.Join(dir, name, "tls.key"), pair.key, 0o600)
	}
	link := func(to string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "data")); err != nil {
			t.Fatal(err)
		}
	}
	link("one")
	ct := &certificateTest{T: t, files: tlsFiles{filepath.Join(dir, "data", "tls.crt"), filepath.Join(dir, "data", "tls.key")}}
	var err error
	if ct.c, err = openCertificate(ct.files, slog.New(slog.NewTextHandler(&ct.log, nil))); err != nil {
		t.Fatal(err)
	}
	ct.serves(1)
	link("two")
	ct.serves(2)
	ct.said("the certificate has changed", 1)
}

func TestCertificateDoubts(t *testing.T) {
	expired := newTestPair(t, 3, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "localhost")
	ct := newCertificateTest(t, newTestPair(t, 1, nil, "localhost"))
	ct.write(expired.cert, expired.key)
	ct.serves(3)
	if text := ct.log.String(); !strings.Contains(text, "the certificate has expired") {
		t.Error(text)
	}

	for _, test := range []struct {
		config string
		pair   testPair
		says   string // all warnings begin with the line and end so
	}{
		{"", expired, "the certificate has expired, at "},
		{"", newTestPair(t, 4, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, "a"), "the certificate is not valid before "},
		{"", newTestPair(t, 5, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "a"), "the certificate is not made for servers"},
		{"", newTestPair(t, 6, nil, "a"), ""},
		{"domain: s3.test\n", newTestPair(t, 6, nil, "s3.test", "*.s3.test"), ""},
		{"domain: s3.test\n", newTestPair(t, 6, nil, "s3.test"), "the certificate does not have the name *.s3.test, by which clients come (domain)"},
		{"domain: s3.test\n", newTestPair(t, 6, nil, "*.s3.test"), "the certificate does not have the name s3.test, by which clients come (domain)"},
	} {
		ct.write(test.pair.cert, test.pair.key)
		c, err := parseConfig("c", []byte(test.config+"tls: {cert: "+ct.files.Cert+", key: "+ct.files.Key+"}"), noEnvironment)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(c.Warnings, "\n")
		if !strings.Contains(got, test.says) || (test.says == "") != (got == "") {
			t.Errorf("%q, want %q", got, test.says)
		}
	}
}

// TestCertificateFaults: a pair that is not good when the configuration is read is a fault of it, in words without the key.
func TestCertificateFaults(t *testing.T) {
	one, two := newTestPair(t, 1, nil, "a"), newTestPair(t, 2, nil, "a")
	ct := newCertificateTest(t, one)
	body := strings.Split(one.key, "\n")[1]
	for _, test := range []struct {
		cert, key string
		mode      os.FileMode
		says      string
	}{
		{one.cert, two.key, 0o600, "cert: " + ct.files.Cert + " and " + ct.files.Key + " are no certificate and its key: "},
		{"nothing", one.key, 0o600, "cert: "},
		{one.cert, "nothing " + body, 0o600, "cert: "},
		{one.key, one.cert, 0o600, "cert: "},
		{one.cert, one.key, 0o606, "key: " + ct.files.Key + " can be written by every user"},
		{one.cert, " ", 0o600, "cert: "},
	} {
		ct.write(test.cert, test.key)
		if err := os.Chmod(ct.files.Key, test.mode); err != nil {
			t.Fatal(err)
		}
		_, err := parseConfig("c", []byte("tls: {cert: "+ct.files.Cert+", key: "+ct.files.Key+"}"), noEnvironment)
		if err == nil || !strings.HasPrefix(err.Error(), "c:1: "+test.says) || strings.Contains(err.Error(), body) {
			t.Errorf("%v, want %q", err, test.says)
		}
	}
}
