package redis

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

// An address is what a URL says.
type address struct {
	server resp.Options
	name   string
}

var errForm = errors.New("it has the form redis://[[USER]:PASSWORD@]HOST:6379/NAME, with percent signs for characters such as / @ : # in user and password " +
	"(%2F %40 %3A %23), and may end in ?db=N, &tls=true, &ca=FILE, &cert=FILE&key=FILE; rediss:// is the same with TLS")

// parse reads a URL. Its errors never quote it: the password may be anywhere in one that is wrong.
func parse(text string) (a address, err error) {
	wrong := func(what string) (address, error) {
		return address{}, fmt.Errorf("the URL of the lock in Redis: %s: %w", what, errForm)
	}
	u, err := url.Parse(text)
	if err != nil || u.Fragment != "" || u.Opaque != "" {
		return wrong("it cannot be read")
	}
	if u.Scheme != "redis" && u.Scheme != "rediss" {
		return wrong("it does not begin with redis:// or rediss://")
	}
	if u.Hostname() == "" {
		return wrong("it names no host")
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	a.server.Address = net.JoinHostPort(u.Hostname(), port)
	a.name = strings.TrimPrefix(u.Path, "/")
	first, _, _ := strings.Cut(a.name, "/")
	if _, err := strconv.Atoi(first); err == nil {
		return wrong("the path begins with a number, which other programs take for a database; here that is ?db=N, and the path is the lock's name")
	}
	if what := badName(a.name); what != "" {
		return wrong(what)
	}
	if u.User != nil {
		a.server.User = u.User.Username()
		if a.server.Password, _ = u.User.Password(); a.server.Password == "" {
			return wrong("there is a user, or a colon, and no password")
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return wrong("what follows the ? cannot be read")
	}
	if err := options(&a.server, u.Scheme == "rediss", query); err != nil {
		return address{}, fmt.Errorf("the URL of the lock in Redis: %w", err)
	}
	return a, nil
}

// badName says what is wrong with a lock's name. Braces would say which part of a key decides where a cluster keeps it.
func badName(name string) string {
	switch {
	case name == "" || strings.HasSuffix(name, "/"):
		return "it names no lock"
	case strings.ContainsAny(name, "{}"):
		return "the lock's name has a brace in it"
	case len(name) > 1000:
		return "the lock's name is longer than 1000 bytes"
	}
	return ""
}

func options(o *resp.Options, secure bool, query url.Values) (err error) {
	for key, values := range query {
		switch {
		case len(values) > 1:
			return fmt.Errorf("%q is said twice", key)
		case key == "ca" || key == "cert" || key == "key":
			secure = true
		case key != "tls" && key != "db":
			return fmt.Errorf("%q is not known: there are db, tls, ca, cert and key", key)
		}
	}
	switch said := query.Get("tls"); {
	case said == "true":
		secure = true
	case said == "false" && secure:
		return errors.New("tls=false, and rediss:// or a certificate beside it")
	case said != "" && said != "false":
		return errors.New("tls is true or false")
	}
	if db := query.Get("db"); db != "" {
		if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 {
			return errors.New("db is the number of a database: 0 or more")
		}
	}
	if secure {
		o.TLS, err = trust.Load(query.Get("ca"), query.Get("cert"), query.Get("key"))
	}
	return err
}
