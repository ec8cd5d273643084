package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// The names under which a token travels, and the answers speak of it.
const (
	headerToken        = "X-Fence-Token"
	headerHolder       = "X-Fence-Holder"
	headerLease        = "X-Fence-Lease" // of a request for the proxy's own lock: the id that the lease shall have
	headerResource     = "X-Fence-Resource"
	headerHighest      = "X-Fence-Highest"
	headerError        = "X-Fence-Error"
	headerSessionToken = "X-Amz-Security-Token"

	pathChannel    = "~fence" // no bucket's name begins with a tilde
	sessionChannel = "fence="
)

// An identity is what a request says of its sender's lock. Token 0 is none.
type identity struct {
	token  tokens.Token
	holder string
}

// A badTokenError refuses a token that is malformed, repeated or contradicted. It is never taken for "no token".
type badTokenError struct {
	problem     string
	holderAlone bool // a holder without a token is all that is wrong: those who want the proxy's own lock have none yet
}

func (e *badTokenError) Error() string { return e.problem }

func badToken(format string, args ...any) error {
	return &badTokenError{problem: fmt.Sprintf(format, args...)}
}

// identify reads the token of a request from every channel there is, and the decoded path without it. The path is told beside
// an error, too.
func identify(r *http.Request) (id identity, path string, err error) {
	inPath, path, pathErr := splitFence(r)
	if pathErr != nil {
		return id, path, pathErr
	}
	inQuery, sessions, err := queryChannel(r.URL.RawQuery)
	if err != nil {
		return id, path, err
	}
	inSession, err := sessionToken(append(sessions, r.Header.Values(headerSessionToken)...))
	if err != nil {
		return id, path, err
	}
	inHeader, err := headerChannel(r.Header)
	if err != nil {
		return id, path, err
	}
	id, err = agree([]channel{{name: "the endpoint path", text: inPath}, inQuery, inSession, inHeader})
	return id, path, err
}

// A channel is one place where a token may stand: "34" or "34;holder=a". text is nil where nothing stands.
type channel struct {
	name   string
	text   *string
	holder *string // of the header channel, which has a header for it
}

// splitFence takes /~fence/34 off a path. It looks at each segment decoded, so that no spelling of it is taken for a bucket.
func splitFence(r *http.Request) (text *string, path string, err error) {
	raw := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	first, rest, _ := strings.Cut(raw, "/")
	if name, err := url.PathUnescape(first); err != nil || name != pathChannel {
		return nil, r.URL.Path, nil
	}
	segment, rest, _ := strings.Cut(rest, "/")
	token, err := url.PathUnescape(segment)
	if err != nil {
		return nil, "/", badToken("the token in the path, %q, cannot be decoded", segment)
	}
	decoded, err := url.PathUnescape(rest)
	if err != nil {
		return nil, "/", badRequest("InvalidURI", "the path cannot be decoded: %v", err)
	}
	if again, _, _ := strings.Cut(decoded, "/"); again == pathChannel {
		return nil, "/", badToken("the path names a token twice: %s", r.URL.EscapedPath())
	}
	return &token, "/" + decoded, nil
}

// sessionToken is the channel of clients that let nobody set a header: a session token that begins with fence= is ours, any
// other is not looked at.
func sessionToken(values []string) (channel, error) {
	c := channel{name: "the session token"}
	for _, v := range values {
		if text, ok := strings.CutPrefix(v, sessionChannel); ok {
			c.text = &text
		}
	}
	if c.text != nil && len(values) > 1 {
		return c, badToken("%s stands %d times in the request: send it once", headerSessionToken, len(values))
	}
	return c, nil
}

func headerChannel(h http.Header) (channel, error) {
	c := channel{name: headerToken}
	for name, field := range map[string]**string{headerToken: &c.text, headerHolder: &c.holder} {
		switch values := h.Values(name); len(values) {
		case 0:
		case 1:
			*field = &values[0]
		default:
			return c, badToken("%s stands %d times in the request: send it once", name, len(values))
		}
	}
	return c, nil
}

// queryChannel is that of presigned URLs, whose signature covers the query. It also finds the session tokens that stand there.
func queryChannel(raw string) (c channel, sessions []string, err error) {
	c = channel{name: "the query"}
	if !mayHaveHeaders(raw) {
		return c, nil, nil
	}
	for p := range parameters(raw) {
		field := &c.text
		switch p.header {
		case headerSessionToken:
			sessions = append(sessions, p.value)
			continue
		case headerHolder:
			field = &c.holder
		case headerToken:
		default:
			continue
		}
		if *field != nil {
			return c, nil, badToken("%s stands twice in the query: send it once", p.header)
		}
		*field = &p.value
	}
	return c, sessions, nil
}

// checkCovered refuses a token that was added to a presigned URL: who was given one may do what it says, and not raise a fence.
func checkCovered(id sigv4.Identity, h http.Header) error {
	if !id.Presigned {
		return nil
	}
	for _, name := range []string{headerToken, headerHolder} {
		if _, ok := h[name]; ok && !slices.Contains(id.SignedHeaders, strings.ToLower(name)) {
			return badToken("%s is not covered by the signature of this URL: sign it with the URL, as a header or in the query", name)
		}
	}
	return nil
}

// agree makes one identity of all that was said.
func agree(said []channel) (id identity, err error) {
	var tokenFrom, holderFrom string
	for _, c := range said {
		token, holder, err := c.parse()
		if err != nil {
			return id, err
		}
		if token != 0 {
			if tokenFrom != "" && token != id.token {
				return id, badToken("%s says token %d, %s says %d: which is it?", tokenFrom, id.token, c.name, token)
			}
			id.token, tokenFrom = token, c.name
		}
		if holder != "" {
			if holderFrom != "" && holder != id.holder {
				return id, badToken("%s says holder %q, %s says %q: which is it?", holderFrom, id.holder, c.name, holder)
			}
			id.holder, holderFrom = holder, c.name
		}
	}
	if id.holder != "" && id.token == 0 {
		return id, &badTokenError{fmt.Sprintf("the request names holder %q but no token: send %s, too", id.holder, headerToken), true}
	}
	return id, nil
}

func (c channel) parse() (token tokens.Token, holder string, err error) {
	if c.text != nil {
		text, option, more := *c.text, "", false
		if c.name != headerToken && c.name != "the query" {
			text, option, more = strings.Cut(text, ";")
		}
		if token, err = tokens.ParseToken(text); err != nil {
			return 0, "", badToken("%s: %v", c.name, err)
		}
		if more {
			name, ok := strings.CutPrefix(option, "holder=")
			if !ok {
				return 0, "", badToken("%s: %q is not understood; it can be 34 or 34;holder=NAME", c.name, *c.text)
			}
			c.holder = &name
		}
	}
	if c.holder != nil {
		if holder, err = tokens.ParseHolder(*c.holder); err != nil {
			return 0, "", badToken("%s: %v", c.name, err)
		}
	}
	return token, holder, nil
}

// overriding are the headers by which some servers take another method than that of the request, which is the one that we have judged.
var overriding = []string{"X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}

// withoutFence removes what is meant for us from what a backend sees, and what it must not see.
func withoutFence(h http.Header) http.Header {
	h = h.Clone()
	for _, name := range overriding {
		h.Del(name)
	}
	h.Del(headerToken)
	h.Del(headerHolder)
	h.Del(headerLease)
	h.Del(headerStamp) // a client's own is a lie, or a copy
	if strings.HasPrefix(h.Get(headerSessionToken), sessionChannel) {
		h.Del(headerSessionToken)
	}
	return h
}

// ofConnections are the headers that a Connection header may name: each is of one connection, and ends here (RFC 9110, 7.6.1).
var ofConnections = map[string]bool{
	"": true, "close": true, "keep-alive": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true, "http2-settings": true,
	"proxy-connection": true, "proxy-authenticate": true, "proxy-authorization": true,
}

// maxHeaders is what S3 takes of headers, in bytes, names and values together.
const maxHeaders = 8 << 10

// checkHeaders refuses a header section that S3 would not take.
func checkHeaders(r *http.Request) error {
	size := 0
	for name, values := range r.Header {
		for _, v := range values {
			size += len(name) + len(v)
		}
	}
	if size > maxHeaders {
		return &sigv4.Error{
			Status: http.StatusBadRequest, Code: "RequestHeaderSectionTooLarge", Message: "Your request header section exceeds the maximum allowed size.",
			Details: []sigv4.Detail{{Name: "MaxSizeAllowed", Value: strconv.Itoa(maxHeaders)}},
		}
	}
	return nil
}

// checkConnection refuses a request that declares others to be so: what is behind us would take off what we have judged, or have put there.
func checkConnection(h http.Header) error {
	for _, v := range h.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			if !ofConnections[strings.ToLower(strings.TrimSpace(name))] {
				return badRequest("InvalidRequest", "Connection names %q, which is not a header of one connection", strings.TrimSpace(name))
			}
		}
	}
	return nil
}
