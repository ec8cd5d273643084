package audit

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestClientsTextIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(4, 40).Draw(t, "limit")
		s := string(rapid.SliceOfN(rapid.SampledFrom([]byte("a\x00\xff\xc3\xa9\xe2\x82\xac")), 0, 60).Draw(t, "s"))
		got := bounded(s, limit)
		if len(got) > limit || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Fatalf("bounded(%q, %d) = %q", s, limit, got)
		}
		if utf8.ValidString(s) && !strings.Contains(s, "\x00") && len(s) <= limit && got != s {
			t.Fatalf("bounded(%q, %d) = %q changes what is fine", s, limit, got)
		}
		if again := bounded(got, limit); again != got {
			t.Fatalf("bounded again: %q, then %q", got, again)
		}
	})
	l := openLog(t, filepath.Join(t.TempDir(), "audit.db"), Options{})
	r := refusal()
	r.UserAgent, r.Key = strings.Repeat("é", 1<<20), "a\xff\x00b"
	l.Add(t.Context(), r)
	if got := stored(t, l)[0]; len(got.UserAgent) > maxText || got.Key != "a\uFFFD\uFFFDb" {
		t.Errorf("stored %d bytes of user agent and the key %q", len(got.UserAgent), got.Key)
	}
}

func TestJSON(t *testing.T) {
	r := refusal().normal(time.Date(2026, 5, 4, 3, 2, 1, 987_654_321, time.FixedZone("", 7200)))
	r.ID, r.Instance = 9, "p1:9000"
	got, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"time":"2026-05-04T01:02:01.987Z","last":"2026-05-04T01:02:01.987Z","id":9,"count":1,"kind":"refusal",` +
		`"code":"StaleToken","bucket":"b","key":"jobs/42/out","operation":"PutObject","resource":"b/jobs/42","token":33,"highest":34,` +
		`"holder":"a","access_key":"AK","client":"10.0.0.1:5000","user_agent":"Boto3/1.40","request_id":"R1","detail":"","instance":"p1:9000"}`
	if string(got) != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
	var back Record
	if err := json.Unmarshal(got, &back); err != nil || back != r {
		t.Errorf("read back %+v (%v), want %+v", back, err, r)
	}
}
