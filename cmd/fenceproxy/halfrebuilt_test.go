package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/backends/file"
	"github.com/fenceproxy/fenceproxy/proxy"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

// serves opens what serve opens, lets use have it, and returns what it logs, and why it would not start.
func (p *site) serves(t *testing.T, f serveFlags, use func(*state)) (said string, err error) {
	t.Helper()
	c, err := loadConfig(p.config, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s, err := openState(t.Context(), c, f, slog.New(slog.NewTextHandler(&log, nil)), "a test", "test:1")
	if err != nil {
		return log.String(), err
	}
	if use != nil {
		use(s)
	}
	s.mustClose(t)
	return log.String(), nil
}

// mustServe is serves where it has to.
func (p *site) mustServe(t *testing.T, f serveFlags, use func(*state)) string {
	t.Helper()
	said, err := p.serves(t, f, use)
	if err != nil {
		t.Fatalf("serve does not start: %v", err)
	}
	return said
}

func (p *site) mustRaiseAll(t *testing.T) {
	t.Helper()
	if _, _, err := p.run(t, t.Context(), "raise", "--all-by", "5"); err != nil {
		t.Fatal(err)
	}
}

// lose takes the registry away.
func (p *site) lose(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.data, sqlite.FileName+"*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no registry to lose, %v", err)
	}
	for _, name := range files {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServeAfterAHalfRebuild: what a rebuild has not read, serve would let in. It does not start before a rebuild has come to its end and the marks
// have a margin.
func TestServeAfterAHalfRebuild(t *testing.T) {
	const again, margin = "run `fenceproxy rebuild` again", "run `fenceproxy raise --all-by N` first"
	refused := func(t *testing.T, p *site, sentence string) {
		t.Helper()
		_, err := p.serves(t, serveFlags{newRegistry: true}, nil) // which does not help
		if err == nil {
			t.Fatal("serve starts")
		}
		wantError(t, err, sentence)
	}
	interrupt := func(t *testing.T, f *fakeS3, p *site) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f.lists = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("continuation-token") != "" {
				cancel()
			}
			return false
		}
		_, _, err := p.run(t, ctx, "rebuild")
		wantError(t, err, "interrupted")
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lists = nil
	}
	t.Run("interrupted", func(t *testing.T) {
		f, p := newFakeS3(t, 10)
		interrupt(t, f, p)
		refused(t, p, again)
		_, _, err := p.run(t, t.Context(), "raise", "--all-by", "10") // a margin on the others is none for those that are missing
		wantError(t, err, "Nothing was raised")
		refused(t, p, again)
		p.rebuilt(t)
		refused(t, p, margin)
		p.mustRaiseAll(t)
		p.mustServe(t, serveFlags{}, nil)
	})
	t.Run("ended at once", func(t *testing.T) { // the registry was made, and nothing else
		_, p := newFakeS3(t, 1)
		if err := os.Mkdir(p.data, 0o755); err != nil {
			t.Fatal(err)
		}
		log := filepath.Join(p.data, auditFile)
		if err := os.WriteFile(log, []byte(strings.Repeat("no audit log", 1000)), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.run(t, t.Context(), "rebuild"); err == nil {
			t.Fatal("it has opened an audit log that is none")
		}
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
		refused(t, p, again)
		p.rebuilt(t)
	})
	t.Run("failures", func(t *testing.T) {
		f, p := newFakeS3(t, 3)
		forbidden := []int{403, 403, 403}
		f.answers["a +1"] = forbidden
		_, _, err := p.run(t, t.Context(), "rebuild")
		wantError(t, err, "--accept-failures")
		refused(t, p, again)
		_, _, err = p.run(t, t.Context(), "rebuild")
		wantError(t, err, "1 objects or lists could not be read")
		rows, said := p.rebuilt(t, "--accept-failures")
		if rows[0].Failures != 1 || !strings.Contains(said, `key="a +1"`) || !strings.Contains(said, "raise --all-by N") {
			t.Errorf("%+v\n%s", rows, said)
		}
		refused(t, p, margin)
		p.mustRaiseAll(t)
		p.mustServe(t, serveFlags{}, nil)
	})
	t.Run("of a registry that is good", func(t *testing.T) {
		f, p := newFakeS3(t, 3)
		s := p.open(t)
		s.mustRecord(t, map[string]tokens.Token{"bkt/x": 1})
		s.mustClose(t)
		f.answers["a +1"] = []int{403}
		_, _, err := p.run(t, t.Context(), "rebuild")
		wantError(t, err, "1 objects")
		refused(t, p, again)
		p.rebuilt(t)
		refused(t, p, margin)
		p.mustRaiseAll(t)
		p.mustServe(t, serveFlags{}, nil)
	})
	t.Run("a registry that comes up later", func(t *testing.T) { // the marks that an interrupted one has left do not make it an old registry
		f, p := newFakeS3(t, 10)
		f.objects["z"] = stampOf(otherID, "bkt/z", 7)
		interrupt(t, f, p)
		rows, said := p.rebuilt(t)
		if rows[0].OtherRegistry != 0 || rows[0].Stamps != 11 || strings.Contains(said, "left out") {
			t.Errorf("%+v\n%s", rows, said)
		}
		p.mustRaiseAll(t)
		p.mustServe(t, serveFlags{}, func(s *state) {
			if e, err := s.registry.Lookup(t.Context(), "bkt/z"); e.Token != 12 || err != nil {
				t.Errorf("%+v, %v", e, err)
			}
		})
	})
}

// TestRebuildOfWhatCannotBeRead: an object that is gone by now, or that nobody can read without its writer's key, is no reason to run it again: it would
// never end.
func TestRebuildOfWhatCannotBeRead(t *testing.T) {
	f, p := newFakeS3(t, 4)
	f.answers["a +1"] = []int{404}
	f.answers["a +2"] = []int{400}
	f.objects["\xff"] = stampOf(lostID, "bkt/\xff", 34)
	rows, said := p.rebuilt(t)
	if rows[0] != (bucketCount{Bucket: "bkt", Backend: "s3", Objects: 5, Stamps: 2, Raised: 2, NoStamp: 3}) {
		t.Errorf("%+v", rows[0])
	}
	for _, part := range []string{"SSE-C", `key="a +2"`, "not UTF-8", "no stamp that could be read"} {
		if !strings.Contains(said, part) {
			t.Errorf("it says\n%swithout %q", said, part)
		}
	}
	if strings.Contains(said, `key="a +1"`) {
		t.Errorf("it warns of an object that was deleted:\n%s", said)
	}

	// 400 to everything is what S3 says to credentials that have expired: the objects may have stamps.
	f, p = newFakeS3(t, 4)
	f.answers["a +2"] = []int{400}
	f.lists = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusBadRequest)
		}
		return r.Method == http.MethodHead
	}
	_, _, err := p.run(t, t.Context(), "rebuild")
	wantError(t, err, "1 objects or lists could not be read")
}

// TestRebuildAfterAReset: stamps of this very registry from before a reset that it knows of do not bring back what the operator has taken down.
func TestRebuildAfterAReset(t *testing.T) {
	p := newSite(t, "{local: {type: file, root: DIR/objects}}")
	s := p.open(t)
	id := s.registry.Start().ID
	s.mustRecord(t, map[string]tokens.Token{"bkt/jobs/1": 1000, "bkt/jobs/2": 1000})
	if _, err := s.registry.Reset(t.Context(), "bkt/jobs/1", 5); err != nil {
		t.Fatal(err)
	}
	s.mustClose(t)
	stamp := func(generation int64, token tokens.Token, resource string) string {
		return proxy.Stamp{Registry: id, Resource: proxy.ResourceHash(resource), Generation: generation, Token: token, WriteID: "0123456789abcdef"}.String()
	}
	p.inStore(t, func(store *file.Store) {
		put(t, store, "/bkt", "")
		put(t, store, "/bkt/jobs/1/old", stamp(0, 1000, "bkt/jobs/1"))
		put(t, store, "/bkt/jobs/1/new", stamp(1, 7, "bkt/jobs/1"))
		put(t, store, "/bkt/jobs/2/a", stamp(0, 1001, "bkt/jobs/2"))
		if err := store.BindRegistry(id); err != nil {
			t.Fatal(err)
		}
	})
	for _, raised := range []int64{2, 0} {
		rows, _ := p.rebuilt(t)
		if rows[0] != (bucketCount{Bucket: "bkt", Backend: "local", Objects: 3, Stamps: 3, Raised: raised}) {
			t.Errorf("%+v", rows[0])
		}
		p.recorded(t, map[string]tokens.Token{"bkt/jobs/1": 7, "bkt/jobs/2": 1001})
	}
}

// TestRebuildAgainAfterAReset: the stamps of the registry that was lost count as this one's since the first rebuild, and so do its generations.
func TestRebuildAgainAfterAReset(t *testing.T) {
	f, p := newFakeS3(t, 1)
	p.rebuilt(t)
	p.mustRaiseAll(t)
	p.mustServe(t, serveFlags{}, func(s *state) {
		if _, err := s.registry.Reset(t.Context(), "bkt/a +0", 5); err != nil {
			t.Fatal(err)
		}
	})
	f.mu.Lock()
	f.objects["b"] = stampOf(lostID, "bkt/b", 7)
	f.mu.Unlock()
	rows, _ := p.rebuilt(t)
	if rows[0] != (bucketCount{Bucket: "bkt", Backend: "s3", Objects: 2, Stamps: 2, Raised: 1}) {
		t.Errorf("%+v", rows[0])
	}
	p.recorded(t, map[string]tokens.Token{"bkt/a +0": 5, "bkt/b": 7})
}

// TestHoldOutlivesARestart: a registry that has replaced a lost one lets no new token in on S3 until the last writes under that one can take effect no
// more, however often the proxy is started meanwhile.
func TestHoldOutlivesARestart(t *testing.T) {
	p := newSite(t, "{s3: {type: s3, endpoint: 'http://store.example', path_style: true, access_key: A, secret_key: S, settle: 60s}}")
	synctest.Test(t, func(t *testing.T) {
		p.open(t).mustClose(t)
		p.lose(t)
		if _, err := p.serves(t, serveFlags{}, nil); err == nil {
			t.Fatal("serve starts without a registry beside its audit log")
		}
		lost := time.Now()
		for _, f := range []serveFlags{{newRegistry: true}, {}, {newRegistry: true}} {
			said := p.mustServe(t, f, func(s *state) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if _, err := s.registry.Raise(ctx, tokens.Claim{Resource: "bkt/a", Token: 1, Settle: time.Minute}); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v after the loss a new token is let in: %v", time.Since(lost), err)
				}
			})
			if !strings.Contains(said, "another registry was here before") {
				t.Errorf("it says %s", said)
			}
			time.Sleep(20 * time.Second)
		}
		p.mustServe(t, serveFlags{}, func(s *state) {
			if _, err := s.registry.Raise(t.Context(), tokens.Claim{Resource: "bkt/b", Token: 1, Settle: time.Minute}); err != nil {
				t.Error(err)
			}
			if waited := time.Since(lost); waited < 10*time.Minute-time.Second || waited > 10*time.Minute+time.Second {
				t.Errorf("it came through %v after the loss, want 10 times the settle time", waited)
			}
		})
		if said := p.mustServe(t, serveFlags{}, nil); strings.Contains(said, "another registry was here before") {
			t.Errorf("and after that it says %s", said)
		}
	})
}

// TestHoldAfterARebuild that has found no stamp, and so adopted nobody: there was another registry all the same.
func TestHoldAfterARebuild(t *testing.T) {
	f, p := newFakeS3(t, 0)
	f.objects["a"] = ""
	p.open(t).mustClose(t)
	p.lose(t)
	p.rebuilt(t)
	p.mustRaiseAll(t)
	said := p.mustServe(t, serveFlags{}, func(s *state) {
		if got := s.registry.Adopted(); len(got) != 0 {
			t.Errorf("adopted are %q", got)
		}
	})
	if !strings.Contains(said, "new tokens on S3 wait") {
		t.Errorf("it says %s", said)
	}
}

// TestSpoolIsEmptied of what a crash has left in it, wherever the data directory is, and of nothing else.
func TestSpoolIsEmptied(t *testing.T) {
	for _, name := range []string{"plain", "data[1", "data[1]", `a*b?\`} {
		data := filepath.Join(t.TempDir(), name)
		dir := filepath.Join(data, "spool")
		for range 2 { // the first time there is none
			got, err := openSpool(data)
			if err != nil || got != dir {
				t.Fatalf("%s: %q, %v", name, got, err)
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != "mine" {
				t.Errorf("%s: it has %v, %v", name, entries, err)
			}
			for _, left := range []string{"body-1", "body-2", "mine"} {
				if err := os.WriteFile(filepath.Join(dir, left), []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
