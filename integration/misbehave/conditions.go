package misbehave

import (
	"net/http"
	"strings"
)

// A condition is what a write demands of the object that it replaces or removes ("Conditional requests"): to be absent, or to have an
// ETag.
type condition struct {
	absent bool
	match  string // an ETag with its quotes, "*" for any, "" for no condition
}

// conditionOf reads the headers. AWS knows If-None-Match of a write with "*" alone, and not both.
func conditionOf(h http.Header) (condition, *reply) {
	match, none := h.Get("If-Match"), h.Get("If-None-Match")
	switch {
	case match != "" && none != "", none != "" && none != "*":
		return condition{}, refuse(http.StatusNotImplemented, "NotImplemented", "A header you provided implies functionality that is not implemented: If-None-Match")
	case none != "":
		return condition{absent: true}, nil
	}
	return condition{match: quoted(match)}, nil
}

func quoted(etag string) string {
	if etag == "" || etag == "*" {
		return etag
	}
	return `"` + strings.Trim(etag, `"`) + `"`
}

// judge says what is wrong with a write now; nil if nothing is. since is how often the object had changed when what must not be
// disturbed began: the request, or the upload.
func (c condition) judge(e *effect, b *bucket, name string, since int) *reply {
	o, exists := b.objects[name]
	switch {
	case c == condition{} || e.ignore:
		return nil
	case c.absent && exists, !c.absent && exists && c.match != "*" && c.match != o.etag:
		return refuse(http.StatusPreconditionFailed, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
	case !c.absent && !exists:
		return refuse(http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
	case !e.late && b.changes[name] != since:
		return conflict()
	}
	return nil
}

func conflict() *reply {
	return refuse(http.StatusConflict, "ConditionalRequestConflict", "The conditional request cannot succeed due to a conflicting operation against this resource.")
}
