// Package admin is the API that operators and the client commands use: health, metrics, fences and the audit log.
//
// It has no passwords yet and is served on loopback only. That keeps other machines out, and not the pages that the operator's
// browser has open: guard turns those away.
package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// A Fence raises and resets what it guards; [tokens.Fence] is one.
type Fence interface {
	Announce(ctx context.Context, c tokens.Claim) (tokens.Entry, error)
	Reset(ctx context.Context, resource string, t tokens.Token) (tokens.Entry, error)
}

// A Registry is the part of [tokens.Registry] that is looked at.
type Registry interface {
	Lookup(ctx context.Context, resource string) (tokens.Entry, error)
	List(ctx context.Context, prefix, after string, limit int) ([]tokens.Entry, error)
}

// Config is what the API works on.
type Config struct {
	Fence    Fence
	Registry Registry
	Audit    *audit.Log
	AuditOf  string                              // names the audit log where several proxies write to one; "" where this one has its own
	Ready    func() error                        // why the data listener does not accept yet; nil: it always does
	Metrics  http.Handler                        // nil: there are none
	Settle   func(resource string) time.Duration // of the store that has the resource, see [tokens.Claim]; nil: 0
	Version  string                              // of this program
	now      func() time.Time                    // for tests; nil: time.Now
}

type api struct {
	Config
}

// New returns the handler of the admin listener. Its answers are JSON, its errors application/problem+json (RFC 9457).
func New(c Config) http.Handler {
	if c.now == nil {
		c.now = time.Now
	}
	a := &api{c}
	r := chi.NewRouter()
	r.Use(middleware.GetHead)
	r.NotFound(respond(func(*http.Request) (any, error) {
		return nil, problemf(http.StatusNotFound, "there is nothing at this path; the API is under /api/v1/")
	}))
	r.MethodNotAllowed(methodNotAllowed(r))
	a.health(r)
	r.Get("/api/v1/fences", respond(a.listFences))
	r.Post("/api/v1/fences/raise", respond(a.raiseFence))
	r.Post("/api/v1/fences/reset", respond(a.resetFence))
	r.Get("/api/v1/audit", respond(a.queryAudit))
	return guard(r)
}

// NewHealth returns a handler that serves health and metrics alone. It may be reached from anywhere: nothing can be changed there, and no name of a key or
// a holder is told.
func NewHealth(c Config) http.Handler {
	r := chi.NewRouter()
	r.Use(middleware.GetHead)
	r.NotFound(respond(func(*http.Request) (any, error) {
		return nil, problemf(http.StatusNotFound, "there are /healthz, /readyz and /metrics here; the API is on the admin address")
	}))
	r.MethodNotAllowed(methodNotAllowed(r))
	(&api{c}).health(r)
	return r
}

func (a *api) health(r chi.Router) {
	r.Get("/healthz", respond(a.healthz))
	r.Get("/readyz", respond(a.readyz))
	if a.Metrics != nil {
		r.Method(http.MethodGet, "/metrics", a.Metrics)
	}
}

// methodNotAllowed names the methods that a path has, as RFC 9110 wants it.
func methodNotAllowed(routes chi.Routes) http.HandlerFunc {
	answer := respond(func(r *http.Request) (any, error) {
		return nil, problemf(http.StatusMethodNotAllowed, "%s does not take %s", r.URL.Path, r.Method)
	})
	return func(w http.ResponseWriter, r *http.Request) {
		for _, m := range []string{http.MethodGet, http.MethodPost} {
			if routes.Match(chi.NewRouteContext(), m, r.URL.Path) {
				w.Header().Add("Allow", m)
			}
		}
		answer(w, r)
	}
}

func (a *api) healthz(*http.Request) (any, error) {
	return map[string]string{"status": "ok", "version": a.Version}, nil
}

func (a *api) readyz(*http.Request) (any, error) {
	if a.Ready != nil {
		if err := a.Ready(); err != nil {
			return nil, problemf(http.StatusServiceUnavailable, "not ready: %w", err)
		}
	}
	return map[string]string{"status": "ready"}, nil
}

func (a *api) queryAudit(r *http.Request) (any, error) {
	f, err := auditFilter(r, a.now())
	if err != nil {
		return nil, err
	}
	records, next, err := a.Audit.Query(r.Context(), f)
	if errors.Is(err, audit.ErrBadCursor) {
		return nil, problemf(http.StatusBadRequest, "after: %w", err)
	}
	if err != nil {
		return nil, problemf(http.StatusServiceUnavailable, "%w", err)
	}
	return struct {
		Records []audit.Record `json:"records"`
		Next    string         `json:"next"`
		Log     string         `json:"log"` // the same of all proxies that write to one; "" of one that has its own
	}{records, next, a.AuditOf}, nil
}
