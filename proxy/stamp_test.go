package proxy

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
	"github.com/fenceproxy/fenceproxy/tokens"
)

// sleep lets time pass, and all that happens in it.
func (r *remote) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// stampBy is one of a registry's first generation.
func stampBy(registry, resource string, token tokens.Token) Stamp {
	return Stamp{Registry: registry, Resource: resource, Token: token, WriteID: "some-write"}
}

// putStamped puts an object there behind the proxy's back that has a stamp.
func (r *remote) putStamped(key, content string, s Stamp) {
	r.store.Put("b", key, []byte(content), http.Header{headerStamp: {s.String()}})
}

// stampOf is the stamp of the last object that was made in the store.
func (r *remote) stampOf(key string) string {
	r.Helper()
	journal := r.store.Journal()
	last := journal[len(journal)-1]
	if last.Target != key || last.Deleted {
		r.Fatalf("the last effect is on %s", last.Target)
	}
	return last.Metadata.Get(headerStamp)
}

// wantStamp checks that the object that was made last has a stamp of ours.
func (r *remote) wantStamp(key, resource string, token tokens.Token) {
	r.Helper()
	s, ok := ParseStamp(r.stampOf(key))
	if !ok || s.Registry != ourRegistry || s.Resource != ResourceHash(resource) || s.Token != token || len(s.WriteID) != 16 {
		r.Errorf("%s has the stamp %q", key, r.stampOf(key))
	}
}

// TestStampIsKeptWithTheObject: of each write that makes one, and may set its metadata.
func TestStampIsKeptWithTheObject(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.want(200, "", "PUT", "/b/jobs/1/a", "content", "X-Fence-Token: 34")
		r.wantStamp("jobs/1/a", "b/jobs/1", 34)
		first := r.stampOf("jobs/1/a")
		r.want(200, "", "PUT", "/b/jobs/1/a", "content", "X-Fence-Token: 34")
		if r.stampOf("jobs/1/a") == first {
			t.Error("two writes have one id")
		}
		r.want(200, "", "PUT", "/b/plain", "content")
		r.wantStamp("plain", "b/plain", 0)

		target, list := r.upload("jobs/2/a", "part", "X-Fence-Token: 34")
		r.want(200, "", "POST", target, list, "X-Fence-Token: 34")
		r.wantStamp("jobs/2/a", "b/jobs/2", 34)

		const source = "X-Amz-Copy-Source: b/jobs/1/a"
		r.want(200, "", "PUT", "/b/jobs/3/a", "", "X-Fence-Token: 7", source, "X-Amz-Metadata-Directive: REPLACE")
		r.wantStamp("jobs/3/a", "b/jobs/3", 7)
	}, jobRules)
}

// TestNoStamp: where the metadata are another object's, where they would not fit, where nothing is fenced, and where none is wanted. A
// client's own is never stored.
func TestNoStamp(t *testing.T) {
	t.Parallel()
	const token, lie = "X-Fence-Token: 34", "X-Amz-Meta-Fenceproxy: 1.x.y.0.99.z"
	t.Run("copy", func(t *testing.T) {
		t.Parallel()
		before(t, nil, func(r *remote) {
			r.put("source", "content")
			for _, directive := range []string{"", "COPY"} {
				headers := []string{token, lie, "X-Amz-Copy-Source: b/source"}
				if directive != "" {
					headers = append(headers, "X-Amz-Metadata-Directive: "+directive)
				}
				r.want(200, "", "PUT", "/b/a", "", headers...)
				if _, ok := r.takeOne("CopyObject").header[headerStamp]; ok || r.stampOf("a") != "" {
					t.Errorf("%s: it has a stamp", directive)
				}
			}
		})
	})
	t.Run("token off", func(t *testing.T) {
		t.Parallel()
		before(t, nil, func(r *remote) {
			r.want(200, "", "PUT", "/b/a", "content", token, lie)
			if s := r.stampOf("a"); s != "" {
				t.Error(s)
			}
		}, rules.Rule{Match: "**", Token: rules.Off})
	})
	for what, change := range map[string]func(*Config, *Backend){
		"stamp off":           func(_ *Config, b *Backend) { b.Stamp = false },
		"registry without id": func(c *Config, _ *Backend) { c.RegistryID = "" },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, change, func(r *remote) {
				r.want(200, "", "PUT", "/b/a", "content", token, lie)
				if s := r.stampOf("a"); s != "" {
					t.Error(s)
				}
			})
		})
	}
	t.Run("other operations", func(t *testing.T) {
		t.Parallel()
		before(t, nil, func(r *remote) {
			target, list := r.upload("a", "part", token)
			r.want(200, "", "POST", target, list, token, lie)
			r.want(501, "NotImplemented", "PUT", "/b/a?tagging", "<x/>", token, lie)
			r.want(204, "", "DELETE", "/b/a", "", token, lie)
			for _, name := range []string{"UploadPart", "CompleteMultipartUpload", "PutObjectTagging", "DeleteObject"} {
				if _, ok := r.takeOne(name).header[headerStamp]; ok {
					t.Errorf("%s has a stamp", name)
				}
			}
		})
	})
}

// TestStampGivesWay: S3 takes 2 KB of user metadata, names and values together, and the client's come first.
func TestStampGivesWay(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		room := maxMetadata - len("fenceproxy") - len(r.stampOf("a"))
		for size, stamped := range map[int]bool{room: true, room + 1: false, maxMetadata: false} {
			value := strings.Repeat("v", size-len("one")-len("two")-1)
			r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34", "X-Amz-Meta-One: "+value, "X-Amz-Meta-Two: x")
			if got := r.stampOf("a") != ""; got != stamped {
				t.Errorf("beside %d bytes of metadata: a stamp %v, want %v", size, got, stamped)
			}
		}
	})
}

// TestStampIsNotShown: in no answer to a read or a write; all other metadata are.
func TestStampIsNotShown(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		for _, entry := range []string{"a", "unfenced/a"} {
			key := "/b/" + entry
			r.putStamped(entry, "content", stampBy(ourRegistry, ResourceHash("b/"+entry), 34))
			for _, method := range []string{"GET", "HEAD"} {
				w := r.want(200, "", method, key, "", "X-Fence-Token: 34")
				if _, ok := w.Header()[headerStamp]; ok {
					t.Errorf("%s %s shows the stamp", method, key)
				}
				if method == "GET" && w.Body.String() != "content" {
					t.Errorf("%s %s: %q", method, key, w.Body)
				}
			}
		}
		r.interfere("PutObject", func(c *call) {
			c.w.Header().Set(headerStamp, "1.a.b.0.3.c")
			c.w.Header().Set("X-Amz-Meta-Other", "shown")
			c.answer(200, "")
		})
		w := r.want(200, "", "PUT", "/b/new", "content", "X-Fence-Token: 34")
		if _, ok := w.Header()[headerStamp]; ok || w.Header().Get("X-Amz-Meta-Other") != "shown" {
			t.Errorf("%v", w.Header())
		}
		r.want(200, "", "PUT", "/b/meta", "content", "X-Fence-Token: 34", "X-Amz-Meta-Mine: yes")
		if w = r.want(200, "", "GET", "/b/meta", ""); w.Header().Get("X-Amz-Meta-Mine") != "yes" {
			t.Errorf("%v", w.Header())
		}
	}, rules.Rule{Match: "unfenced/**", Token: rules.Off})
}

// TestStampOfAnotherRegistry: two registries fence one bucket, which none of them can do alone. Nothing is written and no mark moves, until
// the other one is adopted.
func TestStampOfAnotherRegistry(t *testing.T) {
	t.Parallel()
	theirs := stampBy("ANOTHER", ResourceHash("b/a"), 1)
	for _, adopted := range []bool{false, true} {
		change := func(c *Config, _ *Backend) {
			if adopted {
				c.Adopted = []string{"A-THIRD", "ANOTHER"}
			}
		}
		before(t, change, func(r *remote) {
			for _, name := range conditionable {
				write := r.prepare(name, "a")
				r.putStamped("a", "theirs", theirs)
				r.take("CreateMultipartUpload")
				r.take("UploadPart")
				at := r.mark("b/a")
				w := write.send("X-Fence-Token: 34")
				if adopted {
					if w.Code >= 300 {
						t.Errorf("%s: %d %s", name, w.Code, w.Body)
					}
					continue
				}
				r.check(w, 503, "RegistryConflict")
				for _, word := range []string{"two registries", "Nothing was changed", "log"} {
					if !strings.Contains(w.Body.String(), word) {
						t.Errorf("%s does not say %q", w.Body, word)
					}
				}
				r.quiet()
				r.has("a", "theirs")
				r.settled()
				if m := r.mark("b/a"); m != at {
					t.Errorf("%s: the mark has moved to %d", name, m)
				}
				r.h.etags.forget("b/a")
			}
		})
	}
}

// TestStampAboveTheMark: the registry has lost a token. Whoever is below it is stale, and the registry knows it again.
func TestStampAboveTheMark(t *testing.T) {
	t.Parallel()
	for _, registry := range []string{ourRegistry, "ADOPTED"} {
		before(t, func(c *Config, _ *Backend) { c.Adopted = []string{"ADOPTED"} }, func(r *remote) {
			r.putStamped("a", "newer", stampBy(registry, ResourceHash("b/a"), 40))
			r.want(412, "StaleToken", "PUT", "/b/a", "x", "X-Fence-Token: 34")
			r.has("a", "newer")
			r.quiet()
			if m := r.mark("b/a"); m != 40 {
				t.Errorf("the mark is at %d, want 40", m)
			}
			if records := r.records("refusal"); len(records) != 1 || records[0].Highest != 40 {
				t.Errorf("%+v", records)
			}
			r.settled()
			r.want(412, "StaleToken", "PUT", "/b/a", "x", "X-Fence-Token: 39")
			r.want(200, "", "PUT", "/b/a", "x", "X-Fence-Token: 40")
		})
	}
}

// TestStampFromBeforeAReset: the operator has taken the token down, and what was written before does not bring it back.
func TestStampFromBeforeAReset(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.want(200, "", "PUT", "/b/a", "old", "X-Fence-Token: 40")
		if _, err := r.fence.Reset(r.Context(), "b/a", 5); err != nil {
			t.Fatal(err)
		}
		r.h.etags.forget("b/a")
		r.want(200, "", "PUT", "/b/a", "new", "X-Fence-Token: 7")
		r.has("a", "new")
		if s, _ := ParseStamp(r.stampOf("a")); s.Generation == 0 || s.Token != 7 {
			t.Errorf("%+v", s)
		}
		if m := r.mark("b/a"); m != 7 {
			t.Errorf("the mark is at %d, want 7", m)
		}
	})
}

// TestStampsThatSayNothing: those of another resource, which came with a copy; those of this one with no higher token; and what is none.
func TestStampsThatSayNothing(t *testing.T) {
	t.Parallel()
	texts := map[string]string{
		"another resource, of another registry": stampBy("ANOTHER", ResourceHash("b/source"), 99).String(),
		"another resource":                      stampBy(ourRegistry, ResourceHash("b/source"), 99).String(),
		"the same token":                        stampBy(ourRegistry, ResourceHash("b/a"), 34).String(),
		"a lower token":                         stampBy(ourRegistry, ResourceHash("b/a"), 33).String(),
		"a later version":                       "2.ANOTHER." + ResourceHash("b/a") + ".0.99.some-write",
		"garbage":                               "garbage",
	}
	before(t, nil, func(r *remote) {
		for what, text := range texts {
			t.Log(what)
			r.store.Put("b", "a", []byte("there"), http.Header{headerStamp: {text}})
			r.h.etags.forget("b/a")
			r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 34")
			if m := r.mark("b/a"); m != 34 {
				t.Fatalf("the mark is at %d, want 34", m)
			}
			r.has("a", "content")
		}
	})
}

// TestACopiedStampDoesNotHoldBack: a copy that keeps its source's metadata has the source's stamp, and proves nothing of the key it is under.
func TestACopiedStampDoesNotHoldBack(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.want(200, "", "PUT", "/b/source", "content", "X-Fence-Token: 99")
		r.want(200, "", "PUT", "/b/a", "", "X-Fence-Token: 7", "X-Amz-Copy-Source: b/source")
		r.h.etags.forget("b/a")
		r.want(200, "", "PUT", "/b/a", "content", "X-Fence-Token: 7")
		if m := r.mark("b/a"); m != 7 {
			t.Errorf("the mark is at %d, want 7", m)
		}
	})
}

// TestStampsAreHeededWithoutConditions: a store that judges none is looked at all the same.
func TestStampsAreHeededWithoutConditions(t *testing.T) {
	t.Parallel()
	before(t, func(_ *Config, b *Backend) { b.Conditional = ConditionalOff }, func(r *remote) {
		r.putStamped("a", "theirs", stampBy("ANOTHER", ResourceHash("b/a"), 1))
		r.want(503, "RegistryConflict", "PUT", "/b/a", "x", "X-Fence-Token: 34")
		r.quiet()
	})
}

// TestStampReadsBack: a stamp is what it was, and short: with the longest token and id it has 100 bytes at most.
func TestStampReadsBack(t *testing.T) {
	t.Parallel()
	part := rapid.StringMatching(`[A-Za-z0-9_-]{1,26}`)
	rapid.Check(t, func(t *rapid.T) {
		s := Stamp{
			Registry: part.Draw(t, "registry"), Resource: ResourceHash(rapid.String().Draw(t, "resource")),
			Generation: rapid.Int64Range(0, math.MaxInt64).Draw(t, "generation"), Token: tokens.Token(rapid.Int64Range(0, math.MaxInt64).Draw(t, "token")), WriteID: newWriteID(),
		}
		got, ok := ParseStamp(s.String())
		if !ok || got != s {
			t.Fatalf("%+v was read as %+v, %v", s, got, ok)
		}
	})
	longest := Stamp{ourRegistry, ResourceHash(strings.Repeat("x", 5000)), math.MaxInt64, math.MaxInt64, newWriteID()}
	if n := len(longest.String()); len(ourRegistry) != 26 || n > 100 {
		t.Errorf("%q has %d bytes", longest, n)
	}
}

// TestOtherTextIsNoStamp: what is read would be written as it was, or it is none.
func TestOtherTextIsNoStamp(t *testing.T) {
	t.Parallel()
	good := Stamp{ourRegistry, ResourceHash("b/a"), 7, 34, "abcdefghijklmnop"}.String()
	for _, text := range []string{
		"", "1", "....", "1....", good + ".x", "." + good, good[1:], "2" + good[1:], "01" + good[1:],
		strings.Replace(good, ".34.", ".-1.", 1), strings.Replace(good, ".34.", "..", 1), strings.Replace(good, ".34.", ".9223372036854775808.", 1),
		strings.Replace(good, ".34.", ".0x22.", 1), strings.Replace(good, ".34.", ".+34.", 1), strings.Replace(good, ".34.", ".034.", 1),
		strings.Replace(good, ".7.", ".-7.", 1), strings.Replace(good, ".7.", ".07.", 1), strings.Replace(good, ".7.", "..", 1), strings.Replace(good, ".7.", ".", 1),
		strings.Replace(good, ourRegistry, "", 1), strings.TrimSuffix(good, "abcdefghijklmnop"), strings.ReplaceAll(good, ".", ","),
	} {
		if s, ok := ParseStamp(text); ok {
			t.Errorf("%q was read as %+v", text, s)
		}
	}
}

// TestAnyTextReadsBackOrIsNoStamp is the same for all other text.
func TestAnyTextReadsBackOrIsNoStamp(t *testing.T) {
	t.Parallel()
	good := Stamp{ourRegistry, ResourceHash("b/a"), 7, 34, "abcdefghijklmnop"}.String()
	alphabet := rapid.SampledFrom([]rune("1.-+0x\x00 é9ABC"))
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringOf(alphabet), rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]rune(good)), 0, 80), func(r []rune) string {
			return string(r)
		})).Draw(t, "text")
		if s, ok := ParseStamp(text); ok && s.String() != text {
			t.Fatalf("%q was read as %+v", text, s)
		}
	})
}

// TestWriteIDsAreNeverUsedTwice, not in a hundred thousand.
func TestWriteIDsAreNeverUsedTwice(t *testing.T) {
	t.Parallel()
	ids := make([]string, 0, 100_000)
	for range cap(ids) {
		ids = append(ids, newWriteID())
	}
	slices.Sort(ids)
	if n := len(slices.Compact(ids)); n != cap(ids) {
		t.Errorf("%d of %d are different", n, cap(ids))
	}
}

// TestTheStampIsOfTheTryThatTookEffect: each try has an id of its own, and the search is for the last.
func TestTheStampIsOfTheTryThatTookEffect(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.race("PutObject", "a", "quicker")
		r.fault("PutObject", misbehave.Fault{}) // the one that loses the race
		r.fault("PutObject", misbehave.Fault{Drop: true})
		r.want(504, "OutcomeUnknown", "PUT", "/b/a", "content", "X-Fence-Token: 34")
		r.doubtful(1)
		if waited := r.comesThrough("/b/a"); waited > 20*time.Second {
			t.Errorf("the newer holder waited for %v", waited)
		}
	})
}
