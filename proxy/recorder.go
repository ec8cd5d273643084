package proxy

import (
	"bytes"
	"io"
	"net/http"
	"time"
)

// recorder keeps a backend's answer to a write until the write has been settled: the client hears of it after the fence does.
// Such answers are small.
type recorder struct {
	header   http.Header
	status   int
	body     []byte
	doubtful bool // what it says leaves open what became of the write
	begun    time.Time
	blank    func(*recorder) // told of an answer that has nothing but blanks so far, nil if nobody wants to know
}

// maxRecorded bounds what a backend may say to a write. The longest answers name 1,000 keys, of 1 KiB each and escaped.
const maxRecorded = 16 << 20

func newRecorder(h http.Header) *recorder { return &recorder{header: h.Clone()} }

func (rec *recorder) Header() http.Header { return rec.header }

func (rec *recorder) WriteHeader(status int) {
	if rec.status == 0 && status >= 200 {
		rec.status, rec.begun = status, time.Now()
	}
}

func (rec *recorder) Write(p []byte) (int, error) {
	rec.WriteHeader(http.StatusOK)
	if len(rec.body)+len(p) > maxRecorded {
		return 0, io.ErrShortWrite
	}
	rec.body = append(rec.body, p...)
	if rec.blank != nil && rec.status == http.StatusOK && blanks(rec.body) == len(rec.body) {
		rec.blank(rec)
	}
	return len(p), nil
}

// blanks is how many bytes a document has before its first element: its XML declaration, and whitespace.
func blanks(document []byte) int {
	rest := bytes.TrimLeft(document, whitespace)
	if bytes.HasPrefix(rest, []byte("<?xml")) {
		_, rest, _ = bytes.Cut(rest, []byte("?>"))
		rest = bytes.TrimLeft(rest, whitespace)
	}
	return len(document) - len(rest)
}

const whitespace = " \t\r\n" // of XML 1.0

// replay sends the answer on.
func (rec *recorder) replay(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range rec.header {
		h[name] = values
	}
	w.WriteHeader(rec.status)
	_, _ = w.Write(rec.body) // a client that has gone need not be told
}

// patience is how long a client waits for the first byte of an answer before the blanks are passed on with which S3 keeps it waiting. Before
// that the status is still free to say what became of the write; clients give up after a minute.
const patience = 10 * time.Second

// keepWaiting passes on the blanks of an answer that takes long (Complete, Copy: "the request can take several minutes ... Amazon S3
// periodically sends white space characters"). From then on the answer is a 200, and what becomes of the write stands in it, as S3 has it.
func (x *exchange) keepWaiting(rec *recorder) {
	if time.Since(rec.begun) < patience || !x.r.ProtoAtLeast(1, 1) { // HTTP/1.0 has no way to tell an answer that was cut off from a whole one
		return
	}
	if !x.waiting {
		x.waiting = true
		if x.target.Fenced {
			x.lookFence()
		}
		h := x.w.Header()
		for name, values := range rec.header {
			if name != "Content-Length" && name != headerStamp {
				h[name] = values
			}
		}
		x.w.WriteHeader(http.StatusOK)
		_, _ = x.w.Write(rec.body) // a client that has gone need not be told
	} else {
		_, _ = io.WriteString(x.w, " ")
	}
	_ = x.control.Flush()
}

// endWaiting ends the answer of a client that was kept waiting. Of an unknown outcome it must not hear anything that looks whole.
func (x *exchange) endWaiting(document []byte) {
	_, _ = x.w.Write(document[blanks(document):])
}
