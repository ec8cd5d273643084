package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// onS3 is a configuration that a shared registry fits.
const onS3 = `
backends: {far: {type: s3, endpoint: "http://127.0.0.1:7070"}}
registry: `

func TestConfigRegistry(t *testing.T) {
	for _, test := range []struct {
		text string
		want registryConfig
	}{
		{`{driver: postgres, dsn: "postgres://fence:p%40ss@127.0.0.1/fence"}`, registryConfig{
			Driver: "postgres", DSN: "postgres://fence:p%40ss@127.0.0.1/fence", Lease: 10 * time.Second,
		}},
		{`{lease: 3s, failover: synchronous, dsn: "host=127.0.0.1 dbname=fence", id: ABCDEFGHIJKLMNOPQRSTUVWXYZ, driver: postgres}`, registryConfig{
			Driver: "postgres", DSN: "host=127.0.0.1 dbname=fence", Lease: 3 * time.Second, Failover: true, ID: "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
		}},
		{`{driver: etcd, endpoints: ["http://127.0.0.1:2379", "http://localhost:2380/"]}`, registryConfig{
			Driver: "etcd", Endpoints: []string{"http://127.0.0.1:2379", "http://localhost:2380"}, Prefix: "/fenceproxy/", Lease: 10 * time.Second,
		}},
		{`{driver: etcd, endpoints: ["https://etcd-1:2379"], prefix: /a/, lease: 5m, username: u, password: secret}`, registryConfig{
			Driver: "etcd", Endpoints: []string{"https://etcd-1:2379"}, Prefix: "/a/", Lease: 5 * time.Minute, Username: "u", Password: "secret",
		}},
	} {
		c := mustParseConfig(t, onS3+test.text)
		if diff := cmp.Diff(test.want, c.Registry); diff != "" {
			t.Errorf("%s: %s", test.text, diff)
		}
		if c.Drain != defaultDrain || len(c.Warnings) > 0 {
			t.Errorf("%s: drain %v, warnings %q", test.text, c.Drain, c.Warnings)
		}
	}
	c := mustParseConfig(t, onS3+"{driver: etcd, endpoints: [http://127.0.0.1:1]}\ndrain: 0s\nhealth: 0.0.0.0:9002")
	if c.Drain != 0 || c.Health != "0.0.0.0:9002" {
		t.Errorf("drain %v, health %s", c.Drain, c.Health)
	}
}

// Each fault of a registry is told in one line, and none with a password.
func TestConfigRegistryFaults(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(key, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{driver: postgres}`: `driver: postgres needs dsn; write dsn: "${FENCEPROXY_DSN}"`,
		`{driver: etcd}`:     `driver: etcd needs endpoints; write`,
		`{driver: mysql}`:    `driver: "mysql" must be sqlite, postgres or etcd`,
		`{driver: etcd, endpoints: [http://127.0.0.1:1], dsn: "postgres://u:hunter2@h/d"}`:               `dsn: belongs to driver: postgres, and this one is etcd`,
		`{driver: postgres, dsn: "host=127.0.0.1 dbname=d", prefix: /a/}`:                                `prefix: belongs to driver: etcd, and this one is postgres`,
		`{driver: postgres, dsn: "postgres://u:hunter2#@127.0.0.1:54x/d"}`:                               `dsn: is no connection string of PostgreSQL`,
		`{driver: postgres, dsn: "postgres://u:hunter2@x@127.0.0.1/d"}`:                                  `dsn: is no connection string of PostgreSQL`,
		`{driver: postgres, dsn: "postgres://u:12/hunter2@127.0.0.1/d"}`:                                 `dsn: is no connection string of PostgreSQL`,
		`{driver: postgres, dsn: ""}`:                                                                    `dsn: is no connection string of PostgreSQL`,
		`{driver: postgres, dsn: *hunter2}`:                                                              `is not YAML`,
		`{driver: postgres, dsn: "host=127.0.0.1", lease: 900ms}`:                                        `lease: 900ms must be from 1s to 5m`,
		`{driver: postgres, dsn: "host=127.0.0.1", lease: 6m}`:                                           `lease: 6m must be from 1s to 5m`,
		`{driver: postgres, dsn: "host=127.0.0.1", failover: yes}`:                                       `failover: "yes" must be none or synchronous`,
		`{driver: postgres, dsn: "host=127.0.0.1", id: abc}`:                                             `id: "abc" is not the id of a token registry`,
		`{driver: etcd, endpoints: []}`:                                                                  `endpoints: is empty; write where etcd is`,
		`{driver: etcd, endpoints: ["etcd-1:2379"]}`:                                                     `endpoints: "etcd-1:2379" must be http:// or https://, a host and a port`,
		`{driver: etcd, endpoints: ["https://etcd-1"]}`:                                                  `endpoints: "https://etcd-1" must be http:// or https://, a host and a port`,
		`{driver: etcd, endpoints: ["http://u:hunter2@127.0.0.1:1"]}`:                                    `endpoints: one of them must be a URL without user and password`,
		`{driver: etcd, endpoints: ["http://127.0.0.1:1", "https://127.0.0.1:2"]}`:                       `all of them must be https://, or all http://`,
		`{driver: etcd, endpoints: ["http://127.0.0.1:1"], prefix: a}`:                                   `prefix: "a" must begin and end with a slash`,
		`{driver: etcd, endpoints: ["http://127.0.0.1:1"], username: u}`:                                 `username: username and password go together`,
		`{driver: etcd, endpoints: ["http://127.0.0.1:1"], username: u, password: ""}`:                   `username: username and password must not be empty`,
		`{driver: etcd, endpoints: ["http://127.0.0.1:1"], tls: {}}`:                                     `tls: is for https:// endpoints`,
		`{driver: etcd, endpoints: ["https://127.0.0.1:1"], tls: {cert: c}}`:                             `tls: cert and key go together`,
		`{driver: etcd, endpoints: ["https://127.0.0.1:1"], tls: {ca: ` + key + `}}`:                     `has no certificate in PEM form`,
		`{driver: etcd, endpoints: ["https://127.0.0.1:1"], tls: {cert: ` + key + `, key: ` + key + `}}`: `tls: cert and key: `,
		`{lease: 3s}`: `lease: belongs to driver: postgres or etcd, and this one is sqlite`,
	} {
		got := faultsOfConfig(t, onS3+text)
		if len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%s\ngot  %q\nwant %q", text, got, want)
		}
		if strings.Contains(strings.Join(got, ""), "hunter2") && !strings.Contains(text, "*hunter2") {
			t.Errorf("%s tells a password: %q", text, got)
		}
	}
}

// A directory belongs to one process, and a registry to several.
func TestSharedRegistryHasNoDirectories(t *testing.T) {
	const registry = "registry: {driver: postgres, dsn: host=127.0.0.1}\n"
	for _, text := range []string{registry, registry + "backends: {here: {type: file, root: /srv/objects}}"} {
		got := faultsOfConfig(t, text)
		if len(got) != 1 || !strings.Contains(got[0], "is a directory, which belongs to one process") {
			t.Errorf("%s\n%q", text, got)
		}
	}
}

func TestConfigRegistryWarnings(t *testing.T) {
	for text, want := range map[string]string{
		`{driver: postgres, dsn: "postgres://u:hunter2@db/fence"}`:                     "the connection to db can be read and changed on the way",
		`{driver: postgres, dsn: "postgres://u:hunter2@db/fence?sslmode=require"}`:     "sslmode=verify-full",
		`{driver: postgres, dsn: "postgres://u:hunter2@db/fence?sslmode=verify-full"}`: "",
		`{driver: postgres, dsn: "postgres://u:hunter2@db/fence?sslmode=verify-ca"}`:   "",
		`{driver: postgres, dsn: "host=/run/postgresql user=u password=hunter2"}`:      "",
		`{driver: etcd, endpoints: ["http://etcd-1:2379"]}`:                            "the connection to etcd-1:2379 can be read",
		`{driver: etcd, endpoints: ["https://etcd-1:2379"]}`:                           "",
	} {
		c := mustParseConfig(t, onS3+text)
		told := strings.Join(c.Warnings, "\n")
		if (want == "") != (told == "") || !strings.Contains(told, want) {
			t.Errorf("%s: warnings %q, want %q", text, told, want)
		}
		var summary strings.Builder
		summarize(&summary, c)
		if strings.Contains(told+summary.String(), "hunter2") || !strings.Contains(summary.String(), "The token registry is shared") {
			t.Errorf("%s: the summary is %s", text, &summary)
		}
	}
}

func TestHealthHasAnAddressOfItsOwn(t *testing.T) {
	for text, want := range map[string]string{
		"health: 127.0.0.1:9000": "is the address of listen, too", "health: 127.0.0.1:9001": "is the address of admin, too", "health: here": "must be an IP address",
	} {
		if got := faultsOfConfig(t, text); len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// What the manual shows of shared registries can be written so.
func TestManualOfSharedRegistries(t *testing.T) {
	text, err := os.ReadFile("../../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var drivers []string
	for _, block := range strings.Split(string(text), "\n# registry:\n")[1:] {
		example := "registry:\n"
		for line := range strings.SplitSeq(block, "\n") {
			key, ok := strings.CutPrefix(line, "#   ")
			if !ok {
				break
			}
			if !strings.HasPrefix(key, "tls:") { // its files are not there
				example += "  " + key + "\n"
			}
		}
		c, err := parseConfig("c", []byte("backends: {far: {type: s3}}\n"+example), func(string) (string, bool) { return "host=127.0.0.1", true })
		if err != nil {
			t.Errorf("%s\n%v", example, err)
			continue
		}
		drivers = append(drivers, c.Registry.Driver)
	}
	if diff := cmp.Diff([]string{"postgres", "etcd"}, drivers); diff != "" {
		t.Error(diff)
	}
}
