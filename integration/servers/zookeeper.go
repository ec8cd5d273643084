package servers

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// zookeeperJar is where Debian's package libzookeeper-java has it; its manifest names the others that it needs.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

// ZooKeeper is one server that belongs to one test, on disk. Its ticks are short: sessions may be from 400 ms to a minute, and one that is
// not heard of ends within 200 ms more.
type ZooKeeper struct {
	Address string // host:port, for clients

	dir    string
	config string
	log    string
	process
}

// ZooKeeperTick is how much later than its timeout a session may end.
const ZooKeeperTick = 200 * time.Millisecond

// StartZooKeeper makes a server and starts it; more are lines of its configuration file. The test is skipped where there is none on the machine.
func StartZooKeeper(t testing.TB, more ...string) *ZooKeeper {
	t.Helper()
	if _, err := exec.LookPath("java"); err != nil {
		skip(t, "there is no java here, which ZooKeeper runs on: install default-jre-headless")
	}
	if _, err := os.Stat(zookeeperJar); err != nil {
		skip(t, "there is no ZooKeeper here: install libzookeeper-java")
	}
	z := &ZooKeeper{process: process{t: t}, dir: t.TempDir()}
	z.config, z.log = filepath.Join(z.dir, "zoo.cfg"), filepath.Join(z.dir, "log")
	port := freePort(t)
	z.Address = fmt.Sprintf("127.0.0.1:%d", port)
	lines := append([]string{
		fmt.Sprintf("tickTime=%d", ZooKeeperTick.Milliseconds()), "maxSessionTimeout=60000", "dataDir=" + filepath.Join(z.dir, "data"),
		"clientPortAddress=127.0.0.1", fmt.Sprintf("clientPort=%d", port), "admin.enableServer=false", "maxClientCnxns=0",
	}, more...)
	if err := os.WriteFile(z.config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		z.Kill()
		if t.Failed() {
			t.Logf("the log of ZooKeeper at %s: %s", z.Address, tail(z.log))
		}
	})
	z.Start()
	return z
}

// Start starts the server, over the data it has, and waits until it answers.
func (z *ZooKeeper) Start() {
	z.t.Helper()
	log, err := os.OpenFile(z.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		z.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", // made for short runs
		"-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.preAllocSize=1024", // KiB by which the log on disk grows
		"-cp", zookeeperJar+":/usr/share/java/slf4j-simple.jar", "org.apache.zookeeper.server.quorum.QuorumPeerMain", z.config)
	cmd.Stdout, cmd.Stderr = log, log
	z.run(cmd)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if strings.Contains(z.ask("srvr"), "Mode:") {
			return
		}
		select {
		case <-z.ended:
			z.t.Fatalf("ZooKeeper has ended: %s", tail(z.log))
		default:
		}
	}
	z.t.Fatal("ZooKeeper does not come up")
}

// ask sends one of ZooKeeper's four-letter words, and returns "" where nobody answers.
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

// Restart kills the server and starts it again.
func (z *ZooKeeper) Restart() {
	z.t.Helper()
	z.Kill()
	z.Start()
}

// Forget removes everything that the server has on disk, which must be down.
func (z *ZooKeeper) Forget() {
	z.t.Helper()
	if err := os.RemoveAll(filepath.Join(z.dir, "data")); err != nil {
		z.t.Fatal(err)
	}
}
