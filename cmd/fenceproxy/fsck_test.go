package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fenceproxy/fenceproxy/backends/file"
	"github.com/fenceproxy/fenceproxy/proxy"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

// A stopped is a proxy that has served and does not run.
type stopped struct {
	*testing.T
	dir      string
	registry string // its id
	upload   string // the id of an upload that goes on
}

// newStopped makes what a proxy leaves: an object, a fence, an upload in parts, a registry and an audit log.
func newStopped(t *testing.T) *stopped {
	p := &stopped{T: t, dir: t.TempDir()}
	t.Chdir(p.dir)
	config := fmt.Sprintf("data: %q\nbackends:\n  local: {type: file, root: %q}\n", p.dir+"/data", p.dir+"/objects")
	p.must(errors.Join(os.Mkdir("data", 0o755), os.WriteFile("config.yaml", []byte(config), 0o644)))
	store, err := file.Open("objects", file.Options{})
	p.must(err)
	for _, r := range [][2]string{{"PUT", "/bkt"}, {"PUT", "/bkt/k"}, {"POST", "/bkt/up?uploads"}} {
		w := httptest.NewRecorder()
		store.ServeHTTP(w, httptest.NewRequest(r[0], r[1], strings.NewReader("")))
		if w.Code != 200 {
			t.Fatalf("%v: %d %s", r, w.Code, w.Body)
		}
		if found := regexp.MustCompile("<UploadId>(.*)</UploadId>").FindStringSubmatch(w.Body.String()); found != nil {
			p.upload = found[1]
		}
	}
	p.withRegistry(func(r *sqlite.Registry) {
		p.registry = r.Start().ID
		_, err := r.Raise(t.Context(), tokens.Claim{Resource: "bkt/k", Token: 34})
		p.must(errors.Join(err, r.TouchUpload(t.Context(), "bkt/up?uploadId="+p.upload, 34), store.BindRegistry(p.registry), store.Close()))
	})
	log, err := audit.Open(t.Context(), "data/audit.db", audit.Options{})
	p.must(err)
	log.Add(t.Context(), audit.Record{Kind: audit.KindStart})
	p.must(log.Close())
	return p
}

func (p *stopped) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *stopped) withRegistry(f func(*sqlite.Registry)) {
	p.Helper()
	lock, err := sqlite.Lock("data", "a test")
	p.must(err)
	r, err := sqlite.Open(p.Context(), lock, sqlite.Options{Create: true})
	p.must(err)
	f(r)
	p.must(errors.Join(r.Close(), lock.Release()))
}

// stamp writes an object with a stamp.
func (p *stopped) stamp(key, registry, resource string, generation int64, token tokens.Token) {
	p.Helper()
	store, err := file.Open("objects", file.Options{})
	p.must(err)
	r := httptest.NewRequest("PUT", "/bkt/"+key, strings.NewReader(""))
	r.Header.Set(stampHeader, proxy.Stamp{
		Registry: registry, Resource: proxy.ResourceHash(resource), Generation: generation, Token: token, WriteID: "w",
	}.String())
	w := httptest.NewRecorder()
	store.ServeHTTP(w, r)
	if p.must(store.Close()); w.Code != 200 {
		p.Fatalf("%d %s", w.Code, w.Body)
	}
}

func (p *stopped) sql(path, statement string) {
	p.Helper()
	db, err := sql.Open("sqlite", path)
	p.must(err)
	_, err = db.Exec(statement)
	p.must(errors.Join(err, db.Close()))
}

// fsck runs the command as main does, and returns its findings as lines "level what | where".
func (p *stopped) fsck(flags ...string) (lines []string, code int, said string) {
	p.Helper()
	var out, errOut bytes.Buffer
	err := execute(p.Context(), append([]string{"fsck", "--format", "jsonl"}, flags...), strings.NewReader(""), &out, &errOut)
	if err != nil {
		code, said = exitCode(err), err.Error()
	}
	for line := range strings.Lines(out.String()) {
		var f finding
		p.must(json.Unmarshal([]byte(line), &f))
		where := strings.TrimPrefix(f.Where, p.dir+"/")
		lines = append(lines, strings.ReplaceAll(fmt.Sprintf("%s %s | %s", f.Level, f.What, where), p.upload, "ID"))
		if f.Level == file.Mend && f.Repaired != slices.Contains(flags, "--repair") {
			p.Errorf("%s with %q", line, flags)
		}
	}
	return lines, code, said
}

// files are the names below the directory, but those that fsck may change.
func (p *stopped) files() (all []string) {
	p.Helper()
	p.must(filepath.WalkDir(".", func(path string, e os.DirEntry, err error) error {
		if err != nil || strings.HasSuffix(path, "-shm") || path == "data/lock" {
			return err
		}
		info, err := e.Info()
		all = append(all, fmt.Sprint(path, info.Size(), info.ModTime()))
		return err
	}))
	return all
}

// TestFsck: what is found after what may have happened, that only --repair changes anything, and what the exit code is.
func TestFsck(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(p *stopped)
		want []string
		left int // the exit code after --repair
	}{
		"nothing": {harm: func(*stopped) {}},
		"files that were not removed": {
			harm: func(p *stopped) {
				p.must(errors.Join(os.Mkdir("data/spool", 0o700), os.WriteFile("data/.registry.db.new-7", nil, 0o600), os.WriteFile("data/.audit.db.new-7-journal", nil, 0o600),
					os.WriteFile("data/.write-probe-7", nil, 0o600), os.WriteFile("data/spool/body-7", nil, 0o600), os.WriteFile("objects/.fenceproxy/tmp/put-7", nil, 0o600)))
			},
			want: []string{
				"mend a file that a process did not come to remove | data/.registry.db.new-7",
				"mend a file that a process did not come to remove | data/.audit.db.new-7-journal",
				"mend a file that a process did not come to remove | data/spool/body-7",
				"mend a file that a process did not come to remove | data/.write-probe-7",
				"mend a write that did not end has left 0 bytes | objects/.fenceproxy/tmp/put-7",
			},
		},
		"rows of uploads that are over": {
			harm: func(p *stopped) {
				p.withRegistry(func(r *sqlite.Registry) {
					for _, u := range []string{"bkt/up?uploadId=other", "bkt/a?uploadId=b?uploadId=" + p.upload, "gone/up?uploadId=" + p.upload} {
						p.must(r.TouchUpload(p.Context(), u, 35))
					}
				})
			},
			want: []string{
				"mend the registry keeps the token of an upload that is over | data/registry.db: upload bkt/a?uploadId=b?uploadId=ID",
				"mend the registry keeps the token of an upload that is over | data/registry.db: upload bkt/up?uploadId=other",
				"mend the registry keeps the token of an upload that is over | data/registry.db: upload gone/up?uploadId=ID",
			},
		},
		"an upload that is over, and its row": {
			harm: func(p *stopped) {
				p.must(os.Remove("objects/.fenceproxy/uploads/" + p.upload + "/upload"))
			},
			want: []string{
				"mend parts of no upload: it ended, or did not begin; 0 files | objects/.fenceproxy/uploads/ID",
				"mend the registry keeps the token of an upload that is over | data/registry.db: upload bkt/up?uploadId=ID",
			},
		},
		"a token that came down": {
			harm: func(p *stopped) {
				p.sql("data/registry.db", "INSERT INTO grants (run, resource, token, settle_ms) VALUES (1, 'bkt/k', 35, 1), (7, 'bkt/k', 34, 1)")
			},
			want: []string{
				"error a grant above the highest token of its resource, so that has come down | data/registry.db: grant 1 of bkt/k, token 35",
				"error a grant of a run that there never was | data/registry.db: grant 2 of bkt/k, run 7",
			},
			left: exitFindings,
		},
		"tokens below 0": {
			harm: func(p *stopped) {
				p.sql("data/registry.db", "UPDATE fences SET token = -1; UPDATE uploads SET token = -1; INSERT INTO registry VALUES ('second', 0)")
				p.sql("data/audit.db", "UPDATE record SET count = 0, highest = -1")
			},
			want: []string{
				"error the registry has no id, or several | data/registry.db: 2 ids",
				"error a token below 0 | data/registry.db: fence of bkt/k",
				"error a token below 0 | data/registry.db: upload bkt/up?uploadId=ID",
				"error a record of no event | data/audit.db: record 1",
				"error a record with a token below 0 | data/audit.db: record 1",
			},
			left: exitFindings,
		},
		"tokens that the registry has lost": {
			harm: func(p *stopped) {
				p.stamp("lost", p.registry, "bkt/lost", 0, 1)
				p.stamp("reset", p.registry, "bkt/reset", 1, 1)
				p.stamp("k", p.registry, "bkt/k", 0, 34)             // the mark itself
				p.stamp("copy", p.registry, "bkt/k", 0, 99)          // of another resource
				p.stamp("foreign", "OTHER", "bkt/foreign", 0, 99)    // of another registry
				p.stamp("plain/free", p.registry, "bkt/free", 0, 99) // of a rule that is gone
				p.withRegistry(func(r *sqlite.Registry) {
					_, err := r.Reset(p.Context(), "bkt/before", 1)
					p.must(err)
				})
				p.stamp("before", p.registry, "bkt/before", 0, 99) // of before the reset
			},
			want: []string{
				"error it was written with token 1, and the registry knows bkt/lost up to 0 only: the registry has lost tokens, or is an old one | objects/bkt/lost",
				"error it was written with token 1, and the registry knows bkt/reset up to 0 only: the registry has lost tokens, or is an old one | objects/bkt/reset",
			},
			left: exitFindings,
		},
		"the registry of others": {
			harm: func(p *stopped) { p.must(os.WriteFile("objects/.fenceproxy/registry", []byte("OTHER\n"), 0o600)) },
			want: []string{"error the objects are fenced by registry OTHER, and the one in DIR/data is REGISTRY: serve cannot start | objects"},
			left: exitFindings,
		},
		"the name of the registry damaged": {
			harm: func(p *stopped) { p.must(os.WriteFile("objects/.fenceproxy/registry", nil, 0o600)) },
			want: []string{"error file store DIR/objects: reading the id of its registry: a registry's id has 1 to 256 characters, this one has 0: serve cannot start | objects"},
			left: exitFindings,
		},
		"a registry that is missing": {
			harm: func(p *stopped) { p.must(os.Remove("data/registry.db")) },
			want: []string{"error the token registry is missing, and the objects of backend local are fenced by one: serve cannot start | data/registry.db"},
			left: exitFindings,
		},
		"a registry that was not finished": {
			harm: func(p *stopped) {
				p.sql("data/registry.db", "DELETE FROM registry; DELETE FROM runs")
				p.must(errors.Join(os.Remove("data/audit.db"), os.Remove("objects/.fenceproxy/registry")))
			},
			want: []string{
				"note there is no token registry yet: the next start makes one | data/registry.db",
				"note there is no audit log: the next start makes one | data/audit.db",
			},
		},
		"a registry that has lost its id": {
			harm: func(p *stopped) { p.sql("data/registry.db", "DELETE FROM registry") },
			want: []string{"error the registry has no id, or several | data/registry.db: 0 ids"},
			left: exitFindings,
		},
		"a registry of another program": {
			harm: func(p *stopped) { p.sql("data/registry.db", "PRAGMA application_id = 7") },
			want: []string{"error DIR/data/registry.db is no token registry: it was not made by this program; its application id is 0x7, not 0x464e4352; nothing was changed: " +
				"name another file, or move this one away | data/registry.db"},
			left: exitFindings,
		},
		"only notes": {
			harm: func(p *stopped) {
				p.must(errors.Join(os.Remove("data/audit.db"), os.Remove("objects/.fenceproxy/registry"), os.WriteFile("objects/bkt/k", []byte("theirs"), 0o644)))
			},
			want: []string{
				"note there is no audit log: the next start makes one | data/audit.db",
				"note the objects are bound to no token registry yet: the next start binds them | objects",
				"note another program has changed it: the ETag and the metadata that are recorded do not count any more | objects/bkt/k",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newStopped(t)
			c.harm(p)
			for i, line := range c.want {
				c.want[i] = strings.NewReplacer("DIR", p.dir, "REGISTRY", p.registry).Replace(line)
			}
			notes := !slices.ContainsFunc(c.want, func(line string) bool { return !strings.HasPrefix(line, "note ") })
			before := p.files()
			found, code, said := p.fsck()
			if slices.Sort(found); !slices.Equal(found, slices.Sorted(slices.Values(c.want))) || (code == 0) != notes || code > 1 {
				t.Errorf("code %d, found\n%s\nwant\n%s\n%s", code, strings.Join(found, "\n"), strings.Join(c.want, "\n"), said)
			}
			if after := p.files(); !slices.Equal(before, after) {
				t.Errorf("it changed\n%q\nto\n%q", before, after)
			}
			repaired, code, said := p.fsck("--repair")
			if slices.Sort(repaired); !slices.Equal(repaired, found) || code != c.left {
				t.Errorf("--repair: code %d, told\n%s\nwhere there was\n%s\n%s", code, strings.Join(repaired, "\n"), strings.Join(found, "\n"), said)
			}
			left, code, _ := p.fsck()
			for _, line := range left {
				if strings.HasPrefix(line, "mend") {
					t.Errorf("after --repair there is still %s", line)
				}
			}
			if code != c.left {
				t.Errorf("after --repair the code is %d, want %d", code, c.left)
			}
		})
	}
}

// TestFsckCannotCheck: a proxy that runs, a configuration that is wrong, a flag that there is not. Each is code 2.
func TestFsckCannotCheck(t *testing.T) {
	p := newStopped(t)
	want := func(part string, flags ...string) {
		t.Helper()
		if found, code, said := p.fsck(flags...); code != exitNoCheck || !strings.Contains(said, part) || len(found) > 0 {
			t.Errorf("%q: code %d, %q, %q; want %q", flags, code, found, said, part)
		}
	}
	lock, err := sqlite.Lock("data", "listening on 127.0.0.1:9000")
	p.must(err)
	want("listening on 127.0.0.1:9000): stop it first")
	p.must(lock.Release())
	store, err := file.Open("objects", file.Options{})
	p.must(err)
	want("another process has this root open: stop that first")
	p.must(store.Close())
	want("--colour", "--colour")
	want("unknown command", "more")
	want("there is no configuration", "--config", "nowhere.yaml")
	want("--format", "--format", "xml")
	p.sql("data/registry.db", "PRAGMA user_version = 99")
	want("start the newer version")
	p.must(os.RemoveAll("data"))
	want("there is no data directory")
}

// TestFsckTable: for people.
func TestFsckTable(t *testing.T) {
	p := newStopped(t)
	table := func(flags ...string) (string, error) {
		var out, errOut bytes.Buffer
		err := execute(t.Context(), append([]string{"fsck"}, flags...), strings.NewReader(""), &out, &errOut)
		return out.String(), err
	}
	if out, err := table(); err != nil || out != "Everything on the disk is as it should be.\n" {
		t.Errorf("%v %s", err, out)
	}
	p.must(errors.Join(os.WriteFile("objects/.fenceproxy/tmp/put-7", nil, 0o600), os.WriteFile("objects/bkt/k", []byte("theirs"), 0o644)))
	for _, c := range []struct {
		flag, repair, said string
	}{
		{"--repair=false", "--repair: remove it", "findings are left: 0 errors, and 1 left-overs that --repair removes"}, {"--repair", "done: remove it", ""},
	} {
		out, err := table(c.flag)
		lines := strings.Split(out, "\n")
		if len(lines) != 4 || !strings.HasPrefix(lines[0], "LEVEL") || !strings.HasSuffix(lines[1], c.repair) || !strings.HasPrefix(lines[2], "note ") {
			t.Errorf("%s prints\n%s", c.flag, out)
		}
		if c.said == "" && err != nil || c.said != "" && (err == nil || err.Error() != c.said) {
			t.Errorf("%s says %v, want %q", c.flag, err, c.said)
		}
	}
}
