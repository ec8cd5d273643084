package misbehave

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxSkew is how far the clock of a signature in the headers may be from the store's ("Signing and authenticating REST requests").
const maxSkew = 15 * time.Minute

// longest is the longest life of a signature in the query, in seconds: seven days.
const longest = 604800

// checkSignature looks whether there is a signature, whether it is in time, and whether it covers what it must: every x-amz header.
func (s *Store) checkSignature(op Operation) *reply {
	authorization := op.Header.Get("Authorization")
	switch {
	case op.Query.Has("X-Amz-Signature"):
		if refused := s.checkExpiry(op); refused != nil {
			return refused
		}
		return checkCovered(op, op.Query.Get("X-Amz-SignedHeaders"))
	case strings.HasPrefix(authorization, "AWS4-HMAC-SHA256 "):
		at, err := parseDate(op.Header.Get("X-Amz-Date"))
		if err != nil {
			return refuse(http.StatusForbidden, "AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
		}
		if d := s.options.Now().Sub(at); d > maxSkew || d < -maxSkew {
			return refuse(http.StatusForbidden, "RequestTimeTooSkewed", "The difference between the request time and the current time is too large.")
		}
		_, signed, _ := strings.Cut(authorization, "SignedHeaders=")
		signed, _, _ = strings.Cut(signed, ",")
		return checkCovered(op, signed)
	}
	return refuse(http.StatusForbidden, "AccessDenied", "Access Denied: there is no signature")
}

func parseDate(s string) (time.Time, error) { return time.Parse("20060102T150405Z", s) }

// checkExpiry judges a signature in the query by the store's clock ("Authenticating requests: using query parameters").
func (s *Store) checkExpiry(op Operation) *reply {
	at, err := parseDate(op.Query.Get("X-Amz-Date"))
	life, lifeErr := strconv.Atoi(op.Query.Get("X-Amz-Expires"))
	if err != nil || lifeErr != nil || life < 1 || life > longest {
		return refuse(http.StatusBadRequest, "AuthorizationQueryParametersError", "X-Amz-Date and X-Amz-Expires (1 to %d) are needed", longest)
	}
	now := s.options.Now()
	switch {
	case now.After(at.Add(time.Duration(life) * time.Second)):
		return refuse(http.StatusForbidden, "AccessDenied", "Request has expired")
	case now.Before(at.Add(-maxSkew)):
		return refuse(http.StatusForbidden, "AccessDenied", "Request is not valid yet")
	}
	return nil
}

// checkCovered refuses an x-amz header that is not signed: anyone on the way could have put it there.
func checkCovered(op Operation, signed string) *reply {
	names := strings.Split(signed, ";")
	if !slices.Contains(names, "host") {
		return refuse(http.StatusForbidden, "SignatureDoesNotMatch", "host is not signed")
	}
	for name := range op.Header {
		name = strings.ToLower(name)
		if strings.HasPrefix(name, "x-amz-") && !slices.Contains(names, name) {
			return refuse(http.StatusForbidden, "AccessDenied", "There were headers present in the request which were not signed: %s", name)
		}
	}
	return nil
}
