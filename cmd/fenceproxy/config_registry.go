package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.yaml.in/yaml/v3"
)

// The drivers of the registry.
const (
	sqliteDriver   = "sqlite"
	postgresDriver = "postgres"
	etcdDriver     = "etcd"
)

// A registryConfig says what remembers the tokens. What another driver needs is empty.
type registryConfig struct {
	Driver string // sqlite, postgres or etcd
	ID     string // that a shared registry must have; "" for any
	Lease  time.Duration

	DSN      secret // of PostgreSQL, with the password in it
	Failover bool   // of PostgreSQL: acknowledged commits survive one

	Endpoints []string // of etcd, as URLs
	Prefix    string   // of its keys; begins and ends with a slash
	TLS       etcdTLS
	Username  string
	Password  secret
}

// An etcdTLS names PEM files: the issuers of etcd's certificate, and what this proxy shows of itself.
type etcdTLS struct {
	CA, Cert, Key string
}

// shared says that several proxies use the registry.
func (c registryConfig) shared() bool { return c.Driver != sqliteDriver }

const (
	defaultLease  = 10 * time.Second
	defaultPrefix = "/fenceproxy/"
	defaultDrain  = 5 * time.Second // of a proxy that has others beside it

	minLease, maxLease = time.Second, 5 * time.Minute
)

var (
	registryKeys = []configKey[registryConfig]{
		{"driver", readDriver},
	}
	sharedRegistryKeys = append(slices.Clone(registryKeys),
		configKey[registryConfig]{"lease", func(r *configReader, n *yaml.Node, c *registryConfig) { r.duration(n, minLease, maxLease, &c.Lease) }},
		configKey[registryConfig]{"id", readRegistryID},
	)
	postgresKeys = append(slices.Clone(sharedRegistryKeys),
		configKey[registryConfig]{"dsn", readDSN},
		configKey[registryConfig]{"failover", func(r *configReader, n *yaml.Node, c *registryConfig) {
			s := "none"
			r.oneOf(n, &s, "none", "synchronous")
			c.Failover = s == "synchronous"
		}},
	)
	etcdKeys = append(slices.Clone(sharedRegistryKeys),
		configKey[registryConfig]{"endpoints", readEndpoints},
		configKey[registryConfig]{"prefix", readPrefix},
		configKey[registryConfig]{"tls", readEtcdTLS},
		configKey[registryConfig]{"username", func(r *configReader, n *yaml.Node, c *registryConfig) { r.text(n, &c.Username) }},
		configKey[registryConfig]{"password", func(r *configReader, n *yaml.Node, c *registryConfig) { r.text(n, (*string)(&c.Password)) }},
	)
	etcdTLSKeys = []configKey[etcdTLS]{
		{"ca", func(r *configReader, n *yaml.Node, t *etcdTLS) { r.file(n, &t.CA) }},
		{"cert", func(r *configReader, n *yaml.Node, t *etcdTLS) { r.file(n, &t.Cert) }},
		{"key", func(r *configReader, n *yaml.Node, t *etcdTLS) { r.file(n, &t.Key) }},
	}
	keysOfDrivers = map[string][]configKey[registryConfig]{sqliteDriver: registryKeys, postgresDriver: postgresKeys, etcdDriver: etcdKeys}
)

// readRegistry reads the keys that the driver has. One of another driver is told to be that.
func readRegistry(r *configReader, n *yaml.Node, d *configDraft) {
	driver := sqliteDriver
	if named := yamlValueOf(n, "driver"); named != nil && keysOfDrivers[named.Value] != nil {
		driver = named.Value
	}
	keys := slices.Clone(keysOfDrivers[driver])
	for _, other := range []string{postgresDriver, etcdDriver} {
		for _, key := range keysOfDrivers[other] {
			if !slices.ContainsFunc(keys, func(k configKey[registryConfig]) bool { return k.name == key.name }) {
				keys = append(keys, configKey[registryConfig]{key.name, func(r *configReader, n *yaml.Node, _ *registryConfig) {
					r.fault(n, "belongs to driver: %s, and this one is %s; take it out, or name the other driver", driversWith(key.name), driver)
				}})
			}
		}
	}
	d.registry = readMapping(r, n, keys, &d.Registry)
	if d.registry == nil {
		return
	}
	needed := map[string]string{postgresDriver: "dsn", etcdDriver: "endpoints"}[driver]
	if needed != "" && d.registry[needed] == nil {
		example := map[string]string{"dsn": `dsn: "${FENCEPROXY_DSN}"`, "endpoints": "endpoints: [https://etcd-1:2379, https://etcd-2:2379]"}[needed]
		r.fault(n, "driver: %s needs %s; write %s", driver, needed, example)
	}
	if driver == etcdDriver {
		d.checkEtcd(r)
	}
}

// driversWith names the drivers that have a key.
func driversWith(key string) string {
	var drivers []string
	for _, driver := range []string{postgresDriver, etcdDriver} {
		if slices.ContainsFunc(keysOfDrivers[driver], func(k configKey[registryConfig]) bool { return k.name == key }) {
			drivers = append(drivers, driver)
		}
	}
	return strings.Join(drivers, " or ")
}

func readDriver(r *configReader, n *yaml.Node, c *registryConfig) {
	r.oneOf(n, &c.Driver, sqliteDriver, postgresDriver, etcdDriver)
	if c.shared() {
		c.Lease = cmp.Or(c.Lease, defaultLease)
	}
	if c.Driver == etcdDriver {
		c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	}
}

var registryIDPattern = regexp.MustCompile(`^[A-Z2-7]{26,40}$`)

func readRegistryID(r *configReader, n *yaml.Node, c *registryConfig) {
	s, ok := r.scalar(n)
	switch {
	case !ok:
	case !registryIDPattern.MatchString(s):
		r.fault(n, "%q is not the id of a token registry; the log of the first start names it, with 26 to 40 characters, A to Z and 2 to 7", s)
	default:
		c.ID = s
	}
}

// readDSN reads how PostgreSQL is reached. Why it cannot be read is not told in the words of who reads it: a part of the password may be in them.
func readDSN(r *configReader, n *yaml.Node, c *registryConfig) {
	s, ok := r.scalar(n)
	if !ok {
		return
	}
	parsed, err := pgxpool.ParseConfig(s)
	// A password with @ or / in it that are not escaped ends up in what would be printed as host or database.
	if s == "" || err != nil || strings.Contains(parsed.ConnConfig.Host+parsed.ConnConfig.Database, "@") {
		r.fault(n, "is no connection string of PostgreSQL, or names a file that cannot be read; write postgres://USER:PASSWORD@HOST:5432/DATABASE?sslmode=verify-full, "+
			"where / : @ and %% in a password are written %%2F %%3A %%40 and %%25")
		return
	}
	c.DSN = secret(s)
	hosts := []hostTLS{{parsed.ConnConfig.Host, parsed.ConnConfig.TLSConfig}}
	for _, f := range parsed.ConnConfig.Fallbacks {
		hosts = append(hosts, hostTLS{f.Host, f.TLSConfig})
	}
	for _, h := range hosts {
		if h.open() {
			r.warn(n, "the connection to %s can be read and changed on the way, and marks with it: write sslmode=verify-full", h.host)
			return
		}
	}
}

// A hostTLS is a host and how its connections are kept from others.
type hostTLS struct {
	host   string
	config *tls.Config
}

// open says that others than the host may be on the line.
func (h hostTLS) open() bool {
	if strings.HasPrefix(h.host, "/") || isLoopbackName(h.host) {
		return false
	}
	return h.config == nil || h.config.InsecureSkipVerify && h.config.VerifyPeerCertificate == nil && h.config.VerifyConnection == nil
}

func isLoopbackName(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// place is where the registry is, for people and without secrets.
func (c registryConfig) place() string {
	switch c.Driver {
	case postgresDriver:
		parsed, err := pgxpool.ParseConfig(string(c.DSN))
		if err != nil {
			return "PostgreSQL"
		}
		var hosts []string
		for _, h := range append([]hostPort{{parsed.ConnConfig.Host, parsed.ConnConfig.Port}}, fallbackHosts(parsed)...) {
			if s := h.String(); !slices.Contains(hosts, s) {
				hosts = append(hosts, s)
			}
		}
		return fmt.Sprintf("PostgreSQL at %s, database %s", strings.Join(hosts, ", "), parsed.ConnConfig.Database)
	case etcdDriver:
		return fmt.Sprintf("etcd at %s, below %s", strings.Join(c.Endpoints, ", "), c.Prefix)
	}
	return "SQLite in the data directory"
}

type hostPort struct {
	host string
	port uint16
}

func (h hostPort) String() string {
	if strings.HasPrefix(h.host, "/") {
		return h.host
	}
	return net.JoinHostPort(h.host, fmt.Sprint(h.port))
}

func fallbackHosts(c *pgxpool.Config) (hosts []hostPort) {
	for _, f := range c.ConnConfig.Fallbacks {
		hosts = append(hosts, hostPort{f.Host, f.Port})
	}
	return hosts
}

func readEndpoints(r *configReader, n *yaml.Node, c *registryConfig) {
	items := r.list(n)
	if len(items) == 0 && !r.bad[n] {
		r.fault(n, "is empty; write where etcd is, such as [https://etcd-1:2379, https://etcd-2:2379]")
	}
	for _, item := range items {
		s, ok := r.scalar(item)
		if !ok {
			continue
		}
		u, err := url.Parse(s)
		switch {
		case err != nil || u.User != nil: // a password may be in it
			r.fault(item, "one of them must be a URL without user and password, such as https://etcd-1:2379; those have keys of their own, username and password")
		case (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
			r.fault(item, "%q must be http:// or https://, a host and a port, such as https://etcd-1:2379", s)
		case len(c.Endpoints) > 0 && !strings.HasPrefix(c.Endpoints[0], u.Scheme+"://"):
			r.fault(item, "%q and %q: all of them must be https://, or all http://", c.Endpoints[0], s)
		default:
			c.Endpoints = append(c.Endpoints, strings.TrimRight(s, "/"))
		}
	}
}

func readPrefix(r *configReader, n *yaml.Node, c *registryConfig) {
	s, ok := r.scalar(n)
	switch {
	case !ok:
	case len(s) < 2 || len(s) > 256 || !strings.HasPrefix(s, "/") || !strings.HasSuffix(s, "/") || strings.ContainsRune(s, 0):
		r.fault(n, "%q must begin and end with a slash, such as %s", s, defaultPrefix)
	default:
		c.Prefix = s
	}
}

func readEtcdTLS(r *configReader, n *yaml.Node, c *registryConfig) {
	values := readMapping(r, n, etcdTLSKeys, &c.TLS)
	if values == nil {
		return
	}
	if (values["cert"] == nil) != (values["key"] == nil) {
		r.fault(n, "cert and key go together; write both or none")
		return
	}
	if key := values["key"]; key != nil && !r.bad[key] {
		r.private(key, c.TLS.Key)
	}
	if r.bad[n] || r.bad[values["ca"]] || r.bad[values["cert"]] || r.bad[values["key"]] {
		return
	}
	if _, err := c.TLS.load(); err != nil {
		r.fault(n, "%v", err)
	}
}

// load reads the files. The system's issuers are trusted where no ca is named.
func (t etcdTLS) load() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("ca cannot be read: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca: %s has no certificate in PEM form", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// checkEtcd checks what one of etcd's keys alone does not show.
func (d *configDraft) checkEtcd(r *configReader) {
	values, c := d.registry, &d.Registry
	plain := len(c.Endpoints) > 0 && strings.HasPrefix(c.Endpoints[0], "http://")
	if plain && values["tls"] != nil && !r.bad[values["tls"]] {
		r.fault(values["tls"], "is for https:// endpoints, and these are http://")
	}
	user, password := values["username"], values["password"]
	switch {
	case (user == nil) != (password == nil):
		r.fault(cmp.Or(user, password), "username and password go together; write both or none")
	case user != nil && (c.Username == "" || c.Password == "") && !r.bad[user] && !r.bad[password]:
		r.fault(user, "username and password must not be empty")
	}
	if !plain || r.bad[values["endpoints"]] {
		return
	}
	for _, e := range c.Endpoints {
		if u, err := url.Parse(e); err == nil && !isLoopbackName(u.Hostname()) {
			r.warn(values["endpoints"], "the connection to %s can be read and changed on the way, and marks with it: write https://", u.Host)
			return
		}
	}
}

// finishRegistry refuses directories under a registry that several proxies share: each proxy would have its own.
func (d *configDraft) finishRegistry(r *configReader) {
	if d.values["drain"] == nil && d.Registry.shared() {
		d.Drain = defaultDrain
	}
	if !d.Registry.shared() {
		return
	}
	const why = "is a directory, which belongs to one process: each of the proxies that share a registry would have one of its own, with other objects under the same fence; " +
		"write a store that all of them reach (type: s3), or registry: {driver: sqlite}"
	if d.values["backends"] == nil {
		r.fault(d.values["registry"], "driver: %s: the default backend %s", d.Registry.Driver, why)
		return
	}
	for _, b := range d.backends {
		if b.Type == "file" {
			r.fault(b.node, "backend %s %s", b.Name, why)
		}
	}
}
