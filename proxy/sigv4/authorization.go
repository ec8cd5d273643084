package sigv4

import (
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
)

const (
	algorithm    = "AWS4-HMAC-SHA256"
	algorithmV4A = "AWS4-ECDSA-P256-SHA256"
	service      = "s3"
	terminator   = "aws4_request"

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

// mechanism finds the one way in which a request authenticates itself, and returns what it says in its Authorization header
// behind the name of the algorithm; "" where the signature is in the query. All but version 4 end here.
func mechanism(h http.Header, inQuery queryMechanism) (inHeader string, err error) {
	values := h["Authorization"]
	switch {
	case len(values) == 0 && inQuery == presigned:
		return "", nil
	case len(values) == 0 && inQuery == presignedV2:
		return "", notV4("Signature Version 2, in the query")
	case len(values) == 0:
		return "", ErrAnonymous
	case inQuery != noMechanism:
		return "", refuse(http.StatusBadRequest, invalidArgument,
			"Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified")
	case len(values) > 1:
		return "", malformed("the request has %d Authorization headers", len(values))
	case len(values[0]) > maxAuthorization:
		return "", malformed("it is longer than %d bytes", maxAuthorization)
	}
	i := strings.IndexAny(values[0], " \t")
	if i < 0 {
		return "", argument("Authorization", values[0], "Authorization header is invalid -- one and only one ' ' (space) required.")
	}
	switch name := values[0][:i]; name {
	case algorithm:
		return values[0][i:], nil
	case "AWS":
		return "", notV4("Signature Version 2, in the Authorization header")
	case algorithmV4A:
		return "", notV4("Signature Version 4A, in the Authorization header")
	default:
		return "", argument("Authorization", name, "Unsupported Authorization Type")
	}
}

// notV4 is what regions without Signature Version 2 answer.
func notV4(mechanism string) error {
	e := refuse(http.StatusBadRequest, invalidRequest, "The authorization mechanism you have provided is not supported. Please use %s.", algorithm).(*Error)
	e.Details = []Detail{{"Mechanism", mechanism}}
	return e
}

// parseAuthorization reads "Credential=…, SignedHeaders=…, Signature=…", in any order, each once.
func parseAuthorization(components string) (auth authorization, err error) {
	if strings.Count(components, ",") != 2 {
		return auth, malformed("the authorization header requires three components: Credential, SignedHeaders, and Signature.")
	}
	var credential, signature string
	for component := range strings.SplitSeq(components, ",") {
		component = strings.Trim(component, " \t")
		name, value, ok := strings.Cut(component, "=")
		if !ok {
			return auth, malformed("the authorization component %.80q is malformed.", component)
		}
		switch name {
		case "Credential":
			credential = value
		case "SignedHeaders":
			auth.signedList = value
		case "Signature":
			signature = value
		}
	}
	switch "" {
	case credential:
		return auth, malformed("missing Credential.")
	case auth.signedList:
		return auth, malformed("missing SignedHeaders.")
	case signature:
		return auth, malformed("missing Signature.")
	}
	if err := auth.parseCredential(credential, malformed); err != nil {
		return auth, err
	}
	if err := auth.parseSignature(signature, malformed); err != nil {
		return auth, err
	}
	return auth, auth.parseSignedHeaders(malformed)
}

// A complaint makes the refusal of a part of the authorization: where it stood decides the code and the sentence's beginning.
type complaint func(format string, args ...any) error

func (auth *authorization) parseSignature(signature string, complain complaint) error {
	if len(signature) != digestLength || !isLowerHex(signature) {
		return complain("the Signature must be %d lowercase hexadecimal digits.", digestLength)
	}
	_, _ = hex.Decode(auth.signature[:], []byte(signature)) // it has just been looked at
	return nil
}

const badCredential = `the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".`

// parseCredential reads "AKID/20130524/us-east-1/s3/aws4_request" from its end: an access key may have slashes.
func (auth *authorization) parseCredential(credential string, complain complaint) error {
	rest := credential
	for _, field := range [...]*string{&auth.end, &auth.service, &auth.region, &auth.date} {
		i := strings.LastIndexByte(rest, '/')
		if i < 0 {
			return complain("%s", badCredential)
		}
		rest, *field = rest[:i], rest[i+1:]
	}
	if rest == "" || len(rest) > maxAccessKey || auth.region == "" || len(auth.region) > maxRegion {
		return complain("%s", badCredential)
	}
	if strings.Contains(rest, "/") && !isDate(auth.date) { // not a key with a slash, but too many parts
		return complain("%s", badCredential)
	}
	auth.accessKey, auth.scope = rest, credential[len(rest)+1:]
	return nil
}

// checkScope holds the credential to this service; the date is held to the request's elsewhere.
func (auth *authorization) checkScope(region string, complain complaint) error {
	switch {
	case auth.service != service:
		return complain("incorrect service %.40q. This endpoint belongs to %q.", auth.service, service)
	case auth.end != terminator:
		return complain("incorrect terminal %.40q. This endpoint uses %q.", auth.end, terminator)
	case !isDate(auth.date):
		return complain(`incorrect date format %.40q. This date in the credential must be in the format "yyyyMMdd".`, auth.date)
	case region != "" && auth.region != region:
		return wrongRegion(auth.region, region, complain)
	}
	return nil
}

func isDate(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) == len(dateFormat)
}

// parseSignedHeaders demands names in lower case, sorted, each once: the form that is signed.
func (auth *authorization) parseSignedHeaders(complain complaint) error {
	if strings.Count(auth.signedList, ";") >= maxSignedHeaders {
		return complain("SignedHeaders names more than %d headers.", maxSignedHeaders)
	}
	auth.signedHeaders = strings.Split(auth.signedList, ";")
	before := ""
	for _, name := range auth.signedHeaders {
		if !isLowerToken(name) || name <= before {
			return complain("SignedHeaders must be header names in lower case, sorted, each once.")
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
//
// A presigned URL need not cover x-amz-content-sha256: HTTP libraries add it to whatever they send, and all it can do is to
// have the body checked.
func checkSigned(h http.Header, signed []string, presigned bool) error {
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
		name = strings.ToLower(name)
		if _, ok := slices.BinarySearch(signed, name); !ok && isAmz(name) && (!presigned || name != contentHash) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
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
