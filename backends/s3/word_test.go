package s3

import (
	"fmt"
	"testing"
)

// TestOnlySlowDownIsAPromise: S3 says SlowDown before it does anything. Any other 503 may be of something that lost the request after the store had it,
// so it is passed on as one that says nothing of the outcome.
func TestOnlySlowDownIsAPromise(t *testing.T) {
	for code, want := range map[string]int{"SlowDown": 503, "ServiceUnavailable": 502, "InternalError": 502} {
		body := "<Error><Code>" + code + "</Code></Error>"
		answer := fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		t.Run(code, func(t *testing.T) {
			eachMode(t, func(t *testing.T, m mode) {
				f := newMemory(t, answering(answer))
				if w := m.put(t.Context(), f.open(), []byte("content"), passes); w.Code != want {
					t.Errorf("it comes as %d, want %d", w.Code, want)
				}
			})
		})
	}
}
