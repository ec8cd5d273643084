package integration

import (
	"database/sql"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"
)

// fenced is a proxy that has an object with a fence, to see that nothing is lost.
func fenced(t *testing.T) *proxy {
	t.Helper()
	p := startProxy(t)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	return p
}

// lostNothing checks what fenced made. The proxy runs.
func (p *proxy) lostNothing(t *testing.T) {
	t.Helper()
	p.holds(t, "/bkt/k", "of 34")
	p.put(t, "/bkt/k", 33, "stale").stale(t, 34)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
}

// says checks that every one of these stands in what the program said, and that it is no stack or log record but a sentence.
func says(t *testing.T, said string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(said, part) {
			t.Errorf("it says\n%s\nwithout %q", said, part)
		}
	}
	if !strings.Contains(said, "fenceproxy: ") || strings.Contains(said, "goroutine ") {
		t.Errorf("that is no sentence:\n%s", said)
	}
}

// beside is another proxy with a configuration of its own, in the directory of p.
func (p *proxy) beside(t *testing.T, name, config string) *proxy {
	t.Helper()
	other := &proxy{dir: p.dir, config: filepath.Join(p.dir, name+".yaml"), data: p.data, root: p.root}
	other.writeConfig(t, config)
	t.Cleanup(func() { other.end(t) })
	return other
}

// TestASecondServe on what another one has is refused, and told by whom.
func TestASecondServe(t *testing.T) {
	t.Parallel()
	p := fenced(t)
	holder := fmt.Sprintf("process %d", p.cmd.Process.Pid)
	for name, config := range map[string]string{
		"same":           plainConfig,
		"other-root":     strings.ReplaceAll(plainConfig, "DIR/objects", "DIR/other-objects"),
		"objects-inside": strings.ReplaceAll(plainConfig, "DIR/objects", "DIR/data/objects"),
	} {
		t.Run(name, func(t *testing.T) {
			for _, flags := range [][]string{nil, {"--new-registry"}} {
				says(t, p.beside(t, name, config).refused(t, flags...), "in use", holder, p.data, p.addr)
			}
		})
	}
	t.Run("other data", func(t *testing.T) {
		other := p.beside(t, "other-data", strings.ReplaceAll(plainConfig, "data: DIR/data", "data: DIR/other-data"))
		says(t, other.refused(t), p.root, "another process")
		says(t, other.refused(t, "--new-registry"), p.root, "another process")
	})
	p.lostNothing(t)

	// The default layout, with the objects inside the data directory.
	q := newProxy(t, "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ndata: DIR/data\n")
	q.root = filepath.Join(q.data, "objects")
	q.start(t)
	q.do(t, "PUT", "/bkt", "").want(t, 200)
	q.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	t.Run("default layout", func(t *testing.T) {
		second := q.beside(t, "second", "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ndata: DIR/data\n")
		says(t, second.refused(t), fmt.Sprintf("process %d", q.cmd.Process.Pid), q.data)
	})
	q.lostNothing(t)
	q.crash(t) // the lock falls with the process
	q.lostNothing(t)
}

// nobody is a user without rights, where we may become another one. As who we are already, permissions hold for us, too.
func nobody() (attr *syscall.SysProcAttr, uid int) {
	if os.Getuid() != 0 {
		return nil, -1
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}, 65534
}

// unprivileged is fenced, run by a user that permissions hold for. It is stopped.
func unprivileged(t *testing.T) *proxy {
	t.Helper()
	p := newProxy(t, plainConfig)
	attr, uid := nobody()
	// The temporary directories of a test are its user's alone.
	for dir := p.dir; strings.HasPrefix(dir, os.TempDir()+string(filepath.Separator)); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(p.dir, uid, uid); err != nil && uid >= 0 {
		t.Fatal(err)
	}
	p.user = attr
	p.start(t)
	p.do(t, "PUT", "/bkt", "").want(t, 200)
	p.put(t, "/bkt/k", 34, "of 34").want(t, 200)
	p.stop(t)
	return p
}

// TestReadOnly: directories and files that cannot be written are told, and all is as it was once that has been mended.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path string
		mode os.FileMode
	}{
		{"data", 0o555},
		{"data", 0o000},
		{"data/registry.db", 0o400},
		{"data/registry.db", 0o000},
		{"data/audit.db", 0o000},
		{"objects", 0o555},
		{"objects/.fenceproxy/tmp", 0o500},
		{"config.yaml", 0o000},
	} {
		t.Run(fmt.Sprintf("%s %o", c.path, c.mode), func(t *testing.T) {
			t.Parallel()
			p := unprivileged(t)
			path := filepath.Join(p.dir, c.path)
			was, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			mentions := strings.TrimSuffix(c.path, "/.fenceproxy/tmp")
			for range 2 {
				says(t, p.refused(t), filepath.Base(mentions))
			}
			if err := os.Chmod(path, was.Mode().Perm()); err != nil {
				t.Fatal(err)
			}
			p.start(t)
			p.lostNothing(t)
		})
	}
}

// onRegistry runs SQL on a registry whose proxy is stopped.
func onRegistry(t *testing.T, path, statements string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statements); err != nil {
		t.Fatal(err)
	}
}

// schemaVersion is that of a file of ours.
func schemaVersion(t *testing.T, path string) (version int) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow("PRAGMA user_version").Scan(&version); err != nil || version == 0 {
		t.Fatalf("version %d, %v", version, err)
	}
	return version
}

// TestForeignRegistries: a file of another program, or of a newer version of ours, is not touched.
func TestForeignRegistries(t *testing.T) {
	t.Parallel()
	p := fenced(t)
	registry := filepath.Join(p.data, "registry.db")
	for _, c := range []struct {
		name  string
		make  func(t *testing.T)
		parts []string
	}{
		{"another program's SQLite file", func(t *testing.T) {
			onRegistry(t, registry, "PRAGMA application_id = 1196444487; PRAGMA user_version = 1; CREATE TABLE theirs (x); INSERT INTO theirs VALUES ('precious')")
		}, []string{"registry.db", "no token registry", "nothing was changed"}},
		{"a SQLite file of nobody", func(t *testing.T) {
			onRegistry(t, registry, "CREATE TABLE theirs (x)")
		}, []string{"registry.db", "no token registry"}},
		{"text", func(t *testing.T) {
			mustWrite(t, registry, strings.Repeat("dear diary, today I was taken for a database\n", 100))
		}, []string{"registry.db", "no token registry"}},
		{"short text", func(t *testing.T) { mustWrite(t, registry, "x") }, []string{"registry.db", "no token registry"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.stop(t)
			ours := filepath.Join(p.dir, "ours.db")
			if err := os.Rename(registry, ours); err != nil {
				t.Fatal(err)
			}
			c.make(t)
			theirs := mustRead(t, registry)
			for _, flags := range [][]string{nil, {"--new-registry"}} {
				says(t, p.refused(t, flags...), c.parts...)
				if mustRead(t, registry) != theirs {
					t.Error("another program's file was changed")
				}
			}
			if err := os.Rename(ours, registry); err != nil {
				t.Fatal(err)
			}
			p.start(t)
			p.lostNothing(t)
		})
	}
	t.Run("a newer version", func(t *testing.T) {
		p.stop(t)
		ours := schemaVersion(t, registry)
		onRegistry(t, registry, fmt.Sprintf("PRAGMA user_version = %d", ours+1))
		newer := mustRead(t, registry)
		says(t, p.refused(t), "registry.db", "newer version", fmt.Sprintf("version %d", ours+1))
		says(t, p.refused(t, "--new-registry"), "registry.db", "newer version")
		if mustRead(t, registry) != newer {
			t.Error("a newer version's file was changed")
		}
		onRegistry(t, registry, fmt.Sprintf("PRAGMA user_version = %d", ours))
		p.start(t)
		p.lostNothing(t)
	})
	t.Run("a newer audit log", func(t *testing.T) {
		p.stop(t)
		ours := schemaVersion(t, filepath.Join(p.data, "audit.db"))
		onRegistry(t, filepath.Join(p.data, "audit.db"), fmt.Sprintf("PRAGMA user_version = %d", ours+1))
		says(t, p.refused(t), "audit.db", "newer version")
		onRegistry(t, filepath.Join(p.data, "audit.db"), fmt.Sprintf("PRAGMA user_version = %d", ours))
		p.start(t)
		p.lostNothing(t)
	})
}

// TestAMissingRegistry is not taken for a fresh start, wherever what is left of it lies.
func TestAMissingRegistry(t *testing.T) {
	t.Parallel()
	p := fenced(t)
	registry := filepath.Join(p.data, "registry.db")
	kept := filepath.Join(p.dir, "kept.db")
	p.stop(t)
	if err := os.Rename(registry, kept); err != nil {
		t.Fatal(err)
	}
	says(t, p.refused(t), "registry is missing", p.data, "--new-registry")
	if _, err := os.Stat(registry); err == nil {
		t.Error("a registry was made all the same")
	}
	mustWrite(t, registry, "") // an empty file is none
	says(t, p.refused(t), "registry is missing")
	if err := os.Rename(kept, registry); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	p.lostNothing(t)

	t.Run("another data directory", func(t *testing.T) {
		p.stop(t)
		other := p.beside(t, "other", strings.ReplaceAll(plainConfig, "data: DIR/data", "data: DIR/other-data"))
		says(t, other.refused(t), "registry is missing", "local", "--new-registry")
		p.start(t)
		p.lostNothing(t)
	})
	t.Run("the registry of another store", func(t *testing.T) {
		p.stop(t)
		q := fenced(t)
		q.stop(t)
		other := p.beside(t, "mixed", strings.ReplaceAll(plainConfig, "data: DIR/data", "data: "+q.data))
		says(t, other.refused(t), "local", "--new-registry")
		q.start(t)
		q.lostNothing(t)
		p.start(t)
		p.lostNothing(t)
	})
	t.Run("objects gone", func(t *testing.T) { // the audit log remembers that there was a registry
		q := fenced(t)
		q.stop(t)
		if err := os.Rename(filepath.Join(q.data, "registry.db"), kept); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(q.root, q.root+"-kept"); err != nil {
			t.Fatal(err)
		}
		says(t, q.refused(t), "registry is missing")
	})
	t.Run("meant", func(t *testing.T) {
		p.stop(t)
		if err := os.Rename(registry, kept); err != nil {
			t.Fatal(err)
		}
		p.start(t, "--new-registry")
		p.holds(t, "/bkt/k", "of 34") // the objects stay, their tokens are forgotten
		p.marked(t, "/bkt/k", 0)
		p.put(t, "/bkt/k", 1, "of 1").want(t, 200)
		p.restart(t) // once is enough
		p.marked(t, "/bkt/k", 1)
		p.stop(t)
		if err := os.Rename(kept, registry); err != nil { // the old one is another one now
			t.Fatal(err)
		}
		says(t, p.refused(t), "local", "--new-registry")
	})
}

// TestPortsInUse: either port, and nothing is lost.
func TestPortsInUse(t *testing.T) {
	t.Parallel()
	p := fenced(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p.stop(t)
	for _, key := range []string{"listen", "admin"} {
		config := strings.Replace(plainConfig, key+": 127.0.0.1:0", key+": "+taken.Addr().String(), 1)
		says(t, p.beside(t, key, config).refused(t), key, taken.Addr().String(), "in use")
	}
	first := newProxy(t, strings.Replace(plainConfig, "listen: 127.0.0.1:0", "listen: "+taken.Addr().String(), 1))
	says(t, first.refused(t), "in use")
	if _, err := os.Stat(first.data); err == nil {
		t.Error("a start that could not take its port has made a data directory")
	}
	p.start(t)
	p.lostNothing(t)
}

// TestMissingConfig says where one was looked for.
func TestMissingConfig(t *testing.T) {
	t.Parallel()
	p := newProxy(t, plainConfig)
	if err := os.Remove(p.config); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve"}, {"config", "check"}, {"serve", "--config", p.config}, {"config", "check", "--config", p.config}} {
		stdout, stderr, code := cli(t, args...)
		if code != 1 || stdout != "" {
			t.Errorf("%q: code %d, %q", args, code, stdout)
		}
		says(t, stderr, "no configuration", "config.yaml", "--config")
	}
}

// tenFaults has one in each of its lines that end with #.
const tenFaults = `listen: 0.0.0.0:9000 #
admin: nowhere #
dataa: ./data #
registry: {driver: oracle} #
backends:
  local: {type: tape, root: ./objects} #
buckets:
  - name: "*"
    backend: locl #
    rules:
      - match: "a[bc]" #
      - match: "jobs/{job}/**"
        resource: "jobs/{jbo}" #
      - {match: "**", token: perhaps} #
audit: {keep: forever} #
limits: {raise_wait: -1s} #
`

// TestTenFaults: all are named, each with its line, by config check and by serve, before anything is opened.
func TestTenFaults(t *testing.T) {
	t.Parallel()
	p := newProxy(t, tenFaults)
	var want []string
	for i, line := range strings.Split(tenFaults, "\n") {
		if strings.HasSuffix(line, "#") {
			want = append(want, fmt.Sprintf("%s:%d: ", p.config, i+1))
		}
	}
	if len(want) < 10 {
		t.Fatalf("%d faults are too few", len(want))
	}
	for _, command := range [][]string{{"config", "check"}, {"serve"}} {
		start := time.Now()
		stdout, stderr, code := cli(t, append(command, "--config", p.config)...)
		if code != 1 || stdout != "" || time.Since(start) > patience/2 {
			t.Errorf("%q: code %d after %v, %q", command, code, time.Since(start), stdout)
		}
		says(t, stderr, want...)
		if lines := strings.Count(stderr, p.config+":"); lines != len(want) {
			t.Errorf("%q names %d faults, want %d:\n%s", command, lines, len(want), stderr)
		}
	}
	if names := namesIn(t, p.dir); len(names) != 1 {
		t.Errorf("there is %q now", names)
	}
	p.writeConfig(t, plainConfig)
	stdout, _, code := cli(t, "config", "check", "--config", p.config)
	if code != 0 || !strings.Contains(stdout, "is good: 1 backends, 3 bucket entries, 9 rules") {
		t.Errorf("%d %q", code, stdout)
	}
	if names := namesIn(t, p.dir); len(names) != 1 {
		t.Errorf("config check has made %q", names)
	}
}
