package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// The tests in the files attack_*_test.go are what somebody tries who means harm. Each is held to the state afterwards: objects, fences,
// files around the root, the audit log. A status alone proves nothing.

// state is all that an attacker could have changed: every object, and every fence with its token and holder.
func (p *proxy) state(t *testing.T) string {
	t.Helper()
	return tree(t, p.root, ".fenceproxy/tmp") + p.fences(t)
}

// fences are all fences, as the registry has them.
func (p *proxy) fences(t *testing.T) string {
	t.Helper()
	var page struct {
		Fences []struct {
			Resource string
			Token    int64
			Holder   string
		}
		Next string
	}
	p.api(t, "/api/v1/fences?limit=1000", &page)
	if page.Next != "" {
		t.Fatal("there are more fences than one page has")
	}
	return fmt.Sprintf("%+v", page.Fences)
}

// unmoved runs an attack, and wants everything to be as it was.
func (p *proxy) unmoved(t *testing.T, what string, attack func()) {
	t.Helper()
	before := p.state(t)
	attack()
	p.noTemps(t)
	if now := changes(before, p.state(t)); now != "" {
		t.Errorf("%s has changed something:\n%.2000s", what, now)
	}
}

// changes are the lines that were there before only, or are there now only.
func changes(before, now string) string {
	var b strings.Builder
	for _, side := range []struct{ sign, have, other string }{{"- ", before, now}, {"+ ", now, before}} {
		others := strings.Split(side.other, "\n")
		for line := range strings.Lines(side.have) {
			if !slices.Contains(others, strings.TrimSuffix(line, "\n")) {
				b.WriteString(side.sign + strings.TrimSuffix(line, "\n") + "\n")
			}
		}
	}
	return b.String()
}

// huge is what a mistyped or a forged token looks like: nobody gets past it any more.
const huge = "9000000000000000000"

// everyRaise are requests that bring a token to the fence of /bkt/near/k, each in its own way. Bodies are whole and good.
func everyRaise(upload string) []struct{ method, target, body string } {
	return []struct{ method, target, body string }{
		{"PUT", "/bkt/near/k", "of the attacker"},
		{"PUT", "/bkt/near/k", ""},
		{"DELETE", "/bkt/near/k", ""},
		{"GET", "/bkt/near/k", ""},
		{"HEAD", "/bkt/near/k", ""},
		{"PUT", "/bkt/near/k?fence", ""},
		{"POST", "/bkt/near/k?uploads", ""},
		{"PUT", "/bkt/near/k?partNumber=2&uploadId=" + upload, "part"},
		{"POST", "/bkt/near/k?uploadId=" + upload, "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>"},
		{"DELETE", "/bkt/near/k?uploadId=" + upload, ""},
		{"POST", "/bkt?delete", "<Delete><Object><Key>near/k</Key></Object></Delete>"},
	}
}

// create begins an upload in parts and returns its id.
func (p *proxy) create(t *testing.T, path string, headers ...string) string {
	t.Helper()
	a := p.do(t, "POST", path+"?uploads", "", headers...).want(t, 200)
	_, rest, _ := strings.Cut(string(a.body), "<UploadId>")
	id, _, ok := strings.Cut(rest, "</UploadId>")
	if !ok {
		t.Fatalf("no upload id in %s", a.body)
	}
	return id
}

// TestAttackWithAHugeToken: where max_advance is set, a token that would shut everybody out is refused by every way to the fence, moves
// nothing, and is on record each time.
func TestAttackWithAHugeToken(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/near/k", 5, "of 5").want(t, 200)
	upload := p.create(t, "/bkt/near/k", "X-Fence-Token", "5")
	p.unmoved(t, "a huge token", func() {
		ways := everyRaise(upload)
		for _, w := range ways {
			a := p.do(t, w.method, w.target, w.body, "X-Fence-Token", huge)
			if strings.HasSuffix(w.target, "?delete") { // judged key by key
				if a.status != 200 || !strings.Contains(string(a.body), "<Code>AccessDenied</Code>") {
					t.Errorf("%s %s: %d %s", w.method, w.target, a.status, a.body)
				}
			} else if a.status != 403 || a.header.Get("X-Fence-Error") != "TokenTooFar" {
				t.Errorf("%s %s: %d %q %s, want 403 TokenTooFar", w.method, w.target, a.status, a.header.Get("X-Fence-Error"), a.body)
			}
		}
		p.audited(t, "code=TokenTooFar", int64(len(ways)))
	})
	p.put(t, "/bkt/near/k", 15, "of 15").want(t, 200) // as far as it may go, and no further
	p.put(t, "/bkt/near/k", 26, "of 26").refusedAs(t, 403, "AccessDenied", "TokenTooFar")
	p.holds(t, "/bkt/near/k", "of 15")
}

// TestAttackWithAHugeFirstToken: a resource's first token is free, and so may be the highest there is. Then nobody gets past it, and the
// operator has one way back.
func TestAttackWithAHugeFirstToken(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const key = "/bkt/near/first"
	p.put(t, key, 1<<63-1, "of the attacker").want(t, 200)
	for _, n := range []int64{0, 6, 1<<63 - 2} {
		p.put(t, key, n, "locked out").stale(t, 1<<63-1)
	}
	p.do(t, "PUT", key, "wraps", "X-Fence-Token", "9223372036854775808").refusedAs(t, 400, "InvalidArgument", "BadToken")
	p.ok(t, "fences", "reset", "bkt/near/first", "5", "--reason", "a forged token", "--yes")
	p.marked(t, key, 5)
	p.put(t, key, 4, "below").stale(t, 5)
	p.put(t, key, 6, "of 6").want(t, 200)
	p.put(t, key, 1<<63-1, "again").refusedAs(t, 403, "AccessDenied", "TokenTooFar") // it is not the first any more
	p.holds(t, key, "of 6")
	p.audited(t, "kind=reset", 1)
}

// TestAttackWithSpellingsOfAToken: what some reader of numbers takes for a token above the mark is none here; and what a client says in
// several channels at once must be one thing.
func TestAttackWithSpellingsOfAToken(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const key = "/bkt/jobs/1/k"
	p.put(t, key, 34, "of 34").want(t, 200)
	var bad int64
	p.unmoved(t, "a spelling", func() {
		for _, text := range []string{
			"18446744073709551651", "18446744073709551616", "340282366920938463463374607431768211491", // 35 in 64 bits, 0, 35 in 128
			"-9223372036854775773", "9223372036854775807.", "0x8000000000000000", "0x10000000000000023", "0x+23", "0x-1", "-0x23", "0b100011", "0o43", "043", "#35", "$35",
			"35L", "35u", "3.5e1", "35.", ".35", "٣٥", "३५", "３５", "𝟑𝟓", "3\u200b5", "\ufeff35", "35\u00a0", "Infinity", "NaN", "null", "true", "35;", "35%", "%33%35", "35/1",
			"[35]", `"35"`, "{\"token\":35}", "35 OR 1=1", "${35}", strings.Repeat("0", 6000) + "35",
		} {
			a := p.do(t, "PUT", key, "stale", "X-Fence-Token", text)
			bad++
			if a.status != 400 || a.header.Get("X-Fence-Error") != "BadToken" || len(a.body) > 4096 {
				t.Errorf("%.60q: %d %.300s", text, a.status, a.body)
			}
		}
		p.audited(t, "code=BadToken", bad)
		for _, lines := range []string{ // what HTTP itself does not take
			"X-Fence-Token : 35", "X-Fence-Token\t: 35", " X-Fence-Token: 35", "X-Fence-Token: 3\x005", "X-Fence-Token\x00: 35", "X-Fence-Token: 35\r", "X-Fence\u2010Token: 35\r\nX-Fence-Token : 35",
		} {
			if a := p.raw(t, "PUT", key, "stale", lines); a.status != 400 {
				t.Errorf("%q: %d %s, want 400", lines, a.status, a.body)
			}
		}
		for _, other := range []string{"X_Fence_Token: 35", "X-Fence-Tokens: 35", "XX-Fence-Token: 35", "Fence-Token: 35", "X-Forwarded-X-Fence-Token: 35"} {
			p.raw(t, "PUT", key, "stale", other).stale(t, 34) // another header: a write without a token
		}
		for _, name := range []string{"x-fence-token", "X-FENCE-TOKEN", "x-fEnCe-ToKeN"} { // the same header, and so a stale token
			p.raw(t, "PUT", key, "stale", name+": 33").stale(t, 34)
			p.raw(t, "PUT", key, "stale", name+": 35", "X-Fence-Token: 35").refusedAs(t, 400, "InvalidArgument", "BadToken")
		}
	})
}

// TestAttackWithChannels: every combination of channels, with tokens that agree and that do not. One that disagrees anywhere moves
// nothing, and none is preferred.
func TestAttackWithChannels(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const key = "/bkt/jobs/1/k"
	p.put(t, key, 34, "of 34").want(t, 200)
	says := []string{"", "34", "35"}
	p.unmoved(t, "a contradiction", func() {
		for _, path := range says {
			for _, header := range says {
				for _, session := range says {
					for _, query := range says {
						said := map[string]bool{path: true, header: true, session: true, query: true}
						if !said["34"] || !said["35"] {
							continue
						}
						target, headers := key, []string(nil)
						if path != "" {
							target = "/~fence/" + path + key
						}
						if query != "" {
							target += "?X-Fence-Token=" + query
						}
						if header != "" {
							headers = append(headers, "X-Fence-Token", header)
						}
						if session != "" {
							headers = append(headers, "X-Amz-Security-Token", "fence="+session)
						}
						for _, method := range []string{"PUT", "GET", "DELETE"} {
							if a := p.do(t, method, target, "whose?", headers...); a.status/100 != 4 && a.status != 501 {
								t.Errorf("%s %s %q: %d %s", method, target, headers, a.status, a.body)
							}
						}
					}
				}
			}
		}
	})
	p.do(t, "PUT", "/~fence/35"+key, "of 35", "X-Fence-Token", "0x23", "X-Amz-Security-Token", "fence=35").want(t, 200) // one number, three channels
	p.marked(t, key, 35)
}

// browserHeaders are what a browser says of requests that a page of another origin makes, and of one whose name was made to lead here.
var browserHeaders = map[string][]string{
	"another site":           {"Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"},
	"a form":                 {"Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"},
	"no origin":              {"Origin", "null", "Sec-Fetch-Site", "cross-site"},
	"another port":           {"Origin", "http://localhost:8080", "Sec-Fetch-Site", "same-site"},
	"an old browser":         {"Origin", "http://evil.example"},
	"a name that leads here": {"Host", "evil.example", "Origin", "http://evil.example", "Sec-Fetch-Site", "same-origin"},
}

// TestAttackFromABrowserOnTheAdminPort: no page can raise or reset a fence, whatever it sends, or read an answer.
func TestAttackFromABrowserOnTheAdminPort(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/1/k", 34, "of 34").want(t, 200)
	const body = `{"resource":"bkt/jobs/1","token":1,"reason":"x"}`
	p.unmoved(t, "a web page", func() {
		for name, headers := range browserHeaders {
			for _, content := range []string{"application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""} {
				for _, path := range []string{"/api/v1/fences/reset", "/api/v1/fences/raise"} {
					h := headers
					if content != "" {
						h = append([]string{"Content-Type", content}, headers...)
					}
					a, err := send(fresh, p.admin, "POST", path, strings.NewReader(strings.Replace(body, "1,", "99,", strings.Count(path, "raise"))), h...)
					must(t, "send", err)
					a.noPageMayRead(t, name+" POST "+path)
					if a.status != 403 {
						t.Errorf("%s with %q: %d %s, want 403", name, content, a.status, a.body)
					}
				}
			}
			for _, method := range []string{"OPTIONS", "GET"} {
				a, err := send(fresh, p.admin, method, "/api/v1/fences", nil, append([]string{"Access-Control-Request-Method", "POST"}, headers...)...)
				must(t, "send", err)
				a.noPageMayRead(t, name+" "+method)
			}
		}
		for _, content := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""} { // what a page may send unasked, where the browser says nothing of it
			var headers []string
			if content != "" {
				headers = []string{"Content-Type", content}
			}
			a, err := send(fresh, p.admin, "POST", "/api/v1/fences/reset", strings.NewReader(body), headers...)
			must(t, "send", err)
			if a.status != http.StatusUnsupportedMediaType {
				t.Errorf("%q: %d %s, want 415", content, a.status, a.body)
			}
		}
	})
	p.audited(t, "kind=reset", 0)
	p.audited(t, "kind=raise", 1)
}

// noPageMayRead: without these headers a browser keeps an answer from the page that asked.
func (a answer) noPageMayRead(t *testing.T, what string) {
	t.Helper()
	for name := range a.header {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("%s is answered with %s: %q", what, name, a.header.Get(name))
		}
	}
}

// TestAttackFromABrowserOnTheDataPort: where nobody has to sign, only the machine's own programs are meant to come in, and not the pages
// that somebody on it looks at. An image's address is enough to raise a fence, and a form to delete.
func TestAttackFromABrowserOnTheDataPort(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/1/k", 34, "of 34").want(t, 200)
	p.put(t, "/bkt/free/k", 0, "free").want(t, 200)
	for name, headers := range browserHeaders {
		for _, r := range []struct{ method, target, body string }{
			{"GET", "/~fence/35/bkt/jobs/1/k", ""}, // <img src=…>
			{"POST", "/bkt?delete", "<Delete><Object><Key>free/k</Key></Object></Delete>"},
			{"POST", "/~fence/36/bkt/jobs/1/k?uploads", ""},
			{"PUT", "/bkt/free/k", "of the page"}, // after a question that is answered no; not so where the name leads here
		} {
			p.unmoved(t, name+": "+r.method+" "+r.target, func() {
				a := p.do(t, r.method, r.target, r.body, append([]string{"Content-Type", "text/plain"}, headers...)...)
				a.noPageMayRead(t, name)
			})
		}
		p.do(t, "OPTIONS", "/bkt/free/k", "", append([]string{"Access-Control-Request-Method", "PUT"}, headers...)...).noPageMayRead(t, name)
	}
}
