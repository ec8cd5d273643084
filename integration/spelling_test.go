package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// long is a key of that many bytes that a file system can hold.
func long(n int) string {
	return strings.Repeat(strings.Repeat("k", 199)+"/", n/200) + strings.Repeat("k", n%200)
}

// spellings are request targets below /bkt/, as they stand in the request line, and the keys that they name. An empty key says that the
// store cannot hold what is named apart from another, so that it must be refused.
var spellings = []struct{ target, key string }{
	{"/bkt/a/b", "a/b"},
	{"/bkt/a%2Fb", "a/b"},
	{"/bkt/a%2fb", "a/b"},
	{"/bkt/%61/%62", "a/b"},
	{"/bkt%2Fa%2Fb", "a/b"},
	{"/%62kt/a/b", "a/b"},
	{"http://elsewhere.localhost/bkt/a/b", "a/b"},
	{"HTTP://user@127.0.0.1:1/bkt/a/b", "a/b"},
	{"/bkt/a/b?", "a/b"},
	{"/bkt/a//b", ""},
	{"/bkt/a%2F/b", ""},
	{"/bkt/a%2F%2Fb", ""},
	{"/bkt//a/b", ""},
	{"/bkt/%2Fa/b", ""},
	{"/bkt/a/b/", ""},
	{"/bkt/a/b%2F", ""},
	{"/bkt/./a/b", ""},
	{"/bkt/a/./b", ""},
	{"/bkt/a/%2e/b", ""},
	{"/bkt/a/b/.", ""},
	{"/bkt/a/c/../b", ""},
	{"/bkt/a/%2e%2e/a/b", ""},
	{"/bkt/a/.%2E/a/b", ""},
	{"/bkt/a/c%2F..%2Fb", ""},
	{"/bkt/../bkt/a/b", ""},
	{"/bkt/../../objects/bkt/a/b", ""},
	{"/bkt/..", ""},
	{"/bkt/.", ""},
	{"/bkt/../../outside/canary", ""},
	{"/bkt/%2e%2e/%2e%2e/outside/canary", ""},
	{"/bkt/..%2F..%2Foutside%2Fcanary", ""},
	{"/../bkt/a/b", ""},
	{"/./bkt/a/b", ""},
	{"//bkt/a/b", ""},
	{"/%2Fbkt/a/b", ""},
	{"///bkt/a/b", ""},
	{"/.fenceproxy/registry", ""},
	{"/.fenceproxy/tmp/x", ""},
	{"/%2efenceproxy/registry", ""},
	{"/~fence%2F99/bkt/a/b", ""},
	{"/~Fence/99/bkt/a/b", ""},
	{"/bkt/link/secret", ""},
	{"/bkt/filelink", ""},
	{"/bkt/a/b%00", ""},
	{"/bkt/a/b%00c", ""},
	{"/bkt/a/b%ff", ""},
	{"/bkt/a/%c0%ae%c0%ae/b", ""}, // .. as nobody may spell it
	{"/bkt/a/b/c", ""},            // below an object
	{"/bkt/a", ""},                // above one
	{"/bkt/a/b;c", "a/b;c"},
	{"/bkt/a/b%3Bc", "a/b;c"},
	{"/bkt/a/b;", "a/b;"},
	{"/bkt/p+q", "p+q"},
	{"/bkt/p%2Bq", "p+q"},
	{"/bkt/p%2bq", "p+q"},
	{"/bkt/p%20q", "p q"},
	{"/bkt/p%2520q", "p%20q"},
	{"/bkt/p%252Fq", "p%2Fq"},
	{"/bkt/%C3%A9", "\u00e9"},
	{"/bkt/\u00e9", "\u00e9"},
	{"/bkt/e%CC%81", "e\u0301"}, // looks the same, in another normal form
	{"/bkt/K", "K"},
	{"/bkt/k", "k"},
	{"/bkt/%E2%84%AA", "\u212a"}, // the Kelvin sign, which folds to k
	{"/bkt/...", "..."},
	{"/bkt/..a", "..a"},
	{"/bkt/a.", "a."},
	{"/bkt/~fence/34/x", "~fence/34/x"}, // a token only at the front
	{"/bkt/back%5Cslash", `back\slash`},
	{"/bkt/back%5C..%5Cslash", `back\..\slash`},
	{"/bkt/bkt/a/b", "bkt/a/b"},
	{"/bkt/q%3Ffence", "q?fence"},
	{"/bkt/star*", "star*"},
	{"/bkt/%0Anewline", "\nnewline"},
	{"/bkt/" + long(1024), long(1024)},
	{"/bkt/" + long(1023) + "%6B", long(1024)},
	{"/bkt/" + long(1025), ""},
	{"/bkt/" + long(1024) + "%6B", ""},
	{"/bkt/" + strings.Repeat("w", 255), strings.Repeat("w", 255)},
	{"/bkt/" + strings.Repeat("w", 256), ""},
}

// TestSpellings: traps 2 and 5. Two spellings are one object and one fence, or two of both, or refused. There is no way round the fence, and nothing
// outside the bucket is touched.
func TestSpellings(t *testing.T) {
	t.Parallel()
	p := newProxy(t, plainConfig)
	outside := filepath.Join(p.dir, "outside")
	for _, dir := range []string{outside, p.root, filepath.Join(p.root, "bkt")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mustWrite(t, filepath.Join(outside, "canary"), "sings")
	mustWrite(t, filepath.Join(outside, "secret"), "kept")
	mustWrite(t, filepath.Join(p.dir, "canary"), "sings")
	mustWrite(t, filepath.Join(p.root, "canary"), "sings")
	for link, to := range map[string]string{"link": outside, "filelink": filepath.Join(outside, "secret")} {
		if err := os.Symlink(to, filepath.Join(p.root, "bkt", link)); err != nil {
			t.Fatal(err)
		}
	}
	p.start(t)
	around := tree(t, p.dir, "objects/bkt", "data")
	parent := namesIn(t, filepath.Dir(p.dir))

	// Every spelling writes what names it: it is let in, or refused with 400.
	var good []string
	keyOf := map[string]string{}
	for _, s := range spellings {
		keyOf[s.target] = s.key
		a := p.raw(t, "PUT", s.target, s.target)
		switch {
		case s.key == "" && (a.status != 400 || a.code() == ""):
			t.Errorf("PUT %q: %d %.200s, want 400", s.target, a.status, a.body)
		case s.key != "" && a.status != 200:
			t.Errorf("PUT %q: %d %.200s, want 200", s.target, a.status, a.body)
		case s.key != "":
			good = append(good, s.target)
		}
		for _, method := range []string{"DELETE", "GET"} { // neither does anything to what is refused
			if s.key == "" {
				if a := p.raw(t, method, s.target, ""); a.status/100 == 2 && len(a.body) > 0 || a.status/100 == 5 {
					t.Errorf("%s %q: %d %.200s", method, s.target, a.status, a.body)
				}
			}
		}
	}
	onlyKeys(t, filepath.Join(p.root, "bkt"), keyOf)

	// Fence one spelling after the other. Those that read what it wrote are fenced by it, and no others.
	for i, fenced := range good {
		newer, older := fmt.Sprintf("X-Fence-Token: %d", 100+i), fmt.Sprintf("X-Fence-Token: %d", 99+i)
		p.raw(t, "PUT", fenced, "by "+fenced, newer).want(t, 200)
		for _, other := range good {
			a := p.raw(t, "GET", other, "")
			reads := string(a.body) == "by "+fenced
			marked := a.header.Get("X-Fence-Highest") == token(100+int64(i))
			if same := keyOf[other] == keyOf[fenced]; reads != same || marked != same {
				t.Errorf("%.80q reads what %.80q wrote: %v; is fenced by its token: %v; is the same key: %v", other, fenced, reads, marked, same)
			}
			if reads {
				p.raw(t, "PUT", other, "stale", older).stale(t, 100+int64(i))
				p.raw(t, "DELETE", other, "", older).stale(t, 100+int64(i))
			}
		}
		if other := good[(i+1)%len(good)]; keyOf[other] != keyOf[fenced] {
			p.raw(t, "PUT", other, "of another", older).want(t, 200)
		}
	}
	if now := tree(t, p.dir, "objects/bkt", "data"); now != around {
		t.Errorf("something around the bucket was touched:\n%s\nwas\n%s", now, around)
	}
	if now := namesIn(t, filepath.Dir(p.dir)); !slices.Equal(now, parent) {
		t.Errorf("beside the proxy's directory there is %q, was %q", now, parent)
	}
	onlyKeys(t, filepath.Join(p.root, "bkt"), keyOf)
}

// onlyKeys checks that the files below a bucket are objects with the keys that were asked for, and the two links.
func onlyKeys(t *testing.T, bucket string, keyOf map[string]string) {
	t.Helper()
	allowed := map[string]bool{"link": true, "filelink": true}
	for _, key := range keyOf {
		allowed[key] = key != ""
	}
	err := filepath.WalkDir(bucket, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		key, err := filepath.Rel(bucket, path)
		if !allowed[key] {
			t.Errorf("there is %q, which nobody may have made", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(filepath.Join(bucket, "link")); err != nil || filepath.Base(to) != "outside" {
		t.Errorf("the link is %q, %v", to, err)
	}
}

// TestHostDoesNotMatter: the same path is the same object, whatever the request says of its host, or it is refused (TestAttackFromABrowserOnTheDataPort).
func TestHostDoesNotMatter(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	hosts := []string{"127.0.0.1", "localhost:9000", "bkt.localhost", "s3.eu-west-1.localhost", "[::1]:1", "10.1.2.3"}
	for i, host := range hosts {
		p.raw(t, "PUT", "/bkt/k", host, "Host: "+host, fmt.Sprintf("X-Fence-Token: %d", 34+i)).want(t, 200)
		for _, other := range hosts {
			p.raw(t, "PUT", "/bkt/k", "stale", "Host: "+other, fmt.Sprintf("X-Fence-Token: %d", 33+i)).stale(t, int64(34+i))
			p.raw(t, "PUT", "http://"+other+"/bkt/k", "stale", "Host: x", fmt.Sprintf("X-Fence-Token: %d", 33+i)).stale(t, int64(34+i))
			if got := string(p.raw(t, "GET", "/bkt/k", "", "Host: "+other).body); got != host {
				t.Errorf("host %s reads %q, want what %s wrote", other, got, host)
			}
		}
	}
	for _, header := range []string{"X-Forwarded-Host: x", "X-Forwarded-Prefix: /other", "X-Original-URL: /bkt/other", "X-Rewrite-URL: /bkt/other", "X-HTTP-Method-Override: GET"} {
		p.raw(t, "PUT", "/bkt/k", "stale", header, "X-Fence-Token: 1").stale(t, int64(33+len(hosts)))
	}
	p.absent(t, "/bkt/other")
}

// TestNoRequestLineIsAWayRound: targets that are none, and methods that S3 does not have, change nothing.
func TestNoRequestLineIsAWayRound(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/a", 34, "of 34").want(t, 200)
	before := tree(t, p.root)
	for _, target := range []string{"*", "bkt/a", "http:bkt/a", "http://x", "http://x?acl", "/bkt/%zz", "/bkt/a%", "/bkt/a b", "/bkt/b#c", "", "/", "/?x=y", "/~fence/34", "/~fence/34/", "/~fence"} {
		c := p.dial(t)
		c.say("PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: close\r\n\r\nstale", target)
		if a, _, err := c.answer("PUT"); err == nil && a.status < 400 && target != "/bkt/b#c" {
			t.Errorf("PUT %q: %d %s", target, a.status, a.body)
		}
	}
	// Go takes a # in a request line for a part of the path: that is a key of its own then.
	if a, err := p.try("GET", "/bkt/b%23c", ""); err == nil && a.status == 200 {
		p.do(t, "DELETE", "/bkt/b%23c", "").want(t, 204)
	}
	for _, method := range []string{"PATCH", "POST", "put", "Put", "COPY", "MOVE", "MKCOL", "TRACE", "OPTIONS", "CONNECT", "LINK"} {
		for _, target := range []string{"/bkt/a", "/bkt", "/"} {
			c := p.dial(t)
			c.say("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: close\r\n\r\nstale", method, target)
			if a, _, err := c.answer(method); err == nil && a.status < 400 {
				t.Errorf("%s %s: %d %s", method, target, a.status, a.body)
			}
		}
	}
	// Two requests in what one proxy takes for one: nobody may be made to think that the second one is another client's.
	for _, smuggled := range []string{
		"PUT /bkt/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nstale!",
		"PUT /bkt/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nstale\r\n0\r\n\r\n",
		"PUT /bkt/a HTTP/1.1\r\nHost: localhost\r\nContent-Length : 5\r\n\r\nstale",
		"PUT /bkt/a HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token\r\n : 35\r\nContent-Length: 5\r\n\r\nstale",
		"PUT /bkt/a HTTP/1.1\r\nContent-Length: 5\r\n\r\nstale",
		"PUT /bkt/a HTTP/0.9\r\n\r\nstale",
	} {
		c := p.dial(t)
		c.say("%s", smuggled)
		if a, _, err := c.answer("PUT"); err == nil && a.status < 400 {
			t.Errorf("%q: %d %s", smuggled, a.status, a.body)
		}
		c.Close()
	}
	if after := tree(t, p.root); after != before {
		t.Errorf("something was written:\n%s\nwas\n%s", after, before)
	}
	p.marked(t, "/bkt/a", 34)
	if _, err := os.Stat(filepath.Join(p.root, "bkt", "b")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a key was cut off at its #")
	}
}
