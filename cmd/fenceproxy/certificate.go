package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery is how often the files of a certificate are looked at, at most.
const lookEvery = time.Second

// A certificateFile is a certificate that follows its files. They are looked at while a client shakes hands, so that nobody has to say that they have changed,
// and nothing runs while nobody comes.
type certificateFile struct {
	files tlsFiles
	log   *slog.Logger

	current atomic.Pointer[tls.Certificate] // never nil

	looking sync.Mutex
	looked  time.Time // guarded by looking
	seen    fileStates
}

// openCertificate is an error where the pair is not good now.
func openCertificate(files tlsFiles, log *slog.Logger) (*certificateFile, error) {
	c := &certificateFile{files: files, log: log, looked: time.Now(), seen: statesOf(files)}
	pair, err := loadPair(files)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	c.current.Store(pair)
	return c, nil
}

// get is the GetCertificate of a [tls.Config]. One handshake looks at the files; those beside it go on with what there is.
func (c *certificateFile) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.looking.TryLock() {
		if now := time.Now(); now.Sub(c.looked) >= lookEvery {
			c.looked = now
			c.look(now)
		}
		c.looking.Unlock()
	}
	return c.current.Load(), nil
}

// look takes a changed pair over if it is good. What the files are is noted before they are read: a change in between is seen the next time. A pair that is not
// good, such as one that is half written, is told once and not read again before it changes.
func (c *certificateFile) look(now time.Time) {
	states := statesOf(c.files)
	if states.same(c.seen) {
		return
	}
	c.seen = states
	pair, err := loadPair(c.files)
	if err != nil {
		c.log.Warn("the changed certificate is not taken, and the one from before stays", "cause", err)
		return
	}
	c.current.Store(pair)
	c.log.Info("the certificate has changed", "names", strings.Join(pair.Leaf.DNSNames, ","), "until", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	for _, doubt := range doubtsOf(pair.Leaf, "", now) {
		c.log.Warn("a doubtful certificate", "cause", doubt)
	}
}

// fileStates is what shows that one of two files has changed; nil for one that is not there.
type fileStates [2]fs.FileInfo

func statesOf(files tlsFiles) (s fileStates) {
	for i, path := range []string{files.Cert, files.Key} {
		if info, err := os.Stat(path); err == nil { // links are followed: they are how Kubernetes changes both at once
			s[i] = info
		}
	}
	return s
}

func (s fileStates) same(other fileStates) bool {
	for i, a := range s {
		b := other[i]
		if a == nil || b == nil {
			if a != b {
				return false
			}
			continue
		}
		if !os.SameFile(a, b) || a.Size() != b.Size() || !a.ModTime().Equal(b.ModTime()) {
			return false
		}
	}
	return true
}

// loadPair reads a certificate and its key. Its errors say what is wrong with which file, and nothing of what is in them.
func loadPair(files tlsFiles) (*tls.Certificate, error) {
	cert, err := os.ReadFile(files.Cert)
	if err != nil {
		return nil, fmt.Errorf("the certificate cannot be read: %w", err)
	}
	key, err := os.ReadFile(files.Key)
	if err != nil {
		return nil, fmt.Errorf("the key cannot be read: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s are no certificate and its key: %w", files.Cert, files.Key, err)
	}
	return &pair, nil
}

// doubtsOf says what clients may find wrong with a certificate that is served all the same: an old one is better than none for those who do not look.
func doubtsOf(leaf *x509.Certificate, domain string, now time.Time) (doubts []string) {
	switch {
	case now.After(leaf.NotAfter):
		doubts = append(doubts, "the certificate has expired, at "+leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		doubts = append(doubts, "the certificate is not valid before "+leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	if !serves(leaf) {
		doubts = append(doubts, "the certificate is not made for servers")
	}
	if domain == "" {
		return doubts
	}
	for name, shown := range map[string]string{domain: domain, "bucket." + domain: "*." + domain} {
		if leaf.VerifyHostname(name) != nil {
			doubts = append(doubts, "the certificate does not have the name "+shown+", by which clients come (domain)")
		}
	}
	slices.Sort(doubts)
	return doubts
}

func serves(leaf *x509.Certificate) bool {
	return len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) == 0 ||
		slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny)
}
