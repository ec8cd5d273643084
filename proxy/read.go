package proxy

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// read lets a read through. A token that it carries is raised first, so that what a new holder reads is what nobody older can
// change any more. A stale reader is served: it changes nothing, and X-Fence-Highest tells it that it is stale.
func (x *exchange) read() error {
	if x.target.Fenced {
		if err := x.announceRead(); err != nil {
			return err
		}
	}
	x.backend().ServeHTTP(&unstamped{ResponseWriter: x.w}, x.toBackend())
	return nil
}

// preflight hands a browser's question on, and nothing beside it: nobody has signed it.
func (x *exchange) preflight() error {
	out := x.toBackend()
	out.URL.RawQuery, out.Body, out.ContentLength = "", http.NoBody, 0
	for name := range out.Header {
		if name != "Origin" && name != "User-Agent" && !strings.HasPrefix(name, "Access-Control-Request-") {
			out.Header.Del(name)
		}
	}
	x.backend().ServeHTTP(x.w, out)
	return nil
}

func (x *exchange) announceRead() error {
	if x.who.token == 0 || x.target.Reads == rules.Plain || x.access != nil && x.access.ReadOnly { // who may not write, shuts no writer out
		x.lookFence()
		return nil
	}
	e, err := x.announce()
	var stale *tokens.StaleError
	var conflict *tokens.ConflictError
	if errors.As(err, &stale) || errors.As(err, &conflict) { // the mark is there already, and may be another's
		err = nil
	}
	x.sayFence(e)
	return err
}

func (x *exchange) announce() (tokens.Entry, error) {
	if spelling := mergedSpelling(x.op.key, x.h.guarantees.merges(x.target.Backend)); spelling != "" {
		return tokens.Entry{Resource: x.target.Resource}, mergedName(x.op.key, spelling)
	}
	if x.target.HolderRequired && x.who.holder == "" {
		return tokens.Entry{Resource: x.target.Resource}, &ruleError{holderRequired, "a token is raised only with a holder here: send " + headerHolder + " beside it"}
	}
	return x.h.Fence.Announce(x.detached(), x.claim())
}

// showFence answers GET ?fence.
func (x *exchange) showFence() error {
	if !x.target.Fenced {
		return x.notFenced()
	}
	e, err := x.h.Fence.Highest(x.detached(), x.target.Resource)
	if err != nil {
		return err
	}
	held, err := x.heldLock()
	if err != nil {
		return err
	}
	return x.writeFence(e, held)
}

// raiseFence answers PUT ?fence: an announcement.
func (x *exchange) raiseFence() error {
	x.drain(drainTime)
	switch {
	case !x.target.Fenced:
		return x.notFenced()
	case x.who.token == 0:
		return &ruleError{tokenRequired, "an announcement needs a token: send " + headerToken}
	}
	e, err := x.announce()
	if err != nil {
		return err
	}
	return x.writeFence(e, nil)
}

func (x *exchange) notFenced() error {
	return badRequest(invalidArgument, "%s/%s has no fence: its rule says token: off", x.op.bucket, x.op.key)
}

// writeFence shows a fence, and the lock on its resource if it is held.
func (x *exchange) writeFence(e tokens.Entry, lock *heldLock) error {
	x.sayFence(e)
	x.sendJSON(http.StatusOK, struct {
		Resource string       `json:"resource"`
		Highest  tokens.Token `json:"highest"`
		Holder   string       `json:"holder"`
		Lock     *heldLock    `json:"lock,omitempty"`
	}{e.Resource, e.Token, e.Holder, lock})
	return nil
}

// A bucketList is S3's answer to ListBuckets.
type bucketList struct {
	XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListAllMyBucketsResult"`
	Owner   struct {
		ID          string
		DisplayName string
	}
	Buckets []struct {
		Name         string
		CreationDate string
	} `xml:"Buckets>Bucket"`
}

// listBuckets hands the question on where there is one backend. Of several it gathers all buckets; one that the configuration leads
// elsewhere is not shown, nor one that is out of reach of the access key.
func (x *exchange) listBuckets() error {
	limited := x.access != nil && len(x.access.Buckets) > 0
	if len(x.h.Backends) == 1 && !limited {
		for _, b := range x.h.Backends {
			b.ServeHTTP(x.w, x.toBackend())
		}
		return nil
	}
	var all bucketList
	for name, b := range x.h.Backends {
		rec := x.askBuckets(b)
		if rec.status != http.StatusOK {
			rec.replay(x.w)
			return nil
		}
		var list bucketList
		if err := xml.Unmarshal(rec.body, &list); err != nil {
			return fmt.Errorf("backend %s answered ListBuckets with what cannot be read: %w", name, err)
		}
		all.Owner = list.Owner
		for _, entry := range list.Buckets {
			if t, ok := x.h.Rules.Bucket(entry.Name); ok && t.Backend == name && (!limited || x.access.Bucket(entry.Name)) {
				all.Buckets = append(all.Buckets, entry)
			}
		}
	}
	slices.SortFunc(all.Buckets, func(a, b struct{ Name, CreationDate string }) int { return strings.Compare(a.Name, b.Name) })
	body, err := xml.Marshal(all)
	if err != nil {
		return err
	}
	x.send(http.StatusOK, xmlType, append([]byte(xml.Header), body...))
	return nil
}

func (x *exchange) askBuckets(b Backend) *recorder {
	rec := newRecorder(x.w.Header())
	out := x.toBackend()
	out.Method = http.MethodGet
	out.URL.RawQuery = "" // whole: pages of several stores do not fit together
	b.ServeHTTP(rec, out)
	return rec
}
