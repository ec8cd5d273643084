package s3

import (
	"context"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
)

// dropped are the headers that end here: those of one connection (RFC 9110, 7.6.1), of the client's signature and framing, and those
// that make net/http send a request twice.
var dropped = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Host": true, "Content-Length": true, "Expect": true, "Forwarded": true,
	"Authorization": true, "Date": true, "X-Amz-Date": true, "X-Amz-Security-Token": true,
	"X-Amz-Content-Sha256": true, "X-Amz-Decoded-Content-Length": true, "X-Amz-Trailer": true,
	"Idempotency-Key": true, "X-Idempotency-Key": true,
}

// outgoing is the request as the store gets it, but for its body and signature.
func (s *Store) outgoing(ctx context.Context, r *http.Request) *http.Request {
	out := &http.Request{
		Method: r.Method, URL: s.url(r.URL), Header: headers(r.Header),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	out.Host = out.URL.Host
	return out.WithContext(ctx)
}

func headers(in http.Header) http.Header {
	out := make(http.Header, len(in)+4)
	connection := in["Connection"]
	for name, values := range in {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if !dropped[name] && !strings.HasPrefix(name, "X-Forwarded-") && !named(connection, name) {
			out[name] = append(out[name], values...)
		}
	}
	unchunk(out)
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = nil // or net/http sends its own
	}
	return out
}

// named says whether Connection names a header, which then is of the connection alone.
func named(connection []string, header string) bool {
	for _, v := range connection {
		for name := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(textproto.TrimString(name), header) {
				return true
			}
		}
	}
	return false
}

// unchunk takes aws-chunked from the Content-Encoding: the body that came in is no longer in it, and some stores would keep
// it as the object's. What is left stays in its order; a Content-Encoding without it, as it is.
func unchunk(h http.Header) {
	const encoding = "Content-Encoding"
	var rest []string
	chunked := false
	for name := range strings.SplitSeq(strings.Join(h[encoding], ","), ",") {
		if name = textproto.TrimString(name); strings.EqualFold(name, "aws-chunked") {
			chunked = true
		} else if name != "" {
			rest = append(rest, name)
		}
	}
	if !chunked {
		return
	}
	if h.Del(encoding); rest != nil {
		h.Set(encoding, strings.Join(rest, ","))
	}
}

// url is where a request goes. Path and query are spelt anew, in the one way that signatures have: what was judged by its meaning
// reaches every store with that meaning, whatever the client's spelling.
func (s *Store) url(in *url.URL) *url.URL {
	host, path := s.host, in.Path
	if bucket, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); !s.o.PathStyle && isHostLabel(bucket) {
		host, path = bucket+"."+s.host, "/"+key
	}
	path = s.base + path
	return &url.URL{Scheme: s.scheme, Host: host, Path: path, RawPath: escape(path, true), RawQuery: query(in.RawQuery)}
}

// isHostLabel says whether a bucket can stand before the host. One with a dot fits no wildcard certificate, and any other name may not
// choose the host that our signature goes to.
func isHostLabel(bucket string) bool {
	if len(bucket) < 3 || len(bucket) > 63 || bucket[0] == '-' || bucket[len(bucket)-1] == '-' {
		return false
	}
	return strings.Trim(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// escape is UriEncode of AWS's "Create a signed AWS API request".
func escape(s string, path bool) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s) + 16)
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == '~', c == '/' && path:
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}

// presigned are the parameters of a signature in the query. It was the client's, and ours is in the headers.
var presigned = map[string]bool{
	"x-amz-algorithm": true, "x-amz-credential": true, "x-amz-date": true, "x-amz-expires": true, "x-amz-signedheaders": true,
	"x-amz-signature": true, "x-amz-security-token": true,
}

// query keeps every parameter, in its order. A semicolon and a stray percent sign, with which [url.ParseQuery] loses parameters, are
// data.
func query(raw string) string {
	var b strings.Builder
	for pair := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if name = unescape(name); pair == "" || presigned[strings.ToLower(name)] {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('&')
		}
		b.WriteString(escape(name, false) + "=" + escape(unescape(value), false))
	}
	return b.String()
}

// parameters are the names of a query's parameters.
func parameters(raw string) map[string]bool {
	names := map[string]bool{}
	for pair := range strings.SplitSeq(query(raw), "&") {
		if name, _, _ := strings.Cut(pair, "="); name != "" {
			names[name] = true
		}
	}
	return names
}

// hasKey says whether a request is of an object, and not of a bucket.
func hasKey(r *http.Request) bool {
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	return key != ""
}

// unescape takes what is no escape for what it is.
func unescape(s string) string {
	if u, err := url.QueryUnescape(s); err == nil {
		return u
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if end := min(i+3, len(s)); s[i] == '%' {
			if u, err := url.QueryUnescape(s[i:end]); err == nil {
				b.WriteString(u)
				i = end - 1
				continue
			}
		} else if s[i] == '+' {
			b.WriteByte(' ')
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
