package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Limits of a call.
const (
	answerWithin = 10 * time.Second
	maxAnswer    = 2 << 20 // bytes; an object has 1.5 MiB at most
)

// A lease is a Lease. What is not ours to know of it is written back as it was read: labels, owners, the uid. The uid also keeps a write from
// making a Lease anew that was deleted, which the API server otherwise does for this kind (PUT creates what is not there).
type lease struct {
	APIVersion string                     `json:"apiVersion"`
	Kind       string                     `json:"kind"`
	Metadata   map[string]json.RawMessage `json:"metadata"`
	Spec       map[string]json.RawMessage `json:"spec"`
}

// A spec is what a lock is made of: the same fields as client-go's LeaderElectionRecord.
type spec struct {
	HolderIdentity       string    `json:"holderIdentity"`
	LeaseDurationSeconds int64     `json:"leaseDurationSeconds"`
	AcquireTime          microTime `json:"acquireTime"`
	RenewTime            microTime `json:"renewTime"`
	LeaseTransitions     int64     `json:"leaseTransitions"`
}

// A microTime is RFC 3339 with six digits of a second, which is the only form of it that the API server takes.
type microTime struct{ time.Time }

func (t microTime) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
}

// read is what a Lease says. null, and what is missing, is the zero value.
func (l *lease) read() (s spec, err error) {
	text, err := json.Marshal(l.Spec)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		err = fmt.Errorf("the spec of the Lease cannot be read: %w", err)
	}
	return s, err
}

// with is the Lease with another content.
func (l *lease) with(s spec) (*lease, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	n := *l
	n.APIVersion, n.Kind = "coordination.k8s.io/v1", "Lease"
	if n.Spec = maps.Clone(l.Spec); n.Spec == nil {
		n.Spec = make(map[string]json.RawMessage)
	}
	return &n, json.Unmarshal(text, &n.Spec)
}

// newLease is one that is not there yet.
func (l *lock) newLease() *lease {
	quote := func(s string) json.RawMessage { return json.RawMessage(fmt.Sprintf("%q", s)) }
	return &lease{Metadata: map[string]json.RawMessage{"name": quote(l.name), "namespace": quote(l.namespace)}}
}

// get reads the Lease, from a majority: that is what the API server does where no resourceVersion is asked for.
func (l *lock) get(ctx context.Context) (*lease, error) {
	return l.call(ctx, http.MethodGet, "/"+l.name, nil)
}

// create makes the Lease; a 409 says that somebody else has.
func (l *lock) create(ctx context.Context, s spec) (*lease, error) {
	n, err := l.newLease().with(s)
	if err != nil {
		return nil, err
	}
	return l.call(ctx, http.MethodPost, "", n)
}

// update writes over the Lease as it was read; a 409 says that it has changed since, or is gone.
func (l *lock) update(ctx context.Context, read *lease, s spec) (*lease, error) {
	n, err := read.with(s)
	if err != nil {
		return nil, err
	}
	return l.call(ctx, http.MethodPut, "/"+l.name, n)
}

// A statusError is an answer of the API server that is no success.
type statusError struct {
	status int
	text   string
	lock   *lock
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("the API server answers %d: %s", e.status, e.text)
	switch e.status {
	case http.StatusUnauthorized:
		s += "; it does not know the token, or the token is over"
	case http.StatusForbidden:
		s += fmt.Sprintf("; the service account has to be allowed to get, create and update leases (coordination.k8s.io) of the namespace %s", e.lock.namespace)
	}
	return s
}

func isStatus(err error, status int) bool {
	var e *statusError
	return errors.As(err, &e) && e.status == status
}

// passing says that an error may be gone when it is asked again: nobody answers, or the API server has too much to do.
func passing(err error) bool {
	var e *statusError
	if errors.As(err, &e) {
		return e.status >= 500 || e.status == http.StatusTooManyRequests
	}
	return errors.As(err, new(unanswered))
}

// An unanswered error says that no answer came, or not the whole of it.
type unanswered struct{ error }

func (e unanswered) Unwrap() error { return e.error }

// call asks the API server something once, about the Lease.
func (l *lock) call(ctx context.Context, method, path string, body *lease) (*lease, error) {
	timed, cancel := context.WithTimeoutCause(ctx, answerWithin, fmt.Errorf("no answer of the API server at %s within %s", l.server.Host, answerWithin))
	defer cancel()
	r, err := l.request(timed, method, path, body)
	if err != nil {
		return nil, err
	}
	response, err := l.http.Do(r)
	var answer *lease
	if err == nil {
		defer response.Body.Close()
		answer, err = l.decode(response)
	}
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case timed.Err() != nil:
		return nil, unanswered{context.Cause(timed)}
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		err = unanswered{fmt.Errorf("cannot ask the API server at %s: %w", l.server.Host, failed.Err)}
	}
	return nil, err
}

func (l *lock) request(ctx context.Context, method, path string, body *lease) (*http.Request, error) {
	u := l.server
	u.Path = "/apis/coordination.k8s.io/v1/namespaces/" + l.namespace + "/leases" + path
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), content)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Content-Type", "application/json")
	if l.tokenFile != "" {
		token, err := os.ReadFile(l.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("the token of the service account: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	return r, nil
}

func (l *lock) decode(response *http.Response) (*lease, error) {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, unanswered{fmt.Errorf("the answer of the API server: %w", err)}
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		var said struct{ Message string } // a Status object
		if json.Unmarshal(text, &said) != nil || said.Message == "" {
			said.Message = strings.TrimSpace(string(text))
		}
		return nil, &statusError{response.StatusCode, fmt.Sprintf("%.300q", said.Message), l}
	}
	var n lease
	if err := json.Unmarshal(text, &n); err != nil || n.Kind != "Lease" {
		return nil, fmt.Errorf("what answers at %s is no API server of Kubernetes: it sent no Lease", l.server.Host)
	}
	return &n, nil
}
