package audit

import (
	"encoding/json"
	"net"
	"strings"
	"time"
	"unicode/utf8"
)

// The kinds of records.
const (
	KindRefusal   = "refusal"   // a request was refused; Code is its X-Fence-Error
	KindRaise     = "raise"     // the highest token of a resource went up
	KindReset     = "reset"     // an operator set the token of a resource, Detail says why
	KindInDoubt   = "in_doubt"  // the store did not tell what became of a write
	KindGuarantee = "guarantee" // what a probe found out about a store
	KindReload    = "reload"    // the configuration was swapped
	KindStart     = "start"     // the proxy started
)

// Kinds are all kinds of records.
var Kinds = []string{KindRefusal, KindRaise, KindReset, KindInDoubt, KindGuarantee, KindReload, KindStart}

// A Record is one event, or a run of equal refusals.
type Record struct {
	ID        int64     `json:"id"`   // given when it is written
	Time      time.Time `json:"time"` // of the event, of the first one of a run; kept to the millisecond
	Last      time.Time `json:"last"` // of the last one of a run
	Count     int64     `json:"count"`
	Kind      string    `json:"kind"`
	Code      string    `json:"code"`
	Bucket    string    `json:"bucket"`
	Key       string    `json:"key"`
	Operation string    `json:"operation"`
	Resource  string    `json:"resource"`
	Token     int64     `json:"token"`   // what the request carried
	Highest   int64     `json:"highest"` // the highest one seen then
	Holder    string    `json:"holder"`
	AccessKey string    `json:"access_key"`
	Client    string    `json:"client"` // address, with or without its port
	UserAgent string    `json:"user_agent"`
	RequestID string    `json:"request_id"`
	Detail    string    `json:"detail"`   // a sentence for people
	Instance  string    `json:"instance"` // the proxy that wrote it

	Event string `json:"-"` // names the event for the store; not read back
}

// timeFormat is RFC 3339 in UTC with milliseconds, so that times have one length and sort as text.
const timeFormat = "2006-01-02T15:04:05.000Z"

// MarshalJSON writes the times in UTC with milliseconds.
func (r Record) MarshalJSON() ([]byte, error) {
	type plain Record // without this method
	return json.Marshal(struct {
		Time string `json:"time"`
		Last string `json:"last"`
		plain
	}{r.Time.UTC().Format(timeFormat), r.Last.UTC().Format(timeFormat), plain(r)})
}

// The longest texts kept, in bytes. A client chooses many of them, and none may fill the disk.
const (
	maxName      = 64   // kinds, codes, operations
	maxText      = 256  // buckets, holders, access keys, addresses, user agents, request ids
	maxKey       = 1024 // as long as S3 lets a key be
	maxResource  = 4096 // a rule may put more around a key
	maxDetail    = 4096
	replacement  = "\uFFFD"
	cutOffMarker = "…"
)

// normal is r as it is stored: complete, bounded, in valid UTF-8.
func (r Record) normal(now time.Time) Record {
	if r.Time.IsZero() {
		r.Time = now
	}
	r.Time = r.Time.UTC().Truncate(time.Millisecond)
	r.Last = r.Last.UTC().Truncate(time.Millisecond)
	if r.Last.Before(r.Time) {
		r.Last = r.Time
	}
	r.Count = max(r.Count, 1)
	for _, f := range []struct {
		text *string
		max  int
	}{
		{&r.Kind, maxName},
		{&r.Code, maxName},
		{&r.Operation, maxName},
		{&r.Bucket, maxText},
		{&r.Holder, maxText},
		{&r.AccessKey, maxText},
		{&r.Client, maxText},
		{&r.UserAgent, maxText},
		{&r.RequestID, maxText},
		{&r.Instance, maxText},
		{&r.Key, maxKey},
		{&r.Resource, maxResource},
		{&r.Detail, maxDetail},
	} {
		*f.text = bounded(*f.text, f.max)
	}
	return r
}

// bounded is s in valid UTF-8 without NUL (where other programs that read the file would end it), in at most limit bytes.
func bounded(s string, limit int) string {
	// Cut first: a client's text may be far longer than what is kept of it.
	cut := len(s) > limit
	if cut {
		s = s[:limit]
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, replacement), "\x00", replacement)
	if !cut && len(s) <= limit {
		return s
	}
	end := min(limit-len(cutOffMarker), len(s))
	for end > 0 && end < len(s) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + cutOffMarker
}

// host is the client without its port: every connection of one client has another.
func host(client string) string {
	if h, _, err := net.SplitHostPort(client); err == nil {
		return h
	}
	return client
}
