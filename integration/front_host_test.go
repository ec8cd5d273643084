package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// TestVirtualHosts: a bucket has a host name of its own, with the same objects and the same fence as by its path.
func TestVirtualHosts(t *testing.T) {
	t.Parallel()
	p := newProxy(t, plainConfig+"\ndomain: s3.test\n")
	p.start(t)
	client := &http.Client{Transport: p.transport(t, nil, false), Timeout: 2 * time.Minute}
	at := func(host, method, path, body string, headers ...string) answer {
		t.Helper()
		s := &signer{T: t, base: "http://" + host, client: client}
		return s.do(method, path, body, headers...)
	}
	at("bkt.s3.test", "PUT", "/", "").want(t, 200)
	for i, host := range []string{"bkt.s3.test", "bkt.s3.test:9000", "bkt.S3.Test", "s3.test/bkt", p.addr + "/bkt"} {
		key := fmt.Sprintf("/jobs/%d/a b+c", i)
		escaped := strings.ReplaceAll(key, " ", "%20")
		a := at(host, "PUT", escaped, "of 34", "X-Fence-Token", "34").want(t, 200)
		if got := a.header.Get("X-Fence-Resource"); got != fmt.Sprintf("bkt/jobs/%d", i) {
			t.Errorf("%s: X-Fence-Resource is %q", host, got)
		}
		for _, other := range []string{"bkt.s3.test", "s3.test/bkt", p.addr + "/bkt"} {
			if got := at(other, "GET", escaped, "").want(t, 200); string(got.body) != "of 34" {
				t.Errorf("%s after %s: %q", other, host, got.body)
			}
			at(other, "PUT", escaped, "stale", "X-Fence-Token", "33").stale(t, 34)
			at(other, "DELETE", escaped, "", "X-Fence-Token", "33").stale(t, 34)
		}
		at("bkt.s3.test", "PUT", "/~fence/35"+escaped, "of 35").want(t, 200)
		p.marked(t, "/bkt"+escaped, 35)
	}
	if got := at("bkt.s3.test", "GET", "/?list-type=2&prefix=jobs/0/", "").want(t, 200); !strings.Contains(string(got.body), "<Key>jobs/0/a b+c</Key>") {
		t.Errorf("a list by host: %s", got.body)
	}
	at("s3.test", "GET", "/", "").want(t, 200)
	at("bkt.s3.test", "HEAD", "/", "").want(t, 200)
	at("none.s3.test", "GET", "/k", "").refusedAs(t, 404, "NoSuchBucket", "")
	at("bkt.s3.other", "PUT", "/bkt/jobs/9/a", "x", "X-Fence-Token", "1").want(t, 403) // without keys the proxy goes by its own names only
	at("bkts3.test", "PUT", "/bkt/jobs/9/a", "x", "X-Fence-Token", "1").want(t, 403)
	at("bkt.s3.test", "DELETE", "/jobs/0/a%20b+c", "", "X-Fence-Token", "35").want(t, 204)
}

// TestTheSDKByHost: in its default settings the SDK puts the bucket into the name, by HTTP and HTTPS.
func TestTheSDKByHost(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t, "")
			config := secureConfig + "domain: s3.test\n"
			p.writeConfig(t, config)
			issuer := (*authority)(nil)
			if scheme == "https" {
				issuer = a
				p.withTLS(t, a, config)
			}
			p.start(t)
			s := p.signer(t, "ALL")
			s.base = scheme + "://s3.test"
			hosts := &hostList{RoundTripper: p.transport(t, issuer, true)}
			s.client.Transport = hosts
			as := func(token string) *s3.Client {
				return s.sdk(func(o *s3.Options) {
					o.UsePathStyle, o.BaseEndpoint = false, aws.String(s.base+"/~fence/"+token)
				})
			}
			w := &sdkWork{T: t, bucket: "bucket", stale: as("33"), holder: as("34")}
			w.run(t.Context())
			if !slices.Contains(hosts.seen, "bucket.s3.test") || slices.Contains(hosts.seen, "s3.test") {
				t.Errorf("it went to %q", hosts.seen)
			}
		})
	}
}

// A hostList notes which hosts are asked.
type hostList struct {
	http.RoundTripper
	seen []string
}

func (h *hostList) RoundTrip(r *http.Request) (*http.Response, error) {
	if !slices.Contains(h.seen, r.URL.Host) {
		h.seen = append(h.seen, r.URL.Host)
	}
	return h.RoundTripper.RoundTrip(r)
}

// TestAnonymousFromAnywhere: off loopback a proxy without keys starts only if the configuration says so, and goes by any name then.
func TestAnonymousFromAnywhere(t *testing.T) {
	t.Parallel()
	open := strings.Replace(plainConfig, "listen: 127.0.0.1:0", "listen: 0.0.0.0:0", 1)
	p := newProxy(t, open)
	if said := p.refused(t); !strings.Contains(said, "config.yaml:2: listen: ") || !strings.Contains(said, "anonymous: true") {
		t.Errorf("%s", said)
	}
	p.writeConfig(t, open+"\nanonymous: true\n")
	p.start(t)
	p.addr = "127.0.0.1:" + p.port()
	p.do(t, "PUT", "/bkt", "", "Host", "storage.example").want(t, 200)
	p.do(t, "PUT", "/bkt/k", "x", "Host", "storage.example", "X-Fence-Token", "34").want(t, 200)
	p.do(t, "PUT", "/bkt/k", "x", "Host", "storage.example", "X-Fence-Token", "33").stale(t, 34)
}
