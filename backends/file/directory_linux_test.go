package file

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// dirState is what a directory object's metadata says, or "absent".
func (b *bench) dirState(key string) string {
	b.Helper()
	w := b.do("HEAD", "/bucket/"+key, "")
	if w.Code == 404 {
		return "absent"
	}
	b.want(w, 200)
	return w.Header().Get("X-Amz-Meta-Of")
}

func (b *bench) mark(key, of string, headers ...string) {
	b.Helper()
	b.want(b.do("PUT", "/bucket/"+key, "", append(headers, "X-Amz-Meta-Of", of)...), 200)
}

// TestDirectoryIsPlain is the promise to other programs: a directory object is a directory with an attribute.
func TestDirectoryIsPlain(t *testing.T) {
	b := newBench(t, Options{})
	b.mark("d/e/", "mark")
	for path, has := range map[string]bool{"bucket/d": false, "bucket/d/e": true} {
		info, err := os.Stat(b.path(path))
		if err != nil || !info.IsDir() {
			t.Errorf("%s: %v %v", path, info, err)
		}
		if n, err := unix.Getxattr(b.path(path), attribute, nil); (err == nil && n > 0) != has {
			t.Errorf("the attribute of %s: %d bytes, %v; want it: %v", path, n, err, has)
		}
	}
	if left := b.files(tempDir); len(left) > 0 {
		t.Errorf("temporary files are left: %q", left)
	}
	b.reopen(Options{})
	if got := b.dirState("d/e/"); got != "mark" {
		t.Errorf("reopened: %q", got)
	}
	if err := os.WriteFile(b.path("bucket/d/e/foreign"), nil, 0o600); err != nil { // another program changes the directory's time
		t.Fatal(err)
	}
	if got := b.dirState("d/e/"); got != "mark" {
		t.Errorf("with a file in it: %q", got)
	}
}

// TestDirectoryStays takes away what lies in and beside directory objects.
func TestDirectoryStays(t *testing.T) {
	b := newBench(t, Options{})
	b.mark("d/", "outer")
	b.mark("d/e/f/", "inner")
	b.put("d/e/f/g/key", "content")
	b.want(b.do("DELETE", "/bucket/d/e/f/g/key", ""), 204)
	if _, err := os.Stat(b.path("bucket/d/e/f/g")); !os.IsNotExist(err) {
		t.Errorf("a directory that is empty and no object is left: %v", err)
	}
	if got := b.dirState("d/e/f/"); got != "inner" {
		t.Errorf("the directory object above a deleted object is %q", got)
	}
	b.wantCode(b.do("PUT", "/bucket/d/e", "x"), 400, "ExistingObjectIsDirectory") // not swept away as an empty directory
	b.wantCode(b.do("PUT", "/bucket/d", "x"), 400, "ExistingObjectIsDirectory")
	b.wantCode(b.do("DELETE", "/bucket", ""), 409, "BucketNotEmpty")
	b.want(b.do("DELETE", "/bucket/d/e/", ""), 204) // no object
	b.want(b.do("DELETE", "/bucket/d/e/f/", ""), 204)
	if _, err := os.Stat(b.path("bucket/d/e")); !os.IsNotExist(err) {
		t.Errorf("the directories of a deleted directory object are left: %v", err)
	}
	if got := b.dirState("d/"); got != "outer" {
		t.Errorf("the outer one is %q", got)
	}
	b.put("d/key", "content")
	b.want(b.do("DELETE", "/bucket/d/", ""), 204)
	b.holds("d/key", "content")
	if got := b.dirState("d/"); got != "absent" {
		t.Errorf("deleted: %q", got)
	}
	b.want(b.do("DELETE", "/bucket/d/key", ""), 204)
	b.want(b.do("DELETE", "/bucket", ""), 204)
}

// TestDirectoryOfLaterVersion keeps what it cannot read.
func TestDirectoryOfLaterVersion(t *testing.T) {
	b := newBench(t, Options{})
	b.put("d/key", "content")
	if err := unix.Setxattr(b.path("bucket/d"), attribute, []byte("v=99&etag=x"), 0); err != nil {
		t.Skip(err)
	}
	if got := b.dirState("d/"); got != "absent" {
		t.Errorf("it is served: %q", got)
	}
	b.wantCode(b.do("PUT", "/bucket/d/", ""), 501, "NotImplemented")
	b.want(b.do("DELETE", "/bucket/d/key", ""), 204)
	if n, err := unix.Getxattr(b.path("bucket/d"), attribute, nil); err != nil || n != len("v=99&etag=x") {
		t.Errorf("its attribute has %d bytes, %v", n, err)
	}
	b.wantCode(b.do("DELETE", "/bucket", ""), 409, "BucketNotEmpty")
	var found []Finding
	b.check(t, func(f Finding) { found = append(found, f) })
	if len(found) != 1 || found[0].Level != Error || !strings.Contains(found[0].What, "version") {
		t.Errorf("fsck: %+v", found)
	}
}

// check closes the store and looks through it.
func (b *bench) check(t *testing.T, report func(Finding)) (objects []string) {
	t.Helper()
	_ = b.Close()
	c, err := OpenCheck(b.dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Run(context.Background(), report, func(o Object) { objects = append(objects, o.Key+" "+o.Headers["X-Amz-Meta-Of"]) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(objects)
	return objects
}

func TestDirectoryIsChecked(t *testing.T) {
	b := newBench(t, Options{})
	b.mark("d/", "mark")
	b.put("d/key", "content")
	objects := b.check(t, func(f Finding) { t.Errorf("%+v", f) })
	if !slices.Equal(objects, []string{"d/ mark", "d/key content"}) {
		t.Errorf("found are %q", objects)
	}
}

// TestDirectoryWithoutAttributes refuses by name where the file system has none.
func TestDirectoryWithoutAttributes(t *testing.T) {
	b := newBench(t, Options{ForceSideFiles: true})
	b.wantCode(b.do("PUT", "/bucket/d/", ""), 501, "NotImplemented")
	if left := b.files(sideDir); len(left) > 0 {
		t.Errorf("side files are left: %q", left)
	}
	b.put("d", "content") // what was made on the way is in nobody's way
}

func TestDirectoryMetadataTooLarge(t *testing.T) {
	b := newBench(t, Options{})
	b.mark("d/", "old")
	b.sys = (&faults{at: -1, on: failOn("fsetxattr d", unix.ENOSPC)}).system()
	b.wantCode(b.do("PUT", "/bucket/d/", "", "Content-Disposition", strings.Repeat("long ", 500)), 400, "MetadataTooLarge")
	b.wantCode(b.do("PUT", "/bucket/d/", ""), 503, "ServiceUnavailable")
	b.sys = &kernel
	if got := b.dirState("d/"); got != "old" {
		t.Errorf("it is %q", got)
	}
}

var directoryScenarios = []scenario{
	{name: "new", method: "PUT", key: "new/", before: "absent", after: "fresh"},
	{name: "new in new directories", method: "PUT", key: "x/y/new/", before: "absent", after: "fresh"},
	{name: "of a directory", method: "PUT", key: "d/", before: "absent", after: "fresh"},
	{name: "replaced", setup: func(b *bench) { b.mark("d/", "old") }, method: "PUT", key: "d/", before: "old", after: "fresh"},
	{
		name: "conditional", setup: func(b *bench) { b.mark("d/", "old") }, header: []string{"If-Match", "d41d8cd98f00b204e9800998ecf8427e"},
		method: "PUT", key: "d/", before: "old", after: "fresh",
	},
	{name: "deleted", setup: func(b *bench) { b.mark("x/y/", "old") }, method: "DELETE", key: "x/y/", before: "old", after: "absent"},
	{name: "deleted, not empty", setup: func(b *bench) { b.mark("d/", "old") }, method: "DELETE", key: "d/", before: "old", after: "absent"},
	{
		name: "copied", setup: func(b *bench) { b.mark("d/", "fresh") }, header: []string{"X-Amz-Copy-Source", "/bucket/d/"},
		method: "PUT", key: "x/copy/", before: "absent", after: "fresh",
	},
}

// TestFaultsOfDirectories fails every system call of writes to directory objects, as TestFaults does with files.
func TestFaultsOfDirectories(t *testing.T) {
	for _, sc := range directoryScenarios {
		for _, mode := range []faultMode{notDone, reported, dead} {
			t.Run(sc.name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				for n := 0; sc.failDirectory(t, mode, n); n++ {
					if n > 200 {
						t.Fatal("the scenario does not end")
					}
				}
			})
		}
	}
}

// failDirectory runs the scenario with its n-th call failing, and says whether there was an n-th call.
func (sc scenario) failDirectory(t *testing.T, mode faultMode, n int) bool {
	b := newBench(t, Options{})
	b.put("d/neighbour", "neighbour")
	if sc.setup != nil {
		sc.setup(b)
	}
	f := &faults{at: n, mode: mode, err: unix.EIO}
	b.sys = f.system()
	w := b.do(sc.method, "/bucket/"+sc.key, "", append(sc.header, "X-Amz-Meta-Of", sc.after)...)
	b.sys = &kernel
	allowed := []string{sc.before, sc.after}
	if w.Code < 300 {
		allowed = []string{sc.after}
	} else if w.Code < 500 || w.Code == 501 || w.Code == 503 {
		allowed = []string{sc.before}
	}
	for _, when := range []string{"at once", "reopened"} {
		if got := b.dirState(sc.key); !slices.Contains(allowed, got) {
			t.Errorf("%d after %q, %s: %q, want one of %q", w.Code, f.calls[:min(n+1, len(f.calls))], when, got, allowed)
		}
		b.holds("d/neighbour", "neighbour")
		b.reopen(Options{})
	}
	_ = b.Close()
	return n < len(f.calls)
}

// TestDirectoryIsDurable looks for the sync behind the effect, and before the answer.
func TestDirectoryIsDurable(t *testing.T) {
	b := newBench(t, Options{})
	for _, method := range []string{"PUT", "DELETE"} {
		f := &faults{at: -1}
		b.sys = f.system()
		w := b.do(method, "/bucket/d/e/", "")
		b.sys = &kernel
		effect := slices.IndexFunc(f.calls, func(c string) bool { return c == "fsetxattr e" || c == "fremovexattr e" })
		if w.Code >= 300 || effect < 0 || !slices.Contains(f.calls[effect:], "fsync e") {
			t.Errorf("%s answered %d after %q", method, w.Code, f.calls)
		}
	}
}

// TestDirectoriesRace makes and deletes directory objects, objects in them, and files of their names at once.
func TestDirectoriesRace(t *testing.T) {
	b := newBench(t, Options{})
	var all sync.WaitGroup
	for _, key := range []string{"a/", "a/b/", "a/b", "a/b/c", "a/d", "a"} {
		all.Go(func() {
			for range 50 {
				content := key
				if strings.HasSuffix(key, "/") {
					content = ""
				}
				switch w := b.do("PUT", "/bucket/"+key, content, "X-Amz-Meta-Of", key); w.Code {
				case 200:
					if w := b.do("HEAD", "/bucket/"+key, ""); w.Code != 200 || w.Header().Get("X-Amz-Meta-Of") != key {
						t.Errorf("%s was put and is not there: %d", key, w.Code)
					}
					if w := b.do("DELETE", "/bucket/"+key, ""); w.Code != 204 {
						t.Errorf("DELETE %s: %d %s", key, w.Code, w.Body)
					}
				case 400: // another has the name
				default:
					t.Errorf("PUT %s: %d %s", key, w.Code, w.Body)
				}
			}
		})
	}
	all.Wait()
	b.want(b.do("DELETE", "/bucket", ""), 204)
}
