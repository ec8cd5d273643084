package demo

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A Proxy is fenceproxy itself over a directory of the stage, as a process.
type Proxy struct {
	URL     string // of the S3 API
	Address string // host and port of it
	Admin   string // URL of the admin API
	Process *Process

	stage *Stage
}

const proxyConfig = `listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: %[1]q
backends: {local: {type: file, root: %[2]q}}
buckets: [{name: "*", backend: local}]
`

// serving is the line of its log that says that the proxy accepts.
var serving = regexp.MustCompile(`msg=serving listen=(\S+) admin=(\S+)`)

// Proxy starts a proxy that nobody has used yet, with a bucket demo.
func (s *Stage) Proxy(ctx context.Context) (*Proxy, error) {
	config := s.Path("config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, proxyConfig, s.Path("data"), s.Path("objects")), 0o600); err != nil {
		return nil, err
	}
	process, err := s.Start("fenceproxy", exec.Command(s.options.Program, "serve", "--config", config))
	if err != nil {
		return nil, err
	}
	found, err := process.WaitLog(ctx, serving)
	if err != nil {
		return nil, err
	}
	p := &Proxy{URL: "http://" + found[1], Address: found[1], Admin: "http://" + found[2], Process: process, stage: s}
	_, err = send(ctx, http.MethodPut, p.URL+"/demo", 0, "", "")
	return p, err
}

// Audit is what `fenceproxy audit` shows.
func (p *Proxy) Audit(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.stage.options.Program, append([]string{"audit", "--admin", p.Admin}, args...)...)
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("fenceproxy audit: %w\n%s", err, out)
	}
	return string(out), nil
}

// A Refusal is an answer of a proxy that is none of success.
type Refusal struct {
	Status  int
	Name    string // X-Fence-Error; "" where the fence has nothing to do with it
	Code    string // of the XML
	Message string
}

func (e *Refusal) Error() string { return fmt.Sprintf("HTTP %d %s: %s", e.Status, e.Code, e.Message) }

// plainHTTP talks to servers on this machine, with no proxy of the environment between.
var plainHTTP = &http.Client{
	Timeout:   patience,
	Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, DisableKeepAlives: true},
}

// send sends one request with a token, unless that is 0, and returns the body of the answer. One that is not 2xx is a *Refusal.
func send(ctx context.Context, method, url string, t tokens.Token, holder, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	if t != 0 {
		req.Header.Set("X-Fence-Token", fmt.Sprint(t))
		req.Header.Set("X-Fence-Holder", holder)
	}
	resp, err := plainHTTP.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if resp.StatusCode/100 != 2 {
		var said struct{ Code, Message string }
		_ = xml.Unmarshal(answer, &said)
		return "", &Refusal{resp.StatusCode, resp.Header.Get("X-Fence-Error"), said.Code, said.Message}
	}
	return string(answer), nil
}
