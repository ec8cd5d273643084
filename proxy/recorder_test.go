package proxy

import (
	"bytes"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fenceproxy/fenceproxy/proxy/rules"
)

func TestBlanks(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]int{
		"": 0, " \n": 2, "<?xml version=\"1.0\"?>": 21, " <?xml version=\"1.0\"?>\n ": 24, "<?xml version=\"1.0\"?> <A/>": 22, " <A/>": 1, "<A/>": 0,
		"<?xml": 5, // half of it
	} {
		if got := blanks([]byte(document)); got != want {
			t.Errorf("%q has %d, want %d", document, got, want)
		}
	}
}

// slowly has the store answer the next Complete with blanks, a minute long, and then with this.
func (r *remote) slowly(document string) {
	r.interfere("CompleteMultipartUpload", func(c *call) {
		c.answered = true
		_, _ = io.Copy(io.Discard, c.Body)
		c.w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(c.w, xml.Header)
		for range 6 {
			time.Sleep(10 * time.Second)
			_, _ = io.WriteString(c.w, " ")
		}
		if document == "" {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(c.w, document)
	})
}

const completed = `<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ETag>"x-1"</ETag></CompleteMultipartUploadResult>`

// TestKeepsWaiting: the blanks with which a store keeps a client waiting reach it as they come, and behind them the answer, which is one document
// (trap 8: whitespace that keeps a connection alive is not to be buffered).
func TestKeepsWaiting(t *testing.T) {
	before(t, nil, func(r *remote) {
		r.slowly(completed)
		w := &flushed{ResponseRecorder: httptest.NewRecorder()}
		r.h.ServeHTTP(w, r.request("POST", "/b/k?uploadId=u", strings.NewReader("<CompleteMultipartUpload/>"), 26, "X-Fence-Token: 34"))
		var result struct {
			XMLName xml.Name `xml:"CompleteMultipartUploadResult"`
			ETag    string
		}
		if err := xml.Unmarshal(w.Body.Bytes(), &result); w.Code != 200 || err != nil || result.ETag != `"x-1"` {
			t.Errorf("%d %q, %v", w.Code, w.Body, err)
		}
		if len(w.at) < 5 || w.at[0] != xml.Header+" " {
			t.Errorf("the client had %q flushed, want the declaration and each blank", w.at)
		}
		if w.Header().Get("X-Fence-Highest") != "34" {
			t.Errorf("the answer's headers are %v", w.Header())
		}
	})
}

// A flushed recorder keeps what was there at each flush.
type flushed struct {
	*httptest.ResponseRecorder
	at []string
}

func (w *flushed) Flush() { w.at = append(w.at, w.Body.String()) }

// TestFailsWhileWaiting: a client that was kept waiting is told in the document what became of its write, and of what nobody knows it hears nothing
// that could be taken for an answer.
func TestFailsWhileWaiting(t *testing.T) {
	before(t, nil, func(r *remote) {
		r.slowly("<Error><Code>InvalidPart</Code></Error>")
		w := r.do("POST", "/b/k?uploadId=u", "<CompleteMultipartUpload/>", "X-Fence-Token: 34")
		if w.Code != 200 || !strings.Contains(w.Body.String(), "<Code>InvalidPart</Code>") || xml.Unmarshal(w.Body.Bytes(), new(struct{ XMLName xml.Name })) != nil {
			t.Errorf("%d %q", w.Code, w.Body)
		}
		r.slowly("<Error><Code>InternalError</Code></Error>")
		r.aborted("an error that leaves it open")
		time.Sleep(time.Hour)
		r.slowly("")
		r.aborted("an answer that breaks off")
	})
}

// aborted sends a Complete whose connection has to be cut off.
func (r *remote) aborted(why string) {
	r.Helper()
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			r.Errorf("%s: ended with %v, want a connection that is cut off", why, p)
		}
	}()
	w := r.do("POST", "/b/k?uploadId=u", "<CompleteMultipartUpload/>", "X-Fence-Token: 34")
	r.Errorf("%s: %d %q", why, w.Code, w.Body)
}

// TestRaceWhileWaiting: a lost race behind blanks is a new try, and its answer is one document, too.
func TestRaceWhileWaiting(t *testing.T) {
	before(t, nil, func(r *remote) {
		r.slowly("<Error><Code>PreconditionFailed</Code></Error>")
		r.slowly(completed)
		w := r.do("POST", "/b/k?uploadId=u", "<CompleteMultipartUpload/>", "X-Fence-Token: 34")
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"x-1"`) && !strings.Contains(w.Body.String(), "&#34;x-1&#34;") || bytes.Count(w.Body.Bytes(), []byte("<?xml")) != 1 {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	}, rules.Rule{Match: "**"})
}

// TestQuickErrorKeepsItsStatus: where the store does not keep anybody waiting, the status tells what became of the write.
func TestQuickErrorKeepsItsStatus(t *testing.T) {
	before(t, nil, func(r *remote) {
		r.interfere("CompleteMultipartUpload", func(c *call) { c.answer(200, xml.Header+" <Error><Code>InternalError</Code></Error>") })
		r.do("POST", "/b/k?uploadId=u", "<CompleteMultipartUpload/>", "X-Fence-Token: 34")
		w := r.do("POST", "/b/k?uploadId=u", "<CompleteMultipartUpload/>", "X-Fence-Token: 33")
		if w.Code != 412 || w.Header().Get(headerError) != staleToken {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	})
}
