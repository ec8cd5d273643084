package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	readWait    = time.Minute // for an answer that changes nothing; a reset may wait for older writes and has no bound
	connectWait = 5 * time.Second
	pageSize    = 1000 // entries in one answer: as many as the API gives
)

// addAdminFlags adds what says where the proxy is.
func addAdminFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.String("admin", "", "`URL[,URL…]` of the running proxies' admin APIs (default: admin of the configuration)")
	f.String("config", "config.yaml", "configuration to read that from")
	_ = cmd.MarkPersistentFlagFilename("config", "yaml", "yml")
}

// adminURL is where the admin API of the proxy is that a command talks to.
var adminURL = func(cmd *cobra.Command) (string, error) {
	if given, err := cmd.Flags().GetString("admin"); err != nil || given != "" {
		return given, err
	}
	path, err := cmd.Flags().GetString("config")
	if err != nil {
		return "", err
	}
	c, err := loadConfig(path, os.LookupEnv)
	if err != nil {
		return "", fmt.Errorf("cannot tell where the proxy is (--admin URL says it): %w", err)
	}
	if strings.HasSuffix(c.Admin, ":0") {
		return "", fmt.Errorf("%s lets the proxy choose its admin port: say which one it took with --admin URL", path)
	}
	return "http://" + c.Admin, nil
}

// An adminClient calls the admin API of one proxy.
type adminClient struct {
	base string // without a slash at its end
	http *http.Client
}

// newAdminClients returns a client for each proxy that was named.
func newAdminClients(cmd *cobra.Command) ([]*adminClient, error) {
	named, err := adminURL(cmd)
	if err != nil {
		return nil, err
	}
	var clients []*adminClient
	for base := range strings.SplitSeq(named, ",") {
		base = strings.TrimSpace(base)
		if !strings.Contains(base, "://") {
			base = "http://" + base
		}
		u, err := url.Parse(base)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.RawQuery != "" || u.Fragment != "" {
			return nil, fmt.Errorf("--admin %q is not the URL of a proxy: it looks like http://127.0.0.1:9001", base)
		}
		// Neither a proxy of the environment nor a connection that outlives the command.
		transport := &http.Transport{DialContext: (&net.Dialer{Timeout: connectWait}).DialContext, DisableKeepAlives: true}
		clients = append(clients, &adminClient{base: strings.TrimRight(base, "/"), http: &http.Client{Transport: transport}})
	}
	return clients, nil
}

// newAdminClient returns a client for the first proxy that answers. Proxies that share a registry tell the same of its fences.
func newAdminClient(cmd *cobra.Command) (*adminClient, error) {
	clients, err := newAdminClients(cmd)
	if err != nil {
		return nil, err
	}
	if len(clients) == 1 {
		return clients[0], nil
	}
	var silent []error
	for _, c := range clients {
		var health struct{}
		if err := c.get(cmd.Context(), "/healthz", nil, &health); err != nil {
			silent = append(silent, err)
			continue
		}
		for _, err := range silent {
			cmd.PrintErrln("fenceproxy:", err)
		}
		return c, nil
	}
	return nil, errors.Join(silent...)
}

func (c *adminClient) get(ctx context.Context, path string, query url.Values, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	return c.do(r, answer)
}

func (c *adminClient) post(ctx context.Context, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	return c.do(r, answer)
}

func (c *adminClient) do(r *http.Request, answer any) error {
	r.Header.Set("User-Agent", "fenceproxy")
	resp, err := c.http.Do(r)
	if err != nil {
		return c.noAnswer(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return c.noAnswer(err)
	}
	if resp.StatusCode != http.StatusOK {
		return c.problem(resp, body)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("what answers at %s is not the admin API of a fenceproxy: %w", c.base, err)
	}
	return nil
}

func (c *adminClient) noAnswer(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("no proxy answers at %s: is `fenceproxy serve` running? (--admin says where)", c.base)
	}
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // without the whole URL once more
	}
	return fmt.Errorf("the proxy at %s gave no answer: %w", c.base, err)
}

// problem is the sentence of an answer that says no. Names that clients chose may be in it.
func (c *adminClient) problem(resp *http.Response, body []byte) error {
	var p struct {
		Detail string `json:"detail"`
	}
	if err := json.Unmarshal(body, &p); err != nil || p.Detail == "" {
		return fmt.Errorf("what answers at %s is not the admin API of a fenceproxy: it says %s", c.base, printable(resp.Status))
	}
	return errors.New(printable(p.Detail))
}
