// Package servers starts real database servers for tests, each on a free port of 127.0.0.1 and in a folder of its own, and ends them with the test.
package servers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// skip skips a test for want of a server. Where CI is set, that is a failure: nothing may be skipped there unseen.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf("SKIPPED, and not shown: "+format, args...)
}

// freePort is one that nobody listens on at the moment. It is below those that the kernel gives to connections and to listeners that ask for any
// (from 32768: net.ipv4.ip_local_port_range): one of theirs could be taken before the server that it is for has started, or while it is down.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 12000 + rand.N(20000)
		if _, given := givenPorts.LoadOrStore(port, true); given {
			continue // to a server of this process, which may be down, or not there yet
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port
	}
	t.Fatal("no free port was found in a hundred tries")
	return 0
}

var givenPorts sync.Map // by freePort, in this process: port → true

// tail is the end of a log.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("…%s", text[max(0, len(text)-4000):])
}

// certificate makes one for 127.0.0.1, which is its own authority, and its key, both as PEM.
func certificate(t testing.TB) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	signed, err := x509.CreateCertificate(cryptorand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}
