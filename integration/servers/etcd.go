package servers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// EtcdPassword is that of the user root after [Etcd.RequirePassword], and of fenceproxy.
const EtcdPassword = "se/cr@et:%"

// EtcdOptions are what StartEtcd is told.
type EtcdOptions struct {
	Members  int    // 1 if 0
	TLS      bool   // to clients; see Etcd.Trust
	Snapshot string // the file that the members begin from, as Etcd.Snapshot has made it
	Token    string // of the cluster, "test" if empty; with the same one, and the same ports, a restored cluster has the id of the one before
	Ports    []int  // for clients and peers, in turn; free ones if nil
}

// Etcd is a cluster that belongs to one test.
type Etcd struct {
	Members []*EtcdMember
	Trust   *tls.Config // what a client needs; nil without TLS

	t       testing.TB
	options EtcdOptions
	dir     string
	cert    string
	key     string
	user    string // nobody is asked for a password if empty
}

// An EtcdMember is one process of it.
type EtcdMember struct {
	Endpoint string

	cluster *Etcd
	name    string
	peer    string
	dir     string
	log     string
	process
}

// StartEtcd makes a cluster and starts it. The test is skipped where there is no etcd on the machine.
func StartEtcd(t testing.TB, o EtcdOptions) *Etcd {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		skip(t, "there is no etcd here: install etcd-server")
	}
	o.Members = max(o.Members, 1)
	if o.Token == "" {
		o.Token = "test"
	}
	e := &Etcd{t: t, options: o, dir: t.TempDir()}
	if o.TLS {
		e.certify()
	}
	for len(o.Ports) < 2*o.Members {
		o.Ports = append(o.Ports, freePort(t))
	}
	e.options.Ports = o.Ports
	for i := range o.Members {
		m := &EtcdMember{
			process: process{t: t}, cluster: e, name: fmt.Sprintf("m%d", i), dir: filepath.Join(e.dir, fmt.Sprintf("m%d", i)), log: filepath.Join(e.dir, fmt.Sprintf("m%d.log", i)),
			Endpoint: fmt.Sprintf("%s://127.0.0.1:%d", e.scheme(), o.Ports[2*i]), peer: fmt.Sprintf("http://127.0.0.1:%d", o.Ports[2*i+1]),
		}
		e.Members = append(e.Members, m)
	}
	t.Cleanup(func() {
		for _, m := range e.Members {
			m.Kill()
			if t.Failed() {
				t.Logf("the log of etcd's member %s: %s", m.name, tail(m.log))
			}
		}
	})
	for _, m := range e.Members {
		if o.Snapshot != "" {
			m.restore(o.Snapshot)
		}
		m.launch()
	}
	e.WaitReady()
	return e
}

func (e *Etcd) scheme() string {
	if e.options.TLS {
		return "https"
	}
	return "http"
}

// Endpoints are those of all members.
func (e *Etcd) Endpoints() (all []string) {
	for _, m := range e.Members {
		all = append(all, m.Endpoint)
	}
	return all
}

func (e *Etcd) initial() string {
	var all []string
	for _, m := range e.Members {
		all = append(all, m.name+"="+m.peer)
	}
	return strings.Join(all, ",")
}

// Client is one with every right. It ends with the test.
func (e *Etcd) Client(endpoints ...string) *clientv3.Client {
	e.t.Helper()
	if len(endpoints) == 0 {
		endpoints = e.Endpoints()
	}
	c := clientv3.Config{Endpoints: endpoints, TLS: e.Trust, DialTimeout: 20 * time.Second, Logger: zap.NewNop()}
	if e.user != "" {
		c.Username, c.Password = "root", EtcdPassword
	}
	client, err := clientv3.New(c)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = client.Close() })
	return client
}

// WaitReady waits until the cluster takes writes.
func (e *Etcd) WaitReady() {
	e.t.Helper()
	client := e.Client()
	defer client.Close()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err = client.Delete(ctx, "a key that nobody has")
		cancel()
		if err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	e.t.Fatalf("etcd does not come up: %v", err)
}

// RequirePassword gives the cluster the users root and fenceproxy, who may read and write under prefix, and lets nobody else in.
func (e *Etcd) RequirePassword(prefix string) (user, password string) {
	e.t.Helper()
	client := e.Client()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must := func(_ any, err error) {
		e.t.Helper()
		if err != nil {
			e.t.Fatal(err)
		}
	}
	must(client.UserAdd(ctx, "root", EtcdPassword))
	must(client.RoleAdd(ctx, "root"))
	must(client.UserGrantRole(ctx, "root", "root"))
	must(client.UserAdd(ctx, "fenceproxy", EtcdPassword))
	must(client.RoleAdd(ctx, "fenceproxy"))
	must(client.RoleGrantPermission(ctx, "fenceproxy", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(client.UserGrantRole(ctx, "fenceproxy", "fenceproxy"))
	must(client.AuthEnable(ctx))
	e.user = "root"
	return "fenceproxy", EtcdPassword
}

// Leader is the member that leads.
func (e *Etcd) Leader() *EtcdMember {
	e.t.Helper()
	client := e.Client()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, m := range e.Members {
			if m.cmd == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			status, err := client.Status(ctx, m.Endpoint)
			cancel()
			if err == nil && status.Leader == status.Header.MemberId {
				return m
			}
		}
	}
	e.t.Fatal("etcd has no leader")
	return nil
}

// Snapshot saves what the cluster has, and returns the file.
func (e *Etcd) Snapshot() string {
	e.t.Helper()
	path := filepath.Join(e.t.TempDir(), "snapshot")
	e.etcdctl("snapshot", "save", path, "--endpoints", e.Members[0].Endpoint)
	return path
}

func (e *Etcd) etcdctl(args ...string) {
	e.t.Helper()
	if _, err := exec.LookPath("etcdctl"); err != nil {
		skip(e.t, "there is no etcdctl here: install etcd-client")
	}
	cmd := exec.Command("etcdctl", args...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	if e.user != "" {
		cmd.Env = append(cmd.Env, "ETCDCTL_USER=root", "ETCDCTL_PASSWORD="+EtcdPassword)
	}
	if e.cert != "" {
		cmd.Env = append(cmd.Env, "ETCDCTL_CACERT="+e.cert)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Fatalf("etcdctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Restore ends the cluster and returns one that begins from a snapshot, on the same ports. sameID says that it gets the id of this one, which is
// what happens to those who restore with the token they had.
func (e *Etcd) Restore(snapshot string, sameID bool) *Etcd {
	e.t.Helper()
	for _, m := range e.Members {
		m.Kill()
	}
	o := e.options
	o.Snapshot = snapshot
	if !sameID {
		o.Token += "-restored"
	}
	return StartEtcd(e.t, o)
}

func (m *EtcdMember) restore(snapshot string) {
	m.cluster.t.Helper()
	m.cluster.etcdctl("snapshot", "restore", snapshot, "--name", m.name, "--data-dir", m.dir, "--initial-cluster", m.cluster.initial(),
		"--initial-cluster-token", m.cluster.options.Token, "--initial-advertise-peer-urls", m.peer)
}

// launch starts the process and does not wait for it.
func (m *EtcdMember) launch() {
	t := m.cluster.t
	t.Helper()
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	args := []string{
		"--name", m.name, "--data-dir", m.dir, "--initial-cluster", m.cluster.initial(), "--initial-cluster-token", m.cluster.options.Token,
		"--initial-advertise-peer-urls", m.peer, "--listen-peer-urls", m.peer,
		"--listen-client-urls", m.Endpoint, "--advertise-client-urls", m.Endpoint,
	}
	if m.cluster.cert != "" {
		args = append(args, "--cert-file", m.cluster.cert, "--key-file", m.cluster.key)
	}
	cmd := exec.Command("etcd", args...)
	cmd.Stdout, cmd.Stderr = log, log
	m.run(cmd)
}

// Start starts a member that is down.
func (m *EtcdMember) Start() {
	m.cluster.t.Helper()
	m.launch()
}

// certify makes the certificate of all members, which is its own authority.
func (e *Etcd) certify() {
	e.t.Helper()
	cert, key := certificate(e.t)
	e.cert, e.key = filepath.Join(e.dir, "cert.pem"), filepath.Join(e.dir, "key.pem")
	for path, content := range map[string][]byte{e.cert: cert, e.key: key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			e.t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	e.Trust = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// CA is the file with the certificate that the members' is to be held against, "" without TLS.
func (e *Etcd) CA() string { return e.cert }
