package proxy

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// The names of refusals, as X-Fence-Error and the audit log have them.
const (
	staleToken           = "StaleToken"
	tokenRequired        = "TokenRequired"
	holderRequired       = "HolderRequired"
	conditionRequired    = "ConditionRequired"
	objectExists         = "ObjectExists"
	malformedToken       = "BadToken"
	tokenConflict        = "TokenConflict"
	tokenTooFar          = "TokenTooFar"
	bucketWritesDenied   = "BucketWritesDenied"
	conditionsIgnored    = "ConditionsIgnored"
	conditionsUnknown    = "ConditionsUnknown"
	registryUnavailable  = "RegistryUnavailable"
	registryConflict     = "RegistryConflict"
	waitingForOlderWrite = "WaitingForOlderWrite"
	outcomeUnknown       = "OutcomeUnknown"
	lockHeld             = "LockHeld"
	leaseLost            = "LeaseLost"
	tokensSpent          = "TokensSpent"
)

// S3's codes ("Error responses").
const (
	accessDenied         = "AccessDenied"
	gatewayTimeout       = "GatewayTimeout"
	internalError        = "InternalError"
	invalidArgument      = "InvalidArgument"
	missingContentLength = "MissingContentLength"
	noSuchBucket         = "NoSuchBucket"
	noSuchKey            = "NoSuchKey"
	notImplementedCode   = "NotImplemented"
	preconditionFailed   = "PreconditionFailed"
	serviceUnavailable   = "ServiceUnavailable"
	slowDown             = "SlowDown"
)

// What a refusal advises, for people at 3 a.m.
const (
	lostLockAdvice        = "This writer has lost its lock: stop it, or let it take the lock again and use the new token."
	leaseLostAdvice       = "Its holder is to stop, or to take the lock anew, with another id and another token."
	oneTokenTwoHolders    = "Two holders with one token is what a lock service does that has lost its counter: look at it before you go on."
	comeBack              = "The token has been seen, so older writers are refused from now on; send the request again."
	outcomeUnknownMessage = "the store did not tell whether the write took effect. It may or may not be there; to send it again with the same token is safe"
)

const (
	conditionToken = headerToken // <Condition> of a stale token: which condition was not met
	problemType    = "application/problem+json"
	xmlType        = "application/xml"
)

// An answer is what the proxy itself says to a client.
type answer struct {
	status    int
	code      string // S3's, which clients act on
	message   string // which clients print
	condition string // S3's <Condition>, "" if none
	name      string // X-Fence-Error, "" for what has nothing to do with the fence
	details   []sigv4.Detail
	allow     string // methods, of a 405
}

// refusal says whether the answer is one that the audit log keeps: the fence or a rule said no to the client.
func (a answer) refusal() bool {
	return a.name != "" && a.status < 500
}

// An s3Error is an answer of S3's own kind.
type s3Error struct {
	status        int
	code, message string
}

func (e *s3Error) Error() string { return e.code + ": " + e.message }

func badRequest(code, format string, args ...any) error {
	return &s3Error{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

func notImplemented(format string, args ...any) error {
	return &s3Error{http.StatusNotImplemented, notImplementedCode, fmt.Sprintf(format, args...)}
}

// A ruleError is a refusal that follows from the rules alone.
type ruleError struct{ name, message string }

func (e *ruleError) Error() string { return e.message }

// errOutcomeUnknown: the write passed the gate, and what became of it is not known.
var errOutcomeUnknown = errors.New(outcomeUnknownMessage)

// unavailableMessage does not say why: a registry's errors name hosts, users and databases, which are for the log.
const unavailableMessage = "the token registry is out of reach, and no write can be let through unchecked. The proxy's log has the cause"

// errNotProbed: whoever asks a store that does not answer gets no better answer.
var errNotProbed = errors.New("the store could not be asked what it does with writes, which comes before the first one. Nothing was changed; the proxy's log has the cause")

// answerTo turns every error that a request can end with into what its client is told. A refusal is never 5xx, and an unknown
// outcome never 2xx; 409 is never used, for clients take it for "try again".
func (x *exchange) answerTo(err error) answer {
	var (
		method   *methodError
		signed   *sigv4.Error
		s3       *s3Error
		bad      *badTokenError
		rule     *ruleError
		stale    *tokens.StaleError
		reset    *tokens.ResetError
		conflict *tokens.ConflictError
		tooFar   *tokens.TooFarError
		waiting  *tokens.WaitingError
		twice    *conflictingRegistry
		lost     *tokens.LeaseLostError
		spent    *tokens.SpentError
	)
	switch {
	case errors.As(err, &method):
		return method.answer()
	case errors.As(err, &signed):
		return answer{status: signed.Status, code: signed.Code, message: signed.Message, details: signed.Details}
	case errors.As(err, &s3):
		return answer{status: s3.status, code: s3.code, message: s3.message}
	case errors.As(err, &bad):
		return answer{status: http.StatusBadRequest, code: invalidArgument, message: bad.problem, name: malformedToken}
	case errors.As(err, &rule):
		return answer{status: http.StatusForbidden, code: accessDenied, message: x.byRule(rule.message), name: rule.name}
	case errors.As(err, &stale):
		return x.staleAnswer(staleText(stale))
	case errors.As(err, &reset):
		return x.staleAnswer(reset.Error())
	case errors.As(err, &conflict):
		return answer{status: http.StatusForbidden, code: accessDenied, name: tokenConflict, message: x.byRule(fmt.Sprintf("%s. %s", conflictText(conflict), oneTokenTwoHolders))}
	case errors.As(err, &tooFar):
		return answer{status: http.StatusForbidden, code: accessDenied, name: tokenTooFar, message: x.byRule(tooFar.Error() + " (max_advance). An operator can raise it first with `fenceproxy fences raise`")}
	case errors.As(err, &lost):
		return answer{status: http.StatusPreconditionFailed, code: preconditionFailed, condition: "lease", name: leaseLost, message: lost.Error() + ". " + leaseLostAdvice}
	case errors.As(err, &spent):
		return answer{status: http.StatusForbidden, code: accessDenied, name: tokensSpent, message: spent.Error()}
	case errors.Is(err, tokens.ErrLockContended):
		return answer{status: http.StatusServiceUnavailable, code: slowDown, message: err.Error() + ". Nothing was done; send it again"}
	case errors.As(err, &waiting):
		return answer{status: http.StatusServiceUnavailable, code: slowDown, name: waitingForOlderWrite, message: fmt.Sprintf("%s. %s", waiting, comeBack)}
	case errors.Is(err, tokens.ErrUnavailable):
		return answer{status: http.StatusServiceUnavailable, code: serviceUnavailable, name: registryUnavailable, message: unavailableMessage}
	case errors.As(err, &twice):
		return answer{status: http.StatusServiceUnavailable, code: serviceUnavailable, name: registryConflict, message: "two registries fence one bucket: what is under this key was written under another one than this proxy's. Nothing was changed; the proxy's log names both, and what to do"}
	case errors.Is(err, errLostRace):
		return answer{status: http.StatusServiceUnavailable, code: slowDown, message: err.Error() + ". Nothing was changed; send it again"}
	case errors.Is(err, errNotProbed):
		return answer{status: http.StatusServiceUnavailable, code: serviceUnavailable, message: err.Error()}
	case errors.Is(err, errOutcomeUnknown):
		return answer{status: http.StatusGatewayTimeout, code: gatewayTimeout, name: outcomeUnknown, message: err.Error()}
	}
	return answer{status: http.StatusInternalServerError, code: internalError, message: "the proxy failed: " + err.Error()}
}

// staleAnswer is 412, which clients do not retry; 403 where the rule says so, and to a compare-and-swap client, which would read
// 412 as "my own earlier write has won".
func (x *exchange) staleAnswer(what string) answer {
	a := answer{
		status: http.StatusPreconditionFailed, code: preconditionFailed, condition: conditionToken, name: staleToken,
		message: x.byRule(what + ". " + lostLockAdvice),
	}
	if x.target.Refuse == http.StatusForbidden || conditional(x.r.Header) {
		a.status, a.code, a.condition = http.StatusForbidden, accessDenied, ""
	}
	return a
}

func staleText(e *tokens.StaleError) string {
	what := fmt.Sprintf("token %d is below %d", e.Token, e.Highest)
	if e.Token == 0 {
		what = fmt.Sprintf("a write without a token is below token %d", e.Highest)
	}
	by := ""
	if e.Holder != "" {
		by = fmt.Sprintf(" (holder %q)", e.Holder)
	}
	return fmt.Sprintf("%s, the highest one seen for %s%s", what, e.Resource, by)
}

func conditional(h http.Header) bool {
	return h.Get("If-Match") != "" || h.Get("If-None-Match") != ""
}

func conflictText(e *tokens.ConflictError) string {
	who := "a request that names no holder"
	if e.Holder != "" {
		who = fmt.Sprintf("holder %q", e.Holder)
	}
	return fmt.Sprintf("token %d of %s belongs to holder %q, and came from %s", e.Token, e.Resource, e.Bound, who)
}

// byRule ends a message with the rule it follows from.
func (x *exchange) byRule(message string) string {
	if x.target.Rule == "" {
		return message
	}
	return strings.TrimSuffix(message, ".") + ". (" + x.target.Rule + ")"
}

type xmlError struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	Condition string `xml:",omitempty"`
	Details   []xmlDetail
	Resource  string
	RequestID string `xml:"RequestId"`
}

type xmlDetail struct {
	XMLName xml.Name
	Value   string `xml:",chardata"`
}

func xmlDetails(details []sigv4.Detail) (out []xmlDetail) {
	for _, d := range details {
		out = append(out, xmlDetail{xml.Name{Local: d.Name}, d.Value})
	}
	return out
}

// problem is RFC 9457's.
type problem struct {
	Type     string       `json:"type"`
	Title    string       `json:"title"`
	Status   int          `json:"status"`
	Detail   string       `json:"detail"`
	Instance string       `json:"instance"`
	Error    string       `json:"error,omitempty"` // X-Fence-Error
	Resource string       `json:"resource,omitempty"`
	Token    tokens.Token `json:"token"`
	Highest  tokens.Token `json:"highest"`
}

// write sends an answer: S3's XML, or problem+json to a client that asks for JSON.
func (x *exchange) write(a answer) {
	var contentType string
	var body []byte
	if wantsJSON(x.r) && !x.waiting {
		contentType = problemType
		body, _ = json.Marshal(problem{ // strings and numbers only: it cannot fail
			Type: "about:blank", Title: a.code, Status: a.status, Detail: a.message, Instance: x.id, Error: a.name,
			Resource: x.target.Resource, Token: x.who.token, Highest: x.highest,
		})
		body = append(body, '\n')
	} else {
		contentType = xmlType
		body, _ = xml.Marshal(xmlError{Code: a.code, Message: a.message, Condition: a.condition, Details: xmlDetails(a.details), Resource: x.path, RequestID: x.id})
		body = append([]byte(xml.Header), body...)
	}
	if x.waiting {
		if a.name == outcomeUnknown {
			panic(http.ErrAbortHandler) // the answer has begun as a success: cut off, it says nothing
		}
		x.endWaiting(body)
		return
	}
	if a.name != "" {
		x.w.Header().Set(headerError, a.name)
	}
	if a.status == http.StatusMethodNotAllowed {
		x.w.Header().Set("Allow", a.allow)
	}
	x.send(a.status, contentType, body)
}

// send is how everything goes out that the proxy itself says.
func (x *exchange) send(status int, contentType string, body []byte) {
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		_, _ = x.w.Write(body) // a client that has gone need not be told
	}
}

func wantsJSON(r *http.Request) bool {
	accept := r.Header.Get("Accept")
	return strings.Contains(accept, "application/json") || strings.Contains(accept, problemType)
}

// sayFence tells the client of a fenced key where its fence stands.
func (x *exchange) sayFence(e tokens.Entry) {
	x.highest = e.Token
	h := x.w.Header()
	h.Set(headerResource, (&url.URL{Path: e.Resource}).EscapedPath())
	h.Set(headerHighest, strconv.FormatInt(int64(e.Token), 10))
}
