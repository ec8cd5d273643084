package sigv4

import (
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
)

const (
	algorithm  = "AWS4-HMAC-SHA256"
	service    = "s3"
	terminator = "aws4_request"

	maxAuthorization = 8 << 10
	maxSignedHeaders = 128
	maxAccessKey     = 128
	maxRegion        = 64
)

// An authorization is what the Authorization header says. Its strings are parts of the header.
type authorization struct {
	accessKey     string
	scope         string // 20130524/us-east-1/s3/aws4_request
	date, region  string // of the scope
	service, end  string // of the scope, unchecked
	signedList    string // host;x-amz-date
	signedHeaders []string
	signature     [32]byte
}

// A queryMechanism is an authentication that the query attempts.
type queryMechanism int

const (
	noMechanism queryMechanism = iota
	presigned                  // X-Amz-Signature
	presignedV2                // Signature
)

// mechanism finds the one way in which a request authenticates itself. All but signatures of version 4 in the header end here.
func mechanism(h http.Header, inQuery queryMechanism) (auth authorization, err error) {
	values := h["Authorization"]
	switch {
	case len(values) == 0 && inQuery == presigned:
		return auth, refuse(http.StatusNotImplemented, notImplemented, "presigned URLs (X-Amz-Signature in the query) are not in this version")
	case len(values) == 0 && inQuery == presignedV2:
		return auth, notV4("the query is signed with Signature Version 2")
	case len(values) == 0:
		return auth, ErrAnonymous
	case inQuery != noMechanism:
		return auth, refuse(http.StatusBadRequest, invalidArgument,
			"Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified")
	case len(values) > 1:
		return auth, malformed("the request has %d Authorization headers", len(values))
	case len(values[0]) > maxAuthorization:
		return auth, malformed("it is longer than %d bytes", maxAuthorization)
	}
	name, rest := values[0], ""
	if i := strings.IndexAny(name, " \t"); i >= 0 {
		name, rest = name[:i], name[i:]
	}
	switch name {
	case algorithm:
		return parseAuthorization(rest)
	case "AWS":
		return auth, notV4("the request is signed with Signature Version 2")
	case "AWS4-ECDSA-P256-SHA256":
		return auth, notV4("the request is signed with Signature Version 4A (AWS4-ECDSA-P256-SHA256)")
	}
	return auth, refuse(http.StatusBadRequest, invalidArgument, "Unsupported Authorization Type: %.40q. Please use %s.", name, algorithm)
}

// notV4 is what regions without Signature Version 2 answer.
func notV4(what string) error {
	return refuse(http.StatusBadRequest, invalidRequest, "The authorization mechanism you have provided is not supported. Please use %s. (%s)", algorithm, what)
}

// parseAuthorization reads "Credential=…, SignedHeaders=…, Signature=…", in any order, each once.
func parseAuthorization(components string) (auth authorization, err error) {
	var credential, signature string
	for component := range strings.SplitSeq(components, ",") {
		name, value, ok := strings.Cut(strings.Trim(component, " \t"), "=")
		field := &credential
		switch name {
		case "Credential":
		case "SignedHeaders":
			field = &auth.signedList
		case "Signature":
			field = &signature
		default:
			ok = false
		}
		if !ok || *field != "" || value == "" {
			return auth, malformed("the authorization header requires three components: Credential, SignedHeaders, and Signature.")
		}
		*field = value
	}
	if credential == "" || auth.signedList == "" || signature == "" {
		return auth, malformed("the authorization header requires three components: Credential, SignedHeaders, and Signature.")
	}
	if err := auth.parseCredential(credential); err != nil {
		return auth, err
	}
	if err := auth.parseSignature(signature); err != nil {
		return auth, err
	}
	return auth, auth.parseSignedHeaders()
}

func (auth *authorization) parseSignature(signature string) error {
	if len(signature) != digestLength || !isHex(signature) || strings.ContainsAny(signature, "ABCDEF") {
		return malformed("the Signature must be %d lowercase hexadecimal digits.", digestLength)
	}
	_, _ = hex.Decode(auth.signature[:], []byte(signature)) // it has just been looked at
	return nil
}

// parseCredential reads "AKID/20130524/us-east-1/s3/aws4_request" from its end: an access key may have slashes.
func (auth *authorization) parseCredential(credential string) error {
	rest := credential
	for _, field := range []*string{&auth.end, &auth.service, &auth.region, &auth.date} {
		i := strings.LastIndexByte(rest, '/')
		if i < 0 {
			return malformed(`the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".`)
		}
		rest, *field = rest[:i], rest[i+1:]
	}
	if rest == "" || len(rest) > maxAccessKey || auth.region == "" || len(auth.region) > maxRegion {
		return malformed(`the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".`)
	}
	auth.accessKey, auth.scope = rest, credential[len(rest)+1:]
	return nil
}

// checkScope holds the credential to this service; the date is held to the request's elsewhere.
func (auth *authorization) checkScope(region string) error {
	switch {
	case auth.end != terminator:
		return malformed("incorrect terminal %.40q. This endpoint uses %q.", auth.end, terminator)
	case auth.service != service:
		return malformed("incorrect service %.40q. This endpoint belongs to %q.", auth.service, service)
	case region != "" && auth.region != region:
		return wrongRegion(auth.region, region)
	}
	return nil
}

// parseSignedHeaders demands names in lower case, sorted, each once: the form that is signed.
func (auth *authorization) parseSignedHeaders() error {
	if strings.Count(auth.signedList, ";") >= maxSignedHeaders {
		return malformed("SignedHeaders names more than %d headers.", maxSignedHeaders)
	}
	auth.signedHeaders = strings.Split(auth.signedList, ";")
	before := ""
	for _, name := range auth.signedHeaders {
		if !isLowerToken(name) || name <= before {
			return malformed("SignedHeaders must be header names in lower case, sorted, each once.")
		}
		before = name
	}
	return nil
}

// isLowerToken says whether a field name (RFC 9110, 5.6.2) is in lower case.
func isLowerToken(name string) bool {
	for i := range len(name) {
		if !lowerToken[name[i]] {
			return false
		}
	}
	return name != ""
}

var lowerToken = setOf("abcdefghijklmnopqrstuvwxyz0123456789-_.!#$%&'*+^`|~")

const amzPrefix = "x-amz-"

// checkSigned demands that the signature covers host and every x-amz-* header there is: whatever S3 would act on
// ("Signature Calculations …: Task 1", CanonicalHeaders). One of them that is named but is not there would be taken for empty;
// it is refused.
func checkSigned(h http.Header, signed []string) error {
	if _, ok := slices.BinarySearch(signed, "host"); !ok {
		return notSigned("host")
	}
	covered := 0
	for _, name := range signed {
		if !strings.HasPrefix(name, amzPrefix) {
			continue
		}
		if len(headerValues(h, name)) == 0 {
			return refuse(http.StatusForbidden, accessDenied, "%s is among the signed headers, and not in the request", name)
		}
		covered++
	}
	present := 0
	for name := range h {
		if isAmz(name) {
			present++
		}
	}
	if present == covered {
		return nil
	}
	var missing []string
	for name := range h {
		if _, ok := slices.BinarySearch(signed, strings.ToLower(name)); !ok && isAmz(name) {
			missing = append(missing, strings.ToLower(name))
		}
	}
	slices.Sort(missing)
	return notSigned(strings.Join(missing, ", "))
}

func isAmz(name string) bool {
	return len(name) >= len(amzPrefix) && strings.EqualFold(name[:len(amzPrefix)], amzPrefix)
}

// headerValues finds a header by its name in lower case. It does what http.Header.Values does, and allocates nothing.
func headerValues(h http.Header, name string) []string {
	var buffer [64]byte
	key := append(buffer[:0], name...)
	upper := true
	for i, c := range key {
		if upper && 'a' <= c && c <= 'z' {
			key[i] = c - 'a' + 'A'
		}
		upper = c == '-'
	}
	return h[string(key)]
}
