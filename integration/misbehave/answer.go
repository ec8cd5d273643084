package misbehave

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"strconv"
)

// A reply is an answer before it is sent.
type reply struct {
	status int
	header http.Header
	body   []byte
}

var (
	okay      = reply{status: http.StatusOK}
	noContent = reply{status: http.StatusNoContent}
)

// fail is S3's error document ("Error responses").
func fail(status int, code, message string) reply {
	return document(status, struct {
		XMLName       xml.Name `xml:"Error"`
		Code, Message string
	}{Code: code, Message: message})
}

func refuse(status int, code, format string, args ...any) *reply {
	r := fail(status, code, fmt.Sprintf(format, args...))
	return &r
}

func document(status int, v any) reply {
	body, err := xml.Marshal(v)
	if err != nil {
		panic(err) // the documents of this package always marshal
	}
	return reply{status: status, header: http.Header{"Content-Type": {"application/xml"}}, body: append([]byte(xml.Header), body...)}
}

func (x *request) send(r reply) {
	h := x.w.Header()
	for name, values := range r.header {
		h[name] = values
	}
	h.Set("X-Amz-Request-Id", fmt.Sprintf("%016X", x.op.ID))
	if h.Get("Content-Length") == "" && r.status != http.StatusNoContent {
		h.Set("Content-Length", strconv.Itoa(len(r.body)))
	}
	x.w.WriteHeader(r.status)
	if x.r.Method != http.MethodHead {
		_, _ = x.w.Write(r.body) // a client that has gone needs no answer
	}
}
