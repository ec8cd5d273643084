package integration

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// peakMemory is the most that the process has had in memory, in bytes: VmHWM of proc(5).
func (p *proxy) peakMemory(t *testing.T) int64 {
	t.Helper()
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindStringSubmatch(mustRead(t, fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)))
	if found == nil {
		t.Fatal("the kernel does not say how much memory there was")
	}
	kib, err := strconv.ParseInt(found[1], 10, 64)
	must(t, "read a number of the kernel", err)
	return kib << 10
}

// refusedWhole wants a request refused, by a status that no client repeats and with a short answer, and nothing changed.
func (p *proxy) refusedWhole(t *testing.T, what, method, target, body string, headers ...string) {
	t.Helper()
	p.unmoved(t, what, func() {
		a := p.do(t, method, target, body, headers...)
		if (a.status/100 != 4 && a.status != 501) || len(a.body) > 8<<10+len(target) { // which it names
			t.Errorf("%s: %d with %d bytes: %.300s", what, a.status, len(a.body), a.body)
		}
	})
}

// TestAttackBySize: keys, headers, paths and metadata beyond their limits are refused, and raise nothing.
func TestAttackBySize(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/1/k", 34, "of 34").want(t, 200)
	upload := p.create(t, "/bkt/jobs/1/k", "X-Fence-Token", "34")
	big := func(n int) string { return strings.Repeat("x", n) }
	inJob := func(n int) string { return "jobs/1/" + long(n-len("jobs/1/")) }
	for name, r := range map[string]struct {
		method, target, body string
		headers              []string
	}{
		"a key of 1025 bytes":             {"PUT", "/bkt/" + inJob(1025), "x", nil},
		"a key of 1025 bytes, announced":  {"PUT", "/bkt/" + inJob(1025) + "?fence", "", nil},
		"a key of 1025 bytes, read":       {"GET", "/bkt/" + inJob(1025), "", nil},
		"a key of 1025 bytes, uploaded":   {"POST", "/bkt/" + inJob(1025) + "?uploads", "", nil},
		"a key of 1025 bytes of 3 each":   {"PUT", "/bkt/jobs/1/" + strings.Repeat("%E2%82%AC/", 254) + "xy", "x", nil},
		"a key of 60,000 bytes":           {"PUT", "/bkt/" + inJob(60000), "x", nil},
		"a key of 60,000 slashes":         {"PUT", "/bkt/jobs/1/" + strings.Repeat("/", 60000), "x", nil},
		"a component of 256 bytes":        {"PUT", "/bkt/jobs/1/" + big(256), "x", nil},
		"a bucket of 1000 bytes":          {"PUT", "/" + big(1000) + "/jobs/1/k", "x", nil},
		"a source of 1025 bytes":          {"PUT", "/bkt/jobs/1/k2", "", []string{"X-Amz-Copy-Source", "/bkt/" + long(1025)}},
		"a query of 60,000 bytes":         {"PUT", "/bkt/jobs/1/k?" + big(60000), "x", nil},
		"a query of 10,000 names":         {"PUT", "/bkt/jobs/1/k?" + strings.Repeat("a&b&", 5000), "x", nil},
		"a token of 60,000 digits":        {"PUT", "/bkt/jobs/1/k", "x", []string{"X-Fence-Token", strings.Repeat("9", 60000)}},
		"a holder of 60,000 bytes":        {"PUT", "/bkt/jobs/1/k", "x", []string{"X-Fence-Holder", big(60000)}},
		"a session token of 60,000 bytes": {"PUT", "/bkt/jobs/1/k", "x", []string{"X-Amz-Security-Token", "fence=" + big(60000)}},
		"metadata of 2049 bytes":          {"PUT", "/bkt/jobs/1/k", "x", []string{"X-Amz-Meta-A", big(2048)}},
		"metadata of 2049 bytes, created": {"POST", "/bkt/jobs/1/k?uploads", "", []string{"X-Amz-Meta-A", big(2048), "X-Fence-Token", "34"}},
		"an upload id of 60,000 bytes":    {"PUT", "/bkt/jobs/1/k?partNumber=1&uploadId=" + big(60000), "x", nil},
		"part 10001":                      {"PUT", "/bkt/jobs/1/k?partNumber=10001&uploadId=" + upload, "x", nil},
		"part 0":                          {"PUT", "/bkt/jobs/1/k?partNumber=0&uploadId=" + upload, "x", nil},
		"part 2^64+1":                     {"PUT", "/bkt/jobs/1/k?partNumber=18446744073709551617&uploadId=" + upload, "x", nil},
		"one header of 200 KB":            {"PUT", "/bkt/jobs/1/k", "x", []string{"X-A", big(200_000)}},
		"20,000 headers":                  {"PUT", "/bkt/jobs/1/k", "x", strings.Fields(strings.Repeat("X-Amz-Meta-A b ", 20000))},
		"a path of 200 KB":                {"PUT", "/bkt/jobs/1/" + big(200_000), "x", nil},
	} {
		headers := append([]string(nil), r.headers...)
		if !slices.Contains(headers, "X-Fence-Token") {
			headers = append(headers, "X-Fence-Token", "35")
		}
		p.refusedWhole(t, name, r.method, r.target, r.body, headers...)
	}
	p.unmoved(t, "a length of 2^63-1", func() {
		c := p.dial(t)
		c.say("PUT /bkt/jobs/1/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9223372036854775807\r\nX-Fence-Token: 35\r\nExpect: 100-continue\r\n\r\n")
		if a, _, err := c.answer("PUT"); err != nil || a.status/100 != 4 {
			t.Errorf("a length of 2^63-1: %v %d %s", err, a.status, a.body)
		}
	})
	if peak := p.peakMemory(t); peak > 512<<20 {
		t.Errorf("it took %d MiB", peak>>20)
	}
	p.put(t, "/bkt/jobs/1/k", 34, "again").want(t, 200)
}

// lists are documents that are too long, too deep, or mean to grow, around an element that would be taken alone.
func lists(root, entry string) map[string]string {
	wrap := func(inner string) string { return "<" + root + ">" + inner + "</" + root + ">" }
	bomb := `<!DOCTYPE r [<!ENTITY a "aaaaaaaaaa">`
	for c := 'b'; c <= 'j'; c++ {
		bomb += fmt.Sprintf(`<!ENTITY %c "%s">`, c, strings.Repeat(fmt.Sprintf("&%c;", c-1), 10))
	}
	deep := strings.Repeat("<a>", 20_000) + strings.Repeat("</a>", 20_000)
	return map[string]string{
		"a bomb of entities":       bomb + "]>" + wrap(strings.Replace(entry, "VALUE", "&j;", 1)),
		"an entity of its own":     `<!DOCTYPE r [<!ENTITY a "jobs/1/k">]>` + wrap(strings.Replace(entry, "VALUE", "&a;", 1)),
		"a file as an entity":      `<!DOCTYPE r [<!ENTITY a SYSTEM "file:///etc/hostname">]>` + wrap(strings.Replace(entry, "VALUE", "&a;", 1)),
		"a parameter entity":       `<!DOCTYPE r SYSTEM "http://127.0.0.1:1/x.dtd" [<!ENTITY % p SYSTEM "file:///etc/hostname"> %p;]>` + wrap(strings.Replace(entry, "VALUE", "&p;", 1)),
		"20,000 elements deep":     wrap(deep + entry),
		"deep in a known element":  wrap(strings.Replace(entry, "VALUE", deep, 1)),
		"20,000 elements open":     "<" + root + ">" + strings.Repeat("<a>", 20_000),
		"an element of 300 KB":     wrap("<" + strings.Repeat("a", 300_000) + "/>"),
		"an attribute of 300 KB":   "<" + root + ` a="` + strings.Repeat("a", 300_000) + `">` + entry + "</" + root + ">",
		"20,000 attributes":        "<" + root + strings.Repeat(` a="b"`, 20_000) + ">" + entry + "</" + root + "><x>",
		"more than 4 MiB":          wrap(strings.Repeat(" ", 4<<20) + entry),
		"nothing":                  "",
		"another root":             "<Other>" + entry + "</Other>",
		"a second document":        wrap(entry) + wrap(entry),
		"a document in a comment":  "<!--" + wrap(entry) + "-->",
		"JSON":                     `{"Objects":[{"Key":"jobs/1/k"}]}`,
		"not UTF-8":                wrap(strings.Replace(entry, "VALUE", "\xff\xfe", 1)),
		"UTF-16":                   "\xff\xfe<\x00D\x00",
		"another encoding":         `<?xml version="1.0" encoding="UTF-7"?>` + wrap(entry),
		"a version of its own":     `<?xml version="9.9"?>` + wrap(entry),
		"a NUL":                    wrap(strings.Replace(entry, "VALUE", "\x00", 1)),
		"a number that is no text": wrap(strings.Replace(entry, "VALUE", "&#0;", 1)),
	}
}

// TestAttackByXML: a batch or a list of parts that is none changes nothing, and costs no more than its size.
func TestAttackByXML(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.put(t, "/bkt/jobs/1/k", 34, "of 34").want(t, 200)
	upload := p.create(t, "/bkt/jobs/1/k", "X-Fence-Token", "34")
	part := p.do(t, "PUT", "/bkt/jobs/1/k?partNumber=1&uploadId="+upload, "of the part", "X-Fence-Token", "34").want(t, 200)
	etag := part.header.Get("Etag")

	batches := lists("Delete", "<Object><Key>jobs/1/k</Key><VersionId>VALUE</VersionId></Object>")
	batches["1001 keys"] = "<Delete>" + strings.Repeat("<Object><Key>jobs/1/k</Key></Object>", 1001) + "</Delete>"
	batches["two keys in one"] = "<Delete><Object><Key>jobs/1/k</Key><Key>jobs/1/other</Key></Object></Delete>"
	batches["a key of 1025 bytes"] = "<Delete><Object><Key>" + long(1025) + "</Key></Object></Delete>"
	batches["an empty key"] = "<Delete><Object><Key></Key></Object></Delete>"
	for name, body := range batches {
		p.unmoved(t, "DeleteObjects: "+name, func() {
			a := p.do(t, "POST", "/bkt?delete", body, "X-Fence-Token", "34")
			bad := a.status/100 == 4 || a.status == 200 && strings.Contains(string(a.body), "<Error>") // judged key by key
			if !bad || strings.Contains(string(a.body), "<Deleted>") || len(a.body) > 8<<10 {
				t.Errorf("DeleteObjects: %s: %d with %d bytes: %.300s", name, a.status, len(a.body), a.body)
			}
		})
	}
	entry := "<Part><PartNumber>1</PartNumber><ETag>" + etag + "</ETag></Part>"
	completes := lists("CompleteMultipartUpload", "<Part><PartNumber>1</PartNumber><ETag>VALUE</ETag></Part>")
	completes["10,001 parts"] = "<CompleteMultipartUpload>" + strings.Repeat(entry, 10001) + "</CompleteMultipartUpload>"
	for name, n := range map[string]string{"part 0": "0", "part 10001": "10001", "part -1": "-1", "part 2^32+1": "4294967297", "part 2^64+1": "18446744073709551617", "part 1.0": "1.0", "part 0x1": "0x1", "no part": ""} {
		completes[name] = "<CompleteMultipartUpload>" + strings.Replace(entry, ">1<", ">"+n+"<", 1) + "</CompleteMultipartUpload>"
	}
	completes["a part twice"] = "<CompleteMultipartUpload>" + entry + entry + "</CompleteMultipartUpload>"
	completes["another ETag"] = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>00</ETag></Part></CompleteMultipartUpload>"
	for name, body := range completes {
		p.refusedWhole(t, "Complete: "+name, "POST", "/bkt/jobs/1/k?uploadId="+upload, body, "X-Fence-Token", "34")
	}
	if peak := p.peakMemory(t); peak > 1<<30 {
		t.Errorf("it took %d MiB", peak>>20)
	}
	host, err := os.Hostname()
	must(t, "ask for the name of the machine", err)
	for _, r := range p.audit(t, "") {
		if strings.Contains(r.Detail, host) {
			t.Errorf("a file was read: %+v", r)
		}
	}
	p.holds(t, "/bkt/jobs/1/k", "of 34")
	p.do(t, "POST", "/bkt/jobs/1/k?uploadId="+upload, "<CompleteMultipartUpload>"+entry+"</CompleteMultipartUpload>", "X-Fence-Token", "34").want(t, 200)
	p.holds(t, "/bkt/jobs/1/k", "of the part")
}
