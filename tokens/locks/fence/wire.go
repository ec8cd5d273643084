package fence

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// emptyHash is the SHA-256 of a body of no bytes.
const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// callTime is how long one request may take, at most.
const callTime = 10 * time.Second

// maxAnswer is more than any answer has, in bytes.
const maxAnswer = 64 << 10

// A lease is what the proxy says of the lock to its holder, and, without lease, to others.
type lease struct {
	Resource  string       `json:"resource"`
	Token     tokens.Token `json:"token"`
	Lease     string       `json:"lease"`
	Holder    string       `json:"holder"`
	TakenOver bool         `json:"taken_over"`
	Since     time.Time    `json:"since"`
}

// A Refusal is an answer that is no success.
type Refusal struct {
	Status  int    // of HTTP
	Name    string // X-Fence-Error; docs/answers.md lists them. "" where something else has answered
	Message string // the proxy's
	held    *lease // by whom, where the lock is
	cause   error  // why the request was not signed, where it was not, and should have been
}

func (e *Refusal) Error() string {
	what := strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, e.Name))
	if e.Message != "" {
		what += ": " + e.Message
	}
	if e.cause != nil {
		return fmt.Sprintf("%s (the request was not signed: %v)", what, e.cause)
	}
	return what
}

// unknown says whether an error leaves open what has become of the request, or may be gone when it is made again.
func unknown(err error) bool {
	var r *Refusal
	return !errors.As(err, &r) || r.Status >= 500
}

// lost makes the contract's error of the proxy's word that a lease is over.
func lost(err error) error {
	var r *Refusal
	if errors.As(err, &r) && r.Name == "LeaseLost" {
		return fmt.Errorf("%w: %w", locks.ErrLost, err)
	}
	return err
}

// call makes one request for the lock, and returns what is said of it if it is a success.
func (s *Service) call(ctx context.Context, method, parameter string, headers ...string) (*lease, error) {
	u := s.url
	u.RawQuery = url.Values{"fence": {""}, "lease": {parameter}}.Encode()
	var l *lease
	err := s.ask(ctx, method, &u, headers, func(resp *http.Response, text []byte) (err error) {
		l, err = read(resp, text)
		return err
	})
	return l, err
}

// Announce raises the fence of a key to a token, and returns the resource that it fences, as PUT ?fence does: when it has come back, no write
// with a lower token takes effect. Nothing is written. It fails with a [*Refusal] where the proxy has said no.
func (p *Proxy) Announce(ctx context.Context, bucket, key string, t tokens.Token, holder string) (resource string, err error) {
	u := &url.URL{Scheme: p.scheme, Host: p.host, Path: "/" + bucket + "/" + key, RawQuery: "fence="}
	var entry struct {
		Resource string `json:"resource"`
	}
	headers := []string{"X-Fence-Token", strconv.FormatInt(int64(t), 10), "X-Fence-Holder", holder}
	err = p.ask(ctx, http.MethodPut, u, headers, func(resp *http.Response, text []byte) error {
		if resp.StatusCode != http.StatusOK {
			return refused(resp, text)
		}
		if json.Unmarshal(text, &entry) != nil || entry.Resource == "" {
			return notOurs(resp)
		}
		return nil
	})
	return entry.Resource, err
}

// ask makes one request, signed where there are credentials, and has its answer read.
func (p *Proxy) ask(ctx context.Context, method string, u *url.URL, headers []string, read func(*http.Response, []byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return withoutURL(err)
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "fenceproxy-lock")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	unsigned, err := p.sign(ctx, r)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(r)
	if err != nil {
		return fmt.Errorf("the proxy at %s: %w", p.host, withoutURL(err))
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("the proxy at %s: its answer broke off: %w", p.host, err)
	}
	if err := read(resp, text); err != nil {
		var refused *Refusal
		if errors.As(err, &refused) && refused.Status == http.StatusForbidden && refused.Name == "" {
			refused.cause = unsigned
		}
		return fmt.Errorf("the proxy at %s: %w", p.host, err)
	}
	return nil
}

// withoutURL takes the URL out of an error of net/http: it has the id of the lease in it, with which anybody could end it.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// sign signs a request where there are credentials, and says why there are none.
func (p *Proxy) sign(ctx context.Context, r *http.Request) (unsigned, err error) {
	who, err := p.credentials.Retrieve(ctx)
	if err != nil {
		return err, context.Cause(ctx)
	}
	if strings.HasPrefix(who.SessionToken, "fence=") { // somebody's token for writes, inherited: see `fenceproxy run`
		who.SessionToken = ""
	}
	r.Header.Set("X-Amz-Content-Sha256", emptyHash)
	return nil, p.signer.SignHTTP(ctx, who, r, emptyHash, "s3", p.region, time.Now())
}

func read(resp *http.Response, text []byte) (*lease, error) {
	var l lease
	name := resp.Header.Get("X-Fence-Error")
	switch resp.StatusCode {
	case http.StatusNoContent:
		return &l, nil
	case http.StatusOK:
		if err := json.Unmarshal(text, &l); err != nil || l.Token < 1 || l.Lease == "" {
			return nil, notOurs(resp)
		}
		return &l, nil
	case http.StatusLocked:
		if err := json.Unmarshal(text, &l); err == nil && name == "LockHeld" {
			return nil, &Refusal{Status: resp.StatusCode, Name: name, Message: fmt.Sprintf("held by %q", l.Holder), held: &l}
		}
	}
	return nil, refused(resp, text)
}

func refused(resp *http.Response, text []byte) error {
	return &Refusal{Status: resp.StatusCode, Name: resp.Header.Get("X-Fence-Error"), Message: message(text)}
}

func notOurs(resp *http.Response) error {
	return &Refusal{Status: resp.StatusCode, Message: "its answer is not that of a fenceproxy: is the address right?"}
}

// message finds what people are told: in a problem document, or in S3's XML where something else answers.
func message(text []byte) string {
	var problem struct{ Title, Detail string }
	if json.Unmarshal(text, &problem) == nil && problem.Detail != "" {
		return problem.Title + ": " + problem.Detail
	}
	var s3 struct{ Code, Message string }
	if xml.Unmarshal(text, &s3) == nil && s3.Message != "" {
		return s3.Code + ": " + s3.Message
	}
	return ""
}
