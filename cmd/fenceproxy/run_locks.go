package main

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/fenceproxy/fenceproxy/tokens/locks"
	"github.com/fenceproxy/fenceproxy/tokens/locks/consul"
	"github.com/fenceproxy/fenceproxy/tokens/locks/etcd"
	fencelock "github.com/fenceproxy/fenceproxy/tokens/locks/fence"
	"github.com/fenceproxy/fenceproxy/tokens/locks/kubernetes"
	postgreslock "github.com/fenceproxy/fenceproxy/tokens/locks/postgres"
	"github.com/fenceproxy/fenceproxy/tokens/locks/redis"
	"github.com/fenceproxy/fenceproxy/tokens/locks/redlock"
	"github.com/fenceproxy/fenceproxy/tokens/locks/zookeeper"
)

// A lockForm is a kind of lock that run knows.
type lockForm struct {
	scheme string
	form   string
	token  string // what its token is
	open   func(url string) (locks.Service, error)
}

var lockKinds = []lockForm{
	{"fence", "fence://HOST:9000/BUCKET/KEY", "issued by the proxy itself, above all it has seen", opens(fencelock.Open)},
	{"etcd", "etcd://HOST:2379[,…]/NAME", "a revision of the cluster, as etcdctl lock has it", opens(etcd.Open)},
	{"consul", "consul://HOST:8500/NAME", "the ModifyIndex at which the lock was taken", opens(consul.Open)},
	{"kubernetes", "kubernetes://NAMESPACE/LEASE", "the transitions of the Lease", opens(kubernetes.Open)},
	{"postgres", "postgres://HOST:5432/DATABASE/NAME", "an epoch, committed before it is used", opens(postgreslock.Open)},
	{"redis", "redis://HOST:6379/NAME", "a counter, raised in the script that takes the lock", opens(redis.Open)},
	{"rediss", "rediss://HOST:6379/NAME", "the same over TLS", opens(redis.Open)},
	{"redlock", "redlock://HOST:6379,HOST:6379,…/NAME", "counters that a majority has raised", opens(redlock.Open)},
	{"zookeeper", "zookeeper://HOST:2181[,…]/PATH", "the czxid of the holder's node", opens(zookeeper.Open)},
}

// opens makes a driver's Open return what all drivers return.
func opens[S locks.Service](open func(string) (S, error)) func(string) (locks.Service, error) {
	return func(text string) (locks.Service, error) {
		s, err := open(text)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
}

// lockForms lists them for the help.
func lockForms() string {
	var b strings.Builder
	for _, k := range lockKinds {
		fmt.Fprintf(&b, "  %-42s %s\n", k.form, k.token)
	}
	return b.String()
}

// errLockURL quotes nothing: a password may be anywhere in what cannot be read.
var errLockURL = errors.New("it cannot be read as a URL; in a user and a password, write %2F for /, %3F for ?, %23 for #, %40 for @, %3A for : and %25 for %")

// openLock opens the lock of a URL, and returns its URL without a password.
func openLock(text string) (s locks.Service, shown string, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Fragment != "" {
		return nil, "", errLockURL
	}
	i := slices.IndexFunc(lockKinds, func(k lockForm) bool { return k.scheme == u.Scheme })
	if i < 0 {
		var known []string
		for _, k := range lockKinds {
			known = append(known, k.scheme+"://")
		}
		return nil, "", fmt.Errorf("%q is the URL of no lock that is known here: it begins with %s", withoutPassword(u), strings.Join(known, ", "))
	}
	s, err = lockKinds[i].open(text)
	return s, withoutPassword(u), err
}

// passwords stand in the query, too, where PostgreSQL's client library reads them: password, sslpassword.
var passwords = regexp.MustCompile(`(password=)[^&]*`)

func withoutPassword(u *url.URL) string { return passwords.ReplaceAllString(u.Redacted(), "${1}xxxxx") }
