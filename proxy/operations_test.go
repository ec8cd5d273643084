package proxy

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fenceproxy/fenceproxy/integration/sdkops"
)

// kinds are the words that docs/operations.md has for the ways of operations.
var kinds = map[way]string{
	reads: "read", lists: "list", listBuckets: "buckets", writes: "write", bucketWrites: "bucket write", deletesMany: "batch", createsUpload: "create",
	uploadsPart: "part", abortsUpload: "abort", renames: "rename", postsForm: "form", preflight: "preflight", fenceShow: "show", fenceRaise: "announce",
	takesLock: "lock", renewsLock: "lock", releasesLock: "lock",
	refused: "refused",
}

var documentedLine = regexp.MustCompile(`(?m)^\| ([A-Z]\w+) \| ([a-z ]+) \|`)

// documented are the kinds of the operations that docs/operations.md has.
func documented(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, line := range documentedLine.FindAllStringSubmatch(string(page), -1) {
		if _, twice := found[line[1]]; twice {
			t.Errorf("docs/operations.md has %s twice", line[1])
		}
		found[line[1]] = line[2]
	}
	return found
}

// beside are the requests of operations for which the SDK has no method.
var beside = map[string][]string{
	appendObject:    {"PUT", "/bucket/key", headerWriteOffset, "0"},
	"PostObject":    {"POST", "/bucket"},
	optionsObject:   {"OPTIONS", "/bucket/key?acl&x=%zz"},
	"ShowFence":     {"GET", "/bucket/key?fence"},
	"AnnounceToken": {"PUT", "/bucket/key?fence"},
	"TakeLock":      {"POST", "/bucket/key?fence&lease=30s"},
	renewLock:       {"PUT", "/bucket/key?fence&lease=1"},
	"ReleaseLock":   {"DELETE", "/bucket/key?fence&lease=1"},
}

// TestOperationsOfTheSDK: every operation that the SDK can send is known by its own name, goes the way that docs/operations.md says, and has
// one line there. A newer SDK that can send another one fails it.
func TestOperationsOfTheSDK(t *testing.T) {
	lines := documented(t)
	check := func(name string, r *http.Request) {
		op, err := parseOperation(r, r.URL.Path)
		switch kind, ok := lines[name]; {
		case op.name != name:
			t.Errorf("%s, which is %s %s, is taken for %q: %v", name, r.Method, r.URL, op.name, err)
		case !ok:
			t.Errorf("docs/operations.md has no line for %s", name)
		case kinds[op.way] != kind:
			t.Errorf("%s goes the way of %q, and docs/operations.md says %q", name, kinds[op.way], kind)
		case (err != nil) != (op.way == refused):
			t.Errorf("%s: %v", name, err)
		}
		delete(lines, name)
	}
	for _, name := range sdkops.Names() {
		r, err := sdkops.Request(name, sdkops.Values{"Bucket": "bucket", "Key": "key"})
		if err != nil {
			t.Error(err)
			continue
		}
		check(name, r)
	}
	for name, request := range beside {
		r := httptest.NewRequest(request[0], request[1], nil)
		for h := range slices.Chunk(request[2:], 2) {
			r.Header.Set(h[0], h[1])
		}
		check(name, r)
	}
	for name := range lines {
		t.Errorf("docs/operations.md has a line for %s, which nobody can send", name)
	}
}

// TestOperationsAreDocumented: what the parser can name has a line.
func TestOperationsAreDocumented(t *testing.T) {
	lines := documented(t)
	var names []string
	for _, table := range []map[string]sub{bucketSubs, objectSubs} {
		for _, s := range table {
			names = append(names, s.get, s.put, s.post, s.delete)
		}
	}
	for _, s := range plainSubs {
		names = append(names, s.get, s.put, s.post, s.delete)
	}
	for name := range ways {
		names = append(names, name)
	}
	for _, name := range names {
		if name != "" && lines[name] == "" {
			t.Errorf("docs/operations.md has no line for %s", name)
		}
	}
	for w, kind := range kinds {
		if page, err := os.ReadFile("../docs/operations.md"); err != nil || kind != "announce" && !strings.Contains(string(page), "\n| "+kind) {
			t.Errorf("docs/operations.md does not explain the kind %q (%d), %v", kind, w, err)
		}
	}
}

// TestRefusedReads: what hands out a way around the fence is refused however it is asked for.
func TestRefusedReads(t *testing.T) {
	for _, target := range []string{"/b?session", "/b/?session=", "/b?acl&session", "/b?session&list-type=2", "/b?analytics&session", "/b?%73ession", "/b?sess%69on=x"} {
		for _, method := range []string{"GET", "HEAD"} {
			op, err := parseOperation(httptest.NewRequest(method, target, nil), strings.Split(target, "?")[0])
			if op.name != createSession || op.way != refused || err == nil {
				t.Errorf("%s %s: %s, way %d, %v", method, target, op.name, op.way, err)
			}
		}
	}
}

// TestTurningHeaders: a header that makes a write another one counts only where we know it as that one.
func TestTurningHeaders(t *testing.T) {
	for _, c := range []struct {
		method, target string
		headers        []string
		name           string // "" is refused
	}{
		{"PUT", "/b/a", []string{headerCopySource}, "CopyObject"},
		{"PUT", "/b/a", []string{headerWriteOffset}, appendObject},
		{"PUT", "/b/a?renameObject", []string{headerRenameSource}, renameObject},
		{"PUT", "/b/a?partNumber=1&uploadId=x", []string{headerCopySource}, "UploadPartCopy"},
		{"PUT", "/b/a", []string{headerCopySource, headerWriteOffset}, ""},
		{"PUT", "/b/a", []string{headerCopySource, headerRenameSource}, ""},
		{"PUT", "/b/a", []string{headerRenameSource}, ""},
		{"PUT", "/b/a?renameObject", []string{headerRenameSource, headerCopySource}, ""},
		{"PUT", "/b/a?renameObject", []string{headerWriteOffset}, ""},
		{"PUT", "/b/a?partNumber=1&uploadId=x", []string{headerWriteOffset}, ""},
		{"PUT", "/b/a?tagging", []string{headerCopySource}, ""},
		{"DELETE", "/b/a", []string{headerCopySource}, ""},
		{"POST", "/b?delete", []string{headerCopySource}, ""},
		{"POST", "/b", []string{headerRenameSource}, ""},
		{"GET", "/b/a", []string{headerRenameSource, headerWriteOffset}, "GetObject"},
	} {
		r := httptest.NewRequest(c.method, c.target, nil)
		for _, h := range c.headers {
			r.Header.Set(h, "")
		}
		op, err := parseOperation(r, r.URL.Path)
		if c.name == "" && err == nil || c.name != "" && (err != nil || op.name != c.name) {
			t.Errorf("%s %s with %q: %s, %v; want %q", c.method, c.target, c.headers, op.name, err, c.name)
		}
	}
}
