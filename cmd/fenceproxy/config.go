package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/backends/s3"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"go.yaml.in/yaml/v3"
)

// A config is what config.yaml says, checked and complete. The shipped config.yaml explains each key. Paths are as the file
// has them, cleaned: relative ones begin at the working directory of the process.
type config struct {
	File       string // the file it was read from
	Listen     string // host:port of the S3 API, loopback where there are no access keys; port 0 is any free one
	Admin      string // host:port of the admin API, loopback
	Health     string // host:port that serves health and metrics alone; "" for none
	Data       string // directory of what this process keeps for itself: with sqlite the registry, and the audit log
	Registry   registryConfig
	Backends   []backendConfig
	Buckets    []rules.Bucket // what Rules was made of
	Rules      *rules.Table
	AccessKeys []accessKey   // who may come in; empty: everybody, from this machine or, if Anonymous, from anywhere
	Anonymous  bool          // listen is meant to be open to everybody
	Domain     string        // of the virtual-host style; "" for none
	Region     string        // the one that signatures of clients must name; "" for any
	TLS        tlsFiles      // of the S3 API; empty for plain HTTP
	AuditKeep  time.Duration // how long audit records are kept
	RaiseWait  time.Duration // how long a client waits for a raise
	Drain      time.Duration // from the signal to stop to the end of listen

	// BufferBytes is the longest body, in bytes, that is read whole and verified before the store is asked; longer ones stream.
	// MemoryBytes is what all bodies that are held so may take together, never less than BufferBytes.
	BufferBytes, MemoryBytes int64

	Connections int64         // of clients at once; also the requests that are under way at once
	HeaderWait  time.Duration // for the headers of a request
	BodyWait    time.Duration // for a client that neither sends more of its request nor takes more of its answer
	IdleWait    time.Duration // of a connection between two requests

	Warnings []string // what serve starts with, and still should be told, each with its place
}

// A backendConfig is one store. At least one bucket entry leads to it.
type backendConfig struct {
	Name string
	Type string // file or s3
	Root string // of a file backend: directory of the objects; never that of another backend, nor one that holds config.Data
	S3   s3.Options

	Conditional string        // of an S3 backend: auto, on or off
	Settle      time.Duration // of an S3 backend: from the gate to the effect at most; ten times that for copies, Completes and batches
	Stamp       bool          // writes leave the registry's stamp with the object
}

// maxConfig is the size in bytes from which a file is taken for something else.
const maxConfig = 1 << 20

// defaultConfig is an empty file.
func defaultConfig() config {
	return config{
		Listen:    "127.0.0.1:9000",
		Admin:     "127.0.0.1:9001",
		Data:      "data",
		Registry:  registryConfig{Driver: sqliteDriver},
		AuditKeep: 90 * day,
		RaiseWait: 5 * time.Second,

		BufferBytes: 8 << 20,
		MemoryBytes: 512 << 20,

		Connections: 10_000,
		HeaderWait:  10 * time.Second,
		BodyWait:    time.Minute,
		IdleWait:    2 * time.Minute,
	}
}

// defaultBackends is what an absent backends means. It depends on data.
func defaultBackends(data string) []backendConfig {
	return []backendConfig{{Name: "local", Type: "file", Root: filepath.Join(data, "objects"), Stamp: true}}
}

// loadConfig reads and checks a configuration. getenv gives the environment for ${NAME}, as [os.LookupEnv] does. Its error
// names everything that is wrong with the file, one fault a line, each with its place; it is a [configFaults] unless the
// file cannot be read.
func loadConfig(path string, getenv func(string) (string, bool)) (*config, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration: %w; say where it is with --config FILE", err)
	}
	if err != nil {
		return nil, fmt.Errorf("the configuration cannot be read: %w", err)
	}
	return parseConfig(path, text, getenv)
}

// parseConfig is loadConfig for a text. path is only for messages.
func parseConfig(path string, text []byte, getenv func(string) (string, bool)) (*config, error) {
	r := newConfigReader(path, getenv)
	d := configDraft{config: defaultConfig()}
	d.File = path
	if len(text) > maxConfig {
		r.faultAt(1, fmt.Sprintf("this file has %d bytes; a configuration has %d at most", len(text), maxConfig))
	} else if document := r.document(text); document != nil {
		d.values = readMapping(r, document, configKeys, &d)
	}
	d.finish(r)
	d.Warnings = r.warns
	if err := r.err(); err != nil {
		return nil, err
	}
	return &d.config, nil
}

// A configDraft is a config on its way: what is read, and the nodes that faults found later belong to.
type configDraft struct {
	config
	values   map[string]*yaml.Node // of the top level, by key
	registry map[string]*yaml.Node // of registry, by key
	backends []backendDraft
	buckets  []bucketDraft
	keys     []keyDraft
	pair     *tls.Certificate // of TLS; nil where it could not be read
}

type backendDraft struct {
	backendConfig
	node   *yaml.Node // its name
	values map[string]*yaml.Node
	used   bool // or nothing to be said if it is not
}

// The keys of each level. One that cannot be read is in the design but not in this version: it is refused, for who writes it
// counts on it.
var (
	configKeys = []configKey[configDraft]{
		{"listen", func(r *configReader, n *yaml.Node, d *configDraft) {
			r.address(n, &d.Listen)
		}},
		{"admin", func(r *configReader, n *yaml.Node, d *configDraft) {
			r.loopback(n, "this version has no admin_token", &d.Admin)
		}},
		{"health", func(r *configReader, n *yaml.Node, d *configDraft) { r.address(n, &d.Health) }},
		{"drain", func(r *configReader, n *yaml.Node, d *configDraft) { r.duration(n, 0, 10*time.Minute, &d.Drain) }},
		{"data", func(r *configReader, n *yaml.Node, d *configDraft) { r.path(n, &d.Data) }},
		{"registry", readRegistry},
		{"backends", readBackends},
		{"buckets", readBuckets},
		{"access_keys", readAccessKeys},
		{"audit", func(r *configReader, n *yaml.Node, d *configDraft) { readMapping(r, n, auditKeys, &d.config) }},
		{"limits", readLimits},
		{"anonymous", func(r *configReader, n *yaml.Node, d *configDraft) { r.boolean(n, &d.Anonymous) }},
		{"domain", readDomain},
		{"region", readRegion},
		{"tls", readTLS},
		{"admin_token", nil},
	}
	fileKeys = []configKey[backendConfig]{
		{"type", readBackendType},
		{"root", func(r *configReader, n *yaml.Node, b *backendConfig) { r.path(n, &b.Root) }},
		{"stamp", readStamp},
	}
	s3Keys = []configKey[backendConfig]{
		{"type", readBackendType},
		{"region", func(r *configReader, n *yaml.Node, b *backendConfig) { r.text(n, &b.S3.Region) }},
		{"endpoint", func(r *configReader, n *yaml.Node, b *backendConfig) { r.text(n, &b.S3.Endpoint) }},
		{"path_style", func(r *configReader, n *yaml.Node, b *backendConfig) { r.boolean(n, &b.S3.PathStyle) }},
		{"profile", func(r *configReader, n *yaml.Node, b *backendConfig) { r.text(n, &b.S3.Profile) }},
		{"role_arn", func(r *configReader, n *yaml.Node, b *backendConfig) { r.text(n, &b.S3.RoleARN) }},
		{"access_key", func(r *configReader, n *yaml.Node, b *backendConfig) { r.text(n, &b.S3.AccessKey) }},
		{"secret_key", func(r *configReader, n *yaml.Node, b *backendConfig) { r.text(n, &b.S3.SecretKey) }},
		{"conditional", func(r *configReader, n *yaml.Node, b *backendConfig) { r.oneOf(n, &b.Conditional, "auto", "on", "off") }},
		{"settle", func(r *configReader, n *yaml.Node, b *backendConfig) {
			r.duration(n, time.Second, time.Hour, &b.Settle)
		}},
		{"stamp", readStamp},
	}
	auditKeys = []configKey[config]{
		{"keep", func(r *configReader, n *yaml.Node, c *config) { r.duration(n, time.Hour, 36500*day, &c.AuditKeep) }},
	}
	limitKeys = []configKey[config]{
		{"raise_wait", func(r *configReader, n *yaml.Node, c *config) {
			r.duration(n, time.Millisecond, 10*time.Minute, &c.RaiseWait)
		}},
		{"buffer", func(r *configReader, n *yaml.Node, c *config) { r.size(n, 0, 64<<20, &c.BufferBytes) }},
		{"memory", func(r *configReader, n *yaml.Node, c *config) { r.size(n, 0, 1<<40, &c.MemoryBytes) }},
		{"connections", func(r *configReader, n *yaml.Node, c *config) { r.count(n, 1, 1_000_000, &c.Connections) }},
		{"header_wait", func(r *configReader, n *yaml.Node, c *config) {
			r.duration(n, 100*time.Millisecond, 10*time.Minute, &c.HeaderWait)
		}},
		{"body_wait", func(r *configReader, n *yaml.Node, c *config) {
			r.duration(n, 100*time.Millisecond, time.Hour, &c.BodyWait)
		}},
		{"idle_wait", func(r *configReader, n *yaml.Node, c *config) {
			r.duration(n, 100*time.Millisecond, time.Hour, &c.IdleWait)
		}},
	}
)

func readBackends(r *configReader, n *yaml.Node, d *configDraft) {
	pairs := r.pairs(n)
	if len(pairs) == 0 && !r.bad[n] {
		r.fault(n, "names no backend; take the key out for the default, or write one")
	}
	for _, p := range pairs {
		b := backendDraft{backendConfig: backendConfig{Name: p.key.Value, Stamp: true}, node: p.key}
		if !isBackendName(p.key.Value) {
			r.fault(p.key, "%q cannot name a backend; write up to 63 lower-case letters, digits, - and _, a letter first", p.key.Value)
		}
		keys, needs := fileKeys, []string{"type", "root"}
		if kind := yamlValueOf(p.value, "type"); kind != nil && kind.Value == "s3" {
			keys, needs = s3Keys, nil
			b.Conditional, b.Settle = "auto", defaultSettle
		}
		b.values = readMapping(r, p.value, keys, &b.backendConfig)
		for _, key := range needs {
			if b.values != nil && b.values[key] == nil {
				r.fault(p.key, "backend %s has no %s; write {type: file, root: DIRECTORY}", b.Name, key)
			}
		}
		d.backends = append(d.backends, b)
	}
}

// defaultSettle is how long S3 may take from the gate to the effect where the configuration does not say.
const defaultSettle = time.Minute

func readStamp(r *configReader, n *yaml.Node, b *backendConfig) { r.onOff(n, &b.Stamp) }

// readLimits refuses a budget in which the longest body does not fit: no body of that length would ever be read whole.
func readLimits(r *configReader, n *yaml.Node, d *configDraft) {
	values := readMapping(r, n, limitKeys, &d.config)
	if d.MemoryBytes < d.BufferBytes && !r.bad[values["buffer"]] {
		r.fault(values["memory"], "%s is less than buffer, %s; give it room for many bodies of that size", formatSize(d.MemoryBytes), formatSize(d.BufferBytes))
	}
}

func readBackendType(r *configReader, n *yaml.Node, b *backendConfig) {
	r.oneOf(n, &b.Type, "file", "s3")
}

// finish puts the defaults in that depend on other values, and checks what one value alone does not show.
func (d *configDraft) finish(r *configReader) {
	if d.values["backends"] == nil {
		for _, b := range defaultBackends(d.Data) {
			d.backends = append(d.backends, backendDraft{backendConfig: b, used: true})
		}
	}
	d.checkAddresses(r)
	d.checkRoots(r)
	d.finishBuckets(r)
	d.finishAccessKeys(r)
	d.finishTLS(r)
	d.finishRegistry(r)
	for _, b := range d.backends {
		d.Backends = append(d.Backends, b.backendConfig)
	}
}

func (d *configDraft) checkAddresses(r *configReader) {
	listen, admin := d.values["listen"], d.values["admin"]
	if host, _, err := splitAddress(d.Listen); err == nil && !host.IsLoopback() && len(d.keys) == 0 && !d.Anonymous && !r.bad[d.values["anonymous"]] {
		r.fault(listen, "%s is reached from other machines, and without access_keys everybody there may write; write access_keys, or a loopback address such as 127.0.0.1:9000, "+
			"or anonymous: true if that is meant", d.Listen)
	}
	if d.Anonymous && len(d.keys) > 0 {
		r.fault(d.values["anonymous"], "true lets everybody in, and access_keys only those who have one; take one of them out")
	}
	d.checkHealth(r)
	if r.bad[listen] || r.bad[admin] || !sameAddress(d.Listen, d.Admin) {
		return
	}
	if admin == nil {
		r.fault(listen, "%s is the address of admin, too; give it another port", d.Listen)
		return
	}
	r.fault(admin, "%s is the address of listen, too; give it another port", d.Admin)
}

// checkHealth keeps the address of health apart from the others.
func (d *configDraft) checkHealth(r *configReader) {
	health := d.values["health"]
	if r.bad[health] || d.Health == "" {
		return
	}
	for _, other := range []struct{ key, address string }{{"listen", d.Listen}, {"admin", d.Admin}} {
		if !r.bad[d.values[other.key]] && sameAddress(d.Health, other.address) {
			r.fault(health, "%s is the address of %s, too; give it another port", d.Health, other.key)
		}
	}
}

// checkRoots keeps the name spaces of the stores apart: from each other, for one registry's fence over the same files from two
// sides is none, and from the data directory, whose files a writer could reach as objects.
func (d *configDraft) checkRoots(r *configReader) {
	for i := range d.backends {
		b := &d.backends[i]
		node := b.values["root"]
		if node == nil || r.bad[node] || b.Type != "file" {
			continue
		}
		if pathHolds(b.Root, d.Data) && !r.bad[d.values["data"]] {
			r.fault(node, "%s holds the data directory, %s, whose files would be objects; "+
				"give the objects a directory of their own, such as %s", b.Root, d.Data, filepath.Join(d.Data, "objects"))
		}
		for _, other := range d.backends[:i] {
			if other.Root != "" && (pathHolds(b.Root, other.Root) || pathHolds(other.Root, b.Root)) {
				r.fault(node, "%s and %s of backend %s share files; give each backend a directory of its own", b.Root, other.Root, other.Name)
			}
		}
	}
}

// pathHolds says that child is parent or below it, by the words alone: links are not followed.
func pathHolds(parent, child string) bool {
	p, err1 := filepath.Abs(parent)
	c, err2 := filepath.Abs(child)
	if err1 != nil || err2 != nil {
		return parent == child
	}
	rel, err := filepath.Rel(p, c)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
