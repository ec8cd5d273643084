// Package fence takes the proxy's own lock on a resource: [fenceproxy]'s, which keeps it in its token registry. Its tokens are above all
// that were issued for the resource and all that it has seen, so it may be taken up where another lock service was used before.
//
//	service, err := fence.Open("fence://proxy:9000/bucket/jobs/7/state")
//
// The resource is that of the key, by the proxy's rules; the object need not exist. Requests are signed with the credentials that the AWS
// SDKs would find (environment, shared files), where there are any. No machine's clock is asked when the lock is over but
// that of the proxy which looks.
//
// [fenceproxy]: https://github.com/fenceproxy/fenceproxy
package fence

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/fenceproxy/fenceproxy/internal/trust"
)

// defaultPort is the one that the proxy has where its configuration says nothing.
const defaultPort = "9000"

// defaultRegion is signed for where none is configured; a proxy without `region` takes any.
const defaultRegion = "us-east-1"

var errForm = errors.New("it has the form fence://HOST:9000/BUCKET/KEY, and may end in ?tls=true, and &ca=FILE for the certificates to trust")

// A Service is one lock of a proxy. It implements [locks.Service].
type Service struct {
	*Proxy
	url url.URL // of the key, without a query
	ca  string  // of the URL
}

// Open reads the URL of a lock, and asks nobody yet.
func Open(text string) (*Service, error) {
	u, ca, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("the URL of the proxy's lock: %w", err)
	}
	p, err := newProxy(u.Scheme, u.Host, ca)
	if err != nil {
		return nil, err
	}
	return &Service{Proxy: p, url: *u, ca: ca}, nil
}

// Endpoint is where the proxy is: its URL without a path, and the file of certificates to trust that the lock's URL names, or "".
func (s *Service) Endpoint() (url, ca string) { return s.url.Scheme + "://" + s.url.Host, s.ca }

// A Proxy is one that is asked for its fences and its locks, with the credentials that the AWS SDKs would find.
type Proxy struct {
	scheme, host string
	client       *http.Client
	credentials  aws.CredentialsProvider // may find none
	region       string
	signer       *v4.Signer
}

// NewProxy returns the proxy at an endpoint, http://HOST:9000 or https://HOST:9000, and asks nobody yet. ca is a file of certificates to trust;
// "": that of AWS_CA_BUNDLE, or those of the system.
func NewProxy(endpoint, ca string) (*Proxy, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.RawQuery != "" || u.User != nil || strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("the proxy's endpoint looks like http://127.0.0.1:9000")
	}
	return newProxy(u.Scheme, u.Host, ca)
}

func newProxy(scheme, host, ca string) (*Proxy, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if scheme == "https" {
		if ca == "" {
			ca = os.Getenv("AWS_CA_BUNDLE") // which the same program's S3 client goes by
		}
		var err error
		if transport.TLSClientConfig, err = trust.Load(ca, "", ""); err != nil {
			return nil, err
		}
	}
	// Those of a machine's role are none that a proxy knows the secret of, and to ask for them takes seconds where there are none.
	cfg, err := config.LoadDefaultConfig(context.Background(), config.WithEC2IMDSClientEnableState(imds.ClientDisabled))
	if err != nil {
		return nil, fmt.Errorf("the credentials for the proxy: %w", err)
	}
	if cfg.Region == "" {
		cfg.Region = defaultRegion
	}
	return &Proxy{
		scheme: scheme, host: host, credentials: cfg.Credentials, region: cfg.Region,
		signer: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }), // as S3 has it
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a proxy sends nobody elsewhere
		},
	}, nil
}

// Close lets go of the connections.
func (p *Proxy) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

// parse reads a URL. Its errors never quote it: somebody may have put a password where none belongs.
func parse(text string) (_ *url.URL, ca string, err error) {
	wrong := func(what string) (*url.URL, string, error) {
		return nil, "", fmt.Errorf("%s: %w", what, errForm)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "fence" || u.Host == "" || u.Fragment != "" || u.Opaque != "":
		return wrong("it cannot be read")
	case u.User != nil:
		return wrong("it has a user in it, and the proxy knows access keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	if bucket, key, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/"); bucket == "" || key == "" {
		return wrong("it names no object")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return wrong("what follows the ? cannot be read")
	}
	host := &url.URL{Scheme: "http", Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	for name, values := range query {
		switch {
		case len(values) > 1, name != "tls" && name != "ca":
			return wrong(fmt.Sprintf("%q is not understood, or stands there twice", name))
		case name == "tls" && values[0] != "true" && values[0] != "false":
			return wrong("tls is true or false")
		}
	}
	if query.Get("tls") == "true" {
		host.Scheme = "https"
	} else if query.Has("ca") {
		return wrong("ca is for TLS: say tls=true")
	}
	if host.Port() == "" {
		host.Host = net.JoinHostPort(host.Hostname(), defaultPort)
	}
	return host, query.Get("ca"), nil
}
