package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/fenceproxy/fenceproxy/internal/clock"
)

// Options say where the store is and who asks it. The zero Options are AWS itself, with region and credentials from where the
// AWS SDKs look for them: environment, shared files, container, instance role.
type Options struct {
	// Region is the name that signatures carry. If "", it is taken from the environment or the profile, and is us-east-1 for an
	// Endpoint without either.
	Region string

	// Endpoint is the store's URL, http or https, and may have a path. If "", it is AWS's in Region. AWS_ENDPOINT_URL is not
	// looked at: where this program's clients run too, it names this program.
	Endpoint string

	// PathStyle puts the bucket into the path and not into the host's name. A bucket whose name has a dot or is no host name goes there
	// in any case.
	PathStyle bool

	Profile                            string // of the shared configuration files
	RoleARN                            string // is assumed with the credentials that the other fields lead to
	AccessKey, SecretKey, SessionToken string

	// The store's settle time: how long after the gate a write may still take effect, and the same of CopyObject,
	// CompleteMultipartUpload and DeleteObjects. If 0 they are 60 s and 10 min. A write that was not sent whole within a third of it, or
	// 20 s, is cut off.
	Settle, SettleLong time.Duration

	// The longest waits: for a connection and for its TLS handshake, for the store's answer after the whole request was sent (and that
	// of copies and completions, which take their time), and for the next bytes to move in either direction. If 0 they are 10 s, 60 s,
	// 10 min and 60 s.
	DialTimeout, AnswerTimeout, LongAnswerTimeout, StallTimeout time.Duration

	// DialContext makes the connections, below TLS. If nil they are TCP, which gives up what the store does not acknowledge
	// (TCP_USER_TIMEOUT) in the time in which a write must be sent.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)

	// Boot is a clock that nobody sets and that goes on while the machine sleeps; CLOCK_BOOTTIME if nil. Only differences count.
	Boot func() time.Duration

	// Log gets the cause of every failure, which answers do not tell; slog.DiscardHandler if nil.
	Log *slog.Logger
}

const (
	defaultRegion = "us-east-1"

	// A store closes idle connections, and a write that meets a closing one ends in doubt: be the first to close.
	idleTimeout = 20 * time.Second

	// A store that knows Expect answers at once; another one never will.
	continueTimeout = time.Second
)

// A Store forwards requests to an S3 store. It is a backend as package backends describes one.
type Store struct {
	o           Options
	scheme      string
	host        string // with the port, unless it is the scheme's own
	base        string // path before the bucket: "" or /…
	credentials aws.CredentialsProvider
	signer      *v4.Signer
	transport   *http.Transport
	clock       storeClock

	// found is what Probe saw the store do, nil before.
	found atomic.Pointer[Findings]
}

// Open checks the options and loads the SDK's configuration. It does not ask the store or a credential service: one that cannot
// be reached now may be there when it is needed.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("s3 backend: %w", err)
	}
	cfg, err := o.load(ctx)
	if err != nil {
		return nil, fmt.Errorf("s3 backend: the AWS configuration cannot be loaded: %w", err)
	}
	if o.Region == "" {
		o.Region = cfg.Region
	}
	s := &Store{o: o.withDefaults(), credentials: cfg.Credentials}
	if err := s.locate(); err != nil {
		return nil, fmt.Errorf("s3 backend: %w", err)
	}
	s.signer = v4.NewSigner(func(so *v4.SignerOptions) { so.DisableURIPathEscaping = true }) // S3 escapes a path once
	s.clock.boot = s.o.Boot
	s.transport = s.newTransport(trusted(cfg))
	return s, nil
}

// Close closes the connections that are not in use. Requests under way go on.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

func (o Options) check() error {
	switch {
	case (o.AccessKey == "") != (o.SecretKey == ""):
		return errors.New("access_key and secret_key belong together: give both, or neither to use the AWS credential chain")
	case o.SessionToken != "" && o.AccessKey == "":
		return errors.New("a session token belongs to an access_key and a secret_key: give these too")
	case o.AccessKey != "" && o.Profile != "":
		return errors.New("access_key and profile are two sources of credentials: give one of them")
	case o.RoleARN != "" && !strings.HasPrefix(o.RoleARN, "arn:"):
		return fmt.Errorf("role_arn %q is not the name of a role: it looks like arn:aws:iam::123456789012:role/name", o.RoleARN)
	case min(o.DialTimeout, o.AnswerTimeout, o.LongAnswerTimeout, o.StallTimeout, o.Settle, o.SettleLong) < 0:
		return errors.New("a timeout or settle time is negative: leave it out for the default")
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Region == "" && o.Endpoint != "" {
		o.Region = defaultRegion
	}
	for d, v := range map[*time.Duration]time.Duration{
		&o.DialTimeout: 10 * time.Second, &o.AnswerTimeout: time.Minute, &o.LongAnswerTimeout: 10 * time.Minute, &o.StallTimeout: time.Minute,
		&o.Settle: time.Minute, &o.SettleLong: 10 * time.Minute,
	} {
		if *d == 0 {
			*d = v
		}
	}
	o.SettleLong = max(o.SettleLong, o.Settle)
	if o.Boot == nil {
		o.Boot = clock.System{}.Boot
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// load asks the SDK for region and credentials. With an HTTP client of its own kind, or AWS_CA_BUNDLE makes it fail.
func (o Options) load(ctx context.Context) (aws.Config, error) {
	with := []func(*config.LoadOptions) error{config.WithHTTPClient(awshttp.NewBuildableClient())}
	if o.Region != "" {
		with = append(with, config.WithRegion(o.Region))
	}
	if o.Profile != "" {
		with = append(with, config.WithSharedConfigProfile(o.Profile))
	}
	if o.AccessKey != "" {
		static := credentials.NewStaticCredentialsProvider(o.AccessKey, o.SecretKey, o.SessionToken)
		with = append(with, config.WithCredentialsProvider(static))
	}
	cfg, err := config.LoadDefaultConfig(ctx, with...)
	if err != nil || o.RoleARN == "" {
		return cfg, err
	}
	if cfg.Region == "" {
		cfg.Region = defaultRegion // STS is asked somewhere
	}
	role := stscreds.NewAssumeRoleProvider(sts.NewFromConfig(cfg), o.RoleARN, func(ro *stscreds.AssumeRoleOptions) {
		ro.RoleSessionName = "fenceproxy"
	})
	cfg.Credentials = aws.NewCredentialsCache(role)
	return cfg, nil
}

// trusted is the TLS configuration with the certificates of AWS_CA_BUNDLE, where it is set.
func trusted(cfg aws.Config) *tls.Config {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok {
		if theirs := c.GetTransport().TLSClientConfig; theirs != nil {
			t.RootCAs = theirs.RootCAs
		}
	}
	return t
}

var regionName = regexp.MustCompile(`^[a-z0-9-]+$`)

// locate finds out where requests go.
func (s *Store) locate() error {
	if s.o.Region == "" {
		return errors.New("no region is given, here, in AWS_REGION or in the profile: give one, or the endpoint of a store that is not AWS")
	}
	if s.o.Endpoint == "" {
		if !regionName.MatchString(s.o.Region) {
			return fmt.Errorf("%q is not an AWS region", s.o.Region)
		}
		s.o.Endpoint = "https://s3." + s.o.Region + ".amazonaws.com"
		if strings.HasPrefix(s.o.Region, "cn-") {
			s.o.Endpoint += ".cn"
		}
	}
	u, err := url.Parse(s.o.Endpoint)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("endpoint %q is not the URL of a store: it looks like https://s3.example.com", s.o.Endpoint)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("endpoint %q has more than scheme, host and path: leave out user, query and fragment", u.Redacted())
	case !s.o.PathStyle && net.ParseIP(u.Hostname()) != nil:
		return fmt.Errorf("endpoint %q is an address, and a bucket cannot be put before it: set path_style", s.o.Endpoint)
	}
	s.scheme, s.host, s.base = u.Scheme, u.Host, strings.TrimRight(u.Path, "/")
	if p := u.Port(); p == map[string]string{"http": "80", "https": "443"}[u.Scheme] {
		s.host = strings.TrimSuffix(u.Host, ":"+p) // as the signature has it
	}
	return nil
}
