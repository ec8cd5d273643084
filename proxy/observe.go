package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// An observation is what the store was seen to have under a key, before the gate. It is what a write's condition is made of: one that
// comes to the store late finds something else there.
type observation struct {
	etag   string // "" if there is no object
	known  bool   // the store has told, or it is assumed
	hidden bool   // the store shows us nothing: that there is no object is assumed
}

// absent says that there is no object.
func (o observation) absent() bool { return o.known && o.etag == "" }

// remembered are the ETags that our own writes have left behind. It saves the HEAD before the next write. What it says may be out of
// date: then the condition fails, and the store is asked.
type remembered struct {
	mu    sync.Mutex
	etags map[string]string // by bucket and key; guarded by mu
}

// maxRemembered bounds the memory: an entry has a key and an ETag.
const maxRemembered = 50_000

func (m *remembered) get(name string) (etag string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	etag, ok = m.etags[name]
	return etag, ok
}

func (m *remembered) put(name, etag string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.etags == nil {
		m.etags = make(map[string]string)
	}
	for other := range m.etags { // any one has to go
		if len(m.etags) < maxRemembered {
			break
		}
		delete(m.etags, other)
	}
	m.etags[name] = etag
}

func (m *remembered) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.etags, name)
}

// observe says what the key has now. It may come from memory, unless fresh is asked for.
func (x *exchange) observe(ctx context.Context, fresh bool) (observation, error) {
	if etag, ok := x.h.etags.get(x.name()); ok && !fresh {
		return observation{etag: etag, known: true}, nil
	}
	return x.look(ctx)
}

func (x *exchange) name() string { return x.op.bucket + "/" + x.op.key }

// look asks the store. A stamp that it finds is looked at, too: of another registry, it ends the write; with a higher token than ours,
// it raises the mark.
func (x *exchange) look(ctx context.Context) (observation, error) {
	seen, stamp, err := x.glance(ctx)
	if err == nil {
		err = x.heed(stamp)
	}
	return seen, err
}

// glance asks the store, and leaves the stamp alone.
func (x *exchange) glance(ctx context.Context) (seen observation, stamp string, err error) {
	rec := x.head(ctx)
	switch rec.status {
	case http.StatusOK:
		etag := rec.header.Get("Etag")
		return observation{etag: etag, known: etag != ""}, rec.header.Get(headerStamp), nil
	case http.StatusNotFound:
		return observation{known: true}, "", nil
	case http.StatusForbidden: // which is what S3 says of a missing object to those who may not list
		return observation{known: true, hidden: true}, "", nil
	}
	if rec.status >= 300 && rec.status < 500 || rec.status == http.StatusNotImplemented {
		// It is there, and encrypted with a key that the writer has not sent (400); or the store says what is wrong when it gets the write.
		return observation{}, "", nil
	}
	return observation{}, "", &s3Error{
		http.StatusServiceUnavailable, serviceUnavailable,
		"the store did not say what it has under this key (HEAD: " + strconv.Itoa(rec.status) + "), and nothing is written without knowing it. Nothing was changed",
	}
}

// checkStamp asks a store in this process for the stamp of the key: should the registry have been restored from an older copy, the object may
// know of a higher token.
func (x *exchange) checkStamp(ctx context.Context) error {
	if !x.backend().Stamp {
		return nil
	}
	_, err := x.look(ctx)
	return err
}

// observing are the headers of a write without which the store may not show the object that it is about to replace.
var observing = []string{
	"X-Amz-Server-Side-Encryption-Customer-Algorithm", "X-Amz-Server-Side-Encryption-Customer-Key", "X-Amz-Server-Side-Encryption-Customer-Key-Md5",
	"X-Amz-Request-Payer", "X-Amz-Expected-Bucket-Owner",
}

// head asks for the object's headers.
func (x *exchange) head(ctx context.Context) *recorder {
	out := x.toBackend().WithContext(ctx)
	out.Method, out.URL.RawQuery = http.MethodHead, ""
	out.Body, out.ContentLength = http.NoBody, 0
	out.Header = http.Header{}
	for _, name := range observing {
		if v, ok := x.r.Header[name]; ok {
			out.Header[name] = v
		}
	}
	rec := newRecorder(http.Header{})
	x.runBackend(rec, out)
	return rec
}

// heed takes from a stamp what it tells.
func (x *exchange) heed(text string) error {
	s, ok := ParseStamp(text)
	if !ok || s.Resource != ResourceHash(x.target.Resource) {
		return nil // none, or one that came with a copy
	}
	x.h.doubts.seen(s.WriteID)
	switch ours := s.Registry == x.h.RegistryID || x.h.adopted(s.Registry); {
	case !ours && !x.backend().remote():
		return nil // a directory is bound to its registry as a whole, and this is a leaving of the one before
	case !ours:
		return &conflictingRegistry{ours: x.h.RegistryID, theirs: s.Registry, name: x.name()}
	}
	if s.Token <= x.who.token {
		return nil
	}
	now, err := x.h.Fence.Highest(x.detached(), x.target.Resource)
	switch {
	case err != nil:
		return err
	case s.Generation < now.Generation:
		return nil // it is from before a reset, which has taken the token down
	case s.Token <= now.Token: // the newer holder came while this write was on its way
		return &tokens.StaleError{Resource: x.target.Resource, Token: x.who.token, Highest: now.Token, Holder: now.Holder}
	}
	// The registry has lost a token that it has known before. This write's is stale, as the store itself shows.
	c := x.claim()
	c.Token, c.Holder, c.AccessKey = s.Token, "", ""
	now, err = x.h.Fence.Announce(x.detached(), c)
	if errors.As(err, new(*tokens.TooFarError)) {
		return &ruleError{tokenTooFar, fmt.Sprintf("the object is stamped with token %d, which is beyond max_advance, and so nobody writes to it: if the registry has lost tokens, raise it with "+
			"`fenceproxy fences raise`; if the stamp came with a copy, remove the object past the proxy", s.Token)}
	}
	if err == nil {
		x.h.Log.Warn("an object has a higher token than the registry: the mark was raised", "resource", x.target.Resource, "object", x.name(), "token", int64(s.Token))
	} else if !errors.As(err, new(*tokens.StaleError)) && !errors.As(err, new(*tokens.ConflictError)) {
		return err
	}
	return &tokens.StaleError{Resource: x.target.Resource, Token: x.who.token, Highest: now.Token, Holder: now.Holder}
}

// A conflictingRegistry refuses a write to a bucket that another registry fences, too.
type conflictingRegistry struct{ ours, theirs, name string }

func (e *conflictingRegistry) Error() string {
	return fmt.Sprintf("two registries fence one bucket: %s was written under registry %s, and this proxy has registry %s. Stop one of the two. "+
		"If %s is gone for good, `fenceproxy serve --adopt %s` takes its stamps for ours", e.name, e.theirs, e.ours, e.theirs, e.theirs)
}
