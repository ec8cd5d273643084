package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// findings checks the root of b, whose store must be closed, and returns what was found as lines "level path what".
func (b *bench) findings(mend bool) (lines []string) {
	b.Helper()
	before := b.everything()
	c, err := OpenCheck(b.dir, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var all []Finding
	var objects []Object
	if err := c.Run(b.Context(), func(f Finding) { all = append(all, f) }, func(o Object) { objects = append(objects, o) }); err != nil {
		b.Fatal(err)
	}
	if after := b.everything(); after != before {
		b.Errorf("the check changed\n%s\nto\n%s", before, after)
	}
	for _, o := range objects {
		if _, ok := o.Headers["X-Amz-Meta-Of"]; !ok || o.Where != b.path(o.Bucket, o.Key) {
			b.Errorf("%+v is no object of this test", o)
		}
	}
	for _, f := range all {
		where, err := filepath.Rel(b.dir, f.Where)
		if err != nil {
			b.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s", f.Level, where, f.What))
		if f.Level == Mend && f.Repair == "" {
			b.Errorf("%+v does not say what will be done", f)
		}
		if !mend {
			continue
		}
		if err := f.Mend(); err != nil {
			b.Errorf("mending %+v: %v", f, err)
		}
	}
	return lines
}

// everything is every name below the root with its size.
func (b *bench) everything() string {
	b.Helper()
	var text strings.Builder
	err := filepath.WalkDir(b.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			fmt.Fprintln(&text, path, info.Mode(), info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return text.String()
}

func (b *bench) oneIn(own string) string {
	b.Helper()
	files := b.files(own)
	if len(files) != 1 {
		b.Fatalf("%s has %q", own, files)
	}
	return ownDir + "/" + own + "/" + files[0]
}

// A harm is what may have happened to a root between two runs.
type harm struct {
	sides bool // metadata is in side files
	do    func(b *bench)
	want  []string // the findings, without what they say of errors; paths with * stand for one component
	stays bool     // mending leaves them
}

var harms = map[string]harm{
	"nothing":               {do: func(*bench) {}},
	"nothing to side files": {sides: true, do: func(*bench) {}},
	"a killed write": {
		do:   func(b *bench) { b.write(".fenceproxy/tmp/put-7", "half") },
		want: []string{"mend .fenceproxy/tmp/put-7 a write that did not end has left 4 bytes"},
	},
	"a killed write with a side file": {
		sides: true,
		do: func(b *bench) {
			b.write(".fenceproxy/tmp/put-7", "half")
			var st unix.Stat_t
			if err := unix.Stat(b.path(".fenceproxy/tmp/put-7"), &st); err != nil {
				b.Fatal(err)
			}
			b.write(".fenceproxy/meta/"+sideName(&st), "v=1")
		},
		want: []string{"mend .fenceproxy/tmp/put-7 a write that did not end has left 4 bytes"},
	},
	"an orphaned side file": {
		sides: true,
		do:    func(b *bench) { b.write(".fenceproxy/meta/1-1795973618855025104", "v=1") },
		want:  []string{"mend .fenceproxy/meta/1-1795973618855025104 metadata of a file that is gone, was changed by another program, or has an attribute"},
	},
	"an object removed behind its side file": {
		sides: true,
		do: func(b *bench) {
			if err := os.Remove(b.path("bucket/a/b")); err != nil {
				b.Fatal(err)
			}
		},
		want: []string{"mend .fenceproxy/meta/* metadata of a file that is gone, was changed by another program, or has an attribute"},
	},
	"an object changed behind its side file": {
		sides: true,
		do:    func(b *bench) { b.write("bucket/a/b", "by another program") },
		want:  []string{"mend .fenceproxy/meta/* metadata of a file that is gone, was changed by another program, or has an attribute"},
	},
	"a side file that is torn": {
		sides: true,
		do:    func(b *bench) { b.write(b.oneIn(sideDir), "etag=") },
		want:  []string{"error bucket/a/b its metadata cannot be read: the object is served as if another program had written it"},
		stays: true,
	},
	"an object changed": {
		do:    func(b *bench) { b.write("bucket/a/b", "by another program") },
		want:  []string{"note bucket/a/b another program has changed it: the ETag and the metadata that are recorded do not count any more"},
		stays: true,
	},
	"an object of another program": {do: func(b *bench) { b.write("bucket/theirs", "theirs") }},
	"an attribute that cannot be read": {
		do: func(b *bench) {
			if err := unix.Setxattr(b.path("bucket/a/b"), attribute, []byte("x"), 0); err != nil {
				b.Fatal(err)
			}
		},
		want:  []string{"error bucket/a/b its metadata cannot be read: the object is served as if another program had written it"},
		stays: true,
	},
	"an attribute of another version": {
		do: func(b *bench) {
			if err := unix.Setxattr(b.path("bucket/a/b"), attribute, []byte("v=2&etag=x"), 0); err != nil {
				b.Fatal(err)
			}
		},
		want:  []string{`error bucket/a/b its metadata is of version "2", which this program does not know: the object is served as if another program had written it`},
		stays: true,
	},
	"no objects": {
		do: func(b *bench) {
			err := errors.Join(os.Symlink("b", b.path("bucket/a/link")), unix.Mkfifo(b.path("bucket/fifo"), 0o600),
				os.Symlink("bucket", b.path("linked")), os.Mkdir(b.path("Upper"), 0o755), os.WriteFile(b.path("file"), nil, 0o644),
				os.WriteFile(b.path("bucket/not utf-8 \xff"), nil, 0o644), os.WriteFile(b.path(".fenceproxy/theirs"), nil, 0o644),
				os.WriteFile(b.path(".fenceproxy/meta/theirs"), nil, 0o644), os.WriteFile(b.path(".fenceproxy/uploads/theirs"), nil, 0o644))
			if err != nil {
				b.Fatal(err)
			}
		},
		want: []string{
			"note .fenceproxy/meta/theirs fenceproxy made no such file",
			"note .fenceproxy/theirs fenceproxy made no such file",
			"note .fenceproxy/uploads/theirs fenceproxy made no such file",
			"note Upper a directory that is no bucket: S3 has no such name",
			"note bucket/a/link a symbolic link is no object: it is not listed, read or replaced",
			"note bucket/fifo a FIFO is no object: it is not listed, read or replaced",
			"note bucket/not utf-8 \xff no key leads here: keys are UTF-8, of 1024 bytes at most",
			"note file a file beside the buckets: it is not served",
			"note linked a symbolic link beside the buckets: it is not served",
		},
		stays: true,
	},
	"a directory among the temporary files": {
		do: func(b *bench) {
			if err := os.Mkdir(b.path(".fenceproxy/tmp/dir"), 0o700); err != nil {
				b.Fatal(err)
			}
		},
		want:  []string{"error .fenceproxy/tmp/dir a directory among the temporary files: serve cannot start"},
		stays: true,
	},
	"parts without an upload": {
		sides: true,
		do: func(b *bench) {
			if err := os.Remove(b.path(uploadPath(b), recordFile)); err != nil {
				b.Fatal(err)
			}
		},
		want: []string{"mend .fenceproxy/uploads/* parts of no upload: it ended, or did not begin; 2 files"},
	},
	"an upload whose bucket is gone": {
		do: func(b *bench) {
			if err := os.RemoveAll(b.path("bucket")); err != nil {
				b.Fatal(err)
			}
		},
		want: []string{"mend .fenceproxy/uploads/* an upload of the bucket bucket, which is gone"},
	},
	"an upload whose object is there": {
		do: func(b *bench) { // as after a kill between the rename and the end of the upload
			record := b.path(uploadPath(b), recordFile)
			kept, err := os.ReadFile(record)
			if err != nil {
				b.Fatal(err)
			}
			b.reopen(Options{})
			b.want(b.up.complete(1, 2), 200)
			_ = b.Close()
			err = errors.Join(os.Mkdir(filepath.Dir(record), 0o700), os.WriteFile(record, kept, 0o600))
			if err != nil {
				b.Fatal(err)
			}
		},
		want: []string{"mend .fenceproxy/uploads/* an upload whose object is there: bucket/up"},
	},
	"a record that cannot be read": {
		do: func(b *bench) { b.write(uploadPath(b)+"/"+recordFile, "v=1&initiated=x") },
		want: []string{"error .fenceproxy/uploads/*/upload the record of upload * cannot be read: " +
			`strconv.ParseInt: parsing "x": invalid syntax: serve cannot start`},
		stays: true,
	},
	"an orphaned side file where something cannot be read": { // nobody knows whose it is
		do: func(b *bench) {
			b.write(uploadPath(b)+"/"+recordFile, "v=2")
			b.write(".fenceproxy/meta/1-1795973618855025104", "v=1")
		},
		want:  []string{"error .fenceproxy/uploads/*/upload the record of upload * cannot be read: it is of another version: serve cannot start"},
		stays: true,
	},
	"a part that was changed": {
		do:    func(b *bench) { b.write(uploadPath(b)+"/00001", "other") },
		want:  []string{"error .fenceproxy/uploads/*/00001 a part that cannot be completed: it was changed since it was uploaded"},
		stays: true,
	},
}

func uploadPath(b *bench) string { return b.oneIn(uploadsDir) }

// TestCheck does each harm to a root with an object and an upload, and looks for what is found, before mending, after it, and after the
// next start.
func TestCheck(t *testing.T) {
	for name, h := range harms {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{ForceSideFiles: h.sides})
			b.put("a/b", "content")
			b.up = b.create("up", "content")
			b.up.part(1, "part one")
			b.up.part(2, "part two")
			if h.sides { // it has to be the only one
				b.want(b.up.abort(), 204)
				if name == "parts without an upload" {
					b.up = b.create("up", "content")
					b.up.part(1, "part one")
					b.up.part(2, "part two")
				}
			}
			_ = b.Close()
			h.do(b)
			b.wantFindings("at first", b.findings(true), h.want)
			var left []string
			if h.stays {
				left = h.want
			}
			b.wantFindings("after mending", b.findings(false), left)
			if _, err := os.Stat(b.path("bucket/a/b")); err == nil && !h.stays {
				b.reopen(Options{ForceSideFiles: h.sides})
				_ = b.Close()
				b.wantFindings("after a start", b.findings(false), left)
			}
		})
	}
}

func (b *bench) wantFindings(when string, got, want []string) {
	b.Helper()
	slices.Sort(got)
	same := len(got) == len(want)
	for i := 0; same && i < len(got); i++ {
		same = alike(want[i], got[i])
	}
	if !same {
		b.Errorf("%s there is\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// alike compares texts of which one has * for what is different every time.
func alike(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	for i, p := range parts {
		at := strings.Index(text, p)
		if at < 0 || i == 0 && at > 0 {
			return false
		}
		text = text[at+len(p):]
	}
	return text == "" || strings.HasSuffix(pattern, "*")
}

// TestCheckIsLocked by a store that serves, and locks it out.
func TestCheckIsLocked(t *testing.T) {
	b := newBench(t, Options{})
	if _, err := OpenCheck(b.dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("beside a store: %v", err)
	}
	_ = b.Close()
	c, err := OpenCheck(b.dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(b.dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("a store beside a check: %v", err)
	}
	_ = c.Close()
	b.reopen(Options{})
}

// TestCheckOfARoot that nobody has served makes nothing in it.
func TestCheckOfARoot(t *testing.T) {
	b := &bench{T: t, dir: t.TempDir()}
	b.wantFindings("in an empty directory", b.findings(true), nil)
	if names, err := os.ReadDir(b.dir); err != nil || len(names) > 0 {
		t.Errorf("there is %v now, %v", names, err)
	}
	if _, err := OpenCheck(b.path("nowhere"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no directory: %v", err)
	}
}

// TestHasUpload knows those that can be completed, by all of their names, and takes what it could not read for there.
func TestHasUpload(t *testing.T) {
	b := newBench(t, Options{})
	u := b.create("k", "content")
	_ = b.Close()
	has := func() (mine, other bool) {
		c, err := OpenCheck(b.dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Run(t.Context(), func(Finding) {}, func(Object) {}); err != nil {
			t.Fatal(err)
		}
		return c.HasUpload("bucket", "k", u.id), c.HasUpload("bucket", "other", u.id)
	}
	if mine, other := has(); !mine || other {
		t.Errorf("%v %v", mine, other)
	}
	b.write(uploadPath(b)+"/"+recordFile, "x")
	if mine, other := has(); !mine || !other {
		t.Errorf("with a record that cannot be read: %v %v", mine, other)
	}
}

// TestCheckEnds with its context.
func TestCheckEnds(t *testing.T) {
	b := newBench(t, Options{})
	_ = b.Close()
	c, err := OpenCheck(b.dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if err := c.Run(ctx, func(f Finding) { t.Errorf("found %+v", f) }, func(Object) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it says %v", err)
	}
}
