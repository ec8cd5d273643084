package integration

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// TestMalformedTokens: what is no token is 400, by every channel, is audited, and does nothing else. It is never "no token".
func TestMalformedTokens(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const fenced, free = "/bkt/jobs/1/k", "/bkt/jobs/2/k" // free has no fence: a token taken for none would be let in
	p.put(t, fenced, 34, "of 34").want(t, 200)
	p.put(t, free, 0, "free").want(t, 200)
	before := tree(t, p.root)

	texts := []string{"-1", "0", "9223372036854775808", "34,35", "34, 35", "3 4", "", "034", "+34", "34.0", "1e3", "0x", "0X22", "34 35", "thirty", "３４", "34\t", strings.Repeat("9", 400)}
	var requests int64
	bad := func(name, path, target string, headers ...string) {
		t.Helper()
		for _, method := range []string{"PUT", "DELETE", "GET"} {
			requests++
			a := p.do(t, method, target, "stale", headers...)
			if a.status != 400 || a.code() != "InvalidArgument" || a.header.Get("X-Fence-Error") != "BadToken" {
				t.Errorf("%s: %s %s %q: %d %v %s", name, method, target, headers, a.status, a.header, a.body)
			}
		}
		requests++
		p.do(t, "PUT", strings.Replace(target, path, path+"?fence", 1), "", headers...).refusedAs(t, 400, "InvalidArgument", "BadToken")
	}
	for _, path := range []string{fenced, free} {
		for _, text := range texts {
			if strings.Trim(text, " \t") == text { // HTTP trims what stands around a value
				bad("header", path, path, "X-Fence-Token", text)
				bad("session token", path, path, "X-Amz-Security-Token", "fence="+text)
			}
			segment := url.PathEscape(text)
			bad("path", path, "/~fence/"+segment+path)
			bad("encoded path", path, "/%7Efence/"+everyByteEncoded(text)+path)
			if text != "" {
				bad("path with holder", path, "/~fence/"+segment+";holder=a"+path)
			}
		}
		for name, headers := range map[string][]string{
			"two headers":           {"X-Fence-Token", "34", "X-Fence-Token", "35"},
			"two equal headers":     {"X-Fence-Token", "34", "X-Fence-Token", "34"},
			"one of two is empty":   {"X-Fence-Token", "34", "X-Fence-Token", ""},
			"two session tokens":    {"X-Amz-Security-Token", "fence=34", "X-Amz-Security-Token", "fence=34"},
			"another beside it":     {"X-Amz-Security-Token", "other", "X-Amz-Security-Token", "fence=34"},
			"holder without token":  {"X-Fence-Holder", "a"},
			"two holders":           {"X-Fence-Token", "34", "X-Fence-Holder", "a", "X-Fence-Holder", "a"},
			"empty holder":          {"X-Fence-Token", "34", "X-Fence-Holder", ""},
			"blank in the holder":   {"X-Fence-Token", "34", "X-Fence-Holder", "a b"},
			"long holder":           {"X-Fence-Token", "34", "X-Fence-Holder", strings.Repeat("h", 129)},
			"holder in the token":   {"X-Fence-Token", "34;holder=a"},
			"header and session":    {"X-Fence-Token", "34", "X-Amz-Security-Token", "fence=35"},
			"holders disagree":      {"X-Fence-Token", "34", "X-Fence-Holder", "a", "X-Amz-Security-Token", "fence=34;holder=b"},
			"empty session holder":  {"X-Amz-Security-Token", "fence=34;holder="},
			"unknown option":        {"X-Amz-Security-Token", "fence=34;owner=a"},
			"holder twice":          {"X-Amz-Security-Token", "fence=34;holder=a;holder=a"},
			"session without token": {"X-Amz-Security-Token", "fence=;holder=a"},
		} {
			bad(name, path, path, headers...)
		}
		bad("header and path", path, "/~fence/34"+path, "X-Fence-Token", "35")
		bad("session and path", path, "/~fence/34"+path, "X-Amz-Security-Token", "fence=35")
		bad("holder of header and path", path, "/~fence/34;holder=a"+path, "X-Fence-Holder", "b")
		bad("bad header beside a good path", path, "/~fence/34"+path, "X-Fence-Token", "0")
		bad("twice in the path", path, "/~fence/34/~fence/34"+path)
		bad("twice in the path, once encoded", path, "/~fence/34/%7efence/34"+path)
		bad("no holder behind holder=", path, "/~fence/34;holder="+path)
		bad("nothing behind the semicolon", path, "/~fence/34;"+path)
		bad("another option", path, "/~fence/34;owner=a"+path)
	}
	if after := tree(t, p.root); after != before {
		t.Errorf("something was written:\n%s\nwas\n%s", after, before)
	}
	p.marked(t, fenced, 34)
	p.marked(t, free, 0)
	p.audited(t, "code=BadToken", requests)
	p.put(t, fenced, 34, "again").want(t, 200)
	p.put(t, free, 0, "again").want(t, 200)
}

// everyByteEncoded spells a segment so that no byte of it stands for itself.
func everyByteEncoded(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02X", s[i])
	}
	return b.String()
}

// TestTokensInTheQuery: a token there that cannot be read, or stands twice, must not be lost silently.
func TestTokensInTheQuery(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/k", 0, "x").want(t, 200)
	before := tree(t, p.root)
	for _, query := range []string{"X-Fence-Holder=a", "X-Fence-Token", "X-Fence-Token=34&X-Fence-Token=34", "X-FENCE-TOKEN=x"} {
		for _, method := range []string{"PUT", "DELETE", "GET", "HEAD"} {
			if a := p.do(t, method, "/bkt/k?"+query, "stale"); a.status != 400 || a.header.Get("X-Fence-Error") != "BadToken" {
				t.Errorf("%s ?%s: %d %s, want 400 BadToken", method, query, a.status, a.body)
			}
		}
	}
	for _, query := range []string{"X-Fence-Token=34;", "a;X-Fence-Token=34", "%zz&X-Fence-Token=34"} { // what nobody can read
		for _, method := range []string{"PUT", "DELETE"} {
			if a := p.do(t, method, "/bkt/k?"+query, "stale"); a.status != 400 && a.status != 501 {
				t.Errorf("%s ?%s: %d %s, want 400 or 501", method, query, a.status, a.body)
			}
		}
	}
	if after := tree(t, p.root); after != before {
		t.Errorf("something was written:\n%s", after)
	}
	p.marked(t, "/bkt/k", 0)
}

// TestGoodTokens: the whole range, in every spelling that is one.
func TestGoodTokens(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	for i, text := range []string{"1", "0x1", "0x00ff", "9223372036854775807", "0x7fffffffffffffff", "0x7FFFFFFFFFFFFFFF"} {
		path := fmt.Sprintf("/bkt/good/%d", i)
		p.do(t, "PUT", path, "x", "X-Fence-Token", text).want(t, 200)
		p.put(t, path, 0, "stale").refusedAs(t, 412, "PreconditionFailed", "StaleToken")
	}
	p.marked(t, "/bkt/good/2", 255)
	p.marked(t, "/bkt/good/3", 1<<63-1)
	p.put(t, "/bkt/good/3", 1<<63-2, "stale").stale(t, 1<<63-1)

	// A session token that is not ours is not looked at, however much it looks like one.
	for _, other := range []string{"FwoGZXIvYXdzE", "Fence=34", "fence", "34", " ", "xfence=34"} {
		p.do(t, "PUT", "/bkt/session", "x", "X-Amz-Security-Token", other).want(t, 200)
	}
	p.marked(t, "/bkt/session", 0)
	p.do(t, "PUT", "/bkt/session", "x", "X-Amz-Security-Token", "FwoGZXIvYXdzE", "X-Fence-Token", "34").want(t, 200)
	p.marked(t, "/bkt/session", 34)
}

// TestHolders: story opsmill/infrahub #9450, tokens that come twice. A token belongs to the holder that came with it first.
func TestHolders(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	put := func(path, holder string, n int64) answer {
		headers := tokenHeader(n)
		if holder != "" {
			headers = append(headers, "X-Fence-Holder", holder)
		}
		return p.do(t, "PUT", path, "by "+holder, headers...)
	}
	const k = "/bkt/jobs/1/k"
	conflict := func(a answer) {
		t.Helper()
		a.refusedAs(t, 403, "AccessDenied", "TokenConflict")
		tellsFence(t, a, k, 34)
	}
	put(k, "a", 34).want(t, 200)
	put(k, "a", 34).want(t, 200)
	for range 2 {
		conflict(put(k, "b", 34))
		conflict(put(k, "", 34))
		conflict(put("/bkt/jobs/1/other", "b", 34))
		conflict(p.do(t, "DELETE", k, "", "X-Fence-Token", "34"))
		conflict(p.do(t, "PUT", k+"?fence", "", "X-Fence-Token", "34", "X-Fence-Holder", "b"))
		p.holds(t, k, "by a")
		p.crash(t) // holders are as durable as tokens, and the first refusal of each kind is on disk before it is told
		if records := p.audit(t, "code=TokenConflict&resource=bkt/jobs/1"); len(records) == 0 || records[0].Token != 34 || records[0].Kind != "refusal" {
			t.Errorf("the audit log lost a refusal: %+v", records)
		}
	}
	p.do(t, "GET", k, "", "X-Fence-Token", "34", "X-Fence-Holder", "b").want(t, 200) // a read changes nothing
	put(k, "b", 33).stale(t, 34)
	put(k, "b", 35).want(t, 200)
	put(k, "a", 35).refusedAs(t, 403, "AccessDenied", "TokenConflict")
	put(k, "a", 34).stale(t, 35)
	if f := p.fence(t, k); f != (fence{"bkt/jobs/1", 35, "b"}) {
		t.Errorf("the fence is %+v", f)
	}

	const late = "/bkt/jobs/2/k" // a holder that is named later binds the token, too
	put(late, "", 34).want(t, 200)
	put(late, "a", 34).want(t, 200)
	put(late, "", 34).refusedAs(t, 403, "AccessDenied", "TokenConflict")
	put(late, "b", 34).refusedAs(t, 403, "AccessDenied", "TokenConflict")
	put(late, "a", 34).want(t, 200)
}

// TestRules: what rules ask of a write, judged before any mark moves.
func TestRules(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	with := func(headers ...string) []string { return headers }

	t.Run("token required", func(t *testing.T) {
		p.put(t, "/bkt/must/k", 0, "x").refusedAs(t, 403, "AccessDenied", "TokenRequired")
		p.do(t, "DELETE", "/bkt/must/k", "").refusedAs(t, 403, "AccessDenied", "TokenRequired")
		p.absent(t, "/bkt/must/k")
		p.put(t, "/bkt/must/k", 34, "x").want(t, 200)
		p.put(t, "/bkt/must/k", 0, "y").refusedAs(t, 403, "AccessDenied", "TokenRequired")
		p.put(t, "/bkt/must/k", 33, "y").stale(t, 34)
		p.holds(t, "/bkt/must/k", "x")
	})
	t.Run("holder required", func(t *testing.T) {
		k := "/bkt/named/k"
		p.put(t, k, 34, "x").refusedAs(t, 403, "AccessDenied", "HolderRequired")
		p.put(t, k, 0, "x").refusedAs(t, 403, "AccessDenied", "HolderRequired")
		p.do(t, "PUT", k+"?fence", "", "X-Fence-Token", "34").refusedAs(t, 403, "AccessDenied", "HolderRequired")
		p.marked(t, k, 0)
		p.absent(t, k)
		p.do(t, "PUT", k, "x", "X-Fence-Token", "34", "X-Fence-Holder", "a").want(t, 200)
		p.put(t, k, 35, "y").refusedAs(t, 403, "AccessDenied", "HolderRequired")
		p.do(t, "GET", k, "", "X-Fence-Token", "35")
		p.marked(t, k, 34)
		p.holds(t, k, "x")
	})
	t.Run("write once", func(t *testing.T) {
		k := "/bkt/once/k"
		p.put(t, k, 34, "first").want(t, 200)
		for _, headers := range [][]string{nil, with("If-Match", "*"), with("If-Match", p.get(t, k).header.Get("ETag"))} {
			a := p.do(t, "PUT", k, "second", append(headers, "X-Fence-Token", "34")...)
			a.refusedAs(t, 403, "AccessDenied", "ObjectExists")
			tellsFence(t, a, k, 34)
		}
		a := p.do(t, "PUT", k, "second", "X-Fence-Token", "34", "If-None-Match", "*") // the client's own condition: its own answer
		a.refusedAs(t, 412, "PreconditionFailed", "")
		p.put(t, k, 33, "second").stale(t, 34)
		p.holds(t, k, "first")
		p.do(t, "DELETE", k, "", "X-Fence-Token", "34").want(t, 204)
		p.put(t, k, 34, "again").want(t, 200)
	})
	t.Run("condition required", func(t *testing.T) {
		k := "/bkt/cas/k"
		p.put(t, k, 34, "x").refusedAs(t, 403, "AccessDenied", "ConditionRequired")
		p.marked(t, k, 0)
		etag := p.do(t, "PUT", k, "x", "X-Fence-Token", "34", "If-None-Match", "*").want(t, 200).header.Get("ETag")
		p.put(t, k, 35, "y").refusedAs(t, 403, "AccessDenied", "ConditionRequired")
		p.do(t, "DELETE", k, "", "X-Fence-Token", "35").refusedAs(t, 403, "AccessDenied", "ConditionRequired")
		p.marked(t, k, 34)
		p.do(t, "PUT", k, "y", "X-Fence-Token", "34", "If-Match", `"wrong"`).refusedAs(t, 412, "PreconditionFailed", "")
		p.holds(t, k, "x")
		p.do(t, "PUT", k, "y", "X-Fence-Token", "34", "If-Match", etag).want(t, 200)
		p.holds(t, k, "y")
	})
	t.Run("max advance", func(t *testing.T) {
		k := "/bkt/near/k"
		p.put(t, k, 100, "x").want(t, 200) // the first token is free
		for range 2 {
			for _, far := range []int64{111, 1 << 40, 1<<63 - 1} {
				a := p.put(t, k, far, "y").refusedAs(t, 403, "AccessDenied", "TokenTooFar")
				tellsFence(t, a, k, 100)
				p.do(t, "PUT", k+"?fence", "", "X-Fence-Token", token(far)).refusedAs(t, 403, "AccessDenied", "TokenTooFar")
				p.do(t, "GET", k, "", "X-Fence-Token", token(far))
			}
			p.marked(t, k, 100)
			p.crash(t)
		}
		p.put(t, k, 100, "still").want(t, 200)
		p.put(t, k, 110, "near").want(t, 200)
		p.put(t, k, 120, "nearer").want(t, 200)
		p.holds(t, k, "nearer")
	})
	t.Run("token off", func(t *testing.T) {
		k := "/bkt/free/k"
		for _, n := range []int64{34, 33, 0, 1} {
			a := p.put(t, k, n, token(n)).want(t, 200)
			if a.header.Get("X-Fence-Resource")+a.header.Get("X-Fence-Highest") != "" {
				t.Errorf("an unfenced key has fence headers: %v", a.header)
			}
			p.holds(t, k, token(n))
		}
		p.do(t, "GET", k+"?fence", "").want(t, 400)
		p.do(t, "PUT", k+"?fence", "", "X-Fence-Token", "34").want(t, 400)
		p.do(t, "PUT", k, "bad", "X-Fence-Token", "-1").refusedAs(t, 400, "InvalidArgument", "BadToken")
		p.holds(t, k, "1")
		p.do(t, "DELETE", k, "").want(t, 204)
	})
	t.Run("bucket writes", func(t *testing.T) {
		p.do(t, "PUT", "/denied", "", "X-Fence-Token", "34").refusedAs(t, 403, "AccessDenied", "BucketWritesDenied")
		p.do(t, "DELETE", "/denied", "").refusedAs(t, 403, "AccessDenied", "BucketWritesDenied")
		a := p.do(t, "PUT", "/guarded", "", "X-Fence-Token", "34").want(t, 200)
		if a.header.Get("X-Fence-Resource") != "guarded/" || a.header.Get("X-Fence-Highest") != "34" {
			t.Errorf("%v", a.header)
		}
		p.do(t, "DELETE", "/guarded", "", "X-Fence-Token", "33").stale(t, 34)
		p.do(t, "DELETE", "/guarded", "").stale(t, 34)
		p.put(t, "/guarded/k", 1, "x").want(t, 200) // the bucket's fence is not its objects'
		p.do(t, "DELETE", "/guarded/k", "", "X-Fence-Token", "1").want(t, 204)
		p.do(t, "DELETE", "/guarded", "", "X-Fence-Token", "34").want(t, 204)
		p.do(t, "PUT", "/guarded", "", "X-Fence-Token", "33").stale(t, 34)
		p.do(t, "PUT", "/allowed", "").want(t, 200)
	})
}

// ownLock takes the proxy's own lock on a resource whose mark is 35, keeps it over a kill of the proxy, and gives it back.
func (p *proxy) ownLock(t *testing.T, k string) {
	t.Helper()
	const id = "a-lease-of-the-test-0001"
	p.do(t, "POST", k+"?fence", "").want(t, 400)
	taken := p.do(t, "POST", k+"?fence&lease=30s", "", "X-Fence-Lease", id, "X-Fence-Holder", "a").want(t, 200)
	if !strings.Contains(string(taken.body), `"token":36,`) {
		t.Errorf("the lock was taken with %s; want token 36", taken.body)
	}
	p.do(t, "POST", k+"?fence&lease=30s", "", "X-Fence-Holder", "b").want(t, 423)
	p.do(t, "PUT", k+"?fence&lease=another-lease-of-the-test", "").want(t, 412)
	p.crash(t)
	p.do(t, "POST", k+"?fence&lease=30s", "", "X-Fence-Holder", "b").want(t, 423)
	p.do(t, "PUT", k+"?fence&lease="+id, "").want(t, 200)
	p.do(t, "DELETE", k+"?fence&lease="+id, "").want(t, 204)
	taken = p.do(t, "POST", k+"?fence&lease=30s", "", "X-Fence-Lease", id+"2", "X-Fence-Holder", "b").want(t, 200)
	if !strings.Contains(string(taken.body), `"token":37,`) {
		t.Errorf("the next holder has %s; want token 37", taken.body)
	}
	p.do(t, "DELETE", k+"?fence&lease="+id+"2", "").want(t, 204)
}

// TestAnnouncements: ?fence shows and raises; reads raise where a token comes with them, and lists where their prefix is one resource.
func TestAnnouncements(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const k = "/bkt/jobs/1/k"
	if f := p.fence(t, k); f != (fence{Resource: "bkt/jobs/1"}) {
		t.Errorf("a fence never raised is %+v", f)
	}
	p.put(t, k, 0, "x").want(t, 200)
	p.do(t, "PUT", k+"?fence", "").refusedAs(t, 403, "AccessDenied", "TokenRequired")
	a := p.do(t, "PUT", k+"?fence", "", "X-Fence-Token", "34").want(t, 200)
	if string(a.body) != `{"resource":"bkt/jobs/1","highest":34,"holder":""}`+"\n" {
		t.Errorf("an announcement is answered %q", a.body)
	}
	p.put(t, k, 33, "stale").stale(t, 34)
	p.do(t, "PUT", k+"?fence", "", "X-Fence-Token", "33").stale(t, 34)
	a = p.do(t, "PUT", "/~fence/35;holder=h/bkt/jobs/1/any?fence", "").want(t, 200)
	if f := a.fence(t); f != (fence{"bkt/jobs/1", 35, "h"}) {
		t.Errorf("announced: %+v", f)
	}
	p.crash(t)
	if f := p.fence(t, k); f != (fence{"bkt/jobs/1", 35, "h"}) {
		t.Errorf("after a kill: %+v", f)
	}
	p.absent(t, "/bkt/jobs/1/any")
	p.ownLock(t, k)
	p.marked(t, k, 35) // to lock is not to raise

	for i, c := range []struct {
		method, target string
		status         int
		key            string
		raises         bool
	}{
		{"GET", "/bkt/jobs/2/k", 404, "/bkt/jobs/2/k", true},
		{"HEAD", "/bkt/jobs/3/k", 404, "/bkt/jobs/3/k", true},
		{"GET", "/bkt?list-type=2&prefix=jobs/4/", 200, "/bkt/jobs/4/k", true},
		{"GET", "/bkt/?list-type=2&prefix=jobs/5/deep&delimiter=/", 200, "/bkt/jobs/5/k", true},
		{"GET", "/bkt?prefix=jobs%2F6%2F", 200, "/bkt/jobs/6/k", true},
		{"GET", "/bkt?list-type=2&prefix=jobs/7", 200, "/bkt/jobs/7/k", false}, // jobs/77/ begins so, too
		{"GET", "/bkt?list-type=2&prefix=jobs/", 200, "/bkt/jobs/8/k", false},
		{"GET", "/bkt?list-type=2", 200, "/bkt/jobs/9/k", false},
		{"GET", "/bkt?list-type=2&prefix=own/k", 200, "/bkt/own/k", false}, // own/kk begins so, too
		{"HEAD", "/bkt", 200, "/bkt/jobs/10/k", false},
		{"GET", "/", 200, "/bkt/jobs/11/k", false},
		{"GET", "/bkt?location", 200, "/bkt/jobs/12/k", false},
		{"GET", "/bkt/plain/k", 404, "/bkt/plain/k", false},
		{"GET", "/bkt/free/k", 404, "/bkt/jobs/13/k", false},
		{"GET", "/bkt/jobs/14/k?fence", 200, "/bkt/jobs/14/k", false}, // to look is not to raise
	} {
		if a := p.do(t, c.method, c.target, "", "X-Fence-Token", "40"); a.status != c.status {
			t.Errorf("%d: %s %s: %d %s, want %d", i, c.method, c.target, a.status, a.body, c.status)
		}
		highest := int64(0)
		if c.raises {
			highest = 40
		}
		p.marked(t, c.key, highest)
		if c.raises {
			p.put(t, c.key, 39, "stale").stale(t, 40)
		} else {
			p.put(t, c.key, 39, "in").want(t, 200)
		}
	}
	p.do(t, "GET", k, "", "X-Fence-Token", "36").want(t, 200)
	p.put(t, k, 35, "stale").stale(t, 36)
	a = p.do(t, "GET", k, "", "X-Fence-Token", "35").want(t, 200) // a stale reader is served, and told
	tellsFence(t, a, k, 36)
	p.crash(t)
	p.marked(t, k, 36)
}
