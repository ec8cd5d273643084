// Package locks runs programs that hold a lock of their own, as docs/recipes.md has them: each takes a real lock, writes through the built proxy
// with the lock's token, is paused for longer than the lock lasts, and writes again when it wakes up.
package locks

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fenceproxy/fenceproxy/integration/servers"
)

// patience bounds every wait for something that takes seconds on an idle machine: the longest is for a lock that has to run out.
const patience = 2 * time.Minute

// What is built once for all tests.
var program, goWriter string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == "2" {
		_ = flag.Set("test.parallel", "4") // they wait for locks to run out
	}
	dir, err := os.MkdirTemp("", "fenceproxy-locks-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program, goWriter = filepath.Join(dir, "fenceproxy"), filepath.Join(dir, "writer")
	for path, pkg := range map[string]string{program: "./cmd/fenceproxy", goWriter: "./integration/locks/writer"} {
		cmd := exec.Command("go", "build", "-o", path, pkg)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build %s: %v\n%s", pkg, err, out)
			return 1
		}
	}
	return m.Run()
}

// need skips the test where what it runs is not here. In CI, where everything has to be there, that is a failure.
func need(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	why := fmt.Sprintf("%s is not here (integration/setup brings it): %v", what, err)
	if os.Getenv("CI") != "" {
		t.Fatalf("NOT SHOWN: %s", why)
	}
	t.Skipf("SKIPPED, and not shown: %s", why)
}

// A proxy is a running one over a file store, with the bucket demo and in it jobs/7/state.
type proxy struct {
	*testing.T
	url string
}

const config = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: DIR/data
backends: {local: {type: file, root: DIR/objects}}
buckets: [{name: "*", rules: [{match: "jobs/{job}/**", resource: "jobs/{job}"}]}]
`

var servingLine = regexp.MustCompile(`msg=serving listen=(\S+) `)

func startProxy(t *testing.T) *proxy {
	t.Helper()
	dir := t.TempDir()
	must(t, "configure the proxy", os.WriteFile(dir+"/config.yaml", []byte(strings.ReplaceAll(config, "DIR", dir)), 0o600))
	cmd := exec.Command(program, "serve", "--config", dir+"/config.yaml")
	said, err := os.Create(dir + "/log")
	must(t, "keep its log", err)
	defer said.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, "start the proxy", cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	p := &proxy{T: t}
	for deadline := time.Now().Add(patience); p.url == ""; time.Sleep(5 * time.Millisecond) {
		text, _ := os.ReadFile(dir + "/log")
		if found := servingLine.FindSubmatch(text); found != nil {
			p.url = "http://" + string(found[1])
		} else if time.Now().After(deadline) {
			t.Fatalf("the proxy does not come up:\n%s", text)
		}
	}
	p.send("PUT", "/demo", "")
	p.send("PUT", "/demo/jobs/7/state", "first\n")
	return p
}

// send is for an operator, who has no token.
func (p *proxy) send(method, path, body string) string {
	p.Helper()
	r, err := http.NewRequestWithContext(p.Context(), method, p.url+path, strings.NewReader(body))
	must(p.T, "make a request", err)
	resp, err := http.DefaultClient.Do(r)
	must(p.T, method+" "+path, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		p.Fatalf("%s %s: %d %s (%v)", method, path, resp.StatusCode, got, err)
	}
	return string(got)
}

func (p *proxy) holds(content string) {
	p.Helper()
	if got := p.send("GET", "/demo/jobs/7/state", ""); got != content {
		p.Errorf("the state is %q, want %q", got, content)
	}
}

// A writer is a recipe that runs. It has its lock, and waits for its work on standard input.
type writer struct {
	*testing.T
	cmd   *exec.Cmd
	work  io.WriteCloser
	out   *bufio.Reader
	errs  bytes.Buffer // to be read when it has ended
	kill  *time.Timer
	token int64
}

// start runs a writer and returns when it has the lock.
func (p *proxy) start(args ...string) *writer {
	p.Helper()
	w := &writer{T: p.T, cmd: exec.Command(args[0], args[1:]...)}
	// A key that nobody asks for: boto3 and the SDK sign whatever comes. No settings of this machine.
	w.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + p.TempDir(), "LC_ALL=C.UTF-8", "AWS_ACCESS_KEY_ID=AKIDJOBS", "AWS_SECRET_ACCESS_KEY=secret",
		"AWS_REGION=us-east-1", "AWS_DEFAULT_REGION=us-east-1", "AWS_EC2_METADATA_DISABLED=true",
	}
	var err error
	w.work, err = w.cmd.StdinPipe()
	must(p.T, "open a pipe", err)
	out, err := w.cmd.StdoutPipe()
	must(p.T, "open a pipe", err)
	w.out, w.cmd.Stderr = bufio.NewReader(out), &w.errs
	must(p.T, "start the writer", w.cmd.Start())
	kill := func() { _ = w.cmd.Process.Kill() }
	p.Cleanup(kill)
	w.kill = time.AfterFunc(patience, kill)
	if line, err := w.out.ReadString('\n'); err != nil {
		p.Fatalf("the writer ended before it had the lock, or did not get it within %s: %v\n%s", patience, w.cmd.Wait(), &w.errs)
	} else if _, err := fmt.Sscanf(line, "token %d", &w.token); err != nil {
		p.Fatalf("the writer says %q", line)
	}
	return w
}

func (w *writer) signal(s os.Signal) {
	w.Helper()
	must(w.T, "signal the writer", w.cmd.Process.Signal(s))
}

// finish gives the writer its work, and returns how it ended and what it said.
func (w *writer) finish(work string) (said string, err error) {
	w.Helper()
	w.kill.Reset(patience)
	_, err = io.WriteString(w.work, work)
	must(w.T, "give the writer its work", errors.Join(err, w.work.Close()))
	out, _ := io.ReadAll(w.out)
	err = w.cmd.Wait()
	w.kill.Stop()
	return string(out) + w.errs.String(), err
}

func (w *writer) works(work string) {
	w.Helper()
	if said, err := w.finish(work); err != nil {
		w.Fatalf("the writer with token %d: %v\n%s", w.token, err, said)
	}
}

// story: a writer takes the lock, reads, and is paused. Its successor writes. It wakes up, writes, and is refused, in the words of the page.
func story(t *testing.T, recipe recipe, p *proxy, args ...string) {
	t.Helper()
	first := p.start(args...)
	// It has the lock; that it has read, too, shows in the fence.
	for deadline := time.Now().Add(patience); !strings.Contains(p.send("GET", "/demo/jobs/7/state?fence", ""), fmt.Sprintf(`"highest":%d`, first.token)); {
		if time.Now().After(deadline) {
			t.Fatalf("the writer does not raise the fence to its token %d", first.token)
		}
		time.Sleep(5 * time.Millisecond)
	}
	first.signal(syscall.SIGSTOP)
	second := p.start(args...)
	second.works("of the second\n")
	p.holds("first\nof the second\n")
	first.signal(syscall.SIGCONT)
	said, err := first.finish("of the first\n")
	if err == nil {
		t.Errorf("the late write was not refused: %s", said)
	}
	recipe.tells(t, said, first.token, second.token)
	p.holds("first\nof the second\n")
	third := p.start(args...)
	third.works("of the third\n")
	p.holds("first\nof the second\nof the third\n")
	if first.token >= second.token || second.token >= third.token {
		t.Errorf("the tokens are %d, %d, %d", first.token, second.token, third.token)
	}
}

func TestBoto3OverPostgreSQL(t *testing.T) {
	t.Parallel()
	need(t, "boto3 or psycopg2", exec.Command("/usr/bin/python3", "-c", "import boto3, psycopg2").Run())
	recipe := readRecipe(t, "boto3, and a lock in PostgreSQL", "testdata/writer.py")
	db := servers.StartPostgres(t, servers.PostgresOptions{})
	name, dsn := db.Database()
	db.Execute(name, "SET ROLE fenceproxy; "+recipe.blocks["sql"])
	p := startProxy(t)
	story(t, recipe, p, "/usr/bin/python3", "testdata/writer.py", dsn, "jobs/7", p.url, "demo", "jobs/7/state")
}

func TestJavaOverZooKeeper(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("javac"); err != nil { // a JRE has no compiler, and cannot run a source file
		if os.Getenv("FENCEPROXY_LONG") == "" {
			t.Skip("NOT SHOWN: a JDK is large, and integration/setup brings it in the long form alone (FENCEPROXY_LONG)")
		}
		need(t, "a JDK", err)
	}
	recipe := readRecipe(t, "Java, and a lock in ZooKeeper", "testdata/Writer.java")
	keeper := servers.StartZooKeeper(t)
	client, events, err := zk.Connect([]string{keeper.Address}, 10*time.Second, zk.WithLogInfo(false))
	must(t, "connect to ZooKeeper", err)
	defer client.Close()
	go func() {
		for range events { // Close ends it
		}
	}()
	_, err = client.Create("/jobs-7", nil, 0, zk.WorldACL(zk.PermAll))
	must(t, "make the lock's node", err)
	p := startProxy(t)
	story(t, recipe, p, "java", "-cp", "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar", "testdata/Writer.java", keeper.Address, "/jobs-7", p.url+"/demo/jobs/7/state")
}

func TestGoOverEtcd(t *testing.T) {
	t.Parallel()
	recipe := readRecipe(t, "Go, and a lock in etcd", "writer/main.go")
	cluster := servers.StartEtcd(t, servers.EtcdOptions{})
	p := startProxy(t)
	story(t, recipe, p, goWriter, strings.Replace(cluster.Members[0].Endpoint, "http://", "etcd://", 1)+"/jobs/7", p.url, "demo", "jobs/7/state")
}

// A recipe is a section of docs/recipes.md: its blocks by their language.
type recipe struct{ blocks map[string]string }

const page = "../../docs/recipes.md"

var codeBlock = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// readRecipe reads a section, and holds its program to the file that runs.
func readRecipe(t *testing.T, section, file string) recipe {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, "read the page", err)
	_, after, ok := strings.Cut(string(text), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", page, section)
	}
	after, _, _ = strings.Cut(after, "\n## ")
	r := recipe{blocks: map[string]string{}}
	for _, block := range codeBlock.FindAllStringSubmatch(after, -1) {
		r.blocks[block[1]] += block[2]
	}
	source, err := os.ReadFile(file)
	must(t, "read the program", err)
	language := map[string]string{".py": "python", ".java": "java", ".go": "go"}[filepath.Ext(file)]
	if r.blocks[language] != string(source) {
		t.Errorf("the program in section %q of %s is not that of %s", section, page, file)
	}
	return r
}

// tells checks that a late writer ended with what the page says, where it has 33 and 34; … is anything.
func (r recipe) tells(t *testing.T, said string, stale, highest int64) {
	t.Helper()
	if r.blocks["text"] == "" {
		t.Error("the page does not say what the late writer prints")
	}
	for line := range strings.Lines(r.blocks["text"]) {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(line)), "…", ".*")
		pattern = strings.ReplaceAll(pattern, "token 33 is below 34", fmt.Sprintf("token %d is below %d", stale, highest))
		if !regexp.MustCompile(pattern).MatchString(said) {
			t.Errorf("%s says that the late writer prints\n%s\nIt printed\n%s", page, line, said)
		}
	}
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
