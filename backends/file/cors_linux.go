package file

import (
	"net/http"
	"slices"
	"strings"
)

// preflight answers a browser that asks whether a page of another origin may use the bucket. It may not: a bucket here has no CORS
// configuration. Before S3 says so it looks at the question.
// https://docs.aws.amazon.com/AmazonS3/latest/API/RESTOPTIONSobject.html
func (s *Store) preflight(r *http.Request, bucket string) error {
	if err := s.needBucket(bucket); err != nil {
		return err
	}
	method := r.Header.Get("Access-Control-Request-Method")
	switch {
	case r.Header.Get("Origin") == "":
		return badRequest("Insufficient information. Origin request header needed.")
	case !slices.Contains([]string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodHead}, method):
		return badRequest("Invalid Access-Control-Request-Method: %s", method)
	}
	for h := range strings.SplitSeq(r.Header.Get("Access-Control-Request-Headers"), ",") {
		if strings.ContainsFunc(strings.TrimSpace(h), notOfToken) {
			return badRequest(`Access-Control-Request-Headers "%s" contains invalid character.`, h) // as it came
		}
	}
	return refuse(http.StatusForbidden, "AccessForbidden", "CORSResponse: CORS is not enabled for this bucket.")
}

func badRequest(format string, args ...any) error {
	return refuse(http.StatusBadRequest, "BadRequest", format, args...)
}

// notOfToken says whether a character cannot stand in the name of a header (RFC 9110, section 5.6.2).
func notOfToken(c rune) bool {
	alphanumeric := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	return !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}
