package proxy

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fenceproxy/fenceproxy/integration/sdkops"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// A willing store says yes to every write, and remembers which it was asked for, by the keys that they may change.
type willing struct {
	mu    sync.Mutex
	asked []string // guarded by mu
}

func (s *willing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	op, _ := parseOperation(r, r.URL.Path)
	if op.way == reads {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusOK)
	switch op.way {
	case deletesMany:
		var batch struct{ Object []struct{ Key string } }
		_ = xml.Unmarshal(body, &batch)
		_, _ = io.WriteString(w, "<DeleteResult>")
		for _, o := range batch.Object {
			op.key += o.Key
			fmt.Fprintf(w, "<Deleted><Key>%s</Key></Deleted>", o.Key)
		}
		_, _ = io.WriteString(w, "</DeleteResult>")
	case createsUpload:
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", op.key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, op.name+" "+op.bucket+"/"+op.key)
}

// has says whether the store was asked for a write of a key, and forgets it.
func (s *willing) has(name, object string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.asked, name+" "+object)
	if i < 0 {
		return false
	}
	s.asked = slices.Delete(s.asked, i, i+1)
	return true
}

// A writeOp is an operation that changes an object: it makes a request that changes a key.
type writeOp struct {
	name string // of the operation, and how
	seen string // its name as the store sees it
	make func(t *testing.T, key string) *http.Request
	key  func(key string) string // that the store sees in the path
}

// writeOps are all operations of the SDK that change objects, and those for which it has no method. Each line stands for one way to change a key.
func writeOps(t *testing.T) (ops []writeOp) {
	t.Helper()
	same, elsewhere := func(key string) string { return key }, func(key string) string { return "elsewhere/" + key }
	of := func(name string, more sdkops.Values) func(*testing.T, string) *http.Request {
		return func(t *testing.T, key string) *http.Request { return sdkRequest(t, name, key, more) }
	}
	for _, name := range sdkops.Names() {
		r := sdkRequest(t, name, "key", nil)
		op, _ := parseOperation(r, r.URL.Path)
		switch op.way {
		case writes, createsUpload, uploadsPart, abortsUpload, deletesMany:
			ops = append(ops, writeOp{name, name, of(name, nil), same})
		case renames:
			ops = append(ops,
				writeOp{name + " to", name, of(name, sdkops.Values{"RenameSource": "elsewhere/a"}), same},
				writeOp{name + " from", name, func(t *testing.T, key string) *http.Request {
					return sdkRequest(t, name, elsewhere(key), sdkops.Values{"RenameSource": url.PathEscape(key)})
				}, elsewhere},
				writeOp{name + " from, with the bucket", name, func(t *testing.T, key string) *http.Request {
					return sdkRequest(t, name, elsewhere(key), sdkops.Values{"RenameSource": "/b/" + key})
				}, elsewhere})
		}
	}
	return append(
		ops,
		writeOp{appendObject, appendObject, of("PutObject", sdkops.Values{"WriteOffsetBytes": int64(0)}), same},
		writeOp{"PostObject", "PutObject", formRequest, same},
	)
}

func sdkRequest(t *testing.T, name, key string, more sdkops.Values) *http.Request {
	t.Helper()
	v := sdkops.Values{
		"Bucket": "b", "Key": key, "UploadId": key, "CopySource": "b/source", "Body": strings.NewReader("content"),
		"Delete": types.Delete{Objects: []types.ObjectIdentifier{{Key: aws.String(key)}}},
	}
	for name, value := range more {
		v[name] = value
	}
	r, err := sdkops.Request(name, v)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Del("Expect") // which costs time here, and nothing else
	return r
}

func formRequest(t *testing.T, key string) *http.Request {
	t.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	_ = w.WriteField("key", key)
	_ = w.WriteField("file", "content")
	_ = w.Close()
	r, err := http.NewRequest(http.MethodPost, "http://localhost/b", &form)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", w.FormDataContentType())
	return r
}

// everyWrite is a proxy before a willing store.
type everyWrite struct {
	*fixture
	store *willing
}

// sent sends a request with a token, and says how the proxy has refused it, "" if it did not.
func (e everyWrite) sent(r *http.Request, token string) (refusal string) {
	e.Helper()
	target, err := url.Parse(e.url)
	if err != nil {
		e.Fatal(err)
	}
	r.URL.Scheme, r.URL.Host, r.Host, r.RequestURI = "http", target.Host, "", ""
	if token != "" {
		r.Header.Set(headerToken, token)
	}
	resp, body := e.send(r)
	refusal = resp.Header.Get(headerError)
	switch batch := strings.Contains(body, "<DeleteResult") && strings.Contains(body, "<Error>"); {
	case batch && strings.Contains(body, "highest one seen"): // one that it was told of in the body
		return staleToken
	case batch, refusal == "" && resp.StatusCode >= 300:
		e.Errorf("%s %s: %d %s", r.Method, r.URL, resp.StatusCode, body)
	}
	return refusal
}

// passes sends a write of a key, which must come to the store.
func (e everyWrite) passes(op writeOp, key, token string) {
	e.Helper()
	refusal := e.sent(op.make(e.T, key), token)
	if came := e.store.has(op.seen, "b/"+op.key(key)); refusal != "" || !came {
		e.Errorf("%s of %s with token %s: refused as %q, came to the store: %v", op.name, key, token, refusal, came)
	}
}

// stale sends a write of a key, which must be refused before the store hears of it.
func (e everyWrite) stale(op writeOp, key, token, after string) {
	e.Helper()
	refusal := e.sent(op.make(e.T, key), token)
	if came := e.store.has(op.seen, "b/"+op.key(key)); refusal != staleToken || came {
		e.Errorf("%s of %s with token %q after %s: refused as %q, came to the store: %v", op.name, key, token, after, refusal, came)
	}
}

// TestEveryWriteFencesEveryOtherKey: what one write has raised, holds for every other key of its resource and for every other write.
// docs/operations.md says which operations are writes; TestOperationsOfTheSDK holds it against the SDK.
func TestEveryWriteFencesEveryOtherKey(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]Backend{
		"here": {},
		"elsewhere": {
			Settle: time.Minute, Conditional: ConditionalAuto, Probe: func(context.Context, string) (Findings, error) { return all, nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &willing{}
			backend.Handler = store
			f := newFixtureWith(t, func(c *Config) { c.Buffer, c.Memory = 1<<20, 64<<20 }, backend, jobRules, rules.Rule{Match: "elsewhere/**", Token: rules.Off})
			ops := writeOps(t)
			if len(ops) < 20 {
				t.Fatalf("there are only %d writes", len(ops))
			}
			for i, first := range ops {
				t.Run(first.name, func(t *testing.T) {
					t.Parallel()
					e := everyWrite{&fixture{T: t, url: f.url}, store}
					for j, second := range ops {
						if name == "here" || first.name == "PutObject" || second.name == "PutObject" { // all with all takes its time
							e.pair(first, second, fmt.Sprintf("jobs/%d-%d", i, j))
						}
					}
				})
			}
		})
	}
}

// pair holds one write against another one, to another key of their resource.
func (e everyWrite) pair(first, second writeOp, job string) {
	e.Helper()
	this, other := job+"/this", job+"/deep/other"
	if second.seen == "AbortMultipartUpload" { // a stale holder may abort what nobody newer has touched
		e.passes(writeOp{"UploadPart", "UploadPart", func(t *testing.T, key string) *http.Request { return sdkRequest(t, "UploadPart", key, nil) }, second.key}, other, "34")
	}
	e.passes(first, this, "34")
	if strings.HasPrefix(first.name, "UploadPart") { // nothing can be seen of it, and it moves no mark
		e.passes(second, other, "33")
		return
	}
	e.stale(second, other, "33", first.name)
	e.stale(second, other, "", first.name)
	e.passes(second, other, "34")
	e.passes(second, other, "35")
	if !strings.HasPrefix(second.name, "UploadPart") && first.seen != "AbortMultipartUpload" {
		e.stale(first, this, "34", second.name)
	}
}

// TestAbortOfOnesOwn: it harms nobody.
func TestAbortOfOnesOwn(t *testing.T) {
	t.Parallel()
	store := &willing{}
	e := everyWrite{newFixture(t, Backend{Handler: store}, jobRules), store}
	ops := map[string]writeOp{}
	for _, op := range writeOps(t) {
		ops[op.name] = op
	}
	e.passes(ops["CreateMultipartUpload"], "jobs/7/a", "33")
	e.passes(ops["UploadPart"], "jobs/7/a", "33")
	e.passes(ops["PutObject"], "jobs/7/b", "34")
	e.stale(ops["UploadPart"], "jobs/7/a", "33", "PutObject")
	e.stale(ops["CompleteMultipartUpload"], "jobs/7/a", "33", "PutObject")
	e.stale(ops["AbortMultipartUpload"], "jobs/7/a", "32", "PutObject")
	e.passes(ops["AbortMultipartUpload"], "jobs/7/a", "33")
}

// TestEveryBucketWrite follows the policy of the bucket, and with `fence` every other one.
func TestEveryBucketWrite(t *testing.T) {
	t.Parallel()
	table, err := rules.New([]rules.Bucket{
		{Name: "open", Backend: "test"}, {Name: "shut", Backend: "test", BucketWrites: rules.Deny}, {Name: "fenced*", Backend: "test", BucketWrites: rules.Fence},
	})
	if err != nil {
		t.Fatal(err)
	}
	store := &willing{}
	e := everyWrite{newFixtureWith(t, func(c *Config) { c.Rules = table }, Backend{Handler: store}), store}
	var names []string
	for _, name := range sdkops.Names() {
		r := sdkRequest(t, name, "key", nil)
		if op, _ := parseOperation(r, r.URL.Path); op.way == bucketWrites {
			names = append(names, name)
		}
	}
	if len(names) < 40 {
		t.Fatalf("there are only %d writes to buckets", len(names))
	}
	send := func(name, bucket, token string) (refusal string, came bool) {
		r := sdkRequest(t, name, "", sdkops.Values{"Bucket": bucket})
		return e.sent(r, token), store.has(name, bucket+"/")
	}
	check := func(name, bucket, token, want string) {
		t.Helper()
		if refusal, came := send(name, bucket, token); refusal != want || came != (want == "") {
			t.Errorf("%s of %s with token %q: refused as %q, came to the store: %v; want %q", name, bucket, token, refusal, came, want)
		}
	}
	for i, name := range names {
		other := names[(i+1)%len(names)]
		check(name, "open", "34", "")
		check(other, "open", "33", "")
		check(name, "shut", "34", bucketWritesDenied)
		check(name, "shut", "", bucketWritesDenied)
		bucket := fmt.Sprintf("fenced-%d", i)
		check(name, bucket, "34", "")
		for _, other := range names {
			check(other, bucket, "33", staleToken)
		}
		check(other, bucket, "", staleToken)
		check(other, bucket, "34", "")
		check(other, bucket, "35", "")
	}
}

// TestOnlyReadsPassUnfenced: whatever is no read is a write of one of the kinds that the tests above go through.
func TestOnlyReadsPassUnfenced(t *testing.T) {
	for _, name := range sdkops.Names() {
		r := sdkRequest(t, name, "key", nil)
		op, _ := parseOperation(r, r.URL.Path)
		switch op.way {
		case writes, createsUpload, uploadsPart, abortsUpload, deletesMany, renames, bucketWrites, refused:
		default:
			if r.Method != http.MethodGet && r.Method != http.MethodHead && name != "SelectObjectContent" {
				t.Errorf("%s is %s, and goes the way of a %s", name, r.Method, kinds[op.way])
			}
		}
	}
}
