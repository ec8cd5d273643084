package sigv4

import (
	"encoding/hex"
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
	badQuery        = "AuthorizationQueryParametersError"
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
var ErrAnonymous error = &Error{Status: http.StatusForbidden, Code: accessDenied, Message: "Access Denied."}

func refuse(status int, code, format string, args ...any) error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

func malformed(format string, args ...any) error {
	return refuse(http.StatusBadRequest, headerMalformed, "The authorization header is malformed; "+format, args...)
}

// argument is S3's InvalidArgument, which tells what of the request it means.
func argument(name, value, format string, args ...any) error {
	e := refuse(http.StatusBadRequest, invalidArgument, format, args...).(*Error)
	e.Details = []Detail{{"ArgumentName", name}, {"ArgumentValue", shorten(value)}}
	return e
}

// shorten cuts what a refusal sends back of a request, where it could be of any length.
func shorten(s string) string {
	const most = 512
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

func wrongRegion(got, want string, complain complaint) error {
	e := complain("the region %q is wrong; expecting %q", got, want).(*Error)
	e.Details = append(e.Details, Detail{"Region", want})
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
		Status: http.StatusForbidden, Code: accessDenied, Message: "There were headers present in the request which were not signed",
		Details: []Detail{{"HeadersNotSigned", names}},
	}
}

// skewed tells both times, in S3's elements for them.
func skewed(request, server time.Time, most time.Duration) error {
	return &Error{
		Status: http.StatusForbidden, Code: "RequestTimeTooSkewed", Message: "The difference between the request time and the current time is too large.",
		Details: []Detail{
			{"RequestTime", request.Format(timeFormat)},
			{"ServerTime", server.Format(time.RFC3339)},
			{"MaxAllowedSkewMilliseconds", strconv.FormatInt(most.Milliseconds(), 10)},
		},
	}
}

// notYet and expired are the refusals of a presigned URL outside of its time.
func notYet(request, server time.Time) error {
	return &Error{
		Status: http.StatusForbidden, Code: accessDenied, Message: "Request is not valid yet.",
		Details: []Detail{{"RequestTime", request.Format(timeFormat)}, {"ServerTime", server.Format(time.RFC3339)}},
	}
}

func expired(expires time.Duration, end, server time.Time) error {
	return &Error{
		Status: http.StatusForbidden, Code: accessDenied, Message: "Request has expired.",
		Details: []Detail{
			{"X-Amz-Expires", strconv.FormatInt(int64(expires/time.Second), 10)},
			{"Expires", end.Format(time.RFC3339)},
			{"ServerTime", server.Format(time.RFC3339)},
		},
	}
}

// maxTold is the longest canonical request that a refusal sends back.
const maxTold = 8 << 10

// mismatch tells what should have been signed. None of it is a secret: it is made of the request alone.
func mismatch(auth authorization, s *scratch) error {
	e := wrongSignature(auth.accessKey, string(s.toSign), hex.EncodeToString(auth.signature[:]))
	if len(s.canonical) <= maxTold {
		e.Details = append(e.Details, Detail{"CanonicalRequest", string(s.canonical)})
	}
	return e
}

func wrongSignature(accessKey, toSign, provided string) *Error {
	e := &Error{
		Status: http.StatusForbidden, Code: "SignatureDoesNotMatch",
		Message: "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
		Details: []Detail{{"AWSAccessKeyId", accessKey}, {"StringToSign", toSign}, {"SignatureProvided", shorten(provided)}},
	}
	if len(toSign) <= maxTold {
		e.Details = append(e.Details, Detail{"StringToSignBytes", fmt.Sprintf("% x", toSign)})
	}
	return e
}
