package integration

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A lateUpload began before a newer token came and would end after it.
type lateUpload struct {
	size    int
	sent    int  // bytes of the body that go out before the newer token
	expect  bool // Expect: 100-continue
	other   bool // the newer writer writes another key of the resource
	goesOn  bool // the old writer sends the rest then; it stalls for ever otherwise
	newerBy string
}

func (u lateUpload) String() string {
	s := fmt.Sprintf("%d of %d bytes", u.sent, u.size)
	for word, ok := range map[string]bool{", expect": u.expect, ", other key": u.other, ", goes on": u.goesOn} {
		if ok {
			s += word
		}
	}
	return s + ", then " + u.newerBy
}

// TestLateUploads: whatever of an old upload has come when a newer token does, the newer one is answered at once, the old one is refused
// or cut off within seconds, and nothing of it is ever seen.
func TestLateUploads(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	var uploads []lateUpload
	for _, size := range []int{1, 100, 1 << 20, 20 << 20} {
		for _, sent := range []int{size / 2, size - 1} {
			if sent == size/2 && size == 1 {
				continue // the same as all but the last byte
			}
			for i := range 8 {
				u := lateUpload{size: size, sent: sent, expect: i&1 != 0, other: i&2 != 0, goesOn: i&4 != 0, newerBy: "PUT"}
				if size < 20<<20 || i == 0 || i == 7 { // a few large ones are as good as many
					uploads = append(uploads, u)
				}
			}
		}
	}
	for _, by := range []string{"DELETE", "announcement", "GET", "list", "operator", "token-less old writer"} {
		uploads = append(uploads, lateUpload{size: 100, sent: 50, newerBy: by})
	}
	t.Run("uploads", func(t *testing.T) {
		for i, u := range uploads {
			t.Run(u.String(), func(t *testing.T) {
				t.Parallel()
				u.run(t, p, fmt.Sprintf("/bkt/jobs/%d/", i))
			})
		}
	})
	p.holdsNothingOf(t, lateMark)
	p.noTemps(t)
	p.restart(t)
	p.holdsNothingOf(t, lateMark)
}

// lateMark is in the body of every late upload that is long enough. The one-byte body is lateMark's first byte.
const lateMark = "\x01 stale bytes that nobody may ever see \x02"

func lateBody(size int) []byte {
	return bytes.Repeat([]byte(lateMark), size/len(lateMark)+1)[:size]
}

func (u lateUpload) run(t *testing.T, p *proxy, dir string) {
	key, newKey := dir+"k", dir+"k"
	if u.other {
		newKey = dir + "other"
	}
	old, stale := "of 32", "X-Fence-Token: 33\r\n"
	p.put(t, key, 32, old).want(t, 200)
	if u.newerBy == "token-less old writer" {
		dir += "never/fenced/before/"
		key, newKey = strings.Replace(dir, "jobs", "single", 1), strings.Replace(dir, "jobs", "single", 1)
		key, newKey = key+"k", newKey+"k"
		stale = ""
		p.put(t, key, 0, old).want(t, 200)
	}
	c := u.begin(t, p, key, stale)

	start := time.Now()
	content := u.newer(t, p, newKey, old)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the new holder waited for %v", took)
	}

	start = time.Now()
	if u.goesOn {
		_, _ = c.Write(lateBody(u.size)[u.sent:]) // it may be cut off already
	}
	interim := c.learnsOf34(t, start)
	if u.expect && len(interim) > 0 {
		t.Errorf("interim answers %v after the first one", interim)
	}

	if newKey != key {
		p.holds(t, key, old)
	}
	if content == "" {
		p.absent(t, newKey)
	} else {
		p.holds(t, newKey, content)
	}
	p.put(t, key, 33, "stale").stale(t, 34)
	p.put(t, key, 34, "goes on").want(t, 200)
}

// learnsOf34 wants an old writer refused or cut off, within seconds from start. It returns the interim answers that came before.
func (c *conn) learnsOf34(t *testing.T, start time.Time) (interim []int) {
	t.Helper()
	a, interim, err := c.answer("PUT")
	switch {
	case cut(err):
	case err != nil:
		t.Errorf("the old writer was told nothing: %v", err)
	default:
		a.stale(t, 34)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("the old writer learnt of it after %v", took)
	}
	return interim
}

// begin sends the part of the upload that comes before the newer token, and waits until the proxy has begun to read it.
func (u lateUpload) begin(t *testing.T, p *proxy, key, headers string) *conn {
	t.Helper()
	before := p.temps(t)
	c := p.dial(t)
	if u.expect {
		headers += "Expect: 100-continue\r\n"
	}
	c.say("PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n%s\r\n", key, p.addr, u.size, headers)
	if u.expect {
		if line, err := c.r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
			t.Fatalf("%q, %v instead of 100 Continue", line, err)
		}
		_, _ = c.r.ReadString('\n')
	}
	if _, err := c.Write(lateBody(u.size)[:u.sent]); err != nil {
		t.Fatal(err)
	}
	// Others upload beside it, so this may be true a moment early: then the newer token comes before the proxy has read anything,
	// which must be as good.
	eventually(t, "an upload begins", func() bool { return len(p.temps(t)) > 0 || len(before) > 0 })
	return c
}

// newer is what comes with token 34 while the old upload stalls. It returns what the key holds then.
func (u lateUpload) newer(t *testing.T, p *proxy, key, old string) string {
	t.Helper()
	switch u.newerBy {
	case "DELETE":
		p.do(t, "DELETE", key, "", "X-Fence-Token", "34").want(t, 204)
		return ""
	case "announcement":
		p.do(t, "PUT", key+"?fence", "", "X-Fence-Token", "34").want(t, 200)
		return old
	case "GET":
		p.do(t, "GET", key, "", "X-Fence-Token", "34").want(t, 200)
		return old
	case "list":
		dir := strings.TrimSuffix(strings.TrimPrefix(key, "/bkt/"), "k")
		p.do(t, "GET", "/bkt?list-type=2&prefix="+dir, "", "X-Fence-Token", "34").want(t, 200)
		return old
	case "operator":
		p.ok(t, "fences", "raise", strings.TrimSuffix(strings.TrimPrefix(key, "/"), "/k"), "34")
		return old
	}
	p.put(t, key, 34, "of 34").want(t, 200)
	return "of 34"
}

// temps are the store's temporary files.
func (p *proxy) temps(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(p.root, ".fenceproxy", "tmp"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// noTemps waits until no temporary file is left.
func (p *proxy) noTemps(t *testing.T) {
	t.Helper()
	eventually(t, "temporary files go away", func() bool { return len(p.temps(t)) == 0 })
}

// holdsNothingOf looks for a mark in every file there is, in objects and data.
func (p *proxy) holdsNothingOf(t *testing.T, mark string) {
	t.Helper()
	for _, dir := range []string{p.root, p.data} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if strings.Contains(string(content), mark) || string(content) == mark[:1] {
				t.Errorf("%s holds what was refused", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheRaiseDoesNotWaitForBodies: many old uploads at once, on one resource, hold a new holder up no more than one does.
func TestTheRaiseDoesNotWaitForBodies(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const uploads = 50
	var old []*conn
	for i := range uploads {
		u := lateUpload{size: 1 << 20, sent: 1<<20 - 1}
		old = append(old, u.begin(t, p, fmt.Sprintf("/bkt/jobs/1/%d", i), "X-Fence-Token: 33\r\n"))
	}
	eventually(t, "all uploads begin", func() bool { return len(p.temps(t)) == uploads })
	start := time.Now()
	p.put(t, "/bkt/jobs/1/new", 34, "of 34").want(t, 200)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the new holder waited for %v", took)
	}
	for i, c := range old {
		_, _ = c.Write([]byte{1}) // the last byte, that it all hung on
		if a, _, err := c.answer("PUT"); err == nil {
			a.stale(t, 34)
		} else if !cut(err) {
			t.Errorf("upload %d was told nothing: %v", i, err)
		}
		p.absent(t, fmt.Sprintf("/bkt/jobs/1/%d", i))
	}
	p.noTemps(t)
	p.holdsNothingOf(t, lateMark)
}

// TestAnEqualTokenIsNotCut: uploads with the token of the newer writer go on beside it.
func TestAnEqualTokenIsNotCut(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	u := lateUpload{size: 1 << 20, sent: 1 << 19}
	c := u.begin(t, p, "/bkt/jobs/1/large", "X-Fence-Token: 34\r\n")
	p.put(t, "/bkt/jobs/1/small", 34, "small").want(t, 200)
	p.put(t, "/bkt/jobs/1/large", 34, "overtaken").want(t, 200)
	_, _ = c.Write(lateBody(u.size)[u.sent:])
	a, _, err := c.answer("PUT")
	if err != nil {
		t.Fatal(err)
	}
	a.want(t, 200)
	p.holds(t, "/bkt/jobs/1/large", string(lateBody(u.size)))
}

// TestTokenlessUploadsMeetTheFirstRaise: an upload without a token that stalls on a key never fenced is refused once the first token has
// come, and the raise does not wait for it.
func TestTokenlessUploadsMeetTheFirstRaise(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	for i, newer := range []string{"PUT", "announcement", "GET"} {
		key := fmt.Sprintf("/bkt/first/%d", i)
		p.put(t, key, 0, "old").want(t, 200)
		u := lateUpload{size: 1 << 20, sent: 1<<20 - 1, newerBy: newer}
		c := u.begin(t, p, key, "")
		start := time.Now()
		content := u.newer(t, p, key, "old")
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the first raise waited for %v", took)
		}
		_, _ = c.Write(lateBody(u.size)[u.sent:])
		if a, _, err := c.answer("PUT"); err == nil {
			a.stale(t, 34)
		} else if !cut(err) {
			t.Error(err)
		}
		p.holds(t, key, content)
		p.put(t, key, 0, "without a token").stale(t, 34)
		p.holds(t, key, content)
	}
	p.holdsNothingOf(t, lateMark)
}
