package file

import (
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
	if strings.HasPrefix(query, "versionId") {
		return copySource{}, notImplemented("A copy of one version of an object is not implemented by the file store: it keeps no versions.")
	} else if asked {
		return copySource{}, invalidArgument("x-amz-copy-source has a query that is not ?versionId=: a question mark of a key is written %%3F.")
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		return copySource{}, invalidArgument("x-amz-copy-source is not percent-encoded: %s.", err)
	}
	bucket, key, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok || key == "" {
		return copySource{}, invalidArgument("x-amz-copy-source must be bucket/key, not %q.", path)
	}
	if err := checkBucket(bucket); err != nil {
		return copySource{}, err
	}
	n, err := parseName(bucket, key)
	if err != nil {
		return copySource{}, err
	}
	src := copySource{name: n, header: h}
	for _, k := range []string{modifiedSince, unmodifiedSince} {
		if _, _, err := src.date(k); err != nil {
			return copySource{}, err
		}
	}
	return src, nil
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

// replacesMetadata says whether a copy has the metadata of its request, and not its source's.
func replacesMetadata(h http.Header) (bool, error) {
	switch v := h.Get("X-Amz-Metadata-Directive"); v {
	case "", "COPY":
		return false, nil
	case "REPLACE":
		return true, nil
	default:
		return false, invalidArgument("x-amz-metadata-directive must be COPY or REPLACE, not %q.", v)
	}
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
		return 0, 0, invalidArgument("x-amz-copy-source-range must be bytes=FIRST-LAST, not %q.", v)
	}
	from, fromErr := strconv.ParseInt(first, 10, 64)
	to, toErr := strconv.ParseInt(last, 10, 64)
	switch {
	case fromErr != nil || toErr != nil || to < from:
		return 0, 0, invalidArgument("x-amz-copy-source-range must be bytes=FIRST-LAST, not %q.", v)
	case to >= size:
		return 0, 0, invalidArgument("x-amz-copy-source-range %s does not lie within the source, which has %d bytes.", v, size)
	}
	return from, to - from + 1, nil
}
