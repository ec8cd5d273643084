package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// packages are Debian's, by the program that a demonstration looks for.
var packages = map[string]string{
	"redis-server": "redis-server", "redis-cli": "redis-tools", "etcd": "etcd-server", "etcdctl": "etcd-client", "curl": "curl",
	"postgres": "postgresql", "zookeeper": "zookeeper", "java": "default-jre-headless",
}

// postgresReady is the line of its log that says that it accepts.
var postgresReady = regexp.MustCompile(`database system is ready to accept connections`)

// zookeeperJar is where Debian has it; its manifest names the others that it needs.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

// Need fails if one of the programs is not on this machine, and says how to install them.
func (s *Stage) Need(programs ...string) error {
	if command := install(programs...); command != "" {
		return fmt.Errorf("this demo needs what is not on this machine. On Debian and Ubuntu:\n  %s", command)
	}
	return nil
}

// install is the command that installs those of the programs that are not on this machine; "" where there are none.
func install(programs ...string) string {
	var missing []string
	for _, p := range programs {
		if !here(p) {
			missing = append(missing, packages[p])
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return "apt-get install -y --no-install-recommends " + strings.Join(missing, " ")
}

func here(program string) bool {
	var err error
	switch program {
	case "postgres":
		_, err = postgresBin()
	case "zookeeper":
		_, err = os.Stat(zookeeperJar)
	default:
		_, err = exec.LookPath(program)
	}
	return err == nil
}

// freePort is one of loopback's that nobody has at the moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// A Redis is a redis-server that syncs every write.
type Redis struct {
	Port    int
	Process *Process
}

// Redis starts one. It needs redis-server and redis-cli.
func (s *Stage) Redis(ctx context.Context) (*Redis, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir := s.Path("redis")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	p, err := s.Start("redis-server", exec.Command("redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "always"))
	if err != nil {
		return nil, err
	}
	r := &Redis{port, p}
	return r, until(ctx, p, "redis-server answers", func(ctx context.Context) bool {
		answer, err := r.Do(ctx, "PING")
		return err == nil && answer == "PONG"
	})
}

// Do sends a command by redis-cli, each by a process of its own, and returns the answer as redis-cli shows it to people.
func (r *Redis) Do(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "redis-cli", append([]string{"-p", strconv.Itoa(r.Port), "--no-raw"}, args...)...)
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	answer := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("redis-cli %s: %w: %s", args[0], err, answer)
	}
	return answer, nil
}

// An Etcd is a cluster of one member.
type Etcd struct {
	Endpoint string // URL for clients
	Process  *Process
}

// Etcd starts one. It needs etcd.
func (s *Stage) Etcd(ctx context.Context) (*Etcd, error) {
	client, err1 := freePort()
	peer, err2 := freePort()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	e := &Etcd{Endpoint: fmt.Sprintf("http://127.0.0.1:%d", client)}
	peers := fmt.Sprintf("http://127.0.0.1:%d", peer)
	p, err := s.Start("etcd", exec.Command("etcd", "--name", "n1", "--data-dir", s.Path("etcd"), "--listen-client-urls", e.Endpoint,
		"--advertise-client-urls", e.Endpoint, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "n1="+peers))
	if err != nil {
		return nil, err
	}
	e.Process = p
	return e, until(ctx, p, "etcd answers", func(ctx context.Context) bool {
		answer, err := send(ctx, http.MethodGet, e.Endpoint+"/health", 0, "", "")
		return err == nil && strings.Contains(answer, `"true"`)
	})
}

// A Postgres is a PostgreSQL server that lets in who knows its password: a superuser of it runs programs as the user that it runs as, and who else is
// on this machine is not to.
type Postgres struct {
	DSN     string // of the database postgres
	Process *Process
}

// Postgres starts one. It needs postgres.
func (s *Stage) Postgres(ctx context.Context) (*Postgres, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	user, err := s.postgresHome()
	if err != nil {
		return nil, err
	}
	password := rand.Text()
	secret := s.Path("postgres", "password")
	err = os.WriteFile(secret, []byte(password+"\n"), 0o600)
	if err == nil && user != nil {
		err = os.Chown(secret, int(user.Uid), int(user.Gid))
	}
	if err != nil {
		return nil, err
	}
	data := s.Path("postgres", "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "--no-sync", "-D", data, "-U", "postgres", "-A", "scram-sha-256", "--pwfile", secret, "-E", "UTF8", "--locale=C")
	initdb.Dir, initdb.Env, initdb.SysProcAttr = "/", environment("LC_ALL=C"), &syscall.SysProcAttr{Credential: user}
	if p, err := s.Start("initdb", initdb); err != nil {
		return nil, err
	} else if err := p.Wait(ctx); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "shared_buffers=16MB")
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", environment("LC_ALL=C"), &syscall.SysProcAttr{Credential: user}
	p, err := s.start("postgres", cmd, syscall.SIGQUIT) // its children are in groups of their own, and are ended by it
	if err != nil {
		return nil, err
	}
	_, err = p.WaitLog(ctx, postgresReady)
	return &Postgres{fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", password, port), p}, err
}

// postgresHome makes a folder for it, and says as whom it runs: not as root.
func (s *Stage) postgresHome() (*syscall.Credential, error) {
	dir := s.Path("postgres")
	if err := os.Mkdir(dir, 0o700); err != nil || os.Geteuid() != 0 {
		return nil, err
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, uid, gid)
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}

// postgresBin is the folder of the newest version's programs, where Debian has them.
func postgresBin() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	newest, bin := 0, ""
	for _, path := range found {
		dir := filepath.Dir(path)
		if v, err := strconv.Atoi(filepath.Base(filepath.Dir(dir))); err == nil && v > newest {
			newest, bin = v, dir
		}
	}
	if bin == "" {
		return "", os.ErrNotExist
	}
	return bin, nil
}

// A ZooKeeper is one server. Its sessions may be from 400 ms to a minute long.
type ZooKeeper struct {
	Address string // host:port
	Process *Process
}

// ZooKeeper starts one. It needs zookeeper and java.
func (s *Stage) ZooKeeper(ctx context.Context) (*ZooKeeper, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf("tickTime=200\nmaxSessionTimeout=60000\ndataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=%d\nadmin.enableServer=false\n", s.Path("zookeeper"), port)
	if err := os.WriteFile(s.Path("zoo.cfg"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	p, err := s.Start("zookeeper", exec.Command("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true",
		"-Dzookeeper.preAllocSize=1024", "-cp", zookeeperJar+":/usr/share/java/slf4j-simple.jar", "org.apache.zookeeper.server.quorum.QuorumPeerMain", s.Path("zoo.cfg")))
	if err != nil {
		return nil, err
	}
	z := &ZooKeeper{fmt.Sprintf("127.0.0.1:%d", port), p}
	return z, until(ctx, p, "ZooKeeper answers", func(context.Context) bool { return strings.Contains(z.ask("srvr"), "Mode:") })
}

// ask sends one of its four-letter words, and returns "" where nobody answers.
func (z *ZooKeeper) ask(word string) string {
	c, err := net.DialTimeout("tcp", z.Address, time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c, word)
	answer, _ := io.ReadAll(c)
	return string(answer)
}
