// Package node has what the locks that are kept in Redis servers have in common: how a URL names the servers and the lock, what a lock's value
// says, what a server's errors mean, and what could make it forget.
package node

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/internal/resp"
	"github.com/fenceproxy/fenceproxy/internal/trust"
)

// Parse reads the URL of a lock that is kept in servers, all of which have the same user, password and options:
//
//	scheme://[[user]:password@]host[:6379][,host…]/name[?db=N][&tls=true][&ca=FILE][&cert=FILE&key=FILE]
//
// secure says that the scheme means TLS. The errors never quote it: the password may be anywhere in one that is wrong.
func Parse(text, scheme string, secure bool) (servers []resp.Options, name string, err error) {
	form := fmt.Errorf("it has the form %s://[[USER]:PASSWORD@]HOST:6379/NAME, with percent signs for characters such as / @ : # in user and password "+
		"(%%2F %%40 %%3A %%23), and may end in ?db=N, &tls=true, &ca=FILE, &cert=FILE&key=FILE", scheme)
	rest, ok := strings.CutPrefix(text, scheme+"://")
	if !ok {
		return nil, "", fmt.Errorf("it does not begin with %s://: %w", scheme, form)
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		return nil, "", fmt.Errorf("it names no lock: %w", form)
	}
	// net/url knows one host alone.
	hosts := rest[strings.LastIndex(rest[:end], "@")+1 : end]
	u, err := url.Parse(scheme + "://" + rest[:end-len(hosts)] + "host" + rest[end:])
	if err != nil || u.Fragment != "" {
		return nil, "", fmt.Errorf("it cannot be read: %w", form)
	}
	common, err := parseOptions(u, secure)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", err, form)
	}
	name = strings.TrimPrefix(u.Path, "/")
	if err := checkName(name); err != nil {
		return nil, "", fmt.Errorf("%w: %w", err, form)
	}
	for host := range strings.SplitSeq(hosts, ",") {
		one := common
		if one.Address, ok = address(host); !ok {
			return nil, "", fmt.Errorf("a host of it is none: %w", form)
		}
		servers = append(servers, one)
	}
	return servers, name, nil
}

func address(text string) (string, bool) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), "6379"
	}
	number, err := strconv.Atoi(port)
	if err != nil || number < 1 || number > 65535 || host == "" || strings.ContainsAny(host, "/%[] ") {
		return "", false
	}
	return net.JoinHostPort(host, port), true
}

// checkName says what is wrong with a lock's name. Braces would say which part of a key decides where a cluster keeps it.
func checkName(name string) error {
	first, _, _ := strings.Cut(name, "/")
	if _, err := strconv.Atoi(first); err == nil {
		return errors.New("the path begins with a number, which other programs take for a database; here that is ?db=N, and the path is the lock's name")
	}
	switch {
	case name == "" || strings.HasSuffix(name, "/"):
		return errors.New("it names no lock")
	case strings.ContainsAny(name, "{}"):
		return errors.New("the lock's name has a brace in it")
	case len(name) > 1000:
		return errors.New("the lock's name is longer than 1000 bytes")
	}
	return nil
}

func parseOptions(u *url.URL, secure bool) (o resp.Options, err error) {
	if u.User != nil {
		o.User = u.User.Username()
		if o.Password, _ = u.User.Password(); o.Password == "" {
			return o, errors.New("there is a user, or a colon, and no password")
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return o, errors.New("what follows the ? cannot be read")
	}
	for key, values := range query {
		switch {
		case len(values) > 1:
			return o, fmt.Errorf("%q is said twice", key)
		case key == "ca" || key == "cert" || key == "key":
			secure = true
		case key != "tls" && key != "db":
			return o, fmt.Errorf("%q is not known: there are db, tls, ca, cert and key", key)
		}
	}
	switch said := query.Get("tls"); {
	case said == "true":
		secure = true
	case said == "false" && secure:
		return o, errors.New("tls=false, and a scheme or a certificate beside it that means TLS")
	case said != "" && said != "false":
		return o, errors.New("tls is true or false")
	}
	if db := query.Get("db"); db != "" {
		if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 {
			return o, errors.New("db is the number of a database: 0 or more")
		}
	}
	if secure {
		o.TLS, err = trust.Load(query.Get("ca"), query.Get("cert"), query.Get("key"))
	}
	return o, err
}
