package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// offline runs a command over the files of a proxy that is stopped.
func (p *proxy) offline(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return cli(t, append(args, "--config", p.config)...)
}

// repair is offline where it has to succeed.
func (p *proxy) repair(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, code := p.offline(t, args...)
	if code != 0 {
		t.Fatalf("fenceproxy %q ended with code %d:\n%s", args, code, stderr)
	}
	return stdout, stderr
}

// loseRegistry takes the registry of a proxy that is stopped away.
func (p *proxy) loseRegistry(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.data, "registry.db*"))
	must(t, "look for the registry", err)
	if len(files) == 0 {
		t.Fatal("there is no registry to lose")
	}
	for _, name := range files {
		must(t, "lose the registry", os.Remove(name))
	}
}

// rebuilt is a row of what rebuild prints.
type rebuilt struct {
	Bucket                  string
	Objects, Stamps, Raised int64
	NoStamp                 int64 `json:"no_stamp"`
	OtherResource           int64 `json:"other_resource"`
	OtherRegistry           int64 `json:"other_registry"`
	NotFenced               int64 `json:"not_fenced"`
	Failures                int64
	Backend                 string
}

// rebuild runs one that has to succeed, and returns its row for a bucket.
func (p *proxy) rebuild(t *testing.T, bucket string) rebuilt {
	t.Helper()
	stdout, _ := p.repair(t, "rebuild", "--format", "json")
	var rows []rebuilt
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	for _, row := range rows {
		if row.Bucket == bucket {
			return row
		}
	}
	t.Fatalf("there is no bucket %s in %s", bucket, stdout)
	return rebuilt{}
}

// lostAndRebuilt loses the registry of a proxy that runs, rebuilds it from the stamps in a bucket, raises it by a margin, and runs the
// proxy again: who was stale is stale.
func lostAndRebuilt(t *testing.T, p *proxy, bucket string) {
	key := func(name string) string { return "/" + bucket + "/" + name }
	for name, n := range map[string]int64{"jobs/7/a": 34, "jobs/7/b": 34, "k": 50} {
		p.put(t, key(name), n, name).want(t, 200)
	}
	p.put(t, key("unfenced"), 0, "without a token").want(t, 200)
	p.put(t, key("gone"), 40, "deleted later").want(t, 200)
	p.do(t, "DELETE", key("gone"), "", "X-Fence-Token", "40").want(t, 204)
	p.do(t, "PUT", key("jobs/8/copy"), "", "X-Fence-Token", "3", "X-Amz-Copy-Source", key("jobs/7/b")).want(t, 200)

	_, said, code := p.offline(t, "raise", "--all-by", "1")
	if code != 1 {
		t.Errorf("raise beside a proxy ended with code %d", code)
	}
	says(t, said, fmt.Sprintf("process %d", p.cmd.Process.Pid), "stop")
	_, said, code = p.offline(t, "rebuild")
	if code != 1 {
		t.Errorf("rebuild beside a proxy ended with code %d", code)
	}
	says(t, said, fmt.Sprintf("process %d", p.cmd.Process.Pid), "stop")
	p.stop(t)
	p.loseRegistry(t)
	says(t, p.refused(t), "registry is missing", "fenceproxy rebuild", "--new-registry")

	got := p.rebuild(t, bucket)
	want := rebuilt{Bucket: bucket, Backend: got.Backend, Objects: 5, Stamps: 4, Raised: 2, OtherResource: 1}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got = p.rebuild(t, bucket); got.Raised != 0 || got.Stamps != 4 {
		t.Errorf("the second time: %+v", got)
	}
	says(t, p.refused(t), "lower bounds", "fenceproxy raise --all-by N")
	stdout, stderr := p.repair(t, "raise", "--all-by", "100")
	if !strings.Contains(stdout, "2 resources were raised by 100") || !strings.Contains(stderr, "Next: ") {
		t.Errorf("raise says %q %q", stdout, stderr)
	}

	p.start(t)
	p.marked(t, key("jobs/7/a"), 134)
	p.marked(t, key("k"), 150)
	p.marked(t, key("gone"), 0) // a lower bound: what the margin is for, where the resource has other objects
	p.put(t, key("jobs/7/a"), 34, "stale").stale(t, 134)
	p.put(t, key("jobs/7/new"), 133, "stale").stale(t, 134)
	p.put(t, key("k"), 149, "stale").stale(t, 150)
	p.holds(t, key("jobs/7/b"), "jobs/7/b")
	p.put(t, key("jobs/7/b"), 135, "of 135").want(t, 200)
	p.put(t, key("k"), 150, "of 150").want(t, 200)
	p.restart(t)
	p.marked(t, key("jobs/7/a"), 135)
	operations := map[string]int{}
	for _, r := range p.audit(t, "kind=raise") {
		operations[r.Operation]++
	}
	if operations["rebuild"] != 2 || operations["raise --all-by"] != 1 {
		t.Errorf("audited are %v", operations)
	}
}

func TestLostRegistry(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	lostAndRebuilt(t, p, "bkt")
}

func TestLostRegistryOfS3(t *testing.T) {
	t.Parallel()
	p := startBeforeQuickGateway(t)
	lostAndRebuilt(t, p, "s3-bkt")
}

// TestARebuildThatIsKilled is run again and comes to the same end.
func TestARebuildThatIsKilled(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const objects = 150
	for i := range objects {
		p.put(t, fmt.Sprintf("/bkt/k%03d", i), int64(i+1), "x").want(t, 200)
	}
	p.stop(t)
	p.loseRegistry(t)
	for i := range 6 {
		cmd := exec.Command(binary, "rebuild", "--config", p.config)
		must(t, "start a rebuild", cmd.Start())
		time.Sleep(time.Duration(i) * 30 * time.Millisecond) // wherever it is then; no outcome depends on it
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	p.refused(t) // whatever it has left: it has missed tokens
	if got := p.rebuild(t, "bkt"); got.Objects != objects || got.Stamps != objects || got.Failures != 0 {
		t.Errorf("%+v", got)
	}
	p.repair(t, "raise", "--all-by", "100")
	p.start(t)
	for i := range objects {
		p.marked(t, fmt.Sprintf("/bkt/k%03d", i), int64(i+101))
	}
}

// TestAdopt: a new registry in the place of a lost one takes its stamps only if an operator says so.
func TestAdopt(t *testing.T) {
	t.Parallel()
	p := startBeforeQuickGateway(t)
	p.put(t, "/s3-bkt/jobs/7/a", 34, "of 34").want(t, 200)
	lost := p.registryID(t)
	p.stop(t)
	p.loseRegistry(t)
	p.start(t, "--new-registry")
	p.put(t, "/s3-bkt/jobs/7/a", 1, "of 1").refusedAs(t, 503, "ServiceUnavailable", "RegistryConflict")
	p.holds(t, "/s3-bkt/jobs/7/a", "of 34")
	p.stop(t)
	says(t, p.refused(t, "--adopt", strings.ToLower(lost)), "--adopt", "not the id")
	p.start(t, "--adopt", lost)
	p.put(t, "/s3-bkt/jobs/7/a", 1, "of 1").stale(t, 34)
	p.marked(t, "/s3-bkt/jobs/7/a", 34)
	p.put(t, "/s3-bkt/jobs/7/a", 35, "of 35").want(t, 200)
	p.restart(t) // once is enough
	p.put(t, "/s3-bkt/jobs/7/a", 35, "of 35 again").want(t, 200)
	found := false
	for _, r := range p.audit(t, "kind=start") {
		found = found || strings.Contains(r.Detail, lost) && r.Operation == "adopt"
	}
	if !found {
		t.Error("the audit log does not tell of the adoption")
	}
}

var registryLine = regexp.MustCompile(`msg="token registry open" .*registry=(\S+)`)

// registryID is the one that the running proxy has told.
func (p *proxy) registryID(t *testing.T) string {
	t.Helper()
	found, err := p.logs.await(registryLine, p.done)
	must(t, "find the registry's id", err)
	return found[1]
}

// TestRemap: another mapping is refused until it is said to be meant. Policy is free.
func TestRemap(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/7/a", 34, "of 34").want(t, 200)
	p.put(t, "/bkt/k", 50, "of 50").want(t, 200)
	p.stop(t)

	p.writeConfig(t, strings.Replace(plainConfig, `{match: "must/**", token: required}`, `{match: "must/**", write_once: true}`, 1))
	p.start(t)
	p.stop(t)

	changed := strings.Replace(plainConfig, `resource: "jobs/{job}"}`, `resource: "all-jobs"}`, 1)
	p.writeConfig(t, changed)
	said := p.refused(t)
	says(t, said, `entry "*"`, `{match: "jobs/{job}/**", resource: "jobs/{job}"}`, `{match: "jobs/{job}/**", resource: "all-jobs"}`,
		"2 resources in 1 buckets", "bkt/jobs/7, bkt/k", "serve --remap")
	p.writeConfig(t, plainConfig)
	p.start(t)
	p.put(t, "/bkt/jobs/7/a", 33, "stale").stale(t, 34)
	p.stop(t)

	p.writeConfig(t, changed)
	p.start(t, "--remap")
	p.marked(t, "/bkt/jobs/7/a", 0) // as it says
	p.put(t, "/bkt/jobs/7/a", 1, "of 1").want(t, 200)
	p.put(t, "/bkt/k", 49, "stale").stale(t, 50) // its key leads where it led before
	records := p.audit(t, "kind=reload")
	if len(records) != 1 || !strings.Contains(records[0].Detail, "bkt/jobs/7, bkt/k") {
		t.Errorf("audited %+v", records)
	}
	p.restart(t) // once is enough
	p.marked(t, "/bkt/jobs/8/a", 1)
	p.stop(t)
	p.writeConfig(t, plainConfig)
	says(t, p.refused(t), "serve --remap")
}

// TestRemapWaits for what a killed run may still have under way, by names that no raise looks at any more.
func TestRemapWaits(t *testing.T) {
	t.Parallel()
	p := startBeforeGateway(t) // what it settles in outlasts the start that is refused
	p.put(t, "/s3-bkt/jobs/7/a", 34, "of 34").want(t, 200)
	config := mustRead(t, p.config)
	p.kill()
	killed := time.Now()
	if !strings.Contains(config, `resource: "jobs/{job}"`) {
		t.Fatalf("no such rule in %s", config)
	}
	mustWrite(t, p.config, strings.ReplaceAll(config, `resource: "jobs/{job}"`, `resource: "all-jobs"`))
	says(t, p.refused(t), "serve --remap")
	if err := p.launch("--remap"); err != nil {
		t.Fatal(err)
	}
	found, err := p.logs.await(regexp.MustCompile(`--remap waits .*resources=1 wait=(\S+)`), p.done)
	must(t, "hear that it waits", err)
	if wait, err := time.ParseDuration(found[1]); err != nil || wait <= 0 || wait > time.Minute {
		t.Errorf("it waits %v, %v", found[1], err)
	}
	p.terminate(t) // it would take a minute
	<-p.done
	if took := time.Since(killed); took > time.Minute {
		t.Skipf("SKIPPED: this machine took %v", took)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("it ended with code %d", code)
	}
	says(t, p.logs.String(), "nothing was changed")
	says(t, p.refused(t), "serve --remap")
}
