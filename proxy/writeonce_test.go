package proxy

import (
	"net/http/httptest"
	"testing"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// TestWriteOnceNeedsAStoreThatJudges: where the store overwrites whatever the condition, the rule cannot be kept, and nothing is written under it.
// That conditions are configured away, or that nothing is fenced, does not change what the rule promises.
func TestWriteOnceNeedsAStoreThatJudges(t *testing.T) {
	t.Parallel()
	skipped := Findings{Skipped: "object lock would keep it"}
	once := rules.Rule{Match: "**", WriteOnce: true}
	for what, c := range map[string]struct {
		conditional Conditional
		found       Findings
		rule        rules.Rule
		error       string
	}{
		"it judges, but other writes":   {ConditionalAuto, Findings{Conditions: []string{"DeleteObject", "DeleteObjects"}}, once, "ConditionsIgnored"},
		"it ignores, and is configured": {ConditionalOff, Findings{}, once, "ConditionsIgnored"},
		"it ignores, and the rule is":   {ConditionalAuto, Findings{}, rules.Rule{Match: "**", WriteOnce: true, Unconditional: true}, "ConditionsIgnored"},
		"it ignores, and nothing fenced": {
			ConditionalAuto, Findings{}, rules.Rule{Match: "**", WriteOnce: true, Token: rules.Off}, "ConditionsIgnored",
		},
		"it was not asked, and is to have none":  {ConditionalOff, skipped, once, "ConditionsIgnored"},
		"it was not asked, and is said to judge": {ConditionalOn, skipped, once, ""},
		"it judges, and is to have none of ours": {ConditionalOff, all, once, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, name := range creating {
				before(t, probing(c.conditional, c.found), func(r *remote) {
					r.put("a", "what is there")
					write := r.prepare(name, "a")
					r.take("CreateMultipartUpload")
					r.take("UploadPart")
					r.fault(name, misbehave.Fault{IgnoreConditions: c.error != ""})
					w := write.send("X-Fence-Token: 34")
					if c.error == "" {
						r.check(w, 403, "ObjectExists")
						r.wantCondition(r.takeOne(name), "If-None-Match: *")
					} else {
						r.check(w, 403, c.error)
						r.quiet()
					}
					r.has("a", "what is there")
					r.settled()
				}, c.rule)
			}
		})
	}
	before(t, probing(ConditionalAuto, Findings{}), func(r *remote) { // it is about overwriting
		r.put("a", "what is there")
		r.want(204, "", "DELETE", "/b/a", "", "X-Fence-Token: 34")
	}, once)
}

// TestObjectExistsInEveryWord: the store says so before it has the body, with 412, or inside a success. The client hears of the rule, and it is on
// record.
func TestObjectExistsInEveryWord(t *testing.T) {
	t.Parallel()
	stream := func(c *Config, _ *Backend) { c.Memory = 0 }
	for what, c := range map[string]struct {
		name   string
		change func(*Config, *Backend)
		fault  misbehave.Fault
	}{
		"before the body of a stream": {"PutObject", stream, misbehave.Fault{Unread: true, Status: 412, Code: "PreconditionFailed"}},
		"before the body":             {"PutObject", nil, misbehave.Fault{Unread: true, Status: 412, Code: "PreconditionFailed"}},
		"412 to a stream":             {"PutObject", stream, misbehave.Fault{}},
		"inside a 200 of a copy":      {"CopyObject", nil, misbehave.Fault{Status: 200, Code: "PreconditionFailed", Lose: true}},
		"inside a 200 of a Complete":  {"CompleteMultipartUpload", nil, misbehave.Fault{Status: 200, Code: "PreconditionFailed", Lose: true}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, c.change, func(r *remote) {
				write := r.prepare(c.name, "a")
				r.put("a", "what is there")
				r.fault(c.name, c.fault)
				r.check(write.send("X-Fence-Token: 34"), 403, "ObjectExists")
				if records := r.records("refusal"); len(records) != 1 || records[0].Code != "ObjectExists" || records[0].Operation != c.name {
					t.Errorf("%+v", records)
				}
				r.has("a", "what is there")
				r.settled()
			}, rules.Rule{Match: "**", WriteOnce: true})
		})
	}
}

// TestWriteOnceMeetsAnObjectSinceItsUploadBegan: S3 says 409 to that, and would say so for ever. The client hears that the object exists.
func TestWriteOnceMeetsAnObjectSinceItsUploadBegan(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		write := r.prepare("CompleteMultipartUpload", "a")
		r.put("a", "what is there")
		r.check(write.send("X-Fence-Token: 34"), 403, "ObjectExists")
		if records := r.records("refusal"); len(records) != 1 || records[0].Code != "ObjectExists" {
			t.Errorf("%+v", records)
		}
		for _, h := range r.take("CompleteMultipartUpload") {
			r.wantCondition(h, "If-None-Match: *")
		}
		r.has("a", "what is there")
		r.settled()
	}, rules.Rule{Match: "**", WriteOnce: true})
}

// TestWriteOnceAndTheSourceOfACopy: where the client has a condition on the source, 412 need not mean that the object exists. It is told what the store
// says.
func TestWriteOnceAndTheSourceOfACopy(t *testing.T) {
	t.Parallel()
	for _, header := range []string{`X-Amz-Copy-Source-If-Match: "x"`, "X-Amz-Copy-Source-If-Unmodified-Since: Mon, 01 Jan 2001 00:00:00 GMT"} {
		before(t, nil, func(r *remote) {
			write := r.prepare("CopyObject", "a")
			sent := func() *httptest.ResponseRecorder { return write.send("X-Fence-Token: 34", header) }
			for _, status := range []int{412, 200} {
				r.fault("CopyObject", misbehave.Fault{Status: status, Code: "PreconditionFailed", Lose: true})
				r.check(sent(), status, "PreconditionFailed")
				r.wantCondition(r.takeOne("CopyObject"), "If-None-Match: *")
			}
			if n := len(r.records("refusal")); n != 0 {
				t.Errorf("%d refusals on record", n)
			}
			r.check(sent(), 200, "")
			r.settled()
		}, rules.Rule{Match: "**", WriteOnce: true})
	}
}
