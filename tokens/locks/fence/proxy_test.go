package fence

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// program is the built proxy.
var program string

// build makes it. The race detector is in the tests of its own packages.
func build(dir string) error {
	program = filepath.Join(dir, "fenceproxy")
	out, err := exec.Command("go", "build", "-o", program, "github.com/fenceproxy/fenceproxy/cmd/fenceproxy").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// patience bounds every wait for something that takes milliseconds on an idle machine.
const patience = 30 * time.Second

// A proxy is a process that can be killed, and comes back on its port.
type proxy struct {
	address string
	config  string // file
	process *exec.Cmd
	output  *output
}

// output collects what a process says.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// startProxy runs one with this configuration beside its addresses and its data directory, and kills it with the test.
func startProxy(t testing.TB, config string) *proxy {
	t.Helper()
	dir := t.TempDir()
	p := &proxy{address: freeAddress(t), config: filepath.Join(dir, "config.yaml")}
	text := fmt.Sprintf("listen: %s\nadmin: 127.0.0.1:0\ndata: %s\n%s", p.address, filepath.Join(dir, "data"), strings.ReplaceAll(config, "DIR", dir))
	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	t.Cleanup(p.kill)
	return p
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (p *proxy) start(t testing.TB) {
	t.Helper()
	p.output = new(output)
	p.process = exec.Command(program, "serve", "--config", p.config)
	p.process.Stdout, p.process.Stderr = p.output, p.output
	if err := p.process.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); !strings.Contains(p.output.String(), "msg=serving"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			p.kill()
			t.Fatalf("serve did not come up:\n%s", p.output)
		}
	}
}

// kill ends it as a crash does.
func (p *proxy) kill() {
	_ = p.process.Process.Kill()
	_ = p.process.Wait()
}

// send makes a request that is not about a lock, and returns its status.
func (p *proxy) send(t testing.TB, method, path string, headers ...string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.address+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// fileConfig is a proxy over a directory, with a registry of its own.
const fileConfig = `
backends: {local: {type: file, root: DIR/objects}}
buckets:
  - name: "*"
    backend: local
    rules:
      - {match: "off/**", token: off}
      - {match: "jobs/{job}/**", resource: "jobs/{job}"}
`

const keysConfig = fileConfig + `
access_keys:
  - {id: AKIDWRITER, secret: "a secret of the test"}
  - {id: AKIDREADER, secret: "another of the test", read_only: true}
`
