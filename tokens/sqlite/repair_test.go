package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// versionOne is a file of version 1, as its program made it, with something in every table. It is never changed.
const versionOne = `
PRAGMA application_id = 1179534162;
PRAGMA user_version = 1;
CREATE TABLE registry (
	id         TEXT NOT NULL,    -- names this registry; a store that is fenced by it remembers the name
	created_at INTEGER NOT NULL  -- ms since 1970
) STRICT;
CREATE TABLE fences (
	resource   TEXT PRIMARY KEY,
	generation INTEGER NOT NULL, -- counts the resets
	token      INTEGER NOT NULL, -- the highest recorded; only Reset takes it down
	holder     TEXT NOT NULL,    -- that the token is bound to, '' if none
	access_key TEXT NOT NULL,
	raised_at  INTEGER NOT NULL  -- ms since 1970
) STRICT, WITHOUT ROWID;
CREATE TABLE runs (
	run        INTEGER PRIMARY KEY AUTOINCREMENT,
	started_at INTEGER NOT NULL, -- ms since 1970
	stopped_at INTEGER           -- null while it runs, and for ever if it was killed
) STRICT;
CREATE TABLE grants (
	id        INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice: a late give-back must not hit a newer grant
	run       INTEGER NOT NULL,
	resource  TEXT NOT NULL,
	token     INTEGER NOT NULL,
	settle_ms INTEGER NOT NULL,
	UNIQUE (run, resource)
) STRICT;
CREATE TABLE uploads (
	upload TEXT PRIMARY KEY,
	token  INTEGER NOT NULL      -- the highest that touched it
) STRICT, WITHOUT ROWID;
INSERT INTO registry VALUES ('DXMGMTXTDWWVKZQIUBK5IN35VF', 1700000000000);
INSERT INTO fences VALUES ('b/a', 2, 34, 'h', 'AKID', 1700000000001);
INSERT INTO runs VALUES (7, 1700000000000, NULL);
INSERT INTO grants VALUES (3, 7, 'b/a', 34, 3600000);
INSERT INTO uploads VALUES ('b/a?uploadId=x', 33);
`

const oldID = "DXMGMTXTDWWVKZQIUBK5IN35VF"

// run SQL on a file that nobody has open.
func execute(t *testing.T, path, statements string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(statements); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// tables are the statements that made a file's tables.
func tables(t *testing.T, r run) (all []string) {
	t.Helper()
	rows, err := r.db.Reader().Query("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestUpgradeFromVersion1: in place, with all that is in it, and to the same tables as a new file has.
func TestUpgradeFromVersion1(t *testing.T) {
	dir := t.TempDir()
	execute(t, filepath.Join(dir, FileName), versionOne)
	fresh := open(t, t.TempDir())
	defer fresh.Close()
	for range 2 { // the second time it is of the new version
		r := open(t, dir)
		if s := r.Start(); s.ID != oldID || s.Created || s.Run < 8 || len(s.Inherited) != 1 || s.Inherited[0] != (tokens.InheritedGrant{Resource: "b/a", Token: 34, Settle: time.Hour}) {
			t.Errorf("it began as %+v", s)
		}
		e, err := r.Lookup(t.Context(), "b/a")
		want := tokens.Entry{Resource: "b/a", Token: 34, Holder: "h", AccessKey: "AKID", Generation: 2, RaisedAt: time.UnixMilli(1700000000001)}
		if diff := cmp.Diff(want, e); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
		if token, err := r.UploadToken(t.Context(), "b/a?uploadId=x"); token != 33 || err != nil {
			t.Errorf("the upload has token %d, %v", token, err)
		}
		if m, _, err := r.Mappings(t.Context()); len(m) != 0 || err != nil {
			t.Errorf("mappings %v, %v", m, err)
		}
		if diff := cmp.Diff(tables(t, fresh), tables(t, r)); diff != "" {
			t.Errorf("upgraded, it differs from a new one: %s", diff)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestANewerVersionIsRefused, and nothing in it is changed.
func TestANewerVersionIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	execute(t, path, versionOne+fmt.Sprintf("PRAGMA user_version = %d;", len(schema.Versions)+1))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := Lock(dir, "a test")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	if _, err := Open(t.Context(), lock, Options{Create: true}); !errors.Is(err, sqlitedb.ErrNewer) {
		t.Errorf("%v; want it refused as newer", err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("it was changed, %v", err)
	}
}

func TestMappings(t *testing.T) {
	dir := t.TempDir()
	for _, want := range [][]tokens.Mapping{
		{{Name: "logs-*", Digest: "d1", Text: "first"}, {Name: "*", Digest: "d2", Text: "second"}},
		{{Name: "*", Digest: "d3", Text: "it's all"}},
		{{Name: "c", Digest: "d1", Text: ""}, {Name: "b", Digest: "d1", Text: ""}, {Name: "a", Digest: "d1", Text: ""}},
	} {
		r := open(t, dir)
		if _, err := r.RecordMappings(t.Context(), want, 0, false); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r = open(t, dir)
		if got, _, err := r.Mappings(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAdopt(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	const other, third = "5MP4GMTXTDWWVKZQIUBK5IN35A", "ABCDGMTXTDWWVKZQIUBK5IN35A"
	for _, bad := range []string{"", "x", strings.ToLower(other), other + "!", other[:25], strings.Repeat("A", 41), other + "\n"} {
		if err := r.Adopt(t.Context(), bad); err == nil {
			t.Errorf("%q was adopted", bad)
		}
	}
	for _, id := range []string{other, third, other, r.Start().ID} {
		if err := r.Adopt(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	want := []string{other, third}
	for range 2 {
		if got := r.Adopted(); !slices.Equal(got, want) {
			t.Errorf("adopted are %q, want %q", got, want)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r = open(t, dir)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func (r run) mustRaise(t *testing.T, c tokens.Claim) {
	t.Helper()
	if _, err := r.Raise(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// recorded checks the tokens of all resources.
func (r run) recorded(t *testing.T, want map[string]tokens.Token) {
	t.Helper()
	all, err := r.List(t.Context(), "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]tokens.Token{}
	for _, e := range all {
		got[e.Resource] = e.Token
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestRaiseAll: all or none, bound to nobody, and what was inherited stays.
func TestRaiseAll(t *testing.T) {
	dir := t.TempDir()
	killed := open(t, dir)
	killed.mustRaise(t, tokens.Claim{Resource: "b/a", Token: 34, Holder: "h", AccessKey: "AKID", Settle: time.Hour})
	killed.mustRaise(t, tokens.Claim{Resource: "b/b", Token: tokens.Max - 10})
	killed.mustRaise(t, tokens.Claim{Resource: "b/unseen", Token: 0, Holder: "h"})
	if err := errors.Join(killed.release(), killed.lock.Release()); err != nil {
		t.Fatal(err)
	}
	r := open(t, dir)
	defer r.Close()
	n, err := r.RaiseAll(t.Context(), 11)
	var over *tokens.OverflowError
	if !errors.As(err, &over) || *over != (tokens.OverflowError{Resource: "b/b", Token: tokens.Max - 10, By: 11}) || n != 0 {
		t.Errorf("%d, %v; want it refused for b/b", n, err)
	}
	if n, err := r.RaiseAll(t.Context(), 0); err == nil {
		t.Errorf("%d raised by nothing", n)
	}
	r.recorded(t, map[string]tokens.Token{"b/a": 34, "b/b": tokens.Max - 10, "b/unseen": 0})
	if r.Failure() != nil {
		t.Errorf("a refusal counts as a failure: %v", r.Failure())
	}

	if n, err := r.RaiseAll(t.Context(), 10); n != 2 || err != nil {
		t.Errorf("%d, %v; want 2", n, err)
	}
	r.recorded(t, map[string]tokens.Token{"b/a": 44, "b/b": tokens.Max, "b/unseen": 0})
	if e, err := r.Lookup(t.Context(), "b/a"); e.Holder != "" || e.AccessKey != "" || time.Since(e.RaisedAt) > time.Hour || err != nil {
		t.Errorf("%+v, %v; want it bound to nobody, and raised now", e, err)
	}
	if _, err := r.Raise(t.Context(), tokens.Claim{Resource: "b/a", Token: 43}); !errors.As(err, new(*tokens.StaleError)) {
		t.Errorf("%v; want 43 refused", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Raise(ctx, tokens.Claim{Resource: "b/a", Token: 44}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want a raise to wait for the killed run's write with 34", err)
	}
}

// TestRaiseTo: never down, counted once, and an equal token keeps its holder.
func TestRaiseTo(t *testing.T) {
	r := open(t, t.TempDir())
	defer r.Close()
	r.mustRaise(t, tokens.Claim{Resource: "b/above", Token: 50, Holder: "h", AccessKey: "AKID"})
	r.mustRaise(t, tokens.Claim{Resource: "b/equal", Token: 34, Holder: "h"})
	r.mustRaise(t, tokens.Claim{Resource: "b/below", Token: 33, Holder: "h"})
	if _, err := r.Reset(t.Context(), "b/reset", 3); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-time.Minute)
	for _, step := range []struct {
		marks map[string]tokens.Mark
		want  int64
	}{
		{map[string]tokens.Mark{"b/above": {Token: 34, Generation: 2}, "b/equal": {Token: 34, Generation: 0}, "b/below": {Token: 34, Generation: 0}, "b/reset": {Token: 34, Generation: 0}, "b/new": {Token: 34, Generation: 0}}, 3},
		{map[string]tokens.Mark{"b/new": {Token: 36, Generation: 1}, "b/newer": {Token: 36, Generation: 0}}, 1},
		{map[string]tokens.Mark{"b/new": {Token: 35, Generation: 3}, "b/newer": {Token: 36, Generation: 0}, "b/equal": {Token: 34, Generation: 1}}, 0},
		{nil, 0},
	} {
		if n, err := r.RaiseTo(t.Context(), step.marks, at); n != step.want || err != nil {
			t.Errorf("%v: %d, %v; want %d", step.marks, n, err, step.want)
		}
	}
	for _, want := range []tokens.Entry{
		{Resource: "b/above", Token: 50, Generation: 2, Holder: "h", AccessKey: "AKID"},
		{Resource: "b/equal", Token: 34, Generation: 1, Holder: "h"},
		{Resource: "b/below", Token: 34},
		{Resource: "b/reset", Token: 34, Generation: 1},
		{Resource: "b/new", Token: 36, Generation: 3},
		{Resource: "b/newer", Token: 36},
	} {
		e, err := r.Lookup(t.Context(), want.Resource)
		if e.RaisedAt.IsZero() {
			t.Errorf("%s was never raised", want.Resource)
		}
		if e.RaisedAt = (time.Time{}); e != want || err != nil {
			t.Errorf("%+v, %v; want %+v", e, err, want)
		}
	}
}

// TestWaitSettled waits for the last one, and in a run without any for nothing.
func TestWaitSettled(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := open(t, dir)
		r.mustRaise(t, tokens.Claim{Resource: "b/a", Token: 1, Settle: time.Minute})
		r.mustRaise(t, tokens.Claim{Resource: "b/b", Token: 1, Settle: 10 * time.Minute})
		if n, wait := r.Unsettled(); n != 0 || wait != 0 {
			t.Errorf("%d for %v of its own run", n, wait)
		}
		if err := errors.Join(r.release(), r.lock.Release()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		r = open(t, dir)
		defer r.Close()
		if n, wait := r.Unsettled(); n != 2 || wait <= 9*time.Minute || wait > 10*time.Minute {
			t.Errorf("%d for %v, want 2 for 10 min", n, wait)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := r.WaitSettled(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after 5 min: %v", err)
		}
		if n, _ := r.Unsettled(); n != 1 {
			t.Errorf("%d after 5 min, want 1", n)
		}
		if err := r.WaitSettled(t.Context()); err != nil || time.Since(start) < 10*time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		synctest.Wait()
		if n, wait := r.Unsettled(); n != 0 || wait > 0 {
			t.Errorf("%d for %v at the end", n, wait)
		}
	})
}

func TestCount(t *testing.T) {
	r := open(t, t.TempDir())
	defer r.Close()
	for _, resource := range []string{"a/1", "b-c/1", "b/1", "b/2", "b0/1", "\xff\xff"} {
		r.mustRaise(t, tokens.Claim{Resource: resource, Token: 1})
	}
	for prefix, want := range map[string]int64{"": 6, "b/": 2, "b": 4, "c/": 0, "\xff": 1} {
		if n, err := r.Count(t.Context(), prefix); n != want || err != nil {
			t.Errorf("%q: %d, %v; want %d", prefix, n, err, want)
		}
	}
}

// TestHold: after a registry was lost, raises on a store with a settle time wait for what the lost one has let through; others do not. When the
// last one was adopted is known to later runs.
func TestHold(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := open(t, dir)
		if at, err := r.LastAdopted(t.Context()); err != nil || !at.IsZero() {
			t.Errorf("adopted at %v, %v", at, err)
		}
		start := time.Now()
		if err := r.Adopt(t.Context(), oldID); err != nil {
			t.Fatal(err)
		}
		r.Hold(start.Add(10 * time.Minute))
		r.mustRaise(t, tokens.Claim{Resource: "b/file", Token: 1})
		if waited := time.Since(start); waited != 0 {
			t.Errorf("a raise on a file store waited %v", waited)
		}
		r.mustRaise(t, tokens.Claim{Resource: "b/a", Token: 1, Settle: time.Minute})
		if waited := time.Since(start); waited != 10*time.Minute {
			t.Errorf("a raise waited %v", waited)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r = open(t, dir)
		defer r.Close()
		if at, err := r.LastAdopted(t.Context()); err != nil || at.UnixMilli() != start.UnixMilli() {
			t.Errorf("adopted at %v, %v; want %v", at, err, start)
		}
	})
}
