package file

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func (b *bench) mkdir(path string) {
	b.Helper()
	if err := os.MkdirAll(b.path(path), 0o755); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) write(path, content string) {
	b.Helper()
	if err := os.WriteFile(b.path(path), []byte(content), 0o644); err != nil {
		b.Fatal(err)
	}
}

func TestOpenTwice(t *testing.T) {
	b := newBench(t, Options{})
	_, err := Open(b.dir, Options{})
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), b.dir) {
		t.Fatalf("a second Open: %v, want ErrLocked with the root's name", err)
	}
	b.put("key", "content") // the first is not disturbed
	b.reopen(Options{})
	b.holds("key", "content")
}

func TestOpenBadRoot(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "file")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{plain, filepath.Join(plain, "below")} {
		if s, err := Open(root, Options{}); err == nil || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("Open(%s) = %v, %v", root, s, err)
		}
	}
	linked := filepath.Join(dir, "linked")
	if err := os.MkdirAll(linked, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(linked, ownDir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(linked, Options{}); err == nil {
		t.Error("a symbolic link in place of the store's own directory was followed")
	}
}

func TestNetworkFS(t *testing.T) {
	for kind, fsName := range networkFS {
		if err := judgeFS(kind, false); !errors.Is(err, ErrNetworkFS) || !strings.Contains(err.Error(), fsName) {
			t.Errorf("%s: %v", fsName, err)
		}
		if err := judgeFS(kind, true); err != nil {
			t.Errorf("%s, allowed: %v", fsName, err)
		}
	}
	for _, local := range []uint32{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC} {
		if err := judgeFS(local, false); err != nil {
			t.Errorf("%x: %v", local, err)
		}
	}
}

func TestOpenRemovesTemps(t *testing.T) {
	b := newBench(t, Options{ForceSideFiles: true})
	b.put("key", "content")
	b.write(ownDir+"/tmp/put-1", "half")
	var st unix.Stat_t
	if err := unix.Stat(b.path(ownDir, "tmp", "put-1"), &st); err != nil {
		t.Fatal(err)
	}
	b.write(ownDir+"/meta/"+sideName(&st), "v=1")
	if err := unix.Link(b.path("bucket/key"), b.path(ownDir, "tmp", "put-2")); err != nil { // half of a rename, after a loss of power
		t.Fatal(err)
	}
	b.reopen(Options{})
	if tmp, side := b.files(tempDir), b.files(sideDir); len(tmp) != 0 || len(side) != 1 {
		t.Errorf("after Open there are %q and %q, want no temporary file and the object's side file", tmp, side)
	}
	b.holds("key", "content")
}

func TestRegistry(t *testing.T) {
	b := newBench(t, Options{})
	for _, id := range []string{"01JDXR", "01JDXS"} {
		if err := b.BindRegistry(id); err != nil {
			t.Fatal(err)
		}
		b.reopen(Options{})
		if got, err := b.RegistryID(); got != id || err != nil {
			t.Errorf("RegistryID = %q, %v; want %q", got, err, id)
		}
	}
	for _, id := range []string{"", "two words", "line\n", strings.Repeat("x", 257)} {
		if err := b.BindRegistry(id); err == nil {
			t.Errorf("BindRegistry(%q) was taken", id)
		}
	}
	b.write(ownDir+"/registry", "")
	if id, err := b.RegistryID(); err == nil {
		t.Errorf("a damaged id was read as %q", id)
	}
	if err := os.Remove(b.path(ownDir, "registry")); err != nil {
		t.Fatal(err)
	}
	if id, err := b.RegistryID(); id != "" || err != nil {
		t.Errorf("RegistryID where none is bound = %q, %v", id, err)
	}
	f := &faults{at: -1, err: unix.EIO, on: failOn("fsync", unix.EIO)}
	b.sys = f.system()
	if err := b.BindRegistry("01JDXT"); err == nil {
		t.Error("BindRegistry says that it is durable when nothing could be synced")
	}
	b.sys = &kernel
}

// TestPlainFiles is the promise to other programs.
func TestPlainFiles(t *testing.T) {
	b := newBench(t, Options{})
	b.put("dir/key", "content")
	content, err := os.ReadFile(b.path("bucket/dir/key"))
	if err != nil || string(content) != "content" {
		t.Errorf("the file holds %q, %v", content, err)
	}
	old := unix.Umask(0)
	unix.Umask(old)
	for path, mode := range map[string]os.FileMode{"bucket": 0o755, "bucket/dir": 0o755, "bucket/dir/key": 0o644, ownDir: 0o700} {
		if info, err := os.Stat(b.path(path)); err != nil || info.Mode().Perm() != mode&^os.FileMode(old) {
			t.Errorf("%s: %v %v, want %o", path, info.Mode(), err, mode)
		}
	}
}

// TestSymlinks makes links of every kind that could lead a key somewhere else.
func TestSymlinks(t *testing.T) {
	b := newBench(t, Options{})
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "key"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.put("real/key", "content")
	for link, to := range map[string]string{
		"bucket/in-dir": "real", "bucket/in-file": "real/key", "bucket/out-dir": outside, "bucket/out-file": filepath.Join(outside, "key"),
		"bucket/dangling": filepath.Join(outside, "new"), "bucket/self": ".", "linked": "bucket", "linked-out": outside,
	} {
		if err := os.Symlink(to, b.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"in-dir/key", "in-file", "out-dir/key", "out-file", "dangling", "out-dir/new", "self/real/key"} {
		b.wantCode(b.do("GET", "/bucket/"+key, ""), 404, "NoSuchKey")
		b.wantCode(b.do("PUT", "/bucket/"+key, "overwritten"), 400, "InvalidArgument")
		b.want(b.do("DELETE", "/bucket/"+key, ""), 204)
	}
	for _, bucket := range []string{"linked", "linked-out"} {
		b.wantCode(b.do("GET", "/"+bucket+"/real/key", ""), 404, "NoSuchBucket")
		b.wantCode(b.do("PUT", "/"+bucket+"/key", "x"), 404, "NoSuchBucket")
		b.wantCode(b.do("DELETE", "/"+bucket+"/key", ""), 404, "NoSuchBucket")
		b.wantCode(b.do("GET", "/"+bucket+"?list-type=2", ""), 404, "NoSuchBucket")
		b.wantCode(b.do("DELETE", "/"+bucket, ""), 404, "NoSuchBucket")
		b.wantCode(b.do("PUT", "/"+bucket, ""), 409, "BucketAlreadyExists")
	}
	b.holds("real/key", "content")
	if content, err := os.ReadFile(filepath.Join(outside, "key")); err != nil || string(content) != "secret" {
		t.Errorf("the file outside holds %q, %v", content, err)
	}
	if _, err := os.Lstat(filepath.Join(outside, "new")); !os.IsNotExist(err) {
		t.Errorf("a file was made outside: %v", err)
	}
	if _, err := os.Lstat(b.path("bucket/in-file")); err != nil {
		t.Errorf("the link was removed: %v", err)
	}
	list := b.do("GET", "/bucket?list-type=2", "").Body.String()
	if !strings.Contains(list, "<KeyCount>1</KeyCount>") || strings.Contains(b.do("GET", "/", "").Body.String(), "linked") {
		t.Errorf("links are listed: %s", list)
	}
}

func TestSpecialFiles(t *testing.T) {
	b := newBench(t, Options{})
	if err := unix.Mkfifo(b.path("bucket/fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(b.path("bucket/socket"), unix.S_IFSOCK|0o644, 0); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"fifo", "socket"} {
		b.wantCode(b.do("GET", "/bucket/"+key, ""), 404, "NoSuchKey")
		b.wantCode(b.do("PUT", "/bucket/"+key, "x"), 400, "InvalidArgument")
		b.want(b.do("DELETE", "/bucket/"+key, ""), 204)
		if _, err := os.Lstat(b.path("bucket", key)); err != nil {
			t.Error(err)
		}
	}
	if list := b.do("GET", "/bucket?list-type=2", "").Body.String(); !strings.Contains(list, "<KeyCount>0</KeyCount>") {
		t.Errorf("special files are listed: %s", list)
	}
	b.wantCode(b.do("DELETE", "/bucket", ""), 409, "BucketNotEmpty")
}

// TestForeignWrites changes files as other programs do.
func TestForeignWrites(t *testing.T) {
	for _, side := range []bool{false, true} {
		b := newBench(t, Options{ForceSideFiles: side})
		b.put("key", "content")
		ours := b.do("HEAD", "/bucket/key", "").Header().Get("ETag")
		b.write("bucket/key", "CONTENT") // in place, the same size
		b.mkdir("bucket/dir")
		b.write("bucket/dir/new", "foreign")
		seen := map[string]bool{ours: true}
		for _, key := range []string{"key", "dir/new"} {
			w := b.do("GET", "/bucket/"+key, "")
			etag := w.Header().Get("ETag")
			if w.Code != 200 || len(etag) != 36 || !strings.HasSuffix(etag, `-1"`) || seen[etag] || w.Header().Get("Content-Type") != defaultType || w.Header().Get("X-Amz-Meta-Of") != "" {
				t.Errorf("%s: %d %v", key, w.Code, w.Header())
			}
			seen[etag] = true
			if list := b.do("GET", "/bucket?list-type=2", "").Body.String(); !strings.Contains(list, strings.Trim(etag, `"`)) {
				t.Errorf("the list does not have the ETag %s: %s", etag, list)
			}
			b.want(b.do("PUT", "/bucket/"+key, "late", "If-Match", ours), 412)
			b.want(b.do("PUT", "/bucket/"+key, "x", "If-Match", etag, "X-Amz-Meta-Of", "x"), 200)
			b.holds(key, "x")
		}
	}
}

// TestForeignAttribute reads what is not ours, or of a later version, as no metadata.
func TestForeignAttribute(t *testing.T) {
	b := newBench(t, Options{})
	for _, text := range []string{"", "{}", "v=2&etag=x&size=1&mtime=1", "v=1", "v=1&etag=x&size=a&mtime=b", "%zz", strings.Repeat("x", 3000)} {
		b.write("bucket/key", "x")
		if err := unix.Setxattr(b.path("bucket/key"), attribute, []byte(text), 0); err != nil {
			t.Skip(err)
		}
		if etag := b.do("GET", "/bucket/key", "").Header().Get("ETag"); !strings.HasSuffix(etag, `-1"`) {
			t.Errorf("attribute %q: ETag %s", text, etag)
		}
	}
}

// TestMetadataIsBytes carries header values that are not UTF-8, and more of them than an attribute may hold on some file systems.
func TestMetadataIsBytes(t *testing.T) {
	b := newBench(t, Options{})
	latin, long := "caf\xe9 \u00fc", strings.Repeat("long ", 1500)+"."
	b.want(b.do("PUT", "/bucket/key", "x", "X-Amz-Meta-Latin", latin, "Content-Disposition", long), 200)
	h := b.do("GET", "/bucket/key", "").Header()
	if h.Get("X-Amz-Meta-Latin") != latin || h.Get("Content-Disposition") != long {
		t.Errorf("%q", h)
	}
}

// TestCommitMeetsPrunedDirectory deletes the last neighbour of an object while its body is held back.
func TestCommitMeetsPrunedDirectory(t *testing.T) {
	b := newBench(t, Options{})
	b.put("d/e/other", "other")
	pr, pw := io.Pipe()
	done := make(chan *httptest.ResponseRecorder)
	go func() { done <- b.send("PUT", "/bucket/d/e/key", pr, "X-Amz-Meta-Of", "content") }()
	if _, err := pw.Write([]byte("content")); err != nil {
		t.Fatal(err)
	}
	b.want(b.do("DELETE", "/bucket/d/e/other", ""), 204)
	if _, err := os.Stat(b.path("bucket/d")); !os.IsNotExist(err) {
		t.Errorf("the empty directories are left: %v", err)
	}
	_ = pw.Close()
	b.want(<-done, 200)
	b.holds("d/e/key", "content")
}

// TestEmptyDirectories are no objects, and in nobody's way.
func TestEmptyDirectories(t *testing.T) {
	b := newBench(t, Options{})
	b.mkdir("bucket/a/b/c")
	b.mkdir("bucket/z/y")
	b.holds("a", "absent")
	list := b.do("GET", "/bucket?list-type=2&delimiter=%2F", "").Body.String()
	if !strings.Contains(list, "<KeyCount>0</KeyCount>") {
		t.Errorf("empty directories are listed: %s", list)
	}
	b.want(b.do("PUT", "/bucket/a", "x", "If-None-Match", "*", "X-Amz-Meta-Of", "x"), 200)
	b.holds("a", "x")
	b.want(b.do("DELETE", "/bucket/a", ""), 204)
	b.want(b.do("DELETE", "/bucket", ""), 204)
}

// TestObjectsAndDirectoriesRace has the same name wanted for a file and for a directory.
func TestObjectsAndDirectoriesRace(t *testing.T) {
	b := newBench(t, Options{})
	var all sync.WaitGroup
	for _, key := range []string{"a", "a/b", "a/b/c", "a/d"} {
		all.Go(func() {
			for range 50 {
				switch w := b.do("PUT", "/bucket/"+key, key, "X-Amz-Meta-Of", key); w.Code {
				case 200:
					if w := b.do("DELETE", "/bucket/"+key, ""); w.Code != 204 {
						t.Errorf("DELETE %s: %d %s", key, w.Code, w.Body)
					}
				case 400: // another has it
				default:
					t.Errorf("PUT %s: %d %s", key, w.Code, w.Body)
				}
			}
		})
	}
	all.Wait()
	b.want(b.do("DELETE", "/bucket", ""), 204)
}

func TestTooLarge(t *testing.T) {
	b := newBench(t, Options{})
	r := httptest.NewRequest("PUT", "/bucket/key", nil)
	r.Body, r.ContentLength = io.NopCloser(unread{t}), maxObject+1
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	b.wantCode(w, 400, "EntityTooLarge")

	w = b.send("PUT", "/bucket/key", http.MaxBytesReader(nil, io.NopCloser(strings.NewReader("too long")), 3))
	b.wantCode(w, 400, "EntityTooLarge")

	r = httptest.NewRequest("PUT", "/nowhere/key", nil) // nor is the body read where the bucket is missing
	r.Body, r.ContentLength = io.NopCloser(unread{t}), 10
	w = httptest.NewRecorder()
	b.ServeHTTP(w, r)
	b.wantCode(w, 404, "NoSuchBucket")
}

type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) { u.t.Error("the body was read"); return 0, io.EOF }

// TestBodyPanics leaves nothing behind.
func TestBodyPanics(t *testing.T) {
	b := newBench(t, Options{})
	func() {
		defer func() { _ = recover() }()
		b.send("PUT", "/bucket/key", panics{})
	}()
	b.holds("key", "absent")
	if left := b.files(tempDir); len(left) > 0 {
		t.Errorf("%q", left)
	}
}

type panics struct{}

func (panics) Read([]byte) (int, error) { panic("body") }
