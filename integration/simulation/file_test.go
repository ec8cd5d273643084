package simulation

import (
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/fenceproxy/fenceproxy/backends/file"
)

// A fileBackend is the file store in a process that is slow and may die: from then on no body comes to its end.
type fileBackend struct {
	w     *world
	p     *proxyRun
	store *file.Store
}

func (b *fileBackend) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(idHeader)
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		b.store.ServeHTTP(rw, r)
		return
	}
	l := newLuck(b.w.seed, uint64(len(id))<<32+hashOf(id))
	l.sleep(3 * time.Second)
	defer b.w.over(id)
	body := &mortalBody{ReadCloser: r.Body, b: b, id: id, luck: l}
	r.Body = body
	rec := httptest.NewRecorder()
	b.store.ServeHTTP(rec, r)
	b.effects(id, r, rec)
	if body.past && l.oneIn(3) {
		l.sleep(10 * time.Second) // the answer comes late, and a raise waits
	}
	if l.oneIn(20) {
		panic("what nobody has thought of")
	}
	for name, values := range rec.Header() {
		rw.Header()[name] = values
	}
	rw.WriteHeader(rec.Code)
	_, _ = rw.Write(rec.Body.Bytes())
}

// effects tells the checker what has happened. It comes before the fence hears of it: nobody newer can have been told anything meanwhile.
func (b *fileBackend) effects(id string, r *http.Request, rec *httptest.ResponseRecorder) {
	q := r.URL.Query()
	if rec.Code >= 300 || q.Has("uploads") || q.Has("partNumber") || r.Method == http.MethodDelete && q.Has("uploadId") {
		return
	}
	run := int(b.w.runs.Load())
	if !q.Has("delete") {
		b.w.effect(id, r.URL.Path[len(bucketName)+2:], false, false, run)
		return
	}
	var result struct {
		XMLName xml.Name `xml:"DeleteResult"`
		Deleted []struct{ Key string }
	}
	if xml.Unmarshal(rec.Body.Bytes(), &result) == nil {
		for _, d := range result.Deleted {
			b.w.effect(id, d.Key, false, false, run)
		}
	}
}

// A mortalBody comes to no end when the process is dead. It pauses past the gate, too.
type mortalBody struct {
	io.ReadCloser
	b    *fileBackend
	id   string
	luck luck
	past bool
}

func (m *mortalBody) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	if err == io.EOF && !m.past {
		m.past = true
		m.b.w.pastGate(m.id)
	}
	if err == io.EOF && m.luck.oneIn(4) {
		m.b.w.count(paused)
		m.luck.sleep(20 * time.Second)
	}
	if m.b.p.dead.Load() {
		return 0, errDead
	}
	return n, err
}
