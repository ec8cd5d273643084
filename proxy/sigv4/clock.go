package sigv4

import (
	"net/http"
	"time"
)

const (
	timeFormat = "20060102T150405Z" // ISO 8601, basic
	dateFormat = "20060102"
)

// timeOf is when the request was signed: x-amz-date, else Date ("Elements of an AWS API request signature", "Date"). A time in
// neither needs no place among the signed headers, for it is part of what is signed.
func (v *Verifier) timeOf(h http.Header, scopeDate string) (time.Time, error) {
	when, ok := parseTime(h["X-Amz-Date"])
	if len(h["X-Amz-Date"]) == 0 {
		when, ok = parseDate(h["Date"])
	}
	if !ok {
		return when, refuse(http.StatusForbidden, accessDenied, "AWS authentication requires a valid Date or x-amz-date header.")
	}
	now := v.now().UTC()
	if d := now.Sub(when); d > v.skew || d < -v.skew {
		return when, skewed(when, now, v.skew)
	}
	if !sameDay(when, scopeDate) {
		return when, malformed("Invalid credential date %q. This date is not the same as X-Amz-Date: %q.", scopeDate, when.Format(dateFormat))
	}
	return when, nil
}

func sameDay(t time.Time, date string) bool {
	var b [len(dateFormat)]byte
	return string(t.AppendFormat(b[:0], dateFormat)) == date
}

// parseTime takes one timestamp and no other form of it: it stands in the string to sign as it is.
func parseTime(values []string) (t time.Time, ok bool) {
	if len(values) != 1 || len(values[0]) != len(timeFormat) {
		return t, false
	}
	t, err := time.Parse(timeFormat, values[0])
	return t, err == nil
}

// parseDate takes what may stand in a Date header: an HTTP date (RFC 9110), or a timestamp.
func parseDate(values []string) (t time.Time, ok bool) {
	if t, ok = parseTime(values); ok || len(values) != 1 {
		return t, ok
	}
	t, err := http.ParseTime(values[0])
	if err != nil {
		t, err = time.Parse(time.RFC1123Z, values[0])
	}
	return t.UTC(), err == nil
}

// checkWindow holds a presigned URL to its time. It is judged when the request starts: a body may take longer.
func (v *Verifier) checkWindow(when time.Time, expires time.Duration) error {
	now := v.now().UTC()
	switch end := when.Add(expires); {
	case when.Sub(now) > v.skew:
		return notYet(when, now)
	case now.After(end):
		return expired(expires, end, now)
	}
	return nil
}
