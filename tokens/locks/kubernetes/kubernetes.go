// Package kubernetes takes locks that are Lease objects (coordination.k8s.io/v1) of a Kubernetes cluster, and hands their holders fencing
// tokens. It keeps to what client-go's leader election does with a Lease: its holders and ours exclude each other.
//
// # The token
//
// The token is spec.leaseTransitions plus one (the first holder of a Lease finds 0 there), from the answer to the write that put our name into
// holderIdentity. Every write names the resourceVersion that it was made for, and the API server refuses it when the Lease has changed since:
// so of all who want to be the next holder one succeeds, and writes a number that is one higher than that of the holder before.
//
// client-go does not count when a holder finds its own name in a Lease: a process that comes back under the name it had before (a pod of a
// StatefulSet, a node) has the number of its earlier life, whose late writes cannot be told from its own. The name that is written here is the
// holder's with a random part behind, another one for each acquisition, so that every one counts.
//
// # What keeps a hold
//
// Whoever wants the lock watches, by its own clock, whether the Lease changes within its leaseDurationSeconds, and takes it when it does not.
// Times in the Lease are for people; clocks of different machines are never compared. A waiter that comes late waits a whole duration.
// A duration has whole seconds: a TTL is rounded up.
//
// # What takes tokens back
//
// A Lease that is deleted takes the count along: the next one begins at 1 again. So do not delete it, and leave it out of what is pruned; a
// cluster that was restored from a backup of etcd goes on behind the backup's count. There is nothing by which a client could tell.
package kubernetes

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/trust"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// Where a pod finds its service account: Kubernetes, "Accessing the Kubernetes API from a Pod".
const (
	podToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	podCA    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

// A lock is a Lease of a cluster.
type lock struct {
	server    url.URL // scheme and host of the API server
	namespace string
	name      string
	tokenFile string // "" for no token; it is read for each request, for Kubernetes replaces it every hour
	http      *http.Client
}

// Open returns the lock that a URL names, and does not connect yet:
//
//	kubernetes://namespace/lease[?server=URL&ca=FILE&token-file=FILE&cert=FILE&key=FILE]
//
// In a pod, everything behind the question mark is known: its service account has to be allowed to get, create and update leases of the
// namespace. Elsewhere server is the API server's URL, or that of `kubectl proxy`. The Lease is made where it is missing.
func Open(rawURL string) (locks.Service, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("the URL of a Kubernetes lock cannot be read; it is kubernetes://namespace/lease")
	}
	l, err := parse(u)
	if err != nil {
		return nil, fmt.Errorf("the lock %s: %w", u.Redacted(), err)
	}
	return l, nil
}

// dns is what names of namespaces and Leases are made of (RFC 1123).
var dns = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)

func parse(u *url.URL) (*lock, error) {
	l := &lock{namespace: u.Host}
	if len(u.Path) > 0 {
		l.name = u.Path[1:]
	}
	if u.Scheme != "kubernetes" || u.Fragment != "" || u.User != nil || !dns.MatchString(l.namespace) || !dns.MatchString(l.name) {
		return nil, errors.New("the URL of a Kubernetes lock is kubernetes://namespace/lease; both names are of lower-case letters, digits and -")
	}
	q := u.Query()
	for name := range q {
		switch name {
		case "server", "ca", "token-file", "cert", "key":
		default:
			return nil, fmt.Errorf("?%s= is not known: there are server, ca, token-file, cert and key", name)
		}
	}
	ca := q.Get("ca")
	l.tokenFile = q.Get("token-file")
	if q.Get("server") == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("this is no pod of Kubernetes (KUBERNETES_SERVICE_HOST is not set): say ?server=http://127.0.0.1:8001 for a kubectl proxy, " +
				"or ?server=https://…&ca=FILE&token-file=FILE")
		}
		l.server = url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}
		if ca == "" {
			ca = podCA
		}
		if l.tokenFile == "" && q.Get("cert") == "" {
			l.tokenFile = podToken
		}
	} else {
		server, err := url.Parse(q.Get("server"))
		if err != nil || server.Host == "" || server.User != nil || server.Scheme != "http" && server.Scheme != "https" || server.Path != "" && server.Path != "/" {
			return nil, errors.New("server must be a URL as https://10.0.0.1:6443")
		}
		l.server = url.URL{Scheme: server.Scheme, Host: server.Host}
	}
	var c *tls.Config
	if l.server.Scheme == "https" {
		var err error
		if c, err = trust.Load(ca, q.Get("cert"), q.Get("key")); err != nil {
			return nil, err
		}
	}
	l.http = &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second,
			TLSClientConfig:     c,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 4,
			IdleConnTimeout:     time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it would take the token along
	}
	return l, nil
}

func (l *lock) String() string { return l.namespace + "/" + l.name }

// Close lets go of the connections.
func (l *lock) Close() error {
	l.http.CloseIdleConnections()
	return nil
}
