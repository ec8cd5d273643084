package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

// openRepair opens registry and audit log in dir, new ones where there are none.
func openRepair(t *testing.T, dir string) *state {
	t.Helper()
	s := newState()
	var err error
	if s.lock, err = sqlite.Lock(dir, "a test"); err != nil {
		t.Fatal(err)
	}
	if s.registry, err = sqlite.Open(t.Context(), s.lock, sqlite.Options{Create: true}); err != nil {
		t.Fatal(err)
	}
	if s.audit, err = audit.Open(t.Context(), filepath.Join(dir, auditFile), audit.Options{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *state) mustClose(t *testing.T) {
	t.Helper()
	if err := s.close(slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}

// bucketsConfig is a configuration with these bucket entries, a file backend and an S3 backend.
func bucketsConfig(t *testing.T, entries string) *config {
	t.Helper()
	text := "backends:\n  local: {type: file, root: objects}\n  s3: {type: s3, endpoint: 'http://127.0.0.1:7000/base', path_style: true}\nbuckets:\n" +
		"  - {name: the-s3-bucket, backend: s3}\n"
	for entry := range strings.SplitSeq(entries, ";") {
		text += "  - " + entry + "\n"
	}
	return mustParseConfig(t, text)
}

const jobs = `{match: "jobs/{job}/**", resource: "jobs/{job}"}`

// Each step is a start with other bucket entries, after the ones before.
func TestMappingChanges(t *testing.T) {
	for name, steps := range map[string][]struct {
		entries string
		refused string // what the error says, "" if the start goes on
	}{
		"policy": {
			{`{name: "*", backend: local, rules: [` + jobs + `]}`, ""},
			{`{name: "*", backend: local, bucket_writes: deny, rules: [{match: "jobs/{job}/**", resource: "jobs/{job}", token: required, holder: required}, {match: "once/**", write_once: true}]}`, ""},
			{`{name: "*", backend: local, rules: [{match: "logs/**", token: required}, ` + jobs + `, {match: "**", resource: "{key}"}]}`, ""},
		},
		"a rule is changed": {
			{`{name: "*", backend: local, rules: [` + jobs + `]}`, ""},
			{`{name: "*", backend: local, rules: [{match: "jobs/{job}/**", resource: "{job}"}]}`, `entry "*" for buckets such as`},
			{`{name: "*", backend: local, rules: [{match: "jobs/{job}/**", resource: "{job}"}]}`, `: where the rule {match: "jobs/{job}/**", resource: "jobs/{job}"} stood, there is {match: "jobs/{job}/**", resource: "{job}"}`},
			{`{name: "*", backend: local, rules: [` + jobs + `]}`, ""},
		},
		"a rule is taken out": {
			{`{name: "*", backend: local, rules: [` + jobs + `]}`, ""},
			{`{name: "*", backend: local}`, `the rule {match: "jobs/{job}/**", resource: "jobs/{job}"} is gone`},
		},
		"a rule is put in": {
			{`{name: bkt, backend: local}`, ""},
			{`{name: bkt, backend: local, rules: [` + jobs + `]}`, `entry "bkt": the rule {match: "jobs/{job}/**", resource: "jobs/{job}"} is new`},
			{`{name: bkt, backend: local, rules: [{match: "free/**", token: off}]}`, `the rule {match: "free/**", token: off} is new`},
		},
		"another backend": {
			{`{name: a, backend: local};{name: b, backend: s3}`, ""},
			{`{name: a, backend: s3};{name: b, backend: local}`, `entry "a": the backend was local, and is s3 (and 1 more)`},
		},
		"entries behind, and the same ones elsewhere": {
			{`{name: "logs-*", backend: local, rules: [` + jobs + `]}`, ""},
			{`{name: "logs-*", backend: local, rules: [` + jobs + `]};{name: "*", backend: local}`, ""},
			{`{name: other, backend: local};{name: "logs-*", backend: local, rules: [` + jobs + `]};{name: "*", backend: local}`, ""},
		},
		"an entry in front of one that served its buckets": {
			{`{name: "logs-*", backend: local, rules: [` + jobs + `]}`, ""},
			{`{name: "logs-1", backend: local};{name: "logs-*", backend: local, rules: [` + jobs + `]}`, `entry "logs-1", which takes the place of "logs-*": the rule`},
			{`{name: "logs-1", backend: local, rules: [` + jobs + `]};{name: "logs-*", backend: local, rules: [` + jobs + `]}`, ""},
		},
		"an entry goes and another takes its buckets": {
			{`{name: "logs-*", backend: local, rules: [` + jobs + `]};{name: "*", backend: local}`, ""},
			{`{name: "*", backend: local}`, `entry "*", which takes the place of "logs-*" for buckets such as "logs-`},
		},
		"a bucket goes and comes back": {
			{`{name: a, backend: local, rules: [` + jobs + `]};{name: b, backend: local}`, ""},
			{`{name: b, backend: local}`, ""},
			{`{name: b, backend: local}`, ""},
			{`{name: b, backend: local};{name: a, backend: local}`, `entry "a"`},
			{`{name: "*", backend: local}`, `entry "*", which takes the place of "a" for buckets such as "a": `},
			{`{name: b, backend: local};{name: "a*", backend: local, rules: [` + jobs + `]}`, ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for i, step := range steps {
				s := openRepair(t, dir)
				err := s.checkMapping(t.Context(), bucketsConfig(t, step.entries), false, slog.New(slog.DiscardHandler))
				switch {
				case step.refused == "" && err != nil:
					t.Errorf("start %d: %v", i, err)
				case step.refused != "":
					wantError(t, err, step.refused)
					wantError(t, err, "serve --remap")
				}
				s.mustClose(t)
			}
		})
	}
}

// The same name for another place is another mapping; other credentials are not.
func TestMappingOfAnotherStore(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct {
		backend, refused string
	}{
		{"{type: s3, region: eu-west-1, endpoint: 'http://store.example/base/', path_style: true}", ""},
		{"{type: s3, region: eu-west-1, endpoint: 'http://STORE.example/base', path_style: true, access_key: A, secret_key: S}", ""},
		{"{type: s3, region: eu-west-1, endpoint: 'http://store.example/other', path_style: true}", "the backend x was S3 at http://store.example/base eu-west-1, and is S3 at http://store.example/other eu-west-1"},
		{"{type: s3, region: eu-west-2}", "and is S3 at AWS eu-west-2"},
		{"{type: file, root: objects}", "and is a directory"},
	} {
		s := openRepair(t, dir)
		err := s.checkMapping(t.Context(), mustParseConfig(t, "backends: {x: "+c.backend+"}\n"), false, slog.New(slog.DiscardHandler))
		if c.refused != "" {
			wantError(t, err, c.refused)
		} else if err != nil {
			t.Errorf("%d: %v", i, err)
		}
		s.mustClose(t)
	}
}

// TestRemap waits for what earlier runs have left, and tells what is left behind.
func TestRemap(t *testing.T) {
	dir := t.TempDir()
	before := bucketsConfig(t, `{name: "*", backend: local, rules: [`+jobs+`]}`)
	after := bucketsConfig(t, `{name: "a", backend: local};{name: "a0", backend: local};{name: "*", backend: local, rules: [`+jobs+`]}`)
	synctest.Test(t, func(t *testing.T) {
		s := openRepair(t, dir)
		if err := s.checkMapping(t.Context(), before, false, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		for i := range 25 {
			claim := tokens.Claim{Resource: fmt.Sprintf("a/jobs/%02d", i), Token: 34}
			if _, err := s.registry.Raise(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
		}
		for _, resource := range []string{"a-/jobs/1", "a0/jobs/1", "the-s3-bucket/x"} {
			if _, err := s.registry.Raise(t.Context(), tokens.Claim{Resource: resource, Token: 34, Settle: time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
		s.mustClose(t) // with its grants: no fence gave them back

		s = openRepair(t, dir)
		err := s.checkMapping(t.Context(), after, false, slog.New(slog.DiscardHandler))
		wantError(t, err, "tokens of 26 resources in 2 buckets are recorded there: a/jobs/00, ")
		wantError(t, err, "a/jobs/19, …")
		var said bytes.Buffer
		log := slog.New(slog.NewTextHandler(&said, nil))
		start := time.Now()
		if err := s.checkMapping(t.Context(), after, true, log); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited < 59*time.Second || waited > time.Minute {
			t.Errorf("it waited %v, want the settle time of 1m", waited)
		}
		for _, part := range []string{"waits for the writes of earlier runs", "resources=3", "26 resources"} {
			if !strings.Contains(said.String(), part) {
				t.Errorf("the log says\n%swithout %q", said.String(), part)
			}
		}
		records, _, err := s.audit.Query(t.Context(), audit.Filter{Kind: audit.KindReload})
		if err != nil || len(records) != 1 || !strings.Contains(records[0].Detail, "26 resources") {
			t.Errorf("audited %+v, %v", records, err)
		}
		if err := s.checkMapping(t.Context(), after, false, log); err != nil {
			t.Errorf("once is not enough: %v", err)
		}
		wantError(t, s.checkMapping(t.Context(), before, false, log), "serve --remap")
		s.mustClose(t)
	})
}

// TestRemapInterrupted: what is on record is the old mapping.
func TestRemapInterrupted(t *testing.T) {
	dir := t.TempDir()
	before, after := bucketsConfig(t, `{name: "*", backend: local}`), bucketsConfig(t, `{name: "*", backend: local, rules: [`+jobs+`]}`)
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		s := openRepair(t, dir)
		if err := s.checkMapping(t.Context(), before, false, log); err != nil {
			t.Fatal(err)
		}
		if _, err := s.registry.Raise(t.Context(), tokens.Claim{Resource: "b/jobs/7/x", Token: 34, Settle: time.Hour}); err != nil {
			t.Fatal(err)
		}
		s.mustClose(t)
		s = openRepair(t, dir)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantError(t, s.checkMapping(ctx, after, true, log), "nothing was changed")
		s.mustClose(t)
		s = openRepair(t, dir)
		defer s.mustClose(t)
		wantError(t, s.checkMapping(t.Context(), after, false, log), "serve --remap")
		if err := s.checkMapping(t.Context(), before, false, log); err != nil {
			t.Error(err)
		}
	})
}

func TestAdoptIsAudited(t *testing.T) {
	s := openRepair(t, t.TempDir())
	defer s.mustClose(t)
	log := slog.New(slog.DiscardHandler)
	const other = "DXMGMTXTDWWVKZQIUBK5IN35VF"
	for range 2 {
		if err := s.adopt(t.Context(), []string{other, s.registry.Start().ID}, log); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.registry.Adopted(); !slices.Equal(got, []string{other}) {
		t.Errorf("adopted are %q", got)
	}
	records, _, err := s.audit.Query(t.Context(), audit.Filter{Kind: audit.KindStart})
	if err != nil || len(records) != 1 || !strings.Contains(records[0].Detail, other) {
		t.Errorf("audited %+v, %v; want it once", records, err)
	}
	if err := s.adopt(t.Context(), []string{"nonsense"}, log); err == nil || !strings.Contains(err.Error(), "--adopt") {
		t.Error(err)
	}
}
