package node

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/resp"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

func TestParse(t *testing.T) {
	for text, want := range map[string][]resp.Options{
		"redis://h/jobs":                {{Address: "h:6379"}},
		"redis://h:1/jobs?db=2":         {{Address: "h:1", DB: 2}},
		"redis://:p%40@[::1]/jobs":      {{Address: "[::1]:6379", Password: "p@"}},
		"redis://u:p@h/jobs?tls=false":  {{Address: "h:6379", User: "u", Password: "p"}},
		"redis://:p@a,b:2,[::1]:3/jobs": {{Address: "a:6379", Password: "p"}, {Address: "b:2", Password: "p"}, {Address: "[::1]:3", Password: "p"}},
	} {
		if got, name, err := Parse(text, "redis", false); err != nil || name != "jobs" || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %q, %v", text, got, name, err)
		}
	}
	if _, name, err := Parse("redis://h/jobs/7%20b", "redis", false); name != "jobs/7 b" || err != nil {
		t.Errorf("%q, %v", name, err)
	}
	for text, secure := range map[string]bool{"redis://h/jobs": true, "redis://h/jobs?tls=true": false} {
		if got, _, err := Parse(text, "redis", secure); err != nil || got[0].TLS == nil {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "redis:", "redis:jobs", "http://h/jobs", "redis:///jobs", "redis://h", "redis://h/", "redis://h/jobs/", "redis://h/0", "redis://h/3/jobs", "redis://h/a{b}",
		"redis://h/jobs#x", "redis://u@h/jobs", "redis://u:@h/jobs", "redis://h/jobs?db=x", "redis://h/jobs?db=-1", "redis://h/jobs?db=1&db=2", "redis://h/jobs?ttl=3",
		"redis://h/jobs?tls=false&ca=f", "redis://h/jobs?tls=1", "redis://h/jobs?ca=/does/not/exist", "redis://h/jobs?%zz", "redis://u:sec/ret@h/jobs", "redis://u:sec%ret@h/jobs",
		"redis://h/" + strings.Repeat("x", 1001), "redis://h,/jobs", "redis://h:0/jobs", "redis://h:x/jobs",
	} {
		got, name, err := Parse(text, "redis", false)
		if err == nil {
			t.Errorf("%s: %+v, %q", text, got, name)
		} else if strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: the error repeats the password: %v", text, err)
		}
	}
}

func TestOther(t *testing.T) {
	for value, want := range map[string]locks.Other{
		"34 id 1700000000000 host:1": {Holder: "host:1", Token: 34, Since: time.UnixMilli(1700000000000)},
		"0 id 1700000000000 host:1":  {Holder: "host:1", Since: time.UnixMilli(1700000000000)},
		"":                           {}, "0123456789abcdef": {}, "34 id 17 a b": {}, "x id 17 a": {}, "-1 id 17 a": {}, "1 id x a": {}, "1 id 17 a,b": {},
	} {
		if got := Other(value); got != want {
			t.Errorf("%q: %+v", value, got)
		}
	}
}

func TestTexts(t *testing.T) {
	if got, err := Texts([]any{"a", "b"}, 2); err != nil || !reflect.DeepEqual(got, []string{"a", "b"}) {
		t.Error(got, err)
	}
	for _, answer := range []any{nil, "a", []any{"a"}, []any{"a", "b", "c"}, []any{"a", int64(1)}, []any{"a", "b", nil}} {
		if got, err := Texts(answer, 2); err == nil {
			t.Errorf("%v: %v", answer, got)
		}
	}
}

// TestPasses: what a server says while it starts is no reason to give up waiting.
func TestPasses(t *testing.T) {
	for err, want := range map[error]bool{
		Explain(fmt.Errorf("redis at h: %w", resp.Error("LOADING Redis is loading the dataset in memory"))): true,
		resp.Error("BUSY Redis is busy running a script."):                                                  true,
		resp.Error("NOAUTH Authentication required."):                                                       false,
		errors.New("connection refused"):                                                                    false,
	} {
		if Passes(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}
