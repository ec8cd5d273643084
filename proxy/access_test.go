package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/proxy/sigv4"
)

const testSecret = "a secret of the test"

// signs sends requests as an access key.
func (f *fixture) signs(key, method, path, body string, headers ...string) (*http.Response, string) {
	f.Helper()
	r := f.request(method, path, body, headers...)
	if r.Header.Get("X-Amz-Content-Sha256") == "" {
		r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	}
	who := aws.Credentials{AccessKeyID: key, SecretAccessKey: testSecret, SessionToken: r.Header.Get("X-Amz-Security-Token")}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err := signer.SignHTTP(f.Context(), who, r, r.Header.Get("X-Amz-Content-Sha256"), "s3", "us-east-1", time.Now()); err != nil {
		f.Fatal(err)
	}
	return f.send(r)
}

func restricted(access map[string]*rules.Access) func(*Config) {
	return func(c *Config) {
		c.Signatures = sigv4.New(func(string) (string, bool) { return testSecret, true }, sigv4.Options{})
		c.Access = func(key string) *rules.Access { return access[key] }
	}
}

// TestAccess: what an access key may not do is refused before the fence hears of it, and no answer tells where a fence stands.
func TestAccess(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixtureWith(t, restricted(map[string]*rules.Access{
		"AKIDALL":    nil,
		"AKIDBUCKET": {Buckets: []string{"mine", "team-*"}},
		"AKIDPREFIX": {Buckets: []string{"mine"}, Prefixes: []string{"jobs/", "tmp/a"}},
		"AKIDREADER": {ReadOnly: true},
	}), Backend{Handler: b})
	for _, c := range []struct {
		key, method, path, header string
		ok                        bool
	}{
		{"AKIDALL", "PUT", "/any/k", "", true},
		{"AKIDBUCKET", "PUT", "/mine/k", "", true},
		{"AKIDBUCKET", "PUT", "/team-7/k", "", true},
		{"AKIDBUCKET", "PUT", "/other/k", "", false},
		{"AKIDBUCKET", "GET", "/other/k", "", false},
		{"AKIDBUCKET", "GET", "/other?list-type=2", "", false},
		{"AKIDBUCKET", "PUT", "/other", "", false},
		{"AKIDBUCKET", "PUT", "/mine", "", true},
		{"AKIDBUCKET", "PUT", "/mine/copy", "X-Amz-Copy-Source: other/k", false},
		{"AKIDBUCKET", "PUT", "/mine/copy", "X-Amz-Copy-Source: /mine/k", true},
		{"AKIDPREFIX", "PUT", "/mine/jobs/1", "", true},
		{"AKIDPREFIX", "PUT", "/mine/jobs", "", false},
		{"AKIDPREFIX", "PUT", "/mine/other", "", false},
		{"AKIDPREFIX", "GET", "/mine/other", "", false},
		{"AKIDPREFIX", "GET", "/mine/jobs/../other", "", false},
		{"AKIDPREFIX", "PUT", "/mine/jobs/copy", "X-Amz-Copy-Source: /mine/secret", false},
		{"AKIDPREFIX", "PUT", "/mine/jobs/copy", "X-Amz-Copy-Source: /mine/jobs%2F1?versionId=3", true},
		{"AKIDPREFIX", "GET", "/mine?list-type=2&prefix=jobs/7", "", true},
		{"AKIDPREFIX", "GET", "/mine?list-type=2&prefix=job", "", false},
		{"AKIDPREFIX", "GET", "/mine?list-type=2", "", false},
		{"AKIDPREFIX", "GET", "/mine?uploads", "", false},
		{"AKIDPREFIX", "GET", "/mine?uploads&prefix=jobs/", "", true},
		{"AKIDPREFIX", "GET", "/mine?delete&list-type=2", "", false},
		{"AKIDPREFIX", "GET", "/mine?acl&versions&prefix=jobs/", "", false},
		{"AKIDPREFIX", "GET", "/mine?location&list-type=2&uploads", "", false},
		{"AKIDPREFIX", "GET", "/mine?list-type=2&prefix=jobs/&prefix=", "", false},
		{"AKIDPREFIX", "GET", "/mine?policy", "", false},
		{"AKIDPREFIX", "PUT", "/mine/jobs/copy", "X-Amz-Copy-Source: //mine/jobs/1", false},
		{"AKIDPREFIX", "GET", "/mine?location", "", true},
		{"AKIDPREFIX", "HEAD", "/mine", "", true},
		{"AKIDPREFIX", "DELETE", "/mine", "", false},
		{"AKIDPREFIX", "PUT", "/mine?tagging", "", false},
		{"AKIDPREFIX", "PUT", "/mine/other?fence", "", false},
		{"AKIDPREFIX", "GET", "/mine/other?fence", "", false},
		{"AKIDREADER", "GET", "/any/k", "", true},
		{"AKIDREADER", "GET", "/any/k?fence", "", true},
		{"AKIDREADER", "PUT", "/any/k", "", false},
		{"AKIDREADER", "DELETE", "/any/k", "", false},
		{"AKIDREADER", "POST", "/any/k?uploads", "", false},
		{"AKIDREADER", "PUT", "/any/k?fence", "", false},
		{"AKIDREADER", "POST", "/any?delete", "", false},
		{"AKIDREADER", "PUT", "/any", "", false},
	} {
		_, before := b.last()
		resp, body := f.signs(c.key, c.method, c.path, "", c.header, "X-Fence-Token: 34")
		_, after := b.last()
		if c.ok {
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s %s %s: %d %s, want 200", c.key, c.method, c.path, resp.StatusCode, body)
			}
			continue
		}
		if resp.StatusCode != http.StatusForbidden || after != before || c.method != "HEAD" && !strings.Contains(body, "<Code>AccessDenied</Code>") {
			t.Errorf("%s %s %s %s: %d %s, and the backend was asked %d times; want 403 and none", c.key, c.method, c.path, c.header, resp.StatusCode, body, after-before)
		}
		for name := range resp.Header {
			if strings.HasPrefix(name, "X-Fence-") {
				t.Errorf("%s %s %s: denied, and told %s", c.key, c.method, c.path, name)
			}
		}
	}
	for _, resource := range []string{"other/k", "mine/other", "mine/copy2", "mine/jobs", "any/read"} {
		if e, _ := f.fence.Highest(t.Context(), resource); e.Token != 0 {
			t.Errorf("a request that was denied has raised %s to %d", resource, e.Token)
		}
	}
}

// TestReadOnlyRaisesNothing: a token on a read of a key that may only read shuts no writer out.
func TestReadOnlyRaisesNothing(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, restricted(map[string]*rules.Access{"AKIDREADER": {ReadOnly: true}}), Backend{Handler: &watcher{}})
	f.signs("AKIDWRITER", "PUT", "/b/k", "x", "X-Fence-Token: 3")
	resp, _ := f.signs("AKIDREADER", "GET", "/b/k", "", "X-Fence-Token: 34")
	if resp.StatusCode != 200 || resp.Header.Get("X-Fence-Highest") != "3" {
		t.Errorf("%d, X-Fence-Highest %s; want 200 and 3", resp.StatusCode, resp.Header.Get("X-Fence-Highest"))
	}
}

// TestBatchAccess: a batch is judged key by key, and the fence of a key out of reach is not told.
func TestBatchAccess(t *testing.T) {
	t.Parallel()
	backend := &deletes{}
	f := newFixtureWith(t, restricted(map[string]*rules.Access{"AKIDPREFIX": {Prefixes: []string{"jobs/"}}}), Backend{Handler: backend})
	f.signs("AKIDALL", "PUT", "/b/secret", "x", "X-Fence-Token: 77")
	_, body := f.signs("AKIDPREFIX", "POST", "/b?delete", "<Delete><Object><Key>jobs/1</Key></Object><Object><Key>secret</Key></Object></Delete>", "X-Fence-Token: 34")
	if !strings.Contains(body, "<Key>secret</Key><Code>AccessDenied</Code>") || strings.Contains(body, "77") {
		t.Errorf("the answer is %s", body)
	}
	if !strings.Contains(backend.body, "jobs/1") || strings.Contains(backend.body, "secret") {
		t.Errorf("the backend was sent %s", backend.body)
	}
}

// deletes is a backend that says of every batch that it is done.
type deletes struct{ body string }

func (b *deletes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	if _, err := io.Copy(&text, r.Body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	b.body = text.String()
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodPost {
		_, _ = w.Write([]byte("<DeleteResult/>"))
	}
}

// TestExpectedOwner: a store in this process belongs to the proxy, and to who asks.
func TestExpectedOwner(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, restricted(nil), Backend{Handler: &watcher{}})
	for owner, want := range map[string]int{"AKIDME": 200, "fenceproxy": 200, "123456789012": 403} {
		if resp, body := f.signs("AKIDME", "GET", "/b/k", "", "X-Amz-Expected-Bucket-Owner: "+owner); resp.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", owner, resp.StatusCode, body, want)
		}
	}
}

// TestTwoSources: of two sources the one that was judged might not be the one that a store takes.
func TestTwoSources(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixtureWith(t, restricted(map[string]*rules.Access{"AKIDPREFIX": {Prefixes: []string{"jobs/"}}}), Backend{Handler: b})
	for _, key := range []string{"AKIDPREFIX", "AKIDALL"} {
		resp, body := f.signs(key, "PUT", "/mine/jobs/copy", "", "X-Amz-Copy-Source: mine/jobs/1", "X-Amz-Copy-Source: mine/secret", "X-Fence-Token: 34")
		if _, n := b.last(); resp.StatusCode != 400 || n != 0 {
			t.Errorf("%s: %d %s, and the backend was asked %d times", key, resp.StatusCode, body, n)
		}
	}
}

// TestTokenAddedToAPresignedURL: who was given a URL may do what it says, and not raise a fence with it: a token counts only where the signature
// covers it.
func TestTokenAddedToAPresignedURL(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixtureWith(t, restricted(nil), Backend{Handler: b})
	presign := func(path string, headers ...string) *http.Request {
		r := f.request("GET", path, "", headers...)
		q := r.URL.Query()
		q.Set("X-Amz-Expires", "60")
		r.URL.RawQuery = q.Encode()
		url, signed, err := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).PresignHTTP(
			f.Context(), aws.Credentials{AccessKeyID: "AKIDME", SecretAccessKey: testSecret}, r, "UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r = f.request("GET", strings.TrimPrefix(url, f.url), "")
		for name, values := range signed {
			if name != "Host" {
				r.Header[name] = values
			}
		}
		return r
	}
	for name, r := range map[string]*http.Request{"token": presign("/b/k"), "holder": presign("/b/k?X-Fence-Token=34")} {
		r.Header.Set("X-Fence-"+strings.ToUpper(name[:1])+name[1:], "9223372036854775807")
		if resp, body := f.send(r); resp.StatusCode != 400 || resp.Header.Get(headerError) != malformedToken {
			t.Errorf("a %s that was added: %d %s", name, resp.StatusCode, body)
		}
	}
	if e, _ := f.fence.Highest(t.Context(), "b/k"); e.Token != 0 {
		t.Errorf("it has raised the fence to %d", e.Token)
	}
	if resp, body := f.send(presign("/b/k", "X-Fence-Token: 34")); resp.StatusCode != 200 {
		t.Errorf("a token that is signed as a header: %d %s", resp.StatusCode, body)
	}
	if resp, body := f.send(presign("/b/k?X-Fence-Token=35")); resp.StatusCode != 200 {
		t.Errorf("a token that is signed in the query: %d %s", resp.StatusCode, body)
	}
	if e, _ := f.fence.Highest(t.Context(), "b/k"); e.Token != 35 {
		t.Errorf("the fence stands at %d, want 35", e.Token)
	}
}

// TestPreflightCarriesNothingElse: nobody has signed a preflight, so a store gets the browser's question and no more, and no fence hears of it.
func TestPreflightCarriesNothingElse(t *testing.T) {
	t.Parallel()
	b := &watcher{}
	f := newFixtureWith(t, restricted(nil), Backend{Handler: b})
	f.want(200, "", "OPTIONS", "/b/k?acl&x=y", "", "Origin: http://example.com", "Access-Control-Request-Method: PUT", "X-Http-Method-Override: DELETE", "X-Amz-Acl: public-read", "X-Fence-Token: 34")
	got, _ := b.last()
	if got.method != "OPTIONS" || got.query != "" || got.header.Get("Origin") == "" || got.header.Get("Access-Control-Request-Method") != "PUT" {
		t.Errorf("the backend got %s ?%s %v", got.method, got.query, got.header)
	}
	for _, name := range []string{"X-Http-Method-Override", "X-Amz-Acl", headerToken} {
		if _, ok := got.header[name]; ok {
			t.Errorf("the backend got %s", name)
		}
	}
	if e, _ := f.fence.Highest(t.Context(), "b/k"); e.Token != 0 {
		t.Errorf("a preflight has raised the fence to %d", e.Token)
	}
}
