package integration

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// canary is in the files around the root. No answer may ever have it.
const canary = "the canary that sings outside of the root"

// A cage is a proxy whose root lies among files that are not its own.
type cage struct {
	*proxy
	outside string // a directory beside the root
	around  string // all that is not the root's and not the proxy's data
	names   string // what lies beside the proxy's directory, and in its data directory
}

// newCage makes the surroundings; lay puts what it likes into the bucket before the proxy starts.
func newCage(t *testing.T, lay func(c *cage, bucket string)) *cage {
	t.Helper()
	c := &cage{proxy: newProxy(t, plainConfig)}
	c.outside = filepath.Join(c.dir, "outside")
	bucket := filepath.Join(c.root, "bkt")
	for _, dir := range []string{filepath.Join(c.outside, "deep"), filepath.Join(c.root, "other"), bucket} {
		must(t, "make a directory", os.MkdirAll(dir, 0o755))
	}
	for _, name := range []string{"canary", "deep/canary"} {
		mustWrite(t, filepath.Join(c.outside, name), canary)
	}
	mustWrite(t, filepath.Join(c.dir, "canary"), canary)
	mustWrite(t, filepath.Join(c.root, "canary"), canary)
	lay(c, bucket)
	c.start(t)
	c.around, c.names = c.surroundings(t)
	return c
}

func (c *cage) surroundings(t *testing.T) (around, names string) {
	t.Helper()
	beside := append(namesIn(t, filepath.Dir(c.dir)), namesIn(t, c.data)...)
	return tree(t, c.dir, "objects/bkt", "objects/.fenceproxy", "data"), strings.Join(beside, "\n")
}

// closed checks that nothing around the root was touched.
func (c *cage) closed(t *testing.T, what string) {
	t.Helper()
	around, names := c.surroundings(t)
	if now := changes(c.around, around) + changes(c.names, names); now != "" {
		t.Errorf("%s has touched what is around the root:\n%s", what, now)
		c.around, c.names = around, names
	}
}

// keeps checks that an answer is one, and has nothing of the outside in it.
func (a answer) keeps(t *testing.T, what string) {
	t.Helper()
	if bytes.Contains(a.body, []byte(canary)) {
		t.Errorf("%s has read what lies outside: %.300s", what, a.body)
	}
	if a.status >= 500 && a.status != 501 {
		t.Errorf("%s: %d %.300s", what, a.status, a.body)
	}
}

// climbs are ways to spell a path that leads out of a directory, by one reader of paths or another, as they stand in a request line.
var climbs = []string{
	"../outside/canary", "../../outside/canary", "../../../outside/canary", "x/../../../outside/canary", "..%2foutside%2fcanary",
	"..%2F..%2Foutside%2Fcanary", "%2e%2e/%2e%2e/outside/canary", "%2E%2E%2F%2e%2e%2foutside/canary", ".%2e/%2e./outside/canary",
	"..%5c..%5coutside%5ccanary", `..\..\outside\canary`, "..%5C../outside/canary", "%252e%252e%252f%252e%252e%252foutside%252fcanary",
	"..%252f..%252foutside/canary", "%c0%ae%c0%ae/%c0%ae%c0%ae/outside/canary", "%c0%ae%c0%ae%c0%af%c0%ae%c0%ae%c0%afoutside", "%e0%80%ae%e0%80%ae/outside/canary",
	"%f0%80%80%ae%f0%80%80%ae/outside", "..%c0%af..%c0%afoutside%c0%afcanary", "..%c1%9c..%c1%9coutside", "..%00/..%00/outside/canary", "..%00", "canary%00.txt", "%00/../outside",
	"....//....//outside/canary", "..;/..;/outside/canary", "..%3b/..%3b/outside", "..%20/..%20/outside/canary", "..%09/outside", "..%0d/..%0a/outside", "..%ef%bc%8f..%ef%bc%8foutside",
	"%ef%bc%8e%ef%bc%8e/outside", "%e2%80%a4%e2%80%a4/outside", "%u002e%u002e/outside", "/etc/hostname", "%2fetc%2fhostname", "//etc/hostname", "~/canary", "file:%2f%2f%2fetc%2fhostname",
	"./../outside/canary", "%2e/%2e%2e/outside", "../.fenceproxy/registry", "../.fenceproxy/tmp/x", "../../data/registry.db", "../canary", "../other/x", "..", "../", "%2e%2e", "%2e%2e%2f", ".", "a/..", "a/../..",
	".fenceproxy/../../outside", "C:%5coutside", "%5c%5c127.0.0.1%5cshare", "|outside", "$HOME/canary", "%60id%60", "*/canary", "?/../../outside/canary",
}

// TestAttackByTraversal: no spelling of a path leads out of the root, in any place where a request may name a key, a prefix or an upload.
func TestAttackByTraversal(t *testing.T) {
	t.Parallel()
	c := newCage(t, func(*cage, string) {})
	c.put(t, "/bkt/source", 0, "good source").want(t, 200)
	upload := c.create(t, "/bkt/target")
	for _, climb := range climbs {
		decoded, err := url.PathUnescape(climb)
		if err != nil {
			decoded = climb
		}
		inQuery := url.QueryEscape(decoded)
		var inXML strings.Builder
		for _, r := range decoded { // each by its number, so that XML's own rules are met where they can be
			fmt.Fprintf(&inXML, "&#%d;", r)
		}
		for _, r := range []struct {
			method, target, body string
			headers              []string
		}{
			{"PUT", "/bkt/" + climb, "planted", nil},
			{"GET", "/bkt/" + climb, "", nil},
			{"HEAD", "/bkt/" + climb, "", nil},
			{"PUT", "/" + climb, "planted", nil},
			{"GET", "/" + climb, "", nil},
			{"DELETE", "/" + climb, "", nil},
			{"PUT", "/~fence/1/" + climb, "planted", nil},
			{"PUT", "/~fence/1/bkt/" + climb, "planted", nil},
			{"PUT", "/~fence/" + climb, "planted", nil},
			{"PUT", "/bkt/" + climb, "", []string{"X-Amz-Copy-Source", "/bkt/source"}},
			{"PUT", "/bkt/copied", "", []string{"X-Amz-Copy-Source", "/bkt/" + climb}},
			{"PUT", "/bkt/copied", "", []string{"X-Amz-Copy-Source", climb}},
			{"PUT", "/bkt/copied", "", []string{"X-Amz-Copy-Source", "bkt%2f" + climb}},
			{"PUT", "/bkt/target?partNumber=1&uploadId=" + upload, "", []string{"X-Amz-Copy-Source", "/bkt/" + climb}},
			{"POST", "/bkt/" + climb + "?uploads", "", nil},
			{"PUT", "/bkt/target?partNumber=1&uploadId=" + inQuery, "planted", nil},
			{"PUT", "/bkt/target?partNumber=" + inQuery + "&uploadId=" + upload, "planted", nil},
			{"POST", "/bkt/target?uploadId=" + inQuery, "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>", nil},
			{"DELETE", "/bkt/target?uploadId=" + inQuery, "", nil},
			{"GET", "/bkt/target?uploadId=" + inQuery, "", nil},
			{"GET", "/bkt?list-type=2&prefix=" + inQuery, "", nil},
			{"GET", "/bkt?list-type=2&start-after=" + inQuery, "", nil},
			{"GET", "/bkt?list-type=2&continuation-token=" + inQuery, "", nil},
			{"GET", "/bkt?prefix=" + inQuery + "&delimiter=%2f&marker=" + inQuery, "", nil},
			{"GET", "/bkt?uploads&prefix=" + inQuery, "", nil},
			{"POST", "/bkt?delete", "<Delete><Object><Key>" + inXML.String() + "</Key></Object></Delete>", nil},
			{"DELETE", "/bkt/" + climb, "", nil}, // clears away what a name that is one has made
			{"DELETE", "/bkt/copied", "", nil},
		} {
			what := fmt.Sprintf("%s %s %q", r.method, r.target, r.headers)
			c.wild(t, what, r.method, r.target, r.body, r.headers...)
		}
		c.closed(t, climb)
	}
	c.noTemps(t)
	c.do(t, "PUT", "/other/x", "ok").want(t, 200) // it still serves
}

// wild sends a request that HTTP itself may not take: then the answer is whatever the server says, or none.
func (c *cage) wild(t *testing.T, what, method, target, body string, headers ...string) {
	t.Helper()
	conn := c.dial(t)
	defer conn.Close()
	lines := ""
	for i := 0; i < len(headers); i += 2 {
		lines += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	conn.say("%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s", method, target, lines, len(body), body)
	a, _, err := conn.answer(method)
	if err != nil {
		t.Errorf("%s: no answer: %v", what, err)
		return
	}
	a.keeps(t, what)
}

// TestAttackBySymlinks: links in a bucket that lead out of it, laid by another program of the machine, are no objects and no way.
func TestAttackBySymlinks(t *testing.T) {
	t.Parallel()
	links := []string{}
	c := newCage(t, func(c *cage, bucket string) {
		for link, to := range map[string]string{
			"dir":      c.outside,
			"relative": "../../outside",
			"file":     filepath.Join(c.outside, "canary"),
			"dangling": filepath.Join(c.outside, "new"),
			"root":     c.root,
			"data":     c.data,
			"own":      "../.fenceproxy",
			"loop":     "loop",
			"sibling":  "../other",
			"slash":    "/",
			"proc":     "/proc/self/root" + c.outside,
		} {
			must(t, "link", os.Symlink(to, filepath.Join(bucket, link)))
			links = append(links, link)
		}
		must(t, "link", os.Symlink(c.outside, filepath.Join(c.root, "linkedbucket")))
	})
	c.put(t, "/bkt/source", 0, "good source").want(t, 200)
	before := tree(t, filepath.Join(c.root, "bkt"))
	for _, link := range links {
		for _, key := range []string{link, link + "/canary", link + "/deep/canary", link + "/new", link + "/new/deeper", link + "/registry.db", link + "/registry"} {
			c.throughLink(t, "/bkt/"+key)
		}
		for _, target := range []string{"/bkt?list-type=2&prefix=" + link, "/bkt?list-type=2&prefix=" + link + "%2F", "/bkt?prefix=" + link + "&delimiter=%2F"} {
			a := c.get(t, target)
			a.keeps(t, target)
			if strings.Contains(string(a.body), "<Key>"+link) || strings.Contains(string(a.body), "<CommonPrefixes>") {
				t.Errorf("%s lists what a link leads to: %s", target, a.body)
			}
		}
		c.closed(t, link)
	}
	if now := changes(before, tree(t, filepath.Join(c.root, "bkt"))); now != "" {
		t.Errorf("the bucket has changed:\n%s", now)
	}

	for _, key := range []string{"/canary", "/new"} {
		c.throughLink(t, "/linkedbucket"+key)
	}
	for _, r := range [][2]string{{"GET", "/linkedbucket?list-type=2"}, {"PUT", "/linkedbucket"}, {"DELETE", "/linkedbucket"}, {"GET", "/"}} {
		a := c.do(t, r[0], r[1], "")
		a.keeps(t, r[0]+" "+r[1])
		if r[1] == "/" && strings.Contains(string(a.body), "linkedbucket") {
			t.Errorf("a link is listed as a bucket: %s", a.body)
		}
	}
	c.closed(t, "a bucket that is a link")
	if a := c.get(t, "/bkt?list-type=2"); strings.Count(string(a.body), "<Key>") != 1 {
		t.Errorf("the bucket has one object: %s", a.body)
	}
}

// throughLink does to a key whatever can be done to one. Nothing of it may succeed but a DELETE, which finds nothing.
func (c *cage) throughLink(t *testing.T, path string) {
	t.Helper()
	for _, r := range []struct {
		method, target, body string
		headers              []string
	}{
		{"GET", path, "", nil},
		{"GET", path, "", []string{"Range", "bytes=0-5"}},
		{"HEAD", path, "", nil},
		{"PUT", path, "planted", nil},
		{"PUT", path, "", nil},
		{"PUT", path, "", []string{"X-Amz-Copy-Source", "/bkt/source"}},
		{"PUT", "/bkt/copied", "", []string{"X-Amz-Copy-Source", path}},
		{"POST", path + "?uploads", "", nil},
	} {
		what := fmt.Sprintf("%s %s %q", r.method, r.target, r.headers)
		a := c.do(t, r.method, r.target, r.body, r.headers...)
		a.keeps(t, what)
		if a.status < 300 && r.method == "POST" {
			c.completeThroughLink(t, path, a)
		} else if a.status < 300 {
			t.Errorf("%s went through a link: %d %s", what, a.status, a.body)
		}
	}
	c.do(t, "DELETE", path, "").keeps(t, "DELETE "+path)
	_, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	c.do(t, "POST", "/bkt?delete", "<Delete><Object><Key>"+key+"</Key></Object></Delete>").keeps(t, "DeleteObjects "+key)
}

// completeThroughLink goes on with an upload that was begun, up to where it would become an object.
func (c *cage) completeThroughLink(t *testing.T, path string, created answer) {
	t.Helper()
	_, rest, _ := strings.Cut(string(created.body), "<UploadId>")
	id, _, _ := strings.Cut(rest, "</UploadId>")
	part := c.do(t, "PUT", path+"?partNumber=1&uploadId="+id, "planted")
	done := c.do(t, "POST", path+"?uploadId="+id,
		"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"+part.header.Get("Etag")+"</ETag></Part></CompleteMultipartUpload>")
	if done.status < 300 && !bytes.Contains(done.body, []byte("<Error>")) {
		t.Errorf("an upload to %s became an object through a link: %s", path, done.body)
	}
	c.do(t, "DELETE", path+"?uploadId="+id, "").keeps(t, "abort "+path)
}

// TestAttackByALinkInBetween: a directory of a key becomes a link while the key's body is on its way.
func TestAttackByALinkInBetween(t *testing.T) {
	t.Parallel()
	c := newCage(t, func(*cage, string) {})
	dir := filepath.Join(c.root, "bkt", "d")
	c.put(t, "/bkt/d/canary", 0, "ours").want(t, 200)
	upload := c.create(t, "/bkt/d/canary")
	part := c.do(t, "PUT", "/bkt/d/canary?partNumber=1&uploadId="+upload, "planted").want(t, 200)

	const size = 20 << 20 // more than the proxy keeps in memory
	conn := c.dial(t)
	conn.say("PUT /bkt/d/canary HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", size, lateBody(size)[:size/2])
	eventually(t, "the upload begins", func() bool { return len(c.temps(t)) > 0 })
	must(t, "rename", os.Rename(dir, dir+"-away"))
	must(t, "link", os.Symlink(c.outside, dir))
	conn.say("%s", lateBody(size)[size/2:])
	if a, _, err := conn.answer("PUT"); err != nil || a.status < 300 {
		t.Errorf("PUT went through a link: %v %d %s", err, a.status, a.body)
	} else {
		a.keeps(t, "PUT")
	}
	a := c.do(t, "POST", "/bkt/d/canary?uploadId="+upload,
		"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"+part.header.Get("Etag")+"</ETag></Part></CompleteMultipartUpload>")
	if a.status < 300 && !bytes.Contains(a.body, []byte("<Error>")) {
		t.Errorf("Complete went through a link: %s", a.body)
	}
	c.get(t, "/bkt/d/canary").keeps(t, "GET")
	c.do(t, "DELETE", "/bkt/d/canary", "").keeps(t, "DELETE")
	c.closed(t, "a link in between")
	c.noTemps(t)
}

// TestAttackBySpecialFiles: pipes, sockets and directories where an object would be hold nobody up, and are not replaced.
func TestAttackBySpecialFiles(t *testing.T) {
	t.Parallel()
	c := newCage(t, func(c *cage, bucket string) {
		must(t, "make a pipe", syscall.Mkfifo(filepath.Join(bucket, "pipe"), 0o600))
		l, err := net.Listen("unix", filepath.Join(bucket, "s"))
		must(t, "make a socket", err)
		t.Cleanup(func() { l.Close() })
	})
	c.put(t, "/bkt/source", 0, "good source").want(t, 200)
	for _, name := range []string{"pipe", "s"} {
		c.throughLink(t, "/bkt/"+name)
		info, err := os.Lstat(filepath.Join(c.root, "bkt", name))
		if err != nil || info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) == 0 {
			t.Errorf("%s is %v now, %v", name, info, err)
		}
	}
	c.closed(t, "special files")
}
