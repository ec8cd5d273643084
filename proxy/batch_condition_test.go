package proxy

import (
	"context"
	"encoding/xml"
	"maps"
	"slices"
	"testing"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// asked is what the store was asked to delete: ETags by key.
func (r *remote) asked(h *heard) map[string]string {
	r.Helper()
	var body struct {
		Object []struct{ Key, ETag string }
	}
	if err := xml.Unmarshal(h.body.Bytes(), &body); err != nil {
		r.Fatal(err)
	}
	etags := map[string]string{}
	for _, o := range body.Object {
		etags[o.Key] = o.ETag
	}
	return etags
}

// deleteMany sends a batch and returns the keys that were deleted, sorted, and the codes of the others.
func (r *remote) deleteMany(body string, headers ...string) (deleted []string, codes map[string]string) {
	r.Helper()
	w := r.want(200, "", "POST", "/b?delete", body, headers...)
	result := parseResult(r.T, w.Body.String())
	codes = map[string]string{}
	for _, d := range result.Deleted {
		deleted = append(deleted, d.Key)
	}
	for _, e := range result.Error {
		codes[e.Key] = e.Code
	}
	slices.Sort(deleted)
	return deleted, codes
}

// TestBatchHasAConditionForEachKey: the ETag that it has now, the one that we remember, the client's own, and none where there is nothing.
func TestBatchHasAConditionForEachKey(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		want := map[string]string{
			"there": r.put("there", "one"), "client": r.put("client", "two"), "absent": "",
			"off": "", "unfenced": "", "hidden": "",
		}
		r.put("off", "x")
		r.put("unfenced", "x")
		r.put("hidden", "x")
		want["remembered"] = r.want(200, "", "PUT", "/b/remembered", "three", "X-Fence-Token: 34").Header().Get("Etag")
		r.take("HeadObject")
		r.store.Next(func(op misbehave.Operation) bool { return op.Name == "HeadObject" && op.Key == "hidden" }, misbehave.Fault{Status: 403})
		body := deleteBody("there", "absent", "remembered", "off", "unfenced", "hidden")
		body = body[:len(body)-len("</Delete>")] + "<Object><Key>client</Key><ETag>" + want["client"] + "</ETag></Object></Delete>"
		deleted, codes := r.deleteMany(body, "X-Fence-Token: 34")
		if len(deleted) != 7 || len(codes) != 0 {
			t.Errorf("deleted %q, not %v", deleted, codes)
		}
		if got := r.asked(r.takeOne("DeleteObjects")); !maps.Equal(got, want) {
			t.Errorf("the store was asked for %q, want %q", got, want)
		}
		var looked []string
		for _, h := range r.take("HeadObject") {
			looked = append(looked, h.key)
		}
		slices.Sort(looked)
		if !slices.Equal(looked, []string{"absent", "client", "hidden", "off", "remembered", "there"}) {
			t.Errorf("looked at %q", looked)
		}
		r.settled()
	}, rules.Rule{Match: "off", Unconditional: true}, rules.Rule{Match: "unfenced", Token: rules.Off})
}

// TestBatchWithoutConditions: a store that ignores them is sent none, and need not be looked at.
func TestBatchWithoutConditions(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*Config, *Backend){
		"found": func(_ *Config, b *Backend) {
			b.Stamp = false
			b.Probe = func(context.Context, string) (Findings, error) { return Findings{Conditions: conditionable}, nil }
		},
		"configured": func(_ *Config, b *Backend) { b.Stamp, b.Conditional = false, ConditionalOff },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, change, func(r *remote) {
				r.put("a", "one")
				if deleted, codes := r.deleteMany(deleteBody("a", "b"), "X-Fence-Token: 34"); len(deleted) != 2 {
					t.Errorf("deleted %q, not %v", deleted, codes)
				}
				if got := r.asked(r.takeOne("DeleteObjects")); got["a"] != "" || got["b"] != "" {
					t.Errorf("%q", got)
				}
				if looks := len(r.take("HeadObject")); looks != 0 {
					t.Errorf("%d looks", looks)
				}
			})
		})
	}
}

// TestBatchHeedsStampsWithoutConditions: as single writes do, it looks for their sake.
func TestBatchHeedsStampsWithoutConditions(t *testing.T) {
	t.Parallel()
	before(t, probing(ConditionalOff, all), func(r *remote) {
		r.putStamped("a", "theirs", stampBy("ANOTHER", ResourceHash("b/a"), 1))
		r.want(503, "RegistryConflict", "POST", "/b?delete", deleteBody("a", "b"), "X-Fence-Token: 34")
		r.quiet()
		r.settled()
	})
}

// TestBatchLosesARace: the key that was quicker stays, its client is told to come again, and the others are deleted.
func TestBatchLosesARace(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "one")
		r.put("b", "two")
		r.race("DeleteObjects", "b", "quicker")
		deleted, codes := r.deleteMany(deleteBody("a", "b"), "X-Fence-Token: 34")
		if !slices.Equal(deleted, []string{"a"}) || !maps.Equal(codes, map[string]string{"b": "SlowDown"}) {
			t.Errorf("deleted %q, not %v", deleted, codes)
		}
		r.has("a", "")
		r.has("b", "quicker")
		r.settled()
		if n := r.metric("fenceproxy_lost_races_total"); n != 1 {
			t.Errorf("%v lost races counted", n)
		}
		if n := len(r.records("refusal")); n != 0 {
			t.Errorf("%d refusals on record", n)
		}
		if deleted, codes = r.deleteMany(deleteBody("b"), "X-Fence-Token: 34"); len(deleted) != 1 {
			t.Errorf("and again: deleted %q, not %v", deleted, codes)
		}
	})
}

// TestBatchLosesARaceToANewerHolder: that key is refused as stale, and is on record as if it had come alone.
func TestBatchLosesARaceToANewerHolder(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "one")
		r.put("b", "two")
		r.interfere("DeleteObjects", func(*call) {
			r.put("b", "quicker")
			r.want(503, "WaitingForOlderWrite", "PUT", "/b/b?fence", "", "X-Fence-Token: 35")
		})
		deleted, codes := r.deleteMany(deleteBody("a", "b"), "X-Fence-Token: 34")
		if !slices.Equal(deleted, []string{"a"}) || !maps.Equal(codes, map[string]string{"b": "PreconditionFailed"}) {
			t.Errorf("deleted %q, not %v", deleted, codes)
		}
		r.has("b", "quicker")
		r.settled()
		records := r.records("refusal")
		if len(records) != 1 || records[0].Code != "StaleToken" || records[0].Key != "b" || records[0].Token != 34 || records[0].Highest != 35 {
			t.Errorf("%+v", records)
		}
	})
}

// TestBatchMeetsADelete: a key that is gone when the batch comes is no error to a client that has sent no condition for it.
func TestBatchMeetsADelete(t *testing.T) {
	t.Parallel()
	for what, code := range map[string]string{"it is gone": "NoSuchKey", "it is being changed": "ConditionalRequestConflict"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				r.put("a", "one")
				r.interfere("DeleteObjects", func(c *call) {
					c.answer(200, "<DeleteResult><Error><Key>a</Key><Code>"+code+"</Code></Error></DeleteResult>")
				})
				deleted, codes := r.deleteMany(deleteBody("a"), "X-Fence-Token: 34")
				if !slices.Equal(deleted, []string{"a"}) && codes["a"] != "SlowDown" {
					t.Errorf("deleted %q, not %v", deleted, codes)
				}
				r.settled()
			})
		})
	}
}

// TestBatchConditionOfTheClient: what the store says of it is the client's answer.
func TestBatchConditionOfTheClient(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "one")
		body := `<Delete><Object><Key>a</Key><ETag>"other"</ETag></Object></Delete>`
		deleted, codes := r.deleteMany(body, "X-Fence-Token: 34")
		if len(deleted) != 0 || !maps.Equal(codes, map[string]string{"a": "PreconditionFailed"}) {
			t.Errorf("deleted %q, not %v", deleted, codes)
		}
		if n := r.metric("fenceproxy_lost_races_total"); n != 0 {
			t.Errorf("%v lost races counted", n)
		}
	})
}

// TestLateBatchIsKeptOut: it comes after its settle time and a newer holder's write, and deletes what it has seen, not what is there.
func TestLateBatchIsKeptOut(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "one")
		r.put("b", "two")
		settle := r.h.Backends["test"].settle(deleteObjects)
		r.fault("DeleteObjects", misbehave.Fault{Late: 2 * settle, Drop: true})
		r.want(504, "OutcomeUnknown", "POST", "/b?delete", deleteBody("a", "b"), "X-Fence-Token: 34")
		if waited := r.comesThrough("/b/a"); waited != settle {
			t.Errorf("the newer holder waited for %v, want %v", waited, settle)
		}
		r.sleep(2 * settle)
		r.has("a", "newer")
		r.has("b", "") // which nobody has written since
		r.settled()
	})
}

// TestBatchThatIsRefusedWhole: the store is not asked.
func TestBatchThatIsRefusedWhole(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("jobs/1/a", "one")
		r.put("jobs/2/a", "one")
		for _, job := range []string{"1", "2"} {
			r.want(200, "", "PUT", "/b/jobs/"+job+"/x", "x", "X-Fence-Token: 35")
		}
		r.take("PutObject")
		deleted, codes := r.deleteMany(deleteBody("jobs/1/a", "jobs/2/a"), "X-Fence-Token: 34")
		if len(deleted) != 0 || len(codes) != 2 {
			t.Errorf("deleted %q, not %v", deleted, codes)
		}
		r.quiet()
		r.settled()
	}, jobRules)
}

// TestBatchRefusedAtTheGate: a resource that is raised while the batch is looked at is left out, and the others are deleted. The store hears
// of one batch, which does not have its keys.
func TestBatchRefusedAtTheGate(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		for _, key := range []string{"jobs/1/a", "jobs/1/b", "jobs/2/a", "jobs/3/a"} {
			r.put(key, "one")
		}
		r.interfere("HeadObject", func(*call) { r.want(200, "", "PUT", "/b/jobs/2/x?fence", "", "X-Fence-Token: 35") })
		deleted, codes := r.deleteMany(deleteBody("jobs/1/a", "jobs/2/a", "jobs/1/b", "jobs/3/a"), "X-Fence-Token: 34")
		if !slices.Equal(deleted, []string{"jobs/1/a", "jobs/1/b", "jobs/3/a"}) || !maps.Equal(codes, map[string]string{"jobs/2/a": "PreconditionFailed"}) {
			t.Errorf("deleted %q, not %v", deleted, codes)
		}
		if got := r.asked(r.takeOne("DeleteObjects")); len(got) != 3 || got["jobs/1/a"] == "" {
			t.Errorf("the store was asked for %q", got)
		}
		r.has("jobs/2/a", "one")
		r.settled()
		if records := r.records("refusal"); len(records) != 1 || records[0].Key != "jobs/2/a" {
			t.Errorf("%+v", records)
		}
	}, jobRules)
}

// TestBatchSeesAHigherStamp: that key is stale, and the others are deleted.
func TestBatchSeesAHigherStamp(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "one")
		r.putStamped("b", "two", stampBy(ourRegistry, ResourceHash("b/b"), 40))
		deleted, codes := r.deleteMany(deleteBody("a", "b"), "X-Fence-Token: 34")
		if !slices.Equal(deleted, []string{"a"}) || !maps.Equal(codes, map[string]string{"b": "PreconditionFailed"}) {
			t.Errorf("deleted %q, not %v", deleted, codes)
		}
		r.has("b", "two")
		if m := r.mark("b/b"); m != 40 {
			t.Errorf("the mark is at %d, want 40", m)
		}
		r.settled()
	})
}

// TestBatchSeesAnotherRegistry: nothing of it is deleted.
func TestBatchSeesAnotherRegistry(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "one")
		r.putStamped("b", "two", stampBy("ANOTHER", ResourceHash("b/b"), 1))
		r.want(503, "RegistryConflict", "POST", "/b?delete", deleteBody("a", "b"), "X-Fence-Token: 34")
		r.quiet()
		r.settled()
		if r.mark("b/a") != 0 || r.mark("b/b") != 0 {
			t.Error("a mark has moved")
		}
	})
}

// TestBatchFailsClosed: a store that does not say what a key has deletes nothing.
func TestBatchFailsClosed(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "one")
		r.fault("HeadObject", misbehave.Fault{Status: 500})
		r.want(503, "ServiceUnavailable", "POST", "/b?delete", deleteBody("a"), "X-Fence-Token: 34")
		r.quiet()
		r.settled()
	})
}
