package proxy

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// A witness sees what is on record at the moment of an answer.
type witness struct {
	*httptest.ResponseRecorder
	look func()
}

func (w *witness) WriteHeader(status int) {
	w.look()
	w.ResponseRecorder.WriteHeader(status)
}

// TestARefusalIsOnRecordWhenItIsAnswered: a client that was refused finds that in the audit log, however soon it asks.
func TestARefusalIsOnRecordWhenItIsAnswered(t *testing.T) {
	t.Parallel()
	before(t, nil, func(r *remote) {
		r.want(200, "", "PUT", "/b/a", "newer", "X-Fence-Token: 35")
		answered := 0
		w := &witness{httptest.NewRecorder(), func() {
			answered++
			if records := r.records("refusal"); len(records) != 1 || records[0].Token != 34 {
				t.Errorf("on record when it is answered: %+v", records)
			}
		}}
		r.h.ServeHTTP(w, r.request("PUT", "/b/a", strings.NewReader("older"), 5, "X-Fence-Token: 34"))
		r.check(w.ResponseRecorder, 412, "StaleToken")
		if answered != 1 {
			t.Errorf("answered %d times", answered)
		}
	})
}
