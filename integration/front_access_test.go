package integration

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// accessConfig has keys with all kinds of bounds.
const accessConfig = `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: DIR/data
backends:
  local: {type: file, root: DIR/objects}
buckets:
  - {name: "*", rules: [{match: "jobs/{job}/**", resource: "jobs/{job}"}]}
access_keys:
  - {id: ALL, secret: the secret of ALL}
  - {id: JOB7, secret_file: DIR/secret, buckets: [team], prefixes: [jobs/7/, open]}
  - {id: LOGS, secret: the secret of LOGS, buckets: ["logs-*"]}
  - {id: READ, secret: the secret of READ, read_only: true}
  - {id: READ7, secret: the secret of READ7, prefixes: [jobs/7/], read_only: true}
limits: {raise_wait: 1m}
`

// An accessTest is a proxy with some objects, each of the first token.
type accessTest struct {
	*testing.T
	p   *proxy
	all *signer
}

func newAccessTest(t *testing.T) *accessTest {
	t.Helper()
	p := newProxy(t, accessConfig)
	replaceFile(t, p.dir+"/secret", secretOf("JOB7")+"\n")
	p.start(t)
	a := &accessTest{t, p, p.signer(t, "ALL")}
	for _, bucket := range []string{"/team", "/other", "/logs-1"} {
		a.all.do("PUT", bucket, "").want(t, 200)
		for _, key := range []string{"/jobs/7/a", "/jobs/8/a", "/open/a"} {
			a.all.do("PUT", bucket+key, "of 34", "X-Fence-Token", "34").want(t, 200)
		}
	}
	return a
}

// marks are all the fences that there are.
func (a *accessTest) marks() string {
	a.Helper()
	list, err := send(fresh, a.p.admin, "GET", "/api/v1/fences?limit=1000", nil)
	must(a.T, "list the fences", err)
	return string(list.want(a.T, 200).body)
}

// denied checks that a request is refused, learns nothing of the fence and does nothing to it, or to the objects.
func (a *accessTest) denied(key, method, path, body string, headers ...string) {
	a.Helper()
	marks, before := a.marks(), tree(a.T, a.p.root)
	got := a.p.signer(a.T, key).do(method, path, body, headers...)
	what := fmt.Sprintf("%s: %s %s %q", key, method, path, headers)
	if got.status != 403 || method != "HEAD" && got.code() != "AccessDenied" {
		a.Errorf("%s: %d %s, want 403 AccessDenied", what, got.status, got.body)
	}
	for name := range got.header {
		if strings.HasPrefix(name, "X-Fence-") {
			a.Errorf("%s: the answer has %s: %s", what, name, got.header.Get(name))
		}
	}
	for _, word := range []string{"34", "jobs/{job}"} {
		if method != "HEAD" && strings.Contains(got.xml().Message, word) {
			a.Errorf("%s: the answer tells of the fence: %s", what, got.body)
		}
	}
	if now := a.marks(); now != marks {
		a.Errorf("%s: the fences were\n%sand are\n%s", what, marks, now)
	}
	if now := tree(a.T, a.p.root); now != before {
		a.Errorf("%s: the objects were\n%sand are\n%s", what, before, now)
	}
}

// TestOutOfReach: whatever a key may not do is refused before the fence, by every way that a token travels.
func TestOutOfReach(t *testing.T) {
	t.Parallel()
	a := newAccessTest(t)
	for _, object := range []string{"/other/jobs/7/a", "/team/jobs/8/a", "/team/jobs/70/a", "/team/jobs/7", "/team/jobs/", "/team/ope", "/logs-1/open/a", "/none/jobs/7/a"} {
		for _, method := range []string{"PUT", "GET", "HEAD", "DELETE"} {
			a.denied("JOB7", method, object, "", "X-Fence-Token", "99")
		}
		a.denied("JOB7", "PUT", object+"?fence", "", "X-Fence-Token", "99")
		a.denied("JOB7", "GET", object+"?fence", "")
		a.denied("JOB7", "POST", object+"?uploads", "", "X-Fence-Token", "99")
		a.denied("JOB7", "PUT", object+"?partNumber=1&uploadId=x", "part", "X-Fence-Token", "99")
		a.denied("JOB7", "GET", object+"?uploadId=x", "")
		a.denied("JOB7", "POST", object+"?uploadId=x", "<CompleteMultipartUpload/>", "X-Fence-Token", "99")
		a.denied("JOB7", "DELETE", object+"?uploadId=x", "", "X-Fence-Token", "99")
		a.denied("JOB7", "PUT", object+"?tagging", "<Tagging/>", "X-Fence-Token", "99")
		a.denied("JOB7", "GET", object+"?attributes", "", "X-Amz-Object-Attributes", "ETag")
	}
	a.denied("JOB7", "PUT", "/~fence/99/other/jobs/7/a", "x")
	a.denied("JOB7", "PUT", "/other/jobs/7/a", "x", "X-Amz-Security-Token", "fence=99")
	a.denied("JOB7", "PUT", "/~fence/99/team/jobs/8/a", "x")
	a.denied("JOB7", "PUT", "/team/jobs/7/../8/a", "x", "X-Fence-Token", "99")
	a.denied("JOB7", "PUT", "/team/jobs%2F8%2Fa", "x", "X-Fence-Token", "99")
	a.denied("LOGS", "PUT", "/team/jobs/7/a", "x", "X-Fence-Token", "99")
	a.denied("LOGS", "PUT", "/logs/jobs/7/a", "x", "X-Fence-Token", "99")
}

// TestBucketsOutOfReach: a key with prefixes has no say in a bucket as a whole, and sees no list of more than it may read.
func TestBucketsOutOfReach(t *testing.T) {
	t.Parallel()
	a := newAccessTest(t)
	for _, query := range []string{
		"", "?list-type=2", "?list-type=2&prefix=", "?list-type=2&prefix=jobs/", "?prefix=jobs%2F8%2F", "?prefix=jobs/7", "?list-type=2&delimiter=/", "?uploads",
		"?uploads&prefix=jobs/", "?versions", "?versions&prefix=o",
	} {
		a.denied("JOB7", "GET", "/team"+query, "", "X-Fence-Token", "99")
		a.denied("JOB7", "GET", "/other"+query, "", "X-Fence-Token", "99")
	}
	a.denied("JOB7", "GET", "/other?list-type=2&prefix=jobs/7/", "", "X-Fence-Token", "99")
	for _, bucket := range []string{"/team", "/other", "/new"} {
		a.denied("JOB7", "PUT", bucket, "", "X-Fence-Token", "99")
		a.denied("JOB7", "DELETE", bucket, "", "X-Fence-Token", "99")
		a.denied("JOB7", "PUT", bucket+"?policy", "{}", "X-Fence-Token", "99")
	}
	a.denied("LOGS", "PUT", "/new", "")
	a.denied("LOGS", "GET", "/team?list-type=2", "")

	job := a.p.signer(t, "JOB7")
	for _, query := range []string{"?list-type=2&prefix=jobs/7/", "?prefix=jobs/7/", "?list-type=2&prefix=open", "?list-type=2&prefix=jobs%2F7%2Fa"} {
		got := job.do("GET", "/team"+query, "").want(t, 200)
		if !strings.Contains(string(got.body), "/a</Key>") || strings.Contains(string(got.body), "jobs/8") {
			t.Errorf("%s: %s", query, got.body)
		}
	}
	logs := a.p.signer(t, "LOGS")
	logs.do("PUT", "/logs-2", "").want(t, 200)
	logs.do("GET", "/logs-1?list-type=2", "").want(t, 200)
	for key, want := range map[string][]string{"LOGS": {"logs-1", "logs-2"}, "JOB7": {"team"}, "ALL": {"logs-1", "logs-2", "other", "team"}} {
		var list struct {
			Names []string `xml:"Buckets>Bucket>Name"`
		}
		body := a.p.signer(t, key).do("GET", "/", "").want(t, 200).body
		if err := xml.Unmarshal(body, &list); err != nil || !slices.Equal(list.Names, want) {
			t.Errorf("%s sees %q, want %q (%v)", key, list.Names, want, err)
		}
	}
}

// TestWithinReach: bounds leave the rest as it is.
func TestWithinReach(t *testing.T) {
	t.Parallel()
	a := newAccessTest(t)
	job := a.p.signer(t, "JOB7")
	got := job.do("PUT", "/team/jobs/7/b", "of 35", "X-Fence-Token", "35").want(t, 200)
	if got.header.Get("X-Fence-Resource") != "team/jobs/7" || got.header.Get("X-Fence-Highest") != "35" {
		t.Errorf("%v", got.header)
	}
	job.do("PUT", "/team/jobs/7/a", "stale", "X-Fence-Token", "34").stale(t, 35)
	job.do("PUT", "/team/openly", "x").want(t, 200)
	job.do("PUT", "/team/jobs/7/c", "", "X-Amz-Copy-Source", "/team/openly", "X-Fence-Token", "35").want(t, 200)
	if got := job.do("GET", "/team/jobs/7/c", "").want(t, 200); string(got.body) != "x" {
		t.Errorf("%q", got.body)
	}
	job.do("DELETE", "/team/jobs/7/c", "", "X-Fence-Token", "35").want(t, 204)
	a.p.signer(t, "LOGS").do("PUT", "/logs-1/anything", "x", "X-Fence-Token", "1").want(t, 200)
	job.do("HEAD", "/team", "").want(t, 200)
}

// TestCopiesOutOfReach: what a key may not read it may not copy, however the source is spelled.
func TestCopiesOutOfReach(t *testing.T) {
	t.Parallel()
	a := newAccessTest(t)
	for _, source := range []string{
		"/other/jobs/7/a", "other/jobs/7/a", "/team/jobs/8/a", "team%2Fjobs%2F8%2Fa", "/team/jobs/7/../8/a", "/team/jobs/7/%2e%2e/8/a", "%2Fteam/jobs/8/a",
		"/other/jobs/7/a?versionId=null",
	} {
		a.denied("JOB7", "PUT", "/team/jobs/7/b", "", "X-Amz-Copy-Source", source, "X-Fence-Token", "99")
		a.denied("JOB7", "PUT", "/team/jobs/7/b?partNumber=1&uploadId=x", "", "X-Amz-Copy-Source", source, "X-Fence-Token", "99")
	}
	a.denied("JOB7", "PUT", "/team/jobs/8/b", "", "X-Amz-Copy-Source", "/team/jobs/7/a", "X-Fence-Token", "99")
	a.denied("JOB7", "PUT", "/other/jobs/7/b", "", "X-Amz-Copy-Source", "/team/jobs/7/a", "X-Fence-Token", "99")
}

// TestBatchWithOneKeyOutOfReach: that key is refused, and its fence not moved; the others are deleted.
func TestBatchWithOneKeyOutOfReach(t *testing.T) {
	t.Parallel()
	a := newAccessTest(t)
	batch := "<Delete><Object><Key>jobs/7/a</Key></Object><Object><Key>jobs/8/a</Key></Object><Object><Key>open/a</Key></Object></Delete>"
	md5 := func(body string) []string { return []string{"Content-Md5", md5Of(body), "X-Fence-Token", "99"} }
	got := a.p.signer(t, "JOB7").do("POST", "/team?delete", batch, md5(batch)...).want(t, 200)
	var result struct {
		Deleted []struct{ Key string }
		Error   []struct{ Key, Code, Message string }
	}
	if err := xml.Unmarshal(got.body, &result); err != nil {
		t.Fatalf("%v in %s", err, got.body)
	}
	if len(result.Deleted) != 2 || len(result.Error) != 1 || result.Error[0].Key != "jobs/8/a" || result.Error[0].Code != "AccessDenied" {
		t.Errorf("%s", got.body)
	}
	if len(result.Error) == 1 && strings.Contains(result.Error[0].Message, "34") {
		t.Errorf("it tells of the fence: %s", result.Error[0].Message)
	}
	if got := a.all.do("GET", "/team/jobs/8/a", "").want(t, 200); string(got.body) != "of 34" || got.header.Get("X-Fence-Highest") != "34" {
		t.Errorf("the key out of reach: %s %v", got.body, got.header)
	}
	a.all.do("GET", "/team/jobs/7/a", "").want(t, 404)
	a.denied("JOB7", "POST", "/other?delete", batch, md5(batch)...)
	a.denied("READ", "POST", "/team?delete", batch, md5(batch)...)
}

// TestReadOnlyKeys: such a key reads, and its tokens move nothing.
func TestReadOnlyKeys(t *testing.T) {
	t.Parallel()
	a := newAccessTest(t)
	marks := a.marks()
	for _, key := range []string{"READ", "READ7"} {
		for _, method := range []string{"PUT", "DELETE"} {
			a.denied(key, method, "/team/jobs/7/a", "", "X-Fence-Token", "99")
		}
		a.denied(key, "PUT", "/team/jobs/7/a?fence", "", "X-Fence-Token", "99")
		a.denied(key, "PUT", "/team/jobs/7/b", "", "X-Amz-Copy-Source", "/team/jobs/7/a", "X-Fence-Token", "99")
		a.denied(key, "POST", "/team/jobs/7/a?uploads", "", "X-Fence-Token", "99")
		a.denied(key, "PUT", "/team/jobs/7/a?tagging", "<Tagging/>", "X-Fence-Token", "99")
		a.denied(key, "PUT", "/new", "", "X-Fence-Token", "99")
		a.denied(key, "DELETE", "/team", "", "X-Fence-Token", "99")

		reader := a.p.signer(t, key)
		for _, channel := range [][]string{{"X-Fence-Token", "99"}, {"X-Amz-Security-Token", "fence=99"}} {
			got := reader.do("GET", "/team/jobs/7/a", "", channel...).want(t, 200)
			if string(got.body) != "of 34" || got.header.Get("X-Fence-Highest") != "34" {
				t.Errorf("%s: %q %v", key, got.body, got.header)
			}
			reader.do("HEAD", "/team/jobs/7/a", "", channel...).want(t, 200)
			reader.do("GET", "/team?list-type=2&prefix=jobs/7/", "", channel...).want(t, 200)
		}
		reader.do("GET", "/~fence/99/team/jobs/7/a", "").want(t, 200)
		if f := reader.do("GET", "/team/jobs/7/a?fence", "").want(t, 200).fence(t); f.Highest != 34 {
			t.Errorf("%s: the fence is %+v", key, f)
		}
	}
	if now := a.marks(); now != marks {
		t.Errorf("reads have moved fences:\n%s%s", marks, now)
	}
	a.denied("READ7", "GET", "/team/jobs/8/a", "", "X-Fence-Token", "99")
	a.denied("READ7", "GET", "/team?list-type=2", "", "X-Fence-Token", "99")
}

// TestAccessOfTheSDK: a client that nobody here wrote says in its own words what it may not do, and does not try again.
func TestAccessOfTheSDK(t *testing.T) {
	t.Parallel()
	a := newAccessTest(t)
	s := a.p.signer(t, "JOB7")
	counted := &counter{RoundTripper: s.client.Transport}
	s.client.Transport = counted
	_, err := s.sdk().PutObject(t.Context(), putInput("team", "jobs/8/a", "x"))
	if err == nil || !strings.Contains(err.Error(), "AccessDenied") || !strings.Contains(err.Error(), "JOB7") || counted.n != 1 {
		t.Errorf("after %d requests: %v", counted.n, err)
	}
	_, err = s.sdk().PutObject(t.Context(), putInput("team", "openly", "x"))
	must(t, "write within reach", err)
}

// A counter counts requests.
type counter struct {
	http.RoundTripper
	n int
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n++
	return c.RoundTripper.RoundTrip(r)
}
