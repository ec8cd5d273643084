// Package consul takes locks of Consul's key-value store, and hands their holders fencing tokens. A lock is a key that is acquired by a
// session, as Consul's own clients do it, with the flags by which those know a lock: they and this package exclude each other. (The key of
// `consul lock NAME` is NAME/.lock.)
//
// # The token
//
// The token is the key's ModifyIndex, read after it was acquired, by a consistent read that shows our session on it. Consul numbers every
// write with the index of its entry in the Raft log. The acquisition is such a write, and so is what ends it: a release, or the end of the
// session. What a read returns while the key is ours is therefore at least the index of our acquisition, and below that of the end of our
// hold; and the next acquisition is behind that end. So the tokens of two holds are never equal and grow from holder to holder, even where
// somebody, as anybody may, has written to the key in between.
//
// What must not be used instead: LockIndex, which counts acquisitions. It begins anew when the key is deleted, and `consul lock` deletes its
// key when it ends. Consul's answer to the acquisition is no token either: it is true or false.
//
// # What keeps a hold
//
// Each hold is a session of its own, with the TTL of the hold and without health checks: with them Consul would let the lock go when it thinks
// the agent's machine gone, long before the TTL. Its lock delay is zero. (Consul keeps a lock from everybody for 15 s by default after its
// holder's session was ended, so that late writes of that holder may pass by. It is a guess; the fence knows.) Consul ends a session between
// one and two TTLs after it was last renewed, and takes no TTL below 10 s unless its session_ttl_min says so.
//
// A renewal renews the session, and then reads the key consistently, which a leader answers only after a majority has confirmed that it
// still leads. As a session is used for one acquisition only, a key that shows it has been ours throughout.
//
// # What takes tokens back
//
// A new cluster begins its indexes anew; one that was restored from a snapshot goes on behind the snapshot's. There is nothing by which a
// client could tell.
package consul

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/trust"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// A lock is a key in a Consul.
type lock struct {
	base  url.URL // scheme and host of the agent
	key   string
	token string // of Consul's ACL, "" for none
	http  *http.Client
}

// Open returns the lock that a URL names, and does not connect yet:
//
//	consul://[:token@]host[:port]/key[?tls=true&ca=FILE&cert=FILE&key=FILE]
//
// The port is 8500, or 8501 with TLS. Where the URL has no ACL token, it is taken from CONSUL_HTTP_TOKEN. It has to allow session:write on
// the agent's node, and key:write on the key.
func Open(rawURL string) (locks.Service, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("the URL of a Consul lock cannot be read; it is consul://host:8500/key") // its text may have a token
	}
	l, err := parse(u)
	if err != nil {
		if _, hidden := u.User.Password(); u.User != nil && !hidden {
			u.User = url.User("xxxxx") // a token at the wrong side of the colon
		}
		return nil, fmt.Errorf("the lock %s: %w", u.Redacted(), err)
	}
	return l, nil
}

func parse(u *url.URL) (*lock, error) {
	l := &lock{base: url.URL{Scheme: "http"}, key: strings.TrimPrefix(u.Path, "/"), token: os.Getenv("CONSUL_HTTP_TOKEN")}
	if u.Scheme != "consul" || u.Fragment != "" || u.Hostname() == "" {
		return nil, errors.New("the URL of a Consul lock is consul://host:8500/key")
	}
	for part := range strings.SplitSeq(l.key, "/") {
		if part == "" || part == "." || part == ".." {
			return nil, errors.New("behind the host must stand the key, as /locks/compactor, without a slash at its end")
		}
	}
	if u.User != nil {
		token, ok := u.User.Password()
		if !ok || token == "" || u.User.Username() != "" {
			return nil, errors.New("a token of Consul is given as :token@, behind a colon, or in CONSUL_HTTP_TOKEN")
		}
		l.token = token
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     time.Minute,
	}
	port, q := "8500", u.Query()
	for name := range q {
		switch name {
		case "tls", "ca", "cert", "key":
		default:
			return nil, fmt.Errorf("?%s= is not known: there are tls, ca, cert and key", name)
		}
	}
	if q.Get("tls") == "true" {
		c, err := trust.Load(q.Get("ca"), q.Get("cert"), q.Get("key"))
		if err != nil {
			return nil, err
		}
		port, l.base.Scheme, transport.TLSClientConfig = "8501", "https", c
	} else if len(q) > 0 {
		return nil, errors.New("ca, cert and key are for TLS: say tls=true")
	}
	if u.Port() != "" {
		port = u.Port()
	}
	l.base.Host = net.JoinHostPort(u.Hostname(), port)
	l.http = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it would take the token along
	}
	return l, nil
}

// Close lets go of the connections.
func (l *lock) Close() error {
	l.http.CloseIdleConnections()
	return nil
}

// Check tells of a Consul that keeps its indexes in one place only.
func (l *lock) Check(ctx context.Context) ([]string, error) {
	var peers []string
	if err := l.call(ctx, http.MethodGet, "/v1/status/peers", nil, nil, &peers); err != nil {
		return nil, fmt.Errorf("the lock %s: %w", l.key, err)
	}
	if len(peers) > 1 {
		return nil, nil
	}
	return []string{"Consul runs on one server here: when that loses its data, or is a -dev agent and ends, its indexes begin anew and tokens come again; run three."}, nil
}
