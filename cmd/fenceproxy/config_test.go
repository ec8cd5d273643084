package main

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/backends/s3"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var updateConfigGolden = flag.Bool("update-config", false, "write testdata/faults.golden anew")

func noEnvironment(string) (string, bool) { return "", false }

// ignoreConfigTable leaves the compiled table out: what it was made of is compared.
var ignoreConfigTable = cmpopts.IgnoreFields(config{}, "Rules")

func mustParseConfig(t *testing.T, text string) *config {
	t.Helper()
	c, err := parseConfig("config.yaml", []byte(text), noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// faultsOfConfig gives the faults of a text as they are printed.
func faultsOfConfig(t *testing.T, text string) []string {
	t.Helper()
	c, err := parseConfig("c", []byte(text), noEnvironment)
	if err == nil {
		return nil
	}
	if c != nil {
		t.Error("a configuration came with the error")
	}
	return strings.Split(err.Error(), "\n")
}

func TestConfigDefaults(t *testing.T) {
	want := &config{
		File:      "config.yaml",
		Listen:    "127.0.0.1:9000",
		Admin:     "127.0.0.1:9001",
		Data:      "data",
		Registry:  registryConfig{Driver: "sqlite"},
		Backends:  []backendConfig{{Name: "local", Type: "file", Root: "data/objects", Stamp: true}},
		Buckets:   []rules.Bucket{{Name: "*", Backend: "local"}},
		AuditKeep: 90 * 24 * time.Hour,
		RaiseWait: 5 * time.Second,

		BufferBytes: 8 << 20,
		MemoryBytes: 512 << 20,

		Connections: 10_000, HeaderWait: 10 * time.Second, BodyWait: time.Minute, IdleWait: 2 * time.Minute,
	}
	for _, text := range []string{"", "# nothing\n", "---\n", "{}", "audit: {}\nlimits: {}\nregistry: {}", "access_keys: []"} {
		got := mustParseConfig(t, text)
		if diff := cmp.Diff(want, got, ignoreConfigTable); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
		if target, ok := got.Rules.Object("b", "k"); !ok || target.Resource != "b/k" || target.Backend != "local" {
			t.Errorf("%q: got %+v", text, target)
		}
	}
	if got := mustParseConfig(t, "data: /var/lib/fence/").Backends[0].Root; got != "/var/lib/fence/objects" {
		t.Errorf("the default backend does not follow data: %s", got)
	}
}

func TestShippedConfig(t *testing.T) {
	const path = "../../config.yaml"
	c, err := loadConfig(path, noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	want := mustParseConfig(t, "")
	want.File = path
	if diff := cmp.Diff(want, c, ignoreConfigTable, cmpopts.IgnoreFields(config{}, "Buckets")); diff != "" {
		t.Error(diff)
	}
	bucket, _ := c.Rules.Bucket("b")
	wantBucket, _ := want.Rules.Bucket("b")
	object, _ := c.Rules.Object("b", "a/b")
	wantObject, _ := want.Rules.Object("b", "a/b")
	wantObject.Rule = object.Rule
	if bucket != wantBucket || object != wantObject {
		t.Errorf("got  %+v %+v\nwant %+v %+v", bucket, object, wantBucket, wantObject)
	}
	job, _ := c.Rules.Object("b", "jobs/7/out/1")
	if job.Resource != "b/jobs/7" || job.Token != rules.Required {
		t.Errorf("the example for jobs gives %+v", job)
	}
}

// The shipped file is the manual: it has every key.
func TestShippedConfigIsTheManual(t *testing.T) {
	text, err := os.ReadFile("../../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, list := range [][]string{
		supportedKeys(configKeys), supportedKeys(postgresKeys), supportedKeys(etcdKeys), supportedKeys(etcdTLSKeys), supportedKeys(fileKeys), supportedKeys(s3Keys),
		supportedKeys(accessKeyKeys), supportedKeys(auditKeys), supportedKeys(tlsKeys),
		supportedKeys(limitKeys), supportedKeys(bucketKeys), supportedKeys(ruleKeys),
	} {
		keys = append(keys, list...)
	}
	for _, key := range keys {
		if !strings.Contains(string(text), key+":") && !strings.Contains(string(text), "#   "+key+" ") {
			t.Errorf("config.yaml does not have %s", key)
		}
	}
	for i, line := range strings.Split(string(text), "\n") {
		if len(line) > 130 {
			t.Errorf("line %d is %d characters long", i+1, len(line))
		}
	}
}

func TestConfigFaults(t *testing.T) {
	_, err := loadConfig("testdata/faults.yaml", noEnvironment)
	var faults *configFaults
	if !errors.As(err, &faults) {
		t.Fatalf("got %v", err)
	}
	const golden = "testdata/faults.golden"
	if *updateConfigGolden {
		if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, readErr := os.ReadFile(golden)
	if readErr != nil {
		t.Fatal(readErr)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(err.Error()+"\n", "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestConfigMissing(t *testing.T) {
	_, err := loadConfig(filepath.Join(t.TempDir(), "none.yaml"), noEnvironment)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--config") {
		t.Errorf("got %v", err)
	}
	if _, err := loadConfig(t.TempDir(), noEnvironment); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory: got %v", err)
	}
}

func TestConfigNotYet(t *testing.T) {
	for _, text := range []string{
		"admin_token: t",
		"buckets: [{name: a, rules: [{match: b, stamp: off}]}]",
	} {
		got := faultsOfConfig(t, text)
		if len(got) != 1 || !strings.HasPrefix(got[0], "c:1: ") || !strings.Contains(got[0], notSupportedYet) {
			t.Errorf("%s\n%q", text, got)
		}
	}
}

// testdata/slips.txt has texts with one slip each, and the one fault that it is.
func TestConfigSlips(t *testing.T) {
	file, err := os.ReadFile("testdata/slips.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range strings.Split(string(file), "---8<---\n") {
		text, want, ok := strings.Cut(test, "\n=> ")
		if !ok {
			t.Fatalf("no => in %q", test)
		}
		if diff := cmp.Diff([]string{"c" + strings.TrimSuffix(want, "\n")}, faultsOfConfig(t, text)); diff != "" {
			t.Errorf("%s\n%s", text, diff)
		}
	}
	if got := faultsOfConfig(t, "data: "+strings.Repeat("a", maxConfig)); len(got) != 1 || !strings.Contains(got[0], "1048576 at most") {
		t.Errorf("too large a file: %q", got)
	}
}

func TestConfigEnvironment(t *testing.T) {
	env := map[string]string{"PORT": "9100", "ROOT": "/srv/$HOME/${PORT}", "WAIT": "250ms", "ONCE": "true", "EMPTY": ""}
	getenv := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	c, err := parseConfig("c", []byte(`
listen: 127.0.0.1:${PORT}
admin: "127.0.0.1:0"
backends: {a: {type: file, root: "${ROOT}${EMPTY}"}}
buckets:
  - name: x
    rules:
      - {match: 'a$$b/{job}/**', resource: 'r/{job}$${job}', write_once: "${ONCE}"}
limits:
  raise_wait: $${WAIT}
`), getenv)
	if err == nil || err.Error() != `c:10: raise_wait: "${WAIT}" must be a duration: numbers with units (ms, s, m, h, d, w), such as 90d or 1h30m` {
		t.Fatalf("got %v, %v", c, err)
	}
	c, err = parseConfig("c", []byte("listen: 127.0.0.1:${PORT}\ndata: '$${X}'\nlimits: {raise_wait: \"${WAIT}\"}\n"+
		"backends: {a: {type: file, root: '${ROOT}${EMPTY}'}}\n"+
		"buckets: [{name: x, rules: [{match: 'a$$b/**', write_once: '${ONCE}', max_advance: '${PORT}'}]}]"), getenv)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:9100" || c.Data != "${X}" || c.RaiseWait != 250*time.Millisecond || c.Backends[0].Root != "/srv/$HOME/${PORT}" {
		t.Errorf("got %+v", c)
	}
	want := rules.Rule{Match: "a$b/**", WriteOnce: true, MaxAdvance: 9100}
	if diff := cmp.Diff(want, c.Buckets[0].Rules[0]); diff != "" {
		t.Error(diff)
	}
}

func TestConfigFull(t *testing.T) {
	c := mustParseConfig(t, `
listen: "[::1]:0"
admin: localhost:0
data: /var/lib/fenceproxy
registry: {driver: sqlite}
backends:
  cold: {type: file, root: /srv/cold}
  hot_1: {type: file, root: /var/lib/fenceproxy/objects, stamp: off}
  far: {type: s3, region: eu-west-1, conditional: on, settle: 90s, stamp: on}
  near: {type: s3, endpoint: http://127.0.0.1:7070, path_style: true, conditional: off, stamp: off}
buckets:
  - {name: "logs-*", backend: cold, bucket_writes: deny}
  - {name: far, backend: far}
  - {name: near, backend: near}
  - name: "*"
    backend: hot_1
    bucket_writes: fence
    rules:
      - match: "jobs/{job}/**"
        resource: jobs/{job}
        token: required
        holder: required
        write_once: true
        require_condition: true
        max_advance: 1000
        reads: plain
        refuse: 403
        conditional: off
      - {match: "tmp/**", conditional: on, token: off, holder: optional, write_once: false, reads: announce, refuse: 412}
audit: {keep: 1w2d12h}
limits: {raise_wait: 1.5s, buffer: 512KiB, memory: 2GiB, connections: 500, header_wait: 2s, body_wait: 30s, idle_wait: 1m}
anonymous: false
domain: s3.example.internal
region: eu-west-1
access_keys:
  - {id: AKIDALL, secret: long enough}
  - {id: AKIDFEW, secret: long enough too, buckets: [far, "logs-2*"], prefixes: [jobs/7/, tmp], read_only: true}
`)
	want := &config{
		File:     "config.yaml",
		Listen:   "[::1]:0",
		Admin:    "localhost:0",
		Data:     "/var/lib/fenceproxy",
		Registry: registryConfig{Driver: "sqlite"},
		Backends: []backendConfig{
			{Name: "cold", Type: "file", Root: "/srv/cold", Stamp: true},
			{Name: "hot_1", Type: "file", Root: "/var/lib/fenceproxy/objects"},
			{
				Name: "far", Type: "s3", S3: s3.Options{Region: "eu-west-1"},
				Conditional: "on", Settle: 90 * time.Second, Stamp: true,
			},
			{
				Name: "near", Type: "s3", S3: s3.Options{Endpoint: "http://127.0.0.1:7070", PathStyle: true},
				Conditional: "off", Settle: time.Minute,
			},
		},
		Buckets: []rules.Bucket{
			{Name: "logs-*", Backend: "cold", BucketWrites: rules.Deny},
			{Name: "far", Backend: "far"},
			{Name: "near", Backend: "near"},
			{Name: "*", Backend: "hot_1", BucketWrites: rules.Fence, Rules: []rules.Rule{
				{
					Match: "jobs/{job}/**", Resource: "jobs/{job}", Token: rules.Required, HolderRequired: true, WriteOnce: true,
					RequireCondition: true, MaxAdvance: 1000, Reads: rules.Plain, Refuse: 403, Unconditional: true,
				},
				{Match: "tmp/**", Token: rules.Off},
			}},
		},
		AuditKeep: (9*24 + 12) * time.Hour,
		RaiseWait: 1500 * time.Millisecond,

		BufferBytes: 512 << 10,
		MemoryBytes: 2 << 30,

		Connections: 500, HeaderWait: 2 * time.Second, BodyWait: 30 * time.Second, IdleWait: time.Minute,

		AccessKeys: []accessKey{
			{ID: "AKIDALL", Secret: "long enough"},
			{
				ID: "AKIDFEW", Secret: "long enough too",
				Access: rules.Access{Buckets: []string{"far", "logs-2*"}, Prefixes: []string{"jobs/7/", "tmp"}, ReadOnly: true},
			},
		},
		Domain: "s3.example.internal", Region: "eu-west-1",
	}
	if diff := cmp.Diff(want, c, ignoreConfigTable); diff != "" {
		t.Error(diff)
	}
}

// Whatever the text: an error or a table, and no panic.
func FuzzParseConfig(f *testing.F) {
	for _, path := range []string{"../../config.yaml", "testdata/faults.yaml"} {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{"", "a: &a [*a]", "? {}\n: b", "<<: *a", "buckets: [{rules: [{}]}, {}]", "backends: {a: b, a: c, '': }", "~", "!!map {}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConfig("c", text, noEnvironment)
		if err == nil && c.Rules == nil {
			t.Error("neither a table nor an error")
		}
	})
}
