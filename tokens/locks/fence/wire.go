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
	Token     tokens.Token `json:"token"`
	Lease     string       `json:"lease"`
	Holder    string       `json:"holder"`
	TakenOver bool         `json:"taken_over"`
	Since     time.Time    `json:"since"`
}

// A refusal is an answer that is no success.
type refusal struct {
	status  int
	name    string // X-Fence-Error
	message string
	held    *lease // by whom, where the lock is
	cause   error  // why the request was not signed, where it was not, and should have been
}

func (e *refusal) Error() string {
	what := fmt.Sprintf("%d %s", e.status, e.name)
	if e.message != "" {
		what += ": " + e.message
	}
	if e.cause != nil {
		return fmt.Sprintf("%s (the request was not signed: %v)", what, e.cause)
	}
	return what
}

// unknown says whether an error leaves open what has become of the request, or may be gone when it is made again.
func unknown(err error) bool {
	var r *refusal
	return !errors.As(err, &r) || r.status >= 500
}

// lost makes the contract's error of the proxy's word that a lease is over.
func lost(err error) error {
	var r *refusal
	if errors.As(err, &r) && r.name == "LeaseLost" {
		return fmt.Errorf("%w: %w", locks.ErrLost, err)
	}
	return err
}

// call makes one request for the lock, and returns what is said of it if it is a success.
func (s *Service) call(ctx context.Context, method, parameter string, headers ...string) (*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	u := s.url
	u.RawQuery = url.Values{"fence": {""}, "lease": {parameter}}.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "fenceproxy-lock")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	unsigned, err := s.sign(ctx, r)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("the proxy at %s: %w", s.url.Host, withoutURL(err))
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("the proxy at %s: its answer broke off: %w", s.url.Host, err)
	}
	l, err := read(resp, text)
	if err != nil {
		var refused *refusal
		if errors.As(err, &refused) && refused.status == http.StatusForbidden && refused.name == "" {
			refused.cause = unsigned
		}
		return nil, fmt.Errorf("the proxy at %s: %w", s.url.Host, err)
	}
	return l, nil
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
func (s *Service) sign(ctx context.Context, r *http.Request) (unsigned, err error) {
	who, err := s.credentials.Retrieve(ctx)
	if err != nil {
		return err, context.Cause(ctx)
	}
	if strings.HasPrefix(who.SessionToken, "fence=") { // somebody's token for writes, inherited: see `fenceproxy run`
		who.SessionToken = ""
	}
	r.Header.Set("X-Amz-Content-Sha256", emptyHash)
	return nil, s.signer.SignHTTP(ctx, who, r, emptyHash, "s3", s.region, time.Now())
}

func read(resp *http.Response, text []byte) (*lease, error) {
	var l lease
	name := resp.Header.Get("X-Fence-Error")
	switch resp.StatusCode {
	case http.StatusNoContent:
		return &l, nil
	case http.StatusOK:
		if err := json.Unmarshal(text, &l); err != nil || l.Token < 1 || l.Lease == "" {
			return nil, &refusal{status: resp.StatusCode, message: "its answer is not that of a fenceproxy: is the address right?"}
		}
		return &l, nil
	case http.StatusLocked:
		if err := json.Unmarshal(text, &l); err == nil && name == "LockHeld" {
			return nil, &refusal{status: resp.StatusCode, name: name, message: fmt.Sprintf("held by %q", l.Holder), held: &l}
		}
	}
	return nil, &refusal{status: resp.StatusCode, name: name, message: message(text)}
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
