package proxy

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// The proxy's own lock, one on each resource: POST ?fence&lease=30s takes it, PUT ?fence&lease=ID keeps it, DELETE ?fence&lease=ID gives it
// back. No such request raises the fence: the first write, read or announcement of the new holder does.

// locks says whether operations of this way are about the lock on a resource.
func (w way) locks() bool { return w == takesLock || w == renewsLock || w == releasesLock }

// A heldLock is the lock as everybody may see it.
type heldLock struct {
	Holder  string       `json:"holder"`
	Token   tokens.Token `json:"token"`
	Since   time.Time    `json:"since"`
	Expires time.Time    `json:"expires"` // if it is not renewed; by a proxy's clock, for people
}

func shown(l tokens.Lease) *heldLock {
	return &heldLock{l.Holder, l.Token, l.Since.UTC(), l.Expires.UTC()}
}

// takeLock answers POST ?fence&lease=TTL.
func (x *exchange) takeLock() error {
	e, err := x.beginLock()
	if err != nil {
		return err
	}
	q, err := x.lockRequest(e)
	if err != nil {
		return err
	}
	l, err := x.h.Locks.Take(x.detached(), q)
	var held *tokens.HeldError
	switch {
	case errors.As(err, &held):
		// No refusal that an operator has to hear of: it comes with every look of everybody who waits.
		x.h.metrics.lock("held")
		x.w.Header().Set(headerError, lockHeld)
		x.sendJSON(http.StatusLocked, shown(held.By))
		return nil
	case err != nil:
		return x.lockFailed(err)
	case l.Again:
		x.h.metrics.lock("renewed")
	case l.TakenOver:
		x.h.metrics.lock("taken_over")
		x.h.Log.Warn("a lock was taken over: its holder had not released it, and was not heard of for its TTL",
			"resource", l.Resource, "from", l.From, "token", l.Token, "holder", l.Holder, "client", x.r.RemoteAddr, "request", x.id)
	default:
		x.h.metrics.lock("taken")
	}
	x.sendLease(l)
	return nil
}

// renewLock answers PUT ?fence&lease=ID.
func (x *exchange) renewLock() error {
	if _, err := x.beginLock(); err != nil {
		return err
	}
	l, err := x.h.Locks.Renew(x.detached(), x.target.Resource, x.leaseParameter())
	if err != nil {
		return x.lockFailed(err)
	}
	x.h.metrics.lock("renewed")
	x.sendLease(l)
	return nil
}

// releaseLock answers DELETE ?fence&lease=ID.
func (x *exchange) releaseLock() error {
	if _, err := x.beginLock(); err != nil {
		return err
	}
	if err := x.h.Locks.Release(x.detached(), x.target.Resource, x.leaseParameter()); err != nil {
		return x.lockFailed(err)
	}
	x.h.metrics.lock("released")
	x.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (x *exchange) lockFailed(err error) error {
	if errors.As(err, new(*tokens.LeaseLostError)) {
		x.h.metrics.lock("lost")
	}
	return err
}

// beginLock says no to what cannot have a lock, and tells where the fence stands.
func (x *exchange) beginLock() (tokens.Entry, error) {
	x.drain(drainTime)
	switch {
	case x.h.Locks == nil:
		return tokens.Entry{}, notImplemented("this proxy has no locks of its own")
	case !x.target.Fenced:
		return tokens.Entry{}, badRequest(invalidArgument, "%s/%s can have no lock: its rule says token: off, and nobody would hold a writer to the lock's token", x.op.bucket, x.op.key)
	}
	if spelling := mergedSpelling(x.op.key, x.h.guarantees.merges(x.target.Backend)); spelling != "" {
		return tokens.Entry{}, mergedName(x.op.key, spelling)
	}
	e, err := x.h.Fence.Highest(x.detached(), x.target.Resource)
	if err != nil {
		return e, err
	}
	x.sayFence(e)
	return e, nil
}

func (x *exchange) leaseParameter() string {
	query, _ := url.ParseQuery(x.r.URL.RawQuery) // parseOperation has read it
	return query.Get("lease")
}

// lockRequest reads what is wanted. Who names no holder is called by what is known of it: that tells it from others to people, and to nobody
// else.
func (x *exchange) lockRequest(seen tokens.Entry) (q tokens.LockRequest, err error) {
	q = tokens.LockRequest{Resource: x.target.Resource, Holder: x.who.holder, AccessKey: x.accessKey, Above: seen.Token}
	if q.TTL, err = time.ParseDuration(x.leaseParameter()); err != nil || q.TTL < tokens.MinLeaseTTL || q.TTL > tokens.MaxLeaseTTL {
		return q, badRequest(invalidArgument, "lease=%s: a lock is taken for 1s to 1h, such as lease=30s", x.leaseParameter())
	}
	q.TTL = q.TTL.Truncate(time.Millisecond)
	switch ids := x.r.Header.Values(headerLease); {
	case len(ids) > 1:
		return q, badRequest(invalidArgument, "%s stands %d times in the request: send it once", headerLease, len(ids))
	case len(ids) == 1:
		if q.Lease, err = tokens.ParseLeaseID(ids[0]); err != nil {
			return q, badRequest(invalidArgument, "%s: %v", headerLease, err)
		}
	}
	if x.target.HolderRequired && q.Holder == "" {
		return q, &ruleError{holderRequired, "a lock is taken only with a holder here: send " + headerHolder}
	}
	if q.Holder == "" {
		q.Holder = x.accessKey
	}
	if _, err := tokens.ParseHolder(q.Holder); err != nil {
		q.Holder, _, _ = net.SplitHostPort(x.r.RemoteAddr)
	}
	if _, err := tokens.ParseHolder(q.Holder); err != nil {
		q.Holder = "unknown"
	}
	return q, nil
}

func (x *exchange) sendLease(l tokens.Lease) {
	x.sendJSON(http.StatusOK, struct {
		Resource  string       `json:"resource"`
		Token     tokens.Token `json:"token"`
		Lease     string       `json:"lease"`
		Holder    string       `json:"holder"`
		TakenOver bool         `json:"taken_over"`
		Since     time.Time    `json:"since"`
		Expires   time.Time    `json:"expires"`
	}{l.Resource, l.Token, l.ID, l.Holder, l.TakenOver, l.Since.UTC(), l.Expires.UTC()})
}

// heldLock is the lock on the resource for GET ?fence; nil where nobody has it.
func (x *exchange) heldLock() (*heldLock, error) {
	if x.h.Locks == nil {
		return nil, nil
	}
	l, held, err := x.h.Locks.Show(x.detached(), x.target.Resource)
	if err != nil || !held {
		return nil, err
	}
	return shown(l), nil
}

func (x *exchange) sendJSON(status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and times
	}
	x.send(status, "application/json", append(body, '\n'))
}
