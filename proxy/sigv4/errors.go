package sigv4

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	accessDenied    = "AccessDenied"
	invalidArgument = "InvalidArgument"
	invalidRequest  = "InvalidRequest"
	invalidURI      = "InvalidURI"
	notImplemented  = "NotImplemented"
	headerMalformed = "AuthorizationHeaderMalformed"
	tooLarge        = "RequestHeaderSectionTooLarge"
)

// An Error is why a signature does not count, in S3's words where S3 has any.
type Error struct {
	Status        int
	Code, Message string

	// Details are further elements of S3's <Error>, in its order. They tell the client what it sent, or what it should have
	// signed; never a secret of ours, nor the signature that was expected. They are for the client and for no log: among the
	// headers that it sent may be a key of its own (SSE-C).
	Details []Detail
}

// A Detail is one element of S3's <Error>.
type Detail struct{ Name, Value string }

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// ErrAnonymous: the request makes no attempt at authentication, in its headers or in its query. It is an [*Error] like the
// others, for callers that let nobody in without a signature.
var ErrAnonymous error = &Error{Status: http.StatusForbidden, Code: accessDenied, Message: "Access Denied: the request is not signed"}

func refuse(status int, code, format string, args ...any) error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

func malformed(format string, args ...any) error {
	return refuse(http.StatusBadRequest, headerMalformed, "The authorization header is malformed; "+format, args...)
}

func wrongRegion(got, want string) error {
	e := malformed("the region '%s' is wrong; expecting '%s'", got, want).(*Error)
	e.Details = []Detail{{"Region", want}}
	return e
}

func unknownKey(accessKey string) error {
	return &Error{
		Status: http.StatusForbidden, Code: "InvalidAccessKeyId", Message: "The AWS Access Key Id you provided does not exist in our records.",
		Details: []Detail{{"AWSAccessKeyId", accessKey}},
	}
}

func notSigned(names string) error {
	return &Error{
		Status: http.StatusForbidden, Code: accessDenied,
		Message: fmt.Sprintf("There were headers present in the request which were not signed (%s)", names),
		Details: []Detail{{"HeadersNotSigned", names}},
	}
}

// skewed tells both times: the sentence is all that most clients print.
func skewed(request, server time.Time, most time.Duration) error {
	at, now := request.Format(timeFormat), server.Format(time.RFC3339)
	return &Error{
		Status: http.StatusForbidden, Code: "RequestTimeTooSkewed",
		Message: fmt.Sprintf("The difference between the request time and the current time is too large: the request says %s, the clock here %s, and they may differ by %v.",
			request.Format(time.RFC3339), now, most),
		Details: []Detail{
			{"RequestTime", at},
			{"ServerTime", now},
			{"MaxAllowedSkewMilliseconds", strconv.FormatInt(most.Milliseconds(), 10)},
		},
	}
}

// maxTold is the longest canonical request that a refusal sends back.
const maxTold = 8 << 10

// mismatch tells what should have been signed. None of it is a secret: it is made of the request alone.
func mismatch(auth authorization, method, path string, s *scratch) error {
	const most = 200
	if len(path) > most {
		path = path[:most] + "…"
	}
	e := &Error{
		Status: http.StatusForbidden, Code: "SignatureDoesNotMatch",
		Message: fmt.Sprintf("The request signature we calculated does not match the signature you provided. Check your key and signing method. (%s %s, signed headers %s)",
			method, path, auth.signedList),
		Details: []Detail{{"AWSAccessKeyId", auth.accessKey}, {"StringToSign", string(s.toSign)}},
	}
	if len(s.canonical) <= maxTold {
		e.Details = append(e.Details, Detail{"CanonicalRequest", string(s.canonical)})
	}
	return e
}
