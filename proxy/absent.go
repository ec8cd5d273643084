package proxy

import (
	"encoding/xml"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// A DELETE that comes late, and finds what a newer holder has written, must fail. That needs an ETag, and a key that was observed absent
// has none. So such a DELETE is not sent at all, where it would do nothing: in a bucket that is there and keeps no versions.

// unversioned remembers which buckets are there and keep no versions, and when they were asked.
type unversioned struct {
	mu    sync.Mutex
	asked map[string]time.Time // guarded by mu
}

// versioningHolds is how long a bucket's answer is believed. A bucket is not often told to keep versions.
const versioningHolds = time.Minute

func (u *unversioned) knows(bucket string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	at, ok := u.asked[bucket]
	return ok && time.Since(at) < versioningHolds
}

func (u *unversioned) learn(bucket string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.asked == nil || len(u.asked) > 10_000 {
		u.asked = make(map[string]time.Time)
	}
	u.asked[bucket] = time.Now()
}

// nothingToDelete says that a DELETE of a key that is absent needs not be sent.
func (x *exchange) nothingToDelete(seen observation) bool {
	if seen.hidden || x.r.Header.Get("If-Match") != "" {
		return false // the store has to say what that means
	}
	return x.keepsNoVersions()
}

func (x *exchange) keepsNoVersions() bool {
	if x.h.unversioned.knows(x.op.bucket) {
		return true
	}
	out := x.toBackend().WithContext(x.detached())
	out.Method, out.Header = http.MethodGet, http.Header{}
	out.URL = &url.URL{Path: "/" + x.op.bucket, RawQuery: "versioning"}
	out.Body, out.ContentLength = http.NoBody, 0
	rec := newRecorder(http.Header{})
	x.runBackend(rec, out)
	var is struct {
		XMLName xml.Name `xml:"VersioningConfiguration"`
		Status  string
	}
	if rec.status != http.StatusOK || xml.Unmarshal(rec.body, &is) != nil || is.Status != "" {
		return false
	}
	x.h.unversioned.learn(x.op.bucket)
	return true
}

// deleteNothing passes the gate and answers. Only now, with every older write settled, does the key's absence count: one that came to be there
// meanwhile has to be deleted, after all.
func (x *exchange) deleteNothing(p passage) (*recorder, error) {
	if err := p.admit(); err != nil {
		return nil, err
	}
	seen, _, err := x.glance(x.detached()) // a stamp with a higher token would raise the mark, and wait for this write
	switch {
	case err == nil && seen.absent():
		p.Done()
	case err == nil:
		err = errLostRace
		fallthrough
	default:
		p.Failed() // the store has heard nothing of it
		return nil, err
	}
	rec := newRecorder(x.w.Header())
	rec.WriteHeader(http.StatusNoContent)
	return rec, nil
}
