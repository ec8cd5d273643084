package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// An entry is a [tokens.Entry] in JSON.
type entry struct {
	Resource  string       `json:"resource"`
	Token     tokens.Token `json:"token"`
	Holder    string       `json:"holder"`
	AccessKey string       `json:"access_key"`
	RaisedAt  string       `json:"raised_at"` // RFC 3339 in UTC with milliseconds, "" where it is not known
}

func entryOf(e tokens.Entry) entry {
	out := entry{Resource: e.Resource, Token: e.Token, Holder: e.Holder, AccessKey: e.AccessKey}
	if !e.RaisedAt.IsZero() {
		out.RaisedAt = e.RaisedAt.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return out
}

type fenceEntry struct {
	entry
	Refusals int64 `json:"refusals"`
}

func (a *api) listFences(r *http.Request) (any, error) {
	q, err := readQuery(r, "resource", "prefix", "after", "limit")
	if err != nil {
		return nil, err
	}
	limit, err := q.limit()
	if err != nil {
		return nil, err
	}
	if q["resource"] != "" && (q["prefix"] != "" || q["after"] != "") {
		return nil, problemf(http.StatusBadRequest, "resource names one fence; prefix and after are for lists")
	}
	entries, next, err := a.entries(r.Context(), q, limit)
	if err != nil {
		return nil, registryProblem(err)
	}
	fences, err := a.withRefusals(r.Context(), entries)
	if err != nil {
		return nil, problemf(http.StatusServiceUnavailable, "%w", err)
	}
	return struct {
		Fences []fenceEntry `json:"fences"`
		Next   string       `json:"next"`
	}{fences, next}, nil
}

// registryProblem takes every error of the registry for an outage: it says so itself where it is sure, and an error that it cannot
// name is no better.
func registryProblem(err error) error {
	p := asProblem(err)
	if p.Status == http.StatusInternalServerError {
		p = problemf(http.StatusServiceUnavailable, "the token registry did not answer: %w", err)
		p.Code = "RegistryUnavailable"
	}
	return p
}

func (a *api) entries(ctx context.Context, q query, limit int) (entries []tokens.Entry, next string, err error) {
	if q["resource"] != "" {
		e, err := a.Registry.Lookup(ctx, q["resource"])
		if err != nil || e.Token == 0 {
			return nil, "", err
		}
		return []tokens.Entry{e}, "", nil
	}
	entries, err = a.Registry.List(ctx, q["prefix"], q["after"], limit+1)
	if err != nil {
		return nil, "", err
	}
	if len(entries) > limit {
		entries = entries[:limit]
		next = entries[limit-1].Resource
	}
	return entries, next, nil
}

func (a *api) withRefusals(ctx context.Context, entries []tokens.Entry) ([]fenceEntry, error) {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Resource
	}
	refusals, err := a.Audit.Refusals(ctx, names)
	if err != nil {
		return nil, err
	}
	fences := make([]fenceEntry, len(entries))
	for i, e := range entries {
		fences[i] = fenceEntry{entryOf(e), refusals[e.Resource]}
	}
	return fences, nil
}

// A change is what an operator asks for.
type change struct {
	Resource string    `json:"resource"`
	Token    jsonToken `json:"token"`
	Reason   string    `json:"reason"`
}

// A jsonToken is a JSON number that is a token, with all its digits: a float would lose the last ones.
type jsonToken tokens.Token

func (t *jsonToken) UnmarshalJSON(b []byte) error {
	n, err := tokens.ParseToken(string(b))
	*t = jsonToken(n)
	return err
}

func (a *api) raiseFence(r *http.Request) (any, error) {
	c, err := readChange(r)
	if err != nil {
		return nil, err
	}
	claim := tokens.Claim{Resource: c.Resource, Token: tokens.Token(c.Token), Audited: true}
	if before, err := a.Registry.Lookup(r.Context(), c.Resource); err == nil && before.Token == claim.Token {
		claim.Holder = before.Holder // the fence stands where the operator wants it, and keeps its holder
	}
	if a.Settle != nil {
		claim.Settle = a.Settle(c.Resource)
	}
	e, err := a.Fence.Announce(r.Context(), claim)
	a.audit(r, audit.KindRaise, c, e, err)
	if err != nil {
		return nil, err
	}
	if recorded, err := a.Registry.Lookup(r.Context(), c.Resource); err == nil { // the fence does not keep when
		e = recorded
	}
	return entryOf(e), nil
}

func (a *api) resetFence(r *http.Request) (any, error) {
	c, err := readChange(r)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(c.Reason) == "" {
		return nil, problemf(http.StatusBadRequest, "a reset needs a reason: it lets older tokens in again, and the audit log says why")
	}
	e, err := a.Fence.Reset(r.Context(), c.Resource, tokens.Token(c.Token))
	a.audit(r, audit.KindReset, c, e, err)
	if err != nil {
		return nil, err
	}
	return entryOf(e), nil
}

// audit records what was done, and what may have been: an outage, or an older write that is waited for, leaves the token moved
// perhaps. A refusal moved nothing.
func (a *api) audit(r *http.Request, kind string, c change, e tokens.Entry, err error) {
	var stale *tokens.StaleError
	var conflict *tokens.ConflictError
	if errors.As(err, &stale) || errors.As(err, &conflict) || errors.Is(err, tokens.ErrResetting) {
		return
	}
	bucket, _, _ := strings.Cut(c.Resource, "/")
	rec := audit.Record{
		Kind: kind, Bucket: bucket, Operation: "admin", Resource: c.Resource, Token: int64(c.Token), Highest: int64(e.Token),
		Holder: e.Holder, Client: r.RemoteAddr, UserAgent: r.UserAgent(), Detail: c.Reason,
	}
	if err != nil {
		rec.Code = cmp.Or(asProblem(err).Code, "OutcomeUnknown")
		rec.Detail = strings.TrimSpace(c.Reason + " (" + err.Error() + ")")
	}
	a.Audit.Add(r.Context(), rec)
}

const (
	maxBody     = 64 << 10
	maxResource = 4096 // bytes
	maxReason   = 2048 // bytes
)

// readChange reads the body of a POST: one JSON object with known fields, sent as JSON. An HTML form cannot send that.
func readChange(r *http.Request) (c change, err error) {
	if _, err := readQuery(r); err != nil {
		return c, err
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return c, problemf(http.StatusUnsupportedMediaType, "send application/json")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return c, problemf(http.StatusBadRequest, "the body did not come whole: %w", err)
	}
	if len(body) > maxBody {
		return c, problemf(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxBody)
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, problemf(http.StatusBadRequest, "not what is expected, which is {\"resource\": …, \"token\": …, \"reason\": …}: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return c, problemf(http.StatusBadRequest, "there is more in the body than one JSON object")
	}
	return c, c.check()
}

func (c change) check() error {
	bucket, _, slash := strings.Cut(c.Resource, "/")
	switch {
	case c.Resource == "":
		return problemf(http.StatusBadRequest, "say which resource")
	case bucket == "" || !slash:
		return problemf(http.StatusBadRequest, "%q is no resource: it begins with a bucket and a slash, as bucket/jobs/7 does", c.Resource)
	case len(c.Resource) > maxResource || strings.Contains(c.Resource, "\x00") || strings.Contains(c.Resource, string(utf8.RuneError)):
		return problemf(http.StatusBadRequest, "a resource has at most %d bytes, of UTF-8 and without NUL", maxResource)
	case c.Token == 0:
		return problemf(http.StatusBadRequest, "say which token: a number from 1 to %d", tokens.Max)
	case len(c.Reason) > maxReason:
		return problemf(http.StatusBadRequest, "a reason has at most %d bytes", maxReason)
	}
	return nil
}
