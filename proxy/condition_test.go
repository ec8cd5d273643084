package proxy

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

// wantCondition checks what condition a request had when it came to the store: "If-Match: …", or "".
func (r *remote) wantCondition(h *heard, want string) {
	r.Helper()
	var got []string
	for _, name := range []string{"If-Match", "If-None-Match"} {
		for _, v := range h.header.Values(name) {
			got = append(got, name+": "+v)
		}
	}
	if text := strings.Join(got, ", "); text != want {
		r.Errorf("%s came with %q, want %q", h.name, text, want)
	}
}

// versioned has the store say that the bucket keeps versions, so that a DELETE of what is not there is sent.
func (r *remote) versioned(status string) {
	r.interfere("GetBucketVersioning", func(c *call) {
		c.answer(200, "<VersioningConfiguration><Status>"+status+"</Status></VersioningConfiguration>")
	})
}

// TestConditionIsWhatTheKeyHadBefore: each write asks for what its key had when it was looked at.
func TestConditionIsWhatTheKeyHadBefore(t *testing.T) {
	t.Parallel()
	for _, name := range conditionable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				for _, c := range []struct {
					key   string
					head  misbehave.Fault
					there bool
					want  string
				}{
					{"there", misbehave.Fault{}, true, "If-Match: ETAG"},
					{"absent", misbehave.Fault{}, false, "If-None-Match: *"},
					{"hidden", misbehave.Fault{Status: 403}, false, "If-None-Match: *"},
					{"unobservable", misbehave.Fault{Status: 400}, true, ""},
				} {
					t.Log(c.key)
					want := c.want
					if c.there {
						want = strings.Replace(want, "ETAG", r.put(c.key, "what is there"), 1)
					} else if name == "DeleteObject" {
						want = "" // S3 has no condition for that
					}
					r.versioned("Enabled")
					write := r.prepare(name, c.key)
					r.fault("HeadObject", c.head)
					if w := write.send("X-Fence-Token: 34"); w.Code >= 300 {
						t.Fatalf("%d %s", w.Code, w.Body)
					}
					r.wantCondition(r.takeOne(name), want)
					r.settled()
				}
			})
		})
	}
}

// TestLookingFailsClosed: a store that does not say what it has gets no write.
func TestLookingFailsClosed(t *testing.T) {
	t.Parallel()
	for _, f := range []misbehave.Fault{{Status: 500}, {Status: 503}, {Drop: true}} {
		before(t, nil, func(r *remote) {
			r.fault("HeadObject", f)
			r.want(503, "ServiceUnavailable", "PUT", "/b/a", "x", "X-Fence-Token: 34")
			r.quiet()
			r.settled()
			if m := r.mark("b/a"); m != 0 {
				t.Errorf("the mark is at %d", m)
			}
		})
	}
}

// TestLookingCarriesWhatTheStoreNeeds: the key of an encrypted object, who pays and who owns the bucket go along; no condition does.
func TestLookingCarriesWhatTheStoreNeeds(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		sent := []string{
			"X-Amz-Server-Side-Encryption-Customer-Algorithm: AES256", "X-Amz-Server-Side-Encryption-Customer-Key: k",
			"X-Amz-Server-Side-Encryption-Customer-Key-Md5: m", "X-Amz-Request-Payer: requester", "X-Amz-Expected-Bucket-Owner: 1",
		}
		r.want(200, "", "PUT", "/b/a?x-id=PutObject", "x", append(sent, "X-Fence-Token: 34", "If-None-Match: *", "X-Amz-Meta-A: b", "Content-Type: text/plain")...)
		head := r.takeOne("HeadObject")
		for _, h := range sent {
			name, value, _ := strings.Cut(h, ": ")
			if head.header.Get(name) != value {
				t.Errorf("%s: %q; want %q", name, head.header.Get(name), value)
			}
			head.header.Del(name)
		}
		if len(head.header) > 0 {
			t.Errorf("and beside them: %v", head.header)
		}
	})
}

// TestConditionOfTheClient: it names one state of the key as ours does, and is kept, but for If-Match: *, which any object meets.
func TestConditionOfTheClient(t *testing.T) {
	t.Parallel()
	for _, name := range conditionable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				etag := r.put("a", "what is there")
				write := r.prepare(name, "a")
				r.check(write.send("X-Fence-Token: 34", `If-Match: "another"`), 412, "PreconditionFailed")
				r.wantCondition(r.takeOne(name), `If-Match: "another"`)
				if name != "DeleteObject" {
					r.check(write.send("X-Fence-Token: 34", "If-None-Match: *"), 412, "PreconditionFailed")
					r.wantCondition(r.takeOne(name), "If-None-Match: *")
				}
				r.has("a", "what is there")
				if w := write.send("X-Fence-Token: 34", "If-Match: *"); w.Code >= 300 {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				r.wantCondition(r.takeOne(name), "If-Match: "+etag)

				write = r.prepare(name, "not-there")
				r.check(write.send("X-Fence-Token: 34", "If-Match: *"), 404, "NoSuchKey")
				r.wantCondition(r.takeOne(name), "If-Match: "+neverMatches)
				r.has("not-there", "")
				r.settled()
			})
		})
	}
}

// TestWriteOnceIsTheStoresToJudge: it asks for an absent key, whatever the key was seen to have.
func TestWriteOnceIsTheStoresToJudge(t *testing.T) {
	t.Parallel()
	for _, name := range creating {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				write := r.prepare(name, "a")
				if w := write.send("X-Fence-Token: 34"); w.Code != 200 {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
				r.wantCondition(r.takeOne(name), "If-None-Match: *")
				content := "content-of-" + name
				r.has("a", content)
				if name == "CompleteMultipartUpload" { // another upload: this one is over
					write = r.prepare(name, "a")
				}
				r.check(write.send("X-Fence-Token: 34"), 403, "ObjectExists")
				r.wantCondition(r.takeOne(name), "If-None-Match: *")
				r.check(write.send("X-Fence-Token: 34", "If-None-Match: *"), 412, "PreconditionFailed") // its own
				r.has("a", content)
				r.settled()
			}, rules.Rule{Match: "**", WriteOnce: true})
		})
	}
}

// TestNoConditionWhereNoneIsWanted: by rule, by the backend's configuration, by what was found, on a version, and where nothing is fenced.
func TestNoConditionWhereNoneIsWanted(t *testing.T) {
	t.Parallel()
	off := rules.Rule{Match: "**", Unconditional: true}
	unfenced := rules.Rule{Match: "**", Token: rules.Off}
	backendOff := func(_ *Config, b *Backend) { b.Conditional = ConditionalOff }
	nothing := func(_ *Config, b *Backend) {
		b.Probe = func(context.Context, string) (Findings, error) { return Findings{}, nil }
	}
	for _, c := range []struct {
		why    string
		change func(*Config, *Backend)
		rules  []rules.Rule
	}{
		{"rule: conditional off", nil, []rules.Rule{off}},
		{"backend: conditional off", backendOff, nil},
		{"the store does not judge it", nothing, nil},
		{"token off", nil, []rules.Rule{unfenced}},
	} {
		t.Run(c.why, func(t *testing.T) {
			t.Parallel()
			before(t, c.change, func(r *remote) {
				for _, name := range conditionable {
					r.put(name, "what is there")
					if w := r.prepare(name, name).send("X-Fence-Token: 34"); w.Code >= 300 {
						t.Fatalf("%s: %d %s", name, w.Code, w.Body)
					}
					r.wantCondition(r.takeOne(name), "")
				}
			}, c.rules...)
		})
	}
}

// TestNoConditionOnAVersion: S3 judges conditions by the current one.
func TestNoConditionOnAVersion(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "what is there")
		r.interfere("DeleteObject", func(c *call) { c.answer(204, "") })
		r.want(204, "", "DELETE", "/b/a?versionId=1", "", "X-Fence-Token: 34")
		r.wantCondition(r.takeOne("DeleteObject"), "")
	})
}

// TestNoConditionOnOtherOperations: a part, the beginning of an upload and an object's settings have none in S3.
func TestNoConditionOnOtherOperations(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "what is there")
		r.upload("a", "part", "X-Fence-Token: 34")
		for _, sub := range []string{"tagging", "acl", "retention", "legal-hold"} {
			r.want(501, "NotImplemented", "PUT", "/b/a?"+sub, "<x/>", "X-Fence-Token: 34")
		}
		for _, name := range []string{"CreateMultipartUpload", "UploadPart", "PutObjectTagging", "PutObjectAcl", "PutObjectRetention", "PutObjectLegalHold"} {
			r.wantCondition(r.takeOne(name), "")
		}
		if heads := r.take("HeadObject"); len(heads) > 0 {
			t.Errorf("the key was looked at %d times for nothing", len(heads))
		}
	})
}

// TestConditionsByOperation: one that the store ignores has none, and the others go on having theirs.
func TestConditionsByOperation(t *testing.T) {
	t.Parallel()
	for _, lacking := range conditionable {
		change := func(_ *Config, b *Backend) {
			b.Probe = func(context.Context, string) (f Findings, err error) {
				for _, name := range all.Conditions {
					if name != lacking {
						f.Conditions = append(f.Conditions, name)
					}
				}
				return f, nil
			}
		}
		before(t, change, func(r *remote) {
			for _, name := range conditionable {
				etag := r.put(name, "what is there")
				if w := r.prepare(name, name).send("X-Fence-Token: 34"); w.Code >= 300 {
					t.Fatalf("%s: %d %s", name, w.Code, w.Body)
				}
				want := "If-Match: " + etag
				if name == lacking {
					want = ""
				}
				r.wantCondition(r.takeOne(name), want)
			}
		})
	}
}

// TestRememberedETags: what our own write has left behind need not be looked at, until it may be something else.
func TestRememberedETags(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		const token = "X-Fence-Token: 34"
		looks := func(n int) {
			r.Helper()
			if got := len(r.take("HeadObject")); got != n {
				r.Fatalf("%d looks, want %d", got, n)
			}
		}
		r.want(200, "", "PUT", "/b/a", "one", token)
		looks(1)
		w := r.want(200, "", "PUT", "/b/a", "two", token)
		looks(0)
		r.take("PutObject")
		r.want(200, "", "PUT", "/b/a", "three", token)
		r.wantCondition(r.takeOne("PutObject"), "If-Match: "+w.Header().Get("Etag"))
		r.check(r.prepare("CopyObject", "a").send(token), 200, "")
		looks(0)
		complete := r.prepare("CompleteMultipartUpload", "a")
		r.check(complete.send(token), 200, "")
		r.want(200, "", "PUT", "/b/a", "four", token)
		looks(0)
		r.want(204, "", "DELETE", "/b/a", "", token)
		looks(0)

		for what, forget := range map[string]func(){
			"DELETE": func() { r.want(204, "", "DELETE", "/b/a", "", token) },
			"failure": func() {
				r.fault("PutObject", misbehave.Fault{Status: 403, Code: "AccessDenied", Lose: true})
				r.want(403, "AccessDenied", "PUT", "/b/a", "x", token)
			},
			"doubt": func() {
				r.fault("PutObject", misbehave.Fault{Status: 500, Code: "InternalError", Lose: true})
				r.want(504, "OutcomeUnknown", "PUT", "/b/a", "x", token)
			},
			"batch": func() { r.want(200, "", "POST", "/b?delete", deleteBody("a"), token) },
		} {
			r.want(200, "", "PUT", "/b/a", "known", token)
			r.take("HeadObject")
			forget()
			r.take("HeadObject") // a batch has looked itself
			r.want(200, "", "PUT", "/b/a", "new", token)
			if looks := len(r.take("HeadObject")); looks != 1 {
				t.Errorf("after a %s the key was looked at %d times, want once", what, looks)
			}
		}
	})
}

// TestWrongMemory: what was changed behind our back costs one try, and a look.
func TestWrongMemory(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(r *remote){
		"overwritten": func(r *remote) { r.put("a", "another's") },
		"deleted": func(r *remote) {
			w := httptest.NewRecorder()
			in := r.request("DELETE", "/b/a", nil, 0)
			sign(in)
			r.store.ServeHTTP(w, in)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			before(t, nil, func(r *remote) {
				r.want(200, "", "PUT", "/b/a", "one", "X-Fence-Token: 34")
				change(r)
				r.take("PutObject")
				r.take("HeadObject")
				r.want(200, "", "PUT", "/b/a", "two", "X-Fence-Token: 34")
				if puts, looks := len(r.take("PutObject")), len(r.take("HeadObject")); puts != 2 || looks != 1 {
					t.Errorf("%d tries and %d looks, want 2 and 1", puts, looks)
				}
				r.has("a", "two")
				if n := r.metric("fenceproxy_lost_races_total"); n != 1 {
					t.Errorf("%v lost races counted, want 1", n)
				}
				r.settled()
			})
		})
	}
}

// TestMemoryIsBounded: the oldest or any other has to go.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	var m remembered
	for i := range maxRemembered + 100 {
		name := fmt.Sprint(i)
		m.put(name, "etag")
		if _, ok := m.get(name); !ok {
			t.Fatal("what was just put there is gone")
		}
	}
	if len(m.etags) != maxRemembered {
		t.Errorf("%d remembered, want %d", len(m.etags), maxRemembered)
	}
}

// TestOtherConditionsOfTheClient: a condition on size or time that is not met is the client's answer, and no race that was lost.
func TestOtherConditionsOfTheClient(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.put("a", "content")
		r.interfere("DeleteObject", func(c *call) { c.answer(412, "<Error><Code>PreconditionFailed</Code></Error>") })
		w := r.do("DELETE", "/b/a", "", "X-Fence-Token: 34", "X-Amz-If-Match-Size: 3")
		if w.Code != 412 || w.Header().Get(headerError) != "" {
			t.Errorf("%d %s, want the store's 412", w.Code, w.Body)
		}
		if n := len(r.take("DeleteObject")); n != 1 {
			t.Errorf("sent %d times, want once", n)
		}
		r.settled()
	})
}
