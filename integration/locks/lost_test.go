package locks

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/servers"
	"github.com/fenceproxy/fenceproxy/tokens/locks/consul/consultest"
	"github.com/fenceproxy/fenceproxy/tokens/locks/kubernetes/kubetest"
)

// TestCountersThatWentBack: a lock service that has lost what it had given hands its next holder a token that was used before. With
// --announce that holder is refused before its command starts, and told why, though it has the lock.
func TestCountersThatWentBack(t *testing.T) {
	for name, loses := range map[string]func(t *testing.T) (before string, lose func() (after string)){
		"Redis restarted without persistence": func(t *testing.T) (string, func() string) {
			r := servers.StartRedis(t, servers.RedisOptions{})
			lock := "redis://" + r.Address + "/jobs/7"
			return lock, func() string { r.Kill(); r.Start(); return lock }
		},
		"etcd restored": func(t *testing.T) (string, func() string) {
			e := servers.StartEtcd(t, servers.EtcdOptions{})
			snapshot := e.Snapshot()
			return "etcd://" + host(t, e.Endpoints()[0]) + "/jobs/7", func() string {
				return "etcd://" + host(t, e.Restore(snapshot, true).Endpoints()[0]) + "/jobs/7"
			}
		},
		"ZooKeeper without its disk": func(t *testing.T) (string, func() string) {
			z := servers.StartZooKeeper(t)
			lock := "zookeeper://" + z.Address + "/jobs-7"
			return lock, func() string { z.Kill(); z.Forget(); z.Start(); return lock }
		},
		"Consul made anew": func(t *testing.T) (string, func() string) {
			c := consultest.Start(t)
			lock := "consul://" + c.Address() + "/jobs/7"
			return lock, func() string { c.Replace(); return lock }
		},
		"Kubernetes with its Lease deleted": func(t *testing.T) (string, func() string) {
			k := kubetest.Start(t)
			lock := "kubernetes://jobs/j7?server=" + url.QueryEscape("http://"+k.Address())
			return lock, func() string { k.Delete("jobs", "j7"); return lock }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, lose := loses(t)
			p := startProxy(t)
			for i := range 3 {
				p.mustRun(before, "node-1", fmt.Sprintf("write %d\n", i))
			}
			after := lose()
			said := p.mustBeRefused(after, "node-2")
			if !strings.Contains(said, "StaleToken") || !strings.Contains(said, "its counter has gone back") || !strings.Contains(said, "docs/locks.md") {
				t.Errorf("run said: %s", said)
			}
			p.holds("write 2\n")
		})
	}
}

// TestSameTokenTwice: a failover to a replica that had not heard of the last hand-over gives the same token again. It is bound to the holder
// that came first; the other one is refused, and gets a higher one the next time.
func TestSameTokenTwice(t *testing.T) {
	t.Parallel()
	primary := servers.StartRedis(t, servers.RedisOptions{Durable: true})
	replica := servers.StartRedis(t, servers.RedisOptions{Durable: true, ReplicaOf: primary})
	p := startProxy(t)
	p.mustRun("redis://"+primary.Address+"/jobs/7", "node-1", "write 1\n")
	replica.Replicated()
	for deadline := time.Now().Add(patience); replica.Do("GET", "{jobs/7}:token") != "1"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the replica never heard of the first hand-over")
		}
	}
	replica.Cut()
	p.mustRun("redis://"+primary.Address+"/jobs/7", "node-2", "write 2\n")
	primary.Kill()
	replica.Promote()
	said := p.mustBeRefused("redis://"+replica.Address+"/jobs/7", "node-3")
	if !strings.Contains(said, "TokenConflict") || !strings.Contains(said, "to two holders") {
		t.Errorf("run said: %s", said)
	}
	p.holds("write 2\n")
	p.mustRun("redis://"+replica.Address+"/jobs/7", "node-3", "write 3\n")
	p.holds("write 3\n")
}

// run runs a curl under a lock, which writes the state with what run has put into its environment.
func (p *proxy) run(lock, holder, content string) (code int, said string) {
	p.Helper()
	cmd := exec.Command(program, "run", "--lock", lock, "--ttl", "10s", "--wait", "1m", "--endpoint", p.url, "--announce", "demo/jobs/7/state", "--holder", holder,
		"--", "sh", "-c", `curl -sS --fail-with-body -X PUT --data-binary @- "$AWS_ENDPOINT_URL/demo/jobs/7/state"`)
	cmd.Stdin = strings.NewReader(content)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.TempDir(), "LC_ALL=C.UTF-8"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

func (p *proxy) mustRun(lock, holder, content string) {
	p.Helper()
	if code, said := p.run(lock, holder, content); code != 0 {
		p.Fatalf("under %s: %d %s", lock, code, said)
	}
}

// mustBeRefused returns what run says that is refused before its command has started.
func (p *proxy) mustBeRefused(lock, holder string) string {
	p.Helper()
	code, said := p.run(lock, holder, "late\n")
	if code != 125 {
		p.Fatalf("under %s: %d instead of 125: %s", lock, code, said)
	}
	return said
}

func host(t *testing.T, endpoint string) string {
	t.Helper()
	u, err := url.Parse(endpoint)
	must(t, "read an endpoint", err)
	return u.Host
}
