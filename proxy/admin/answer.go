package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/fenceproxy/fenceproxy/internal/localname"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// A problem is an answer that says what is wrong, in a sentence for people: RFC 9457. What it says of tokens is for programs.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	Code    string       `json:"code,omitempty"` // as in X-Fence-Error
	Token   tokens.Token `json:"token,omitempty"`
	Highest tokens.Token `json:"highest,omitempty"`
	Holder  string       `json:"holder,omitempty"`
}

func (p *problem) Error() string { return p.Detail }

func problemf(status int, format string, args ...any) *problem {
	return &problem{Title: http.StatusText(status), Status: status, Detail: fmt.Errorf(format, args...).Error()}
}

// asProblem gives an error of the fence or the registry its status.
func asProblem(err error) *problem {
	var p *problem
	var stale *tokens.StaleError
	var conflict *tokens.ConflictError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &stale):
		p = problemf(http.StatusPreconditionFailed, "%w", err)
		p.Code, p.Token, p.Highest, p.Holder = "StaleToken", stale.Token, stale.Highest, stale.Holder
	case errors.As(err, &conflict):
		p = problemf(http.StatusPreconditionFailed, "%w", err)
		p.Code, p.Token, p.Highest, p.Holder = "TokenConflict", conflict.Token, conflict.Token, conflict.Bound
	case errors.Is(err, tokens.ErrUnavailable):
		p = problemf(http.StatusServiceUnavailable, "%w", err)
		p.Code = "RegistryUnavailable"
	case errors.Is(err, tokens.ErrResetting):
		p = problemf(http.StatusServiceUnavailable, "%w", err)
	case waiting(err):
		p = problemf(http.StatusServiceUnavailable, "%w", err)
		p.Code = "WaitingForOlderWrite"
	default:
		p = problemf(http.StatusInternalServerError, "%w", err)
	}
	return p
}

// waiting says that older writes were not settled when the wait ended. The raise goes on by itself.
func waiting(err error) bool {
	var w *tokens.WaitingError
	return errors.As(err, &w) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// respond is the one place that writes answers.
func respond(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := f(r)
		status, contentType := http.StatusOK, "application/json"
		if err != nil {
			p := asProblem(err)
			answer, status, contentType = p, p.Status, "application/problem+json"
		}
		body, err := json.Marshal(answer)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", contentType)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(status)
		_, _ = w.Write(append(body, '\n')) // who does not wait for the answer cannot be told
	}
}

// guard turns away what a web page in the operator's browser could send.
//
// A page of another origin may not POST (Sec-Fetch-Site, Origin). A page whose own name was made to resolve to 127.0.0.1 is of the
// same origin to the browser, but it says its name in Host: so only addresses and localhost are taken. What a page may GET blindly
// changes nothing, and it is not let read the answer, for no CORS header is ever sent.
func guard(next http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	crossOrigin.SetDenyHandler(respond(func(*http.Request) (any, error) {
		return nil, problemf(http.StatusForbidden, "this came from a web page of another origin")
	}))
	foreignHost := respond(func(r *http.Request) (any, error) {
		return nil, problemf(http.StatusForbidden, "the admin API is called by its IP address or as localhost, not as %q", r.Host)
	})
	next = crossOrigin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !localname.Is(r.Host) {
			foreignHost(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}
