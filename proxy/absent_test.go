package proxy

import (
	"net/url"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
)

const deleteToken = "X-Fence-Token: 34"

// TestDeleteOfAnAbsentKey: it would do nothing now, and harm when it came late. So it is not sent, where nothing of it has to be kept.
func TestDeleteOfAnAbsentKey(t *testing.T) {
	t.Parallel()
	buckets := map[string]struct {
		status int
		answer string
		sent   int
	}{
		"unversioned":     {200, `<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>`, 0},
		"Enabled":         {200, "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>", 1},
		"Suspended":       {200, "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>", 1},
		"no permission":   {403, "<Error><Code>AccessDenied</Code></Error>", 1},
		"not implemented": {501, "<Error><Code>NotImplemented</Code></Error>", 1},
		"no answer":       {0, "", 1},
		"nonsense":        {200, "<html/>", 1},
		"no bucket":       {404, "<Error><Code>NoSuchBucket</Code></Error>", 1},
	}
	before(t, nil, func(r *remote) {
		for what, c := range buckets {
			t.Log(what)
			r.interfere("GetBucketVersioning", func(call *call) {
				if call.answered = true; c.status != 0 {
					call.answer(c.status, c.answer)
				}
			})
			key := url.PathEscape(what)
			r.want(204, "", "DELETE", "/b/"+key, "", deleteToken)
			if n := len(r.take("DeleteObject")); n != c.sent {
				t.Errorf("sent %d times, want %d", n, c.sent)
			}
			r.settled()
			if m := r.mark("b/" + what); m != 34 {
				t.Errorf("the mark is at %d: it did not pass the gate", m)
			}
			r.want(412, "StaleToken", "DELETE", "/b/"+key, "", "X-Fence-Token: 33")
			time.Sleep(versioningHolds)
		}
	})
}

// TestBucketIsAskedOnceAMinute: whether it keeps versions is not often changed.
func TestBucketIsAskedOnceAMinute(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		for _, key := range []string{"a", "b", "a"} {
			r.want(204, "", "DELETE", "/b/"+key, "", deleteToken)
		}
		if n := len(r.take("GetBucketVersioning")); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
		time.Sleep(versioningHolds)
		r.versioned("Enabled")
		r.want(204, "", "DELETE", "/b/a", "", deleteToken)
		r.takeOne("DeleteObject")
		r.take("GetBucketVersioning")
		r.want(204, "", "DELETE", "/b/a", "", deleteToken) // a bucket that keeps them is asked each time
		r.takeOne("GetBucketVersioning")
		r.want(204, "", "DELETE", "/other/a", "", deleteToken)
		r.takeOne("GetBucketVersioning")
	})
}

// TestDeleteOfAKeyThatCameToBe: only behind the gate, with every older write settled, does its absence count.
func TestDeleteOfAKeyThatCameToBe(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.interfere("GetBucketVersioning", func(*call) { r.put("a", "came to be") }) // after the look, before the gate
		r.want(204, "", "DELETE", "/b/a", "", deleteToken)
		r.has("a", "")
		r.takeOne("DeleteObject")
		r.settled()
	})
}

// TestDeleteWaitsForAnOlderWrite: one that is past the gate makes the key after the look of a newer holder's DELETE, which deletes it.
func TestDeleteWaitsForAnOlderWrite(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.fault("PutObject", misbehave.Fault{Late: time.Second})
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.want(200, "", "PUT", "/b/a", "older", "X-Fence-Token: 33")
		}()
		r.sleep(500 * time.Millisecond) // it is past the gate, and has not taken effect
		r.want(204, "", "DELETE", "/b/a", "", deleteToken)
		<-done
		r.has("a", "")
		r.settled()
	})
}

// TestDeleteThatIsNotSentFailsClosed: a store that does not say what is there behind the gate has not deleted anything, as far as anybody knows.
func TestDeleteThatIsNotSentFailsClosed(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.fault("HeadObject", misbehave.Fault{})
		r.fault("HeadObject", misbehave.Fault{Status: 500})
		r.want(503, "ServiceUnavailable", "DELETE", "/b/a", "", deleteToken)
		r.quiet()
		r.settled()
	})
}

// TestDeleteWithAConditionIsTheStores: what If-Match means for a key that is absent, and what a key that is hidden has, the store has to say.
func TestDeleteWithAConditionIsTheStores(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.want(404, "NoSuchKey", "DELETE", "/b/a", "", deleteToken, `If-Match: "x"`)
		r.takeOne("DeleteObject")
		r.put("a", "there")
		r.fault("HeadObject", misbehave.Fault{Status: 403})
		r.want(204, "", "DELETE", "/b/a", "", deleteToken)
		r.takeOne("DeleteObject")
		r.has("a", "")
		r.settled()
	})
}

// TestNothingLateComesOfADeleteOfAnAbsentKey: the older holder's DELETE cannot hit what the newer one makes.
func TestNothingLateComesOfADeleteOfAnAbsentKey(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.fault("DeleteObject", misbehave.Fault{Late: time.Hour, Drop: true})
		r.want(204, "", "DELETE", "/b/a", "", deleteToken)
		r.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
		r.sleep(2 * time.Hour)
		r.has("a", "newer")
	})
}
