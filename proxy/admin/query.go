package admin

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
)

// A query is a request's query, each name once.
type query map[string]string

// readQuery refuses names that are not known, and malformed queries: an operator who believes a filter works reads a wrong
// answer with trust.
func readQuery(r *http.Request, known ...string) (query, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, problemf(http.StatusBadRequest, "the query cannot be read: %w", err)
	}
	q := query{}
	for name, v := range values {
		if !slices.Contains(known, name) {
			return nil, problemf(http.StatusBadRequest, "there is no parameter %q here; %s", name, choice(known))
		}
		if len(v) > 1 {
			return nil, problemf(http.StatusBadRequest, "%s is there %d times", name, len(v))
		}
		q[name] = v[0]
	}
	return q, nil
}

func choice(known []string) string {
	if len(known) == 0 {
		return "there are none"
	}
	return "there are " + strings.Join(known, ", ")
}

func (q query) limit() (int, error) {
	s, ok := q["limit"]
	if !ok {
		return audit.DefaultLimit, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > audit.MaxLimit {
		return 0, problemf(http.StatusBadRequest, "limit %q: it is a number from 1 to %d", s, audit.MaxLimit)
	}
	return n, nil
}

func auditFilter(r *http.Request, now time.Time) (f audit.Filter, err error) {
	q, err := readQuery(r, "since", "until", "kind", "code", "bucket", "resource", "access_key", "after", "limit")
	if err != nil {
		return f, err
	}
	f = audit.Filter{
		Kind: q["kind"], Code: q["code"], Bucket: q["bucket"], Resource: q["resource"], AccessKey: q["access_key"], After: q["after"],
	}
	if f.Kind != "" && !slices.Contains(audit.Kinds, f.Kind) {
		return f, problemf(http.StatusBadRequest, "there is no kind %q; there are %s", f.Kind, strings.Join(audit.Kinds, ", "))
	}
	if f.Limit, err = q.limit(); err != nil {
		return f, err
	}
	if f.Since, err = q.moment("since", now); err != nil {
		return f, err
	}
	if f.Until, err = q.moment("until", now); err != nil {
		return f, err
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return f, problemf(http.StatusBadRequest, "since %s is not before until %s", q["since"], q["until"])
	}
	return f, nil
}

// moment reads a point in time, absolute or as long before now.
func (q query) moment(name string, now time.Time) (time.Time, error) {
	s, ok := q[name]
	if !ok {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	ago, err := parseAgo(s)
	if err != nil {
		return time.Time{}, problemf(http.StatusBadRequest,
			"%s %q: it is a time like 2026-05-04T03:02:01Z (a + in it is sent as %%2B), or how long ago, like 90m, 24h or 7d", name, s)
	}
	return now.Add(-ago), nil
}

var errAgo = errors.New("not a duration")

// parseAgo reads durations as Go writes them, and days before them: 7d, 1d12h. A day has 24 hours.
func parseAgo(s string) (time.Duration, error) {
	const day = 24 * time.Hour
	var ago time.Duration
	if before, after, ok := strings.Cut(s, "d"); ok {
		days, err := strconv.ParseUint(before, 10, 16)
		if err != nil {
			return 0, errAgo
		}
		ago, s = time.Duration(days)*day, after
		if s == "" {
			return ago, nil
		}
	}
	rest, err := time.ParseDuration(s)
	if err != nil || rest < 0 || strings.HasPrefix(s, "+") || ago+rest < ago {
		return 0, errAgo
	}
	return ago + rest, nil
}
