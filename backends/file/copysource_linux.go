package file

import (
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A copySource is what x-amz-copy-source and the headers that begin with it say.
type copySource struct {
	name
	header http.Header // its conditions
}

// copySourceOf reads "bucket/key", with a slash before it or none. It is percent-encoded; a plus is a plus.
func copySourceOf(h http.Header) (copySource, error) {
	if len(h.Values("X-Amz-Copy-Source")) != 1 {
		return copySource{}, invalidArgument("x-amz-copy-source must be given once.")
	}
	path, query, asked := strings.Cut(h.Get("X-Amz-Copy-Source"), "?")
	if version, ok := strings.CutPrefix(query, "versionId="); ok && version == "null" {
		asked = false // of a bucket without versions it names the object
	} else if strings.HasPrefix(query, "versionId") {
		return copySource{}, notImplemented("A copy of one version of an object is not implemented by the file store: it keeps no versions.")
	}
	if asked {
		return copySource{}, invalidArgument("x-amz-copy-source has a query that is not ?versionId=: a question mark of a key is written %%3F.")
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		return copySource{}, invalidSource("Invalid copy source encoding").because("%s.", err)
	}
	bucket, key, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !validBucket(bucket) {
		return copySource{}, invalidSource("Invalid copy source bucket name").because("It is %q.", bucket)
	}
	if !ok || key == "" {
		return copySource{}, invalidSource("Invalid copy source object key").because("x-amz-copy-source must be bucket/key, not %q.", path)
	}
	n, err := parseName(bucket, key)
	if err != nil {
		return copySource{}, invalidSource("Invalid copy source object key").because("%s", err)
	}
	src := copySource{name: n, header: h}
	for _, k := range []string{modifiedSince, unmodifiedSince} {
		if _, _, err := src.date(k); err != nil {
			return copySource{}, err
		}
	}
	return src, nil
}

func invalidSource(message string) *apiError {
	return refuse(http.StatusBadRequest, "InvalidArgument", "%s", message)
}

const (
	sourceMatch     = "X-Amz-Copy-Source-If-Match"
	sourceNoneMatch = "X-Amz-Copy-Source-If-None-Match"
	modifiedSince   = "X-Amz-Copy-Source-If-Modified-Since"
	unmodifiedSince = "X-Amz-Copy-Source-If-Unmodified-Since"
)

// judge holds the conditions against the source. As in RFC 9110, section 13.2.2, a date counts only where there is no ETag of its
// kind; unlike there, all of them fail with 412.
func (src copySource) judge(m *meta) error {
	match, none := strings.Join(src.header.Values(sourceMatch), ","), strings.Join(src.header.Values(sourceNoneMatch), ",")
	modified := m.modified().Truncate(time.Second) // as exact as Last-Modified is
	since, hasSince, _ := src.date(modifiedSince)
	until, hasUntil, _ := src.date(unmodifiedSince)
	switch {
	case match != "" && !matches(match, m.etag):
		return preconditionFailed(strings.ToLower(sourceMatch))
	case match == "" && hasUntil && modified.After(until):
		return preconditionFailed(strings.ToLower(unmodifiedSince))
	case none != "" && matches(none, m.etag):
		return preconditionFailed(strings.ToLower(sourceNoneMatch))
	case none == "" && hasSince && !modified.After(since):
		return preconditionFailed(strings.ToLower(modifiedSince))
	}
	return nil
}

// date reads a condition that is a date. One that cannot be read is refused: to ignore it would be to copy what the client does not want.
func (src copySource) date(header string) (t time.Time, ok bool, err error) {
	v := src.header.Get(header)
	if v == "" {
		return t, false, nil
	}
	if t, err = http.ParseTime(v); err != nil {
		return t, false, invalidArgument("%s is not a date of HTTP: %q.", strings.ToLower(header), v)
	}
	return t, true, nil
}

// directives say what a copy has from its request, and not from its source.
type directives struct {
	metadata, tags bool
}

func directivesOf(h http.Header) (d directives, err error) {
	if d.metadata, err = replaces(h, "X-Amz-Metadata-Directive", "Unknown metadata directive."); err != nil {
		return d, err
	}
	d.tags, err = replaces(h, "X-Amz-Tagging-Directive", "Unknown tagging directive.")
	return d, err
}

func replaces(h http.Header, header, otherwise string) (bool, error) {
	switch v := h.Get(header); v {
	case "", "COPY":
		return false, nil
	case "REPLACE":
		return true, nil
	default:
		return false, refuse(http.StatusBadRequest, "InvalidArgument", "%s", otherwise).because("%s must be COPY or REPLACE, not %q.", strings.ToLower(header), v)
	}
}

// givenOf takes from the request what it gives. Tags that the copy will not have are not looked at, as S3 does.
func (d directives) givenOf(h http.Header) (given, error) {
	if !d.tags {
		h = h.Clone()
		h.Del(headerTagging)
	}
	return givenOf(h)
}

// merge puts together what the request gives and what the source has. A redirect is never copied (page "CopyObject" of the API).
func (d directives) merge(asked, source given) given {
	g := given{headers: maps.Clone(source.headers), tags: source.tags}
	delete(g.headers, redirect)
	if d.metadata {
		g.headers = asked.headers
	} else if v := asked.headers[redirect]; v != "" {
		if g.headers == nil {
			g.headers = map[string]string{}
		}
		g.headers[redirect] = v
	}
	if d.tags {
		g.tags = asked.tags
	}
	return g
}

// copyRangeOf reads x-amz-copy-source-range, bytes=FIRST-LAST with both ends within the source, or returns all of it.
func copyRangeOf(h http.Header, size int64) (off, n int64, err error) {
	v := h.Get("X-Amz-Copy-Source-Range")
	if v == "" {
		return 0, size, nil
	}
	spec, ok := strings.CutPrefix(v, "bytes=")
	first, last, dash := strings.Cut(spec, "-")
	if !ok || !dash || strings.Trim(first+last, "0123456789") != "" || first == "" || last == "" {
		return 0, 0, invalidRange(v)
	}
	from, fromErr := strconv.ParseInt(first, 10, 64)
	to, toErr := strconv.ParseInt(last, 10, 64)
	switch {
	case fromErr != nil || toErr != nil || to < from:
		return 0, 0, invalidRange(v)
	case to >= size:
		return 0, 0, refuse(http.StatusBadRequest, "InvalidArgument", "Range specified is not valid for source object of size: %d", size)
	}
	return from, to - from + 1, nil
}

func invalidRange(v string) *apiError {
	return refuse(http.StatusBadRequest, "InvalidArgument", "The x-amz-copy-source-range value must be of the form bytes=first-last "+
		"where first and last are the zero-based offsets of the first and last bytes to copy").because("It is %q.", v)
}
