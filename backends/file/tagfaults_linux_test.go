package file

import (
	"encoding/xml"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func (b *bench) tag(key string, tags ...tag) *httptest.ResponseRecorder {
	b.Helper()
	var doc strings.Builder
	for _, t := range tags {
		fmt.Fprintf(&doc, "<Tag><Key>%s</Key><Value>%s</Value></Tag>", t.Key, t.Value)
	}
	return b.do("PUT", "/bucket/"+key+"?tagging", "<Tagging><TagSet>"+doc.String()+"</TagSet></Tagging>")
}

// tags are those of an object as x-amz-tagging has them, "absent" without an object.
func (b *bench) tags(key string) string {
	b.Helper()
	w := b.do("GET", "/bucket/"+key+"?tagging", "")
	if w.Code == 404 {
		return "absent"
	}
	b.want(w, 200)
	var doc taggingDocument
	if err := xml.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		b.Fatal(err)
	}
	return encodeTags(doc.Tags)
}

// A retagging is one write of tags, from old=1 to new=1 or to none. The record is in an attribute before it, or in a side file.
type retagging struct {
	key   string
	side  bool
	setup func(b *bench)
	run   func(b *bench) *httptest.ResponseRecorder
	after string

	// moves says that nothing fits into an attribute while it runs: the record moves to a side file.
	moves bool
}

func putNew(key string) func(b *bench) *httptest.ResponseRecorder {
	return func(b *bench) *httptest.ResponseRecorder { return b.tag(key, tag{"new", "1"}) }
}

func putOld(key, content string) func(b *bench) {
	return func(b *bench) {
		b.want(b.do("PUT", "/bucket/"+key, content, "X-Amz-Meta-Of", content, "X-Amz-Tagging", "old=1"), 200)
	}
}

var retaggings = map[string]retagging{
	"attribute":              {key: "d/key", setup: putOld("d/key", "content"), run: putNew("d/key"), after: "new=1"},
	"side file":              {key: "d/key", side: true, setup: putOld("d/key", "content"), run: putNew("d/key"), after: "new=1"},
	"attribute to side file": {key: "d/key", setup: putOld("d/key", "content"), run: putNew("d/key"), after: "new=1", moves: true},
	"directory":              {key: "d/dir/", setup: putOld("d/dir/", ""), run: putNew("d/dir/"), after: "new=1"},
	"delete": {
		key: "d/key", setup: putOld("d/key", "content"), after: "",
		run: func(b *bench) *httptest.ResponseRecorder { return b.do("DELETE", "/bucket/d/key?tagging", "") },
	},
	"object in parts": {
		key: "d/key", run: putNew("d/key"), after: "new=1",
		setup: func(b *bench) {
			b.up = b.create("d/key", "content")
			b.up.part(1, "content")
			b.want(b.up.complete(1), 200)
			b.want(b.tag("d/key", tag{"old", "1"}), 200)
		},
	},
}

// TestFaultsOfTags fails every system call of every change of tags in every mode: the tags are the old or the new ones, whatever happens, as the
// answer says, and nothing else of the object has changed.
func TestFaultsOfTags(t *testing.T) {
	for name, rt := range retaggings {
		for _, mode := range []faultMode{notDone, reported, dead} {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				for n := 0; rt.fail(t, mode, n); n++ {
					if n > 200 {
						t.Fatal("it does not end")
					}
				}
			})
		}
	}
}

func (rt retagging) fail(t *testing.T, mode faultMode, n int) bool {
	o := Options{ForceSideFiles: rt.side}
	b := newBench(t, o)
	b.put("neighbour", "neighbour")
	rt.setup(b)
	etag, modified := rt.head(b)
	f := &faults{at: n, mode: mode, err: unix.EIO}
	if rt.moves {
		f.on = failOn("fsetxattr", unix.ENOSPC)
	}
	b.sys = f.system()
	w := rt.run(b)
	b.sys = &kernel
	what := fmt.Sprintf("%d after %s", w.Code, strings.Join(f.calls[:min(n+1, len(f.calls))], ", "))
	allowed := []string{"old=1", rt.after}
	switch {
	case w.Code < 300:
		allowed = allowed[1:]
	case w.Code < 500 || w.Code == 501 || w.Code == 503:
		allowed = allowed[:1]
	case !strings.Contains(w.Body.String(), "outcome is unknown"):
		t.Errorf("%s: the message does not say that the outcome is unknown: %s", what, w.Body)
	}
	check := func(when string, allowed ...string) {
		t.Helper()
		if got := b.tags(rt.key); !slices.Contains(allowed, got) {
			t.Fatalf("%s: the tags are %q, want one of %q", when, got, allowed)
		}
		if e, m := rt.head(b); e != etag || m != modified {
			t.Errorf("%s: the object is %s of %s, and was %s of %s", when, e, m, etag, modified)
		}
		b.holds("neighbour", "neighbour")
	}
	check(what, allowed...)
	_ = b.Close()
	for _, line := range b.findings(false) {
		if !strings.HasPrefix(line, "mend ") {
			t.Errorf("%s: fsck says %s", what, line)
		}
	}
	b.reopen(o)
	check(what+", reopened", allowed...)
	if left := b.files(tempDir); len(left) > 0 {
		t.Errorf("%s, reopened: temporary files are left: %q", what, left)
	}
	if w.Code >= 500 { // the client comes back
		if w := rt.run(b); w.Code >= 300 {
			t.Errorf("%s, repeated: %d %s", what, w.Code, w.Body)
		}
		check(what+", repeated", rt.after)
	}
	b.want(b.do("DELETE", "/bucket/"+rt.key, ""), 204)
	if got := b.tags(rt.key); got != "absent" {
		t.Errorf("%s: after the object was deleted its tags are %q", what, got)
	}
	_ = b.Close()
	return n < len(f.calls)
}

// head is the ETag and the time of an object whose content and metadata are right.
func (rt retagging) head(b *bench) (etag, modified string) {
	b.Helper()
	b.state(rt.key)
	h := b.do("HEAD", "/bucket/"+rt.key, "").Header()
	return h.Get("ETag"), h.Get("Last-Modified")
}

// TestTagsUnderTheLock looks, within the calls that change tags, whether the locks are held that keep a PUT or a DELETE of the key out.
func TestTagsUnderTheLock(t *testing.T) {
	for _, side := range []bool{false, true} {
		b := newBench(t, Options{ForceSideFiles: side})
		putOld("d/key", "content")(b)
		effect := "fsetxattr key"
		if side {
			effect = "renameat put-"
		}
		n, seen := name{bucket: "bucket", dirs: []string{"d"}, base: "key"}, false
		b.sys = (&faults{at: -1, on: func(call string) error {
			if strings.HasPrefix(call, effect) || call == "openat key" {
				seen = seen || strings.HasPrefix(call, effect)
				if lock := b.key(n); lock.TryLock() {
					lock.Unlock()
					t.Errorf("%s without the key's lock", call)
				}
			}
			return nil
		}}).system()
		b.want(b.tag("d/key", tag{"new", "1"}), 200)
		b.sys = &kernel
		if !seen {
			t.Errorf("no %s was seen", effect)
		}
	}
}

// TestTagsOfForeignFile gives tags to a file that another program has written: its ETag and its time stay, and the tags go when it is changed.
func TestTagsOfForeignFile(t *testing.T) {
	b := newBench(t, Options{})
	b.write("bucket/key", "theirs")
	etag := b.do("HEAD", "/bucket/key", "").Header().Get("ETag")
	b.want(b.tag("key", tag{"new", "1"}), 200)
	w := b.do("GET", "/bucket/key", "")
	if got := b.tags("key"); got != "new=1" || w.Header().Get("ETag") != etag || w.Body.String() != "theirs" {
		t.Errorf("tags %q, ETag %s, want %s, %q", got, w.Header().Get("ETag"), etag, w.Body)
	}
	b.write("bucket/key", "theirs again")
	if got := b.tags("key"); got != "" {
		t.Errorf("a file that was changed since has the tags %q", got)
	}
}

// TestMoreMetadataThanAnAttribute: what does not fit goes to a side file, and comes back.
func TestMoreMetadataThanAnAttribute(t *testing.T) {
	b := newBench(t, Options{})
	value := strings.Repeat("ü", 256)
	var tags []tag
	for i := range maxTags {
		tags = append(tags, tag{fmt.Sprintf("%s%d", strings.Repeat("k", 120), i), value})
	}
	b.put("key", "content")
	b.want(b.tag("key", tags...), 200)
	b.holds("key", "content")
	if got := b.tags("key"); got != encodeTags(tags) {
		t.Errorf("the tags are %q", got)
	}
	b.put("key", "other")
	b.want(b.do("DELETE", "/bucket/key", ""), 204)
	if left := b.files(sideDir); len(left) > 0 {
		t.Errorf("side files are left: %q", left)
	}
}
