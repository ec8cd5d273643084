package proxy

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
)

// mistake finds requests that are no operation of S3, and for which it has words of its own ("Error responses").
func mistake(r *http.Request, op operation, query url.Values) error {
	_, copying := r.Header[headerCopySource]
	switch read := isRead(r.Method); {
	case len(r.Header[headerCopySource]) > 1: // we would judge one of them, and a store take another
		return badRequest(invalidArgument, "x-amz-copy-source stands more than once in the request")
	case copying && r.Method != http.MethodPut && (r.Method != http.MethodPost || query.Has("uploadId")):
		return wrongArgument("You can only specify a copy source header for copy requests.", "x-amz-copy-source", r.Header.Get(headerCopySource))
	case r.Method == http.MethodPost && (op.level == service || op.level == object && len(query) == 0):
		return notAllowed(r.Method, "SERVICE")
	case op.level != object:
		return nil
	case r.Method == http.MethodPut && query.Has("uploadId") && !query.Has("partNumber"):
		return notAllowed(r.Method, "UPLOAD", http.MethodDelete, http.MethodPost, http.MethodGet)
	case r.Method == http.MethodPut && query.Has("partNumber") && !query.Has("uploadId"):
		return wrongArgument("This operation does not accept partNumber without uploadId", "partNumber", "partNumber") // as S3 has it
	case read && query.Has("uploads"):
		return badRequest("InvalidRequest", "Key is not expected for the GET method ?uploads subresource")
	case read && query.Has("versions"):
		return badRequest("InvalidRequest", "There is no such thing as the ?versions sub-resource for a key")
	}
	return nil
}

func wrongArgument(message, name, value string) error {
	return &sigv4.Error{Status: http.StatusBadRequest, Code: invalidArgument, Message: message, Details: []sigv4.Detail{
		{Name: "ArgumentName", Value: name}, {Name: "ArgumentValue", Value: value},
	}}
}

// A methodError refuses a method. RFC 9110, 15.5.6, asks for those that are allowed.
type methodError struct {
	method, resource string
	allowed          []string
}

func (e *methodError) Error() string { return e.method + " is not allowed against " + e.resource }

func notAllowed(method, resource string, allowed ...string) error {
	return &methodError{method, resource, allowed}
}

func (e *methodError) answer() answer {
	return answer{
		status: http.StatusMethodNotAllowed, code: "MethodNotAllowed", message: "The specified method is not allowed against this resource.",
		allow: strings.Join(e.allowed, ", "), details: []sigv4.Detail{{Name: "Method", Value: e.method}, {Name: "ResourceType", Value: e.resource}},
	}
}
