package file

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// conditions are what a write demands of the object that it finds.
type conditions struct {
	ifMatch     string // the header, "" if absent
	mustBeFirst bool   // If-None-Match: *

	// Of a DELETE only, each with the header that asks for it or "".
	ifSize, ifModified string
	size               int64
	modified           time.Time
}

func (c conditions) none() bool { return c == conditions{} }

// conditionsOf reads the conditions of a write. A condition that would not be judged is refused: to ignore one is to write where the
// client said not to.
func conditionsOf(h http.Header) (conditions, error) {
	match, none := h.Get("If-Match"), h.Get("If-None-Match")
	if len(h.Values("If-Match")) > 1 || len(h.Values("If-None-Match")) > 1 || (match != "" && none != "") {
		return conditions{}, unjudgedHeader("More than one of If-Match and If-None-Match on a write is not implemented.")
	}
	if none != "" && none != "*" {
		return conditions{}, unjudgedHeader("If-None-Match on a write with a value other than * is not implemented.")
	}
	for _, k := range unjudged {
		if h.Get(k) != "" {
			return conditions{}, unjudgedHeader("The condition %s on a write is not implemented.", k)
		}
	}
	return conditions{ifMatch: match, mustBeFirst: none == "*"}, nil
}

func unjudgedHeader(format string, args ...any) *apiError {
	return notImplemented("A header you provided implies functionality that is not implemented.").because(format, args...)
}

var unjudged = []string{"If-Modified-Since", "If-Unmodified-Since", matchSize, matchTime}

const (
	matchSize = "X-Amz-If-Match-Size"
	matchTime = "X-Amz-If-Match-Last-Modified-Time"
)

// conditionsOfDelete reads what DeleteObject demands: S3 knows two more conditions there.
func conditionsOfDelete(h http.Header) (c conditions, err error) {
	others := h.Clone()
	others.Del(matchSize)
	others.Del(matchTime)
	if c, err = conditionsOf(others); err != nil {
		return c, err
	}
	if c.ifSize = h.Get(matchSize); c.ifSize != "" {
		if c.size, err = strconv.ParseInt(c.ifSize, 10, 64); err != nil {
			return c, invalidArgument("%s is not a number of bytes: %q.", strings.ToLower(matchSize), c.ifSize)
		}
	}
	if c.ifModified = h.Get(matchTime); c.ifModified != "" {
		if c.modified, err = http.ParseTime(c.ifModified); err != nil {
			return c, invalidArgument("%s is not a date of HTTP: %q.", strings.ToLower(matchTime), c.ifModified)
		}
	}
	return c, nil
}

// judge holds the conditions against the object that the key has now, nil if there is none. All of them must hold.
func (c conditions) judge(m *meta) error {
	switch {
	case m == nil && (c.ifMatch != "" || c.ifSize != "" || c.ifModified != ""):
		return noSuchKey()
	case m == nil:
		return nil
	case c.mustBeFirst:
		return preconditionFailed("If-None-Match")
	case c.ifMatch != "" && !matches(c.ifMatch, m.etag):
		return preconditionFailed("If-Match")
	case c.ifSize != "" && c.size != m.size:
		return preconditionFailed(strings.ToLower(matchSize))
	case c.ifModified != "" && !c.modified.Equal(m.modified().Truncate(time.Second)):
		return preconditionFailed(strings.ToLower(matchTime))
	}
	return nil
}

// matches says whether an If-Match header names etag. S3 takes an ETag without its quotes, too; a weak one never matches.
func matches(header, etag string) bool {
	for t := range strings.SplitSeq(header, ",") {
		t = strings.TrimSpace(t)
		if t == "*" || t == etag || t == `"`+etag+`"` {
			return true
		}
	}
	return false
}
