package sigv4

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/aws/smithy-go/encoding/httpbinding"
	"pgregory.net/rapid"
)

// A shot is a signed request that can be sent again and again, whole or changed.
type shot struct {
	request *http.Request // as signed
	path    string        // as it goes over the wire
	query   string
	body    []byte
}

// A verdict is what the server's Verifier said.
type verdict struct {
	Code string
	ID   Identity
}

// newRange is a real server whose handler verifies, and a function that sends shots to it.
func newRange(t *testing.T, v *Verifier) (base *url.URL, send func(t fataler, s shot, change func(*http.Request)) verdict) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := v.Verify(r)
		text, _ := json.Marshal(verdict{codeOf(err), id})
		w.Header().Set("X-Verdict", string(text))
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableCompression: true} // it would add a header
	t.Cleanup(transport.CloseIdleConnections)
	return base, func(t fataler, s shot, change func(*http.Request)) (got verdict) {
		t.Helper()
		r := s.request.Clone(context.Background())
		r.Body, r.ContentLength = http.NoBody, int64(len(s.body))
		if len(s.body) > 0 {
			r.Body = io.NopCloser(bytes.NewReader(s.body))
		}
		r.URL = &url.URL{Scheme: base.Scheme, Host: base.Host, Opaque: s.path, RawQuery: s.query} // Opaque: as it is
		if change != nil {
			change(r)
		}
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatalf("%s %s?%s: %v", r.Method, r.URL.Opaque, r.URL.RawQuery, err)
		}
		_ = response.Body.Close()
		if err := json.Unmarshal([]byte(response.Header.Get("X-Verdict")), &got); err != nil {
			t.Fatalf("%s %s?%s: %s: %v", r.Method, r.URL.Opaque, r.URL.RawQuery, response.Status, err)
		}
		return got
	}
}

var (
	drawMethod = rapid.SampledFrom([]string{"PUT", "GET", "HEAD", "POST", "DELETE"})
	drawPrefix = rapid.SampledFrom([]string{"", "", "/~fence/34", "/~fence/34;holder=a"})
	drawTrap   = rapid.SampledFrom([]string{
		"a", "k", "/", "//", "/./", "/../", ".", "..", " ", "+", "%", "%2F", "%41", "=", "@", "~", "!", "(", ")", "'", "*", "&", "?", "#", ";", ":", ",", "\\", "\"",
		"<", "é", "中", "🔑", "\x00", "\n", "\x7f", "\xff",
	})
	drawText  = rapid.OneOf(rapid.Map(rapid.SliceOfN(drawTrap, 0, 8), concat), rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 12), func(b []byte) string { return string(b) }))
	drawName  = rapid.OneOf(rapid.SampledFrom([]string{"acl", "prefix", "uploadId", "partNumber", "a", "a-b", "A", "x-id", "list-type"}), drawText)
	drawValue = rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "B", "1", " ", "  ", ",", ";", ":", "=", "\"", "é", "%20", "+", "/"}), 0, 10), concat)
	headers   = []string{
		"Content-Type", "Content-Md5", "Cache-Control", "Range", "If-Match", "Accept-Encoding", "X-Fence-Token", "X-Amz-Meta-A", "x-amz-meta-b-c", "X-Amz-Tagging",
		"X-Amz-Copy-Source", "X-Amz-Storage-Class", "X-Custom_Name.1",
	}
)

func concat(parts []string) string { return strings.Join(parts, "") }

// drawShot makes a request, lets the SDK sign it, and chooses how it goes over the wire.
func drawShot(t *rapid.T, base *url.URL) shot {
	prefix, key := drawPrefix.Draw(t, "prefix"), "/b/"+drawText.Draw(t, "key")
	escaped := prefix + httpbinding.EscapePath(key, false)
	r := &http.Request{
		Method: drawMethod.Draw(t, "method"), Header: http.Header{}, Host: rapid.SampledFrom([]string{"", "b.s3.example:9000"}).Draw(t, "host"),
		URL: &url.URL{Scheme: base.Scheme, Host: base.Host, Path: prefix + key, RawPath: escaped},
	}
	s := shot{request: r, path: loosen(t, escaped)}
	var pairs []string
	for range rapid.IntRange(0, 4).Draw(t, "pairs") {
		pairs = append(pairs, drawPair(t))
	}
	s.query = strings.Join(pairs, "&")
	r.URL.RawQuery = s.query
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(headers), 0, 5, rapid.ID).Draw(t, "headers") {
		for range rapid.IntRange(1, 2).Draw(t, "values") {
			r.Header.Add(name, drawValue.Draw(t, "value"))
		}
	}
	if r.Method == "PUT" || r.Method == "POST" {
		s.body = bytes.Repeat([]byte("b"), rapid.IntRange(0, 3).Draw(t, "body"))
	}
	r.ContentLength = int64(len(s.body))
	hash := unsignedPayload
	if rapid.Bool().Draw(t, "hashed") {
		digest := sha256.Sum256(s.body)
		hash = hex.EncodeToString(digest[:])
	}
	signSDK(t, r, hash, rapid.SampledFrom([]string{"", "fence=34", "fence=34;holder=a", "FwoGZXIvYXdzEBY//+="}).Draw(t, "session token"))
	if rapid.Bool().Draw(t, "the SDK's query") {
		s.query = r.URL.RawQuery
	}
	return s
}

// drawPair makes a parameter in one of the spellings that clients use.
func drawPair(t *rapid.T) string {
	escape := url.QueryEscape // blanks as +
	if rapid.Bool().Draw(t, "blanks as %20") {
		escape = func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
	}
	name := drawName.Draw(t, "name")
	if name == "" || rapid.IntRange(0, 3).Draw(t, "valueless") == 0 {
		return escape("n" + name)
	}
	return escape(name) + "=" + escape(drawText.Draw(t, "parameter"))
}

// loosen takes away encoding that a client may leave out on the wire; of a path that was signed with some left out, nothing.
func loosen(t *rapid.T, escaped string) string {
	if strings.HasPrefix(escaped, "/~fence/34;holder=a/") || rapid.Bool().Draw(t, "encoded on the wire") {
		return escaped
	}
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		if c, ok := decode(escaped[i:]); ok && escaped[i] == '%' && (c >= 0x80 || strings.IndexByte("+=@!()'*:,;&$", c) >= 0) {
			b.WriteByte(c)
			i += 2
			continue
		}
		b.WriteByte(escaped[i])
	}
	return b.String()
}

// TestAgainstTheSDK: whatever the Go SDK signs verifies after its way through net/http, and nothing of it can be changed.
func TestAgainstTheSDK(t *testing.T) {
	base, send := newRange(t, newTest(Options{Region: testRegion}))
	rapid.Check(t, func(t *rapid.T) {
		s := drawShot(t, base)
		got := send(t, s, nil)
		hash := s.request.Header.Get("X-Amz-Content-Sha256")
		if hash == unsignedPayload {
			hash = ""
		}
		if got.Code != "" || got.ID.AccessKey != testKey || got.ID.PayloadHash != hash || (got.ID.Payload == Hashed) != (hash != "") {
			t.Fatalf("%s %s?%s %q: %+v", s.request.Method, s.path, s.query, s.request.Header, got)
		}
		harmless := send(t, s, func(r *http.Request) { // what a signature need not cover
			r.Header.Set("X-Amzn-Trace-Id", "Root=1")
			r.Header.Set("User-Agent", "another")
			if r.Header.Get("X-Fence-Token") == "" && r.Header["X-Fence-Token"] == nil {
				r.Header.Set("X-Fence-Token", "34")
			}
		})
		if harmless.Code != "" {
			t.Fatalf("with unsigned headers: %+v", harmless)
		}
		for name, change := range mutations(t, s, got.ID.SignedHeaders) {
			if got := send(t, s, change); got.Code == "" || got.Code == "anonymous" || got.ID.AccessKey != "" {
				t.Fatalf("%s: %s %s?%s %q: %+v", name, s.request.Method, s.path, s.query, s.request.Header, got)
			}
		}
	})
}

// mutations are changes of one thing each, of a request that is signed in its header. Every one of them makes another request.
func mutations(t *rapid.T, s shot, signed []string) map[string]func(*http.Request) {
	reauthorize := func(old, new string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), old, new, 1))
		}
	}
	all := requestMutations(t, s, signed)
	all["date"] = func(r *http.Request) {
		r.Header.Set("X-Amz-Date", strings.Replace(r.Header.Get("X-Amz-Date"), "000000Z", "000001Z", 1))
	}
	all["hash"] = func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", emptyHash[1:]+"0") }
	all["key"] = reauthorize(testKey, "AKIAI44QH8DHBEXAMPLE")
	all["day"] = reauthorize("20130524", "20130525")
	all["region"] = reauthorize(testRegion, "us-east-2")
	all["signed header"] = reauthorize("SignedHeaders=", "SignedHeaders=a;")
	all["not signed"] = reauthorize(rapid.SampledFrom(signed).Draw(t, "header not signed"), "")
	if s.query != "" {
		all["query value"] = func(r *http.Request) { r.URL.RawQuery += "x" }
		all["query gone"] = func(r *http.Request) {
			_, r.URL.RawQuery, _ = strings.Cut(r.URL.RawQuery, "&")
		}
	}
	sent := s.request.Header.Get("Authorization")
	digit := len(sent) - rapid.IntRange(1, digestLength).Draw(t, "digit")
	all["signature"] = reauthorize(sent, flip(sent[:digit+1])+sent[digit+1:])
	return all
}

// requestMutations are those that every signature must notice, wherever it stands.
func requestMutations(t *rapid.T, s shot, signed []string) map[string]func(*http.Request) {
	all := map[string]func(*http.Request){
		"method":      func(r *http.Request) { r.Method = map[bool]string{true: "PUT", false: "DELETE"}[r.Method == "DELETE"] },
		"host":        func(r *http.Request) { r.Host = "another:9000" },
		"path longer": func(r *http.Request) { r.URL.Opaque += "x" },
		"path slash":  func(r *http.Request) { r.URL.Opaque += "/" },
		"path bucket": func(r *http.Request) { r.URL.Opaque = strings.Replace(r.URL.Opaque, "/b/", "/c/", 1) },
		"path dot":    func(r *http.Request) { r.URL.Opaque = strings.Replace(r.URL.Opaque, "/b/", "/b/./", 1) },
		"path fence":  func(r *http.Request) { r.URL.Opaque = "/~fence/35" + strings.TrimPrefix(r.URL.Opaque, "/~fence/34") },
		"query more":  func(r *http.Request) { r.URL.RawQuery = strings.TrimPrefix(r.URL.RawQuery+"&zz=1", "&") },
		"added":       func(r *http.Request) { r.Header.Set("X-Amz-Meta-Added", "") },
	}
	if len(s.body) > 0 && slices.Contains(signed, "content-length") {
		all["content-length"] = func(r *http.Request) {
			r.ContentLength++
			r.Body = io.NopCloser(bytes.NewReader(append(slices.Clone(s.body), 'b')))
		}
	}
	if name := rapid.SampledFrom(signed).Draw(t, "changed header"); name != "host" && name != "content-length" {
		key := http.CanonicalHeaderKey(name)
		all[name+" changed"] = func(r *http.Request) { r.Header[key] = []string{strings.Join(r.Header[key], ",") + "x"} }
		all[name+" repeated"] = func(r *http.Request) { r.Header[key] = append(slices.Clone(r.Header[key]), "x") }
		if strings.TrimSpace(strings.Join(s.request.Header[key], ",")) != "" {
			all[name+" gone"] = func(r *http.Request) { delete(r.Header, key) }
		}
	}
	return all
}
