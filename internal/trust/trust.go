// Package trust reads what a client of a TLS server is given in files: whom to trust, and who it is itself.
package trust

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Load makes a client's configuration. ca is a file of certificates in PEM that the server's is held against, "" for those of the system;
// cert and key are the client's own, in PEM, "" where the server asks for none.
func Load(ca, cert, key string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("the certificates to trust: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("the certificates to trust: there is none in %s; it must be PEM", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("the client's certificate and its key belong together: give both, or neither")
	}
	if cert != "" {
		own, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("the client's certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{own}
	}
	return c, nil
}
