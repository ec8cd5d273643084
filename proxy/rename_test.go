package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

func TestRenameSources(t *testing.T) {
	for _, c := range []struct {
		source string
		keys   []string
	}{
		{"a", []string{"a"}},
		{"jobs/7/a", []string{"jobs/7/a"}},
		{"a%2Fb%20c", []string{"a/b c"}},
		{"a+b", []string{"a+b"}},
		{"a?versionId=3", []string{"a?versionId=3"}},
		{"/a", []string{"/a", "a"}},
		{"b/a", []string{"b/a", "a"}},
		{"/b/a", []string{"/b/a", "b/a", "a"}},
		{"%2Fb%2Fa", []string{"/b/a", "b/a", "a"}},
		{"//b/a", []string{"//b/a", "/b/a"}},
		{"b", []string{"b"}},
		{"b/", []string{"b/"}},
		{"/", []string{"/"}},
		{"", nil},
		{"a%zz", nil},
		{"a%ff", nil},
		{strings.Repeat("k", maxKey), []string{strings.Repeat("k", maxKey)}},
		{strings.Repeat("k", maxKey+1), nil},
	} {
		keys, err := renameSources(http.Header{headerRenameSource: {c.source}}, "b")
		if !slices.Equal(keys, c.keys) || (err == nil) != (c.keys != nil) {
			t.Errorf("%q: %q, %v; want %q", c.source, keys, err, c.keys)
		}
	}
	if keys, err := renameSources(http.Header{headerRenameSource: {"a", "a"}}, "b"); err == nil {
		t.Errorf("two sources are %q", keys)
	}
}

// FuzzEncodeSource: what the store gets is read as what was fenced, whichever way it decodes.
func FuzzEncodeSource(f *testing.F) {
	for _, seed := range []string{"a", "/b/ü x", "a+b%2Fc", "a?b#c", "\x00\x7f", "%252F"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		encoded := encodeSource(name)
		if strings.ContainsAny(encoded, "+ ?#\n") {
			t.Errorf("%q is sent as %q", name, encoded)
		}
		keys, err := renameSources(http.Header{headerRenameSource: {encoded}}, "b")
		if err == nil && keys[0] != name {
			t.Errorf("%q is sent as %q, and read as %q", name, encoded, keys[0])
		}
	})
}

const toNew, fromOld = "/b/jobs/new/a?renameObject", "X-Amz-Rename-Source: jobs/old/a"

// TestRenameRaisesBoth: a rename is a write of both keys.
func TestRenameRaisesBoth(t *testing.T) {
	t.Parallel()
	var sent http.Header
	f := newFixture(t, Backend{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header
		answering(200).ServeHTTP(w, r)
	})}, jobRules)
	resp, _ := f.do("PUT", toNew, "", "X-Amz-Rename-Source: jobs/old/a+%C3%BC", "X-Fence-Token: 34")
	if resp.StatusCode != 200 || resp.Header.Get("X-Fence-Resource") != "b/jobs/new" || resp.Header.Get("X-Fence-Highest") != "34" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if got := sent.Get(headerRenameSource); got != "jobs/old/a%2B%C3%BC" {
		t.Errorf("the store was told to rename %q", got)
	}
	for _, key := range []string{"jobs/new/b", "jobs/old/b"} {
		f.want(412, "StaleToken", "PUT", "/b/"+key, "x", "X-Fence-Token: 33")
		f.want(200, "", "PUT", "/b/"+key, "x", "X-Fence-Token: 34")
	}
	if s := f.fence.Stats(); s.Open != 0 || s.InDoubt != 0 {
		t.Errorf("%+v", s)
	}
}

// TestStaleRenames: it is enough that one of the two keys has a newer holder. The refusal names that one's resource and rule, and the other
// one's mark stays.
func TestStaleRenames(t *testing.T) {
	t.Parallel()
	for _, fenced := range []string{"new", "old"} {
		store := &willing{}
		f := newFixture(t, Backend{Handler: store}, rules.Rule{Match: "jobs/old/**", Resource: "jobs/old", Refuse: 403}, jobRules)
		f.want(200, "", "PUT", "/b/jobs/"+fenced+"/x", "x", "X-Fence-Token: 40")
		resp, body := f.do("PUT", toNew, "", fromOld, "X-Fence-Token: 34")
		want, rule := 412, "jobs/{job}/**"
		if fenced == "old" {
			want, rule = 403, "jobs/old/**"
		}
		if resp.StatusCode != want || resp.Header.Get("X-Fence-Error") != "StaleToken" || resp.Header.Get("X-Fence-Resource") != "b/jobs/"+fenced || !strings.Contains(body, rule) {
			t.Errorf("%s: %d %v %s", fenced, resp.StatusCode, resp.Header, body)
		}
		if store.has(renameObject, "b/jobs/new/a") {
			t.Errorf("%s: the store was told to rename", fenced)
		}
		for _, other := range []string{"new", "old"} {
			if other != fenced {
				f.want(200, "", "PUT", "/b/jobs/"+other+"/x", "x", "X-Fence-Token: 1")
			}
		}
		records, _, err := f.audit.Query(t.Context(), audit.Filter{Kind: audit.KindRefusal})
		if err != nil || len(records) != 1 || records[0].Operation != renameObject || records[0].Resource != "b/jobs/"+fenced {
			t.Errorf("%s: %+v, %v", fenced, records, err)
		}
	}
}

// TestRulesOfRenames: the rules of both keys are asked before any mark moves.
func TestRulesOfRenames(t *testing.T) {
	t.Parallel()
	store := &willing{}
	f := newFixture(
		t, Backend{Handler: store}, jobRules,
		rules.Rule{Match: "must/**", Token: rules.Required}, rules.Rule{Match: "named/**", HolderRequired: true}, rules.Rule{Match: "near/**", MaxAdvance: 10},
		rules.Rule{Match: "once/**", WriteOnce: true}, rules.Rule{Match: "cas/**", RequireCondition: true}, rules.Rule{Match: "off/**", Token: rules.Off},
	)
	f.want(200, "", "PUT", "/b/near/a", "x", "X-Fence-Token: 1")
	const token = "X-Fence-Token: 99"
	for _, c := range []struct {
		to, from string
		status   int
		refusal  string
		headers  []string
	}{
		{"must/a", "free", 403, "TokenRequired", nil},
		{"free", "must/a", 403, "TokenRequired", nil},
		{"free", "b/must/a", 403, "TokenRequired", nil},
		{"free", "/b/must/a", 403, "TokenRequired", nil},
		{"named/a", "free", 403, "HolderRequired", []string{token}},
		{"free", "named/a", 403, "HolderRequired", []string{token}},
		{"near/a", "free", 403, "TokenTooFar", []string{token}},
		{"free", "near/a", 403, "TokenTooFar", []string{token}},
		{"once/a", "free", 403, "ConditionsIgnored", []string{token, "If-None-Match: *"}},
		{"cas/a", "free", 403, "ConditionRequired", []string{token, "X-Amz-Rename-Source-If-Match: x"}},
		{"free", "cas/a", 403, "ConditionRequired", []string{token, "If-None-Match: *"}},
		{"free", "", 400, "", []string{token}},
		{"free", "%zz", 400, "", []string{token}},
	} {
		f.want(c.status, c.refusal, "PUT", "/b/"+c.to+"?renameObject", "", append(c.headers, "X-Amz-Rename-Source: "+c.from)...)
		if store.has(renameObject, "b/"+c.to) {
			t.Errorf("%s from %s came to the store", c.to, c.from)
		}
		f.want(200, "", "PUT", "/b/free", "x") // its mark has not moved
	}
	for _, c := range []struct {
		to, from string
		headers  []string
	}{
		{"x/1", "once/a", nil},
		{"cas/a", "x/2", []string{"If-None-Match: *"}},
		{"x/3", "cas/a", []string{"X-Amz-Rename-Source-If-Match: x"}},
		{"off/a", "off/b", nil},
		{"named/a", "must/a", []string{token, "X-Fence-Holder: me"}},
	} {
		f.want(200, "", "PUT", "/b/"+c.to+"?renameObject", "", append(c.headers, "X-Amz-Rename-Source: "+c.from)...)
	}
	f.want(412, "StaleToken", "PUT", "/b/must/a", "x", "X-Fence-Token: 98")
}

// TestRenameInDoubt holds back the newer holders of both keys.
func TestRenameInDoubt(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	f := newFixture(t, Backend{Settle: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answering(int(status.Load())).ServeHTTP(w, r)
	})}, jobRules)
	status.Store(404)
	f.want(404, "", "PUT", toNew, "", fromOld, "X-Fence-Token: 33")
	if s := f.fence.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
	status.Store(500)
	f.want(504, "OutcomeUnknown", "PUT", toNew, "", fromOld, "X-Fence-Token: 34")
	if s := f.fence.Stats(); s.Open != 2 || s.InDoubt != 2 {
		t.Errorf("%+v", s)
	}
	status.Store(200)
	var both sync.WaitGroup
	for _, key := range []string{"jobs/new/b", "jobs/old/b"} {
		both.Go(func() { f.want(503, "WaitingForOlderWrite", "PUT", "/b/"+key, "x", "X-Fence-Token: 35") })
	}
	both.Wait()
}

// TestOppositeRenames: 32 renames to and fro, with rising tokens, all come to an end.
func TestOppositeRenames(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: answering(200)}, jobRules)
	var renames sync.WaitGroup
	for i := range 32 {
		from, to := "jobs/1/a", "jobs/2/a"
		if i%2 == 1 {
			from, to = to, from
		}
		renames.Go(func() {
			resp, body := f.do("PUT", "/b/"+to+"?renameObject", "", "X-Amz-Rename-Source: "+from, fmt.Sprintf("X-Fence-Token: %d", 1+i/4))
			if resp.StatusCode != 200 && resp.StatusCode != 412 {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		})
	}
	renames.Wait()
	for _, key := range []string{"jobs/1/b", "jobs/2/b"} {
		f.want(412, "StaleToken", "PUT", "/b/"+key, "x", "X-Fence-Token: 7")
		f.want(200, "", "PUT", "/b/"+key, "x", "X-Fence-Token: 8")
	}
	if s := f.fence.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// TestRenameLooksAtBothStamps: the registry may have lost what the objects know.
func TestRenameLooksAtBothStamps(t *testing.T) {
	t.Parallel()
	for _, stamped := range []string{"new", "old"} {
		before(t, nil, func(r *remote) {
			r.putStamped("jobs/"+stamped+"/a", "x", Stamp{Registry: ourRegistry, Resource: ResourceHash("b/jobs/" + stamped), Token: 40, WriteID: "x"})
			r.want(412, "StaleToken", "PUT", toNew, "", fromOld, "X-Fence-Token: 34")
			if mark := r.mark("b/jobs/" + stamped); mark != 40 {
				t.Errorf("the mark of %s is %d", stamped, mark)
			}
			r.putStamped("jobs/"+stamped+"/a", "x", Stamp{Registry: "ANOTHER", Resource: ResourceHash("b/jobs/" + stamped), Token: 50, WriteID: "x"})
			r.want(503, "RegistryConflict", "PUT", toNew, "", fromOld, "X-Fence-Token: 60")
			if renamed := r.take(renameObject); len(renamed) != 0 {
				t.Errorf("%s: the store was told to rename", stamped)
			}
			r.settled()
		}, jobRules)
	}
}

// TestRenameForgetsETags: the next write of either key looks again.
func TestRenameForgetsETags(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.want(200, "", "PUT", "/b/jobs/new/a", "new", "X-Fence-Token: 34")
		r.want(200, "", "PUT", "/b/jobs/old/a", "old", "X-Fence-Token: 34")
		r.interfere(renameObject, func(c *call) { c.answer(200, "") })
		r.want(200, "", "PUT", toNew, "", fromOld, "X-Fence-Token: 34")
		r.take("HeadObject")
		r.want(200, "", "PUT", "/b/jobs/new/a", "newer", "X-Fence-Token: 34")
		r.want(200, "", "PUT", "/b/jobs/old/a", "newer", "X-Fence-Token: 34")
		if looks := r.take("HeadObject"); len(looks) != 2 {
			t.Errorf("the store was asked %d times what it has", len(looks))
		}
		r.settled()
	}, jobRules)
}

// TestStoresThatCannotBeAskedAboutRenames: what was not found out is not taken for granted.
func TestStoresThatCannotBeAskedAboutRenames(t *testing.T) {
	t.Parallel()
	before(t, func(_ *Config, b *Backend) { b.Conditional = ConditionalOn }, func(r *remote) {
		r.want(403, "ConditionsIgnored", "PUT", toNew, "", fromOld, "X-Fence-Token: 34")
		r.want(403, "ConditionsIgnored", "PUT", "/b/off/a?renameObject", "", fromOld, "X-Fence-Token: 34")
		r.quiet()
		r.interfere(renameObject, func(c *call) { c.answer(200, "") })
		r.want(200, "", "PUT", "/b/off/a?renameObject", "", "X-Amz-Rename-Source: off/b", "X-Fence-Token: 34")
	}, jobRules, rules.Rule{Match: "off/**", Token: rules.Off})
}
