package fleet

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/servers"
)

// An engine keeps the registry: a real server, or several. What fails ends the test.
type engine interface {
	addresses() []string                                   // of its servers, as they stay
	config(addresses []string, lease time.Duration) string // what a configuration says of it, to a proxy that reaches its servers there
	secret() string                                        // that nobody must read in a log
	stop()                                                 // ends all of it, as a crash does
	start()                                                // again
	unseat()                                               // takes the server away that decides, so that another one has to
	mend()                                                 // brings the servers back that unseat has taken, if that can be
}

// An engineKind makes engines.
type engineKind struct {
	name   string
	unseat string // what unseat does
	start  func(t *testing.T) engine
	spread func(t *testing.T) engine // one of several servers, that unseat works on
}

var engineKinds = []engineKind{
	{"postgres", "failover to the synchronous standby", startPostgres, startPostgresPair},
	{"etcd", "leader of three killed", func(t *testing.T) engine { return startEtcd(t, 1) }, func(t *testing.T) engine { return startEtcd(t, 3) }},
}

// postgres is one server, or a primary with its synchronous standby.
type postgres struct {
	all      []*servers.Postgres // the primary first
	primary  *servers.Postgres
	database string
}

func startPostgres(t *testing.T) engine {
	p := servers.StartPostgres(t, servers.PostgresOptions{})
	name, _ := p.Database()
	return &postgres{[]*servers.Postgres{p}, p, name}
}

func startPostgresPair(t *testing.T) engine {
	p := startPostgres(t).(*postgres)
	standby := p.primary.Standby("other")
	p.all = append(p.all, standby)
	p.primary.Execute("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'other'") // not in what the standby has copied: it will have none
	p.primary.Signal(syscall.SIGHUP)
	p.primary.WaitReplicated("other")
	return p
}

func (p *postgres) addresses() (all []string) {
	for _, s := range p.all {
		all = append(all, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)))
	}
	return all
}

func (p *postgres) config(addresses []string, lease time.Duration) string {
	user := url.UserPassword("fenceproxy", servers.PostgresPassword).String()
	c := "driver: postgres, dsn: \"postgres://" + user + "@" + strings.Join(addresses, ",") + "/" + p.database + "?sslmode=disable\", lease: " + lease.String()
	if len(p.all) > 1 {
		c += ", failover: synchronous"
	}
	return c
}

func (p *postgres) secret() string { return servers.PostgresPassword }
func (p *postgres) stop()          { p.primary.Kill() }
func (p *postgres) start()         { p.primary.Start() }

// unseat loses the primary for good: it would come back with another history.
func (p *postgres) unseat() {
	p.primary.Kill()
	i := slices.Index(p.all, p.primary)
	p.primary = p.all[1-i]
	p.primary.Promote()
}

func (p *postgres) mend() {}

// etcd is one member, or three.
type etcd struct {
	*servers.Etcd
	unseated *servers.EtcdMember // nil: none
}

func startEtcd(t *testing.T, members int) engine {
	return &etcd{Etcd: servers.StartEtcd(t, servers.EtcdOptions{Members: members})}
}

func (e *etcd) addresses() (all []string) {
	for _, endpoint := range e.Endpoints() {
		all = append(all, strings.TrimPrefix(endpoint, "http://"))
	}
	return all
}

func (e *etcd) config(addresses []string, lease time.Duration) string {
	var endpoints []string
	for _, a := range addresses {
		endpoints = append(endpoints, strconv.Quote("http://"+a))
	}
	return fmt.Sprintf("driver: etcd, endpoints: [%s], lease: %v", strings.Join(endpoints, ", "), lease)
}

func (e *etcd) secret() string { return "" }

func (e *etcd) stop() {
	for _, m := range e.Members {
		m.Kill()
	}
	e.unseated = nil
}

func (e *etcd) start() {
	for _, m := range e.Members {
		m.Start()
	}
	e.WaitReady()
}

func (e *etcd) unseat() {
	e.unseated = e.Leader()
	e.unseated.Kill()
	e.WaitReady()
}

func (e *etcd) mend() {
	if e.unseated != nil {
		e.unseated.Start()
	}
	e.unseated = nil
}
