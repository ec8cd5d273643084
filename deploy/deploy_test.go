// Package deploy holds what is shipped for three proxies to itself: the configurations are good, ports, probes and secrets fit each other,
// nothing runs as root.
package deploy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

var (
	binDir string // of the program
	binary = sync.OnceValues(func() (string, error) {
		path := filepath.Join(binDir, "fenceproxy")
		cmd := exec.Command("go", "build", "-race", "-o", path, "./cmd/fenceproxy") // as everything is built that the tests run
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build: %w\n%s", err, out)
		}
		return path, nil
	})
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	var err error
	if binDir, err = os.MkdirTemp("", "fenceproxy-deploy-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binDir)
	return m.Run()
}

var engines = []string{"postgres", "etcd"}

// stopsWithin is how long a proxy takes to stop, at most, behind its drain: for requests under way, and for writes past the gate.
const stopsWithin = 35 * time.Second

// A node is a piece of YAML, read with the paths that the checks need: names and numbers of list items.
type node struct{ value any }

func (n node) at(path ...any) node {
	for _, step := range path {
		switch v := n.value.(type) {
		case map[string]any:
			name, _ := step.(string)
			n = node{v[name]}
		case []any:
			i, ok := step.(int)
			if !ok || i >= len(v) {
				return node{}
			}
			n = node{v[i]}
		default:
			return node{}
		}
	}
	return n
}

func (n node) text() string {
	if n.value == nil {
		return ""
	}
	return fmt.Sprint(n.value)
}

func (n node) list() (all []node) {
	items, _ := n.value.([]any)
	for _, item := range items {
		all = append(all, node{item})
	}
	return all
}

func (n node) texts() (all []string) {
	for _, item := range n.list() {
		all = append(all, item.text())
	}
	return all
}

func (n node) keys() (names []string) {
	m, _ := n.value.(map[string]any)
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// documents reads a file of one document or several.
func documents(t *testing.T, path string) (all []node) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var v any
		switch err := d.Decode(&v); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, node{v})
	}
}

func document(t *testing.T, path string) node {
	t.Helper()
	all := documents(t, path)
	if len(all) != 1 {
		t.Fatalf("%s has %d documents", path, len(all))
	}
	return all[0]
}

// variables are the names in a file of an environment.
func variables(t *testing.T, path string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(name, "#") {
			if names = append(names, name); value != "" {
				t.Errorf("%s: %s has a value: a secret that everybody knows", path, name)
			}
		}
	}
	return names
}

var variable = regexp.MustCompile(`\$\{([A-Z0-9_]+)`)

// used are the variables that a file asks for.
func used(t *testing.T, path string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range variable.FindAllStringSubmatch(string(text), -1) {
		names = append(names, found[1])
	}
	return names
}

// subset fails for what is missing.
func subset(t *testing.T, what string, names, of []string) {
	t.Helper()
	for _, name := range names {
		if !slices.Contains(of, name) {
			t.Errorf("%s: %s is not among %v", what, name, of)
		}
	}
}

// checkConfig has the program read a configuration, as it stands, but for the files of certificates, in the place of which come some that
// are there. It returns it.
func checkConfig(t *testing.T, path string, environment []string) node {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certify(t, dir)
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte("/etc/fenceproxy-registry/"), []byte(dir+"/")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "config", "check", "--config", file)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH")}
	for _, name := range environment {
		cmd.Env = append(cmd.Env, name+"=0123456789abcdef")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("fenceproxy config check, %s: %v\n%s", path, err, out)
	}
	return document(t, path)
}

// port of an address in a configuration, which others must reach.
func port(t *testing.T, config node, key string) string {
	t.Helper()
	host, port, ok := strings.Cut(config.at(key).text(), ":")
	if !ok || host != "0.0.0.0" {
		t.Errorf("%s is %s, which nobody else reaches", key, config.at(key).text())
	}
	return port
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Error(err)
	}
	return d
}

// pinned says whether an image is always the same one.
func pinned(image string) bool {
	_, tag, ok := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":")
	return ok && tag != "latest" && tag != ""
}

func TestCompose(t *testing.T) {
	base := document(t, "compose/compose.yaml")
	example := variables(t, "compose/example.env")
	subset(t, "compose.yaml", used(t, "compose/compose.yaml"), example)
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			added := document(t, "compose/compose."+engine+".yaml")
			subset(t, engine, used(t, "compose/compose."+engine+".yaml"), example)
			file := "compose/config." + engine + ".yaml"
			environment := base.at("services", "proxy-1", "environment")
			config := checkConfig(t, file, example)
			subset(t, file, used(t, file), environment.keys())

			services := append(base.at("services").keys(), added.at("services").keys()...)
			volumes := append(base.at("volumes").keys(), added.at("volumes").keys()...)
			proxies := 0
			for _, name := range base.at("services").keys() {
				if strings.HasPrefix(name, "proxy-") {
					proxies++
					checkComposeProxy(t, name, base.at("services", name), added.at("services", name), config)
				}
			}
			if proxies != 3 {
				t.Errorf("%d proxies", proxies)
			}
			for _, part := range []node{base, added} {
				for _, name := range part.at("services").keys() {
					checkService(t, name, part.at("services", name), services, volumes)
				}
			}
			for _, host := range hosts(config) {
				if !slices.Contains(services, host) {
					t.Errorf("the configuration names %s, which is no service", host)
				}
			}
		})
	}
}

// hosts of everything that a configuration for compose reaches.
func hosts(config node) (all []string) {
	urls := append(config.at("registry", "endpoints").texts(), config.at("backends", "store", "endpoint").text(), config.at("registry", "dsn").text())
	for _, u := range urls {
		if found := regexp.MustCompile(`://(?:[^@/]*@)?([^:/]+)`).FindStringSubmatch(u); found != nil {
			all = append(all, found[1])
		}
	}
	return all
}

func checkComposeProxy(t *testing.T, name string, base, added, config node) {
	t.Helper()
	if user := base.at("user").text(); user == "" || strings.HasPrefix(user, "0") || strings.HasPrefix(user, "root") {
		t.Errorf("%s runs as %q", name, user)
	}
	if base.at("read_only").text() != "true" || !slices.Equal(base.at("cap_drop").texts(), []string{"ALL"}) ||
		!slices.Contains(base.at("security_opt").texts(), "no-new-privileges:true") {
		t.Errorf("%s may do more than it needs", name)
	}
	grace := duration(t, base.at("stop_grace_period").text())
	if needed := duration(t, config.at("drain").text()) + stopsWithin; grace <= needed {
		t.Errorf("%s has %v to stop, and needs %v", name, grace, needed)
	}
	if m := added.at("volumes", 0).text(); !strings.HasSuffix(m, ":/etc/fenceproxy/config.yaml:ro") {
		t.Errorf("%s has its configuration from %s", name, m)
	}
	if m := base.at("volumes", 0).text(); !strings.HasSuffix(m, ":"+config.at("data").text()) {
		t.Errorf("%s has its data in %s", name, m)
	}
}

// checkService holds a service to what it names.
func checkService(t *testing.T, name string, s node, services, volumes []string) {
	t.Helper()
	if image := s.at("image").text(); image != "" && !pinned(image) {
		t.Errorf("%s: the image %s is another one tomorrow", name, image)
	}
	after := append(s.at("depends_on").texts(), s.at("depends_on").keys()...)
	subset(t, name+" depends on", after, services)
	for _, mount := range s.at("volumes").texts() {
		from, _, _ := strings.Cut(mount, ":")
		if !strings.HasPrefix(from, "./") {
			subset(t, name+" mounts", []string{from}, volumes)
		} else if _, err := os.Stat(filepath.Join("compose", from)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBalancer: HAProxy knows all proxies, and asks them where they answer. It repeats no write.
func TestBalancer(t *testing.T) {
	text, err := os.ReadFile("compose/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	for _, engine := range engines {
		config := document(t, "compose/config."+engine+".yaml")
		health, data := port(t, config, "health"), port(t, config, "listen")
		if !strings.Contains(string(text), "check port "+health+" ") || !strings.Contains(string(text), "uri /readyz") {
			t.Errorf("%s: it does not ask port %s for /readyz", engine, health)
		}
		for _, name := range document(t, "compose/compose.yaml").at("services").keys() {
			if line := "server " + name + " " + name + ":" + data; strings.HasPrefix(name, "proxy-") && !strings.Contains(string(text), line+"\n") {
				t.Errorf("%s: there is no %q", engine, line)
			}
		}
		// Out after fall looks, one each inter, and one that is not answered takes a second; the port stays open for drain.
		if drain := duration(t, config.at("drain").text()); drain < 3*time.Second {
			t.Errorf("%s: drain: %v is over before the balancer notices", engine, drain)
		}
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 0 && (words[0] == "retry-on" || words[0] == "http-reuse" && words[1] == "aggressive") {
			t.Errorf("%q may send a write twice", strings.TrimSpace(line))
		}
	}
	if published := document(t, "compose/compose.yaml").at("services", "balancer", "ports", 0).text(); !strings.HasSuffix(published, ":9000") ||
		!strings.Contains(string(text), "bind :9000") {
		t.Errorf("it is published as %s", published)
	}
}

func TestKubernetes(t *testing.T) {
	base := map[string]node{}
	for _, file := range document(t, "kubernetes/base/kustomization.yaml").at("resources").texts() {
		d := document(t, filepath.Join("kubernetes/base", file))
		base[d.at("kind").text()] = d
	}
	for _, kind := range []string{"Deployment", "Service", "PodDisruptionBudget", "ServiceAccount"} {
		if base[kind].value == nil {
			t.Fatalf("there is no %s", kind)
		}
	}
	checkSelectors(t, base)
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			dir := filepath.Join("kubernetes", engine)
			overlay := document(t, filepath.Join(dir, "kustomization.yaml"))
			environment := variables(t, filepath.Join(dir, "secret.env.example"))
			config := checkConfig(t, filepath.Join(dir, "config.yaml"), environment)
			subset(t, "config.yaml", used(t, filepath.Join(dir, "config.yaml")), environment)
			checkGenerated(t, dir, overlay, config, base["Deployment"])
			checkDeployment(t, base["Deployment"], overlay, config)
			if p := base["Service"].at("spec", "ports", 0); p.at("targetPort").text() != "s3" || p.at("port").text() != port(t, config, "listen") {
				t.Errorf("the service leads to %v", p.value)
			}
		})
	}
}

// checkSelectors: whoever selects pods selects these.
func checkSelectors(t *testing.T, base map[string]node) {
	t.Helper()
	labels := base["Deployment"].at("spec", "template", "metadata", "labels")
	for what, selector := range map[string]node{
		"Deployment": base["Deployment"].at("spec", "selector", "matchLabels"), "Service": base["Service"].at("spec", "selector"),
		"PodDisruptionBudget": base["PodDisruptionBudget"].at("spec", "selector", "matchLabels"),
		"spread":              base["Deployment"].at("spec", "template", "spec", "topologySpreadConstraints", 0, "labelSelector", "matchLabels"),
	} {
		if len(selector.keys()) == 0 {
			t.Errorf("%s selects everything", what)
		}
		for _, key := range selector.keys() {
			if selector.at(key).text() != labels.at(key).text() {
				t.Errorf("%s does not select the pods: %v", what, selector.value)
			}
		}
	}
	if base["Deployment"].at("spec", "replicas").text() != "3" || base["PodDisruptionBudget"].at("spec", "maxUnavailable").text() != "1" {
		t.Error("more than one of three may be away")
	}
	if base["Deployment"].at("spec", "template", "spec", "serviceAccountName").text() != base["ServiceAccount"].at("metadata", "name").text() {
		t.Error("the pods have another service account")
	}
}

// checkGenerated: each configuration and secret that the pods name is made, of all files that the configuration names.
func checkGenerated(t *testing.T, dir string, overlay, config, deployment node) {
	t.Helper()
	made := map[string][]string{}
	for _, kind := range []string{"configMapGenerator", "secretGenerator"} {
		for _, g := range overlay.at(kind).list() {
			name := kind + "/" + g.at("name").text()
			for _, file := range append(g.at("files").texts(), g.at("envs").texts()...) {
				made[name] = append(made[name], filepath.Base(file))
				ignored := strings.HasPrefix(file, "tls/") || file == "secret.env"
				if _, err := os.Stat(filepath.Join(dir, file)); errors.Is(err, fs.ErrNotExist) != ignored && !errors.Is(err, nil) {
					t.Errorf("%s: %s: %v", name, file, err)
				}
			}
		}
	}
	pod := deployment.at("spec", "template", "spec")
	named := []string{"secretGenerator/" + pod.at("containers", 0, "envFrom", 0, "secretRef", "name").text()}
	for _, v := range pod.at("volumes").list() {
		if name := v.at("configMap", "name").text(); name != "" {
			named = append(named, "configMapGenerator/"+name)
		}
		if name := v.at("secret", "secretName").text(); name != "" {
			named = append(named, "secretGenerator/"+name)
		}
	}
	for _, name := range named {
		if len(made[name]) == 0 {
			t.Errorf("the pods need %s, and nothing makes it", name)
		}
	}
	for name := range made {
		if !slices.Contains(named, name) {
			t.Errorf("%s is made, and no pod has it", name)
		}
	}
	for _, file := range regexp.MustCompile(`/etc/fenceproxy-registry/([a-z.]+)`).FindAllStringSubmatch(fmt.Sprint(config.value), -1) {
		if !slices.Contains(made["secretGenerator/fenceproxy-registry-tls"], file[1]) {
			t.Errorf("the configuration needs %s, which no secret has", file[0])
		}
	}
}

func checkDeployment(t *testing.T, deployment, overlay, config node) {
	t.Helper()
	pod := deployment.at("spec", "template", "spec")
	c := pod.at("containers", 0)
	if len(pod.at("containers").list()) != 1 {
		t.Error("there are other containers")
	}
	image := c.at("image").text()
	for _, i := range overlay.at("images").list() {
		if i.at("name").text() == image {
			image = i.at("newName").text() + ":" + i.at("newTag").text()
		}
	}
	if !pinned(image) {
		t.Errorf("the image %s is another one tomorrow", image)
	}
	ports := map[string]string{}
	for _, p := range c.at("ports").list() {
		ports[p.at("name").text()] = p.at("containerPort").text()
	}
	if ports["s3"] != port(t, config, "listen") || ports["health"] != port(t, config, "health") {
		t.Errorf("the ports are %v", ports)
	}
	for probe, path := range map[string]string{"readinessProbe": "/readyz", "livenessProbe": "/healthz", "startupProbe": "/healthz"} {
		if p := c.at(probe, "httpGet"); p.at("path").text() != path || p.at("port").text() != "health" {
			t.Errorf("%s: %v", probe, p.value)
		}
	}
	for what, is := range map[string]bool{
		"non-root":            pod.at("securityContext", "runAsNonRoot").text() == "true" && pod.at("securityContext", "runAsUser").text() > "0",
		"seccomp":             pod.at("securityContext", "seccompProfile", "type").text() == "RuntimeDefault",
		"read-only root":      c.at("securityContext", "readOnlyRootFilesystem").text() == "true",
		"no escalation":       c.at("securityContext", "allowPrivilegeEscalation").text() == "false",
		"no capabilities":     slices.Equal(c.at("securityContext", "capabilities", "drop").texts(), []string{"ALL"}),
		"no API token":        pod.at("automountServiceAccountToken").text() == "false",
		"a limit of memory":   c.at("resources", "limits", "memory").text() != "",
		"one more at a time":  deployment.at("spec", "strategy", "rollingUpdate", "maxUnavailable").text() == "0",
		"its configuration":   slices.Contains(c.at("args").texts(), "/etc/fenceproxy/config.yaml"),
		"a writable data dir": hasMount(c, config.at("data").text()),
	} {
		if !is {
			t.Errorf("no %s", what)
		}
	}
	grace := duration(t, pod.at("terminationGracePeriodSeconds").text()+"s")
	if needed := duration(t, config.at("drain").text()) + stopsWithin; grace <= needed {
		t.Errorf("a pod has %v to stop, and needs %v", grace, needed)
	}
}

func hasMount(container node, path string) bool {
	return slices.ContainsFunc(container.at("volumeMounts").list(), func(m node) bool {
		return m.at("mountPath").text() == path && m.at("readOnly").text() != "true"
	})
}

// TestImage: the image is not root's, and has the paths that the manifests lean on.
func TestImage(t *testing.T) {
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"USER 65532:65532\n", `ENTRYPOINT ["/fenceproxy"]`, "FROM scratch\n", "--chown=65532:65532 /out/data /data\n"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("it has no %q", line)
		}
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	wanted := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mod)[1]
	if !strings.Contains(string(text), "FROM golang:"+string(wanted)) {
		t.Errorf("go.mod wants Go %s, and it is built with another", wanted)
	}
	ignored, err := os.ReadFile("Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "list", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "-deps", "../cmd/fenceproxy").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.Lines(string(out)) {
		if dir, ours := strings.CutPrefix(strings.TrimSpace(pkg), "github.com/fenceproxy/fenceproxy/"); ours {
			top, _, _ := strings.Cut(dir, "/")
			if !strings.Contains(string(ignored), "!"+top+"\n") {
				t.Errorf("%s is not sent to the build: .dockerignore leaves it out", dir)
			}
		}
	}
}
