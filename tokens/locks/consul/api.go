package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Limits of a call.
const (
	answerWithin = 10 * time.Second // beside what a blocking query waits
	maxAnswer    = 1 << 20          // bytes; a value has 512 KiB at most
)

// lockFlags are what Consul's own clients give to the key of a lock (LockFlagValue of its API package), and refuse a key without.
const lockFlags = "3304740253564472344" // 0x2ddccbc058a50c18

// An entry is a key, as GET /v1/kv/:key returns it.
type entry struct {
	CreateIndex uint64
	ModifyIndex uint64
	LockIndex   uint64
	Session     string // "" where nobody has acquired it
	Value       []byte
}

// A value is what the holders of this package write into the key. It is for people, and for the next holder.
type value struct {
	Holder   string    `json:"holder"`
	Since    time.Time `json:"since"` // by the holder's clock
	Released bool      `json:"released"`
}

func (e *entry) value() (v value) {
	if json.Unmarshal(e.Value, &v) != nil {
		return value{} // other clients write what they like
	}
	return v
}

// An answerError is an answer of Consul that is no success.
type answerError struct {
	status int
	text   string
}

func (e *answerError) Error() string {
	s := fmt.Sprintf("the answer of Consul is %d: %s", e.status, e.text)
	switch {
	case e.status == http.StatusForbidden:
		s += "; does its token allow session:write on the agent's node, and key:write and key:read on the key?"
	case strings.Contains(e.text, "Session TTL"):
		s += "; Consul takes no shorter TTL than its session_ttl_min (10s by default), and no longer one than 24h"
	}
	return s
}

func isStatus(err error, status int) bool {
	var e *answerError
	return errors.As(err, &e) && e.status == status
}

// passing says that an error may be gone when it is asked again: nobody answers, or there is no leader at the moment.
func passing(err error) bool {
	var e *answerError
	if errors.As(err, &e) {
		return e.status >= 500
	}
	return errors.As(err, new(unanswered))
}

// An unanswered error says that no answer came, or not the whole of it.
type unanswered struct{ error }

func (e unanswered) Unwrap() error { return e.error }

// call asks Consul something once. A nil body sends none; what comes back is put into answer.
func (l *lock) call(ctx context.Context, method, path string, q url.Values, body, answer any) error {
	_, err := l.ask(ctx, answerWithin, method, path, q, body, answer)
	return err
}

func (l *lock) ask(ctx context.Context, within time.Duration, method, path string, q url.Values, body, answer any) (http.Header, error) {
	timed, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer of Consul at %s within %s", l.base.Host, within))
	defer cancel()
	u := l.base
	u.Path, u.RawQuery = path, q.Encode()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(timed, method, u.String(), content)
	if err != nil {
		return nil, err
	}
	if l.token != "" {
		r.Header.Set("X-Consul-Token", l.token)
	}
	response, err := l.http.Do(r)
	if err == nil {
		defer response.Body.Close()
		err = decode(response, answer)
	}
	switch {
	case err == nil:
		return response.Header, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case timed.Err() != nil:
		return nil, unanswered{context.Cause(timed)}
	}
	var failed *url.Error
	if errors.As(err, &failed) { // without the URL, which names the session
		err = unanswered{fmt.Errorf("cannot ask Consul at %s: %w", l.base.Host, failed.Err)}
	}
	return nil, err
}

func decode(response *http.Response, answer any) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return unanswered{fmt.Errorf("the answer of Consul: %w", err)}
	}
	if response.StatusCode != http.StatusOK {
		said := strings.TrimSpace(string(text))
		return &answerError{response.StatusCode, fmt.Sprintf("%.300q", said)}
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the answer of Consul cannot be read; is there a Consul at this address? %w", err)
	}
	return nil
}

// read reads the key, nil where there is none: at once if index is 0, else when it has changed since that index or wait is over. It also
// returns the index to go on from.
func (l *lock) read(ctx context.Context, index uint64, wait time.Duration) (*entry, uint64, error) {
	q, within := url.Values{"consistent": {""}}, answerWithin
	if index > 0 {
		q.Set("index", strconv.FormatUint(index, 10))
		q.Set("wait", strconv.FormatInt(wait.Milliseconds(), 10)+"ms")
		within += wait + wait/16 // which Consul adds
	}
	var found []entry
	header, err := l.ask(ctx, within, http.MethodGet, "/v1/kv/"+l.key, q, nil, &found)
	if isStatus(err, http.StatusNotFound) {
		return nil, 0, nil // its index is not told here; it is read again soon
	}
	if err != nil {
		return nil, 0, err
	}
	if len(found) != 1 {
		return nil, 0, fmt.Errorf("the answer of Consul has %d values of one key", len(found))
	}
	next, _ := strconv.ParseUint(header.Get("X-Consul-Index"), 10, 64)
	if next < index {
		next = 0 // as after a restore: Consul's page on blocking queries
	}
	return &found[0], next, nil
}

// put writes the key, under a condition that q names, and says whether that was met.
func (l *lock) put(ctx context.Context, q url.Values, v value) (met bool, err error) {
	q.Set("flags", lockFlags)
	return met, l.call(ctx, http.MethodPut, "/v1/kv/"+l.key, q, v, &met)
}

// session makes one that lives for ttl after each renewal, and is bound to nothing else.
func (l *lock) session(ctx context.Context, name string, ttl time.Duration) (string, error) {
	var made struct{ ID string }
	err := l.call(ctx, http.MethodPut, "/v1/session/create", nil, map[string]any{
		"Name": name, "TTL": ttl.String(), "Behavior": "release", "LockDelay": "0s",
		"Checks": []string{}, "NodeChecks": []string{}, // the first is what Consul before 1.7 knows
	}, &made)
	if err == nil && made.ID == "" {
		err = errors.New("the answer of Consul has no id of the session that it made")
	}
	return made.ID, err
}

func (l *lock) renewSession(ctx context.Context, id string) error {
	return l.call(ctx, http.MethodPut, "/v1/session/renew/"+id, nil, nil, nil)
}

// destroy ends a session, and what it holds, even where ctx is over: else it would last for up to two TTLs. But it does not take long.
func (l *lock) destroy(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = l.call(ctx, http.MethodPut, "/v1/session/destroy/"+id, nil, nil, nil) // else it runs out
}
