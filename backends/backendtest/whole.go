package backendtest

import (
	"bytes"
	"io"
	"net/http"
)

// A whole body is all at hand, and asked for its gate by name: see package backends. It is the gate in any case, for a backend that
// does not know Pass.
type whole struct {
	content []byte
	rest    *bytes.Reader
	gate    func() error // returns io.EOF to let the write through
	passed  bool
}

// wholeBody makes a request's body whole, and leaves the request as it is. It returns nil for a body that has not the length that
// the request says: the proxy refuses it.
func wholeBody(r *http.Request) *whole {
	b := &whole{gate: func() error { return io.EOF }}
	switch body := r.Body.(type) {
	case nil:
	case *scripted:
		b.content = make([]byte, body.content.Len())
		_, _ = body.content.ReadAt(b.content, body.content.Size()-int64(len(b.content))) // never fails
		b.gate = body.end
	default:
		b.content, _ = io.ReadAll(body) // of memory
		r.Body = io.NopCloser(bytes.NewReader(b.content))
	}
	if r.ContentLength >= 0 && r.ContentLength != int64(len(b.content)) {
		return nil
	}
	b.rest = bytes.NewReader(b.content)
	return b
}

// Pass is the gate.
func (b *whole) Pass() error {
	b.passed = true
	if err := b.gate(); err != io.EOF {
		return err
	}
	return nil
}

func (b *whole) Read(p []byte) (int, error) {
	n, err := b.rest.Read(p)
	if err == io.EOF && !b.passed {
		if err := b.Pass(); err != nil {
			return n, err
		}
	}
	return n, err
}

// ReadAt reads the content, which says nothing of the gate.
func (b *whole) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(b.content).ReadAt(p, off)
}

func (b *whole) Close() error { return nil }
