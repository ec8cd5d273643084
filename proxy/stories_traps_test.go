package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fenceproxy/fenceproxy/integration/misbehave"
)

// What other programs went through, in the small. docs/traps.md lists them.

// TestTwoReplicasOfOnePath: two machines replicate to one prefix, many small objects in sequence (litestream #1301 and #224). From the newer one's first
// object on, the sequence is its own, and no number of it is the older one's.
func TestTwoReplicasOfOnePath(t *testing.T) {
	before(t, nil, func(r *remote) {
		const objects, handover = 40, 17
		key := func(i int) string { return fmt.Sprintf("jobs/7/generations/%08d.wal", i) }
		for i := range objects {
			switch status := r.do("PUT", "/b/"+key(i), "older", "X-Fence-Token: 33").Code; {
			case i < handover && status != 200:
				t.Fatalf("object %d of the only replica: %d", i, status)
			case i >= handover && status != 412:
				t.Errorf("object %d of the older replica: %d, want 412", i, status)
			}
			if i >= handover-1 {
				r.want(200, "", "PUT", "/b/"+key(i), "newer", "X-Fence-Token: 34")
				r.want(412, "StaleToken", "DELETE", "/b/"+key(0), "", "X-Fence-Token: 33") // what it does not need any more
			}
		}
		for i := range objects {
			want := "older"
			if i >= handover-1 {
				want = "newer"
			}
			r.has(key(i), want)
		}
	}, jobRules)
}

// TestChildThatGoesOn: a command that was started under a lock runs on when the lock is lost (consul #9788). It is refused from the moment that the new
// holder announces itself, before that one has written anything, and so is a state that is written back when somebody has broken the lock by
// force (terraform's S3 backend has a condition on its lock, and none on its state).
func TestChildThatGoesOn(t *testing.T) {
	before(t, nil, func(r *remote) {
		const child = "X-Fence-Token: 33"
		for i := range 3 {
			r.want(200, "", "PUT", "/b/jobs/7/state", fmt.Sprint("serial ", i), child)
		}
		r.want(200, "", "PUT", "/b/jobs/7/state?fence", "", "X-Fence-Token: 34")
		r.take("PutObject")
		for i := range 100 {
			r.want(412, "StaleToken", "PUT", "/b/jobs/7/state", fmt.Sprint("stale ", i), child)
			time.Sleep(time.Second)
		}
		r.quiet()
		r.has("jobs/7/state", "serial 2")
		r.want(200, "", "PUT", "/b/jobs/7/state", "serial 3", "X-Fence-Token: 34")
		r.want(412, "StaleToken", "PUT", "/b/jobs/7/state", "stale", child)
		r.has("jobs/7/state", "serial 3")
	}, jobRules)
}

// TestTokensInOrder: a token is a number that rises from holder to holder (etcd #11788: a lease id does not, and "not equal" is no
// comparison). A lower one is refused however it came about, an equal one is the same holder's, and a higher one is the next one's.
func TestTokensInOrder(t *testing.T) {
	before(t, nil, func(r *remote) {
		const lease1, lease2 = "7587848943239472601", "3632563850270275608" // lease ids, the second holder's is lower
		r.want(200, "", "PUT", "/b/a", "first", "X-Fence-Token: "+lease1)
		r.want(412, "StaleToken", "PUT", "/b/a", "second", "X-Fence-Token: "+lease2)
		for _, c := range []struct {
			token  string
			status int
		}{{"10", 200}, {"11", 200}, {"11", 200}, {"10", 412}, {"0xb", 200}, {"9", 412}, {"12", 200}, {"11", 412}} {
			if w := r.do("PUT", "/b/revisions", c.token, "X-Fence-Token: "+c.token); w.Code != c.status {
				t.Errorf("token %s: %d, want %d", c.token, w.Code, c.status)
			}
		}
		r.has("revisions", "12")
	})
}

// TestOldPrimaryArchivesOn: after a failover two primaries archive to one repository (pgbackrest #420, #1646 and #1753). The old one's
// segments are refused below the whole prefix, and the record has its address.
func TestOldPrimaryArchivesOn(t *testing.T) {
	before(t, nil, func(r *remote) {
		push := func(address, token, segment string) int {
			in := r.request("PUT", "/b/jobs/main/archive/"+segment, strings.NewReader("wal"), 3, "X-Fence-Token: "+token)
			in.RemoteAddr = address
			return r.serve(in).Code
		}
		if push("10.0.0.1:4711", "1", "000000010000000000000001") != 200 || push("10.0.0.2:4712", "2", "000000020000000000000002") != 200 {
			t.Fatal("a primary was refused")
		}
		for i := range 5 {
			if status := push("10.0.0.1:4711", "1", fmt.Sprintf("0000000100000000000000%02d", 2+i)); status != 412 {
				t.Errorf("segment %d of the old primary: %d, want 412", i, status)
			}
		}
		records := r.records("refusal")
		if len(records) == 0 {
			t.Fatal("no refusal is on record")
		}
		for _, record := range records {
			if !strings.HasPrefix(record.Client, "10.0.0.1") || record.Resource != "b/jobs/main" || record.Token != 1 || record.Highest != 2 {
				t.Errorf("%+v", record)
			}
		}
	}, jobRules)
}

// TestOnesOwnRetry: trap 10, the retry of one's own success must not look like a lost race (aws-sdk-java-v2 #6580, hudi #14373). The answer is lost, the token is
// equal, and the second answer is a success, though the first one's effect is what the store has.
func TestOnesOwnRetry(t *testing.T) {
	for what, f := range map[string]misbehave.Fault{"the answer is lost": {Drop: true}, "500 after it took effect": {Status: 500, Code: "InternalError"}} {
		t.Run(what, func(t *testing.T) {
			before(t, nil, func(r *remote) {
				r.put("a", "what is there")
				r.fault("PutObject", f)
				r.want(504, "OutcomeUnknown", "PUT", "/b/a", "new", "X-Fence-Token: 34")
				r.has("a", "new")
				r.want(200, "", "PUT", "/b/a", "new", "X-Fence-Token: 34")
				r.has("a", "new")
				r.fault("DeleteObject", f)
				r.want(504, "OutcomeUnknown", "DELETE", "/b/a", "", "X-Fence-Token: 34")
				r.want(204, "", "DELETE", "/b/a", "", "X-Fence-Token: 34")
				r.has("a", "")
			})
		})
	}
}

// A forgetful client loses the first answer that it gets.
type forgetful struct{ sent atomic.Int32 }

func (c *forgetful) Do(in *http.Request) (*http.Response, error) {
	resp, err := http.DefaultClient.Do(in)
	if err == nil && c.sent.Add(1) == 1 {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return nil, errors.New("read: connection reset by peer")
	}
	return resp, err
}

// TestRetryOfTheSDK: trap 10, the same with the AWS SDK, which retries by itself when it loses an answer on the way from the proxy (aws-sdk-java-v2 #6580).
func TestRetryOfTheSDK(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Backend{Handler: &watcher{}})
	lossy := &forgetful{}
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(f.url + "/~fence/34"), Region: "us-east-1", UsePathStyle: true, HTTPClient: lossy,
		Credentials: credentials.NewStaticCredentialsProvider("AKIDALL", testSecret, ""),
	})
	_, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("b"), Key: aws.String("a"), Body: strings.NewReader("content")})
	if err != nil || lossy.sent.Load() != 2 {
		t.Errorf("sent %d times, and then %v", lossy.sent.Load(), err)
	}
	if e, _ := f.fence.Highest(t.Context(), "b/a"); e.Token != 34 {
		t.Errorf("the fence stands at %+v", e)
	}
}

// TestAbortIsNoDrain: S3 may answer the abort of an upload while its Complete is still on its way, so an abort settles nothing: the next holder waits as
// long as it would have without.
func TestAbortIsNoDrain(t *testing.T) {
	before(t, unstampedStore, func(r *remote) {
		target, list := r.upload("a", "content", "X-Fence-Token: 34")
		settle := r.h.Backends["test"].settle("CompleteMultipartUpload")
		r.fault("CompleteMultipartUpload", misbehave.Fault{Late: settle / 2, Status: 500, Code: "InternalError"})
		r.want(504, "OutcomeUnknown", "POST", target, list, "X-Fence-Token: 34")
		if w := r.do("DELETE", target, "", "X-Fence-Token: 34"); w.Code != 204 && w.Code != 404 {
			t.Fatalf("the abort: %d %s", w.Code, w.Body)
		}
		r.doubtful(1)
		r.want(503, "WaitingForOlderWrite", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
		time.Sleep(settle)
		r.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
		time.Sleep(time.Hour)
		r.has("a", "newer")
	})
}
