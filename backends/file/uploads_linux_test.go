package file

import (
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestUploadsModel holds uploads against a model of ten lines: the parts of each, the last of every number.
func TestUploadsModel(t *testing.T) {
	b := newBench(t, Options{})
	rapid.Check(t, func(t *rapid.T) {
		model := map[int]string{}
		u := b.create("d/key", "")
		for range rapid.IntRange(1, 8).Draw(t, "parts") {
			number := rapid.SampledFrom([]int{1, 2, 3, 5, 9999, 10000}).Draw(t, "number")
			u.part(number, strings.Repeat(string(rapid.ByteRange('a', 'z').Draw(t, "letter")), rapid.SampledFrom([]int{0, 1, 3, 4, 5, 100, 256<<10 + 1}).Draw(t, "size")))
			model[number] = u.parts[number]
			if rapid.IntRange(0, 9).Draw(t, "reopen") == 0 {
				b.reopen(Options{ForceSideFiles: rapid.Bool().Draw(t, "side")})
			}
		}
		var list []int
		want, small := "", false
		for _, n := range u.numbers() {
			if rapid.IntRange(0, 3).Draw(t, "leave out") > 0 {
				small = small || len(list) > 0 && len(model[list[len(list)-1]]) < 4
				list, want = append(list, n), want+model[n]
			}
		}
		switch w := u.complete(list...); {
		case len(list) == 0:
			b.wantCode(w, 400, "MalformedXML")
			b.want(u.abort(), 204)
		case small:
			b.wantCode(w, 400, "EntityTooSmall")
			b.want(u.abort(), 204)
		default:
			b.want(w, 200)
			if got := b.do("GET", "/bucket/d/key", ""); got.Body.String() != want {
				t.Fatalf("%d bytes, want %d", got.Body.Len(), len(want))
			}
		}
		if left := b.files(uploadsDir); len(left) > 0 || len(b.files(tempDir)) > 0 {
			t.Fatalf("%q are left", left)
		}
	})
	b.want(b.do("DELETE", "/bucket/d/key", ""), 204)
	if side := b.files(sideDir); len(side) > 0 {
		t.Errorf("side files are left: %q", side)
	}
}

func (u *up) numbers() (all []int) {
	for n := range u.parts {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// TestUploadsSurvive opens the root anew, with all that a run can leave that was killed.
func TestUploadsSurvive(t *testing.T) {
	for _, side := range []bool{false, true} {
		b := newBench(t, Options{ForceSideFiles: side})
		open, aborted, done := b.create("d/open", "firstsecond"), b.create("aborted", ""), b.create("done", "first")
		for _, u := range []*up{open, aborted, done} {
			u.part(1, "first")
		}
		record, err := os.ReadFile(b.path(ownDir, uploadsDir, done.id, recordFile))
		if err != nil {
			t.Fatal(err)
		}
		b.want(done.complete(1), 200)
		b.mkdir(ownDir + "/uploads/" + done.id)                                               // a Complete that was killed after its rename
		b.write(ownDir+"/uploads/"+done.id+"/"+recordFile, string(record))                    //
		b.write(ownDir+"/uploads/"+done.id+"/00001", "first")                                 //
		b.mkdir(ownDir + "/uploads/" + newUploadID(time.Now()))                               // a Create before its rename
		if err := os.Remove(b.path(ownDir, uploadsDir, aborted.id, recordFile)); err != nil { // an Abort after its unlink
			t.Fatal(err)
		}
		b.mkdir("gone") // a bucket that was deleted by hand
		b.want(b.do("POST", "/gone/key?uploads", ""), 200)
		if err := os.Remove(b.path("gone")); err != nil {
			t.Fatal(err)
		}
		b.reopen(Options{ForceSideFiles: side})
		if got := b.files(uploadsDir); !slices.Equal(got, []string{open.id}) {
			t.Errorf("after Open there are %q, want only %s", got, open.id)
		}
		if got, want := len(b.files(sideDir)), map[bool]int{true: 2, false: 0}[side]; got != want {
			t.Errorf("after Open there are %d side files, want %d", got, want)
		}
		b.holds("done", "first")
		b.want(done.complete(1), 200) // its answer was lost, perhaps
		open.part(2, "second")
		b.want(open.complete(1, 2), 200)
		b.holds("d/open", "firstsecond")
	}
}

// TestUploadIDs are not to be guessed, and sort by time.
func TestUploadIDs(t *testing.T) {
	b := newBench(t, Options{})
	var ids []string
	for range 50 {
		ids = append(ids, b.create("key", "").id)
	}
	if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != 50 {
		t.Errorf("%q", ids)
	}
	random := map[string]bool{}
	for _, id := range ids {
		if random[id[16:]] = true; !validUploadID(id) || len(id[16:]) < 26 {
			t.Errorf("%s", id)
		}
	}
	if len(random) != 50 {
		t.Error("the random half of two ids is the same")
	}
}

// TestForeignParts changes a part on the disk: it is not what was uploaded.
func TestForeignParts(t *testing.T) {
	b := newBench(t, Options{})
	u := b.create("key", "content")
	u.part(1, "content")
	b.write(ownDir+"/uploads/"+u.id+"/00001", "tampered")
	b.wantCode(u.complete(1), 400, "InvalidPart")
	b.holds("key", "absent")
	u.part(1, "content")
	b.want(u.complete(1), 200)
	b.holds("key", "content")
}

// TestUploadTooLarge reads no body that is refused anyway.
func TestUploadTooLarge(t *testing.T) {
	b := newBench(t, Options{})
	u := b.create("key", "")
	for _, test := range []struct {
		target string
		length int64
		status int
		code   string
	}{
		{u.target("&partNumber=1"), maxObject + 1, 400, "EntityTooLarge"},
		{u.target("x&partNumber=1"), 10, 404, "NoSuchUpload"},
		{u.target("&partNumber=0"), 10, 400, "InvalidArgument"},
	} {
		r := httptest.NewRequest("PUT", test.target, nil)
		r.Body, r.ContentLength = io.NopCloser(unread{t}), test.length
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		b.wantCode(w, test.status, test.code)
	}
	w := b.do("POST", u.target(""), strings.Repeat(" ", maxDocument+1))
	b.wantCode(w, 400, "MaxMessageLengthExceeded")
	u.part(1, "content")
	b.wantCode(b.do("POST", u.target(""), u.document(1), "X-Amz-Mp-Object-Size", "8"), 400, "InvalidRequest")
	b.want(b.do("POST", u.target(""), u.document(1), "X-Amz-Mp-Object-Size", "7"), 200)
}

// TestWithoutCopyFileRange copies by hand where the kernel does not, also from the middle on.
func TestWithoutCopyFileRange(t *testing.T) {
	content := strings.Repeat("0123456789", 60_000)
	for _, errno := range []unix.Errno{unix.EXDEV, unix.ENOSYS, unix.EOPNOTSUPP, unix.EINVAL, unix.EPERM, 0} {
		b := newBench(t, Options{})
		b.want(b.do("PUT", "/bucket/from", content), 200)
		sys := kernel
		calls := 0
		sys.copyRange = func(from int, off int64, to, n int) (int, error) {
			if calls++; calls == 1 {
				return kernel.copyRange(from, off, to, 1000)
			}
			if errno == 0 {
				return 0, nil
			}
			return -1, errno
		}
		b.sys = &sys
		b.want(b.copyTo("to", "from"), 200)
		b.sys = &kernel
		if got := b.do("GET", "/bucket/to", "").Body.String(); got != content {
			t.Errorf("%v: the copy has %d bytes, and not the source's", errno, len(got))
		}
		_ = b.Close()
	}
}

// TestSourceChangedInPlace refuses to copy what another program writes meanwhile.
func TestSourceChangedInPlace(t *testing.T) {
	for _, change := range []func(b *bench){
		func(b *bench) { b.write("bucket/from", "CONTENT") },
		func(b *bench) { b.write("bucket/from", "short") },
	} {
		b := newBench(t, Options{})
		b.put("from", "content")
		f := &faults{at: -1, on: func(call string) error {
			if strings.HasPrefix(call, "copy_file_range") {
				change(b)
			}
			return nil
		}}
		b.sys = f.system()
		w := b.copyTo("to", "from")
		b.sys = &kernel
		b.wantCode(w, 503, "ServiceUnavailable")
		b.holds("to", "absent")
		b.want(b.copyTo("to", "from"), 200) // as a foreign file: its MD5 is taken
		if etag := b.do("HEAD", "/bucket/to", "").Header().Get("ETag"); strings.Contains(etag, "-") {
			t.Errorf("the copy of a foreign file has the ETag %s, which is no MD5", etag)
		}
	}
}

// TestUploadMeetsDeletedBucket deletes the bucket, and makes it again, before each system call of a Complete and of a part: neither
// may reach the new bucket.
func TestUploadMeetsDeletedBucket(t *testing.T) {
	for name, run := range map[string]func(u *up) *httptest.ResponseRecorder{
		"complete": func(u *up) *httptest.ResponseRecorder { return u.complete(1) },
		"part":     func(u *up) *httptest.ResponseRecorder { return u.send(2, "more") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 0; meetDeletedBucket(t, run, n); n++ {
			}
		})
	}
}

func meetDeletedBucket(t *testing.T, run func(u *up) *httptest.ResponseRecorder, n int) bool {
	b := newBench(t, Options{})
	u := b.create("key", "content")
	u.part(1, "content")
	var other sync.WaitGroup
	var calls atomic.Int64 // the other client's too, once there is one
	f := &faults{at: -1, on: func(string) error {
		if calls.Add(1) != int64(n+1) {
			return nil
		}
		did := make(chan struct{})
		other.Go(func() {
			defer close(did)
			b.do("DELETE", "/bucket", "")
			b.do("PUT", "/bucket", "")
		})
		select {
		case <-did:
		case <-time.After(20 * time.Millisecond): // it waits for a lock that the call holds
		}
		return nil
	}}
	b.sys = f.system()
	w := run(u)
	other.Wait()
	b.sys = &kernel
	what := fmt.Sprintf("%d %s with a new bucket before call %d, and the object is %s", w.Code, w.Body, n, b.state("key"))
	switch {
	case w.Code != 200 && w.Code != 404:
		t.Error(what)
	case strings.Contains(w.Body.String(), "CompleteMultipartUploadResult") != (b.state("key") == "content"):
		t.Error(what) // it came before the DELETE, which has then refused, or not at all
	}
	b.reopen(Options{})
	if left := b.files(uploadsDir); (b.uploads() == "") != (len(left) == 0) || w.Code == 404 && len(left) > 0 {
		t.Errorf("%s: %q are left", what, left)
	}
	_ = b.Close()
	return calls.Load() > int64(n)
}

// TestUploadsAtOnce lets many clients work on few uploads of few keys: an object is always one upload's, whole.
func TestUploadsAtOnce(t *testing.T) {
	b := newBench(t, Options{})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for round := range 12 {
				first, second := fmt.Sprintf("%d of %d,", round, i), strings.Repeat(fmt.Sprint(i), 1000)
				u := b.create(fmt.Sprintf("d/%d", round%2), first+second)
				var parts sync.WaitGroup
				for range 3 {
					parts.Go(func() { u.send(1, first) })
					parts.Go(func() { u.send(2, second) })
				}
				parts.Wait()
				u.parts[1], u.parts[2] = first, second
				var ends sync.WaitGroup
				for range 3 {
					ends.Go(func() {
						if w := u.complete(1, 2); w.Code != 200 && w.Code != 404 {
							t.Errorf("Complete: %d %s", w.Code, w.Body)
						}
					})
				}
				if round%3 == 0 {
					ends.Go(func() { u.abort() })
				}
				ends.Go(func() { u.send(3, "late") })
				ends.Wait()
				b.state(u.key) // checks that content and metadata are of one upload
			}
		})
	}
	all.Wait()
	if left := b.files(uploadsDir); len(left) > 0 || len(b.files(tempDir)) > 0 {
		t.Errorf("%q are left", left)
	}
	if n := len(b.Store.uploads.locks); n > 0 {
		t.Errorf("%d locks are left", n)
	}
}

// TestUploadLocks looks, within the system calls that change an upload, whether its lock is held.
func TestUploadLocks(t *testing.T) {
	b := newBench(t, Options{})
	var u *up
	seen := map[string]bool{}
	f := &faults{at: -1, on: func(call string) error {
		words := strings.Fields(call)
		for _, what := range []string{"unlinkat upload", "unlinkat 00001", "renameat 00001", "renameat key", "renameat upload"} {
			if words[0] != strings.Fields(what)[0] || words[len(words)-1] != strings.Fields(what)[1] {
				continue
			}
			seen[what] = true
			if what == "renameat upload" { // nobody knows this upload yet, but its bucket could go
				if b.tree.TryLock() {
					b.tree.Unlock()
					t.Errorf("%s while a bucket can be deleted", call)
				}
				continue
			}
			b.Store.uploads.mu.Lock()
			l := b.Store.uploads.locks[u.id]
			b.Store.uploads.mu.Unlock()
			if l == nil || l.TryLock() {
				return errors.New(call + " without the upload's lock")
			}
		}
		return nil
	}}
	b.sys = f.system()
	u = b.create("key", "content")
	u.part(1, "content")
	b.want(u.complete(1), 200)
	b.sys = &kernel
	if len(seen) != 5 {
		t.Errorf("seen were only %v", seen)
	}
}
