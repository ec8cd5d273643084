package servers

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// templateMu lets one test of the process run initdb for a template, while the others wait for what it makes.
var templateMu sync.Mutex

// initialize makes the data directory, by unpacking the template: initdb would take seven times the processor time. Where there is no template yet,
// initdb runs here, and what it makes is kept for those to come. All servers of one template have one system identifier.
func (p *Postgres) initialize(template string) {
	p.t.Helper()
	if p.options.Fresh {
		p.initdb()
		return
	}
	if p.unpack(template) {
		return
	}
	templateMu.Lock()
	defer templateMu.Unlock()
	if p.unpack(template) { // made while we waited
		return
	}
	p.initdb()
	if err := p.pack(template); err != nil {
		p.t.Logf("what initdb made is not kept for other servers, each of which takes longer: %v", err)
	}
}

// initdbArgs are those that the template depends on.
var initdbArgs = []string{"--no-sync", "-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"}

func (p *Postgres) initdb() {
	p.t.Helper()
	passwords := filepath.Join(filepath.Dir(p.Dir), "password")
	p.write(passwords, PostgresPassword)
	p.run("initdb", append([]string{"-D", p.Dir, "--pwfile", passwords}, initdbArgs...)...)
}

// template is the archive for this version of PostgreSQL, in the cache of integration/setup, where only our own user writes. It is one file, so
// that it is there as a whole or not at all, whatever ends us and whatever clears old files away, and so that no server can be started in it.
func (p *Postgres) template() string {
	p.t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = filepath.Dir(p.Dir) // kept for nobody
	}
	made := strings.Join(append([]string{p.Run("postgres", "--version"), runtime.GOARCH, PostgresPassword}, initdbArgs...), "\x00")
	return filepath.Join(cache, "fenceproxy-tests", fmt.Sprintf("postgres-%x.tar", sha256.Sum256([]byte(made))))
}

// unpack reports whether the template was there. Whoever replaces it meanwhile does so with a rename, which takes nothing from us.
func (p *Postgres) unpack(template string) bool {
	p.t.Helper()
	archive, err := os.Open(template)
	if err != nil {
		return false
	}
	defer archive.Close()
	if err := os.Mkdir(p.Dir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	p.own(p.Dir)
	tar := p.asUser("tar", "-C", p.Dir, "-xp", "-f", "-")
	tar.Stdin = archive // opened by us: the server's user cannot reach it
	if out, err := tar.CombinedOutput(); err != nil {
		p.t.Fatalf("unpack %s: %v (if it is damaged, delete it)\n%s", template, err, out)
	}
	return true
}

// pack keeps the data directory, in which no server has run yet. A crash leaves a file of another name, which nobody reads.
func (p *Postgres) pack(template string) error {
	dir := filepath.Dir(template)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	archive, err := os.CreateTemp(dir, ".postgres-*")
	if err != nil {
		return err
	}
	defer os.Remove(archive.Name())
	defer archive.Close()
	var errs bytes.Buffer
	tar := p.asUser("tar", "-C", p.Dir, "-c", "-f", "-", ".")
	tar.Stdout, tar.Stderr = archive, &errs
	if err := tar.Run(); err != nil {
		return fmt.Errorf("tar: %w: %s", err, errs.String())
	}
	if err := archive.Sync(); err != nil { // tar takes a file that a power cut has emptied for an empty archive
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return os.Rename(archive.Name(), template)
}
