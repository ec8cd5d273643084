package file

import (
	"slices"
	"strings"
	"testing"
)

// TestRecipe holds the writes to the system calls that their comments list.
func TestRecipe(t *testing.T) {
	for _, test := range []struct {
		name  string
		side  bool
		setup func(b *bench)
		run   func(b *bench)
		want  []string
	}{
		{
			name: "put in a new directory",
			run:  func(b *bench) { b.put("d/e/key", "content") },
			want: []string{
				"openat bucket", "openat TEMP", "write TEMP", "fstat TEMP", "fsetxattr TEMP", "fsync TEMP",
				"openat bucket", "openat d", // missing
				"openat bucket", "openat d", "mkdirat d", "fsync bucket", "openat d", "openat e", "mkdirat e", "fsync d", "openat e",
				"fstatat key", "fstatat key", "renameat TEMP key", "fsync e",
			},
		},
		{
			name: "overwrite", setup: func(b *bench) { b.put("d/key", "old") },
			run: func(b *bench) { b.put("d/key", "content") },
			want: []string{
				"openat bucket", "openat TEMP", "write TEMP", "fstat TEMP", "fsetxattr TEMP", "fsync TEMP",
				"openat bucket", "openat d", "fstatat key", "renameat TEMP key", "fsync d",
			},
		},
		{
			name: "overwrite with side files", side: true, setup: func(b *bench) { b.put("key", "old") },
			run: func(b *bench) { b.put("key", "content") },
			want: []string{
				"openat bucket", "openat TEMP", "write TEMP", "fstat TEMP", "openat SIDE", "write SIDE", "fsync SIDE", "fsync meta", "fsync TEMP",
				"openat bucket", "fstatat key", "renameat TEMP key", "fsync bucket", "unlinkat SIDE",
			},
		},
		{
			name: "delete", setup: func(b *bench) { b.put("d/key", "old") },
			run: func(b *bench) { b.want(b.do("DELETE", "/bucket/d/key", ""), 204) },
			want: []string{
				"openat bucket", "openat d", "fstatat key", "unlinkat key", "fsync d",
				"openat bucket", "openat d", "fgetxattr d", "unlinkat d",
			},
		},
		{
			name: "copy", setup: func(b *bench) { b.put("from", "content") },
			run: func(b *bench) { b.want(b.copyTo("to", "from"), 200) },
			want: []string{
				"openat bucket", "openat bucket", "openat from", "fstat from", "fgetxattr from",
				"openat TEMP", "copy_file_range from TEMP", "fstat from", "fstat TEMP", "fsetxattr TEMP", "fsync TEMP",
				"openat bucket", "fstatat to", "renameat TEMP to", "fsync bucket",
			},
		},
		{
			name: "batch", setup: func(b *bench) { b.put("d/a", "a"); b.put("d/b", "b"); b.put("c", "c"); b.put("d/e", "e") },
			run: func(b *bench) { b.want(b.deleteAll("d/b", "c", "d/a", "d/none"), 200) },
			want: []string{
				"openat bucket",
				"openat bucket", "fstatat c", "unlinkat c", "fstat bucket",
				"openat bucket", "openat d", "fstatat b", "unlinkat b", "fstat d", "fsync bucket",
				"openat bucket", "openat d", "fstatat a", "unlinkat a", "fstat d",
				"openat bucket", "openat d", "fstatat none", "fstat d", "fsync d",
				"openat bucket", "openat d", "fgetxattr d", "unlinkat d",
			},
		},
		{
			name: "create an upload",
			run:  func(b *bench) { b.create("key", "content") },
			want: []string{
				"openat TEMP", "write TEMP", "fsync TEMP", "fstat TEMP",
				"mkdirat ID", "openat ID", "fsync uploads", "openat bucket", "renameat TEMP upload", "fsync ID",
			},
		},
		{
			name: "upload a part", setup: func(b *bench) { b.up = b.create("key", "content") },
			run: func(b *bench) { b.up.part(2, "content") },
			want: []string{
				"openat bucket", "openat ID", "openat upload", "fstat upload", "read upload",
				"openat TEMP", "write TEMP", "fstat TEMP", "fsetxattr TEMP", "fsync TEMP",
				"openat ID", "openat upload", "fstat upload", "read upload", "fstatat PART", "renameat TEMP PART", "fsync ID",
			},
		},
		{
			name: "complete", setup: func(b *bench) { b.up = b.create("d/key", "firstsecond"); b.up.part(1, "first"); b.up.part(2, "second") },
			run: func(b *bench) { b.want(b.up.complete(1, 2), 200) },
			want: []string{
				"openat bucket", "openat ID", "openat upload", "fstat upload", "read upload", "openat bucket", "openat d", // missing
				"openat PART", "fstat PART", "fgetxattr PART", "openat PART", "fstat PART", "fgetxattr PART",
				"openat TEMP", "openat PART", "copy_file_range PART TEMP", "openat PART", "copy_file_range PART TEMP",
				"fstat TEMP", "fsetxattr TEMP", "fsync TEMP",
				"openat bucket", "openat d", "openat bucket", "openat d", "mkdirat d", "fsync bucket", "openat d",
				"fstatat key", "fstatat upload", "fstatat key", "renameat TEMP key", "fsync d",
				"unlinkat upload", "fsync ID", "openat ID", "getdents ID", "getdents ID", "unlinkat PART", "unlinkat PART", "unlinkat ID",
			},
		},
		{
			name: "repeat a complete",
			setup: func(b *bench) {
				b.up = b.create("key", "first")
				b.up.part(1, "first")
				b.want(b.up.complete(1), 200)
			},
			run: func(b *bench) { b.want(b.up.complete(1), 200) },
			want: []string{
				"openat bucket", "openat ID", // missing
				"openat bucket", "openat key", "fstat key", "fgetxattr key", "fsync bucket",
			},
		},
		{
			name: "abort", setup: func(b *bench) { b.up = b.create("key", "content"); b.up.part(1, "content") },
			run: func(b *bench) { b.want(b.up.abort(), 204) },
			want: []string{
				"openat bucket", "openat ID", "openat upload", "fstat upload", "read upload",
				"unlinkat upload", "fsync ID", "openat ID", "getdents ID", "getdents ID", "unlinkat PART", "unlinkat ID",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, Options{ForceSideFiles: test.side})
			if test.setup != nil {
				test.setup(b)
			}
			f := &faults{at: -1}
			b.sys = f.system()
			test.run(b)
			b.sys = &kernel
			var got []string
			for _, c := range f.calls {
				words := strings.Fields(c)
				for i, w := range words {
					if strings.HasPrefix(w, "put-") {
						words[i] = "TEMP"
					} else if validUploadID(w) {
						words[i] = "ID"
					} else if partNumber(w) > 0 {
						words[i] = "PART"
					} else if strings.Trim(w, "0123456789-") == "" {
						words[i] = "SIDE"
					}
				}
				got = append(got, strings.Join(words, " "))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the calls are\n%q, want\n%q", got, test.want)
			}
		})
	}
}
