package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A fenceCaller raises the fence of one key at a proxy, as the writers of that key do: with their credentials, if there are any.
type fenceCaller struct {
	endpoint    string
	bucket, key string
	http        *http.Client
}

const (
	emptySHA256    = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // of a body of no bytes
	announceWait   = 30 * time.Second                                                   // for one answer
	announceAgain  = time.Second                                                        // between two attempts, while older writes settle
	answerLimit    = 64 << 10                                                           // bytes of an answer that are read
	credentialWait = 10 * time.Second
)

func newFenceCaller(endpoint, announce string) (*fenceCaller, error) {
	c := &fenceCaller{endpoint: endpoint, http: &http.Client{Transport: &http.Transport{
		DialContext:       (&net.Dialer{Timeout: connectWait}).DialContext,
		DisableKeepAlives: true,
	}}}
	if announce == "" {
		return c, nil
	}
	var ok bool
	if c.bucket, c.key, ok = strings.Cut(announce, "/"); !ok || c.bucket == "" || c.key == "" {
		return nil, fmt.Errorf("--announce %q: it is bucket/key", announce)
	}
	return c, nil
}

// An announceError is a proxy's refusal to raise a fence.
type announceError struct {
	status  int
	code    string // X-Fence-Error
	message string
}

func (e *announceError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("the proxy answered %d %s", e.status, http.StatusText(e.status))
	}
	return e.message
}

// announce raises the fence to t, and returns the resource that it fences. It comes back while older writes are on their way.
func (c *fenceCaller) announce(ctx context.Context, t tokens.Token, holder string) (resource string, err error) {
	for {
		resource, err := c.once(ctx, t, holder)
		var refused *announceError
		if !errors.As(err, &refused) {
			return resource, err
		}
		if refused.code != "WaitingForOlderWrite" {
			return "", explainRefusal(refused, t, c.bucket+"/"+c.key)
		}
		select {
		case <-time.After(announceAgain):
		case <-ctx.Done():
			return "", fmt.Errorf("--announce: %w; last the proxy said: %w", context.Cause(ctx), err)
		}
	}
}

// explainRefusal says what the refusal of a token that has just been issued means: the lock and the fence do not agree, and it is not this
// holder that is late.
func explainRefusal(e *announceError, t tokens.Token, where string) error {
	switch e.code {
	case "StaleToken":
		return fmt.Errorf("--announce %s was refused: %w. The lock has only just given token %d, so its counter has gone back (a service restored, "+
			"restarted without its data, or set up anew), or another lock is used for the same keys. Set the counter above the highest token "+
			"(docs/locks.md says how for each service), then run this again", where, e, t)
	case "TokenConflict":
		return fmt.Errorf("--announce %s was refused: %w. The lock has given the same token to two holders: it has lost its last hand-over, as a "+
			"failover to a replica does that had not heard of it. Run this again: the next token is higher", where, e)
	case "TokenTooFar":
		return fmt.Errorf("--announce %s was refused: %w. If this lock is new for these keys, raise the fence by hand: fenceproxy fences raise", where, e)
	}
	return fmt.Errorf("--announce %s was refused: %w", where, e)
}

func (c *fenceCaller) once(ctx context.Context, t tokens.Token, holder string) (resource string, err error) {
	ctx, cancel := context.WithTimeout(ctx, announceWait)
	defer cancel()
	u := c.endpoint + (&url.URL{Path: "/" + c.bucket + "/" + c.key}).EscapedPath() + "?fence="
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, u, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("X-Fence-Token", fmt.Sprint(t))
	req.Header.Set("X-Fence-Holder", holder)
	if err := sign(ctx, req); err != nil {
		return "", err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("--announce: the proxy cannot be asked: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err != nil {
		return "", fmt.Errorf("--announce: the proxy's answer broke off: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var said struct{ Message string }
		_ = xml.Unmarshal(body, &said)
		return "", &announceError{resp.StatusCode, resp.Header.Get("X-Fence-Error"), said.Message}
	}
	var entry struct {
		Resource string `json:"resource"`
	}
	if err := json.Unmarshal(body, &entry); err != nil || entry.Resource == "" {
		return "", fmt.Errorf("--announce: %s does not answer as a fenceproxy does: is it the proxy, or the store behind it?", c.endpoint)
	}
	return entry.Resource, nil
}

// sign signs a request with the credentials that an AWS client would find; where there are none it goes out unsigned.
func sign(ctx context.Context, req *http.Request) error {
	ctx, cancel := context.WithTimeout(ctx, credentialWait)
	defer cancel()
	c, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithEC2IMDSClientEnableState(imds.ClientDisabled))
	if err != nil {
		return fmt.Errorf("the AWS settings of the environment cannot be read: %w", err)
	}
	credentials, err := c.Credentials.Retrieve(ctx)
	if err != nil {
		return nil
	}
	region := c.Region
	if region == "" {
		region = "us-east-1"
	}
	credentials.SessionToken = "" // the proxy's keys have none, and one that is inherited may carry another token
	req.Header.Set("X-Amz-Content-Sha256", emptySHA256)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	return signer.SignHTTP(ctx, aws.Credentials{AccessKeyID: credentials.AccessKeyID, SecretAccessKey: credentials.SecretAccessKey}, req, emptySHA256, "s3", region, time.Now())
}
