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

// A flow is one write of those that take more than a key and a body, from one state to another: what readers see of d/key, and the
// uploads that are open.
type flow struct {
	name          string
	setup         func(b *bench)
	run           func(b *bench) *httptest.ResponseRecorder
	before, after [2]string

	// later says that the uploads may still be there after success, until the next Open.
	later bool
}

var (
	firstOpen  = "d/key 1:" + md5Of("first")
	secondOpen = firstOpen + " 2:" + md5Of("second")
)

// twoParts begins an upload of both.
func twoParts(b *bench) {
	b.up = b.create("d/key", "firstsecond")
	b.up.part(1, "first")
	b.up.part(2, "second")
}

var flows = []flow{
	{
		name: "copy", setup: func(b *bench) { b.put("from", "fresh") },
		run:    func(b *bench) *httptest.ResponseRecorder { return b.copyTo("d/key", "from") },
		before: [2]string{"absent"}, after: [2]string{"fresh"},
	},
	{
		name: "conditional copy over an object", setup: func(b *bench) { b.put("from", "fresh"); b.put("d/key", "old") },
		run:    func(b *bench) *httptest.ResponseRecorder { return b.copyTo("d/key", "from", "If-Match", md5Of("old")) },
		before: [2]string{"old"}, after: [2]string{"fresh"},
	},
	{
		name: "create", setup: func(b *bench) { b.put("d/key", "old") },
		run: func(b *bench) *httptest.ResponseRecorder {
			return b.do("POST", "/bucket/d/key?uploads", "", "X-Amz-Meta-Of", "fresh")
		},
		before: [2]string{"old"}, after: [2]string{"old", "d/key"},
	},
	{
		name: "part", setup: func(b *bench) { b.up = b.create("d/key", "first") },
		run:    func(b *bench) *httptest.ResponseRecorder { return b.up.send(1, "first") },
		before: [2]string{"absent", "d/key"}, after: [2]string{"absent", firstOpen},
	},
	{
		name: "part in place of another", setup: func(b *bench) { b.up = b.create("d/key", "first"); b.up.part(1, "other") },
		run:    func(b *bench) *httptest.ResponseRecorder { return b.up.send(1, "first") },
		before: [2]string{"absent", "d/key 1:" + md5Of("other")}, after: [2]string{"absent", firstOpen},
	},
	{
		name: "part by copy", setup: func(b *bench) { b.put("from", "the first one"); b.up = b.create("d/key", "first") },
		run: func(b *bench) *httptest.ResponseRecorder {
			return b.do("PUT", b.up.target("&partNumber=1"), "", "X-Amz-Copy-Source", "bucket/from", "X-Amz-Copy-Source-Range", "bytes=4-8")
		},
		before: [2]string{"absent", "d/key"}, after: [2]string{"absent", firstOpen},
	},
	{
		name: "complete", setup: twoParts, run: func(b *bench) *httptest.ResponseRecorder { return b.up.complete(1, 2) },
		before: [2]string{"absent", secondOpen}, after: [2]string{"firstsecond"}, later: true,
	},
	{
		name: "complete over an object", setup: func(b *bench) { b.put("d/key", "old"); twoParts(b) },
		run:    func(b *bench) *httptest.ResponseRecorder { return b.up.complete(1, 2) },
		before: [2]string{"old", secondOpen}, after: [2]string{"firstsecond"}, later: true,
	},
	{
		name: "repeated complete", setup: func(b *bench) { twoParts(b); b.want(b.up.complete(1, 2), 200) },
		run:    func(b *bench) *httptest.ResponseRecorder { return b.up.complete(1, 2) },
		before: [2]string{"firstsecond"}, after: [2]string{"firstsecond"},
	},
	{
		name: "abort", setup: func(b *bench) { b.put("d/key", "old"); twoParts(b) },
		run:    func(b *bench) *httptest.ResponseRecorder { return b.up.abort() },
		before: [2]string{"old", secondOpen}, after: [2]string{"old"},
	},
}

// TestFaultsOfFlows fails every system call of every flow in every mode, and holds the answer to the contract.
func TestFaultsOfFlows(t *testing.T) {
	for _, side := range []bool{false, true} {
		for _, fl := range flows {
			for _, mode := range []faultMode{notDone, reported, dead} {
				if side && mode == dead {
					continue // side files are no other matter than attributes to a dead disk
				}
				t.Run(fmt.Sprintf("%s/side %v/%s", fl.name, side, mode), func(t *testing.T) {
					t.Parallel()
					for n := 0; fl.fail(t, Options{ForceSideFiles: side}, mode, n); n++ {
						if n > 200 {
							t.Fatal("the flow does not end")
						}
					}
				})
			}
		}
	}
}

// fail runs the flow with its n-th call failing, and says whether there was an n-th call.
func (fl flow) fail(t *testing.T, o Options, mode faultMode, n int) bool {
	b := newBench(t, o)
	b.put("neighbour", "neighbour")
	if fl.setup != nil {
		fl.setup(b)
	}
	fl.check(b, "before", fl.before)
	f := &faults{at: n, mode: mode, err: unix.EIO}
	b.sys = f.system()
	w := fl.run(b)
	b.sys = &kernel
	what := fmt.Sprintf("%d after %s", w.Code, strings.Join(f.calls[:min(n+1, len(f.calls))], ", "))
	finally := [][2]string{fl.before, fl.after} // what may be after the next Open
	switch {
	case w.Code < 300:
		finally = finally[1:]
		if fl.later {
			fl.check(b, what, fl.after, [2]string{fl.after[0], fl.before[1]})
		} else {
			fl.check(b, what, fl.after)
		}
	case w.Code < 500 || w.Code == 501 || w.Code == 503:
		finally = finally[:1]
		fl.check(b, what, fl.before)
	case !strings.Contains(w.Body.String(), "outcome is unknown"):
		t.Errorf("%s: the message does not say that the outcome is unknown: %s", what, w.Body)
	default:
		fl.check(b, what, fl.before, fl.after, [2]string{fl.after[0], fl.before[1]})
	}
	again := w.Code >= 500 && fl.name != "create" && fl.name != "abort" && fl.name != "conditional copy over an object"
	if n%2 == 0 && again { // the client comes back, to this process or to the next
		b.want(fl.run(b), 200)
		finally = [][2]string{fl.after}
	}
	b.reopen(o)
	fl.check(b, what+", reopened", finally...)
	if left := b.files(tempDir); len(left) > 0 {
		t.Errorf("%s, reopened: temporary files are left: %q", what, left)
	}
	if open := b.uploads(); open == "" && len(b.files(uploadsDir)) > 0 {
		t.Errorf("%s, reopened: there is no upload, but %q", what, b.files(uploadsDir))
	}
	if again {
		b.want(fl.run(b), 200)
		fl.check(b, what+", repeated", fl.after)
	}
	_ = b.Close()
	return n < len(f.calls)
}

func (fl flow) check(b *bench, when string, allowed ...[2]string) {
	b.Helper()
	if got := [2]string{b.state("d/key"), b.uploads()}; !slices.Contains(allowed, got) {
		b.Fatalf("%s: the state is %q, want one of %q", when, got, allowed)
	}
	b.holds("neighbour", "neighbour")
}

// TestFaultsOfBatches fails every system call of a DeleteObjects: each key is what the answer says of it.
func TestFaultsOfBatches(t *testing.T) {
	for _, mode := range []faultMode{notDone, reported, dead} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			for n := 0; failBatch(t, Options{ForceSideFiles: n%2 == 0}, mode, n); n++ {
			}
		})
	}
}

func failBatch(t *testing.T, o Options, mode faultMode, n int) bool {
	keys := []string{"d/a", "b", "d/c", "e/f/g"}
	b := newBench(t, o)
	for _, k := range append(keys, "d/neighbour") {
		b.put(k, k)
	}
	f := &faults{at: n, mode: mode, err: unix.EIO}
	b.sys = f.system()
	w := b.deleteAll(keys...)
	b.sys = &kernel
	what := fmt.Sprintf("%d %s after %s", w.Code, w.Body, strings.Join(f.calls[:min(n+1, len(f.calls))], ", "))
	var result deleteResult
	switch {
	case w.Code == 200:
		if err := xml.Unmarshal(w.Body.Bytes(), &result); err != nil || len(result.Deleted)+len(result.Errors) != len(keys) {
			t.Fatalf("%s: %v", what, err)
		}
	case w.Code == 503:
		for _, k := range keys {
			result.Errors = append(result.Errors, keyError{Key: k})
		}
	case !strings.Contains(w.Body.String(), "outcome is unknown"):
		t.Errorf("%s: the message does not say that the outcome is unknown", what)
	}
	for range 2 {
		for _, d := range result.Deleted {
			b.holds(d.Key, "absent")
		}
		for _, e := range result.Errors {
			b.holds(e.Key, e.Key)
		}
		b.holds("d/neighbour", "d/neighbour")
		b.reopen(o)
	}
	_ = b.Close()
	return n < len(f.calls)
}

// TestFaultsOfBucketsWithUploads deletes a bucket that has an upload, and makes it again: whatever failed, the upload does not come back.
func TestFaultsOfBucketsWithUploads(t *testing.T) {
	for _, mode := range []faultMode{notDone, reported, dead} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			for n := 0; failBucket(t, mode, n); n++ {
			}
		})
	}
}

func failBucket(t *testing.T, mode faultMode, n int) bool {
	b := newBench(t, Options{})
	b.up = b.create("key", "content")
	b.up.part(1, "content")
	f := &faults{at: n, mode: mode, err: unix.EIO}
	b.sys = f.system()
	w := b.do("DELETE", "/bucket", "")
	b.sys = &kernel
	what := fmt.Sprintf("%d after %s", w.Code, strings.Join(f.calls[:min(n+1, len(f.calls))], ", "))
	if w.Code == 503 && b.uploads() == "" {
		t.Errorf("%s: the upload is gone", what)
	}
	if n%2 == 0 {
		b.reopen(Options{})
	}
	if w = b.do("PUT", "/bucket", ""); w.Code == 200 && b.uploads() != "" {
		t.Errorf("%s: the new bucket has the upload %s of the old one", what, b.uploads())
	}
	b.reopen(Options{})
	if w.Code == 200 && len(b.files(uploadsDir)) > 0 {
		t.Errorf("%s, reopened: %q are left", what, b.files(uploadsDir))
	}
	_ = b.Close()
	return n < len(f.calls)
}

// TestUnsyncedIsUnknown fails the sync after an effect: of a batch, of which other keys are gone already, and of a Complete that is repeated
// after such a failure.
func TestUnsyncedIsUnknown(t *testing.T) {
	b := newBench(t, Options{})
	b.put("a", "a")
	b.put("d/b", "b")
	twoParts(b)
	f := &faults{at: -1, on: failOn("fsync d", unix.EIO)}
	b.sys = f.system()
	b.wantCode(b.deleteAll("a", "d/b"), 500, "InternalError")
	for range 2 {
		b.wantCode(b.up.complete(1, 2), 500, "InternalError")
	}
	f.on = nil
	b.want(b.up.complete(1, 2), 200)
	b.sys = &kernel
	b.holds("d/key", "firstsecond")
}
