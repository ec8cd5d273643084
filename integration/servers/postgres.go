package servers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresPassword is that of every user. It needs percent signs in a URL, and shows in a log where it must not.
const PostgresPassword = "se/cr@et:%"

// PostgresOptions are what StartPostgres is told.
type PostgresOptions struct {
	Settings []string // "name=value", given on the command line
	TLS      bool     // only TLS connections are let in; see Postgres.CA
	Fresh    bool     // a database cluster like no other's: without it servers have one system identifier, as if they were restored from one backup
}

// Postgres is a PostgreSQL server that belongs to one test. Users are postgres, who may do anything, and fenceproxy, who owns the databases of Database.
type Postgres struct {
	Dir  string // its data directory
	Port int
	CA   string // file with the certificate that the server's is to be held against, "" without TLS

	t        testing.TB
	bin      string // folder of the programs
	options  PostgresOptions
	user     *syscall.Credential // nil: ours
	process  *exec.Cmd           // nil while it is down
	ended    chan struct{}       // closed when process has ended
	log      string
	database atomic.Int64 // counts them
}

// StartPostgres makes a server and starts it. The test is skipped where there is none on the machine.
func StartPostgres(t testing.TB, o PostgresOptions) *Postgres {
	t.Helper()
	p := newPostgres(t, o)
	p.initialize(p.template())
	kind := "host"
	if o.TLS {
		kind = "hostssl"
		p.certify()
	}
	p.write(filepath.Join(p.Dir, "pg_hba.conf"), kind+" all all 127.0.0.1/32 scram-sha-256\n"+kind+" replication all 127.0.0.1/32 scram-sha-256\n")
	p.Start()
	p.Execute("postgres", "CREATE ROLE fenceproxy LOGIN PASSWORD '"+PostgresPassword+"'")
	return p
}

// newPostgres finds the programs and makes a folder that their user can reach.
func newPostgres(t testing.TB, o PostgresOptions) *Postgres {
	t.Helper()
	p := &Postgres{t: t, options: o, bin: os.Getenv("FENCEPROXY_POSTGRES_BIN")}
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin"); p.bin == "" && len(found) > 0 {
		slices.SortFunc(found, func(a, b string) int { return postgresVersion(a) - postgresVersion(b) })
		p.bin = found[len(found)-1]
	}
	if _, err := os.Stat(filepath.Join(p.bin, "postgres")); p.bin == "" || err != nil {
		skip(t, "there is no PostgreSQL here: install postgresql, or say in FENCEPROXY_POSTGRES_BIN where its programs are")
	}
	if os.Geteuid() == 0 { // postgres does not run as root
		p.user = unprivileged(t)
	}
	dir, err := os.MkdirTemp("", "fenceproxy-postgres-") // not t.TempDir, which others cannot enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p.own(dir)
	p.Dir, p.log = filepath.Join(dir, "data"), filepath.Join(dir, "log")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of PostgreSQL on port %d: %s", p.Port, tail(p.log))
		}
	})
	t.Cleanup(p.Kill)
	return p
}

// postgresVersion is the number in /usr/lib/postgresql/15/bin.
func postgresVersion(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return n
}

func unprivileged(t testing.TB) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	t.Fatal("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
	return nil
}

// own gives a file to the server's user.
func (p *Postgres) own(path string) {
	p.t.Helper()
	if p.user == nil {
		return
	}
	if err := os.Chown(path, int(p.user.Uid), int(p.user.Gid)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *Postgres) write(path, text string) {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.own(path)
}

func (p *Postgres) command(name string, args ...string) *exec.Cmd {
	return p.asUser(filepath.Join(p.bin, name), args...)
}

func (p *Postgres) asUser(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PGPASSWORD="+PostgresPassword)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.user, Setpgid: true} // a Ctrl-C is for the test
	return cmd
}

// Run runs one of PostgreSQL's programs as the server's user, with its output, for example pg_dump.
func (p *Postgres) Run(name string, args ...string) string {
	p.t.Helper()
	cmd := p.command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		p.t.Fatalf("%s: %v\n%s", name, err, errs.String())
	}
	return out.String()
}

func (p *Postgres) run(name string, args ...string) { p.t.Helper(); p.Run(name, args...) }

// Start starts a server that is down, on the port it had.
func (p *Postgres) Start() {
	p.t.Helper()
	if p.process != nil {
		p.t.Fatal("the server runs already")
	}
	for try := range 3 { // somebody else may have taken the port
		if p.Port == 0 || try > 0 {
			p.Port = freePort(p.t)
		}
		if p.start() {
			return
		}
	}
	p.t.Fatalf("PostgreSQL does not start: %s", tail(p.log))
}

func (p *Postgres) start() bool {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	args := []string{"-D", p.Dir, "-p", strconv.Itoa(p.Port)}
	for _, setting := range append([]string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_wal_senders=5", "wal_level=replica", "hot_standby=on", "shared_buffers=16MB", "max_connections=200",
	}, p.options.Settings...) {
		args = append(args, "-c", setting)
	}
	cmd := p.command("postgres", args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT // to the postmaster an order to end at once, with all of its processes
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	deadline := time.After(time.Minute)
	for {
		if err := p.ask(context.Background(), "postgres", "SELECT 1"); err == nil {
			p.process, p.ended = cmd, ended
			return true
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ended:
			return false
		case <-deadline:
			_ = cmd.Process.Signal(syscall.SIGQUIT)
			<-ended
			return false
		}
	}
}

// Stop stops the server in order: what was committed is there when it starts again.
func (p *Postgres) Stop() { p.end(syscall.SIGINT) }

// Kill ends the server at once, as a crash would: it recovers when it starts again.
func (p *Postgres) Kill() { p.end(syscall.SIGQUIT) }

func (p *Postgres) end(sig syscall.Signal) {
	if p.process == nil {
		return
	}
	_ = p.process.Process.Signal(sig)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		_ = p.process.Process.Kill() // its children see that it is gone
		<-p.ended
	}
	p.process = nil
}

// URL says how to reach a database as a user.
func (p *Postgres) URL(user, database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, PostgresPassword), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port)), Path: "/" + database}
	if p.CA != "" {
		u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {p.CA}}.Encode()
	} else {
		u.RawQuery = "sslmode=disable"
	}
	return u.String()
}

// Database makes a new database that belongs to the user fenceproxy, and returns its name and the DSN.
func (p *Postgres) Database() (name, dsn string) {
	p.t.Helper()
	name = fmt.Sprintf("d%d", p.database.Add(1))
	p.Execute("postgres", "CREATE DATABASE "+name+" OWNER fenceproxy")
	return name, p.URL("fenceproxy", name)
}

// Execute runs statements in a database, as postgres.
func (p *Postgres) Execute(database, statements string) {
	p.t.Helper()
	if err := p.ask(context.Background(), database, statements); err != nil {
		p.t.Fatalf("%s: %v", statements, err)
	}
}

func (p *Postgres) ask(ctx context.Context, database, statements string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL("postgres", database))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.PgConn().Exec(ctx, statements).ReadAll()
	return err
}

// Value is the single value that a query returns, as text.
func (p *Postgres) Value(database, query string) (value string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL("postgres", database))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, "SELECT coalesce(max(v::text), '') FROM ("+query+") q (v)").Scan(&value); err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	return value
}

// Standby makes a standby of this server, by name, and starts it. It is a synchronous one if synchronous_standby_names has the name.
func (p *Postgres) Standby(name string) *Postgres {
	p.t.Helper()
	s := newPostgres(p.t, p.options)
	s.CA = p.CA
	s.run("pg_basebackup", "-D", s.Dir, "-R", "-X", "stream", "-c", "fast", "--no-sync",
		"-d", fmt.Sprintf("host=127.0.0.1 port=%d user=postgres application_name=%s%s", p.Port, name, p.libpqTLS()))
	conf, err := os.ReadFile(filepath.Join(s.Dir, "postgresql.auto.conf"))
	if err != nil {
		p.t.Fatal(err)
	}
	// The base backup was taken with the password in the environment, which the standby would not have; the last line of a name counts.
	s.write(filepath.Join(s.Dir, "postgresql.auto.conf"), string(conf)+fmt.Sprintf("\nprimary_conninfo = 'host=127.0.0.1 port=%d user=postgres password=''%s'' application_name=%s%s'\n",
		p.Port, PostgresPassword, name, p.libpqTLS()))
	s.Start()
	return s
}

func (p *Postgres) libpqTLS() string {
	if p.CA == "" {
		return ""
	}
	return " sslmode=verify-full sslrootcert=" + p.CA
}

// WaitReplicated waits until a standby has written all that this server has.
func (p *Postgres) WaitReplicated(name string) {
	p.t.Helper()
	query := "SELECT count(*) FROM pg_stat_replication WHERE application_name = '" + name + "' AND replay_lsn >= pg_current_wal_lsn()"
	for deadline := time.Now().Add(30 * time.Second); p.Value("postgres", query) != "1"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("standby %s does not catch up", name)
		}
	}
}

// Promote makes a standby a primary, on a new timeline.
func (p *Postgres) Promote() {
	p.t.Helper()
	if p.Value("postgres", "SELECT pg_promote(true, 30)") != "true" {
		p.t.Fatal("the standby was not promoted")
	}
}

// certify gives the server a certificate.
func (p *Postgres) certify() {
	p.t.Helper()
	cert, key := certificate(p.t)
	p.CA = filepath.Join(filepath.Dir(p.Dir), "ca.pem")
	p.write(p.CA, string(cert))
	p.write(filepath.Join(p.Dir, "server.crt"), string(cert))
	p.write(filepath.Join(p.Dir, "server.key"), string(key))
	p.options.Settings = append(slices.Clone(p.options.Settings), "ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key")
}

// Signal sends a signal to the postmaster alone, SIGHUP for example.
func (p *Postgres) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.process.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// Hosts are several servers in one DSN, in the order in which they are tried.
func Hosts(user, database string, all ...*Postgres) string {
	var hosts []string
	for _, p := range all {
		hosts = append(hosts, net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port)))
	}
	return "postgres://" + url.UserPassword(user, PostgresPassword).String() + "@" + strings.Join(hosts, ",") + "/" + database + "?sslmode=disable"
}
