package file

import (
	"net/http"
	"strings"
)

// conditions are what a write demands of the object that it finds.
type conditions struct {
	ifMatch     string // the header, "" if absent
	mustBeFirst bool   // If-None-Match: *
}

func (c conditions) none() bool { return c == conditions{} }

// conditionsOf reads the conditions of a write. A condition that would not be judged is refused: to ignore one is to write where the
// client said not to.
func conditionsOf(h http.Header) (conditions, error) {
	match, none := h.Get("If-Match"), h.Get("If-None-Match")
	if len(h.Values("If-Match")) > 1 || len(h.Values("If-None-Match")) > 1 || (match != "" && none != "") {
		return conditions{}, notImplemented("More than one of If-Match and If-None-Match on a write is not implemented.")
	}
	if none != "" && none != "*" {
		return conditions{}, notImplemented("If-None-Match on a write with a value other than * is not implemented.")
	}
	for _, k := range unjudged {
		if h.Get(k) != "" {
			return conditions{}, notImplemented("The condition %s on a write is not implemented.", k)
		}
	}
	return conditions{ifMatch: match, mustBeFirst: none == "*"}, nil
}

var unjudged = []string{"If-Modified-Since", "If-Unmodified-Since", "X-Amz-If-Match-Size", "X-Amz-If-Match-Last-Modified-Time"}

// judge holds the conditions against the ETag that the key has now, "" if there is no object.
func (c conditions) judge(etag string) error {
	switch {
	case c.mustBeFirst && etag != "":
		return preconditionFailed("If-None-Match")
	case c.ifMatch != "" && etag == "":
		return noSuchKey()
	case c.ifMatch != "" && !matches(c.ifMatch, etag):
		return preconditionFailed("If-Match")
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
