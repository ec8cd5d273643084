package proxy

import (
	"encoding/xml"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// A condition is what a write asks of its key, so that the store itself refuses it when it comes late (RFC 9110, 13.1.1 and 13.1.2).
type condition struct {
	header, value string // as it is sent; "" if the client's own does the same, or there is none
	byRule        bool   // it is write_once's, and not of what was seen
	seen          observation
}

// ours says that the store judges a condition of what we have seen.
func (c condition) ours() bool { return c.header != "" && !c.byRule }

// neverMatches is no object's ETag.
const neverMatches = `"fenceproxy-absent"`

// conditionFor is the one place where a write's condition is made, from what its key had before the gate; judged says that the store honours
// ours. A client's own condition names one state of the key, as ours does, and is kept; but for If-Match: *, which any object meets.
func (x *exchange) conditionFor(seen observation, judged bool) condition {
	c := condition{seen: seen}
	match, none := strings.TrimSpace(x.r.Header.Get("If-Match")), strings.TrimSpace(x.r.Header.Get("If-None-Match"))
	switch {
	case x.target.WriteOnce && slices.Contains(creating, x.op.name):
		if none != "*" {
			c.header, c.value, c.byRule = "If-None-Match", "*", true
		}
	case !judged, none != "", match != "" && match != "*":
	case !seen.known, match == "*" && seen.hidden:
	case !seen.absent():
		c.header, c.value = "If-Match", seen.etag
	case match == "*":
		c.header, c.value = "If-Match", neverMatches // not met, as the client's own is not, whenever it comes to be judged
	case x.op.name != "DeleteObject":
		c.header, c.value = "If-None-Match", "*"
	}
	return c
}

// put puts the condition on the request.
func (c condition) put(out *http.Request) {
	if c.header != "" {
		out.Header.Del("If-Match")
		out.Header.Set(c.header, c.value)
	}
}

// existsByRule says that the store did not carry a write out because of write_once.
func (x *exchange) existsByRule(rec *recorder, c condition) bool {
	if !c.byRule || rec.status != http.StatusPreconditionFailed && rec.code() != preconditionFailed {
		return false
	}
	for name := range x.r.Header {
		if strings.HasPrefix(name, headerCopySource+"-If-") { // it may be that of the source
			return false
		}
	}
	return true
}

var errObjectExists = &ruleError{objectExists, "the object exists, and its rule says write_once: it is never overwritten"}

// errLostRace: the key has changed between the observation and the write. Nothing was written; a higher token refuses the next try, and after an
// equal one it goes on from what is there now.
var errLostRace = errors.New("other writes to this key were quicker each time")

// lostRace is what a client is told whose write lost every race: to a higher token, it is stale.
func (x *exchange) lostRace() error {
	now, err := x.h.Fence.Highest(x.detached(), x.target.Resource)
	if err == nil && now.Token > x.who.token {
		return &tokens.StaleError{Resource: now.Resource, Token: x.who.token, Highest: now.Token, Holder: now.Holder}
	}
	return errLostRace
}

// checkRace fails with errLostRace where it was our condition that kept the store from carrying the write out.
func (x *exchange) checkRace(rec *recorder, d *draft, c condition) error {
	lost, err := x.unmet(rec, c)
	if err != nil || !lost {
		return err
	}
	if c.byRule {
		// S3 says so of every write to the key since an upload's Create, for ever: is the object there?
		now, _, err := x.glance(x.detached())
		if err == nil && now.etag != "" {
			err = errObjectExists
		}
		if err != nil {
			return err
		}
	}
	x.h.etags.forget(x.name())
	x.h.metrics.lostRaces.Inc()
	if x.op.name == "CompleteMultipartUpload" && rec.conflict() {
		// S3 says so of every write to the key since Create, and would say so for ever ("Complete a multipart upload").
		if d.conflicts++; d.conflicts == 2 {
			d.blind = true
		}
	}
	return errLostRace
}

// unmet says that the store did not carry a write out because of our condition.
func (x *exchange) unmet(rec *recorder, c condition) (bool, error) {
	code := rec.code()
	switch {
	case rec.conflict():
		return c.header != "", nil
	case !c.ours(), c.value == neverMatches:
		return false, nil
	case code == preconditionFailed, rec.status == http.StatusPreconditionFailed:
	case code == noSuchKey && c.header == "If-Match":
	default:
		return false, nil
	}
	if !x.othersConditions() || c.seen.hidden {
		return true, nil
	}
	// The source may be missing, or something not meet another condition of the client: then the key itself is what it was.
	now, _, err := x.glance(x.detached())
	return now != c.seen, err
}

// othersConditions says that there are conditions on the request, or may be, that are not about the ETag of its key.
func (x *exchange) othersConditions() bool {
	return x.op.name == "CopyObject" || x.r.Header.Get("X-Amz-If-Match-Size") != "" || x.r.Header.Get("X-Amz-If-Match-Last-Modified-Time") != ""
}

// conflict is S3's word for a write that met another one: it says that nothing was changed, and to look again.
func (rec *recorder) conflict() bool { return isConflict(rec.code()) }

func isConflict(code string) bool {
	return code == "ConditionalRequestConflict" || code == "OperationAborted"
}

// code is S3's code of an error, also of one inside a 200; "" where there is none.
func (rec *recorder) code() string {
	code, _ := rec.errorCode()
	return code
}

// errorCode reads a body that may be S3's XML for an error, and says whether it is.
func (rec *recorder) errorCode() (code string, is bool) {
	var e struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	if len(rec.body) == 0 || xml.Unmarshal(rec.body, &e) != nil {
		return "", false
	}
	return e.Code, true
}

// newETag is the ETag that a write has left behind, "" if it does not say.
func (x *exchange) newETag(rec *recorder) string {
	switch x.op.name {
	case "PutObject":
		return rec.header.Get("Etag")
	case "CopyObject", "CompleteMultipartUpload":
		var result struct{ ETag string }
		if xml.Unmarshal(rec.body, &result) == nil {
			return result.ETag
		}
	}
	return ""
}

// remember keeps what the write has left behind for the next one's condition, and forgets what may not be so any more.
func (x *exchange) remember(rec *recorder) {
	if x.op.name == appendObject {
		x.h.etags.forget(x.name())
	}
	if !slices.Contains(conditionable, x.op.name) || !x.backend().remote() {
		return
	}
	if etag := x.newETag(rec); etag != "" && rec.outcome() == done {
		x.h.etags.put(x.name(), etag)
		return
	}
	x.h.etags.forget(x.name())
}
