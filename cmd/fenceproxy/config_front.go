package main

import (
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// tlsFiles name the certificate of the S3 API, with those of its issuers behind it, and its key, both PEM.
type tlsFiles struct {
	Cert, Key string
}

var tlsKeys = []configKey[tlsFiles]{
	{"cert", func(r *configReader, n *yaml.Node, t *tlsFiles) { r.file(n, &t.Cert) }},
	{"key", func(r *configReader, n *yaml.Node, t *tlsFiles) { r.file(n, &t.Key) }},
}

func readTLS(r *configReader, n *yaml.Node, d *configDraft) {
	values := readMapping(r, n, tlsKeys, &d.TLS)
	cert, key := values["cert"], values["key"]
	switch {
	case values == nil:
		return
	case cert == nil || key == nil:
		r.fault(n, "needs both: write {cert: FILE, key: FILE}")
		return
	case r.bad[cert] || r.bad[key]:
		return
	}
	_, keyRead := r.private(key, d.TLS.Key)
	if _, err := os.ReadFile(d.TLS.Cert); err != nil {
		r.fault(cert, "cannot be read: %v", err)
	}
	if r.bad[cert] || !keyRead {
		return
	}
	pair, err := loadPair(d.TLS)
	if err != nil {
		r.fault(cert, "%v", err)
		return
	}
	d.pair = pair
}

// finishTLS tells what clients may find wrong with the certificate.
func (d *configDraft) finishTLS(r *configReader) {
	if d.pair == nil {
		return
	}
	for _, doubt := range doubtsOf(d.pair.Leaf, d.Domain, time.Now()) {
		r.warn(d.values["tls"], "%s", doubt)
	}
}

// readDomain reads the name below which each bucket has a host name of its own.
func readDomain(r *configReader, n *yaml.Node, d *configDraft) {
	s, ok := r.scalar(n)
	if !ok {
		return
	}
	if problem := problemOfDomain(s); problem != "" {
		r.fault(n, "%q %s", s, problem)
		return
	}
	d.Domain = s
}

// readRegion reads the region that clients have to sign for.
func readRegion(r *configReader, n *yaml.Node, d *configDraft) {
	s, ok := r.scalar(n)
	if !ok {
		return
	}
	if s == "" || len(s) > 64 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		r.fault(n, "%q is no region; write one such as us-east-1, or take it out for any", s)
		return
	}
	d.Region = s
}

// maxDomain leaves room for a bucket's name of 63 characters and a dot in a host name of 253 (RFC 1035, 2.3.4).
const maxDomain = 253 - 64

func problemOfDomain(s string) string {
	_, err := netip.ParseAddr(s)
	switch {
	case err == nil:
		return "is an address, below which there are no names; write a name such as s3.example.internal"
	case strings.ToLower(s) != s:
		return "has capitals; write it in lower case"
	case strings.ContainsAny(s, ":/"):
		return "must be a name alone, without a scheme, a port or a path, such as s3.example.internal"
	case strings.HasPrefix(s, "*.") || strings.HasPrefix(s, "."):
		return "begins with what stands for the bucket; write the name behind it, such as s3.example.internal"
	case len(s) > maxDomain:
		return "is too long for a bucket's name before it"
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(label) {
			return "must be a DNS name, such as s3.example.internal"
		}
	}
	return ""
}

// isLabel is one part of a host name (RFC 1123, 2.1).
func isLabel(s string) bool {
	for i, c := range s {
		inside := i > 0 && i < len(s)-1
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' && inside) {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// maxPrivate is the size in bytes from which a file is no secret and no key.
const maxPrivate = 64 << 10

// private reads a file that only its owner is to read. That others may read it is told and let pass: secrets that are mounted into containers
// often are so. That others may write it is a fault: whoever does lets himself in.
func (r *configReader) private(n *yaml.Node, path string) ([]byte, bool) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		r.fault(n, "cannot be read: %v", err)
		return nil, false
	case !info.Mode().IsRegular() || info.Size() > maxPrivate:
		r.fault(n, "%s is no file of up to %s; name the file itself", path, formatSize(maxPrivate))
		return nil, false
	case info.Mode()&0o002 != 0:
		r.fault(n, "%s can be written by every user of this machine (mode %04o); chmod 600 it, and put another secret in", path, info.Mode().Perm())
		return nil, false
	case info.Mode()&0o004 != 0:
		r.warn(n, "%s can be read by every user of this machine (mode %04o): chmod 600 it", path, info.Mode().Perm())
	}
	f, err := os.Open(path)
	if err != nil {
		r.fault(n, "cannot be read: %v", err)
		return nil, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPrivate))
	if err != nil {
		r.fault(n, "cannot be read: %v", err)
	}
	return text, err == nil
}
