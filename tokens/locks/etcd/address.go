package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/trust"
)

// An address is what a URL says.
type address struct {
	endpoints      []string
	user, password string
	name           string
	tls            *tls.Config // nil: without
}

var errForm = errors.New("it has the form etcd://[USER:PASSWORD@]HOST:2379[,HOST:2379]/NAME, with percent signs for characters such as / @ : # in user " +
	"and password (%2F %40 %3A %23), and may end in ?tls=true, &ca=FILE, &cert=FILE&key=FILE")

// parse reads a URL. Its errors never quote it: the password may be anywhere in one that is wrong.
func parse(text string) (a address, err error) {
	wrong := func(what string) (address, error) {
		return address{}, fmt.Errorf("the URL of the lock in etcd: %s: %w", what, errForm)
	}
	rest, ok := strings.CutPrefix(text, "etcd://")
	if !ok {
		return wrong("it does not begin with etcd://")
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		return wrong("it names no lock")
	}
	// net/url knows one host alone.
	hosts := rest[strings.LastIndex(rest[:end], "@")+1 : end]
	u, err := url.Parse("etcd://" + rest[:end-len(hosts)] + "host" + rest[end:])
	if err != nil || u.Fragment != "" {
		return wrong("it cannot be read")
	}
	a.name = strings.TrimPrefix(u.Path, "/")
	if a.name == "" || strings.HasSuffix(a.name, "/") {
		return wrong("it names no lock")
	}
	if u.User != nil {
		a.user = u.User.Username()
		if a.password, ok = u.User.Password(); !ok || a.user == "" || a.password == "" {
			return wrong("user and password go together, and one is missing")
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return wrong("what follows the ? cannot be read")
	}
	if a.tls, err = parseTLS(query); err != nil {
		return address{}, fmt.Errorf("the URL of the lock in etcd: %w", err)
	}
	for host := range strings.SplitSeq(hosts, ",") {
		endpoint, err := parseHost(host, a.tls != nil)
		if err != nil {
			return wrong(err.Error())
		}
		a.endpoints = append(a.endpoints, endpoint)
	}
	return a, nil
}

func parseHost(text string, secure bool) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), "2379"
	}
	number, err := strconv.Atoi(port)
	if err != nil || number < 1 || number > 65535 || host == "" || strings.ContainsAny(host, "/%[] ") {
		return "", errors.New("a host of it is none")
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

// parseTLS is nil where nothing of TLS is said.
func parseTLS(query url.Values) (*tls.Config, error) {
	secure := false
	for key, values := range query {
		switch {
		case len(values) > 1:
			return nil, fmt.Errorf("%q is said twice", key)
		case key == "ca" || key == "cert" || key == "key":
			secure = true
		case key != "tls":
			return nil, fmt.Errorf("%q is not known: there are tls, ca, cert and key", key)
		}
	}
	switch said := query.Get("tls"); {
	case said == "true":
		secure = true
	case said == "false" && secure:
		return nil, errors.New("tls=false, and a certificate beside it")
	case said != "" && said != "false":
		return nil, errors.New("tls is true or false")
	}
	if !secure {
		return nil, nil
	}
	return trust.Load(query.Get("ca"), query.Get("cert"), query.Get("key"))
}
