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

	"github.com/fenceproxy/fenceproxy/internal/resp"
)

// RedisPassword is that of [RedisOptions].Password. It needs percent signs in a URL, and shows in a log where it must not.
const RedisPassword = "se/cr@et:%"

// RedisOptions are what StartRedis is told.
type RedisOptions struct {
	Durable   bool   // every command is on disk before it is answered; else nothing ever is
	Password  bool   // nobody is let in without RedisPassword
	TLS       bool   // only TLS connections are taken; see Redis.CA
	ReplicaOf *Redis // of which this one is a replica, asynchronously; it has the options of this one
}

// Redis is a Redis server that belongs to one test.
type Redis struct {
	Address string // host:port
	CA      string // file with the certificate that the server's is to be held against, "" without TLS

	args    []string
	dir     string
	log     string
	options resp.Options
	process
}

// StartRedis makes a server and starts it. The test is skipped where there is none on the machine.
func StartRedis(t testing.TB, o RedisOptions) *Redis {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		skip(t, "there is no redis-server here: install redis-server")
	}
	port := freePort(t)
	r := &Redis{process: process{t: t}, dir: t.TempDir(), Address: fmt.Sprintf("127.0.0.1:%d", port)}
	r.log = filepath.Join(r.dir, "log")
	r.options = resp.Options{Address: r.Address}
	r.args = []string{"--bind", "127.0.0.1", "--dir", r.dir, "--logfile", r.log, "--save", "", "--port", "0", "--repl-diskless-sync-delay", "0"}
	if o.Durable {
		r.args = append(r.args, "--appendonly", "yes", "--appendfsync", "always")
	}
	if o.TLS {
		r.certify()
		r.args = append(r.args, "--tls-port", fmt.Sprint(port), "--tls-auth-clients", "no", "--tls-replication", "yes")
	} else {
		r.args = append(r.args, "--port", fmt.Sprint(port))
	}
	if o.Password {
		r.options.Password = RedisPassword
		r.args = append(r.args, "--requirepass", RedisPassword, "--masterauth", RedisPassword)
	}
	if o.ReplicaOf != nil {
		r.args = append(append(r.args, "--replicaof"), strings.Split(o.ReplicaOf.Address, ":")...)
	}
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			t.Logf("the log of Redis at %s: %s", r.Address, tail(r.log))
		}
	})
	r.Start()
	return r
}

// certify makes the certificate of the server, which is its own authority.
func (r *Redis) certify() {
	r.t.Helper()
	cert, key := certificate(r.t)
	r.CA = filepath.Join(r.dir, "cert.pem")
	file := filepath.Join(r.dir, "key.pem")
	for path, content := range map[string][]byte{r.CA: cert, file: key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	r.options.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	r.args = append(r.args, "--tls-cert-file", r.CA, "--tls-key-file", file, "--tls-ca-cert-file", r.CA)
}

// Start starts it over what it has on disk, and waits until it answers.
func (r *Redis) Start() {
	r.t.Helper()
	cmd := exec.Command("redis-server", r.args...)
	r.run(cmd)
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err = r.Try("PING"); err == nil {
			return
		}
	}
	r.t.Fatalf("Redis does not come up: %v", err)
}

// Try sends one command, as a user with every right.
func (r *Redis) Try(command ...string) (any, error) {
	client := resp.New(r.options)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return client.Do(ctx, command...)
}

// Do is Try where it must be done.
func (r *Redis) Do(command ...string) any {
	r.t.Helper()
	answer, err := r.Try(command...)
	if err != nil {
		r.t.Fatalf("%s: %v", strings.Join(command, " "), err)
	}
	return answer
}

// Replicated waits until a replica is connected to its primary and has all of it.
func (r *Redis) Replicated() {
	r.t.Helper()
	var info any
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if info = r.Do("INFO", "replication"); strings.Contains(info.(string), "master_link_status:up") {
			return
		}
	}
	r.t.Fatalf("the replica at %s does not follow: %v", r.Address, info)
}

// Cut keeps a replica from hearing more of its primary, as a broken network does. It keeps what it has.
func (r *Redis) Cut() { r.Do("REPLICAOF", "127.0.0.1", "1") }

// Promote makes a replica a primary.
func (r *Redis) Promote() { r.Do("REPLICAOF", "NO", "ONE") }
